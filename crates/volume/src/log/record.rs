//! The bytes of a record.

use super::{DATA_ENTRIES_MAX, ENTRIES_MAX, ENTRY_BYTES, FIXED_BYTES, HEADER_BYTES_MAX, RECORD_BYTES_MAX};
use crate::format::field::{Field, MAGIC};
use crate::format::{CAPACITY_BYTES_MAX, COUNTER_MAX, round_up};
use crate::units::{BLOCK_BYTES, SectorMask};

/// The fields of a header, as `docs/formats/volume.md` lists them.
pub(crate) mod at {
    use super::Field;

    pub(crate) const EPOCH: Field = Field::new("epoch", 16, 8);
    pub(crate) const SEQUENCE: Field = Field::new("sequence", 24, 8);
    pub(crate) const POSITION: Field = Field::new("position", 32, 8);
    pub(crate) const PREVIOUS: Field = Field::new("previous", 40, 8);
    pub(crate) const PAYLOAD: Field = Field::new("payload checksum", 48, 8);
    pub(crate) const LENGTH: Field = Field::new("length", 56, 4);
    pub(crate) const HEADER: Field = Field::new("header length", 60, 4);
    pub(crate) const ENTRIES: Field = Field::new("entries", 64, 4);
    pub(crate) const DATA: Field = Field::new("data entries", 68, 4);

    /// Of an entry: the first block that it is about.
    pub(crate) const ENTRY_BLOCK: Field = Field::new("first block", 0, 8);
    /// Of an entry: how many blocks.
    pub(crate) const ENTRY_COUNT: Field = Field::new("blocks", 8, 4);
    /// Of an entry: what becomes of them.
    pub(crate) const ENTRY_KIND: Field = Field::new("kind", 12, 1);
    /// Of an entry: which sectors of each.
    pub(crate) const ENTRY_SECTORS: Field = Field::new("sectors", 13, 1);

    #[cfg(test)]
    pub(crate) const ALL: [Field; 9] = [EPOCH, SEQUENCE, POSITION, PREVIOUS, PAYLOAD, LENGTH, HEADER, ENTRIES, DATA];
    #[cfg(test)]
    pub(crate) const ENTRY: [Field; 4] = [ENTRY_BLOCK, ENTRY_COUNT, ENTRY_KIND, ENTRY_SECTORS];
}

/// What a record begins with.
pub(super) const RECORD_MAGIC: [u8; 8] = *b"VRINGREC";

const KIND_DATA: u8 = 1;
const KIND_ZEROES: u8 = 2;
const BLOCKS_MAX: u64 = CAPACITY_BYTES_MAX / BLOCK_BYTES as u64;

/// What a record says about blocks of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Sectors of one block have new contents.
    Data {
        /// The block.
        block: u64,
        /// Which of its sectors.
        sectors: SectorMask,
        /// Where the block's 4096 bytes lie in the record.
        at: usize,
    },
    /// Blocks read as zeroes.
    Zeroes {
        /// The first one.
        block: u64,
        /// How many.
        count: u32,
    },
}

impl Entry {
    /// The first block behind those that the entry is about.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Entry::Data { block, .. } => block.saturating_add(1),
            Entry::Zeroes { block, count } => block.saturating_add(u64::from(*count)),
        }
    }

    pub(super) fn encode(&self) -> [u8; ENTRY_BYTES] {
        let (block, count, kind, sectors) = match *self {
            Entry::Data { block, sectors, .. } => (block, 1, KIND_DATA, sectors),
            Entry::Zeroes { block, count } => (block, count, KIND_ZEROES, SectorMask::ALL),
        };
        let mut bytes = [0; ENTRY_BYTES];
        at::ENTRY_BLOCK.put_u64(&mut bytes, block);
        at::ENTRY_COUNT.put_u32(&mut bytes, count);
        at::ENTRY_KIND.put(&mut bytes, &[kind]);
        at::ENTRY_SECTORS.put(&mut bytes, &[sectors.0]);
        let payload = if let Entry::Data { at, .. } = *self { at } else { 0 };
        // The pair of what recovery reads.
        debug_assert!(Entry::decode(&bytes, payload).is_none_or(|read| read == *self), "{self:?} reads otherwise");
        bytes
    }

    /// Reads an entry whose payload, if it is one of data, lies at `payload` of its record.
    fn decode(bytes: &[u8], payload: usize) -> Option<Entry> {
        let (block, count) = (at::ENTRY_BLOCK.u64(bytes), at::ENTRY_COUNT.u32(bytes));
        let sectors = SectorMask(at::ENTRY_SECTORS.u8(bytes));
        if block >= BLOCKS_MAX {
            return None;
        }
        match at::ENTRY_KIND.u8(bytes) {
            KIND_DATA if count == 1 && !sectors.is_empty() => Some(Entry::Data { block, sectors, at: payload }),
            KIND_ZEROES if count > 0 && sectors.is_all() => Some(Entry::Zeroes { block, count }),
            _ => None,
        }
    }
}

