//! `cargo xtask check`: what a reader should never have to complain about.

use anyhow::Result;

use crate::step::{self, cargo};

const TASK: &str = "check";

/// Runs formatting, lints and documentation; the first failure ends it.
pub(crate) fn run() -> Result<()> {
    step::run(TASK, &mut cargo(&["fmt", "--all", "--check"]))?;
    step::run(TASK, &mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]))?;
    step::run(TASK, cargo(&["doc", "--workspace", "--no-deps", "--locked"]).env("RUSTDOCFLAGS", "-D warnings"))
}
