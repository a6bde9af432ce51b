//! `cargo xtask fuzz`: every fuzz target for a time, and a ledger in which the times add up.

mod ledger;
mod target;

use std::collections::VecDeque;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use guest::lab::Lab;

use crate::step::{self, cargo, workspace};
use ledger::{Ledger, Run};
use target::Target;

const TASK: &str = "fuzz";

/// Options of `cargo xtask fuzz`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Fuzz these only; all of them when left out.
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    /// How long each target runs, in seconds of processor time: what else the machine does takes nothing from it.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=604_800))]
    time: u64,
    /// Targets at a time; a processor each when left out.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// Show what the ledger holds, and fuzz nothing.
    #[arg(long, conflicts_with_all = ["targets", "time", "jobs"])]
    ledger: bool,
}

impl Options {
    /// Every target for so many seconds of processor time.
    pub(crate) fn for_each_target(time_s: u64) -> Options {
        Options { targets: Vec::new(), time: time_s, jobs: None, ledger: false }
    }
}

/// Fuzzes what was asked for, those first that have had the least; writes each run into the ledger as it ends.
pub(crate) fn run(options: &Options) -> Result<()> {
    let path = workspace().join("fuzz/ledger.csv");
    let ledger = Ledger::read(&path)?;
    if options.ledger {
        print!("{}", ledger.table());
        return Ok(());
    }
    ensure!(
        step::has("cargo", &["fuzz", "--version"]),
        "cargo-fuzz is not installed; `cargo install cargo-fuzz --locked` installs it"
    );
    let all = names()?;
    if let Some(name) = options.targets.iter().find(|name| !all.contains(name)) {
        bail!("{name}: there is no such target; take some of {}", all.join(", "));
    }
    let mut names = if options.targets.is_empty() { all } else { options.targets.clone() };
    names.sort_by_cached_key(|name| (ledger.processor_s(name), name.clone()));
    names.dedup();
    step::run(TASK, &mut cargo(&["fuzz", "build", "--sanitizer", "none"]))?;

    let lab = Lab::locate()?;
    let commit = commit()?;
    let time = Duration::from_secs(options.time);
    let jobs = options.jobs.or(thread::available_parallelism().ok()).map_or(1, NonZero::get);
    println!("{TASK}: {} targets, {} s of processor time each, {jobs} at a time", names.len(), options.time);
    let queue = Mutex::new(VecDeque::from(names));
    let failures = Mutex::new(Vec::new());
    let ledger = Mutex::new(ledger);
    // A function, so that nobody holds the queue while a target runs.
    let next = || lock(&queue).pop_front();
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(name) = next() {
                    println!("{TASK}: {name}: begun");
                    let done = fuzz(&lab, &name, &commit, time).and_then(|run| {
                        println!("{TASK}: {run}");
                        lock(&ledger).add(&path, run)
                    });
                    if let Err(error) = done {
                        println!("{TASK}: {name}: {error:#}");
                        lock(&failures).push(name);
                    }
                }
            });
        }
    });
    print!("{}", lock(&ledger).table());
    let failures = lock(&failures);
    ensure!(failures.is_empty(), "{} failed", failures.join(", "));
    Ok(())
}

/// One target, until it has had its time. An input that fails it is an error.
fn fuzz(lab: &Lab, name: &str, commit: &str, time: Duration) -> Result<Run> {
    let directory = lab.directory().join("fuzz");
    let target = Target {
        program: built(name)?,
        seeds: workspace().join("fuzz/seeds").join(name),
        // Kept from one run to the next: what was learned once is where the next one begins.
        corpus: directory.join(name),
        artifacts: workspace().join("fuzz/artifacts").join(name),
        log: directory.join(format!("{name}.log")),
    };
    for directory in [&target.corpus, &target.artifacts] {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let figures = target.run(time)?;
    let corpus = fs::read_dir(&target.corpus).map_or(0, |inputs| inputs.count() as u64);
    Ok(Run {
        commit: commit.to_owned(),
        target: name.to_owned(),
        processor_s: figures.processor_s as u64,
        executions: figures.executions,
        edges: figures.edges,
        features: figures.features,
        corpus,
    })
}

/// The targets, as cargo-fuzz knows them.
fn names() -> Result<Vec<String>> {
    let output =
        cargo(&["fuzz", "list"]).stderr(Stdio::inherit()).output().context("cannot start `cargo fuzz list`")?;
    ensure!(output.status.success(), "`cargo fuzz list` failed with {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Where cargo-fuzz has put a target's program: it builds for a target triple that it names itself.
fn built(name: &str) -> Result<PathBuf> {
    let output = workspace().join("fuzz/target");
    let entries = fs::read_dir(&output).with_context(|| format!("cannot list {}", output.display()))?;
    entries
        .filter_map(|entry| Some(entry.ok()?.path().join("release").join(name)))
        .find(|program| program.is_file())
        .with_context(|| format!("there is no program of {name} below {}", output.display()))
}

/// The commit that is fuzzed, with a `+` when the work tree has more than that and the ledger's new lines.
fn commit() -> Result<String> {
    let head = git(&["rev-parse", "--short=9", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--", ".", ":(exclude)fuzz/ledger.csv"])?;
    Ok(if changes.is_empty() { head } else { head + "+" })
}

fn git(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("git");
    let output = command.args(arguments).current_dir(workspace()).output().context("cannot start git")?;
    ensure!(
        output.status.success(),
        "`git {}` failed: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
