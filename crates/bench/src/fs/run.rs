//! Lanes at work: for a time, with figures; or step by step, for somebody who counts meanwhile.

use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use hdrhistogram::Histogram;

use super::job::Job;
use super::lane::Lane;
use crate::frontend::Report;
use crate::stats::{self, Latency};
use guest::usage::Sample;
use guest::usage::Tree;

/// How often a run is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Turns of a polling lane between looks at whether the server still lives.
const TURNS_MAX: u32 = 1 << 20;

/// What a run is doing.
const RAMP: u8 = 0;
const COUNTING: u8 = 1;
const STOPPING: u8 = 2;

/// How a run goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conditions {
    pub(crate) ramp: Duration,
    pub(crate) time: Duration,
    /// Whether lanes look for replies all the time instead of sleeping until one is announced.
    pub(crate) poll: bool,
}

/// One operation under way on each slot.
struct Slot<O> {
    operation: O,
    step: usize,
    began: Instant,
    is_busy: bool,
}

/// What a lane did while it was counted.
struct Outcome<L> {
    lane: L,
    ops: u64,
    latency: Histogram<u64>,
    began: Instant,
    ended: Instant,
}

/// Runs `lanes` and sums up; `look` is called with the time since the start.
///
/// # Errors
/// A request failed, a reply was wrong, or the server died.
pub(crate) fn run<L: Lane>(
    lanes: Vec<L>,
    conditions: Conditions,
    server_pid: Option<u32>,
    look: impl Fn(Duration),
) -> Result<(Report, Vec<L>)> {
    let phase = Arc::new(AtomicU8::new(RAMP));
    let started = Instant::now();
    let job = lanes.first().map(Lane::job).context("a lane")?;
    let block_bytes = lanes.first().map_or(0, Lane::block_bytes);
    let threads: Vec<_> = lanes
        .into_iter()
        .enumerate()
        .map(|(index, lane)| {
            let phase = Arc::clone(&phase);
            let name = format!("bench-fs-{index}");
            let work = move || {
                let outcome = work(lane, &phase, conditions.poll);
                if outcome.is_err() {
                    phase.store(STOPPING, Relaxed);
                }
                outcome
            };
            thread::Builder::new().name(name).spawn(work).context("cannot start a thread")
        })
        .collect::<Result<_>>()?;
    let until = |end: Duration| {
        while started.elapsed() < end && phase.load(Relaxed) != STOPPING {
            thread::sleep(LOOK_INTERVAL.min(end.saturating_sub(started.elapsed())));
            look(started.elapsed());
        }
    };
    until(conditions.ramp);
    let before = samples(server_pid)?;
    // A lane that failed meanwhile has said so, and that stays.
    let _failed = phase.compare_exchange(RAMP, COUNTING, Relaxed, Relaxed);
    until(conditions.ramp + conditions.time);
    phase.store(STOPPING, Relaxed);
    let after = samples(server_pid);
    let outcomes: Vec<Result<Outcome<L>>> =
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a lane panicked")))).collect();
    let outcomes: Vec<Outcome<L>> = outcomes.into_iter().collect::<Result<_>>()?;
    let (before, after) = (before, after?);
    let mut report = sum_up(&outcomes, job, block_bytes);
    report.server = before.server.zip(after.server).map(|(before, after)| after.since(&before));
    report.load_cpu_s = after.own.since(&before.own).cpu_s();
    Ok((report, outcomes.into_iter().map(|outcome| outcome.lane).collect()))
}

struct Samples {
    server: Option<Tree>,
    own: Sample,
}

fn samples(server_pid: Option<u32>) -> Result<Samples> {
    Ok(Samples { server: server_pid.map(Tree::take).transpose()?, own: Sample::take(std::process::id())? })
}

fn sum_up<L>(outcomes: &[Outcome<L>], job: Job, block_bytes: usize) -> Report {
    let mut latency = stats::latencies();
    for outcome in outcomes {
        // All histograms have the same bounds, so none of them can refuse.
        let _added = latency.add(&outcome.latency);
    }
    let began = outcomes.iter().map(|outcome| outcome.began).min();
    let ended = outcomes.iter().map(|outcome| outcome.ended).max();
    let seconds = began.zip(ended).map_or(0.0, |(began, ended)| ended.duration_since(began).as_secs_f64());
    let ops: u64 = outcomes.iter().map(|outcome| outcome.ops).sum();
    Report {
        seconds,
        ops,
        reads: if job.reads_data() { ops } else { 0 },
        writes: if job.writes_data() { ops } else { 0 },
        bytes: if job.is_data() { ops * block_bytes as u64 } else { 0 },
        latency: Latency::from(&latency),
        ..Report::default()
    }
    .with_rates()
}

