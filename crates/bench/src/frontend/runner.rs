//! The loop of one load thread over its lanes, and what it shows to others meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::Error;
use super::lane::{Lane, Tally};
use super::queue::Queue;
use super::spec::Spec;
use crate::stats;
use guest::usage;

/// A server that completes nothing for so long while requests are in flight has lost them.
const STALL_TIME_MAX: Duration = Duration::from_secs(30);
/// After so long without a completion it is asked whether the server is alive at all.
const DOUBT_TIME: Duration = Duration::from_millis(200);
/// How long a thread sleeps at most, so that it notices the end.
const WAIT_TIME_MAX: Duration = Duration::from_millis(50);
/// How often figures are offered to a reader.
const PUBLISH_INTERVAL_NS: u64 = 5_000_000;
/// A thread whose server completes something shows its figures within this.
pub(crate) const SHOW_TIME_MAX: Duration = Duration::from_millis(60);
/// With fewer completions than this a turn is short, and the clock is read again before submitting.
const EXACT_BELOW: usize = 8;
/// Empty looks of a polling lane between two clock reads.
const LOOKS_PER_CLOCK: u32 = 64;

/// What all threads of a load share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) stop: AtomicBool,
}

/// What one thread shows while it runs. Own cache lines, because it writes them every turn.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Window {
    pub(crate) ops: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) mismatches: AtomicU64,
    /// For each lane, when it last heard from the server; 0 while nothing is in flight.
    pub(crate) waiting_since_ns: Box<[AtomicU64]>,
    pub(crate) interval: Mutex<Interval>,
}

/// Figures since a reader last took them.
#[derive(Debug)]
pub(crate) struct Interval {
    pub(crate) latency: Histogram<u64>,
    pub(crate) gaps_ns: Vec<u64>,
    /// Whether the thread may put new figures here.
    pub(crate) empty: bool,
}

impl Interval {
    fn new(lanes: usize) -> Self {
        Self { latency: stats::latencies(), gaps_ns: vec![0; lanes], empty: true }
    }

    /// Empties it, as a reader does that has copied the figures.
    pub(crate) fn clear(&mut self) {
        self.latency.reset();
        self.gaps_ns.fill(0);
        self.empty = true;
    }
}

impl Window {
    pub(crate) fn new(lanes: usize) -> Self {
        Self {
            ops: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
            waiting_since_ns: (0..lanes).map(|_| AtomicU64::new(0)).collect(),
            interval: Mutex::new(Interval::new(lanes)),
        }
    }
}

/// What a thread hands back in the end.
pub(crate) struct Outcome {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) counted: Vec<Tally>,
    pub(crate) rest: Interval,
    pub(crate) ramp_ended_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) cpu_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Ramp,
    Count,
    Drain,
}

/// One load thread.
pub(crate) struct Runner {
    lanes: Vec<Lane>,
    window: Arc<Window>,
    shared: Arc<Shared>,
    epoch: Instant,
    phase: Phase,
    poll: bool,
    server_pid: Option<u32>,
    ramp_end_ns: u64,
    time_ns: Option<u64>,
    shares: Vec<u64>,
    counted: Vec<Tally>,
    own: Interval,
    publish_at_ns: u64,
    ramp_ended_ns: u64,
    ended_ns: u64,
    cpu_before_s: f64,
    cpu_s: f64,
    /// Dropped when counting ends: the meter waits for that.
    counting: Option<mpsc::Sender<()>>,
}

impl Runner {
    /// A thread's part of a load; `shares` are the requests each lane counts.
    pub(crate) fn new(
        lanes: Vec<Lane>,
        shares: Vec<u64>,
        spec: &Spec,
        shared: Arc<Shared>,
        epoch: Instant,
        counting: mpsc::Sender<()>,
    ) -> Self {
        let count = lanes.len();
        Self {
            window: Arc::new(Window::new(count)),
            shared,
            epoch,
            phase: Phase::Ramp,
            poll: spec.poll,
            server_pid: spec.server_pid,
            ramp_end_ns: nanoseconds(spec.ramp),
            time_ns: spec.time.map(nanoseconds),
            shares,
            counted: vec![Tally::default(); count],
            own: Interval::new(count),
            publish_at_ns: 0,
            ramp_ended_ns: 0,
            ended_ns: 0,
            cpu_before_s: 0.0,
            cpu_s: 0.0,
            counting: Some(counting),
            lanes,
        }
    }

    /// Where others may look while it runs.
    pub(crate) fn window(&self) -> Arc<Window> {
        Arc::clone(&self.window)
    }

    /// Runs to the end.
    pub(crate) fn run(mut self) -> Result<Outcome, Error> {
        if self.lanes.len() > 1 {
            // These lanes are waited for together, so their notifications stay on.
            for lane in &mut self.lanes {
                lane.queue.announce(!self.poll);
            }
        }
        let mut now = self.now_ns();
        self.advance(now);
        while self.phase != Phase::Drain || self.lanes.iter().any(|lane| lane.in_flight > 0) {
            now = self.turn(now)?;
            self.advance(now);
            self.publish(now);
        }
        Ok(Outcome {
            lanes: self.lanes,
            counted: self.counted,
            rest: self.own,
            ramp_ended_ns: self.ramp_ended_ns,
            ended_ns: self.ended_ns,
            cpu_s: self.cpu_s,
        })
    }

