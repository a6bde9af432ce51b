//! One pass over what is dirty: everything that was dirty when it began is on stable lower storage when it has ended well.
//!
//! Versions are taken in ascending order in groups, whose writes run together with those of the groups before and behind
//! them. Groups whose writes have completed are covered by the next flush, which runs while later groups are written; so a
//! stream of writes meets neither a storage that only writes nor one that only flushes. A group keeps its versions pinned
//! until they are settled: left in the cache, or given back with the room that they took.
//!
//! How many operations are under way, and how long the pass rests between them, is the pace's ([`volume::pace`]).

use super::ending::Ending;
use super::plan::{Piece, Plan, Version, WRITE_BYTES_MAX};
use crate::cache::Pins;
use crate::pace::{DEPTH_MAX, Pace, Seen, Stride};
use crate::served::shared::Shared;
use engine::{Solo, Token};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use storage::{Action, Operation, Step, StorageError, Task};

/// Blocks of a group.
const GROUP_BLOCKS: usize = 1024;
/// Blocks of a group of a pass that has time: what it has not taken yet may be written again and be one write.
const GENTLE_GROUP_BLOCKS: usize = 256;
/// Most bytes of one write of a pass that has time: a commit may have to wait behind it.
const GENTLE_WRITE_BYTES_MAX: u64 = 256 << 10;
/// So many bytes of one write count as an operation.
const OPERATION_BYTES: u64 = 64 << 10;
/// Completions are awaited together for so long, in microseconds: a wake-up for each would cost more than the writes.
const GATHER_US: u32 = 250;
/// Groups whose writes are under way or wait to be.
const GROUPS_MAX: usize = 8;
/// How often a write is tried before its pass has failed; once that has happened, the others are not tried again.
const ATTEMPTS_MAX: u32 = 10;
/// A flush comes at the latest when this many bytes have been written: what is written leaves the cache behind a flush.
const FLUSH_BYTES_MAX: u64 = 32 << 20;
/// And not before this many, unless there is nothing else to do.
const FLUSH_BYTES_MIN: u64 = 1 << 20;

struct Group {
    pins: Pins,
    plan: Plan,
    /// Pieces that have not ended.
    open: usize,
    failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// A piece of a group, by the places of both.
    Piece(usize, usize),
    Flush,
}

/// An operation under way. Its task stays where it is in memory.
struct Slot {
    task: Box<Task>,
    work: Option<Work>,
}

/// Writes back, on the thread that made it. Not to be dropped while operations are under way: after a panic it is leaked.
pub(super) struct Sweeper {
    shared: Arc<Shared>,
    ending: Arc<Ending>,
    solo: Solo,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Groups that are being written, by place.
    groups: Vec<Option<Group>>,
    /// Pieces to begin, again or for the first time.
    queue: VecDeque<(usize, usize)>,
    /// Groups whose writes have completed.
    written: Vec<Group>,
    written_bytes: u64,
    /// Groups that the flush under way covers.
    flushing: Option<Vec<Group>>,
    /// Groups that are on stable storage.
    stable: Vec<Group>,
    /// Where to take dirty blocks next; `None` at the end of the disk.
    from: Option<u64>,
    trouble: Option<StorageError>,
    /// Writes found no room: behind a flush the lower storage has again what they took.
    returns: bool,
    /// Log writes that had failed when the pass began.
    told_beside: u64,
    tempo: Tempo,
}

/// How fast the pass goes.
struct Tempo {
    began: Instant,
    pace: Pace,
    stride: Stride,
    /// Operations of the stride that have not begun.
    left: usize,
    /// Blocks that the pass has taken.
    taken: u64,
    /// Somebody waits for the pass since before it began.
    hurry: bool,
}

impl Tempo {
    fn new(hurry: bool, seen: &Seen) -> Tempo {
        let mut pace = Pace::new(seen);
        let stride = pace.stride(seen);
        Tempo { began: Instant::now(), pace, stride, left: stride.operations, taken: 0, hurry }
    }
}