/// The fixed part of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) epoch: u64,
    pub(super) sequence: u64,
    pub(super) position: u64,
    pub(super) previous: u64,
    pub(super) payload_sum: u64,
    /// Bytes of the record.
    pub(super) len: usize,
    /// Bytes of the header.
    pub(super) header_len: usize,
    entries: usize,
    data_entries: usize,
}

impl Header {
    /// The header of a record with so many entries.
    pub(super) fn new(entries: usize, data_entries: usize) -> Header {
        let header_len = header_bytes(entries);
        let len = header_len + data_entries * BLOCK_BYTES;
        let (epoch, sequence, position, previous, payload_sum) = (0, 0, 0, 0, 0);
        Header { epoch, sequence, position, previous, payload_sum, len, header_len, entries, data_entries }
    }

    /// Writes the fixed part, all but the checksum.
    pub(super) fn encode(&self, block: &mut [u8]) {
        MAGIC.put(block, &RECORD_MAGIC);
        at::EPOCH.put_u64(block, self.epoch);
        at::SEQUENCE.put_u64(block, self.sequence);
        at::POSITION.put_u64(block, self.position);
        at::PREVIOUS.put_u64(block, self.previous);
        at::PAYLOAD.put_u64(block, self.payload_sum);
        at::LENGTH.put_u32(block, self.len as u32);
        at::HEADER.put_u32(block, self.header_len as u32);
        at::ENTRIES.put_u32(block, self.entries as u32);
        at::DATA.put_u32(block, self.data_entries as u32);
        // The pair of what recovery reads.
        debug_assert!(Header::decode(block).is_none_or(|read| read == *self), "{self:?} reads otherwise");
    }

    /// Reads what may be the first block of a record. What is returned has lengths that belong together, within the bounds of
    /// a record; nothing else about it is sure before its checksums have been compared.
    pub(super) fn decode(block: &[u8]) -> Option<Header> {
        if MAGIC.get(block) != RECORD_MAGIC {
            return None;
        }
        let (entries, data_entries) = (at::ENTRIES.u32(block) as usize, at::DATA.u32(block) as usize);
        if !(1..=ENTRIES_MAX).contains(&entries) || data_entries > DATA_ENTRIES_MAX.min(entries) {
            return None;
        }
        let header = Header {
            epoch: at::EPOCH.u64(block),
            sequence: at::SEQUENCE.u64(block),
            position: at::POSITION.u64(block),
            previous: at::PREVIOUS.u64(block),
            payload_sum: at::PAYLOAD.u64(block),
            ..Header::new(entries, data_entries)
        };
        let lengths = header.len == at::LENGTH.u32(block) as usize
            && header.header_len == at::HEADER.u32(block) as usize
            && header.len as u64 <= RECORD_BYTES_MAX;
        (lengths && header.sequence < COUNTER_MAX * 2 && header.position < COUNTER_MAX * 2).then_some(header)
    }

    /// The entries of a record, whose checksums are right.
    pub(super) fn entries(&self, record: &[u8]) -> Result<Vec<Entry>, MalformedRecord> {
        let malformed = || MalformedRecord { sequence: self.sequence, position: self.position };
        let bytes = record.get(FIXED_BYTES..self.header_len).ok_or_else(malformed)?;
        let mut payload = self.header_len;
        let mut entries = Vec::with_capacity(self.entries);
        for entry in bytes.chunks_exact(ENTRY_BYTES).take(self.entries) {
            let entry = Entry::decode(entry, payload).ok_or_else(malformed)?;
            if matches!(entry, Entry::Data { .. }) {
                payload += BLOCK_BYTES;
            }
            entries.push(entry);
        }
        if payload != self.len || entries.len() != self.entries {
            return Err(malformed());
        }
        Ok(entries)
    }
}

/// Bytes of the header of a record with so many entries: whole blocks.
pub(super) fn header_bytes(entries: usize) -> usize {
    (round_up((FIXED_BYTES + entries * ENTRY_BYTES) as u64, BLOCK_BYTES as u64) as usize).min(HEADER_BYTES_MAX)
}

/// record {sequence} at position {position} of the log is whole, and yet says what cannot be: something else wrote it, or the memory of the machine is bad; restore the volume from a backup, or go on without what its log holds from there on (`vringd volume replay --discard-unreadable`)
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct MalformedRecord {
    /// Its sequence.
    pub sequence: u64,
    /// Where it begins.
    pub position: u64,
}
