//! Snapshots against copies of the disk, and under power cuts.

use super::powercut_tests::{Model, Oracle, served_as};
use super::snapshots::{SnapshotChange, SnapshotError};
use super::{Qcow2Options, Qcow2Storage};
use crate::header::Header;
use crate::snapshot;
use crate::testing::{Findings, New, examine};
use crate::{features, refcount};
use engine::Solo;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::path::Path;
use std::time::Duration;
use storage::{Operation, Storage, Task};
use tempfile::TempDir;
use testkit::storage as kit;

const SIZE: usize = 256 << 10;

/// What happens to an image that is closed in between.
#[derive(Clone, Debug)]
enum Act {
    Write { sector: usize, sectors: usize, byte: u8 },
    Zero { sector: usize, sectors: usize },
    Take,
    Apply(usize),
    Delete(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let place = || (0..SIZE / 512, 1..80usize);
    prop_oneof![
        5 => (place(), 1..=255u8).prop_map(|((sector, sectors), byte)| Act::Write { sector, sectors, byte }),
        1 => place().prop_map(|(sector, sectors)| Act::Zero { sector, sectors }),
        3 => Just(Act::Take),
        1 => (0..4usize).prop_map(Act::Apply),
        2 => (0..4usize).prop_map(Act::Delete),
    ]
}

/// As a person calls it.
fn change(options: &Qcow2Options, change: SnapshotChange<'_>) -> Result<(), SnapshotError> {
    Qcow2Storage::open_alone(options).unwrap().change_snapshots(change)
}

fn take(name: &str) -> SnapshotChange<'_> {
    SnapshotChange::Take { name, at: Duration::from_secs(1_800_000_000) }
}

fn contents(options: &Qcow2Options, snapshot: Option<&str>) -> Vec<u8> {
    let options = Qcow2Options { read_only: true, snapshot: snapshot.map(str::to_owned), ..options.clone() };
    let storage = Qcow2Storage::open_alone(&options).unwrap();
    kit::read(&mut Solo::new().unwrap(), &storage, 0, storage.capacity_bytes() as usize)
}

fn play(path: &Path, new: &New, history: &[Act]) {
    std::fs::write(path, new.image().unwrap()).unwrap();
    let options = Qcow2Options::new(path);
    let mut disk = contents(&options, None);
    let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
    let mut solo = Solo::new().unwrap();
    for (number, act) in history.iter().enumerate() {
        let name = |index: usize| kept.get(index).map(|(name, _)| name.clone());
        match act {
            Act::Write { sector, sectors, byte } => {
                let range = sector * 512..SIZE.min((sector + sectors) * 512);
                disk[range.clone()].fill(*byte);
                let storage = Qcow2Storage::open_alone(&options).unwrap();
                kit::write(&mut solo, &storage, range.start as u64, &disk[range]).unwrap();
            }
            Act::Zero { sector, sectors } => {
                let range = sector * 512..SIZE.min((sector + sectors) * 512);
                disk[range.clone()].fill(0);
                let storage = Qcow2Storage::open_alone(&options).unwrap();
                let (offset, len) = (range.start as u64, range.len() as u64);
                let mut task = Task::new();
                task.begin(Operation::WriteZeroes { offset, len, unmap: true, durable: false });
                kit::run(&mut solo, &storage, &mut task).unwrap();
            }
            Act::Take => {
                let name = format!("snapshot {number}");
                let taken = change(&options, take(&name));
                // Refcounts that are too narrow for one more use say so, and nothing has happened.
                if kept.len() as u64 + 1 < refcount::max(new.refcount_order) {
                    taken.unwrap();
                    kept.push((name, disk.clone()));
                } else if taken.is_ok() {
                    kept.push((name, disk.clone()));
                }
            }
            Act::Apply(index) => {
                let Some(name) = name(*index) else { continue };
                // An L2 table that is used by as many as can be counted may be one that the disk does not use.
                if change(&options, SnapshotChange::Apply(&name)).is_ok() {
                    disk = kept[*index].1.clone();
                } else {
                    assert!(kept.len() as u64 + 1 > refcount::max(new.refcount_order));
                }
            }
            Act::Delete(index) => {
                let Some(name) = name(*index) else { continue };
                change(&options, SnapshotChange::Delete(&name)).unwrap();
                kept.remove(*index);
            }
        }
        assert_eq!(examine(&std::fs::read(path).unwrap()), Findings::default(), "{number}: {act:?}");
        kit::assert_same(&contents(&options, None), &disk, 0);
        for (name, then) in &kept {
            kit::assert_same(&contents(&options, Some(name)), then, 0);
        }
    }
}

