//! Kills under a QEMU guest that reconnects, see `fio_guest`.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::disk::Kind;
use crate::fio_guest::{FioGuest, Verdict};
use crate::rng::Rng;
use crate::server::Server;

/// Stream of the seed; the sessions of the other half have the small numbers.
const STREAM: u64 = 1 << 32;
/// From the first requests that a server has taken to its end; or from its start, once in [`EARLY_KILLS`] kills. The guest
/// takes up to 50 ms to find the next one.
const LIFE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_millis(300);
const EARLY_KILLS: u64 = 5;
/// How long there may be no server at all, once in [`ABSENCES`] kills.
const ABSENCE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(300);
const ABSENCES: u64 = 4;

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Report {
    /// Servers killed.
    kills: u32,
    /// Those among them that had served requests.
    kills_under_load: u32,
    /// Requests that those had taken.
    requests: u64,
    #[serde(flatten)]
    verdict: Verdict,
    /// From the first kill to the last.
    seconds: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} kills in {:.0} s, {} of them under load ({} requests), {} verified runs of fio, worst latency \
             {:.0} ms",
            self.kills,
            self.seconds,
            self.kills_under_load,
            self.requests,
            self.verdict.fio_runs,
            self.verdict.worst_latency_ms
        )
    }
}

/// Kills `rounds` servers under one guest. No report: the guest did not come up.
pub(super) fn run(program: &Path, rounds: u32, kind: Kind, seed: u64) -> (Option<Report>, Result<()>) {
    match FioGuest::start("kill", program, kind) {
        Err(error) => (None, Err(error)),
        Ok(guest) => {
            let mut torture = Torture { report: Report::default(), rng: Rng::new(seed, STREAM), guest };
            let result = torture.run(rounds);
            (Some(torture.report), result)
        }
    }
}

struct Torture {
    report: Report,
    rng: Rng,
    guest: FioGuest,
}

impl Torture {
    fn run(&mut self, rounds: u32) -> Result<()> {
        let start = Instant::now();
        while self.report.kills < rounds {
            self.round().with_context(|| format!("kill {} under the guest", self.report.kills))?;
            self.report.seconds = start.elapsed().as_secs_f64();
            if self.report.kills.is_multiple_of(20) {
                eprintln!("torture kill: {} of {rounds} under the guest", self.report.kills);
            }
        }
        self.report.verdict = self.guest.end()?;
        Ok(())
    }

    fn round(&mut self) -> Result<()> {
        if !self.rng.once_in(EARLY_KILLS) {
            self.guest.wait_for_requests()?;
        }
        self.guest.work_for(self.rng.time(LIFE))?;
        let requests = Server::requests(self.guest.setup());
        self.guest.server().kill()?;
        self.guest.server().wait_killed()?;
        self.report.kills += 1;
        self.report.kills_under_load += u32::from(requests > 0);
        self.report.requests += requests;
        if self.rng.once_in(ABSENCES) {
            thread::sleep(self.rng.time(ABSENCE));
        }
        self.guest.serve_again()
    }
}
