//! The stages of a task: what comes after which completion.
//!
//! A transfer goes straight between the guest's buffers and the file, and is resumed until it is whole. With O_DIRECT, what is
//! not aligned takes the detour through a bounce buffer, in chunks: `Fetch` fills the buffer from the file, `Store` writes it.
//! A write fetches first when its chunk has a partial block at an end.

use super::FileStorage;
use super::gate::{Ask, Claim, Touch};
use super::issue::Direction;
use super::open::Hold;
use super::space::{Job, Kind};
use crate::Progress;
use crate::aligned::AlignedBuffer;
use crate::buffers::{self, IOVECS_MAX};
use crate::lock::ImageLock;
use crate::ways::LINE;
use crate::{Action, Operation, Step, Storage, StorageError, Task};
use engine::{Completion, Io, Token};
use libc::iovec;
use std::os::fd::AsFd;

/// Bytes in a bounce buffer; a multiple of every alignment.
const CHUNK: u64 = 256 << 10;

/// Most bytes of one call for a transfer that is too large to be made on the spot: what does not wait for a device waits for one of
/// the kernel's few threads, and whoever waits behind it must not wait long.
const CALL_BYTES_MAX: u64 = 4 << 20;

/// How often in a row a call may end without having moved anything.
const RETRIES_MAX: u32 = 100;

/// Largest range whose hole is punched on the spot where calls do not wait, in bytes.
const INLINE_RANGE_MAX: u64 = 256 << 10;

/// What a task waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// The gate; then this work.
    Line(Work),
    Transfer,
    Fetch,
    Store,
    Space,
    Sync,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Transfer,
    Bounce,
    Space,
}

/// The part of the file that is in the bounce buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    start: u64,
    len: u64,
    /// Bytes fetched or stored so far.
    moved: u64,
}

/// Where a task of a file is.
#[derive(Default)]
struct FileProgress {
    stage: Stage,
    /// Bytes of the operation that are finished.
    done: u64,
    retries: u32,
    /// The buffers of the call in flight, when they are not the task's own.
    rest: Vec<iovec>,
    bounce: Option<AlignedBuffer>,
    chunk: Chunk,
    claim: Option<Claim>,
}

impl FileProgress {
    fn reset(&mut self) {
        debug_assert!(self.claim.is_none(), "a task was begun while in flight");
        self.stage = Stage::Idle;
        self.done = 0;
        self.retries = 0;
    }
}

// SAFETY: the list of buffers is plain addresses, which lead into memory of the task's owner or into the bounce buffer beside it.
unsafe impl Send for FileProgress {}

impl Progress for FileProgress {
    fn rest(&mut self) {
        buffers::shorten(&mut self.rest);
    }

    /// It leaves the line. What it is inside for may be with the kernel, and others have to wait for that.
    fn lost(&mut self) {
        if matches!(self.stage, Stage::Line(_)) {
            self.claim = None;
        }
    }
}

/// What a completion leads to.
enum Next {
    Issue,
    Done(Result<(), i32>),
}

/// What a number of bytes means for a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    /// All of it is done.
    Whole,
    /// Go on behind this many bytes.
    Partly(u64),
    /// Nothing came, or it ended inside a block: at byte `end` of the transfer. The end of the file, or an odd device.
    Stopped { end: u64, resume: u64 },
}

/// Adds `moved` bytes to a transfer of `total` bytes at `offset` that had `done`.
fn settle(done: u64, moved: u64, total: u64, offset: u64, align: u64) -> Moved {
    let end = done + moved;
    if end >= total {
        return Moved::Whole;
    }
    let inside_block = (offset + end) % align;
    if moved == 0 || inside_block != 0 {
        return Moved::Stopped { end, resume: end.saturating_sub(inside_block) };
    }
    Moved::Partly(end)
}

