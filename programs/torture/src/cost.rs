//! `cargo xtask torture inflight-cost`: what it costs to track requests in flight.
//!
//! The same load on a disk of nothing, with the inflight region and without it, in turns. What is compared is requests a
//! second, and the processor time of the server for each request, which does not depend on who waits for whom.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;
use tempfile::TempDir;

use super::common::Common;
use super::figures::{self, median};
use super::frontend::{Checks, Durability, Farewell, Load, Protocol, RING_SIZE_MAX, RingShape, Shape};
use super::server::{POLL, Served, Server, Setup, WRITE_CACHE};

const DISK_MIB: u32 = 1024;
/// Before anything counts: threads start, caches fill.
const RAMP: Duration = Duration::from_millis(300);

/// Options of `cargo xtask torture inflight-cost`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Pairs of measurements.
    #[arg(long, value_name = "N", default_value_t = 11)]
    rounds: u32,
    /// How long each measurement lasts.
    #[arg(long, value_name = "S", default_value_t = 2)]
    seconds: u64,
    /// Requests in flight on each queue, up to 64.
    #[arg(long, value_name = "N", default_value_t = 32)]
    depth: u16,
    /// Queues, each with a worker of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    queues: u16,
    #[command(flatten)]
    common: Common,
}

/// One measurement.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sample {
    requests_per_s: f64,
    server_ns_per_request: f64,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
struct Report {
    with: Vec<Sample>,
    without: Vec<Sample>,
    /// Medians, and the median of the ratios of neighbours, with over without.
    requests_per_s: Compared,
    server_ns_per_request: Compared,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Compared {
    with: f64,
    without: f64,
    ratio: f64,
}

/// Measures in turns.
pub(super) fn run(options: &Options) -> Result<()> {
    let seed = options.common.seed("inflight-cost");
    ensure!(options.rounds > 0 && options.seconds > 0, "--rounds and --seconds must not be 0");
    let program = options.common.program.find()?;
    let mut report = Report::default();
    for round in 0..options.rounds {
        // Who is first changes, so that neither has the better moments.
        let first = round % 2 == 0;
        for inflight in [first, !first] {
            let sample = measure(&program, options, inflight, seed).with_context(|| format!("round {round}"))?;
            eprintln!(
                "torture inflight-cost: {}: {:.0} requests/s, {:.0} ns of the server each",
                if inflight { "with" } else { "without" },
                sample.requests_per_s,
                sample.server_ns_per_request
            );
            let samples = if inflight { &mut report.with } else { &mut report.without };
            samples.push(sample);
        }
    }
    report.requests_per_s = report.compare(|sample| sample.requests_per_s);
    report.server_ns_per_request = report.compare(|sample| sample.server_ns_per_request);
    figures::finish(&report, options.common.json, None)
}

fn measure(program: &Path, options: &Options, inflight: bool, seed: u64) -> Result<Sample> {
    let directory = TempDir::with_prefix("vringd-torture-")?;
    let setup = Setup {
        program: program.to_owned(),
        directory: directory.path().to_owned(),
        served: Served::Null(DISK_MIB),
        queues: options.queues,
        workers: "per-queue".into(),
        poll: POLL,
        write_cache: WRITE_CACHE,
        protocol: Protocol::Blk,
        environment: Vec::new(),
    };
    let ring = RingShape { size: RING_SIZE_MAX, event_idx: true };
    let shape = Shape {
        queues: options.queues,
        ring,
        indirect: false,
        inflight,
        durability: Durability::Flushes,
        protocol: Protocol::Blk,
    };
    let mut load = Load::new(shape, Checks::Status, options.depth, seed)?;
    let mut server = Server::start(&setup)?;
    load.connect(server.connect()?)?;
    load.run_for(RAMP)?;

    let (requests, cpu_ns, start) = (load.tally().requests(), server.cpu_ns()?, Instant::now());
    load.run_for(Duration::from_secs(options.seconds))?;
    let (requests, cpu_ns, seconds) =
        (load.tally().requests() - requests, server.cpu_ns()?.saturating_sub(cpu_ns), start.elapsed().as_secs_f64());
    ensure!(requests > 0, "nothing was completed");

    load.drain()?;
    load.disconnect(Farewell::Stopped)?;
    server.stop()?;
    Ok(Sample { requests_per_s: requests as f64 / seconds, server_ns_per_request: cpu_ns as f64 / requests as f64 })
}

impl Report {
    fn compare(&self, figure: fn(&Sample) -> f64) -> Compared {
        let of = |samples: &[Sample]| median(&samples.iter().map(figure).collect::<Vec<_>>()).unwrap_or_default();
        let ratios: Vec<f64> =
            self.with.iter().zip(&self.without).map(|(with, without)| figure(with) / figure(without)).collect();
        Compared { with: of(&self.with), without: of(&self.without), ratio: median(&ratios).unwrap_or_default() }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, cpu) = (&self.requests_per_s, &self.server_ns_per_request);
        write!(
            f,
            "torture inflight-cost: {} pairs: {:.0} requests/s with the region, {:.0} without, ratio {:.3}; {:.0} ns of the \
             server a request with it, {:.0} without, ratio {:.3}",
            self.with.len(),
            rate.with,
            rate.without,
            rate.ratio,
            cpu.with,
            cpu.without,
            cpu.ratio
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_neighbours() {
        let sample = |requests_per_s| Sample { requests_per_s, server_ns_per_request: 1.0 };
        let report = Report {
            with: [90.0, 180.0, 50.0].map(sample).to_vec(),
            without: [100.0, 200.0, 100.0].map(sample).to_vec(),
            ..Report::default()
        };
        let compared = report.compare(|sample| sample.requests_per_s);
        assert_eq!((compared.with, compared.without, compared.ratio), (90.0, 100.0, 0.9));
    }
}
