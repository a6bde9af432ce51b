//! `cargo xtask test`: everything, from a fresh clone; less of it between two thoughts, more of it at night.

use std::process::Command;
use std::time::Duration;
use std::{panic, thread};

use anyhow::Result;
use clap::Args;
use guest::lab::{DIRECTORY_VARIABLE, Lab};
use guest::qemu::{self, ACCELERATOR_VARIABLE};

use crate::fuzz;
use crate::make;
use crate::space;
use crate::step::{self, cargo};

const TASK: &str = "test";
/// Places between two stores at which a server dies, of the many that `cargo xtask torture kill` tries.
const CRASH_POINTS: &str = "40";
/// Power cuts, of the many that `cargo xtask torture powercut` makes.
const POWER_CUTS: &str = "3000";
/// Until then the test runner has asked cargo what there is to run, and waits for no build of another program. Nothing but the time
/// of a run depends on it.
const TEST_RUNNER_ASKS: Duration = Duration::from_secs(15);
/// What a night multiplies of what tests do over and over, by this much: operations, files, orders of threads.
const MORE_VARIABLE: &str = "VRINGD_MORE";
const MORE_AT_NIGHT: &str = "8";
/// Processor time of each fuzz target in a night, in seconds.
const FUZZING_S: u64 = 240;

/// What `--quick` leaves out: guests, and what measures and torments.
const NOT_QUICK: [&str; 7] = ["tests", "experiments", "bench", "guest", "vringd-bench", "torture", "xtask"];
/// What `--long` adds to the rest, each as `cargo xtask torture` takes it.
const LONG: [&[&str]; 16] = [
    &["kill"],
    &["kill", "--volume"],
    &["kill", "--rbd"],
    &["kill", "--protocol", "scsi"],
    &["kill", "--protocol", "scsi", "--volume"],
    &["upgrade"],
    &["upgrade", "--volume"],
    &["upgrade", "--rbd"],
    &["cluster"],
    &["upgrade", "--protocol", "scsi"],
    &["hostile", "--rounds", "3"],
    &["powercut", "--each-barrier"],
    &["powercut", "--reservations", "--each-barrier"],
    &["powercut", "--device"],
    &["powercut", "--reservations", "--device", "--cuts", "3000"],
    &["database"],
];

/// Options of `cargo xtask test`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Only the rooms of the daemon, without guests and lab: for between two thoughts
    #[arg(long)]
    quick: bool,
    /// After everything, all tortures at full length and an hour of fuzzing: for a night
    #[arg(long, conflicts_with_all = ["quick", "filter"])]
    long: bool,
    /// Handed on to the test runner, for example a name to filter by.
    #[arg(trailing_var_arg = true)]
    filter: Vec<String>,
}

/// Makes the lab, builds the program and the tests, and runs them.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.quick {
        return quick(&options.filter);
    }
    space::warn(TASK);
    make_and_build()?;
    let lab = Lab::locate()?;
    // Tried once, not by each test.
    let accelerator = qemu::accelerator(&lab.kit())?.to_string();
    let mut everything = runner(&["--workspace", "--no-fail-fast"]);
    everything.env(DIRECTORY_VARIABLE, lab.directory()).env(ACCELERATOR_VARIABLE, &accelerator);
    if options.long {
        everything.env(MORE_VARIABLE, MORE_AT_NIGHT);
    }
    if has_nextest() {
        // One more than there are processors: many tests wait most of the time, and those with guests keep to their number. With that no
        // processor is idle any more, and another one would only make each test take longer.
        let processors = thread::available_parallelism().map_or(1, usize::from);
        everything.arg("--test-threads").arg((processors + 1).to_string());
    }
    thread::scope(|scope| {
        // What needs a program of its own is no test of the workspace; who asks for some tests does not ask for it.
        let tortured = options.filter.is_empty().then(|| scope.spawn(short_tortures));
        let tested = step::run(TASK, everything.args(&options.filter));
        let tortured =
            tortured.map(|tortured| tortured.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked)));
        tested.and(tortured.unwrap_or(Ok(())))
    })
    .inspect_err(|_| space::warn(TASK))?;
    if has_nextest() && options.filter.iter().all(|word| !word.starts_with('-')) {
        // nextest does not run examples in documentation; what only it understands chooses none of them.
        step::run(TASK, cargo(&["test", "--workspace", "--locked", "--doc"]).args(&options.filter))?;
    }
    if options.long {
        LONG.iter().try_for_each(|torture| step::torture(torture.iter()))?;
        fuzz::run(&fuzz::Options::for_each_target(FUZZING_S))?;
    }
    Ok(())
}

/// Side by side with the tests: the build of the program that dies where it is told leaves processors idle, and so do its deaths.
fn short_tortures() -> Result<()> {
    thread::sleep(TEST_RUNNER_ASKS);
    step::built_torture(TASK, &["kill", "--rounds", "0", "--crash-rounds", CRASH_POINTS])?;
    step::built_torture(TASK, &["kill", "--protocol", "scsi", "--rounds", "0", "--crash-rounds", CRASH_POINTS])?;
    step::built_torture(
        TASK,
        &["kill", "--rbd", "--frontend-rounds", "20", "--crash-rounds", "10", "--guest-rounds", "0"],
    )?;
    step::built_torture(TASK, &["cluster", "--osd-kills", "2", "--monitor-kills", "1", "--cuts", "5"])?;
    step::built_torture(TASK, &["powercut", "--cuts", POWER_CUTS, "--each-barrier"])?;
    step::built_torture(TASK, &["powercut", "--reservations", "--cuts", POWER_CUTS, "--each-barrier"])
}

fn has_nextest() -> bool {
    step::has("cargo", &["nextest", "--version"])
}

/// What needs neither a guest nor anything from elsewhere.
fn quick(filter: &[String]) -> Result<()> {
    let left_out = NOT_QUICK.iter().flat_map(|package| ["--exclude", package]);
    step::run(TASK, runner(&["--workspace"]).args(left_out).args(filter))
}

/// The test runner that this machine has.
fn runner(arguments: &[&str]) -> Command {
    let mut command = if has_nextest() { cargo(&["nextest", "run", "--locked"]) } else { cargo(&["test", "--locked"]) };
    command.args(arguments);
    command
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
