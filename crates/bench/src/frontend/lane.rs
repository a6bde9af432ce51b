//! One queue and its requests: submitting, completing, verifying. This is the path of every request.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::Error;
use super::buffers::Buffers;
use super::ledger::{Claim, Ledger};
use super::plan::{Plan, Step};
use super::queue::{Completion, Queue};
use super::rng::Rng;
use super::spec::{Part, Spec};
use crate::stats;

/// How many faults are kept word for word; the rest is only counted.
const FAULTS_KEPT: usize = 8;

/// What a request in flight is.
#[derive(Debug, Clone, Copy)]
struct Slot {
    step: Step,
    claim: Claim,
    submitted_ns: u64,
    /// When the flush behind a synchronous write was submitted: the write itself has completed.
    flushed_ns: Option<u64>,
}

/// Counts of one lane.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) flushes: u64,
    pub(crate) errors: u64,
    pub(crate) mismatches: u64,
}

impl Tally {
    /// Reads and writes; flushes are counted apart, as fio does.
    pub(crate) fn ops(&self) -> u64 {
        self.reads + self.writes
    }
}

/// One queue, its requests in flight and their figures.
pub(crate) struct Lane {
    pub(crate) queue: Queue,
    pub(crate) in_flight: usize,
    pub(crate) tally: Tally,
    pub(crate) faults: Vec<String>,
    pub(crate) flush_latency: Histogram<u64>,
    /// When the last completions came, or the queue was last empty.
    pub(crate) last_reap_ns: u64,
    /// Longest time between completions since it was last taken.
    pub(crate) gap_ns: u64,
    /// Requests that may still be submitted.
    pub(crate) budget: u64,
    plan: Plan,
    ledger: Option<Ledger>,
    buffers: Buffers,
    slots: Box<[Slot]>,
    free: Vec<u16>,
    batch: usize,
    block_bytes: usize,
    offset_bytes: u64,
    /// Whether a write counts when a flush behind it has completed.
    sync: bool,
}

impl Lane {
    /// A lane on `queue`, whose `buffers` belong to it alone.
    pub(crate) fn new(queue: Queue, index: u16, buffers: Buffers, part: Part, spec: &Spec, run: u64) -> Self {
        let depth = usize::from(spec.depth);
        let idle = Slot { step: Step::Flush, claim: Claim::NONE, submitted_ns: 0, flushed_ns: None };
        let mut lane = Self {
            queue,
            in_flight: 0,
            tally: Tally::default(),
            faults: Vec::new(),
            flush_latency: stats::latencies(),
            last_reap_ns: 0,
            gap_ns: 0,
            budget: u64::MAX,
            plan: Plan::new(spec, part, index),
            ledger: spec.verify.then(|| Ledger::new(run, part.blocks as usize)),
            buffers,
            slots: vec![idle; depth].into_boxed_slice(),
            free: (0..spec.depth).rev().collect(),
            batch: usize::from(spec.batch),
            block_bytes: spec.block_bytes as usize,
            offset_bytes: part.offset_bytes,
            sync: spec.sync,
        };
        lane.fill_buffers(spec.seed, u64::from(index));
        lane
    }

    /// Touches every buffer, and makes what is written neither zero nor alike.
    fn fill_buffers(&mut self, seed: u64, stream: u64) {
        let mut rng = Rng::new(seed, stream);
        for slot in 0..self.slots.len() as u16 {
            rng.fill(self.buffers.slice(slot));
        }
    }

    /// Whether what is in flight is verified, which takes the time of a clock read anyway.
    pub(crate) fn verifies(&self) -> bool {
        self.ledger.is_some()
    }

    /// Completions worth waiting for before the next batch can go out.
    pub(crate) fn wanted(&self) -> usize {
        self.batch.saturating_sub(self.free.len()).clamp(1, self.in_flight.max(1))
    }

    /// Submits as many whole batches as there are free slots for. `now_ns` is the time of submission.
    pub(crate) fn submit(&mut self, now_ns: u64, clock: impl Fn() -> u64) {
        if self.in_flight == 0 {
            self.last_reap_ns = now_ns;
        }
        while self.free.len() >= self.batch && self.budget > 0 {
            for _ in 0..self.batch {
                let (true, Some(slot)) = (self.budget > 0, self.free.pop()) else { break };
                self.submit_one(slot, now_ns, &clock);
            }
        }
    }

    fn submit_one(&mut self, slot: u16, now_ns: u64, clock: impl Fn() -> u64) {
        let step = self.plan.next();
        let (step, claim) = self.claim(step, slot);
        let submitted_ns = if self.ledger.is_some() { clock() } else { now_ns };
        self.slots[usize::from(slot)] = Slot { step, claim, submitted_ns, flushed_ns: None };
        match step {
            Step::Read(block) => self.queue.read(self.offset(block), self.buffers.lend(slot), slot),
            Step::Write(block) => self.queue.write(self.offset(block), self.buffers.lend(slot), slot),
            Step::Flush => self.queue.flush(slot),
        }
        if step != Step::Flush {
            self.budget -= 1;
        }
        self.in_flight += 1;
    }

