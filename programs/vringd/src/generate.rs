//! Completions and man pages, from the definitions that the command line itself uses.

use anyhow::{Context, Result};
use clap::Subcommand;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What is made of the definitions of the command line.
#[derive(Debug, Subcommand)]
pub enum Generate {
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages, one for each command
    Man {
        /// Directory to write them to
        directory: PathBuf,
    },
}

impl Generate {
    /// Its words on the command line.
    pub(crate) fn words(&self) -> (&'static str, OsString) {
        match self {
            Generate::Completions { shell } => ("completions", shell.to_string().into()),
            Generate::Man { directory } => ("man", directory.into()),
        }
    }

    /// Makes it of `command`.
    ///
    /// # Errors
    /// A directory that cannot be made or written to.
    pub fn run(&self, mut command: clap::Command) -> Result<()> {
        match self {
            Generate::Completions { shell } => {
                clap_complete::generate(*shell, &mut command, "vringd", &mut std::io::stdout());
                Ok(())
            }
            Generate::Man { directory } => {
                man(command, directory).with_context(|| format!("cannot write man pages to {}", directory.display()))
            }
        }
    }
}

/// Writes `vringd.1`, `vringd-disk.1` and so on.
fn man(command: clap::Command, directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command, directory)
}