#[test]
fn snapshots_are_what_the_disk_was() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    std::fs::write(directory.path().join("base"), [0x5a; SIZE]).unwrap();
    let mut runner = TestRunner::new(Config { cases: 12, failure_persistence: None, ..Config::default() });
    for (cluster_bits, refcount_order, incompatible, version, backing) in [
        (9, 4, 0, 3, false),
        (9, 6, 0, 2, true),
        (12, 1, 0, 3, true),
        (16, 4, 0, 3, false),
        (14, 4, features::EXTENDED_L2, 3, true),
        (12, 0, 0, 3, false),
    ] {
        let backing = backing.then(|| (b"base".to_vec(), "raw"));
        let size_bytes = SIZE as u64;
        let new = New { cluster_bits, refcount_order, incompatible, version, backing, size_bytes, ..New::default() };
        let result = runner.run(&proptest::collection::vec(act(), 1..25), |history| {
            play(&directory.path().join("image"), &new, &history);
            Ok(())
        });
        result.unwrap();
    }
}

#[test]
fn what_cannot_be_is_refused_in_a_line_and_changes_nothing() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = Qcow2Options::new(&path);
    std::fs::write(&path, New { size_bytes: SIZE as u64, ..New::default() }.image().unwrap()).unwrap();
    change(&options, take("one")).unwrap();
    let before = std::fs::read(&path).unwrap();
    let long = "x".repeat(256);
    for (what, why) in [
        (take("one"), "has a snapshot `one` already"),
        (take("1"), "has a snapshot `1` already"),
        (take(""), "1 to 255 bytes"),
        (take(&long), "1 to 255 bytes"),
        (SnapshotChange::Apply("two"), "has no snapshot `two`: `vringd image snapshot list`"),
        (SnapshotChange::Delete("2"), "has no snapshot `2`: `vringd image snapshot list`"),
    ] {
        let error = change(&options, what).unwrap_err();
        assert!(matches!(&error, SnapshotError::Refused(reason) if reason.contains(why)), "{error}");
        assert!(std::fs::read(&path).unwrap() == before, "{what:?}");
    }
}

/// Tables that need more clusters than a refcount block counts.
#[test]
fn long_tables_find_room() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = Qcow2Options::new(&path);
    for size_bytes in [600 << 20, 1 << 30] {
        let new = New { cluster_bits: 9, size_bytes, ..New::default() };
        std::fs::write(&path, new.image().unwrap()).unwrap();
        kit::write(&mut Solo::new().unwrap(), &Qcow2Storage::open_alone(&options).unwrap(), 4096, &[1; 4096]).unwrap();
        for what in [take("one"), SnapshotChange::Apply("one"), take("two"), SnapshotChange::Delete("one")] {
            change(&options, what).unwrap();
            assert_eq!(examine(&std::fs::read(&path).unwrap()), Findings::default(), "{what:?}");
        }
    }
}

/// What finds no room has changed nothing, and is no leak.
#[test]
fn a_full_disk_keeps_what_it_has() {
    let before = image(&New { size_bytes: SIZE as u64, ..New::default() });
    for what in [CHANGES[0], CHANGES[1], CHANGES[3]] {
        let file = Model::new(before.clone(), Oracle::default(), 1, true);
        file.fill();
        let storage = served_as(Header::parse(&before).unwrap(), &before, file.clone(), None, false);
        let error = storage.change_snapshots(what).unwrap_err().to_string();
        assert!(error.contains("No space"), "{error}");
        drop(storage);
        assert_eq!(examine(&file.now()), Findings::default(), "{what:?}");
        assert_eq!(all_contents(&file.now()), all_contents(&before), "{what:?}");
    }
}