    /// Submits, waits and books once for every lane; gives the time after it.
    fn turn(&mut self, started_ns: u64) -> Result<u64, Error> {
        let epoch = self.epoch;
        let clock = || nanoseconds(epoch.elapsed());
        if self.phase != Phase::Drain {
            for lane in &mut self.lanes {
                lane.submit(started_ns, clock);
            }
        }
        let single = self.lanes.len() == 1 && !self.poll;
        let (mut now, mut reaped) = (started_ns, 0);
        let mut looks = 0;
        loop {
            for lane in &mut self.lanes {
                let least = if single { lane.wanted() } else { 0 };
                let count = lane.reap(least, WAIT_TIME_MAX)?;
                if count > 0 {
                    now = clock();
                    lane.complete(count, now, &mut self.own.latency);
                    reaped += count;
                }
            }
            looks += 1;
            if single || reaped > 0 || looks == LOOKS_PER_CLOCK {
                break;
            }
            if self.poll {
                std::hint::spin_loop();
            } else {
                self.sleep()?;
            }
        }
        // At low depth the time between completion and the next submission is ours, not the server's.
        if reaped < EXACT_BELOW || self.lanes[0].verifies() {
            now = clock();
        }
        if reaped == 0 {
            self.refuse_stall(now)?;
        }
        Ok(now)
    }

    /// Waits until one of several lanes has completions.
    fn sleep(&self) -> Result<(), Error> {
        let announcements = self.lanes.iter().filter_map(|lane| Some((&lane.queue, lane.queue.announcement()?)));
        let (queues, mut fds): (Vec<&Queue>, Vec<PollFd<'_>>) = announcements.unzip();
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(WAIT_TIME_MAX.subsec_nanos()) };
        match rustix::event::poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::Wait { cause: errno.into() }),
        }
        for (queue, fd) in queues.iter().zip(&fds) {
            if fd.revents().contains(PollFlags::IN) {
                queue.clear_announcement();
            }
        }
        Ok(())
    }

    fn refuse_stall(&self, now_ns: u64) -> Result<(), Error> {
        for lane in &self.lanes {
            let waited = now_ns.saturating_sub(lane.last_reap_ns);
            if lane.in_flight > 0 && waited > nanoseconds(STALL_TIME_MAX) {
                return Err(Error::Stall { in_flight: lane.in_flight, seconds: STALL_TIME_MAX.as_secs() });
            }
            let pid = self.server_pid.filter(|_| lane.in_flight > 0 && waited > nanoseconds(DOUBT_TIME));
            if let Some(pid) = pid.filter(|pid| !usage::is_alive(*pid)) {
                return Err(Error::Died { pid, in_flight: lane.in_flight });
            }
        }
        Ok(())
    }

    /// Goes from ramp to counting to draining when it is time.
    fn advance(&mut self, now_ns: u64) {
        let stop = self.shared.stop.load(Relaxed);
        if self.phase == Phase::Ramp && (now_ns >= self.ramp_end_ns || stop) {
            self.begin_counting(now_ns);
        }
        if self.phase == Phase::Count && (stop || self.time_is_up(now_ns) || self.all_counted()) {
            self.end_counting(now_ns);
        }
    }

    fn begin_counting(&mut self, now_ns: u64) {
        for (lane, share) in self.lanes.iter_mut().zip(&self.shares) {
            lane.forget_ramp();
            // What is in flight will be counted too.
            lane.budget = share.saturating_sub(lane.in_flight as u64);
        }
        self.own.clear();
        self.cpu_before_s = thread_cpu_s();
        self.ramp_ended_ns = now_ns;
        self.phase = Phase::Count;
    }

    fn end_counting(&mut self, now_ns: u64) {
        self.counted = self.lanes.iter().map(|lane| lane.tally).collect();
        self.cpu_s = thread_cpu_s() - self.cpu_before_s;
        self.ended_ns = now_ns;
        self.counting = None;
        self.phase = Phase::Drain;
    }

    fn time_is_up(&self, now_ns: u64) -> bool {
        self.time_ns.is_some_and(|time| now_ns >= self.ramp_ended_ns + time)
    }

    fn all_counted(&self) -> bool {
        self.lanes.iter().all(|lane| lane.budget == 0 && lane.in_flight == 0)
    }

    /// Shows the figures, and hands the interval over when the reader has emptied the last one.
    fn publish(&mut self, now_ns: u64) {
        let sum = |field: fn(&Tally) -> u64| self.lanes.iter().map(|lane| field(&lane.tally)).sum();
        self.window.ops.store(sum(Tally::ops), Relaxed);
        self.window.errors.store(sum(|tally| tally.errors), Relaxed);
        self.window.mismatches.store(sum(|tally| tally.mismatches), Relaxed);
        for (lane, since) in self.lanes.iter().zip(&self.window.waiting_since_ns) {
            since.store(if lane.in_flight > 0 { lane.last_reap_ns } else { 0 }, Relaxed);
        }
        if now_ns >= self.publish_at_ns && self.phase != Phase::Ramp {
            self.publish_at_ns = now_ns + PUBLISH_INTERVAL_NS;
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        for (lane, gap) in self.lanes.iter_mut().zip(&mut self.own.gaps_ns) {
            *gap = (*gap).max(std::mem::take(&mut lane.gap_ns));
        }
        // A reader holds the lock for microseconds; the figures can wait for the next time.
        let Ok(mut offered) = self.window.interval.try_lock() else { return };
        if offered.empty {
            std::mem::swap(&mut *offered, &mut self.own);
            offered.empty = false;
        }
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.epoch.elapsed())
    }
}

/// Whether there is something for a reader to take.
pub(crate) fn has_shown(window: &Window) -> bool {
    !window.interval.lock().unwrap_or_else(PoisonError::into_inner).empty
}

/// Takes what a reader may not have fetched yet.
pub(crate) fn take_interval(window: &Window, mut take: impl FnMut(&Interval)) {
    let mut interval = window.interval.lock().unwrap_or_else(PoisonError::into_inner);
    if !interval.empty {
        take(&interval);
        interval.clear();
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of the calling thread.
fn thread_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