fn work<L: Lane>(mut lane: L, phase: &AtomicU8, poll: bool) -> Result<Outcome<L>> {
    lane.fill_data();
    let steps = lane.steps();
    let (lists, first) = (lane.job().lists(), *steps.first().context("the job has no requests in this protocol")?);
    let mut slots = Vec::new();
    for n in 0..lane.width() {
        let mut operation = lane.operation(n);
        lane.prepare(&mut operation)?;
        slots.push(Slot { operation, step: 0, began: Instant::now(), is_busy: true });
    }
    for (slot, state) in (0..).zip(&mut slots) {
        lane.submit(slot, &mut state.operation, first);
    }
    let (mut ops, mut latency) = (0, stats::latencies());
    let mut seen = RAMP;
    let (mut began, mut ended) = (Instant::now(), None);
    while slots.iter().any(|slot| slot.is_busy) {
        lane.publish()?;
        wait(&mut lane, poll)?;
        let now = Instant::now();
        let told = phase.load(Relaxed);
        if told != seen {
            if told == COUNTING {
                (ops, began) = (0, now);
                latency.reset();
            } else {
                ended.get_or_insert(now);
            }
            seen = told;
        }
        // No more than are in flight, so that what follows from them is shown to the server in time.
        for _ in 0..lane.in_flight() {
            let Some((slot, reply)) = lane.take()? else { break };
            let state = slots.get_mut(usize::from(slot)).context("a slot that is used")?;
            let result = lane.settle(reply, &mut state.operation, steps[state.step])?;
            if ended.is_none() {
                ops += result.entries;
            }
            if !result.again {
                state.step += 1;
            }
            while steps.get(state.step).is_some_and(|step| L::is_mute(*step)) {
                lane.tell(&state.operation);
                state.step += 1;
            }
            if state.step == steps.len() {
                state.step = 0;
                if ended.is_none() {
                    ops += u64::from(!lists);
                    latency.saturating_record(nanoseconds(now - state.began));
                }
                state.began = now;
                state.is_busy = ended.is_none();
            }
            if state.is_busy {
                lane.submit(slot, &mut state.operation, steps[state.step]);
            }
        }
        lane.tidy(false)?;
    }
    for slot in &mut slots {
        lane.clean_up(&mut slot.operation)?;
    }
    lane.tidy(true)?;
    let ended = ended.unwrap_or_else(Instant::now);
    Ok(Outcome { lane, ops, latency, began, ended })
}

fn wait<L: Lane>(lane: &mut L, poll: bool) -> Result<()> {
    if poll {
        for _ in 0..TURNS_MAX {
            if lane.has_reply()? {
                return Ok(());
            }
            // A server that has as many threads as there are processors gets all of them meanwhile.
            thread::yield_now();
        }
    }
    lane.wait()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Does one step of all `operations`, as many at a time as there are slots; how many requests and entries that were.
/// A listing is done to its end.
///
/// # Errors
/// A request failed, a reply was wrong, or the server died.
pub(crate) fn do_step<L: Lane>(lane: &mut L, operations: &mut [L::Operation], step: L::Step) -> Result<(u64, u64)> {
    if L::is_mute(step) {
        for operation in &*operations {
            lane.tell(operation);
        }
        lane.tidy(true)?;
        return Ok((operations.len() as u64, 0));
    }
    let lists = lane.job().lists();
    let (mut requests, mut entries) = (0, 0);
    let mut owners: Vec<usize> = vec![0; lane.width()];
    let mut next = 0;
    for (slot, owner) in (0..).zip(&mut owners) {
        let Some(operation) = operations.get_mut(next) else { break };
        *owner = next;
        next += 1;
        lane.submit(slot, operation, step);
    }
    while lane.in_flight() > 0 {
        lane.publish()?;
        wait(lane, false)?;
        for _ in 0..lane.in_flight() {
            let Some((slot, reply)) = lane.take()? else { break };
            let owner = owners.get_mut(usize::from(slot)).context("a slot that is used")?;
            let operation = operations.get_mut(*owner).context("an operation")?;
            let result = lane.settle(reply, operation, step)?;
            requests += 1;
            entries += result.entries;
            if result.again || (lists && !result.is_end) {
                lane.submit(slot, operation, step);
            } else if let Some(operation) = operations.get_mut(next) {
                *owner = next;
                next += 1;
                lane.submit(slot, operation, step);
            }
        }
    }
    lane.tidy(true)?;
    Ok((requests, entries))
}
