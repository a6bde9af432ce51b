//! Commands: begun, gone on with, answered.

use super::kind::Kind;
use super::logical::State;
use super::pass;
use super::ring::{KEPT_BYTES_MAX, ScsiRing};
use super::swaps::SwapTurn;
use super::units::{number, of_target};
use super::work::{Asks, Found, Look, PART_BYTES, Ranges, Repeat, Swap, SwapStep, Verify, Work};
use crate::buffers;
use crate::label::Label;
use crate::trace::{Object, What};
use device::scsi::spec::sense::{code, key};
use device::scsi::{
    Addressed, Attention, Command, Compare, Extent, Facts, Inventory, Ports, Query, Reports, Response, ResponseCode,
    Sense, Status, Unmaps, Usage, answer, asks_usage, decode, lba_status_out, select_mode,
};
use engine::{Completion, Io, Token};
use std::sync::{Arc, OnceLock};
use storage::ways::LINE;
use storage::{Action, Counted, Operation, Room, Step, StorageError, extent};
use values::Lun;

/// Parts that go through memory of ours in one turn; what is left of the command goes on in the next.
const PARTS_PER_TURN: u32 = 4;
/// Extents of one answer to GET LBA STATUS.
const EXTENTS_MAX: usize = 256;
/// What is said of a command that an earlier life of the ring may have done, and that must not be done twice: an initiator looks, or
/// tries again.
pub(super) const MAY_BE_DONE: Sense = Sense::new(key::ABORTED_COMMAND, code::NONE);
/// Bytes of a parameter list, at most.
const LIST_BYTES_MAX: usize = 8 << 10;

impl ScsiRing {
    /// A command for the unit of the request.
    #[inline]
    pub(super) fn command(&mut self, head: u16, cdb: &[u8], again: bool, io: &mut Io<'_>) {
        let Some(entry) = self.entry_of(head) else {
            return self.transport(head, ResponseCode::BadTarget, io);
        };
        if entry.passes && !pass::is_ours(cdb, entry.attention) {
            return self.pass(head, cdb, again, io);
        }
        let decoded = decode(cdb, Addressed::Disk(&entry.facts));
        // Before anything else is told: whoever hears of something else takes the command for one that was not performed.
        if again && matches!(decoded, Ok(Command::CompareAndWrite { .. } | Command::ReserveOut(_))) {
            return self.check(head, MAY_BE_DONE, io);
        }
        if entry.attention
            && let Some(sense) = self.attention(head, cdb)
        {
            return self.check(head, sense, io);
        }
        let command = match decoded {
            Ok(command) => command,
            Err(sense) => return self.check(head, sense, io),
        };
        let (block_bytes, gate) = match self.entry_of(head) {
            Some(entry) => (entry.facts.block_bytes(), entry.gate),
            None => return self.transport(head, ResponseCode::BadTarget, io),
        };
        let inout = self.terms.inout;
        let slot = self.ring.slot(head);
        slot.kind = kind_of(&command) as usize;
        let buffers = slot.request.buffers;
        if let Err(code) = buffers.admit(command.transfer(block_bytes), inout) {
            return self.transport(head, code, io);
        }
        if !gate.allows(command.access()) {
            return self.respond(head, &Response::status(&buffers, Status::ReservationConflict), 0, io);
        }
        self.perform(head, command, io);
    }

    /// What is to be told before the command, if it is one that hears of it first.
    #[cold]
    pub(super) fn attention(&mut self, head: u16, cdb: &[u8]) -> Option<Sense> {
        let unit = self.entry_of(head)?.unit.clone();
        match Reports::by(*cdb.first()?) {
            Reports::First => unit.take_attention(),
            Reports::Luns => {
                let target = self.list.values().filter(|other| other.lun.target == unit.lun.target);
                target.for_each(|other| other.forget_attention(Attention::LunsChanged));
                None
            }
            // REQUEST SENSE takes it with its answer.
            Reports::Nothing | Reports::AsData => None,
        }
    }