    fn offset(&self, block: u64) -> u64 {
        self.offset_bytes + block * self.block_bytes as u64
    }

    /// Enters a request into the book, on the nearest block that is free.
    fn claim(&mut self, step: Step, slot: u16) -> (Step, Claim) {
        let Some(ledger) = &mut self.ledger else { return (step, Claim::NONE) };
        let (Step::Read(wanted) | Step::Write(wanted)) = step else { return (step, Claim::NONE) };
        // A part has at least as many blocks as slots and this slot holds none, so one is free.
        let block = ledger.free_from(wanted as usize).unwrap_or(wanted as usize);
        let offset = self.offset_bytes + (block * self.block_bytes) as u64;
        let data = self.buffers.slice(slot);
        if let Step::Read(_) = step {
            (Step::Read(block as u64), ledger.start_read(block, data))
        } else {
            (Step::Write(block as u64), ledger.start_write(block, offset, data))
        }
    }

    /// Asks the queue for completions, waiting for at least `least` of them.
    pub(crate) fn reap(&mut self, least: usize, wait: Duration) -> Result<usize, Error> {
        self.queue.reap(least.min(self.in_flight), wait)
    }

    /// Books the first `count` completions of the last `reap`, which returned at `now_ns`.
    pub(crate) fn complete(&mut self, count: usize, now_ns: u64, latency: &mut Histogram<u64>) {
        self.gap_ns = self.gap_ns.max(now_ns.saturating_sub(self.last_reap_ns));
        self.last_reap_ns = now_ns;
        self.in_flight -= count;
        for index in 0..count {
            let Completion { slot, result } = self.queue.completion(index);
            let Slot { step, claim, submitted_ns, flushed_ns } = self.slots[usize::from(slot)];
            if self.sync && matches!(step, Step::Write(_)) && flushed_ns.is_none() && result >= 0 {
                self.flush_behind(slot, now_ns);
                continue;
            }
            let taken_ns = now_ns.saturating_sub(submitted_ns);
            let flush_ns = if step == Step::Flush { Some(submitted_ns) } else { flushed_ns };
            if let Some(flush_ns) = flush_ns {
                self.tally.flushes += 1;
                self.flush_latency.saturating_record(now_ns.saturating_sub(flush_ns));
            }
            if step != Step::Flush {
                latency.saturating_record(taken_ns);
            }
            self.judge(slot, step, claim, result);
            self.free.push(slot);
        }
    }

    /// Goes on with a synchronous write that has completed; the next turn submits it.
    fn flush_behind(&mut self, slot: u16, now_ns: u64) {
        self.slots[usize::from(slot)].flushed_ns = Some(now_ns);
        self.queue.flush(slot);
        self.in_flight += 1;
    }

    fn judge(&mut self, slot: u16, step: Step, claim: Claim, result: i32) {
        let succeeded = result >= 0;
        if !succeeded {
            self.tally.errors += 1;
            let is_behind = self.slots[usize::from(slot)].flushed_ns.is_some();
            self.note(|lane| lane.describe_error(step, is_behind, result));
        }
        match step {
            Step::Read(block) => {
                self.tally.reads += 1;
                let offset = self.offset(block);
                let Some(ledger) = &mut self.ledger else { return };
                let data = self.buffers.slice(slot);
                if let Err(fault) = ledger.end_read(block as usize, claim, offset, data, succeeded) {
                    self.tally.mismatches += 1;
                    self.note(|_| fault.to_string());
                }
            }
            Step::Write(block) => {
                self.tally.writes += 1;
                if let Some(ledger) = &mut self.ledger {
                    ledger.end_write(block as usize, claim, succeeded);
                }
            }
            Step::Flush => {}
        }
    }

    fn describe_error(&self, step: Step, is_behind: bool, result: i32) -> String {
        let reason = std::io::Error::from_raw_os_error(-result);
        match step {
            Step::Read(block) => format!("read at offset {}: {reason}", self.offset(block)),
            Step::Write(block) if is_behind => {
                format!("flush behind the write at offset {}: {reason}", self.offset(block))
            }
            Step::Write(block) => format!("write at offset {}: {reason}", self.offset(block)),
            Step::Flush => format!("flush: {reason}"),
        }
    }

    fn note(&mut self, describe: impl FnOnce(&Self) -> String) {
        if self.faults.len() < FAULTS_KEPT {
            self.faults.push(describe(self));
        }
    }

    /// Forgets the figures of the ramp; errors and mismatches stay, they count whenever they happen.
    pub(crate) fn forget_ramp(&mut self) {
        self.tally = Tally { errors: self.tally.errors, mismatches: self.tally.mismatches, ..Tally::default() };
        self.flush_latency.reset();
        self.gap_ns = 0;
    }
}