/// Versions that a pass has brought to stable storage and that are still in the cache.
pub(super) struct Swept {
    groups: Vec<Group>,
}

impl Swept {
    /// Lets them leave the cache, as far as the log allows.
    pub(super) fn settle(self, shared: &Shared) {
        for mut group in self.groups {
            shared.settle(&mut group.pins);
        }
    }
}

impl Sweeper {
    /// # Errors
    /// The kernel's refusal of an io_uring.
    pub(super) fn new(shared: Arc<Shared>, ending: Arc<Ending>) -> io::Result<Sweeper> {
        let slot = |_| Slot { task: Box::new(Task::new()), work: None };
        Ok(Sweeper {
            tempo: Tempo::new(false, &Seen::default()),
            shared,
            ending,
            solo: Solo::new()?,
            slots: (0..DEPTH_MAX).map(slot).collect(),
            free: (0..DEPTH_MAX).collect(),
            groups: Vec::new(),
            queue: VecDeque::new(),
            written: Vec::new(),
            written_bytes: 0,
            flushing: None,
            stable: Vec::new(),
            from: None,
            trouble: None,
            returns: false,
            told_beside: 0,
        })
    }

    /// One pass; with `hurry` somebody waits for it.
    ///
    /// # Errors
    /// The last operation of the lower storage that failed. What it should have written is dirty again.
    pub(super) fn pass(&mut self, hurry: bool) -> Result<Swept, StorageError> {
        self.from = Some(0);
        self.trouble = None;
        self.returns = false;
        self.told_beside = self.shared.told_beside.load(Ordering::SeqCst);
        self.tempo = Tempo::new(hurry, &Seen { pressed: hurry, elapsed: Duration::ZERO, taken: 0, ..self.look() });
        loop {
            self.begin_writes();
            self.begin_flush();
            if self.is_at_end() && self.written.is_empty() && self.flushing.is_none() && !self.returns {
                break;
            }
            if self.tempo.left == 0 && self.goes_on() {
                self.next_stride();
            } else if self.under_way() > 0 {
                self.wait();
            }
        }
        let swept = Swept { groups: std::mem::take(&mut self.stable) };
        match self.trouble.take() {
            None => Ok(swept),
            Some(error) => {
                // What is stable may go all the same.
                swept.settle(&self.shared);
                Err(error)
            }
        }
    }

