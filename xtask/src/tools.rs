//! Programs from crates.io that a task calls: installed into `target/tools`, each in the version that the task names.

use std::path::PathBuf;

use anyhow::Result;

use crate::step::{cargo, run, workspace};

/// A program of a crate that is named as it is.
pub(crate) struct Tool {
    /// Name of the crate and the program.
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// What else `cargo install` is told: features.
    pub(crate) options: &'static [&'static str],
}

impl Tool {
    /// Installs it unless it is there in this version.
    pub(crate) fn install(&self, task: &str) -> Result<PathBuf> {
        let tools = workspace().join("target/tools");
        let mut install = cargo(&["install", "--locked", "--quiet", "--version", self.version, self.name]);
        install.args(self.options).arg("--root").arg(&tools);
        run(task, &mut install)?;
        Ok(tools.join("bin").join(self.name))
    }
}