    /// A command for a unit that its target does not have.
    pub(super) fn command_to_nobody(&mut self, head: u16, lun: Lun, cdb: &[u8], io: &mut Io<'_>) {
        match decode(cdb, Addressed::Nothing) {
            Ok(command @ Command::Query { query, allocation }) => {
                let (buffers, inout) = (self.ring.slot(head).request.buffers, self.terms.inout);
                match buffers.admit(command.transfer(0), inout) {
                    Ok(()) => self.query(head, lun, query, allocation, io),
                    Err(code) => self.transport(head, code, io),
                }
            }
            Ok(_) => self.check(head, Sense::NO_UNIT, io),
            Err(sense) => self.check(head, sense, io),
        }
    }

    fn perform(&mut self, head: u16, command: Command, io: &mut Io<'_>) {
        let unit = self.entry_of(head).map(|entry| Object::Unit(entry.unit.lun));
        self.turns.trace.asks(What { object: unit, range: range(&command) });
        match command {
            Command::Read { offset, len, fua } => {
                self.turns.figures.bytes_read.add(len);
                self.turns.begun_bytes += len;
                self.read(head, (offset, len, fua), io);
            }
            Command::Write { offset, len, fua } => {
                self.write(head, (offset, len, fua), Work::Answer { moved: len }, io);
            }
            Command::WriteAndVerify { offset, len, compare } => {
                let compare = if compare { Compare::Data } else { Compare::Nothing };
                let Some(verify) = self.verify(head, offset, len, compare) else { return self.full(head, io) };
                self.write(head, (offset, len, true), Work::Verify(verify), io);
            }
            Command::Verify { offset, len, compare } => match self.verify(head, offset, len, compare) {
                Some(verify) => {
                    self.keep(head, Work::Verify(verify));
                    self.go_on(head, Step::Done(Ok(())), io);
                }
                None => self.full(head, io),
            },
            Command::CompareAndWrite { offset, len, fua } => self.compare_and_write(head, (offset, len, fua), io),
            Command::Flush { .. } => self.begin(head, Operation::Flush, Work::Answer { moved: 0 }, io),
            Command::Unmap { list_bytes } => self.unmap(head, list_bytes, io),
            Command::WriteSame { offset, len, unmap, data } => self.write_same(head, (offset, len), unmap, data, io),
            Command::LbaStatus { offset, allocation } => self.look(head, Asks::Data(offset), allocation, io),
            Command::StartStop { start: true, .. } => {
                self.set_stopped(head, false);
                self.good(head, 0, 0, io);
            }
            Command::StartStop { start: false, flush: true, .. } => self.begin(head, Operation::Flush, Work::Stop, io),
            Command::StartStop { .. } => {
                self.set_stopped(head, true);
                self.good(head, 0, 0, io);
            }
            Command::TestUnitReady | Command::PreventAllow { .. } => self.good(head, 0, 0, io),
            Command::ModeSelect { list_bytes, long } => self.select_mode(head, list_bytes, long, io),
            Command::Query { query, allocation } => {
                let lun = self.entry_of(head).map(|entry| entry.unit.lun).unwrap_or_default();
                self.query(head, lun, query, allocation, io);
            }
            Command::ReserveIn { action, allocation } => self.reserve_in(head, action, allocation, io),
            Command::ReserveOut(out) => self.reserve_out(head, out, io),
            Command::Reserve => self.reserve(head, io),
            Command::Release => self.release(head, io),
        }
    }

    /// Reads into the chain's data-in.
    #[inline]
    fn read(&mut self, head: u16, (offset, len, fua): (u64, u64, bool), io: &mut Io<'_>) {
        let skip = self.terms.sizes.response_bytes();
        let chain = &self.ring.queue.chain;
        let task = &mut self.ring.slots[usize::from(head)].request.task;
        buffers::add(&mut task.buffers, chain.writable_segments(), skip, len);
        if len == 0 {
            return self.good(head, 0, 0, io);
        }
        if fua {
            // A flush leaves the buffers alone.
            return self.begin(head, Operation::Flush, Work::ReadBehindFlush { offset, len }, io);
        }
        self.begin(head, Operation::Read { offset }, Work::Answer { moved: len }, io);
    }

