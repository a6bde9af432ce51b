//! `vringd bench moves`: what it costs a guest that its rings move between workers.

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use bench::frontend::{Load, Report, Rw, Spec};
use control::model::Span;
use serde::Serialize;

use crate::stage::{self, Stage};

const DISK: &str = "disk";
/// Capacity of the disk that is served, in MiB.
const CAPACITY_MIB: u32 = 256;

/// Move rings between workers under verified load, and compare with the same load at rest.
///
/// Serves a disk, connects the built-in frontend, and runs rounds with and without moves in turn.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Moves in each round that has them
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub(crate) moves: u64,
    /// Pause between two moves
    #[arg(long, value_name = "TIME", default_value = "100us")]
    pub(crate) pause: Span,
    /// Rounds, each with and without moves
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Latency of a simulated device behind the disk, as in 10ms; memory when left out
    #[arg(long, value_name = "TIME")]
    pub(crate) latency: Option<Span>,
    /// Queues
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) queues: u16,
    /// Requests in flight on each queue
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(crate) depth: u16,
    /// Workers that the rings move between
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) workers: u32,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// One round.
#[derive(Debug, Serialize)]
struct Round {
    moves: u64,
    ops: u64,
    errors: u64,
    mismatches: u64,
    iops: f64,
    mean_latency_us: f64,
    /// Longest time between two completions of a queue.
    longest_gap_us: f64,
}

#[derive(Debug, Serialize)]
struct Outcome {
    at_rest: Vec<Round>,
    moving: Vec<Round>,
    moves: u64,
    errors: u64,
    mismatches: u64,
    /// Median over the rounds of the longest gap with moves, less the same at rest.
    added_gap_us: f64,
}

/// Runs the rounds. Exit status 1 when a request failed or data was wrong.
pub(crate) fn run(args: &Args, program: &Path) -> Result<ExitCode> {
    let (mut at_rest, mut moving) = (Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        // The round with moves says how long the one at rest lasts, so that both had the same chance of a bad moment.
        let (with, seconds) = one(args, program, None)?;
        let (without, _) = one(args, program, Some(seconds))?;
        eprintln!(
            "round {round} of {}: {} moves in {:.1} s, longest gap {:.0} us moving and {:.0} us at rest",
            args.rounds,
            with.moves,
            seconds.as_secs_f64(),
            with.longest_gap_us,
            without.longest_gap_us
        );
        moving.push(with);
        at_rest.push(without);
    }
    let outcome = sum_up(at_rest, moving);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        print_table(&outcome);
    }
    Ok(if outcome.errors + outcome.mismatches == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One load, on a stage of its own: with all the moves, or at rest for `time`.
fn one(args: &Args, program: &Path, time: Option<Duration>) -> Result<(Round, Duration)> {
    let stage = Stage::new(program, stage::directory()?, args.workers, &config(args))?;
    let spec =
        Spec { rw: Rw::RandRw, mix: 50, depth: args.depth, queues: args.queues, verify: true, ..Spec::default() };
    let load = Load::start(&stage.socket(DISK), &spec)?;
    let moves = match time {
        Some(time) => {
            thread::sleep(time);
            0
        }
        None => {
            let mover = stage.start_mover(DISK, args.moves, args.pause.0)?;
            while !mover.is_finished() && !load.is_finished() {
                thread::sleep(Duration::from_millis(5));
            }
            mover.finish()?
        }
    };
    let elapsed = load.elapsed();
    let report = load.finish()?;
    Ok((round_of(&report, moves), elapsed))
}

/// The disk, as a configuration says it.
fn config(args: &Args) -> String {
    let size = format!("{CAPACITY_MIB}M");
    let storage = match args.latency {
        Some(latency) => format!(
            "{{ kind = 'sim', size = '{size}', read_latency = '{latency}', write_latency = '{latency}', channels = {}, \
             seed = 1 }}",
            u16::MAX
        ),
        None => format!("{{ kind = 'memory', size = '{size}' }}"),
    };
    format!(
        "[[export]]\nname = '{DISK}'\nsocket = '@DIR@/{DISK}.sock'\nqueues = {}\nstorage = {storage}\n",
        args.queues
    )
}

fn round_of(report: &Report, moves: u64) -> Round {
    Round {
        moves,
        ops: report.ops,
        errors: report.errors,
        mismatches: report.mismatches,
        iops: report.iops,
        mean_latency_us: report.latency.mean_us,
        longest_gap_us: report.worst_gap_us(),
    }
}

fn sum_up(at_rest: Vec<Round>, moving: Vec<Round>) -> Outcome {
    let all = || at_rest.iter().chain(&moving);
    let gap = |rounds: &[Round]| median(rounds.iter().map(|round| round.longest_gap_us));
    Outcome {
        moves: all().map(|round| round.moves).sum(),
        errors: all().map(|round| round.errors).sum(),
        mismatches: all().map(|round| round.mismatches).sum(),
        added_gap_us: gap(&moving) - gap(&at_rest),
        at_rest,
        moving,
    }
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    bench::stats::Spread::of(values).map_or(0.0, |spread| spread.median)
}

/// One figure of a round.
type Figure = fn(&Round) -> f64;

fn print_table(outcome: &Outcome) {
    let of = |rounds: &[Round], field: Figure| median(rounds.iter().map(field));
    println!("{:24}{:>14}{:>14}", "median of rounds", "moving", "at rest");
    let rows: [(&str, Figure); 3] = [
        ("requests a second", |round| round.iops),
        ("mean latency, us", |round| round.mean_latency_us),
        ("longest gap, us", |round| round.longest_gap_us),
    ];
    for (name, field) in rows {
        println!("{name:24}{:>14.0}{:>14.0}", of(&outcome.moving, field), of(&outcome.at_rest, field));
    }
    let (moves, errors, mismatches) = (outcome.moves, outcome.errors, outcome.mismatches);
    println!(
        "{moves} moves, {errors} errors, {mismatches} mismatches, {:.0} us added to the longest gap",
        outcome.added_gap_us
    );
}
