//! `vringd bench limits`: whether two exports of a group get half of its rate each, and one alone all of it.

use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use bench::frontend::{Load, Rw, Spec};
use control::model::Span;
use serde::Serialize;

use crate::stage::{self, Stage};

/// How far a share may be from what is due.
const TOLERANCE: f64 = 0.05;
/// How long a load runs before it is counted: the burst is used up by then.
const RAMP: Duration = Duration::from_millis(500);
/// Queues that each disk offers.
const QUEUES: u16 = 4;
const WORKERS: u32 = 2;

/// Drive two disks that share the limits of a group, and see what each gets.
///
/// Serves two disks without storage and drives them as fast as they go: with equal loads, with unequal
/// ones, and one of them alone. Ends with exit status 1 when a share is more than 5 % from what is due.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Requests a second that the two share; with many more than 100000, a load of depth 32 cannot use its half
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    pub(crate) iops: u64,
    /// How long each load is counted
    #[arg(long, value_name = "TIME", default_value = "3s")]
    pub(crate) time: Span,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What one disk is asked for.
#[derive(Clone, Copy, Debug)]
struct Demand {
    disk: &'static str,
    queues: u16,
    depth: u16,
    block_bytes: u32,
}

const CASES: [(&str, &[Demand]); 3] = [
    ("equal loads", &[demand("a", 1, 128, 4096), demand("b", 1, 128, 4096)]),
    ("unequal loads", &[demand("a", QUEUES, 128, 4096), demand("b", 1, 32, 65_536)]),
    ("one alone", &[demand("a", QUEUES, 128, 4096)]),
];

const fn demand(disk: &'static str, queues: u16, depth: u16, block_bytes: u32) -> Demand {
    Demand { disk, queues, depth, block_bytes }
}

/// What one disk got.
#[derive(Debug, Serialize)]
struct Share {
    case: &'static str,
    disk: &'static str,
    queues: u16,
    depth: u16,
    block_bytes: u32,
    iops: f64,
    /// What is due to it.
    iops_due: f64,
    errors: u64,
}

impl Share {
    fn ratio(&self) -> f64 {
        self.iops / self.iops_due
    }

    fn is_fair(&self) -> bool {
        (self.ratio() - 1.0).abs() <= TOLERANCE && self.errors == 0
    }
}

/// Runs the cases. Exit status 1 when a share is not what is due.
pub(crate) fn run(args: &Args, program: &Path) -> Result<ExitCode> {
    let mut shares = Vec::new();
    for (case, demands) in CASES {
        shares.extend(measure(args, program, case, demands)?);
    }
    let fair = shares.iter().all(Share::is_fair);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&shares)?);
    } else {
        print_table(args.iops, &shares);
    }
    Ok(if fair { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// One case, on a daemon of its own: what each disk got a second.
fn measure(args: &Args, program: &Path, case: &'static str, demands: &[Demand]) -> Result<Vec<Share>> {
    let stage = Stage::new(program, stage::directory()?, WORKERS, &config(args.iops))?;
    let mut loads = Vec::new();
    for demand in demands {
        let Demand { queues, depth, block_bytes, .. } = *demand;
        let spec = Spec { rw: Rw::RandRead, queues, depth, block_bytes, ..Spec::default() };
        loads.push(Load::start(&stage.socket(demand.disk), &spec)?);
    }
    thread::sleep(RAMP);
    let before: Vec<u64> = loads.iter_mut().map(|load| load.snapshot().ops).collect();
    let since = Instant::now();
    while since.elapsed() < args.time.0 && !loads.iter().any(Load::is_finished) {
        thread::sleep(Duration::from_millis(10).min(args.time.0));
    }
    let after: Vec<u64> = loads.iter_mut().map(|load| load.snapshot().ops).collect();
    let seconds = since.elapsed().as_secs_f64();
    let mut shares = Vec::new();
    for ((load, demand), (before, after)) in loads.into_iter().zip(demands).zip(before.into_iter().zip(after)) {
        let report = load.finish()?;
        shares.push(Share {
            case,
            disk: demand.disk,
            queues: demand.queues,
            depth: demand.depth,
            block_bytes: demand.block_bytes,
            iops: after.saturating_sub(before) as f64 / seconds,
            iops_due: args.iops as f64 / demands.len() as f64,
            errors: report.errors,
        });
    }
    Ok(shares)
}

/// Two disks, both in the group, as a configuration says them.
fn config(iops: u64) -> String {
    let disk = |name| {
        format!(
            "[[export]]\nname = '{name}'\nsocket = '@DIR@/{name}.sock'\nqueues = {QUEUES}\n\
             storage = {{ kind = 'null', size = '1G' }}\nlimits = {{ group = 'group' }}\n"
        )
    };
    format!("[[group]]\nname = 'group'\niops = {iops}\n{}{}", disk("a"), disk("b"))
}

fn print_table(iops: u64, shares: &[Share]) {
    println!("two disks share {iops} requests a second\n");
    println!(
        "{:16}{:6}{:>8}{:>8}{:>10}{:>14}{:>10}{:>8}",
        "", "disk", "queues", "depth", "bytes", "requests/s", "due", "ratio"
    );
    for share in shares {
        println!(
            "{:16}{:6}{:>8}{:>8}{:>10}{:>14.1}{:>10.0}{:>8.3}{}",
            share.case,
            share.disk,
            share.queues,
            share.depth,
            share.block_bytes,
            share.iops,
            share.iops_due,
            share.ratio(),
            if share.is_fair() { "" } else { "  not what is due" }
        );
    }
    let fair = shares.iter().all(Share::is_fair);
    println!(
        "\n{}",
        if fair { "every share is within 5 % of what is due" } else { "NOT every share is within 5 % of what is due" }
    );
}
