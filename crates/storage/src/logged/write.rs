//! Writes and write zeroes: into the cache, block by block, in line when there is no slot.

use super::LoggedStorage;
use super::line::Need;
use super::machine::Parts;
use super::options::SyncMode;
use super::progress::Stage;
use super::reply;
use super::shared::Part;
use crate::{Operation, Step};
use engine::{Io, Token};

/// Blocks that are stored before other work of the worker has its turn: a write zeroes may be as large as the disk.
const TURN_BLOCKS: usize = 4096;

impl LoggedStorage {
    /// Begins, or goes on behind what is stored.
    pub(super) fn write(&self, parts: &mut Parts<'_>, token: Token, io: &mut Io<'_>) -> Step {
        let (offset, len, zeroes, durable) = match parts.operation {
            Operation::WriteZeroes { offset, len, durable, .. } => (offset, len, true, durable),
            Operation::Write { offset, durable } => (offset, crate::buffers::total(parts.buffers), false, durable),
            _ => return self.done(parts, Err(libc::EINVAL)),
        };
        let shared = &*self.shared;
        let end = offset + len;
        let mut stored = 0;
        while let Some(part) = Part::first(offset + parts.progress.done, end) {
            let whole_zeroes = zeroes && part.sectors.is_all();
            let need = if whole_zeroes { Need::Zero } else { Need::Data };
            // Newcomers stand behind those that wait.
            let fair = parts.progress.called || parts.progress.done > 0 || shared.line.len() == 0;
            if !fair || !self.store(parts, part, zeroes, whole_zeroes) {
                parts.progress.stage = Stage::Line;
                if stored > 0 {
                    shared.changed();
                }
                let again = std::mem::take(&mut parts.progress.called) || parts.progress.done > 0;
                shared.park_writer(need, again, io.reply(token));
                return Step::Pending;
            }
            parts.progress.done += part.len as u64;
            stored += 1;
            if stored == TURN_BLOCKS && offset + parts.progress.done < end {
                shared.changed();
                parts.progress.stage = Stage::Line;
                io.reply(token).complete(reply::ROOM);
                return Step::Pending;
            }
        }
        parts.progress.stage = Stage::Idle;
        if stored > 0 {
            shared.changed();
        }
        if std::mem::take(&mut parts.progress.called) {
            // We were called for one slot, and may have left others.
            shared.slots_freed();
        }
        let stable = match shared.sync_mode() {
            SyncMode::Standard => durable,
            SyncMode::Always => true,
            SyncMode::Disabled => false,
        };
        if stable && len > 0 { self.commit(parts, token, io) } else { self.done(parts, Ok(())) }
    }

    /// Stores one block; false when there is no slot.
    fn store(&self, parts: &mut Parts<'_>, part: Part, zeroes: bool, whole_zeroes: bool) -> bool {
        let cache = &self.shared.cache;
        if whole_zeroes {
            return cache.zero(part.block).is_ok();
        }
        let (buffers, cursor) = (&*parts.buffers, parts.progress.cursor);
        let stored = cache.store(part.block, part.sectors, |block| {
            let to = block.wrapping_add(part.start);
            if zeroes {
                // SAFETY: the slot has a whole block, which is ours alone, and the part lies in it.
                unsafe { to.write_bytes(0, part.len) };
            } else {
                // SAFETY: as above; the buffers of a started task are mapped, and are not memory of the cache.
                unsafe { cursor.gather(buffers, to, part.len) };
            }
        });
        if stored.is_ok() && !zeroes {
            parts.progress.cursor = cursor.skip(buffers, part.len);
        }
        stored.is_ok()
    }
}