    /// Writes the chain's data-out.
    #[inline]
    fn write(&mut self, head: u16, (offset, len, fua): (u64, u64, bool), work: Work, io: &mut Io<'_>) {
        self.turns.figures.bytes_written.add(len);
        self.turns.begun_bytes += len;
        let Some(durable) = self.durable(head, fua) else { return self.check(head, Sense::WRITE_PROTECTED, io) };
        let skip = self.terms.sizes.head_bytes();
        let chain = &self.ring.queue.chain;
        let task = &mut self.ring.slots[usize::from(head)].request.task;
        buffers::add(&mut task.buffers, chain.readable_segments(), skip, len);
        if len == 0 {
            self.keep(head, work);
            return self.go_on(head, Step::Done(Ok(())), io);
        }
        self.begin(head, Operation::Write { offset, durable }, work, io);
    }

    /// Whether what is written has to be durable; `None` where nothing may be written.
    #[inline]
    fn durable(&mut self, head: u16, fua: bool) -> Option<bool> {
        let facts = &self.entry_of(head)?.facts;
        (!facts.settings().read_only).then(|| fua || !facts.mode().write_cache)
    }

    fn verify(&mut self, head: u16, offset: u64, len: u64, compare: Compare) -> Option<Box<Verify>> {
        self.turns.look = true;
        self.turns.begun_bytes += len;
        self.reserve_bytes(PART_BYTES)?;
        let block_bytes = self.entry_of(head).map_or(512, |entry| entry.facts.block_bytes().into());
        let data = self.ring.queue.chain.readable_segments().to_vec();
        let (skip, buffer) = (self.terms.sizes.head_bytes() as u64, Vec::with_capacity(PART_BYTES));
        Some(Box::new(Verify { offset, len, done: 0, buffer, compare, data, skip, block_bytes }))
    }

    fn compare_and_write(&mut self, head: u16, (offset, len, fua): (u64, u64, bool), io: &mut Io<'_>) {
        let Some(durable) = self.durable(head, fua) else { return self.check(head, Sense::WRITE_PROTECTED, io) };
        if len == 0 {
            return self.good(head, 0, 0, io);
        }
        // A unit has bounds for this.
        let half = usize::try_from(len).unwrap_or(usize::MAX);
        if self.reserve_bytes(3 * half).is_none() {
            return self.full(head, io);
        }
        let read = |at: u64| {
            let mut bytes = vec![0; half];
            let skip = self.terms.sizes.head_bytes() as u64 + at;
            vring::copy::read_at(self.ring.queue.chain.readable_segments(), skip, &mut bytes);
            bytes
        };
        let (expected, next) = (read(0), read(len));
        self.turns.figures.bytes_written.add(len);
        self.turns.begun_bytes += 2 * len;
        let found = Vec::with_capacity(half);
        let Some(entry) = self.entry_of(head) else { return };
        let turn = SwapTurn::line_up(entry.unit.logical.clone(), || io.reply_by(LINE, Token::request(head)));
        let is_next = turn.has_come();
        let swap = Swap { offset, expected, next, found, durable, step: SwapStep::Waits, turn: Some(turn) };
        self.keep(head, Work::Swap(Box::new(swap)));
        let step = if is_next { Step::Done(Ok(())) } else { Step::Pending };
        self.go_on(head, step, io);
    }

