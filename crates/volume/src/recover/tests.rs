//! Recovery against a model of the disk, and cut off anywhere.

use super::{RecoverError, Recovered, recover, salvage};
use crate::blocks::Blocks;
use crate::check::check;
use crate::format::{FormatError, Superblock, close, read_superblock, write_superblock};
use crate::log::End;
use crate::ram::Ram;
use crate::testing::{BLOCKS, CAPACITY_BYTES, Change, Writer, quiet, storage, volume};
use crate::units::{BLOCK_BYTES, SectorMask};
use proptest::prelude::*;
use std::io;

/// What one storage was told, in order.
#[derive(Clone, Debug)]
enum Event {
    Write { offset: usize, bytes: Vec<u8> },
    Flush,
}

/// A storage that writes down what it is told.
struct Tape<'a> {
    ram: &'a mut Ram,
    events: Vec<Event>,
}

impl Blocks for Tape<'_> {
    fn len(&self) -> u64 {
        self.ram.len()
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.ram.read_at(offset, buf)
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.events.push(Event::Write { offset: offset as usize, bytes: buf.to_vec() });
        self.ram.write_at(offset, buf)
    }

    fn zero_at(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.write_at(offset, &vec![0; len as usize])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.events.push(Event::Flush);
        Ok(())
    }
}

/// What a power cut leaves of `before` after `events`: all that was flushed, and of the rest the sectors that `arrives` says.
fn cut(before: &Ram, events: &[Event], mut arrives: impl FnMut() -> bool) -> Ram {
    let mut after = before.clone();
    let flushed = events.iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or_default();
    for (number, event) in events.iter().enumerate() {
        let Event::Write { offset, bytes } = event else {
            continue;
        };
        for (sector, bytes) in bytes.chunks(512).enumerate() {
            if number < flushed || arrives() {
                let at = offset + sector * 512;
                after.0[at..at + 512].copy_from_slice(bytes);
            }
        }
    }
    after
}

fn apply(disk: &mut [u8], change: &Change) {
    match *change {
        Change::Data { block, sectors, fill } => {
            for (first, count) in sectors.runs() {
                let at = block as usize * BLOCK_BYTES + first * 512;
                disk[at..at + count * 512].fill(fill);
            }
        }
        Change::Zeroes { block, count } => {
            let at = block as usize * BLOCK_BYTES;
            disk[at..at + count as usize * BLOCK_BYTES].fill(0);
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0..BLOCKS, prop_oneof![Just(0xff), 1u8..], 1u8..)
            .prop_map(|(block, sectors, fill)| Change::Data { block, sectors: SectorMask(sectors), fill }),
        1 => (0..BLOCKS, 1u32..9)
            .prop_map(|(block, count)| Change::Zeroes { block, count: count.min((BLOCKS - block) as u32) }),
    ]
}

/// A volume that was served and lost power.
#[derive(Clone, Debug)]
struct Crashed {
    data: Ram,
    log: Option<Ram>,
    /// The disk's blocks as they are to be.
    disk: Vec<u8>,
    superblock: Superblock,
    records: u64,
}

impl Crashed {
    fn disk_of(&self, data: &Ram) -> Vec<u8> {
        data.0[self.superblock.data_offset as usize..][..self.disk.len()].to_vec()
    }
}

/// Opens a volume and commits; where the log is full, or where `sweeps` says, writes the disk back and moves the tail.
fn crashed() -> impl Strategy<Value = Crashed> {
    let commits = prop::collection::vec((prop::collection::vec(change(), 1..4), prop::bool::weighted(0.1)), 0..40);
    (any::<bool>(), commits).prop_map(|(external, commits)| {
        let (mut data, mut log, _) = volume(external);
        let opened = recover(&mut data, storage(&mut log), &mut quiet()).expect("opens");
        let mut superblock = opened.superblock;
        let mut disk = vec![0; BLOCKS as usize * BLOCK_BYTES];
        let mut writer = Writer::new(&superblock);
        let mut records = 0;
        for (changes, sweep) in commits {
            let mut committed = false;
            while !committed {
                committed = match &mut log {
                    Some(log) => writer.commit(log, &changes).is_some(),
                    None => writer.commit(&mut data, &changes).is_some(),
                };
                if committed {
                    records += 1;
                    changes.iter().for_each(|change| apply(&mut disk, change));
                }
                if sweep || !committed {
                    data.write_at(superblock.data_offset, &disk).expect("written");
                    superblock.tail = writer.next;
                    write_superblock(&mut data, &mut superblock).expect("written");
                    writer.space.release(writer.next.position);
                    records = 0;
                }
            }
        }
        Crashed { data, log, disk, superblock, records }
    })
}

