//! For tests: a volume in memory, and who writes its log as a committer does, one record after the other.

use crate::blocks::{Blocks, Progress};
use crate::format::{CreateOptions, EXTERNAL_LOG_OFFSET, Region, Superblock, Tail, Uuid, create};
use crate::log::{LogSpace, RecordBuilder, Sealed};
use crate::ram::Ram;
use crate::units::{BLOCK_BYTES, SectorMask};

/// Bytes of the logs here.
pub(crate) const LOG_BYTES: u64 = 64 << 10;
/// Blocks of the disks here, whose last one is not whole.
pub(crate) const BLOCKS: u64 = 64;
/// Bytes of the disks here.
pub(crate) const CAPACITY_BYTES: u64 = BLOCKS * BLOCK_BYTES as u64 - 1024;

pub(crate) fn quiet() -> impl FnMut(Progress) {
    |_| {}
}

/// A new volume, and its log if that has a storage of its own.
pub(crate) fn volume(external: bool) -> (Ram, Option<Ram>, Superblock) {
    let options = CreateOptions {
        capacity_bytes: CAPACITY_BYTES,
        log_bytes: LOG_BYTES,
        volume: Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
        log: Uuid::from_u128(0xfedc_ba98_7654_3210_fedc_ba98_7654_3210),
        log_path: external.then(|| "/dev/fast".to_string()),
        apart: false,
        created_by: "vringd".to_string(),
    };
    let mut data = Ram::new(options.storage_bytes().expect("possible") as usize);
    let mut log = external.then(|| Ram::new((EXTERNAL_LOG_OFFSET + LOG_BYTES) as usize));
    let superblock = create(&mut data, storage(&mut log), &options, &mut quiet()).expect("made");
    (data, log, superblock)
}

/// The log's own storage as functions take it.
pub(crate) fn storage<B: Blocks>(log: &mut Option<B>) -> Option<&mut dyn Blocks> {
    match log {
        Some(log) => Some(log),
        None => None,
    }
}

/// What a record says about blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// The block's sectors are full of `fill`.
    Data {
        block: u64,
        sectors: SectorMask,
        fill: u8,
    },
    Zeroes {
        block: u64,
        count: u32,
    },
}

/// Writes a log.
pub(crate) struct Writer {
    builder: RecordBuilder,
    pub(crate) space: LogSpace,
    region: Region,
    /// Where the next record goes, but for the end of a lap.
    pub(crate) next: Tail,
}

/// A record that is built and has its place.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    pub(crate) bytes: Vec<u8>,
    pub(crate) header_len: usize,
    /// Offset in the log's storage.
    pub(crate) offset: u64,
}

impl Writer {
    pub(crate) fn new(superblock: &Superblock) -> Writer {
        let (len, next) = (superblock.log.len, superblock.tail);
        let space = LogSpace::new(len, next.position, next.position);
        Writer {
            builder: RecordBuilder::new(&superblock.log.uuid, superblock.epoch, space.record_bytes_max()),
            space,
            region: Region { offset: superblock.log.offset, len },
            next,
        }
    }

    /// Builds the next record out of as many changes as it takes, and gives it its place; `None` when the log is full.
    pub(crate) fn build(&mut self, changes: &[Change]) -> Option<Built> {
        self.builder.begin();
        let mut payload = Vec::new();
        for change in changes {
            let fits = match *change {
                Change::Data { block, sectors, fill } => {
                    // What lies outside the sectors is of no importance, and must be passed over.
                    let mut bytes = [!fill; BLOCK_BYTES];
                    for (first, count) in sectors.runs() {
                        bytes[first * 512..(first + count) * 512].fill(fill);
                    }
                    let fits = self.builder.data(block, sectors, &bytes);
                    if fits {
                        payload.extend_from_slice(&bytes);
                    }
                    fits
                }
                Change::Zeroes { block, count } => self.builder.zeroes(block, count),
            };
            if !fits {
                break;
            }
        }
        let bytes = self.builder.bytes();
        let (position, next) = self.space.reserve(bytes)?;
        let Sealed { chain, bytes: sealed } = self.builder.finish(self.next.sequence, position, self.next.chain);
        assert_eq!(sealed, bytes);
        let header = self.builder.header();
        assert!(header.as_ptr().addr().is_multiple_of(BLOCK_BYTES));
        let record = [header, &payload[..]].concat();
        assert_eq!(record.len() as u64, bytes);
        self.next = Tail { position: next, sequence: self.next.sequence + 1, chain };
        let offset = self.region.offset + position % self.region.len;
        Some(Built { bytes: record, header_len: header.len(), offset })
    }

    /// Builds a record and writes it; whether there was room.
    pub(crate) fn commit(&mut self, log: &mut dyn Blocks, changes: &[Change]) -> Option<Built> {
        let built = self.build(changes)?;
        log.write_at(built.offset, &built.bytes).expect("written");
        Some(built)
    }

    /// The records since `before` have failed: the next one takes their place, with a later sequence.
    pub(crate) fn rewind(&mut self, before: Tail) {
        self.space.rewind(before.position);
        self.next = Tail { sequence: self.next.sequence, ..before };
    }
}