    fn unmap(&mut self, head: u16, list_bytes: u16, io: &mut Io<'_>) {
        let list = self.list_bytes(list_bytes.into());
        let Some(entry) = self.entry_of(head) else { return };
        let ranges = match Unmaps::decode(&list, list_bytes, &entry.facts) {
            Ok(ranges) => ranges.iter().map(|unmap| (unmap.offset, unmap.len)).collect(),
            Err(sense) => return self.check(head, sense, io),
        };
        if self.durable(head, false).is_none() {
            return self.check(head, Sense::WRITE_PROTECTED, io);
        }
        let ranges = Ranges { left: ranges, zero: None, durable: false, moved: list_bytes.into() };
        self.keep(head, Work::Ranges(Box::new(ranges)));
        self.go_on(head, Step::Done(Ok(())), io);
    }

    fn write_same(&mut self, head: u16, (offset, len): (u64, u64), unmap: bool, data: bool, io: &mut Io<'_>) {
        let Some(durable) = self.durable(head, false) else { return self.check(head, Sense::WRITE_PROTECTED, io) };
        let block_bytes = self.entry_of(head).map_or(512, |entry| entry.facts.block_bytes() as usize);
        let block = if data { self.list_bytes(block_bytes) } else { Vec::new() };
        let moved = block.len() as u64;
        if block.iter().all(|byte| *byte == 0) {
            let left = [(offset, len)].into();
            self.keep(head, Work::Ranges(Box::new(Ranges { left, zero: Some(unmap), durable, moved })));
        } else {
            let bytes = PART_BYTES.min(usize::try_from(len).unwrap_or(usize::MAX));
            if self.reserve_bytes(bytes).is_none() {
                return self.full(head, io);
            }
            self.turns.figures.bytes_written.add(len);
            self.turns.begun_bytes += len;
            self.turns.look = true;
            let buffer = block.repeat(bytes / block.len());
            self.keep(head, Work::Repeat(Box::new(Repeat { offset, len, done: 0, buffer, durable, moved })));
        }
        self.go_on(head, Step::Done(Ok(())), io);
    }

    /// Has somebody look: that blocks.
    fn look(&mut self, head: u16, asks: Asks, allocation: u32, io: &mut Io<'_>) {
        let Some(entry) = self.entry_of(head) else { return };
        let (storage, end) = (entry.storage.clone(), entry.facts.settings().capacity_bytes);
        let place = Arc::new(OnceLock::new());
        let answer = place.clone();
        let room = self.ring.queue.chain.writable_segments().to_vec();
        self.keep(head, Work::Look(Box::new(Look { asks, allocation, room, place })));
        self.looks.run_elsewhere(io.reply(Token::request(head)), move || {
            let found = match asks {
                Asks::Data(offset) => extent::ask(&*storage, offset..end, EXTENTS_MAX).map(Found::Data),
                Asks::Room(_) => storage.counted().map(Counted::room).transpose().map(Found::Room),
            };
            // Nothing else can have been put there.
            let _first = answer.set(found);
            // Before the answer is seen: who has it may close the storage.
            drop((storage, answer));
            0
        });
        self.turns.trace.pending(head, io);
    }

    /// Answers with what was found.
    fn say_found(&mut self, head: u16, io: &Io<'_>) {
        let request = &mut self.ring.slot(head).request;
        let Work::Look(look) = std::mem::replace(&mut request.work, Work::Answer { moved: 0 }) else { return };
        let Look { asks, allocation, room, place } = *look;
        // There is nothing when the thread panicked.
        let found = Arc::into_inner(place).and_then(OnceLock::into_inner);
        let found = found.unwrap_or_else(|| Err(StorageError::errno(Action::Look, libc::EIO)));
        let Some(entry) = self.entry_of(head) else { return };
        let mut out = Vec::new();
        let made = match (asks, found) {
            (_, Err(error)) => return self.failed(head, &error, io),
            (Asks::Data(offset), Ok(Found::Data(extents))) => {
                let extents = extents.iter().map(|extent| Extent { len: extent.bytes, mapped: extent.data });
                lba_status_out(&entry.facts, offset, extents, allocation, &mut out);
                Ok(())
            }
            (Asks::Room(query), Ok(Found::Room(found))) => {
                let lun = entry.unit.lun;
                self.answer(head, lun, query, allocation, found, &mut out)
            }
            (Asks::Data(_) | Asks::Room(_), Ok(_)) => Err(Sense::INTERNAL),
        };
        match made {
            Ok(()) => {
                let skip = self.ring.slot(head).request.sizes.response_bytes() as u64;
                let sent = vring::copy::write_at(&room, skip, &out) as u64;
                self.good(head, sent, sent, io);
            }
            Err(sense) => self.check(head, sense, io),
        }
    }

