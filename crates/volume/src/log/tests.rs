//! What is written is read, and nothing else is.

use super::{End, Entry, RecordBuilder, Scan};
use crate::blocks::Blocks;
use crate::format::{Superblock, Uuid};
use crate::ram::Ram;
use crate::testing::{Change, LOG_BYTES, Writer, volume};
use crate::units::{BLOCK_BYTES, SectorMask};
use proptest::prelude::*;

/// A log of its own, as a volume has it that was opened once.
fn log() -> (Ram, Superblock) {
    let (_, log, mut superblock) = volume(true);
    (superblock.epoch, superblock.clean) = (1, false);
    (log.expect("external"), superblock)
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0u64..60, 1u8.., any::<u8>())
            .prop_map(|(block, sectors, fill)| Change::Data { block, sectors: SectorMask(sectors), fill }),
        1 => (0u64..60, 1u32..5).prop_map(|(block, count)| Change::Zeroes { block, count }),
    ]
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(change(), 1..4)
}

/// The records from the superblock's tail on: sequences and entries.
fn read(log: &mut dyn Blocks, superblock: &Superblock) -> (Vec<(u64, Vec<Entry>)>, End) {
    let mut scan = Scan::new(superblock);
    let mut records = Vec::new();
    while let Some(record) = scan.record(log).expect("readable") {
        records.push((record.sequence, record.entries));
    }
    let end = scan.end(log);
    (records, end)
}