    /// Operations under way.
    fn under_way(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether nothing is left to be written, and all writes have ended.
    fn is_at_end(&self) -> bool {
        self.from.is_none() && self.queue.is_empty() && self.groups.iter().all(Option::is_none)
    }

    /// Whether more is to be written, and may be now.
    fn goes_on(&self) -> bool {
        let more = self.from.is_some() || !self.queue.is_empty();
        more && (self.tempo.stride.rest.is_zero() || self.under_way() == 0)
    }

    /// Rests, if the last stride said so, and asks for the next.
    fn next_stride(&mut self) {
        let rest = self.tempo.stride.rest;
        if !rest.is_zero() {
            self.shared.poke.rest(rest);
        }
        let seen = self.look();
        let tempo = &mut self.tempo;
        tempo.stride = tempo.pace.stride(&seen);
        tempo.left = tempo.stride.operations;
    }

    fn look(&self) -> Seen {
        let shared = &self.shared;
        let cache = shared.cache.figures();
        Seen {
            elapsed: self.tempo.began.elapsed(),
            taken: self.tempo.taken,
            dirty: cache.dirty_blocks,
            slots: u64::from(cache.data_slots),
            slots_used: u64::from(cache.data_slots.saturating_sub(cache.data_slots_free)),
            log_bytes: shared.layout.log_bytes,
            log_used_bytes: shared.committer.log_used_bytes(),
            pressed: self.tempo.hurry || self.ending.begun() || shared.poke.is_pressing() || shared.short_of_room(),
        }
    }

    fn begin_writes(&mut self) {
        while self.tempo.left > 0 && self.under_way() < self.tempo.stride.depth {
            let Some((group, piece)) = self.queue.pop_front() else {
                if self.take_group() {
                    continue;
                }
                return;
            };
            let Some(place) = self.free.pop() else {
                self.queue.push_front((group, piece));
                return;
            };
            self.begin_piece(place, group, piece);
        }
    }

    /// Takes more of what is dirty. False when there is no more, or no more is wanted now.
    fn take_group(&mut self) -> bool {
        let Some(from) = self.from else { return false };
        let living = self.groups.iter().flatten().count();
        let flush_first = self.flushing.is_none() && self.written_bytes >= self.flush_bytes();
        if living >= GROUPS_MAX || flush_first {
            return false;
        }
        if self.trouble.is_some() || self.ending.abandoned() {
            self.from = None;
            return false;
        }
        let (blocks, write_bytes_max) = if self.tempo.stride.is_full() {
            (GROUP_BLOCKS, WRITE_BYTES_MAX)
        } else {
            (GENTLE_GROUP_BLOCKS, GENTLE_WRITE_BYTES_MAX)
        };
        let mut pins = Pins::new(&self.shared.cache);
        self.from = self.shared.cache.take_dirty(from, blocks, &mut pins);
        self.tempo.taken += pins.len() as u64;
        let versions = pins.iter().map(|it| Version { block: it.block, sectors: it.sectors, data: it.data });
        let plan = Plan::new(versions, self.shared.layout.data_offset, write_bytes_max);
        if plan.pieces.is_empty() {
            // Marks of blocks that were discarded: to be taken back all the same.
            self.shared.settle(&mut pins);
            return self.from.is_some();
        }
        let open = plan.pieces.len();
        let place = self.groups.iter().position(Option::is_none).unwrap_or(self.groups.len());
        if place == self.groups.len() {
            self.groups.push(None);
        }
        if let Some(free) = self.groups.get_mut(place) {
            *free = Some(Group { pins, plan, open, failed: false });
        }
        self.queue.extend((0..open).map(|piece| (place, piece)));
        true
    }

    fn begin_piece(&mut self, place: usize, group: usize, piece: usize) {
        let found = self.groups.get(group).and_then(Option::as_ref);
        let found = found.and_then(|it| it.plan.pieces.get(piece).map(|piece| (piece, &it.plan.buffers)));
        let (Some((what, buffers)), Some(slot)) = (found, self.slots.get_mut(place)) else { return };
        let Piece { offset, len, .. } = *what;
        // Of zeroes a range of any length is one small request.
        let weight = if what.zeroes() { 1 } else { len.div_ceil(OPERATION_BYTES).max(1) };
        self.tempo.left = self.tempo.left.saturating_sub(weight as usize);
        slot.task.buffers.clear();
        let operation = if what.zeroes() {
            Operation::WriteZeroes { offset, len, unmap: true, durable: false }
        } else {
            slot.task.buffers.extend_from_slice(buffers.get(what.buffers.clone()).unwrap_or_default());
            Operation::Write { offset, durable: false }
        };
        slot.task.begin(operation);
        slot.work = Some(Work::Piece(group, piece));
        self.start(place);
    }

    /// Begins a flush if none is under way and enough, or everything, has been written.
    fn begin_flush(&mut self) {
        let at_end = self.is_at_end();
        if self.flushing.is_some() || self.written.is_empty() && !(at_end && self.returns) {
            return;
        }
        if !at_end && self.written_bytes < self.flush_bytes() {
            return;
        }
        let Some(place) = self.free.pop() else { return };
        self.returns &= !at_end;
        self.flushing = Some(std::mem::take(&mut self.written));
        self.written_bytes = 0;
        if !self.shared.barriers.write_back {
            self.free.push(place);
            self.flushed(Ok(()));
            return;
        }
        if let Some(slot) = self.slots.get_mut(place) {
            slot.task.buffers.clear();
            slot.task.begin(Operation::Flush);
            slot.work = Some(Work::Flush);
            self.start(place);
        }
    }

    /// How much is written between two flushes.
    fn flush_bytes(&self) -> u64 {
        (self.shared.cache_bytes() / 8).clamp(FLUSH_BYTES_MIN, FLUSH_BYTES_MAX)
    }

    fn start(&mut self, place: usize) {
        let Some(slot) = self.slots.get_mut(place) else { return };
        let step = self.shared.lower.start(&mut slot.task, Token::request(place as u16), &mut self.solo.io());
        self.take_step(place, step);
    }

    /// Waits for a completion. Where it has to sleep it waits for half of what is under way, so that the storage has the other
    /// half to do meanwhile; before a rest, for all.
    fn wait(&mut self) {
        let under_way = self.under_way();
        let rests = self.tempo.left == 0 && !self.tempo.stride.rest.is_zero();
        let want = if rests { under_way } else { under_way.div_ceil(2) };
        // An error says that nothing is under way, while slots are taken: a storage that lost a task.
        let completion = self.solo.wait_gathered(want, GATHER_US).expect("a task that is pending completes");
        let place = completion.index();
        let Some(slot) = self.slots.get_mut(place) else { return };
        let step = self.shared.lower.resume(&mut slot.task, completion, &mut self.solo.io());
        self.take_step(place, step);
    }

    fn take_step(&mut self, place: usize, step: Step) {
        let Step::Done(result) = step else { return };
        let work = self.slots.get_mut(place).and_then(|slot| slot.work.take());
        self.free.push(place);
        match work {
            Some(Work::Piece(group, piece)) => self.piece_ended(group, piece, result),
            Some(Work::Flush) => self.flushed(result),
            None => debug_assert!(false, "nothing was under way here"),
        }
    }

    fn piece_ended(&mut self, place: usize, piece: usize, result: Result<(), StorageError>) {
        let Some(group) = self.groups.get_mut(place).and_then(Option::as_mut) else { return };
        if let Err(error) = result {
            self.shared.write_back_failed(&error);
            if let Some(what) = group.plan.pieces.get_mut(piece) {
                what.attempts += 1;
                // What finds no room now finds none a moment later, and may have taken some to no avail.
                self.returns |= error.is_full();
                if what.attempts < ATTEMPTS_MAX && self.trouble.is_none() && !error.is_full() {
                    self.queue.push_back((place, piece));
                    return;
                }
            }
            group.failed = true;
            self.trouble = Some(error);
        }
        group.open -= 1;
        if group.open > 0 {
            return;
        }
        let Some(group) = self.groups.get_mut(place).and_then(Option::take) else { return };
        if group.failed {
            self.shared.cache.dirty_again(&group.pins);
        } else {
            let bytes = group.plan.bytes();
            self.shared.wrote_back(bytes);
            self.written_bytes += bytes;
            self.written.push(group);
        }
    }

    fn flushed(&mut self, result: Result<(), StorageError>) {
        let groups = self.flushing.take().unwrap_or_default();
        let told_elsewhere = self.shared.told_beside.load(Ordering::SeqCst) != self.told_beside;
        let error = match result {
            Ok(()) if !told_elsewhere => {
                self.stable.extend(groups);
                self.settle_if_short();
                return;
            }
            Ok(()) => StorageError::errno(Action::Flush, libc::EIO),
            Err(error) => {
                self.shared.flush_failed(&self.shared.lower);
                error
            }
        };
        self.shared.write_back_failed(&error);
        self.trouble = Some(error);
        // A page cache forgets what it failed to write, and says so once, to whoever asks first: nothing that was not stable
        // before may count on the next flush.
        for group in groups.into_iter().chain(std::mem::take(&mut self.written)) {
            self.shared.cache.dirty_again(&group.pins);
        }
        self.written_bytes = 0;
        self.groups.iter_mut().flatten().for_each(|group| group.failed = true);
    }

    /// Gives room back before the end of the pass if writers wait for it. Not when the log is full: what is in no record stays
    /// until the checkpoint has emptied that, and would only be written once more.
    fn settle_if_short(&mut self) {
        if self.shared.line.len() > 0 && !self.shared.committer.is_parked() {
            for mut group in self.stable.drain(..) {
                self.shared.settle(&mut group.pins);
            }
        }
    }
}
