//! Upgrades under a QEMU guest, see `fio_guest`. To it an upgrade is nothing: it must not even have to connect again.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::disk::Kind;
use crate::figures::{Spread, Times};
use crate::fio_guest::{FioGuest, Verdict};
use crate::rng::Rng;
use crate::server::{Server, went_on};

/// Stream of the seed; the sessions of the other half have the small numbers.
const STREAM: u64 = 1 << 32;
/// From the first requests that a program has taken to the next upgrade.
const LIFE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_millis(300);

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Report {
    /// Times the program was replaced.
    upgrades: u64,
    /// Requests that the replaced programs had taken.
    requests: u64,
    #[serde(flatten)]
    verdict: Verdict,
    /// From the first ring halted to the last one running again, as the server measured it.
    pause_told: Option<Spread>,
    /// From the first upgrade to the last.
    seconds: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { fio_runs, worst_latency_ms } = self.verdict;
        write!(
            f,
            "{} upgrades in {:.0} s ({} requests), {fio_runs} verified runs of fio, worst latency {worst_latency_ms:.0} ms",
            self.upgrades, self.seconds, self.requests
        )?;
        self.pause_told.map_or(Ok(()), |told| write!(f, ", pause by the server's clock: {told}"))
    }
}

/// Upgrades `rounds` times under one guest. No report: the guest did not come up.
pub(super) fn run(program: &Path, rounds: u32, kind: Kind, seed: u64) -> (Option<Report>, Result<()>) {
    match FioGuest::start("upgrade", program, kind) {
        Err(error) => (None, Err(error)),
        Ok(mut guest) => {
            let (mut report, mut pauses) = (Report::default(), Times::default());
            let mut rng = Rng::new(seed, STREAM);
            let result = upgrades(&mut guest, rounds, &mut rng, &mut report, &mut pauses);
            report.pause_told = pauses.spread();
            (Some(report), result)
        }
    }
}

fn upgrades(guest: &mut FioGuest, rounds: u32, rng: &mut Rng, report: &mut Report, pauses: &mut Times) -> Result<()> {
    let start = Instant::now();
    let connects = Server::connects(guest.setup())?;
    while report.upgrades < u64::from(rounds) {
        upgrade(guest, rng.time(LIFE), report, pauses)
            .with_context(|| format!("upgrade {} under the guest", report.upgrades + 1))?;
        report.seconds = start.elapsed().as_secs_f64();
        if report.upgrades.is_multiple_of(20) {
            eprintln!("torture upgrade: {} of {rounds} under the guest", report.upgrades);
        }
    }
    let again = Server::connects(guest.setup())? - connects;
    ensure!(again == 0, "the guest had to connect again, {again} times");
    report.verdict = guest.end()?;
    Ok(())
}

fn upgrade(guest: &mut FioGuest, life: Duration, report: &mut Report, pauses: &mut Times) -> Result<()> {
    guest.wait_for_requests()?;
    guest.work_for(life)?;
    let pid = guest.server().pid()?;
    let setup = guest.setup();
    let requests = Server::requests(setup);
    pauses.push(went_on(&setup.upgrade(&[])?, report.upgrades + 1, pid)?);
    report.upgrades += 1;
    report.requests += requests;
    guest.server().check_alive()
}
