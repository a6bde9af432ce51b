//! Reads a log's records back, from the superblock's tail to where they end.

use super::record::{Entry, Header, MalformedRecord};
use super::{IN_FLIGHT_MAX, RECORD_BYTES_MAX};
use crate::blocks::{Blocks, RUN_BYTES};
use crate::format::field::{self, CHECKSUM};
use crate::format::{Region, Superblock, Tail};
use crate::units::BLOCK_BYTES;
use std::io;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How far behind the end of the log whole records are looked for: twice what can be in flight.
const BEYOND_BYTES: u64 = 2 * IN_FLIGHT_MAX as u64 * RECORD_BYTES_MAX;

/// How a log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum End {
    /// Behind the last record nothing was written since the volume was opened.
    Blank,
    /// Behind the last record is part of another one: what a power cut leaves of a commit that nobody was told of.
    Torn,
    /// More whole records follow than can have been in flight at a cut, so one that had been complete is damaged: its
    /// contents and theirs are lost, flushed or not.
    Damaged {
        /// How many whole records are known to follow.
        stranded: u32,
    },
    /// It could not be read, or said what cannot be, and somebody who was told has given up what follows, flushed or not.
    GivenUp {
        /// Where, in bytes of all laps of the log.
        position: u64,
    },
}

/// Why a log cannot be read to its end.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum ScanError {
    /// cannot read the log at byte {offset} of its storage: {source}; `vringd volume replay --discard-unreadable` goes on without what is there and behind it
    Io {
        /// Where.
        offset: u64,
        /// The storage's answer.
        source: io::Error,
    },
    /// {0}
    Record(#[from] MalformedRecord),
}

/// A record whose checksums are right and which follows the one before.
#[derive(Debug)]
pub(crate) struct Record {
    /// All its bytes.
    pub(crate) bytes: Vec<u8>,
    /// What it says.
    pub(crate) entries: Vec<Entry>,
    pub(crate) sequence: u64,
    pub(crate) position: u64,
    chain: u64,
}

impl Record {
    /// Whether an entry lies beyond a disk of `blocks`.
    pub(crate) fn leaves(&self, blocks: u64) -> bool {
        self.entries.iter().any(|entry| entry.end() > blocks)
    }

    pub(crate) fn malformed(&self) -> MalformedRecord {
        MalformedRecord { sequence: self.sequence, position: self.position }
    }
}

/// What is at a place where the next record may be.
enum Candidate {
    Whole(Record),
    Torn,
    Nothing,
}

/// A reader of a log. It goes once around the region at most, and keeps one record and 1 MiB.
pub(crate) struct Scan {
    region: Region,
    seed: u64,
    epoch: u64,
    start: u64,
    next: Tail,
    torn: bool,
    window: Window,
    /// The start of a lap, by its position, and what was found there: it is asked for with every record.
    lap: Option<(u64, Option<Header>)>,
}

impl Scan {
    pub(crate) fn new(superblock: &Superblock) -> Scan {
        Scan {
            region: Region { offset: superblock.log.offset, len: superblock.log.len },
            seed: superblock.log.seed(),
            epoch: superblock.epoch,
            start: superblock.tail.position,
            next: superblock.tail,
            torn: false,
            window: Window::default(),
            lap: None,
        }
    }

    /// The next record; `None` at the end.
    ///
    /// It is where the one before ends, or, if it did not fit there, where the next lap begins. Both places can hold a record that
    /// follows: one of them failed when it was written and was tried again, and the higher sequence tells which is the later.
    pub(crate) fn record(&mut self, log: &mut dyn Blocks) -> Result<Option<Record>, ScanError> {
        let position = self.next.position;
        let header = Header::decode(self.window.read(log, &self.region, position % self.region.len, BLOCK_BYTES)?);
        let here = self.candidate(log, position, header)?;
        let there = if position.is_multiple_of(self.region.len) {
            Candidate::Nothing
        } else {
            let lap = position - position % self.region.len + self.region.len;
            let header = self.lap_start(log, lap)?;
            self.candidate(log, lap, header)?
        };
        self.torn = matches!(here, Candidate::Torn) || matches!(there, Candidate::Torn);
        let record = match (here, there) {
            (Candidate::Whole(here), Candidate::Whole(there)) => {
                Some(if there.sequence > here.sequence { there } else { here })
            }
            (Candidate::Whole(record), _) | (_, Candidate::Whole(record)) => Some(record),
            _ => None,
        };
        if let Some(record) = &record {
            let position = record.position + record.bytes.len() as u64;
            self.next = Tail { position, sequence: record.sequence + 1, chain: record.chain };
        }
        Ok(record)
    }

    /// Where the log goes on: behind the last record read.
    pub(crate) fn tail(&self) -> Tail {
        self.next
    }

    /// Bytes from the tail up to here.
    pub(crate) fn bytes(&self) -> u64 {
        self.next.position - self.start
    }

