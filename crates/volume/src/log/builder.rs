//! A record for the log, made without copying its payload.

use super::record::{Entry, Header, header_bytes};
use super::{DATA_ENTRIES_MAX, ENTRIES_MAX, ENTRY_BYTES, FIXED_BYTES, HEADER_BYTES_MAX};
use crate::format::{field, log_seed};
use crate::units::{BLOCK_BYTES, SectorMask};
use uuid::Uuid;
use xxhash_rust::xxh3::Xxh3;

/// Makes the header of one record after the other; kept, it allocates nothing.
///
/// The payload stays where it is: whoever writes the record writes [`header`](RecordBuilder::header), then the blocks given to
/// [`data`](RecordBuilder::data) in their order.
pub struct RecordBuilder {
    seed: u64,
    epoch: u64,
    record_bytes_max: usize,
    /// The header's blocks, from `start` on: as direct I/O wants them.
    memory: Vec<u8>,
    start: usize,
    header_len: usize,
    entries: usize,
    data_entries: usize,
    /// The last entry, while it is a run of zeroes that may go on: its first block and its length.
    run: Option<(u64, u32)>,
    payload: Xxh3,
}

/// What became of a record that was finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// What the next record has as its `previous`.
    pub chain: u64,
    /// Bytes of the record, header and payload: a multiple of 4096.
    pub bytes: u64,
}

impl RecordBuilder {
    /// For records of `log` in `epoch` (of the superblock, as [`recover`](crate::recover::recover) has left it) that are at
    /// most `record_bytes_max` long ([`record_bytes_max`](super::record_bytes_max) of the log).
    pub fn new(log: &Uuid, epoch: u64, record_bytes_max: u64) -> RecordBuilder {
        let memory = vec![0; HEADER_BYTES_MAX + BLOCK_BYTES];
        // Where alignment cannot be told the memory is used as it is: direct I/O refuses it then, aloud.
        let start = memory.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        let seed = log_seed(log);
        RecordBuilder {
            seed,
            epoch,
            record_bytes_max: record_bytes_max.min(super::RECORD_BYTES_MAX) as usize,
            memory,
            start,
            header_len: 0,
            entries: 0,
            data_entries: 0,
            run: None,
            payload: Xxh3::with_seed(seed),
        }
    }

    /// Begins another record. The header of the one before is no longer valid.
    pub fn begin(&mut self) {
        (self.header_len, self.entries, self.data_entries, self.run) = (0, 0, 0, None);
        self.payload = Xxh3::with_seed(self.seed);
    }

    /// Adds new contents of some of a block's sectors; `payload` is the block's 4096 bytes, all of which are written to the log.
    /// `false`: the record is full, nothing was added.
    pub fn data(&mut self, block: u64, sectors: SectorMask, payload: &[u8]) -> bool {
        debug_assert!(payload.len() == BLOCK_BYTES && !sectors.is_empty());
        if self.data_entries == DATA_ENTRIES_MAX || !self.has_room(1) {
            return false;
        }
        self.push(Entry::Data { block, sectors, at: 0 });
        self.data_entries += 1;
        self.run = None;
        self.payload.update(payload);
        true
    }

    /// Adds `count` blocks (not 0) that read as zeroes. Neighbours of the run added last lengthen it. `false`: the record is full, nothing
    /// was added.
    pub fn zeroes(&mut self, block: u64, count: u32) -> bool {
        debug_assert!(count > 0);
        if let Some((first, length)) = self.run
            && first.checked_add(u64::from(length)) == Some(block)
            && let Some(length) = length.checked_add(count)
        {
            self.entries -= 1;
            self.push(Entry::Zeroes { block: first, count: length });
            self.run = Some((first, length));
            return true;
        }
        if !self.has_room(0) {
            return false;
        }
        self.push(Entry::Zeroes { block, count });
        self.run = Some((block, count));
        true
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Bytes of the record as it is now: what its place must have.
    pub fn bytes(&self) -> u64 {
        (header_bytes(self.entries) + self.data_entries * BLOCK_BYTES) as u64
    }

    /// Says which record this is and where it goes. It has at least one entry.
    ///
    /// `sequence` is higher than that of any record tried before, also of those that failed; `position` comes from
    /// [`LogSpace::reserve`](super::LogSpace::reserve); `previous` is the chain value of the record before, or the superblock's.
    pub fn finish(&mut self, sequence: u64, position: u64, previous: u64) -> Sealed {
        debug_assert!(self.entries > 0);
        let mut header = Header::new(self.entries, self.data_entries);
        (header.epoch, header.sequence, header.position) = (self.epoch, sequence, position);
        (header.previous, header.payload_sum) = (previous, self.payload.digest());
        self.header_len = header.header_len;
        let used = FIXED_BYTES + self.entries * ENTRY_BYTES;
        let seed = self.seed;
        let bytes = self.memory.get_mut(self.start..self.start + header.header_len).unwrap_or_default();
        // What a longer record left behind its entries.
        bytes.get_mut(used..).unwrap_or_default().fill(0);
        header.encode(bytes);
        Sealed { chain: field::seal(seed, bytes), bytes: header.len as u64 }
    }

    /// The header's blocks of the record that was finished: aligned to 4096 bytes, a multiple of 4096 long, and in the same place until the
    /// next `begin`, also when the builder is moved.
    pub fn header(&self) -> &[u8] {
        self.memory.get(self.start..self.start + self.header_len).unwrap_or_default()
    }

    /// Whether one more entry fits, with so many blocks of payload.
    fn has_room(&self, payload: usize) -> bool {
        let bytes = header_bytes(self.entries + 1) + (self.data_entries + payload) * BLOCK_BYTES;
        self.entries < ENTRIES_MAX && bytes <= self.record_bytes_max
    }

    fn push(&mut self, entry: Entry) {
        let at = self.start + FIXED_BYTES + self.entries * ENTRY_BYTES;
        if let Some(place) = self.memory.get_mut(at..at + ENTRY_BYTES) {
            place.copy_from_slice(&entry.encode());
        }
        self.entries += 1;
    }
}
