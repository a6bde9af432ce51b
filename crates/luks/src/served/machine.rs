//! The stages of a task: what comes after which completion.
//!
//! A task has one thing under way at a time: a piece in the storage below, which a task of its own follows (`sub`), or its place in the
//! line for a buffer. With buffers it never waits for more, so that whoever has some gets on.

use super::LuksStorage;
use super::pool::BUFFER_BYTES;
use super::progress::{LuksProgress, Stage};
use crate::xts::Direction;
use engine::{Completion, Io, Token};
use libc::iovec;
use storage::kit::{copy_in, copy_out};
use storage::ways::LINE;
use storage::{Action, Operation, Step, Storage, StorageError, Task};

/// Most buffers of one task, where there are plenty: a piece of 512 KiB.
const BUFFERS_MAX: usize = 8;

/// Most bytes that a worker encrypts for one task before others have their turn: a fraction of a millisecond with AES instructions, some
/// milliseconds without.
const AT_ONCE_MAX: u64 = 1 << 20;

/// A task taken apart.
struct Parts<'a, 'io> {
    operation: Operation,
    /// First byte of the disk, and how many.
    offset: u64,
    len: u64,
    buffers: &'a [iovec],
    progress: &'a mut LuksProgress,
    token: Token,
    io: &'a mut Io<'io>,
}

impl LuksStorage {
    pub(super) fn begin(&self, task: &mut Task, token: Token, io: &mut Io<'_>) -> Step {
        let (operation, action) = (task.operation, task.operation.action());
        let (offset, len) = match task.check(self.capacity_bytes(), self.read_only) {
            Ok(extent) => extent,
            Err(error) => return Step::Done(Err(error)),
        };
        let sector = u64::from(self.data.sector_bytes);
        if !offset.is_multiple_of(sector) || !len.is_multiple_of(sector) {
            return Step::Done(Err(StorageError::Partial { action, block_bytes: self.data.sector_bytes }));
        }
        let progress = task.state.of::<LuksProgress>();
        progress.reset();
        let mut parts = Parts { operation, offset, len, buffers: &task.buffers, progress, token, io };
        match operation {
            Operation::Read { .. } | Operation::Write { .. } | Operation::WriteZeroes { .. } => self.go_on(&mut parts),
            Operation::Flush => self.rest(&mut parts, Operation::Flush),
            // Advice, which is not taken: what is below would tell what of the disk is in use.
            Operation::Discard { .. } if !self.allow_discards => Step::Done(Ok(())),
            Operation::Discard { .. } => {
                self.rest(&mut parts, Operation::Discard { offset: self.data.offset + offset, len })
            }
        }
    }

    pub(super) fn proceed(&self, task: &mut Task, completion: Completion, io: &mut Io<'_>) -> Step {
        let (operation, (offset, len)) = (task.operation, task.extent());
        let progress = task.state.of::<LuksProgress>();
        let token = completion.token;
        let mut parts = Parts { operation, offset, len, buffers: &task.buffers, progress, token, io };
        match parts.progress.stage {
            Stage::Piece(bytes) => {
                let step = self.lower.resume(&mut parts.progress.sub, completion, parts.io);
                match self.piece_went(&mut parts, bytes, step) {
                    Some(step) => step,
                    None => self.go_on(&mut parts),
                }
            }
            Stage::Rest => {
                let step = self.lower.resume(&mut parts.progress.sub, completion, parts.io);
                parts.ended(step)
            }
            Stage::Line | Stage::Yield if completion.result >= 0 => self.go_on(&mut parts),
            Stage::Line | Stage::Yield => parts.failed(-completion.result),
            Stage::Idle => {
                debug_assert!(false, "{completion:?} for a task that waits for nothing");
                parts.failed(libc::EIO)
            }
        }
    }

    /// Does piece after piece, as long as nothing has to be waited for.
    fn go_on(&self, parts: &mut Parts<'_, '_>) -> Step {
        loop {
            let left = parts.len - parts.progress.done;
            if left == 0 {
                return self.all_is_done(parts);
            }
            if parts.progress.at_once >= AT_ONCE_MAX {
                parts.progress.at_once = 0;
                parts.progress.stage = Stage::Yield;
                parts.io.reply_by(LINE, parts.token).complete(0);
                return Step::Pending;
            }
            match self.take_buffers(parts, left) {
                Ok(true) => {}
                Ok(false) => return Step::Pending,
                Err(errno) => return parts.failed(errno),
            }
            let bytes = left.min((parts.progress.buffers.len() * BUFFER_BYTES) as u64);
            let step = self.start_piece(parts, bytes);
            if let Some(step) = self.piece_went(parts, bytes, step) {
                return step;
            }
        }
    }

