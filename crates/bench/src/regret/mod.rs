//! `bench regret`: how much worse the policy is than the best fixed choice, cell by cell.
//!
//! A cell is a storage, a number of requests in flight and a frontend that sleeps or polls. In each, the policy and four fixed poll
//! windows take turns, round after round. What is best is known only afterwards, and differs from cell to cell.

mod cell;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::ValueHint;
use serde::Serialize;
use values::Lun;

use crate::args::{Json, split};
use crate::contest::{Results, hold};
use crate::disk::{Contender, Kind, Rules, our_command};
use crate::environment::Mount;
use crate::frontend::{Protocol, Rw, Spec};
use crate::image::{Image, MakeImage};
use crate::parse;
use crate::progress::Progress;
use crate::server::sockets;
use cell::{Cell, On, Regret, cells};

/// Poll windows that the policy competes with.
const FIXED: [&str; 4] = ["off", "fixed=20", "fixed=50", "fixed=200"];
/// Files are as large.
const FILE_BYTES: &str = "256M";

/// The policy against fixed poll windows, in turns, cell by cell
///
/// Serves each storage with `--poll adaptive`, `off`, `fixed=20`, `fixed=50` and `fixed=200`, drives 4 KiB random reads, and says by how much
/// the policy misses the fastest of them, the shortest 99th percentile, and the most requests a second of processor time among those within
/// 3 % of the fastest. The policy takes part twice, so that what differs between the two shows the noise of the harness.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Measure on this storage only; may be repeated
    #[arg(long, value_name = "STORAGE", value_enum)]
    pub on: Vec<On>,

    /// Requests in flight, as a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 4, 16, 128], value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: Vec<u16>,

    /// Measure with a frontend that polls, too
    #[arg(long)]
    pub polling: bool,

    /// More arguments for our server but --poll and --socket, such as '--favour efficiency'
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    pub ours: String,

    /// How often each runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// How long a run counts
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse::positive_duration)]
    pub time: Duration,

    /// How long to run before counting: a new server tries at once and some two seconds later, as one that has run for long seldom does
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse::duration)]
    pub ramp: Duration,

    /// Directory on the disk to measure
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value_os_t = std::env::temp_dir())]
    pub dir: PathBuf,

    #[command(flatten)]
    json: Json,
}

const EXAMPLES: &str = "\
Examples:
  Everything, on the disk that holds /srv:
    vringd bench regret --dir /srv

  What does efficiency cost where it matters most?
    vringd bench regret --on disk --on tmpfs --depth 1 --ours '--favour efficiency'";

/// On what terms a run was made.
#[derive(Debug, Serialize)]
struct Conditions<'a> {
    rounds: u32,
    time_s: f64,
    ramp_s: f64,
    ours: &'a str,
    dir: String,
}

/// What a run leaves for a program.
#[derive(Debug, Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    conditions: &'a Conditions<'a>,
    cells: &'a [Outcome],
}

/// How a cell ended.
#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(flatten)]
    cell: Cell,
    regret: Option<Regret>,
    #[serde(flatten)]
    results: Results,
}