/// Cheap randomness for which sectors arrive.
fn coin(mut state: u64) -> impl FnMut() -> bool {
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 63 != 0
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_disk_is_what_was_committed(crashed in crashed()) {
        let Crashed { mut data, mut log, .. } = crashed.clone();
        let report = check(&mut data, storage(&mut log), &mut quiet());
        prop_assert!(report.is_sound(), "{report:?}");
        prop_assert_eq!(&data, &crashed.data, "an examination changes nothing");
        prop_assert_eq!(report.needs_replay(), crashed.records > 0);

        let mut last = 0;
        let recovered = recover(&mut data, storage(&mut log), &mut |progress| last = progress.done_bytes).expect("recovers");
        prop_assert_eq!(crashed.disk_of(&data), &crashed.disk[..]);
        prop_assert_eq!((recovered.records, recovered.log_bytes), (crashed.records, last));
        prop_assert_eq!(report.log.map(|log| (log.records, log.log_bytes, log.end)), Some((recovered.records, last, End::Blank)));
        prop_assert_eq!(&read_superblock(&mut data).expect("read"), &recovered.superblock);
        prop_assert_eq!(recovered.superblock.epoch, crashed.superblock.epoch + 1);

        // Nothing is left to do.
        let after = data.clone();
        let again = recover(&mut data, storage(&mut log), &mut quiet()).expect("recovers");
        prop_assert_eq!((again.records, again.data_bytes, again.zeroed_bytes), (0, 0, 0));
        prop_assert_eq!(crashed.disk_of(&data), crashed.disk_of(&after));
    }

    /// Power goes at any point of recovery, and again at any point of that one's recovery.
    #[test]
    fn recovery_may_be_cut_anywhere(crashed in crashed(), seed: u64) {
        let mut whole = crashed.data.clone();
        let mut log = crashed.log.clone();
        let mut tape = Tape { ram: &mut whole, events: Vec::new() };
        recover(&mut tape, storage(&mut log), &mut quiet()).expect("recovers");
        let events = tape.events;
        let mut arrives = coin(seed);
        for cut_at in 0..=events.len() {
            let mut first = cut(&crashed.data, &events[..cut_at], &mut arrives);
            let before_second = first.clone();
            let mut tape = Tape { ram: &mut first, events: Vec::new() };
            recover(&mut tape, storage(&mut log), &mut quiet()).expect("recovers");
            let events = tape.events;
            prop_assert_eq!(crashed.disk_of(&first), &crashed.disk[..], "cut at event {}", cut_at);
            let again_at = (seed as usize).wrapping_add(cut_at * 7) % (events.len() + 1);
            let mut second = cut(&before_second, &events[..again_at], &mut arrives);
            let recovered = recover(&mut second, storage(&mut log), &mut quiet()).expect("recovers");
            prop_assert_eq!(crashed.disk_of(&second), &crashed.disk[..], "cut at events {} and {}", cut_at, again_at);
            prop_assert_eq!(&read_superblock(&mut second).expect("read"), &recovered.superblock);
        }
    }
}

/// A volume with a log of its own that lost power with one record in its log.
fn with_log() -> (Ram, Ram, Recovered) {
    let (mut data, log, _) = volume(true);
    let mut log = log.expect("external");
    let opened = recover(&mut data, Some(&mut log), &mut quiet()).expect("opens");
    let change = [Change::Data { block: 5, sectors: SectorMask::ALL, fill: 0x5a }];
    Writer::new(&opened.superblock).commit(&mut log, &change).expect("room");
    (data, log, opened)
}

