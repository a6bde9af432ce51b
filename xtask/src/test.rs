//! `cargo xtask test`: everything, from a fresh clone.

use std::process::{Command, Stdio};
use std::{panic, thread};

use anyhow::Result;
use clap::Args;
use guest::lab::{DIRECTORY_VARIABLE, Lab};
use guest::qemu::{self, ACCELERATOR_VARIABLE};

use crate::make;
use crate::step::{self, cargo};

const TASK: &str = "test";
/// Places between two stores at which a server dies, of the many that `cargo xtask torture kill` tries.
const CRASH_POINTS: &str = "40";
/// Power cuts, of the many that `cargo xtask torture powercut` makes.
const POWER_CUTS: &str = "3000";

/// Options of `cargo xtask test`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Handed on to the test runner, for example a name to filter by.
    #[arg(trailing_var_arg = true)]
    filter: Vec<String>,
}

/// Makes the lab, builds the program and the tests, and runs them.
pub(crate) fn run(options: &Options) -> Result<()> {
    make_and_build()?;
    let lab = Lab::locate()?;
    // Tried once, not by each test.
    let accelerator = qemu::accelerator(&lab.kit())?.to_string();
    if has_nextest() {
        step::run(
            TASK,
            cargo(&["nextest", "run", "--workspace", "--locked", "--no-fail-fast"])
                .args(&options.filter)
                .env(DIRECTORY_VARIABLE, lab.directory())
                .env(ACCELERATOR_VARIABLE, &accelerator),
        )?;
        // nextest does not run examples in documentation.
        step::run(TASK, cargo(&["test", "--workspace", "--locked", "--doc"]).args(&options.filter))?;
    } else {
        step::run(
            TASK,
            cargo(&["test", "--workspace", "--locked", "--no-fail-fast"])
                .args(&options.filter)
                .env(DIRECTORY_VARIABLE, lab.directory())
                .env(ACCELERATOR_VARIABLE, &accelerator),
        )?;
    }
    // What needs a program of its own is no test of the workspace; who asks for some tests does not ask for it.
    if options.filter.is_empty() {
        step::torture(["kill", "--rounds", "0", "--crash-rounds", CRASH_POINTS])?;
        step::torture(["powercut", "--cuts", POWER_CUTS, "--each-barrier"])?;
    }
    Ok(())
}

/// Side by side: a cold lab waits for downloads and for links of its own, and so does a build.
fn make_and_build() -> Result<()> {
    thread::scope(|scope| {
        let lab = scope.spawn(|| make::run(&make::Options::default()));
        // The guest tests run the program beside them; cargo alone would not build it for them.
        let built = step::run(TASK, &mut cargo(&["build", "--workspace", "--all-targets", "--locked"]));
        let made = lab.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked));
        built.and(made)
    })
}

fn has_nextest() -> bool {
    let mut command: Command = cargo(&["nextest", "--version"]);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}
