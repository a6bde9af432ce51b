//! Completions and man pages, from the definitions that the command line itself uses.

use crate::cli::Arguments;
use crate::failure::Failure;
use clap::CommandFactory;
use std::path::Path;

/// Prints the completions for a shell.
pub(crate) fn completions(shell: clap_complete::Shell) {
    clap_complete::generate(shell, &mut Arguments::command(), "vringd", &mut std::io::stdout());
}

/// Writes `vringd.1`, `vringd-disk.1` and so on.
pub(crate) fn man(directory: &Path) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::Runtime(format!("cannot write man pages to {}: {error}", directory.display()));
    std::fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(Arguments::command(), directory).map_err(failed)
}
