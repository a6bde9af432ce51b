//! The neighbour: a guest that sends one request after the other, to its disk and to its directory in turn, and keeps how
//! long each took while something is done to others.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ::tests::driver::{Ring, writable};
use ::tests::frontend::{DATA, Frontend, kind, status};
use ::tests::fuse::{Client, ROOT, op};
use anyhow::{Context, Result, anyhow, ensure};
use hdrhistogram::Histogram;
use serde::Serialize;

use super::server::Server;

/// Longer than a lease holds anybody up: this only tells a hang.
const PATIENCE: Duration = Duration::from_secs(300);
const LOOK_EVERY: Duration = Duration::from_millis(100);
const RING_SIZE: u16 = 8;
const BLOCK: u32 = 4096;

/// How long requests took, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Figures {
    /// Requests.
    pub(super) count: u64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    /// The 99.9th percentile for somebody who asks at a steady pace, and does not stop asking while an answer is late.
    pub(super) p999_of_time_us: f64,
    pub(super) max_us: f64,
}

impl From<&Histogram<u64>> for Figures {
    fn from(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let us = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        let steady = histogram.clone_correct(histogram.value_at_quantile(0.5));
        Self {
            count: histogram.len(),
            p50_us: us(histogram, 0.5),
            p99_us: us(histogram, 0.99),
            p999_us: us(histogram, 0.999),
            p999_of_time_us: us(&steady, 0.999),
            max_us: histogram.max() as f64 / 1000.0,
        }
    }
}

/// What the neighbour saw of one case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saw {
    /// For how long it counted.
    pub(super) seconds: f64,
    pub(super) disk: Figures,
    pub(super) directory: Figures,
}

/// Says when the neighbour's requests count.
#[derive(Debug, Default)]
pub(super) struct Watch {
    counts: AtomicBool,
    counted_ns: AtomicU64,
    over: AtomicBool,
    failed: Mutex<Option<String>>,
}

impl Watch {
    /// Does something during which the neighbour's requests count.
    pub(super) fn during<T>(&self, act: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        self.counts.store(true, Ordering::SeqCst);
        let done = act();
        self.counts.store(false, Ordering::SeqCst);
        self.counted_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::SeqCst);
        done
    }

    /// For how long they have counted.
    pub(super) fn counted(&self) -> Duration {
        Duration::from_nanos(self.counted_ns.load(Ordering::SeqCst))
    }

    /// Fails if the neighbour has: then there is nothing to measure.
    pub(super) fn check(&self) -> Result<()> {
        let failed = self.failed.lock().map_err(|_| anyhow!("the neighbour panicked"))?;
        failed.as_ref().map_or(Ok(()), |why| Err(anyhow!("the neighbour: {why}")))
    }
}

/// The neighbour.
pub(super) struct Neighbour {
    ring: Ring,
    directory: Client,
    _disk: Frontend,
}

impl Neighbour {
    /// Connects to both of its exports.
    pub(super) fn connect(server: &Server) -> Result<Self> {
        let mut disk = Frontend::connect(&server.socket("disk"), 0)?;
        let ring = disk.ring(0, RING_SIZE)?;
        Ok(Self { ring, directory: Client::begin(&server.socket("directory"))?, _disk: disk })
    }

    /// Goes on while `act` does something, and says what it saw, and what came of that.
    pub(super) fn beside<T>(&mut self, act: impl FnOnce(&Watch) -> Result<T>) -> Result<(Saw, T)> {
        let watch = Watch::default();
        let (acted, seen) = thread::scope(|scope| {
            let watch = &watch;
            let asking = scope.spawn(move || {
                let seen = self.ask_until_over(watch);
                if let (Err(error), Ok(mut failed)) = (&seen, watch.failed.lock()) {
                    *failed = Some(format!("{error:#}"));
                }
                seen
            });
            let acted = act(watch);
            watch.over.store(true, Ordering::SeqCst);
            (acted, asking.join())
        });
        let [disk, directory] = seen.map_err(|_| anyhow!("the neighbour panicked"))?.context("the neighbour")?;
        let seconds = watch.counted().as_secs_f64();
        Ok((Saw { seconds, disk: Figures::from(&disk), directory: Figures::from(&directory) }, acted?))
    }

    fn ask_until_over(&mut self, watch: &Watch) -> Result<[Histogram<u64>; 2]> {
        let histogram = || Histogram::new_with_bounds(1, PATIENCE.as_nanos() as u64, 3);
        let mut seen = [histogram()?, histogram()?];
        while !watch.over.load(Ordering::SeqCst) {
            for (turn, seen) in seen.iter_mut().enumerate() {
                let counted = watch.counts.load(Ordering::SeqCst);
                let start = Instant::now();
                if turn == 0 {
                    self.ask_disk()?;
                } else {
                    self.ask_directory()?;
                }
                let took = start.elapsed().as_nanos() as u64;
                // What waited when it began, or when it ended, waited for it.
                if counted || watch.counts.load(Ordering::SeqCst) {
                    seen.saturating_record(took.max(1));
                }
            }
        }
        Ok(seen)
    }

    fn ask_disk(&mut self) -> Result<()> {
        let request = self.ring.request(kind::IN, 0, &[writable(DATA, BLOCK)]);
        self.ring.kick_if_wanted();
        let start = Instant::now();
        while self.ring.take_used().is_none() {
            ensure!(start.elapsed() < PATIENCE, "its disk does not answer within {} s", PATIENCE.as_secs());
            self.ring.wait_call(LOOK_EVERY);
        }
        ensure!(self.ring.status(request) == status::OK, "its disk fails");
        Ok(())
    }

    fn ask_directory(&mut self) -> Result<()> {
        let call = self.directory.begin_call(op::GETATTR, ROOT, &[0; 16]);
        let start = Instant::now();
        while !self.directory.has_ended(call) {
            ensure!(start.elapsed() < PATIENCE, "its directory does not answer within {} s", PATIENCE.as_secs());
            self.directory.requests().wait_call(LOOK_EVERY);
        }
        self.directory.end_call(call)?.ok().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_on_while_an_answer_is_late_sees_more_of_it() {
        let mut histogram = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        for _ in 0..100_000 {
            histogram.record(10_000).unwrap();
        }
        histogram.record(500_000_000).unwrap();
        let figures = Figures::from(&histogram);
        assert!((9.0..11.0).contains(&figures.p999_us), "{figures:?}");
        assert!(figures.p999_of_time_us > 400_000.0, "{figures:?}");
        assert!((499_000.0..501_000.0).contains(&figures.max_us), "{figures:?}");
    }

    #[test]
    fn only_what_is_watched_counts() {
        let watch = Watch::default();
        assert!(watch.during(|| watch.counts.load(Ordering::SeqCst)));
        assert!(!watch.counts.load(Ordering::SeqCst) && watch.counted() > Duration::ZERO);
        watch.check().unwrap();
    }
}
