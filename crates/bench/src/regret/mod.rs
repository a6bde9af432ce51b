//! `bench regret`: how much worse the policy is than the best fixed choice, cell by cell.
//!
//! A cell is a storage, a number of requests in flight and a frontend that sleeps or polls. In each, the policy and every fixed poll
//! window take turns, round after round. What is best is known only afterwards, and differs from cell to cell.

mod cell;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::ValueHint;
use serde::Serialize;

use crate::args::{Json, split};
use crate::contest::{Results, hold};
use crate::disk::{Contender, Kind, Rules, our_command};
use crate::frontend::{Rw, Spec};
use crate::image::{Image, MakeImage};
use crate::parse;
use crate::progress::Progress;
use crate::server::sockets;
use cell::{Cell, On, Regret, cells};

/// Poll windows that the policy competes with.
const FIXED: [&str; 4] = ["off", "fixed=20", "fixed=50", "fixed=200"];
/// Files are as large.
const FILE_BYTES: &str = "256M";

/// The policy against every fixed poll window, in turns, cell by cell
///
/// Serves each storage with `--poll adaptive` and with each fixed window, drives 4 KiB random reads, and says by how much the policy misses
/// the fastest of them, the shortest 99th percentile, and the least processor time a request among those within 3 % of the fastest. The
/// noise of the harness is that of two that are alike: the policy takes part twice.
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

    /// More arguments for our server, such as '--favour efficiency'
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    pub ours: String,

    /// How often each runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// How long a run counts
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse::positive_duration)]
    pub time: Duration,

    /// How long to run before counting: a trial takes a fifth of a second
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse::duration)]
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

/// What a run leaves for a program.
#[derive(Debug, Serialize)]
struct Document<'a> {
    rounds: u32,
    time_s: f64,
    ours: &'a str,
    cells: &'a [Outcome],
}

/// How a cell ended.
#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(flatten)]
    cell: Cell,
    #[serde(flatten)]
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
    split("--ours", &args.ours)?;
    let runs = cells.len() * (FIXED.len() + 2);
    let progress = Progress::new(runs as u64 * u64::from(args.rounds), 0);
    let sockets = sockets()?;
    let mut outcomes: Vec<Outcome> = Vec::new();
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
            let results = hold(&contenders, (&what, args.rounds), &progress, |it| it.run(&rules, &progress).map(Some))?;
            let regret = Regret::of(&results.medians);
            outcomes.push(Outcome { cell: *cell, regret, results });
        }
    }
    drop(progress);
    let time_s = args.time.as_secs_f64();
    let document = Document { rounds: args.rounds, time_s, ours: &args.ours, cells: &outcomes };
    args.json.show(|| table::render(&outcomes, args.rounds), &document)?;
    let is_clean = outcomes.iter().all(|outcome| outcome.results.is_clean());
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The policy, the policy once more, and every fixed window.
fn contenders(vringd: &Path, on: On, ours: &str) -> Result<Vec<Contender>> {
    let windows = [(cell::POLICY, "adaptive"), (cell::AGAIN, "adaptive")].into_iter();
    let all = windows.chain(FIXED.map(|window| (window, window)));
    all.map(|(name, window)| {
        let arguments = format!("{} --poll {window} {ours}", on.arguments());
        let template = our_command(vringd, &arguments, on.lies_in(Path::new("")).is_some())?;
        Ok(Contender { name: name.to_owned(), kind: Kind::Server(template) })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
        let all = Cli::try_parse_from(["bench"]).unwrap().args;
        assert_eq!((all.depth.as_slice(), all.rounds, all.polling), (&[1, 4, 16, 128][..], 5, false));
        assert_eq!(cells(&all.on, &all.depth, true).len(), On::ALL.len() * 4 * 2);
    }

    #[test]
    fn each_window_is_a_contender_and_the_policy_is_two() {
        let contenders = contenders(Path::new("/v"), On::Disk, "--favour latency").unwrap();
        let commands: Vec<String> = contenders
            .iter()
            .map(|contender| match &contender.kind {
                Kind::Server(template) => template.expand(Path::new("S"), Some(Path::new("I"))).join(" "),
                Kind::Fio(_) => String::new(),
            })
            .collect();
        assert_eq!(commands[0], "/v disk --socket S --direct --poll adaptive --favour latency I");
        assert_eq!(commands[0], commands[1]);
        assert_eq!(commands[2], "/v disk --socket S --direct --poll off --favour latency I");
        assert_eq!(commands.len(), FIXED.len() + 2);
    }
}
