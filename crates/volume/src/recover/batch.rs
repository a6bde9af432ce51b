//! Part of a log in memory, and how it gets to the disk.

use super::index::{Index, Source};
use crate::blocks::{Blocks, RUN_BYTES};
use crate::log::{Entry, Record};
use crate::units::{BLOCK_BYTES, SECTOR_BYTES, SECTORS_PER_BLOCK};
use std::io;

/// Bytes of records in a batch, plus the last record.
const BATCH_BYTES: usize = 64 << 20;
/// Pieces of the disk in a batch, plus those of the last record.
const BATCH_PIECES: usize = 1 << 19;

/// Records that are written back together, each sector once. With its bounds a batch takes less than 128 MiB, however long the log is and
/// whatever it says.
#[derive(Default)]
pub(super) struct Batch {
    records: Vec<Vec<u8>>,
    bytes: usize,
    index: Index,
}

/// What a batch has written.
#[derive(Clone, Copy, Default)]
pub(super) struct Written {
    pub(super) data_bytes: u64,
    pub(super) zeroed_bytes: u64,
}

impl Batch {
    /// Takes a record in; what it says is newer than all that is in the batch.
    pub(super) fn add(&mut self, record: Record) {
        let number = self.records.len() as u32;
        for entry in &record.entries {
            match *entry {
                Entry::Data { block, sectors, at } => {
                    for (first, count) in sectors.runs() {
                        let sector = block.saturating_mul(SECTORS_PER_BLOCK as u64) + first as u64;
                        let at = (at + first * SECTOR_BYTES) as u32;
                        self.index.insert(sector, sector + count as u64, Source::Record { record: number, at });
                    }
                }
                Entry::Zeroes { block, .. } => {
                    let sector = |block: u64| block.saturating_mul(SECTORS_PER_BLOCK as u64);
                    self.index.insert(sector(block), sector(entry.end()), Source::Zeroes);
                }
            }
        }
        self.bytes += record.bytes.len();
        self.records.push(record.bytes);
    }

    /// Whether it is time to write.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES || self.index.len() >= BATCH_PIECES
    }

    /// Writes everything to the disk that begins at `data_offset`, in the disk's order, and is empty then.
    ///
    /// # Errors
    /// What the storage says, with the offset.
    pub(super) fn write(&mut self, data: &mut dyn Blocks, data_offset: u64) -> Result<Written, (u64, io::Error)> {
        let mut out = Out { data, written: Written::default(), offset: 0, run: Run::Data(Vec::new()) };
        for (first, end, source) in self.index.iter() {
            let offset = data_offset + first * SECTOR_BYTES as u64;
            let len = (end - first) * SECTOR_BYTES as u64;
            match source {
                Source::Zeroes => out.zeroes(offset, len)?,
                Source::Record { record, at } => {
                    let at = at as usize;
                    let record = self.records.get(record as usize).map(Vec::as_slice).unwrap_or_default();
                    // Checked when the record was read: a piece lies within one block of its payload.
                    debug_assert!(len <= BLOCK_BYTES as u64 && at + len as usize <= record.len());
                    out.data(offset, record.get(at..at + len as usize).unwrap_or_default())?;
                }
            }
        }
        out.end()?;
        let written = out.written;
        self.index.clear();
        self.records.clear();
        self.bytes = 0;
        Ok(written)
    }
}

/// What is gathered for one operation.
enum Run {
    Data(Vec<u8>),
    Zeroes(u64),
}

/// Makes long operations of neighbouring pieces.
struct Out<'a> {
    data: &'a mut dyn Blocks,
    written: Written,
    /// Where the run begins.
    offset: u64,
    run: Run,
}

impl Out<'_> {
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), (u64, io::Error)> {
        if let Run::Data(run) = &mut self.run
            && !run.is_empty()
            && self.offset + run.len() as u64 == offset
            && run.len() + bytes.len() <= RUN_BYTES
        {
            run.extend_from_slice(bytes);
            return Ok(());
        }
        self.end()?;
        self.offset = offset;
        match &mut self.run {
            Run::Data(run) => run.extend_from_slice(bytes),
            Run::Zeroes(_) => self.run = Run::Data(bytes.to_vec()),
        }
        Ok(())
    }

    fn zeroes(&mut self, offset: u64, len: u64) -> Result<(), (u64, io::Error)> {
        if let Run::Zeroes(run) = &mut self.run
            && self.offset + *run == offset
        {
            *run += len;
            return Ok(());
        }
        self.end()?;
        (self.offset, self.run) = (offset, Run::Zeroes(len));
        Ok(())
    }

    /// Writes what was gathered.
    fn end(&mut self) -> Result<(), (u64, io::Error)> {
        let offset = self.offset;
        match &mut self.run {
            Run::Data(run) => {
                if !run.is_empty() {
                    self.data.write_at(offset, run).map_err(|error| (offset, error))?;
                    self.written.data_bytes += run.len() as u64;
                    run.clear();
                }
            }
            Run::Zeroes(len) => {
                if *len > 0 {
                    self.data.zero_at(offset, *len).map_err(|error| (offset, error))?;
                    self.written.zeroed_bytes += *len;
                    *len = 0;
                }
            }
        }
        Ok(())
    }
}