#[test]
fn a_log_that_is_gone_says_what_is_lost() {
    let (mut data, mut log, _) = with_log();
    let untouched = data.clone();
    let error = recover(&mut data, None, &mut quiet()).expect_err("the log is missing");
    assert!(matches!(error, RecoverError::Format(FormatError::LogMissing { .. })));
    assert_eq!(
        error.to_string(),
        "the volume's log is on a device of its own (/dev/fast) which was not given: the volume was not closed in order, so \
         without it every flushed write since the last checkpoint (record 1 of epoch 1) may be lost; give it with --log, or go \
         on without it with `vringd volume log remove --lost`"
    );
    assert!(check(&mut data, None, &mut quiet()).problems[0].text == error.to_string());
    // Another volume's log, one whose header is damaged, one that was cut off, and one too many.
    let mut other = log.clone();
    other.0[40] ^= 1;
    let error = recover(&mut data, Some(&mut other), &mut quiet()).expect_err("no log");
    assert!(matches!(error, RecoverError::Format(FormatError::LogForeign { .. })), "{error}");
    let mut short = Ram(log.0[..log.0.len() - 4096].to_vec());
    let error = recover(&mut data, Some(&mut short), &mut quiet()).expect_err("too short");
    assert!(matches!(error, RecoverError::Format(FormatError::TooShort { what: "log", .. })), "{error}");
    let (mut inside, _, _) = volume(false);
    let error = recover(&mut inside, Some(&mut log), &mut quiet()).expect_err("one too many");
    assert!(matches!(error, RecoverError::Format(FormatError::LogUnexpected)), "{error}");
    assert_eq!(data, untouched, "a refusal changes nothing");
}

/// A storage that cannot be read from some byte on.
struct Unreadable(Ram, u64);