    /// How the log ends, after the last record: looks at what lies behind, as far as it can be read. Nothing there is replayed, and
    /// what a power cut has left of a write may be unreadable.
    pub(crate) fn end(&mut self, log: &mut dyn Blocks) -> End {
        let from = self.next.position;
        let to = (self.start + self.region.len).min(from + BEYOND_BYTES);
        let mut position = from + BLOCK_BYTES as u64;
        let mut stranded = 0;
        while position + BLOCK_BYTES as u64 <= to {
            position += match self.stranded(log, position) {
                Ok(Some(len)) => {
                    stranded += 1;
                    len
                }
                Ok(None) => BLOCK_BYTES as u64,
                Err(_) => break,
            };
        }
        // The first that failed may be in flight with all but one of these.
        match stranded {
            _ if stranded as usize >= IN_FLIGHT_MAX => End::Damaged { stranded },
            0 if !self.torn => End::Blank,
            _ => End::Torn,
        }
    }

    /// The length of a record at `position` that is later than the last one read and whose header is whole.
    fn stranded(&mut self, log: &mut dyn Blocks, position: u64) -> Result<Option<u64>, ScanError> {
        let offset = position % self.region.len;
        let header = Header::decode(self.window.read(log, &self.region, offset, BLOCK_BYTES)?);
        let Some(header) = header.filter(|header| self.may_follow(header, position)) else {
            return Ok(None);
        };
        let bytes = self.window.read(log, &self.region, offset, header.header_len)?;
        Ok(field::is_sealed(self.seed, bytes).then_some(header.len as u64))
    }

    /// Whether a header says that it is one of this opening, at `position`, not before the next sequence, and that its record
    /// lies in one lap and does not reach the tail.
    fn may_follow(&self, header: &Header, position: u64) -> bool {
        let len = header.len as u64;
        header.epoch == self.epoch
            && header.position == position
            && header.sequence >= self.next.sequence
            && position % self.region.len + len <= self.region.len
            && position + len - self.start <= self.region.len
    }

    fn lap_start(&mut self, log: &mut dyn Blocks, lap: u64) -> Result<Option<Header>, ScanError> {
        if let Some((position, header)) = self.lap
            && position == lap
        {
            return Ok(header);
        }
        let mut block = vec![0; BLOCK_BYTES];
        let offset = self.region.offset;
        log.read_at(offset, &mut block).map_err(|source| ScanError::Io { offset, source })?;
        let header = Header::decode(&block);
        self.lap = Some((lap, header));
        Ok(header)
    }

    /// What is at `position`, which begins with `header`.
    fn candidate(
        &mut self,
        log: &mut dyn Blocks,
        position: u64,
        header: Option<Header>,
    ) -> Result<Candidate, ScanError> {
        let Some(header) = header.filter(|header| self.may_follow(header, position)) else {
            return Ok(Candidate::Nothing);
        };
        if header.previous != self.next.chain {
            return Ok(Candidate::Torn);
        }
        let bytes = self.window.read(log, &self.region, position % self.region.len, header.len)?.to_vec();
        let (head, payload) = bytes.split_at(header.header_len.min(bytes.len()));
        // The header counts as it was read with the rest, not as it was when it was looked at first.
        let whole = Header::decode(head) == Some(header)
            && field::is_sealed(self.seed, head)
            && xxh3_64_with_seed(payload, self.seed) == header.payload_sum;
        if !whole {
            return Ok(Candidate::Torn);
        }
        let entries = header.entries(&bytes)?;
        let chain = CHECKSUM.u64(head);
        Ok(Candidate::Whole(Record { entries, sequence: header.sequence, position, chain, bytes }))
    }
}

/// What was read of the log last, some of it ahead.
#[derive(Default)]
struct Window {
    /// Offset in the region.
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// `len` bytes at `offset` of the region, inside which they lie.
    fn read(&mut self, log: &mut dyn Blocks, region: &Region, offset: u64, len: usize) -> Result<&[u8], ScanError> {
        if self.place(offset, len).is_none() {
            let room = region.len.saturating_sub(offset);
            let ahead = (RUN_BYTES.max(len) as u64).min(room) as usize;
            let place = region.offset + offset;
            self.start = offset;
            self.bytes.resize(ahead, 0);
            if log.read_at(place, &mut self.bytes).is_err() {
                // What is ahead may be of no interest, and unreadable.
                self.bytes.resize(len, 0);
                let read = log.read_at(place, &mut self.bytes);
                if let Err(source) = read {
                    self.bytes.clear();
                    return Err(ScanError::Io { offset: place, source });
                }
            }
        }
        let place = self.place(offset, len).unwrap_or_default();
        Ok(self.bytes.get(place).unwrap_or_default())
    }

    fn place(&self, offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let to = from.checked_add(len)?;
        (to <= self.bytes.len()).then_some(from..to)
    }
}