/// Runs the benchmark; `vringd` is our own executable.
///
/// # Errors
/// A server cannot be started or driven, files cannot be laid out, or a result cannot be written.
pub fn run(args: &Args, vringd: &Path) -> Result<ExitCode> {
    let cells = cells(&args.on, &args.depth, args.polling);
    args.check(&cells)?;
    let runs = cells.len() * (FIXED.len() + 2);
    let progress = Progress::new(runs as u64 * u64::from(args.rounds), 0);
    let sockets = sockets()?;
    let (mut outcomes, mut failures): (Vec<Outcome>, Vec<String>) = (Vec::new(), Vec::new());
    for group in cells.chunk_by(|one, next| one.on == next.on) {
        let Some(on) = group.first().map(|cell| cell.on) else { continue };
        let image = on.lies_in(&args.dir).map(|dir| -> Result<Image> {
            let order: MakeImage = format!("{FILE_BYTES}@{}", dir.display()).parse().map_err(anyhow::Error::msg)?;
            Image::make(&order, |bytes| progress.lay_out(bytes))
        });
        let image = image.transpose()?;
        let contenders = contenders(vringd, on, &args.ours)?;
        for cell in group {
            let (time, ramp) = (Some(args.time), args.ramp);
            let spec = Spec { rw: Rw::RandRead, depth: cell.depth, poll: cell.polling, time, ramp, ..Spec::default() };
            let rules = Rules {
                spec: &spec,
                image: image.as_ref().map(Image::path),
                socket: &sockets.path().join("disk.sock"),
                server_cpus: &[],
                idle: None,
            };
            let what = format!("{cell},");
            match hold(&contenders, (&what, args.rounds), &progress, |it| it.run(&rules, &progress).map(Some)) {
                Ok(results) => outcomes.push(Outcome { cell: *cell, regret: Regret::of(&results), results }),
                // What other cells came to took its time.
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
    }
    drop(progress);
    let conditions = Conditions {
        rounds: args.rounds,
        time_s: args.time.as_secs_f64(),
        ramp_s: args.ramp.as_secs_f64(),
        ours: &args.ours,
        dir: args.dir.display().to_string(),
    };
    let document = Document { conditions: &conditions, cells: &outcomes };
    args.json.show(|| table::render(&outcomes, &conditions), &document)?;
    failures.iter().for_each(|failure| eprintln!("{failure}"));
    let is_clean = failures.is_empty() && outcomes.iter().all(|outcome| outcome.results.is_clean());
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Args {
    /// What would fail late, or measure something else, is refused before anything is laid out.
    fn check(&self, cells: &[Cell]) -> Result<()> {
        let words = split("--ours", &self.ours)?;
        let taken = ["--poll", "--socket"];
        if let Some(word) = words.iter().find(|word| taken.contains(&word.split('=').next().unwrap_or(word))) {
            bail!("--ours {word}: is what this benchmark sets itself");
        }
        let is_memory = Mount::of(&self.dir).is_some_and(|mount| mount.kind == "tmpfs");
        if cells.iter().any(|cell| cell.on == On::Disk) && is_memory {
            bail!(
                "--dir {}: is in memory (tmpfs); give a directory on a disk, or leave --on disk out",
                self.dir.display()
            );
        }
        Ok(())
    }
}

/// The policy, the policy once more, and every fixed window.
fn contenders(vringd: &Path, on: On, ours: &str) -> Result<Vec<Contender>> {
    let fixed = FIXED.map(|window| (window, window));
    // The two that are alike are far from each other, so that what drifts differs between them as it does between others.
    let [one, two, three, four] = fixed;
    let all = [(cell::POLICY, "adaptive"), one, two, (cell::AGAIN, "adaptive"), three, four];
    all.into_iter()
        .map(|(name, window)| {
            let arguments = format!("{} --poll {window} {ours}", on.arguments());
            let template = our_command(
                (Protocol::VhostUser, Lun::default()),
                vringd,
                &arguments,
                on.lies_in(Path::new("")).is_some(),
            )?;
            Ok(Contender {
                name: name.to_owned(),
                kind: Kind::Server { template, protocol: Protocol::VhostUser, reserve: false, queues: 1 },
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::{debug_assert, typed};

    #[test]
    fn the_definition_is_sound() {
        debug_assert::<Args>();
        let all: Args = typed("").unwrap();
        assert_eq!((all.depth.as_slice(), all.rounds, all.polling), (&[1, 4, 16, 128][..], 5, false));
        assert_eq!(cells(&all.on, &all.depth, true).len(), On::ALL.len() * 4 * 2);
    }

    #[test]
    fn what_would_measure_something_else_is_refused_at_once() {
        let refused = |line: &str| {
            let args: Args = typed(line).unwrap();
            args.check(&cells(&args.on, &args.depth, false)).unwrap_err().to_string()
        };
        assert!(refused("--on null --ours '--poll off'").starts_with("--ours --poll: "));
        assert!(refused("--on null --ours '--socket=/x'").starts_with("--ours --socket=/x: "));
        assert!(refused("--on disk --dir /dev/shm").starts_with("--dir /dev/shm: is in memory"));
    }

    #[test]
    fn each_window_is_a_contender_and_the_policy_is_two() {
        let contenders = contenders(Path::new("/v"), On::Disk, "--favour latency").unwrap();
        let commands: Vec<String> = contenders
            .iter()
            .map(|contender| match &contender.kind {
                Kind::Server { template, .. } => template.expand(Path::new("S"), Some(Path::new("I"))).join(" "),
                Kind::Fio(_) => String::new(),
            })
            .collect();
        assert_eq!(commands[0], "/v disk --socket S --direct --poll adaptive --favour latency I");
        assert_eq!(commands[0], commands[3]);
        assert_eq!(commands[1], "/v disk --socket S --direct --poll off --favour latency I");
        assert_eq!(commands.len(), FIXED.len() + 2);
    }
}
