//! Writes and write zeroes: into the cache, block by block, in line when there is no slot.

use super::LoggedStorage;
use super::cursor::Cursor;
use super::line::Need;
use super::machine::{Parts, errno_of};
use super::progress::Stage;
use super::reply::Event;
use super::shared::Part;
use crate::BLOCK_BYTES;
use crate::cache::Cache;
use engine::{Io, Token};
use libc::iovec;
use storage::kit::{Lent, ON_THE_SPOT_MAX, total};
use storage::ways::LINE;
use storage::{Operation, Step};
use values::SyncMode;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Blocks that another thread stores of one request before it takes the next: a write zeroes may be as large as the disk.
const JOB_BLOCKS: u64 = 4096;

/// What of a write is not in the cache yet.
#[derive(Clone, Copy)]
struct Rest {
    offset: u64,
    /// Bytes from there that are in the cache.
    done: u64,
    end: u64,
    zeroes: bool,
    /// Where its data begins in the task's buffers.
    cursor: Cursor,
}

impl Rest {
    fn bytes(&self) -> u64 {
        self.end - self.offset - self.done
    }

    /// The next block, and what it takes.
    fn part(&self) -> Option<(Part, Need)> {
        let part = Part::first(self.offset + self.done, self.end)?;
        Some((part, if self.zeroes && part.sectors.is_all() { Need::Zero } else { Need::Data }))
    }

    /// Stores block by block, `most` of them unless there is a slot too few. Gives how many.
    ///
    /// # Safety
    /// The buffers are valid for reads and no memory of the cache; they may change meanwhile.
    unsafe fn store(&mut self, cache: &Cache, buffers: &[iovec], most: u64) -> u64 {
        let mut stored = 0;
        while stored < most
            && let Some((part, need)) = self.part()
        {
            let result = match need {
                Need::Zero => cache.zero(part.block),
                Need::Data => cache.store(part.block, part.sectors, |block| {
                    let to = block.wrapping_add(part.start);
                    if self.zeroes {
                        // SAFETY: the slot has a whole block, which is ours alone, and the part lies in it.
                        unsafe { to.write_bytes(0, part.len) };
                    } else {
                        // SAFETY: as above; the buffers are vouched for.
                        unsafe { self.cursor.gather(buffers, to, part.len) };
                    }
                }),
            };
            if result.is_err() {
                break;
            }
            if !self.zeroes {
                self.cursor = self.cursor.skip(buffers, part.len);
            }
            self.done += part.len as u64;
            stored += 1;
        }
        stored
    }

    /// Goes on behind `blocks` that somebody else has stored.
    fn skip(&mut self, blocks: u64, buffers: &[iovec]) {
        if blocks == 0 {
            return;
        }
        let at = self.offset + self.done;
        let bytes = self.end.min((at / BLOCK + blocks) * BLOCK) - at;
        if !self.zeroes {
            self.cursor = self.cursor.skip(buffers, bytes as usize);
        }
        self.done += bytes;
    }
}

/// What is left of a write or write zeroes.
fn rest(parts: &Parts<'_>) -> Option<Rest> {
    let (offset, len, zeroes) = match parts.operation {
        Operation::WriteZeroes { offset, len, .. } => (offset, len, true),
        Operation::Write { offset, .. } => (offset, total(parts.buffers), false),
        _ => return None,
    };
    let (done, cursor) = (parts.progress.done, parts.progress.cursor);
    Some(Rest { offset, done, end: offset + len, zeroes, cursor })
}

impl LoggedStorage {
    /// Begins, or goes on behind what is stored.
    pub(super) fn write(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        let Some(mut rest) = rest(parts) else { return self.done(parts, Err(libc::EINVAL)) };
        let shared = &self.shared;
        // Newcomers stand behind those that wait.
        let fair = parts.progress.called || parts.progress.done > 0 || shared.line.len() == 0;
        if !fair {
            return self.stand_in_line(parts, token, io);
        }
        if rest.bytes() > ON_THE_SPOT_MAX {
            let (shared, buffers) = (shared.clone(), Lent::new(parts.buffers));
            parts.progress.stage = Stage::Store;
            self.shared.jobs.run(io, token.part(Event::Job.part()), move || {
                // SAFETY: the task waits for us, with its buffers mapped, and they are not memory of the cache.
                let stored = unsafe { rest.store(&shared.cache, buffers.list(), JOB_BLOCKS) };
                if stored > 0 {
                    shared.changed();
                }
                stored as i32
            });
            return Step::Pending;
        }
        // SAFETY: the buffers of a started task are mapped, and are not memory of the cache.
        let stored = unsafe { rest.store(&shared.cache, parts.buffers, u64::MAX) };
        if stored > 0 {
            shared.changed();
        }
        (parts.progress.done, parts.progress.cursor) = (rest.done, rest.cursor);
        if rest.part().is_some() { self.stand_in_line(parts, token, io) } else { self.all_stored(parts, token, io) }
    }

    /// Another thread has stored so many blocks, or has failed.
    pub(super) fn stored(&self, parts: &mut Parts<'_>, result: i32, token: Token, io: &mut Io<'_>) -> Step {
        let Ok(blocks) = u64::try_from(result) else { return self.done(parts, Err(errno_of(result))) };
        let Some(mut rest) = rest(parts) else { return self.done(parts, Err(libc::EINVAL)) };
        rest.skip(blocks, parts.buffers);
        (parts.progress.done, parts.progress.cursor) = (rest.done, rest.cursor);
        match rest.part() {
            None => self.all_stored(parts, token, io),
            // It found no slot, not even for one.
            Some(_) if blocks == 0 => self.stand_in_line(parts, token, io),
            Some(_) => self.write(parts, token, io),
        }
    }

    /// Waits for a slot.
    fn stand_in_line(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        let need = rest(parts).and_then(|rest| rest.part()).map_or(Need::Data, |(_, need)| need);
        parts.progress.stage = Stage::Line;
        let again = std::mem::take(&mut parts.progress.called) || parts.progress.done > 0;
        self.shared.park_writer(need, again, io.reply_by(LINE, token.part(Event::Room.part())));
        Step::Pending
    }

    fn all_stored(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        let shared = &self.shared;
        parts.progress.stage = Stage::Idle;
        if std::mem::take(&mut parts.progress.called) {
            // We were called for one slot, and may have left others.
            shared.slots_freed();
        }
        let durable = match parts.operation {
            Operation::Write { durable, .. } | Operation::WriteZeroes { durable, .. } => durable,
            _ => false,
        };
        let stable = match shared.sync_mode() {
            SyncMode::Standard => durable,
            SyncMode::Always => true,
            SyncMode::Disabled => false,
        };
        if stable && parts.progress.done > 0 { self.commit(parts, token, io) } else { self.done(parts, Ok(())) }
    }
}