/// What a reader should find of changes; neighbouring runs of zeroes are one.
fn expected(changes: &[Change], header_len: usize) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut at = header_len;
    for change in changes {
        match (*change, entries.last_mut()) {
            (Change::Data { block, sectors, .. }, _) => {
                entries.push(Entry::Data { block, sectors, at });
                at += BLOCK_BYTES;
            }
            (Change::Zeroes { block, count }, Some(Entry::Zeroes { block: first, count: length }))
                if *first + u64::from(*length) == block =>
            {
                *length += count;
            }
            (Change::Zeroes { block, count }, _) => entries.push(Entry::Zeroes { block, count }),
        }
    }
    entries
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Around the log many times, with a checkpoint wherever it is full: always what was written since the last one.
    #[test]
    fn laps_are_read_back(records in prop::collection::vec(changes(), 1..80)) {
        let (mut log, mut superblock) = log();
        let mut writer = Writer::new(&superblock);
        let mut since = Vec::new();
        for changes in &records {
            let before = writer.next;
            let built = match writer.commit(&mut log, changes) {
                Some(built) => built,
                None => {
                    superblock.tail = before;
                    writer.space.release(before.position);
                    since.clear();
                    writer.commit(&mut log, changes).expect("an empty log takes any record")
                }
            };
            since.push((before.sequence, expected(changes, built.header_len)));
            let (found, end) = read(&mut log, &superblock);
            prop_assert_eq!(&found, &since);
            prop_assert_eq!(end, End::Blank);
        }
    }

    /// One wrong bit anywhere in a record ends the log before it; what comes before is read.
    #[test]
    fn a_flipped_bit_is_noticed(
        records in prop::collection::vec(changes(), 1..4), which: prop::sample::Index, bit: prop::sample::Index
    ) {
        let (mut log, superblock) = log();
        let mut writer = Writer::new(&superblock);
        let built: Vec<_> = records.iter().map(|changes| writer.commit(&mut log, changes).expect("room")).collect();
        let which = which.index(built.len());
        let bit = bit.index(built[which].bytes.len() * 8);
        log.0[built[which].offset as usize + bit / 8] ^= 1 << (bit % 8);
        let (found, end) = read(&mut log, &superblock);
        prop_assert_eq!(found.len(), which);
        // In the last record, what says whose it is may be what is wrong.
        prop_assert!(end == End::Torn || which + 1 == built.len());
    }

    /// A record that arrived in part, its sectors old and new in any mixture, is none; what was in its place is none either.
    #[test]
    fn a_torn_record_is_none(
        laps in prop::collection::vec(changes(), 0..30), last in changes(), arrived in prop::collection::vec(any::<bool>(), 64)
    ) {
        let (mut log, mut superblock) = log();
        let mut writer = Writer::new(&superblock);
        for changes in laps.iter().chain([&last]) {
            superblock.tail = writer.next;
            writer.space.release(writer.next.position);
            let old = log.clone();
            let built = writer.commit(&mut log, changes).expect("room");
            let (mut torn, mut whole) = (log.clone(), true);
            for (sector, arrived) in arrived.iter().enumerate().take(built.bytes.len() / 512) {
                if !arrived {
                    let at = built.offset as usize + sector * 512;
                    whole &= old.0[at..at + 512] == log.0[at..at + 512];
                    torn.0[at..at + 512].copy_from_slice(&old.0[at..at + 512]);
                }
            }
            prop_assert_eq!(read(&mut torn, &superblock).0.len(), usize::from(whole));
        }
    }

    /// Attempts that failed and are on the disk all the same are nothing once another one has taken their place.
    #[test]
    fn what_failed_does_not_come_back(
        // Rounds of: attempts that fail, how many of their records arrive, and what comes instead.
        rounds in prop::collection::vec((prop::collection::vec(changes(), 1..4), any::<u8>(), changes()), 1..20),
        start in 0u64..16,
    ) {
        let (mut log, mut superblock) = log();
        superblock.tail.position = start * BLOCK_BYTES as u64;
        let mut writer = Writer::new(&superblock);
        let mut since = Vec::new();
        for (failing, arrived, instead) in &rounds {
            let before = writer.next;
            for (number, changes) in failing.iter().enumerate() {
                if let Some(built) = writer.build(changes)
                    && arrived >> number & 1 != 0
                {
                    log.write_at(built.offset, &built.bytes).expect("written");
                }
            }
            writer.rewind(before);
            let sequence = writer.next.sequence;
            let built = match writer.commit(&mut log, instead) {
                Some(built) => built,
                None => {
                    superblock.tail = writer.next;
                    writer.space.release(writer.next.position);
                    since.clear();
                    writer.commit(&mut log, instead).expect("an empty log takes any record")
                }
            };
            since.push((sequence, expected(instead, built.header_len)));
            prop_assert_eq!(&read(&mut log, &superblock).0, &since);
        }
        // Nor does it when a checkpoint has moved the tail to where it lies.
        superblock.tail = writer.next;
        prop_assert_eq!(read(&mut log, &superblock).0, vec![]);
    }
}

#[test]
fn records_of_another_opening_or_another_log_are_none() {
    let (mut storage, superblock) = log();
    let mut writer = Writer::new(&superblock);
    let change = [Change::Zeroes { block: 3, count: 2 }];
    writer.commit(&mut storage, &change).expect("room");
    assert_eq!(read(&mut storage, &superblock).0.len(), 1);
    let mut later = superblock.clone();
    later.epoch += 1;
    assert_eq!(read(&mut storage, &later), (vec![], End::Blank));
    let mut other = superblock.clone();
    other.log.uuid = Uuid::from_u128(5);
    assert_eq!(read(&mut storage, &other), (vec![], End::Torn));
    let mut ahead = superblock.clone();
    ahead.tail.sequence += 1;
    assert_eq!(read(&mut storage, &ahead).0, vec![]);
}