    fn set_stopped(&mut self, head: u16, stopped: bool) {
        if let Some(entry) = self.entry_of(head) {
            entry.unit.clone().change(|state, _| state.facts.set_stopped(stopped));
        }
    }

    fn select_mode(&mut self, head: u16, list_bytes: u16, long: bool, io: &mut Io<'_>) {
        let list = self.list_bytes(list_bytes.into());
        let Some(entry) = self.entry_of(head) else { return };
        let selected = entry.unit.clone().change(|state, path| {
            let mode = select_mode(&list, long, &state.facts)?;
            let before = state.facts.mode();
            let turned_off = before.write_cache && !mode.write_cache;
            state.facts.set_mode(mode);
            if mode != before {
                state.tell_others(path, Attention::ModeChanged);
            }
            Ok(turned_off)
        });
        let moved = list_bytes.into();
        match selected {
            // What was written before is in the cache that is no more, and nobody flushes it later.
            Ok(true) => self.begin(head, Operation::Flush, Work::Answer { moved }, io),
            Ok(false) => self.good(head, moved, 0, io),
            Err(sense) => self.check(head, sense, io),
        }
    }

    /// Answers what needs no storage, or only how much of it is used.
    fn query(&mut self, head: u16, lun: Lun, query: Query, allocation: u32, io: &mut Io<'_>) {
        if let (Query::LogSense(page), Some(entry)) = (query, self.entry_of(head))
            && asks_usage(page, &entry.facts)
        {
            return self.look(head, Asks::Room(query), allocation, io);
        }
        let mut out = Vec::new();
        match self.answer(head, lun, query, allocation, None, &mut out) {
            Ok(()) => self.send(head, &out, io),
            Err(sense) => self.check(head, sense, io),
        }
    }

    /// The answer to that.
    fn answer(
        &mut self,
        head: u16,
        lun: Lun,
        query: Query,
        allocation: u32,
        room: Option<Room>,
        out: &mut Vec<u8>,
    ) -> Result<(), Sense> {
        let luns: Vec<_> = of_target(&self.list, lun.target).map(|unit| number(unit.lun)).collect();
        let sense = match (query, self.entry_of(head)) {
            (Query::RequestSense { .. }, Some(entry)) if entry.attention => entry.unit.take_attention(),
            _ => None,
        };
        let own = self.port.nexus.port;
        let name = self.port.name;
        let entry = self.entry_of(head);
        let all = entry.as_ref().map_or_else(|| vec![own], |entry| entry.unit.logical.look(State::ports));
        let usage = room.map(|Room { used_bytes, available_bytes, is_shared: shared }| Usage {
            used_bytes,
            available_bytes,
            shared,
        });
        let facts = Facts {
            addressed: entry.as_ref().map_or(Addressed::Nothing, |entry| Addressed::Disk(&entry.facts)),
            identity: entry.as_ref().map(|entry| entry.unit.identity()),
            inventory: Inventory::Target(&luns),
            ports: Ports { own, name: &name, all: &all },
            sense,
            usage,
        };
        answer(query, allocation, &facts, out)
    }

    /// Sends an answer to the command that was popped.
    pub(super) fn send(&mut self, head: u16, answer: &[u8], io: &Io<'_>) {
        let skip = self.terms.sizes.response_bytes() as u64;
        let sent = vring::copy::write_at(self.ring.queue.chain.writable_segments(), skip, answer) as u64;
        self.good(head, sent, sent, io);
    }

