//! What one log write consists of.

use crate::BLOCK_BYTES;
use crate::cache::{Cache, Pins};
use crate::format::Uuid;
use crate::log::{DATA_ENTRIES_MAX, RecordBuilder, Sealed, record_bytes_max};
use libc::iovec;
use std::sync::Arc;
use storage::{Operation, Task};

/// Versions on their way into the log, the header of their record, and the write. Made once and used again for later commits.
pub(super) struct Batch {
    pub(super) pins: Pins,
    pub(super) task: Task,
    builder: RecordBuilder,
    /// Sequence of the record, once it is sealed.
    pub(super) sequence: u64,
    /// All that was to be logged when the pass began is in this batch or in those before it.
    pub(super) last: bool,
}

/// Most versions of one record in a log that takes records of `record_bytes_max`.
pub(super) fn versions_max(record_bytes_max: u64) -> usize {
    let blocks = (record_bytes_max / BLOCK_BYTES as u64) as usize;
    let header_blocks = |versions: usize| (128 + versions * 16).div_ceil(BLOCK_BYTES);
    let mut versions = blocks.saturating_sub(1).min(DATA_ENTRIES_MAX);
    while versions > 1 && header_blocks(versions) + versions > blocks {
        versions -= 1;
    }
    versions.max(1)
}

/// The versions do not fit one record, or there are none: a bug of this program.
#[derive(Debug)]
pub(super) struct DoesNotFit;

impl Batch {
    /// For versions of `cache`, and a log of this many bytes.
    pub(super) fn new(cache: &Arc<Cache>, log_uuid: &Uuid, epoch: u64, log_bytes: u64) -> Batch {
        Batch {
            pins: Pins::new(cache),
            task: Task::new(),
            builder: RecordBuilder::new(log_uuid, epoch, record_bytes_max(log_bytes)),
            sequence: 0,
            last: true,
        }
    }

    /// Describes the pinned versions in a record, and lists their memory for the write. The checksums over their contents are
    /// made here, outside of any lock.
    pub(super) fn build(&mut self) -> Result<(), DoesNotFit> {
        let buffers = &mut self.task.buffers;
        buffers.clear();
        // The header's place; where it lies is known when it is sealed.
        buffers.push(iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });
        self.builder.begin();
        for version in self.pins.iter() {
            let taken = match version.data {
                None => self.builder.zeroes(version.block, 1),
                Some(data) => {
                    push(buffers, data);
                    // SAFETY: a pinned version is a whole block that nobody changes.
                    let contents = unsafe { std::slice::from_raw_parts(data, BLOCK_BYTES) };
                    self.builder.data(version.block, version.sectors, contents)
                }
            };
            if !taken {
                return Err(DoesNotFit);
            }
        }
        Ok(())
    }

    /// Bytes of the record.
    pub(super) fn bytes(&self) -> u64 {
        self.builder.bytes()
    }

    /// Gives the record its place in the log and in the order of things.
    pub(super) fn seal(&mut self, sequence: u64, position: u64, previous: u64) -> Sealed {
        let sealed = self.builder.finish(sequence, position, previous);
        let header = self.builder.header();
        if let Some(first) = self.task.buffers.first_mut() {
            *first = iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: header.len() };
        }
        self.sequence = sequence;
        sealed
    }

    /// Prepares the write at `offset` of the log's storage.
    pub(super) fn write_at(&mut self, offset: u64, durable: bool) {
        self.task.begin(Operation::Write { offset, durable });
    }
}

/// Adds a block's memory to a list, to its last entry where that ends there.
fn push(buffers: &mut Vec<iovec>, data: *const u8) {
    if let Some(last) = buffers.last_mut()
        && last.iov_len > 0
        && last.iov_base.cast::<u8>().wrapping_add(last.iov_len).cast_const() == data
    {
        last.iov_len += BLOCK_BYTES;
        return;
    }
    buffers.push(iovec { iov_base: data.cast_mut().cast(), iov_len: BLOCK_BYTES });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_versions_as_fit() {
        assert_eq!(versions_max(16 << 10), 3);
        assert_eq!(versions_max(4 << 20), DATA_ENTRIES_MAX);
        assert_eq!(versions_max(2 << 20), 509, "509 entries take three blocks of header");
        assert_eq!(versions_max(0), 1);
    }

    #[test]
    fn neighbours_are_one_buffer() {
        let memory = [0u8; 3 * BLOCK_BYTES];
        let mut buffers = vec![iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }];
        for block in [0, 1, 0, 2] {
            push(&mut buffers, memory.as_ptr().wrapping_add(block * BLOCK_BYTES));
        }
        let lengths: Vec<_> = buffers.iter().map(|buffer| buffer.iov_len / BLOCK_BYTES).collect();
        assert_eq!(lengths, [0, 2, 1, 1]);
    }
}