impl FileStorage {
    pub(super) fn begin(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let (offset, len) = match task.check(self.capacity_bytes(), self.read_only) {
            Ok(extent) => extent,
            Err(error) => return Step::Done(Err(error)),
        };
        task.state.of::<FileProgress>().reset();
        let work = match task.operation {
            // Contents live in memory and go with it; there is nothing more stable to bring them to.
            Operation::Flush if self.measures.memory => return Step::Done(Ok(())),
            Operation::Flush => {
                task.state.of::<FileProgress>().stage = Stage::Sync;
                return self.drive(task, token, io);
            }
            _ if len == 0 => return Step::Done(Ok(())),
            Operation::Read { .. } | Operation::Write { .. } if self.straight(task, offset) => Work::Transfer,
            Operation::Read { .. } | Operation::Write { .. } => Work::Bounce,
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                self.known.forget();
                Work::Space
            }
        };
        if let Some(ask) = self.needs(task, work, offset, len) {
            let (claim, inside) = self.gate.ask(ask, || io.reply_by(LINE, token));
            let progress = task.state.of::<FileProgress>();
            progress.claim = Some(claim);
            if !inside {
                progress.stage = Stage::Line(work);
                return Step::Pending;
            }
        }
        self.enter(task, work, token, io)
    }

    pub(super) fn proceed(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        let Completion { token, result, .. } = completion;
        if let Stage::Line(work) = task.state.of::<FileProgress>().stage {
            return match result {
                0.. => self.enter(task, work, token, io),
                _ => self.finish(task, Err(-result)),
            };
        }
        match self.advance(task, result) {
            Next::Issue => self.drive(task, token, io),
            Next::Done(outcome) => self.finish(task, outcome),
        }
    }

    /// Whether O_DIRECT takes the task's buffers as they are; without it everything goes.
    fn straight(&self, task: &Task, offset: u64) -> bool {
        let about = &self.measures;
        !self.direct
            || offset.is_multiple_of(about.offset_align)
                && buffers::aligned(&task.buffers, about.memory_align, about.offset_align as usize)
    }

    /// What the task must ask the gate for.
    fn needs(&self, task: &Task, work: Work, offset: u64, len: u64) -> Option<Ask> {
        let align = self.measures.offset_align.max(self.measures.cached_block_bytes);
        let (start, end) = (offset / align * align, (offset + len).next_multiple_of(align));
        let touch = if task.operation.action() == Action::Read {
            Touch::Nothing
        } else if (start, end) != (offset, offset + len) {
            Touch::Exclusive
        } else if self.gate.tracked() {
            Touch::Shared
        } else {
            Touch::Nothing
        };
        let buffer = work == Work::Bounce;
        (buffer || touch != Touch::Nothing).then_some(Ask { start, end, touch, buffer })
    }

    fn enter(&self, task: &mut Task, work: Work, token: Token, io: &mut Io<'_>) -> Step {
        match work {
            Work::Transfer => task.state.of::<FileProgress>().stage = Stage::Transfer,
            Work::Space => task.state.of::<FileProgress>().stage = Stage::Space,
            Work::Bounce => {
                let about = &self.measures;
                let (_, len) = task.extent();
                let most = len.next_multiple_of(about.offset_align).saturating_add(about.offset_align).min(CHUNK);
                let Some(buffer) = AlignedBuffer::new(most as usize, about.memory_align.max(512)) else {
                    return self.finish(task, Err(libc::ENOMEM));
                };
                task.state.of::<FileProgress>().bounce = Some(buffer);
                self.next_chunk(task);
            }
        }
        self.drive(task, token, io)
    }

    /// Issues calls until one does not end at once.
    fn drive(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        loop {
            let Some(result) = self.issue(task, token, io) else { return Step::Pending };
            if let Next::Done(outcome) = self.advance(task, result) {
                return self.finish(task, outcome);
            }
        }
    }

    fn finish(&self, task: &mut Task, outcome: Result<(), i32>) -> Step {
        let progress = &mut task.state.of::<FileProgress>();
        progress.stage = Stage::Idle;
        progress.bounce = None;
        progress.claim = None;
        let action = task.operation.action();
        Step::Done(outcome.map_err(|errno| StorageError::errno(action, errno)))
    }

    /// The stage's system call.
    fn issue(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Option<i32> {
        match task.state.of::<FileProgress>().stage {
            Stage::Transfer => self.issue_transfer(task, token, io),
            Stage::Fetch => self.issue_chunk(task, Direction::Read, token, io),
            Stage::Store => {
                let direction = self.write_direction(task);
                self.issue_chunk(task, direction, token, io)
            }
            Stage::Space => self.issue_space(task, token, io),
            Stage::Sync => self.executor.sync(&self.file, token, io),
            Stage::Idle | Stage::Line(_) => {
                debug_assert!(false, "nothing to issue");
                Some(-libc::EIO)
            }
        }
    }

    /// A write's durability; where nothing is stable, there is none to ask for.
    fn write_direction(&self, task: &Task) -> Direction {
        match task.operation {
            Operation::Write { durable, .. } => Direction::Write { durable: durable && !self.measures.memory },
            _ => Direction::Write { durable: false },
        }
    }

    fn issue_transfer(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Option<i32> {
        let (offset, len) = task.extent();
        let direction = match task.operation {
            Operation::Read { .. } => Direction::Read,
            _ => self.write_direction(task),
        };
        let progress = &mut task.state.of::<FileProgress>();
        let whole = progress.done == 0 && task.buffers.len() <= IOVECS_MAX && len <= CALL_BYTES_MAX;
        if !whole {
            buffers::remaining(&task.buffers, progress.done, CALL_BYTES_MAX, &mut progress.rest);
        }
        let list = if whole { &task.buffers } else { &progress.rest };
        // SAFETY: the list and its buffers stay in place while the task is in flight (contract of `Storage`).
        unsafe { self.executor.transfer(direction, &self.file, list, (offset + progress.done, len), token, io) }
    }

    fn issue_chunk(&self, task: &mut Task, direction: Direction, token: Token, io: &mut Io<'_>) -> Option<i32> {
        let request_bytes = task.bytes();
        let progress = &mut task.state.of::<FileProgress>();
        let chunk = progress.chunk;
        let Some(bounce) = &progress.bounce else { return Some(-libc::EIO) };
        let iov_base = bounce.as_ptr().wrapping_add(chunk.moved as usize).cast();
        progress.rest.clear();
        progress.rest.push(iovec { iov_base, iov_len: (chunk.len - chunk.moved) as usize });
        let offset = chunk.start + chunk.moved;
        // SAFETY: the bounce buffer belongs to the task, which stays in place while it is in flight.
        unsafe { self.executor.transfer(direction, &self.file, &progress.rest, (offset, request_bytes), token, io) }
    }

    fn issue_space(&self, task: &Task, token: Token, io: &mut Io<'_>) -> Option<i32> {
        let (offset, len) = task.extent();
        let job = Job {
            file: self.file.clone(),
            claim: self.hold.as_ref().and_then(Hold::locks).and_then(ImageLock::claim),
            abilities: self.abilities.clone(),
            kind: match task.operation {
                Operation::WriteZeroes { unmap, .. } => Kind::Zero { unmap },
                _ => Kind::Discard,
            },
            offset,
            len,
            memory_align: self.measures.memory_align,
            offset_align: self.measures.offset_align,
        };
        if self.measures.memory && self.executor.inline() && len <= INLINE_RANGE_MAX {
            return Some(job.run());
        }
        self.executor.jobs.run(io, token, move || job.run());
        None
    }

    /// What the result of the stage's call leads to.
    fn advance(&self, task: &mut Task, result: i32) -> Next {
        let progress = &mut task.state.of::<FileProgress>();
        if result < 0 {
            let passing = matches!(-result, libc::EINTR | libc::EAGAIN) && progress.retries < RETRIES_MAX;
            progress.retries += 1;
            return if passing { Next::Issue } else { Next::Done(Err(-result)) };
        }
        let moved = u64::from(result.unsigned_abs());
        let stage = progress.stage;
        match stage {
            Stage::Transfer => self.advance_transfer(task, moved),
            Stage::Fetch | Stage::Store => self.advance_chunk(task, moved),
            Stage::Space if self.durable_zeroes(task) => {
                task.state.of::<FileProgress>().stage = Stage::Sync;
                Next::Issue
            }
            _ => Next::Done(Ok(())),
        }
    }

    fn durable_zeroes(&self, task: &Task) -> bool {
        !self.measures.memory && matches!(task.operation, Operation::WriteZeroes { durable: true, .. })
    }

    fn advance_transfer(&self, task: &mut Task, moved: u64) -> Next {
        let (offset, len) = task.extent();
        let read = task.operation.action() == Action::Read;
        let progress = &mut task.state.of::<FileProgress>();
        match settle(progress.done, moved, len, offset, self.measures.offset_align) {
            Moved::Whole => Next::Done(Ok(())),
            Moved::Partly(done) => {
                (progress.done, progress.retries) = (done, 0);
                Next::Issue
            }
            Moved::Stopped { end, .. } if read && self.at_end(offset + end) => {
                // A file that somebody cut short reads as zeroes behind its end, like a hole.
                // SAFETY: the buffers of a started task are mapped and writable.
                unsafe { buffers::zero(&task.buffers, end) };
                Next::Done(Ok(()))
            }
            Moved::Stopped { resume, .. } => retry_from(&mut progress.done, &mut progress.retries, resume),
        }
    }

    fn advance_chunk(&self, task: &mut Task, moved: u64) -> Next {
        let progress = &mut task.state.of::<FileProgress>();
        let chunk = &mut progress.chunk;
        match settle(chunk.moved, moved, chunk.len, chunk.start, self.measures.offset_align) {
            Moved::Whole => {}
            Moved::Partly(done) => {
                (chunk.moved, progress.retries) = (done, 0);
                return Next::Issue;
            }
            Moved::Stopped { end, .. } if progress.stage == Stage::Fetch && self.at_end(chunk.start + end) => {
                if let Some(bounce) = &progress.bounce {
                    // SAFETY: `end` is less than the chunk's length, which fits into the buffer.
                    unsafe { bounce.as_ptr().add(end as usize).write_bytes(0, (chunk.len - end) as usize) };
                }
            }
            Moved::Stopped { resume, .. } => return retry_from(&mut chunk.moved, &mut progress.retries, resume),
        }
        self.chunk_ready(task)
    }

    /// The chunk has been fetched or stored.
    fn chunk_ready(&self, task: &mut Task) -> Next {
        let (offset, len) = task.extent();
        let read = task.operation.action() == Action::Read;
        let progress = &mut task.state.of::<FileProgress>();
        if progress.stage == Stage::Fetch && !read {
            return self.fill_and_store(task);
        }
        let chunk = progress.chunk;
        let start = offset + progress.done;
        let stop = (chunk.start + chunk.len).min(offset + len);
        if read && let Some(bounce) = &progress.bounce {
            let source = bounce.as_ptr().wrapping_add((start - chunk.start) as usize);
            // SAFETY: `start..stop` lies inside the chunk in the bounce buffer; the task's buffers are mapped.
            unsafe { buffers::copy_in(&task.buffers, progress.done, source, stop - start) };
        }
        progress.done = stop - offset;
        if progress.done == len {
            return Next::Done(Ok(()));
        }
        self.next_chunk(task)
    }

    /// Lays the next chunk over what is left of the operation.
    fn next_chunk(&self, task: &mut Task) -> Next {
        let align = self.measures.offset_align;
        let (offset, len) = task.extent();
        let read = task.operation.action() == Action::Read;
        let progress = &mut task.state.of::<FileProgress>();
        let room = progress.bounce.as_ref().map_or(0, |bounce| bounce.len() as u64);
        let begin = offset + progress.done;
        let start = begin / align * align;
        let stop = (offset + len).min(start + room / align * align);
        let end = stop.next_multiple_of(align);
        progress.chunk = Chunk { start, len: end - start, moved: 0 };
        progress.retries = 0;
        progress.stage = Stage::Fetch;
        if read || (start, end) != (begin, stop) {
            return Next::Issue;
        }
        self.fill_and_store(task)
    }

    /// Puts the write's data into the bounce buffer.
    fn fill_and_store(&self, task: &mut Task) -> Next {
        let (offset, len) = task.extent();
        let progress = &mut task.state.of::<FileProgress>();
        let chunk = &mut progress.chunk;
        let begin = offset + progress.done;
        let stop = (chunk.start + chunk.len).min(offset + len);
        if let Some(bounce) = &progress.bounce {
            let target = bounce.as_ptr().wrapping_add((begin - chunk.start) as usize);
            // SAFETY: `begin..stop` lies inside the chunk in the bounce buffer; the task's buffers are mapped.
            unsafe { buffers::copy_out(&task.buffers, progress.done, target, stop - begin) };
        }
        chunk.moved = 0;
        progress.retries = 0;
        progress.stage = Stage::Store;
        Next::Issue
    }

    /// Whether `position` is at or behind the end of the file.
    fn at_end(&self, position: u64) -> bool {
        super::measure::size_bytes(self.file.as_fd()).is_ok_and(|size| position >= size)
    }
}

/// Goes on at `resume`; gives up when that has brought nothing for too long.
fn retry_from(done: &mut u64, retries: &mut u32, resume: u64) -> Next {
    *retries = if resume > *done { 0 } else { *retries + 1 };
    *done = resume.max(*done);
    if *retries > RETRIES_MAX { Next::Done(Err(libc::EIO)) } else { Next::Issue }
}

#[cfg(test)]
mod tests {
    use super::super::FileOptions;
    use super::*;
    use proptest::prelude::*;

    /// Two of them at once met in the page cache, and the next flush failed ([`gate`](super::super::gate)).
    #[test]
    fn parts_of_a_block_of_the_file_system_are_written_alone() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let mut storage = FileStorage::open(&FileOptions::new(image.path())).unwrap();
        let needs = |storage: &FileStorage, operation: Operation, offset, len| {
            let mut task = Task::new();
            task.begin(operation);
            storage.needs(&task, Work::Transfer, offset, len).map(|ask| (ask.touch, ask.start..ask.end))
        };
        let write = |offset| Operation::Write { offset, durable: false };
        assert_eq!(needs(&storage, write(512), 512, 512), None, "through the page cache anyway");
        (storage.direct, storage.measures.offset_align, storage.measures.cached_block_bytes) = (true, 512, 4096);
        assert_eq!(needs(&storage, write(512), 512, 512), Some((Touch::Exclusive, 0..4096)));
        assert_eq!(needs(&storage, write(4096), 4096, 4608), Some((Touch::Exclusive, 4096..12288)));
        assert_eq!(needs(&storage, write(8192), 8192, 8192), None, "nobody else writes there");
        let zero = Operation::WriteZeroes { offset: 8704, len: 512, unmap: true, durable: false };
        assert_eq!(needs(&storage, zero, 8704, 512), Some((Touch::Exclusive, 8192..12288)));
        assert_eq!(needs(&storage, Operation::Read { offset: 512 }, 512, 512), None);
    }

    #[test]
    fn what_a_number_of_bytes_means() {
        assert_eq!(settle(0, 4096, 4096, 512, 512), Moved::Whole);
        assert_eq!(settle(0, 512, 4096, 512, 512), Moved::Partly(512));
        assert_eq!(settle(512, 1, 4096, 512, 1), Moved::Partly(513));
        assert_eq!(settle(512, 0, 4096, 0, 1), Moved::Stopped { end: 512, resume: 512 });
        assert_eq!(settle(4096, 512, 16384, 4096, 4096), Moved::Stopped { end: 4608, resume: 4096 });
    }

    proptest! {
        /// Whatever short counts come, a transfer moves every byte in order and ends.
        #[test]
        fn short_transfers_end_whole(total in 1u64..40, align in prop::sample::select(vec![1u64, 8]), counts in prop::collection::vec(0u64..50, 1..30)) {
            let total = total * align;
            let (mut done, mut retries, mut steps) = (0, 0, 0);
            let mut counts = counts.into_iter().cycle();
            loop {
                let moved = counts.next().unwrap().min(total - done);
                let before = done;
                match settle(done, moved, total, 0, align) {
                    Moved::Whole => { prop_assert_eq!(before + moved, total); break; }
                    Moved::Partly(now) => { prop_assert_eq!(now, before + moved); (done, retries) = (now, 0); }
                    Moved::Stopped { end, resume } => {
                        prop_assert!(resume <= end && resume % align == 0);
                        if let Next::Done(outcome) = retry_from(&mut done, &mut retries, resume) {
                            prop_assert_eq!(outcome, Err(libc::EIO));
                            break;
                        }
                        prop_assert!(done >= before);
                    }
                }
                steps += 1;
                prop_assert!(steps < 20_000, "it must end");
            }
        }
    }
}