impl Blocks for Unreadable {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset + buf.len() as u64 > self.1 { Err(io::Error::other("bad")) } else { self.0.read_at(offset, buf) }
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, buf)
    }

    fn zero_at(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.0.zero_at(offset, len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn what_nobody_needs_of_a_log_may_be_unreadable() {
    // The log's header, a record of two blocks, and the place of the next one.
    for (readable, opens) in [(4096 * 4, true), (4096 * 3, false)] {
        let (mut data, log, _) = with_log();
        let mut log = Unreadable(log, readable);
        let report = check(&mut data, Some(&mut log), &mut quiet());
        assert_eq!(report.is_sound(), opens, "{report:?}");
        match recover(&mut data, Some(&mut log), &mut quiet()) {
            Ok(recovered) => assert!(opens && (recovered.records, recovered.end) == (1, End::Blank)),
            // Whether a record follows is not known.
            Err(error) => assert!(!opens && error.to_string().contains("cannot read the log at byte 12288"), "{error}"),
        }
    }
}

#[test]
fn a_log_that_cannot_be_read_on_ends_there_for_who_says_so() {
    let (mut data, log, opened) = with_log();
    let mut whole = log.clone();
    let expected = recover(&mut data.clone(), Some(&mut whole), &mut quiet()).expect("recovers");
    let mut log = Unreadable(log, 4096 * 3);
    let salvaged = salvage(&mut data, Some(&mut log), &mut quiet()).expect("goes on");
    // The record before is two blocks long.
    assert_eq!((salvaged.records, salvaged.end), (1, End::GivenUp { position: 8192 }));
    assert_eq!(salvaged.data_bytes, expected.data_bytes);
    assert!(salvaged.superblock.epoch > opened.superblock.epoch);
    assert!(recover(&mut data, Some(&mut log), &mut quiet()).is_err(), "it was opened and not closed");
    // A log of which all can be read has nothing to give up.
    let (mut data, mut log, _) = with_log();
    assert_eq!(salvage(&mut data, Some(&mut log), &mut quiet()).expect("recovers").end, End::Blank);
}

#[test]
fn a_record_that_says_what_cannot_be_is_refused() {
    let (mut data, mut log, opened) = with_log();
    let mut writer = Writer::new(&opened.superblock);
    let beyond = [Change::Zeroes { block: BLOCKS - 1, count: 2 }];
    writer.commit(&mut log, &beyond).expect("room");
    let untouched = data.clone();
    let report = check(&mut data, Some(&mut log), &mut quiet());
    let salvaged = salvage(&mut data.clone(), Some(&mut log.clone()), &mut quiet()).expect("goes on");
    assert!(salvaged.records == 0 && matches!(salvaged.end, End::GivenUp { .. }), "{salvaged:?}");
    let error = recover(&mut data, Some(&mut log), &mut quiet()).expect_err("beyond the disk");
    assert!(error.to_string().starts_with("record 1 at position 0 of the log is whole, and yet says what cannot be"));
    assert_eq!(report.problems[0].text, error.to_string());
    assert_eq!(data, untouched);
    // A shorter disk's last block counts as a whole one.
    let change = [Change::Zeroes { block: BLOCKS - 1, count: 1 }];
    assert!(!CAPACITY_BYTES.is_multiple_of(BLOCK_BYTES as u64));
    Writer::new(&opened.superblock).commit(&mut log, &change).expect("room");
    recover(&mut data, Some(&mut log), &mut quiet()).expect("inside the disk");
}

#[test]
fn runs_of_zeroes_stay_runs() {
    let (mut data, log, _) = volume(true);
    let mut log = log.expect("external");
    let opened = recover(&mut data, Some(&mut log), &mut quiet()).expect("opens");
    data.0[opened.superblock.data_offset as usize..].fill(0xee);
    let mut writer = Writer::new(&opened.superblock);
    // As many entries as a record takes, each the whole disk but for its ends: neighbours do not make one of them.
    let many: Vec<_> =
        (0..2000u32).map(|n| Change::Zeroes { block: u64::from(n % 7), count: BLOCKS as u32 - 7 - n % 11 }).collect();
    while writer.commit(&mut log, &many).is_some() {}
    let recovered = recover(&mut data, Some(&mut log), &mut quiet()).expect("recovers");
    assert!(recovered.records >= 3, "{recovered:?}");
    // Each block once, however often it was said.
    assert!(recovered.zeroed_bytes <= BLOCKS * BLOCK_BYTES as u64, "{recovered:?}");
    assert!(data.0[opened.superblock.data_offset as usize..][..50 * BLOCK_BYTES].iter().all(|byte| *byte == 0));
}

/// Of a volume that was put back from a copy, without its log: that is later, and in epochs which the volume is yet to come to.
#[test]
fn what_a_later_log_holds_does_not_follow() {
    let copied = |clean: bool| {
        let (mut data, mut log, opened) = with_log();
        let mut superblock = recover(&mut data, Some(&mut log), &mut quiet()).expect("recovers").superblock;
        assert_eq!(superblock.epoch, opened.superblock.epoch + 1);
        if clean {
            close(&mut data, &mut superblock).expect("closed");
        }
        (data, log, superblock)
    };
    // Commits of so many openings later, each the first one at the tail.
    let commit = |log: &mut Ram, superblock: &Superblock, later: u64, position: u64, change: Change| {
        let mut forward = superblock.clone();
        forward.epoch += later;
        forward.tail.position = position;
        Writer::new(&forward).commit(log, &[change]).expect("room");
    };
    let data_of = |fill: u8| Change::Data { block: 3, sectors: SectorMask::ALL, fill };
    let beyond = Change::Zeroes { block: BLOCKS - 1, count: 2 };
    for clean in [false, true] {
        for (there, expected) in [
            (vec![], 1),
            (vec![(1, false, data_of(1))], 2),
            (vec![(2, false, data_of(1))], 1),
            (vec![(1, true, data_of(1))], 2),
            // One at each of the two places, in either order.
            (vec![(1, false, data_of(1)), (2, true, data_of(2))], 3),
            (vec![(2, false, data_of(1)), (1, true, data_of(2))], 3),
            // It would be refused rather than replayed.
            (vec![(1, false, beyond)], 2),
        ] {
            let (mut data, mut log, superblock) = copied(clean);
            let lap = superblock.tail.position.next_multiple_of(superblock.log.len);
            assert_ne!(lap, superblock.tail.position);
            for (later, at_lap, change) in there {
                let position = if at_lap { lap } else { superblock.tail.position };
                commit(&mut log, &superblock, later, position, change);
            }
            let before = data.clone();
            let opened = recover(&mut data, Some(&mut log), &mut quiet()).expect("opens");
            assert_eq!((opened.was_clean, opened.records), (clean, 0));
            assert_eq!(opened.superblock.epoch, superblock.epoch + expected);
            // Power goes before anything is committed.
            let again = recover(&mut data, Some(&mut log), &mut quiet()).expect("opens");
            assert_eq!((again.records, again.data_bytes, again.zeroed_bytes), (0, 0, 0));
            let disk = superblock.data_offset as usize;
            assert!(before.0[disk..] == data.0[disk..], "the disk is another");
        }
    }
}
