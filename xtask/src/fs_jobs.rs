//! `cargo xtask fs-jobs`: vringd against virtiofsd by the thirty fio jobs of virtiofs-tests.

use anyhow::Result;
use clap::Args;

use crate::make;
use crate::step::{self, cargo};

const TASK: &str = "fs-jobs";

/// Options of `cargo xtask fs-jobs`.
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Handed on to the program that does it; --help lists what it takes.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Makes the lab, builds the program as it is released, and compares.
pub(crate) fn run(options: &Options) -> Result<()> {
    make::run(&make::Options::default())?;
    step::run(TASK, &mut cargo(&["build", "--release", "--locked", "-p", "vringd", "-p", "tests", "--bins"]))?;
    let program = ["run", "--quiet", "--release", "--locked", "-p", "tests", "--bin", "fs_jobs", "--"];
    step::run(TASK, cargo(&program).args(&options.arguments))
}