/// The disk and its snapshots, of an image that is only bytes; `None`: it is none.
fn all_contents(image: &[u8]) -> Option<Vec<(String, Vec<u8>)>> {
    let now = Header::parse(image).ok()?;
    let snapshots = snapshot::all(&mut &image[..], &now).ok()?;
    let mut headers = vec![(String::new(), now.clone())];
    for (raw, index) in snapshots.iter().zip(0..) {
        headers.push((raw.snapshot.name.clone(), raw.snapshot.header(&now, index).ok()?));
    }
    let contents = |(name, header)| {
        let file = Model::new(image.to_vec(), Oracle::default(), 1, true);
        let storage = served_as(header, image, file, None, true);
        (name, kit::read(&mut Solo::new().unwrap(), &storage, 0, SIZE))
    };
    Some(headers.into_iter().map(contents).collect())
}

/// A change in an image with `before`, cut at many points: it is as it was or as it is to be, and sound.
fn cut(before: &[u8], what: SnapshotChange<'_>, seed: u64, obeys: bool) -> (usize, Vec<String>) {
    let file = Model::new(before.to_vec(), Oracle::default(), seed, true);
    file.set_obeys(obeys);
    file.cut_behind_each_change();
    let header = Header::parse(before).unwrap();
    let storage = served_as(header, before, file.clone(), None, false);
    storage.change_snapshots(what).unwrap();
    drop(storage);
    let states = [all_contents(before), all_contents(&file.now())];
    assert_eq!(examine(&file.now()), Findings::default());
    let cuts = file.take_cuts();
    let mut wrong = Vec::new();
    for left in &cuts {
        let found = examine(left).corruptions;
        if !found.is_empty() {
            wrong.extend(found);
        } else if !states.contains(&all_contents(left)) {
            wrong.push(format!("{what:?}: neither as it was nor as it is to be"));
        }
    }
    (cuts.len(), wrong)
}

/// An image with data, two snapshots, and data that neither has.
fn image(new: &New) -> Vec<u8> {
    let image = new.image().unwrap();
    let file = Model::new(image.clone(), Oracle::default(), 1, true);
    let mut solo = Solo::new().unwrap();
    for (byte, name) in [(1, Some("one")), (2, Some("two")), (3, None)] {
        let now = file.now();
        let storage = served_as(Header::parse(&now).unwrap(), &now, file.clone(), None, false);
        for part in 0..6u64 {
            let data = [byte * 16 + part as u8; 9 * 512];
            kit::write(&mut solo, &storage, (part * 80 + u64::from(byte) * 7) * 512, &data).unwrap();
        }
        drop(storage);
        let now = file.now();
        let storage = served_as(Header::parse(&now).unwrap(), &now, file.clone(), None, false);
        name.into_iter().for_each(|name| storage.change_snapshots(take(name)).unwrap());
    }
    file.now()
}

fn cases() -> Vec<New> {
    let size_bytes = SIZE as u64;
    [(9, 4, 0), (12, 4, 0), (16, 2, 0), (14, 4, features::EXTENDED_L2)]
        .map(|(cluster_bits, refcount_order, incompatible)| New {
            cluster_bits,
            refcount_order,
            incompatible,
            size_bytes,
            ..New::default()
        })
        .to_vec()
}

const CHANGES: [SnapshotChange<'_>; 5] = [
    SnapshotChange::Take { name: "three", at: Duration::ZERO },
    SnapshotChange::Apply("one"),
    SnapshotChange::Apply("two"),
    SnapshotChange::Delete("one"),
    SnapshotChange::Delete("two"),
];

#[test]
fn a_power_cut_leaves_the_image_as_it_was_or_as_it_is_to_be() {
    let rounds = std::env::var("POWERCUTS").map_or(4, |rounds| rounds.parse().unwrap());
    let mut cuts = 0;
    for new in cases() {
        let before = image(&new);
        for what in CHANGES {
            for seed in 1..=rounds {
                let (looked_at, wrong) = cut(&before, what, seed * 77, true);
                assert!(wrong.is_empty(), "{new:?}, {what:?}, seed {seed}: {:?}", &wrong[..wrong.len().min(3)]);
                cuts += looked_at;
            }
        }
    }
    assert!(cuts > 1000, "{cuts} cuts");
}

#[test]
fn a_missing_barrier_is_noticed() {
    for new in cases() {
        let before = image(&new);
        let wrong: usize =
            CHANGES.iter().flat_map(|what| (1..6).map(|seed| cut(&before, *what, seed * 31, false).1.len())).sum();
        assert!(wrong > 0, "{new:?}");
    }
}