    /// Sees to it that the task has a buffer, or more for a long operation; false: it waits for one.
    fn take_buffers(&self, parts: &mut Parts<'_, '_>, left: u64) -> Result<bool, i32> {
        let progress = &mut *parts.progress;
        // Tasks of other workers begin elsewhere.
        let hint = std::ptr::from_ref(progress).addr() >> 12;
        if progress.buffers.is_empty() {
            match self.pool.take_or_park(hint, &mut progress.place, || parts.io.reply_by(LINE, parts.token))? {
                Some(buffer) => progress.buffers.push(buffer),
                None => {
                    progress.stage = Stage::Line;
                    return Ok(false);
                }
            }
        }
        let want = left.div_ceil(BUFFER_BYTES as u64).min(BUFFERS_MAX as u64) as usize;
        while progress.buffers.len() < want && self.pool.has_plenty() {
            let Some(buffer) = self.pool.take(hint)? else { break };
            progress.buffers.push(buffer);
        }
        Ok(true)
    }

    /// Starts the next `bytes` bytes below.
    fn start_piece(&self, parts: &mut Parts<'_, '_>, bytes: u64) -> Step {
        let progress = &mut *parts.progress;
        let at = parts.offset + progress.done;
        progress.sub.buffers.clear();
        let mut from = 0;
        for buffer in &mut progress.buffers {
            let len = (bytes - from).min(BUFFER_BYTES as u64) as usize;
            if len == 0 {
                break;
            }
            match parts.operation {
                Operation::Write { .. } => {
                    // SAFETY: the guest's buffers are mapped, and ours has room for `len` bytes.
                    unsafe { copy_out(parts.buffers, progress.done + from, buffer.as_ptr(), len as u64) };
                    self.encrypt(buffer.bytes(len), at + from);
                }
                Operation::WriteZeroes { .. } => {
                    buffer.bytes(len).fill(0);
                    self.encrypt(buffer.bytes(len), at + from);
                }
                _ => {}
            }
            progress.sub.buffers.push(iovec { iov_base: buffer.as_ptr().cast(), iov_len: len });
            from += len as u64;
        }
        let offset = self.data.offset + at;
        // Of several pieces a flush makes all durable.
        let durable = parts.operation.is_durable() && bytes == parts.len;
        progress.sub.begin(match parts.operation {
            Operation::Read { .. } => Operation::Read { offset },
            _ => Operation::Write { offset, durable },
        });
        progress.stage = Stage::Piece(bytes);
        self.lower.start(&mut progress.sub, parts.token, parts.io)
    }

    /// What comes after a piece; `None`: the next one.
    fn piece_went(&self, parts: &mut Parts<'_, '_>, bytes: u64, step: Step) -> Option<Step> {
        match step {
            Step::Pending => return Some(Step::Pending),
            Step::Done(Err(error)) => return Some(parts.ended(Step::Done(Err(error)))),
            Step::Done(Ok(())) => {}
        }
        let progress = &mut *parts.progress;
        if matches!(parts.operation, Operation::Read { .. }) {
            let mut from = 0;
            for buffer in &mut progress.buffers {
                let len = (bytes - from).min(BUFFER_BYTES as u64) as usize;
                let plain = buffer.bytes(len);
                let tweak = self.data.tweak(parts.offset + progress.done + from);
                self.cipher.run(Direction::Decrypt, plain, tweak, self.data.sector_bytes as usize);
                // SAFETY: the guest's buffers are mapped and writable.
                unsafe { copy_in(parts.buffers, progress.done + from, plain.as_ptr(), plain.len() as u64) };
                from += len as u64;
            }
        }
        progress.done += bytes;
        progress.at_once += bytes;
        progress.pieces += 1;
        None
    }

    fn encrypt(&self, bytes: &mut [u8], at: u64) {
        self.cipher.run(Direction::Encrypt, bytes, self.data.tweak(at), self.data.sector_bytes as usize);
    }

    fn all_is_done(&self, parts: &mut Parts<'_, '_>) -> Step {
        parts.progress.buffers.clear();
        if parts.operation.is_durable() && parts.progress.pieces != 1 {
            return self.rest(parts, Operation::Flush);
        }
        parts.ended(Step::Done(Ok(())))
    }

    /// Has the storage below do what is left, for which there are no buffers.
    fn rest(&self, parts: &mut Parts<'_, '_>, operation: Operation) -> Step {
        let progress = &mut *parts.progress;
        progress.sub.buffers.clear();
        progress.sub.begin(operation);
        progress.stage = Stage::Rest;
        let step = self.lower.start(&mut progress.sub, parts.token, parts.io);
        parts.ended(step)
    }
}

impl Parts<'_, '_> {
    /// Gives back what the task has, once it has ended.
    fn ended(&mut self, step: Step) -> Step {
        let Step::Done(result) = step else { return Step::Pending };
        self.progress.reset();
        Step::Done(result)
    }

    fn failed(&mut self, errno: i32) -> Step {
        let action: Action = self.operation.action();
        self.ended(Step::Done(Err(StorageError::errno(action, errno))))
    }
}