#[test]
fn whole_records_behind_a_damaged_one_are_counted() {
    let (mut log, superblock) = log();
    let mut writer = Writer::new(&superblock);
    let change = [Change::Data { block: 1, sectors: SectorMask::ALL, fill: 7 }];
    let built: Vec<_> = (0..6).map(|_| writer.commit(&mut log, &change).expect("room")).collect();
    let damage = |log: &Ram, record: usize| {
        let mut log = log.clone();
        log.0[built[record].offset as usize + 5000] ^= 0x10;
        log
    };
    assert_eq!(read(&mut log, &superblock).1, End::Blank);
    // As a cut leaves it: the first of those in flight did not arrive.
    assert_eq!(read(&mut damage(&log, 2), &superblock).1, End::Torn);
    // Five records behind it cannot have been in flight with it.
    let (found, end) = read(&mut damage(&log, 0), &superblock);
    assert_eq!((found.len(), end), (0, End::Damaged { stranded: 5 }));
}

#[test]
fn a_full_record_says_so_and_is_read_back() {
    let mut builder = RecordBuilder::new(&Uuid::from_u128(1), 1, super::RECORD_BYTES_MAX);
    builder.begin();
    assert!(builder.is_empty());
    let payload = [0; BLOCK_BYTES];
    let taken = (0..2000).take_while(|block| builder.data(block * 3, SectorMask::ALL, &payload)).count();
    assert_eq!(taken, super::DATA_ENTRIES_MAX);
    // Every second block: none of these is a neighbour of the one before.
    let behind = |run: usize| 10_000 + run as u64 * 2;
    let runs = (0..2000).take_while(|&run| builder.zeroes(behind(run), 1)).count();
    assert_eq!(taken + runs, super::ENTRIES_MAX);
    // A run that goes on needs no room.
    assert!(builder.zeroes(behind(runs - 1) + 1, u32::MAX - 1));
    assert!(!builder.zeroes(behind(runs - 1) + u64::from(u32::MAX), 1), "a run is longer than its field");
    assert!(builder.bytes() <= super::RECORD_BYTES_MAX);
    assert_eq!(builder.bytes(), 4 * 4096 + 1000 * 4096);

    // The longest record of a small log, at the end of a lap.
    let (mut log, mut superblock) = log();
    superblock.tail.position = 15 * BLOCK_BYTES as u64;
    let mut writer = Writer::new(&superblock);
    let many: Vec<_> =
        (0..9).map(|block| Change::Data { block: block * 2, sectors: SectorMask::ALL, fill: 1 }).collect();
    let built = writer.commit(&mut log, &many).expect("room");
    // Where a lap begins.
    assert_eq!((built.offset, built.bytes.len() as u64), (superblock.log.offset, LOG_BYTES / 4));
    let (found, _) = read(&mut log, &superblock);
    assert_eq!(found, vec![(1, expected(&many[..3], 4096))]);
}

#[test]
fn unreadable_storage_ahead_is_no_matter_and_at_a_record_is() {
    /// A storage that cannot be read from an offset on.
    struct Bad(Ram, u64);
    impl Blocks for Bad {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
            if offset + buf.len() as u64 > self.1 {
                return Err(std::io::Error::from_raw_os_error(5));
            }
            self.0.read_at(offset, buf)
        }
        fn write_at(&mut self, offset: u64, buf: &[u8]) -> std::io::Result<()> {
            self.0.write_at(offset, buf)
        }
        fn zero_at(&mut self, offset: u64, len: u64) -> std::io::Result<()> {
            self.0.zero_at(offset, len)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (mut log, superblock) = log();
    let mut writer = Writer::new(&superblock);
    let change = [Change::Zeroes { block: 3, count: 2 }];
    writer.commit(&mut log, &change).expect("room");
    let end = superblock.log.offset + writer.next.position + BLOCK_BYTES as u64;
    let mut scan = Scan::new(&superblock);
    let mut bad = Bad(log, end);
    assert!(scan.record(&mut bad).expect("readable").is_some());
    assert!(scan.record(&mut bad).expect("readable").is_none());
    let mut scan = Scan::new(&superblock);
    bad.1 = superblock.log.offset;
    let error = scan.record(&mut bad).expect_err("nothing can be read");
    assert!(error.to_string().starts_with("cannot read the log at byte 4096 of its storage: "), "{error}");
}