    /// The parameter list of the command that was popped.
    pub(super) fn list_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut list = vec![0; len.min(LIST_BYTES_MAX)];
        let skip = self.terms.sizes.head_bytes() as u64;
        let filled = vring::copy::read_at(self.ring.queue.chain.readable_segments(), skip, &mut list);
        list.truncate(filled);
        list
    }

    /// Room for what a request keeps.
    fn reserve_bytes(&self, bytes: usize) -> Option<()> {
        (self.kept_bytes + bytes <= KEPT_BYTES_MAX).then_some(())
    }

    pub(super) fn full(&mut self, head: u16, io: &Io<'_>) {
        let buffers = self.ring.slot(head).request.buffers;
        self.respond(head, &Response::status(&buffers, Status::TaskSetFull), 0, io);
    }

    pub(super) fn busy(&mut self, head: u16, io: &Io<'_>) {
        let buffers = self.ring.slot(head).request.buffers;
        self.respond(head, &Response::status(&buffers, Status::Busy), 0, io);
    }

    #[inline]
    pub(super) fn keep(&mut self, head: u16, work: Work) {
        self.kept_bytes += work.kept_bytes();
        self.ring.slot(head).request.set_work(work);
    }

    /// Starts an operation, behind which that work follows.
    #[inline]
    fn begin(&mut self, head: u16, operation: Operation, work: Work, io: &mut Io<'_>) {
        self.keep(head, work);
        self.ring.slot(head).request.task.begin(operation);
        let step = self.submit(head, io);
        self.go_on(head, step, io);
    }

    /// Something has completed: of the storage, or of ours.
    pub(super) fn resume(&mut self, head: u16, completion: Completion, io: &mut Io<'_>) {
        let request = &mut self.ring.slot(head).request;
        let step = match &mut request.work {
            Work::Look(_) => return self.say_found(head, io),
            Work::Reserve(_) => return self.go_on_reserving(head, completion.result, io),
            Work::Pass(_) => return self.passed(head, io),
            _ if std::mem::take(&mut request.between) => Step::Done(Ok(())),
            Work::Swap(swap) if swap.step == SwapStep::Waits => Step::Done(Ok(())),
            _ => match self.submitted(head) {
                Some((task, storage)) => storage.resume(task, completion, io),
                None => return,
            },
        };
        self.go_on(head, step, io);
    }

    /// Goes on as far as it can without waiting.
    fn go_on(&mut self, head: u16, mut step: Step, io: &mut Io<'_>) {
        for _ in 0..PARTS_PER_TURN {
            match step {
                Step::Pending => return self.turns.trace.pending(head, io),
                Step::Done(Err(error)) => return self.failed(head, &error, io),
                Step::Done(Ok(())) => {}
            }
            if !self.next_step(head, io) {
                return;
            }
            step = self.submit(head, io);
        }
        match step {
            Step::Pending => self.turns.trace.pending(head, io),
            Step::Done(Err(error)) => self.failed(head, &error, io),
            Step::Done(Ok(())) => {
                // Others have their turns first.
                self.ring.slot(head).request.between = true;
                io.reply(Token::request(head)).complete(0);
                self.turns.trace.pending(head, io);
            }
        }
    }

    /// What was begun has ended well: fills the task with what follows. False when the request was answered.
    #[inline]
    fn next_step(&mut self, head: u16, io: &mut Io<'_>) -> bool {
        let request = &mut self.ring.slot(head).request;
        let task = &mut request.task;
        let (moved, differs) = match &mut request.work {
            Work::Answer { moved } => {
                let moved = *moved;
                let sent = if matches!(task.operation, Operation::Read { .. }) { moved } else { 0 };
                self.good(head, moved, sent, io);
                return false;
            }
            Work::ReadBehindFlush { offset, len } => {
                task.begin(Operation::Read { offset: *offset });
                request.work = Work::Answer { moved: *len };
                return true;
            }
            Work::Stop => {
                self.set_stopped(head, true);
                (0, None)
            }
            Work::Ranges(ranges) => match ranges.next() {
                Some(operation) => {
                    task.begin(operation);
                    return true;
                }
                None => (ranges.moved, None),
            },
            Work::Repeat(repeat) => {
                if repeat.write(task) {
                    return true;
                }
                (repeat.moved, None)
            }
            Work::Verify(verify) => {
                let differs = if verify.buffer.is_empty() { None } else { verify.compare() };
                if differs.is_none() && verify.read(task) {
                    return true;
                }
                let moved = match verify.compare {
                    Compare::Nothing => 0,
                    Compare::Data => verify.len,
                    Compare::Block => verify.block_bytes.min(verify.len),
                };
                (moved, differs)
            }
            Work::Swap(swap) => match swap.step {
                SwapStep::Waits => {
                    swap.read(task);
                    return true;
                }
                SwapStep::Reads if swap.differs().is_none() => {
                    swap.write(task);
                    return true;
                }
                SwapStep::Reads | SwapStep::Writes => {
                    let differs = if swap.step == SwapStep::Reads { swap.differs() } else { None };
                    swap.turn = None;
                    (2 * swap.expected.len() as u64, differs)
                }
            },
            // None has a task of the storage.
            Work::Reserve(_) | Work::Look(_) | Work::Pass(_) => return false,
        };
        match differs {
            Some(at) => self.check(head, Sense::miscompare(at), io),
            None => self.good(head, moved, 0, io),
        }
        false
    }

    fn failed(&mut self, head: u16, error: &StorageError, io: &Io<'_>) {
        let Label { export, ring, .. } = &self.turns.label;
        tracing::debug!(export = &**export, ring, %error, "a request failed");
        let sense = sense_of(error, &self.ring.slot(head).request.task.operation);
        self.check(head, sense, io);
    }
}

