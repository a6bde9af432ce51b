//! `vringd bench run`: an experiment from its data to its journal and report.

mod args;
pub mod journal;
mod plan;
mod progress;
#[cfg(test)]
pub(crate) mod samples;
mod signals;
mod stage;
mod turns;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bench::progress::Progress;
use chrono::Utc;
use guest::lab::Lab;
use tempfile::TempDir;

pub use args::Args;

use crate::environment;
use crate::experiment::{Experiment, Place};
use crate::record::{Header, SCHEMA};
use crate::report::{Report, data, output};
use crate::stand::{Claim, Data, Site};
use journal::Journal;
use signals::Stop;
use stage::HostStage;
use turns::Turns;

/// Where runs go unless the person says otherwise.
const OUT_DEFAULT: &str = "vringd-bench";
/// Guests get half of the memory that is free: the rest is the page cache of what they read.
const GUESTS_SHARE: u64 = 2;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything was tried.
    Complete,
    /// The person stopped it.
    Stopped,
}

/// A run that a person asked for, with all that they said checked: nothing has been started or written yet.
#[derive(Debug)]
pub struct Plan<'a> {
    args: &'a Args,
    experiments: Vec<Experiment>,
    lab: Option<Lab>,
    site: Site,
    out: PathBuf,
    /// Holds sockets and logs; goes with the plan.
    _scratch: TempDir,
}

impl<'a> Plan<'a> {
    /// Checks what `args` say, with `vringd` as our server.
    ///
    /// # Errors
    /// An option or an experiment is wrong: one line that names it and says what to do.
    pub fn of(args: &'a Args, vringd: &Path) -> Result<Self> {
        let experiments = args.experiments()?;
        let lab = args.lab()?;
        let scratch =
            tempfile::Builder::new().prefix("vbench-").tempdir().context("cannot make a directory for sockets")?;
        let site = args.site(vringd, lab.as_ref(), scratch.path())?;
        let out = args.out.clone().unwrap_or_else(|| default_out(&experiments));
        if !args.resume {
            for experiment in &experiments {
                journal::refuse_another_run(&out.join(&experiment.name))?;
            }
        }
        Ok(Self { args, experiments, lab, site, out, _scratch: scratch })
    }
}

/// Runs what was planned, and writes and prints its report.
///
/// # Errors
/// The directory for results cannot be used, the run that it holds is another one, or nothing at all could be measured.
pub fn run(plan: &Plan<'_>) -> Result<End> {
    let Plan { args, experiments, lab, site, out, .. } = plan;
    let stop = Stop::on_signals()?;
    // A test in a guest, or another run, would be heard in every figure; a quick run has none for the record.
    let turn = if args.quick { Lab::wait_for_place } else { Lab::wait_alone };
    let _turn = lab.clone().map(turn).transpose()?;
    let _claim = Claim::of(site, experiments)?;
    let mut end = End::Complete;
    let mut measured = false;
    for experiment in experiments {
        let directory = out.join(&experiment.name);
        eprintln!("{}: {} ({})", experiment.name, experiment.title, directory.display());
        let result = run_one(args, site, experiment, &directory, &stop);
        if !args.keep_data {
            Data::remove_all(site, experiment).context("cannot remove the data that was laid out")?;
        }
        let (ended, run) = result?;
        let report = Report::of(run);
        measured |= report.summary.cells.iter().any(|cell| cell.figures.is_some());
        if !args.json {
            output::print(&report)?;
        }
        end = ended;
        if end == End::Stopped {
            break;
        }
    }
    let reports: Vec<Report> = journal::read_all(out)?.into_iter().map(Report::of).collect();
    let page = output::write(&reports, out)?;
    if args.json {
        data::json(&reports, std::io::stdout().lock())?;
    }
    eprintln!("page: {}", page.display());
    if end == End::Stopped {
        eprintln!("stopped; go on with: vringd {}", going_on(std::env::args().skip(1), out));
    } else if !measured {
        bail!("nothing could be measured; {} says why", page.display());
    }
    Ok(end)
}

/// The words that go on with the run that `words` began: the same, for the run is the same only with the same options.
fn going_on(words: impl Iterator<Item = String>, out: &Path) -> String {
    let mut kept = Vec::new();
    let mut words = words;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--out" => drop(words.next()),
            "--resume" => {}
            word if word.starts_with("--out=") => {}
            _ => kept.push(word),
        }
    }
    kept.extend(["--resume".to_owned(), "--out".to_owned(), out.display().to_string()]);
    // No argument of a program that runs holds a NUL byte, which is all that cannot be quoted.
    shlex::try_join(kept.iter().map(String::as_str)).unwrap_or_else(|_| kept.join(" "))
}

fn run_one(
    args: &Args,
    site: &Site,
    experiment: &Experiment,
    directory: &Path,
    stop: &Stop,
) -> Result<(End, crate::record::Run)> {
    let header = Header {
        schema: SCHEMA,
        vringd: env!("CARGO_PKG_VERSION").to_owned(),
        quick: args.quick,
        begun: Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string(),
        environment: environment::look(site, experiment),
        experiment: experiment.clone(),
    };
    let mut journal =
        if args.resume { Journal::resume(directory, header)? } else { Journal::begin(directory, header)? };
    let measurements =
        experiment.configurations.len() * experiment.workloads.len() * usize::try_from(experiment.rounds)?;
    let progress = Progress::new(u64::try_from(measurements)?, u64::try_from(journal.settled())?);
    let complete = Turns {
        experiment,
        stage: &mut HostStage { site, experiment },
        journal: &mut journal,
        progress: &progress,
        stop: stop.flag(),
        memory_mib: environment::memory_available_mib() / GUESTS_SHARE,
        impossible: BTreeMap::new(),
    }
    .take()?;
    Ok((if complete { End::Complete } else { End::Stopped }, journal.run().clone()))
}

/// A directory of its own for each run: figures of two runs are compared, never mixed.
fn default_out(experiments: &[Experiment]) -> PathBuf {
    let what = match experiments {
        [one] => one.name.as_str(),
        _ => "run",
    };
    Path::new(OUT_DEFAULT).join(format!("{what}-{}", Utc::now().format("%Y%m%d-%H%M%S")))
}

/// `experiment` with its guests in `place`. What such a guest cannot have is left in, and says so in its column.
fn with_guests_in(mut experiment: Experiment, place: Place) -> Experiment {
    for configuration in &mut experiment.configurations {
        if matches!(configuration.place, Place::Uml | Place::Qemu | Place::Ssh) {
            configuration.place = place;
        }
    }
    experiment
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_with_the_options_that_it_began_with() {
        let going_on = |line: &str, out| {
            let words = line.split(' ').map(str::to_owned);
            super::going_on(words, Path::new(out))
        };
        assert_eq!(
            going_on("bench run equals --only=-auto --out there --time 0.5", "there"),
            "bench run equals '--only=-auto' --time 0.5 --resume --out there"
        );
        assert_eq!(going_on("bench run all --resume --out=o", "an out"), "bench run all --resume --out 'an out'");
        assert_eq!(
            going_on("bench run a.toml", "vringd-bench/a-1"),
            "bench run a.toml --resume --out vringd-bench/a-1"
        );
    }
}