/// The blocks of its unit that a command is about, in bytes, for those who trace it.
fn range(command: &Command) -> Option<(u64, u64)> {
    match command {
        Command::Read { offset, len, .. }
        | Command::Write { offset, len, .. }
        | Command::WriteAndVerify { offset, len, .. }
        | Command::Verify { offset, len, .. }
        | Command::CompareAndWrite { offset, len, .. }
        | Command::WriteSame { offset, len, .. } => Some((*offset, *len)),
        _ => None,
    }
}

fn kind_of(command: &Command) -> Kind {
    match command {
        Command::Read { .. } => Kind::Read,
        Command::Write { .. } | Command::WriteAndVerify { .. } => Kind::Write,
        Command::Verify { .. } => Kind::Verify,
        Command::CompareAndWrite { .. } => Kind::CompareAndWrite,
        Command::Flush { .. } => Kind::Flush,
        Command::Unmap { .. } => Kind::Discard,
        Command::WriteSame { .. } => Kind::WriteZeroes,
        Command::ReserveIn { .. } | Command::ReserveOut(_) | Command::Reserve | Command::Release => Kind::Reserve,
        Command::TestUnitReady
        | Command::LbaStatus { .. }
        | Command::StartStop { .. }
        | Command::PreventAllow { .. }
        | Command::ModeSelect { .. }
        | Command::Query { .. } => Kind::Other,
    }
}

/// What the driver is told of an error.
fn sense_of(error: &StorageError, operation: &Operation) -> Sense {
    match error {
        StorageError::Io { source, .. } if matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
            Sense::NO_SPACE
        }
        StorageError::ReadOnly(_) => Sense::WRITE_PROTECTED,
        StorageError::Unsupported(_) => Sense::INVALID_OPCODE,
        StorageError::OutOfRange(_) => Sense::LBA_OUT_OF_RANGE,
        _ if matches!(operation, Operation::Read { .. }) => Sense::READ_ERROR,
        _ => Sense::WRITE_ERROR,
    }
}
