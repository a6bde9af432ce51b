use super::Qcow2Storage;
use super::SnapshotChange;
use super::bitmap_verbs::BitmapError;
use super::powercut_tests::{Model, Oracle, served_as};
use crate::Qcow2Options;
use crate::bitmap::{AUTO, Entries, Entry, IN_USE};
use crate::features;
use crate::header::Header;
use crate::testing::{Findings, New, examine};
use crate::tools::ExternalSnapshot;
use engine::Solo;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use storage::{Execution, Kind, Operation, Storage, Task};
use tempfile::TempDir;
use testkit::{Rng, storage as kit};

fn ask(solo: &mut Solo, storage: &dyn Storage, operation: Operation) {
    let mut task = Task::new();
    task.begin(operation);
    kit::run(solo, storage, &mut task).unwrap();
}

/// What a bitmap has to say.
#[derive(Clone, Debug)]
struct Expected {
    name: String,
    granularity: u64,
    enabled: bool,
    set: Vec<bool>,
}

impl Expected {
    fn new(name: &str, granularity: u64, size: u64) -> Expected {
        let set = vec![false; size.div_ceil(granularity) as usize];
        Expected { name: name.to_owned(), granularity, enabled: true, set }
    }

    fn mark(&mut self, range: Range<u64>) {
        if self.enabled && !range.is_empty() {
            let bits = range.start / self.granularity..(range.end - 1) / self.granularity + 1;
            self.set[bits.start as usize..bits.end as usize].fill(true);
        }
    }
}

fn compare(storage: &Qcow2Storage, all: &[Expected], what: &str) {
    let state = storage.shared.bitmaps.state();
    assert_eq!(state.listed.len(), all.len(), "{what}");
    for (one, expected) in state.listed.iter().zip(all) {
        let bits = one.bits.as_ref().unwrap_or_else(|| panic!("{what}: {} is inconsistent", expected.name));
        let is_set = |bit: u64| bits.bytes(bit / 64 * 8, 8)[(bit / 8 % 8) as usize] >> (bit % 8) & 1 == 1;
        let set: Vec<bool> = (0..bits.len()).map(is_set).collect();
        assert_eq!(set, expected.set, "{what}: {}", expected.name);
        assert_eq!((one.entry.shown(), one.entry.is(AUTO)), (expected.name.clone(), expected.enabled), "{what}");
    }
}

fn sound(path: &Path, what: &str) {
    assert_eq!(examine(&std::fs::read(path).unwrap()), Findings::default(), "{what}");
}

/// Makes an image at this path.
fn made(path: &Path, new: &New) -> Qcow2Options {
    std::fs::write(path, new.image().unwrap()).unwrap();
    Qcow2Options::new(path)
}

/// The entries of the directory of an image, if the autoclear bit is set.
fn listed(image: &[u8]) -> Vec<Entry> {
    let header = Header::parse(image).unwrap();
    let Some(bitmaps) = header.extensions.bitmaps.filter(|_| header.autoclear & features::BITMAPS != 0) else {
        return Vec::new();
    };
    Entries::of(&mut &image[..], bitmaps).map(|entry| entry.unwrap().1).collect()
}

fn history(new: &New, seed: u64) {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    // Whoever is leaked keeps its locks.
    let execution = if seed.is_multiple_of(2) { Execution::Uring } else { Execution::Inline };
    let options = Qcow2Options { lock: false, execution, ..made(&path, new) };
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut solo = Solo::new().unwrap();
    let mut size = new.size_bytes;
    let mut storage = Qcow2Storage::open_alone(&options).unwrap();
    let mut all: Vec<Expected> = Vec::new();
    for round in 0..80 {
        let what = format!("seed {seed}, {} bits, round {round}", new.cluster_bits);
        let start = rng.below(size / 512) * 512;
        let most = if rng.below(4) == 0 { size - start } else { (size - start).min(70 << 10) };
        let len = (1 + rng.below(most / 512)) * 512;
        let range = start..start + len;
        match rng.below(16) {
            0..4 => {
                kit::write(&mut solo, &storage, start, &vec![round as u8 + 1; len as usize]).unwrap();
                all.iter_mut().for_each(|one| one.mark(range.clone()));
            }
            4 => {
                ask(&mut solo, &storage, Operation::Discard { offset: start, len });
                all.iter_mut().for_each(|one| one.mark(range.clone()));
            }
            5 => {
                ask(&mut solo, &storage, Operation::WriteZeroes { offset: start, len, unmap: true, durable: false });
                all.iter_mut().for_each(|one| one.mark(range.clone()));
            }
            6 | 7 => {
                drop(storage);
                sound(&path, &what);
                let image = std::fs::read(&path).unwrap();
                assert!(listed(&image).iter().all(|entry| !entry.is(IN_USE)), "{what}");
                storage = Qcow2Storage::open_alone(&options).unwrap();
            }
            8 | 9 => {
                // First to see whether it could go on.
                storage.hand_over().unwrap();
                let handed = storage.hand_over().unwrap();
                std::mem::forget(storage);
                let adopted = options.adopt(handed).unwrap();
                compare(adopted.as_any().unwrap().downcast_ref().unwrap(), &all, &what);
                drop(adopted);
                sound(&path, &what);
                storage = Qcow2Storage::open_alone(&options).unwrap();
            }
            10 if all.len() < 4 => {
                let granularity = [512, 4096, 65_536, 1 << 21][rng.below(4) as usize];
                let name = format!("bitmap {round}");
                storage.add_bitmap(&name, granularity).unwrap();
                assert!(listed(&std::fs::read(&path).unwrap()).last().unwrap().is(IN_USE | AUTO), "{what}");
                all.push(Expected::new(&name, granularity, size));
            }
            11 if all.len() > 1 => {
                let gone = all.remove(rng.below(all.len() as u64) as usize);
                storage.remove_bitmap(&gone.name).unwrap();
            }
            12 if !all.is_empty() => {
                let one = rng.below(all.len() as u64) as usize;
                let one = &mut all[one];
                one.enabled = !one.enabled;
                storage.set_bitmap_enabled(&one.name, one.enabled).unwrap();
            }
            13 if !all.is_empty() => {
                let one = rng.below(all.len() as u64) as usize;
                let one = &mut all[one];
                let nothing = vec![false; one.set.len()];
                let before = std::mem::replace(&mut one.set, nothing);
                let dirty = storage.take_bitmap(&one.name).unwrap();
                assert_eq!(dirty.ranges().next().is_some(), before.iter().any(|set| *set), "{what}");
                if rng.below(2) == 0 {
                    storage.give_back(&one.name, &dirty).unwrap();
                    one.set = before;
                }
            }
            14 if rng.below(4) == 0 && storage.reach_bytes() >= size + (64 << 10) => {
                let old = size;
                size += (1 + rng.below(128)) * 512;
                storage.resize(size).unwrap();
                for one in &mut all {
                    one.set.resize(size.div_ceil(one.granularity) as usize, false);
                    let enabled = std::mem::replace(&mut one.enabled, true);
                    one.mark(old..size);
                    one.enabled = enabled;
                }
            }
            _ => ask(&mut solo, &storage, Operation::Flush),
        }
        compare(&storage, &all, &what);
    }
    drop(storage);
    sound(&path, "the end");
    compare(&Qcow2Storage::open_alone(&options).unwrap(), &all, "the end");
}

#[test]
fn bitmaps_say_what_was_written_whoever_goes_on() {
    for (cluster_bits, incompatible) in [(9, 0), (12, 0), (16, features::EXTENDED_L2), (16, 0), (21, 0)] {
        let size_bytes = if cluster_bits == 9 { (2 << 20) + 512 } else { (5 << 20) + 512 };
        for seed in 1..=6 {
            history(&New { cluster_bits, size_bytes, incompatible, ..New::default() }, seed);
        }
    }
}

#[test]
fn marks_of_many_threads_are_all_there() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let options = made(&directory.path().join("image"), &New::default());
    let storage = Qcow2Storage::open_alone(&options).unwrap();
    storage.add_bitmap("all", 512).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let storage = &storage;
            scope.spawn(move || {
                let mut solo = Solo::new().unwrap();
                for sector in (thread..2048).step_by(4).filter(|sector| sector % 64 != 5) {
                    kit::write(&mut solo, storage, sector * 512, &[1; 512]).unwrap();
                }
            });
        }
    });
    assert_eq!(storage.bitmaps()[0].dirty_bytes, 512 * (2048 - 32));
    assert_eq!(storage.take_bitmap("all").unwrap().ranges().count(), 33);
}

#[test]
fn a_killed_process_leaves_inconsistent_bitmaps_and_a_sound_image() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = made(&path, &New::default());
    let mut solo = Solo::new().unwrap();
    let storage = Qcow2Storage::open_alone(&options).unwrap();
    for name in ["off", "on"] {
        storage.add_bitmap(name, 65_536).unwrap();
    }
    kit::write(&mut solo, &storage, 0, &[1; 512]).unwrap();
    storage.set_bitmap_enabled("off", false).unwrap();
    drop(storage);
    // One that only reads changes nothing.
    let before = std::fs::read(&path).unwrap();
    let storage = Qcow2Storage::open_alone(&options).unwrap();
    kit::read(&mut solo, &storage, 0, 4096);
    drop(storage);
    assert!(std::fs::read(&path).unwrap() == before);
    let storage = Qcow2Storage::open_alone(&Qcow2Options { lock: false, ..options.clone() }).unwrap();
    kit::write(&mut solo, &storage, 65_536, &[1; 512]).unwrap();
    std::mem::forget(storage);
    assert!(examine(&std::fs::read(&path).unwrap()).corruptions.is_empty());
    let storage = Qcow2Storage::open_alone(&options).unwrap();
    let told = storage.bitmaps();
    let told: Vec<_> = told.iter().map(|one| (&*one.name, one.enabled, one.consistent, one.dirty_bytes)).collect();
    assert_eq!(told, [("off", false, true, 65_536), ("on", true, false, 0)]);
    for error in [storage.take_bitmap("on").map(|_| ()), storage.set_bitmap_enabled("on", false)] {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("`on`") && error.contains("inconsistent"), "{error}");
    }
    storage.remove_bitmap("on").unwrap();
    storage.remove_bitmap("off").unwrap();
    assert!(storage.bitmaps().is_empty());
    storage.add_bitmap("on", 512).unwrap();
    drop(storage);
    assert!(examine(&std::fs::read(&path).unwrap()).corruptions.is_empty());
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = made(&path, &New { size_bytes: 1 << 40, ..New::default() });
    let storage = Qcow2Storage::open_alone(&options).unwrap();
    storage.add_bitmap("a", 65_536).unwrap();
    let refused = |done: Result<(), BitmapError>, why: &str| match done {
        Err(BitmapError::Refused(reason)) => assert!(reason.contains(why), "{reason}"),
        other => panic!("{why}: {other:?}"),
    };
    refused(storage.add_bitmap("a", 65_536), "already");
    refused(storage.add_bitmap("", 65_536), "1 to 1023");
    refused(storage.add_bitmap(&"a".repeat(1024), 65_536), "1 to 1023");
    for granularity in [0, 256, 1000, 4 << 30] {
        refused(storage.add_bitmap("b", granularity), "power of two");
    }
    refused(storage.add_bitmap("b", 512), "64 MiB");
    refused(storage.remove_bitmap("b"), "none of this name");
    storage.add_bitmap(&"a".repeat(1023), 2 << 30).unwrap();
    drop(storage);
    sound(&path, "refused");
    let reader = Qcow2Storage::open_alone(&Qcow2Options { read_only: true, ..options }).unwrap();
    refused(reader.add_bitmap("b", 65_536), "only read");
    drop(reader);
    let old = made(&path, &New { version: 2, ..New::default() });
    refused(Qcow2Storage::open_alone(&old).unwrap().add_bitmap("a", 65_536), "version 2");
}

#[test]
fn a_header_with_a_backing_file_has_room_for_bitmaps() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    std::fs::write(directory.path().join("base"), vec![7; 1 << 20]).unwrap();
    for cluster_bits in [9, 12, 16] {
        let path = directory.path().join("image");
        let new = New { cluster_bits, backing: Some((b"base".to_vec(), "raw")), ..New::default() };
        let options = made(&path, &new);
        let before = Header::parse(&std::fs::read(&path).unwrap()).unwrap();
        let storage = Qcow2Storage::open_alone(&options).unwrap();
        storage.add_bitmap("a", 512).unwrap();
        kit::write(&mut Solo::new().unwrap(), &storage, 512, &[1; 512]).unwrap();
        drop(storage);
        sound(&path, "over a backing file");
        let after = Header::parse(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(
            (&after.backing_file, &after.extensions.feature_names),
            (&before.backing_file, &before.extensions.feature_names)
        );
        let storage = Qcow2Storage::open_alone(&options).unwrap();
        assert_eq!(storage.bitmaps()[0].dirty_bytes, 512);
        storage.remove_bitmap("a").unwrap();
        drop(storage);
        sound(&path, "over a backing file");
        let after = Header::parse(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!((after.extensions, after.autoclear), (before.extensions, before.autoclear));
    }
}

/// Cuts behind every write of what is done. What is left has bitmaps that are in use, or say what they have to.
fn cut(new: &New, seed: u64, on_the_spot: bool) -> usize {
    let image = new.image().unwrap();
    let model = Model::new(image.clone(), Oracle::default(), seed, on_the_spot);
    let open = |now: &[u8], model: &Arc<Model>| served_as(Header::parse(now).unwrap(), now, model.clone(), None, false);
    let mut solo = Solo::new().unwrap();
    let mut cuts = 0;
    let storage = open(&image, &model);
    storage.add_bitmap("first", 512).unwrap();
    kit::write(&mut solo, &storage, 0, &[1; 40 << 10]).unwrap();
    drop(storage);
    model.take_cuts();
    model.cut_behind_each_change();
    // What `first` may say, if it is not in use; `second` begins later.
    let dirty = |ranges: &[(u64, u64)]| ranges.iter().map(|(start, end)| *start..*end).collect::<Vec<_>>();
    let mut look = |stage: &str, first: &[Vec<Range<u64>>], second: &[Vec<Range<u64>>]| {
        for left in model.take_cuts() {
            cuts += 1;
            let what = format!("seed {seed}, {} bits, {stage}", new.cluster_bits);
            assert_eq!(examine(&left).corruptions, Vec::<String>::new(), "{what}");
            assert!(listed(&left).iter().any(|entry| entry.name == b"first"), "{what}: it is lost");
            let model = Model::new(left.clone(), Oracle::default(), 1, true);
            let storage = open(&left, &model);
            for one in &storage.shared.bitmaps.state().listed {
                let allowed = if one.entry.name == b"first" { first } else { second };
                if let Some(bits) = &one.bits {
                    let now: Vec<_> = bits.dirty().ranges().collect();
                    assert!(allowed.contains(&now), "{what}: {} says {now:?} of {allowed:?}", one.entry.shown());
                }
            }
        }
    };
    let old = dirty(&[(0, 40 << 10)]);
    let storage = open(&model.now(), &model);
    // While only what it said before was written.
    kit::write(&mut solo, &storage, 1024, &[2; 512]).unwrap();
    look("the first write", std::slice::from_ref(&old), &[]);
    storage.add_bitmap("second", 4096).unwrap();
    look("add", &[], &[]);
    kit::write(&mut solo, &storage, 100 << 10, &[3; 512]).unwrap();
    ask(&mut solo, &storage, Operation::Discard { offset: 200 << 10, len: 8192 });
    look("writes", &[], &[]);
    drop(storage);
    let new_first = dirty(&[(0, 40 << 10), (100 << 10, (100 << 10) + 512), (200 << 10, 208 << 10)]);
    let new_second = dirty(&[(100 << 10, 104 << 10), (200 << 10, 208 << 10)]);
    look("close", std::slice::from_ref(&new_first), std::slice::from_ref(&new_second));
    let storage = open(&model.now(), &model);
    storage.remove_bitmap("second").unwrap();
    look("remove", std::slice::from_ref(&new_first), std::slice::from_ref(&new_second));
    storage.take_bitmap("first").unwrap();
    kit::write(&mut solo, &storage, 512, &[3; 512]).unwrap();
    look("take", &[], &[]);
    drop(storage);
    look("close again", &[dirty(&[(512, 1024)])], &[]);
    assert_eq!(examine(&model.now()), Findings::default());
    cuts
}

#[test]
fn a_power_cut_leaves_bitmaps_that_are_right_or_in_use() {
    let mut cuts = 0;
    for (cluster_bits, backing) in [(9, false), (12, false), (16, false), (16, true)] {
        for seed in 1..=2 {
            // The name of a backing file lies where the extension will.
            let backing = backing.then(|| (b"a/base/file/with/a/name".to_vec(), "raw"));
            let new = New { cluster_bits, size_bytes: 512 << 10, backing, ..New::default() };
            cuts += cut(&new, seed, seed % 2 == 0);
        }
    }
    assert!(cuts > 500, "{cuts} cuts");
}

#[test]
fn a_full_disk_leaves_bitmaps_in_use_and_a_sound_image() {
    let image = New { size_bytes: 512 << 10, ..New::default() }.image().unwrap();
    let model = Model::new(image.clone(), Oracle::default(), 1, true);
    let storage = served_as(Header::parse(&image).unwrap(), &image, model.clone(), None, false);
    storage.add_bitmap("a", 512).unwrap();
    kit::write(&mut Solo::new().unwrap(), &storage, 512, &[1; 512]).unwrap();
    model.fill();
    drop(storage);
    let now = model.now();
    assert!(listed(&now)[0].is(IN_USE));
    assert!(examine(&now).corruptions.is_empty());
}

#[test]
fn lies_about_bitmaps_are_survived() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = made(&path, &New::default());
    let mut solo = Solo::new().unwrap();
    let storage = Qcow2Storage::open_alone(&options).unwrap();
    storage.add_bitmap("a", 512).unwrap();
    storage.add_bitmap("b", 65_536).unwrap();
    kit::write(&mut solo, &storage, 512, &[1; 512]).unwrap();
    drop(storage);
    let good = std::fs::read(&path).unwrap();
    let header = Header::parse(&good).unwrap();
    let at = header.extensions.bitmaps.unwrap().directory_offset as usize;
    let table = listed(&good)[0].table_offset as usize;
    let mut rng = Rng(7);
    for round in 0..300 {
        let mut image = good.clone();
        for _ in 0..=rng.below(3) {
            let place = match rng.below(3) {
                0 => at + rng.below(64) as usize,
                1 => table + rng.below(8) as usize,
                _ => 104 + rng.below(408) as usize,
            };
            image[place] = [0, 1, 0xff, rng.below(256) as u8][rng.below(4) as usize];
        }
        std::fs::write(&path, &image).unwrap();
        let Ok(storage) = Qcow2Storage::open_alone(&options) else { continue };
        let disk = kit::read(&mut solo, &storage, 0, 4096);
        let _ = kit::write(&mut solo, &storage, 8192, &[2; 512]);
        let _ = storage.remove_bitmap("a");
        let _ = storage.add_bitmap("c", 4096);
        drop(storage);
        let storage = Qcow2Storage::open_alone(&options).unwrap();
        assert_eq!(kit::read(&mut solo, &storage, 0, 4096), disk, "round {round}");
    }
}

#[test]
fn what_an_older_program_hands_over_leaves_them_inconsistent() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let options = made(&directory.path().join("image"), &New::default());
    let storage = Qcow2Storage::open_alone(&options).unwrap();
    storage.add_bitmap("a", 512).unwrap();
    let mut handed = storage.hand_over().unwrap();
    // What an older program does.
    handed.memory = None;
    std::mem::forget(storage);
    let adopted = options.adopt(handed).unwrap();
    let adopted: &Qcow2Storage = adopted.as_any().unwrap().downcast_ref().unwrap();
    assert!(!adopted.bitmaps()[0].consistent);
}

#[test]
fn an_image_behind_another_one_has_its_bitmaps_written_back() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = made(&path, &New { cluster_bits: 12, ..New::default() });
    let mut solo = Solo::new().unwrap();
    let storage = storage::open(&options).unwrap();
    let bitmaps =
        |storage: &Arc<dyn Storage>| storage.as_any().unwrap().downcast_ref::<Qcow2Storage>().unwrap().bitmaps();
    storage.as_any().unwrap().downcast_ref::<Qcow2Storage>().unwrap().add_bitmap("a", 4096).unwrap();
    kit::write(&mut solo, &*storage, 0, &[1; 512]).unwrap();
    // One that does not come to be leaves the image to be written as before.
    let to = directory.path().join("behind");
    let mut snapshot = ExternalSnapshot::prepare(&options, storage.clone(), &to).unwrap();
    drop(snapshot.put().unwrap());
    assert!(!listed(&std::fs::read(&to).unwrap())[0].is(IN_USE));
    drop(snapshot);
    kit::write(&mut solo, &*storage, 8192, &[1; 512]).unwrap();
    assert!(listed(&std::fs::read(&path).unwrap())[0].is(IN_USE));
    let mut snapshot = ExternalSnapshot::prepare(&options, storage.clone(), &to).unwrap();
    let front = snapshot.put().unwrap();
    snapshot.keep();
    sound(&to, "behind");
    let behind = std::fs::read(&to).unwrap();
    kit::write(&mut solo, &*front, 16_384, &[1; 512]).unwrap();
    drop(storage);
    assert!(bitmaps(&front).is_empty());
    drop(front);
    assert!(std::fs::read(&to).unwrap() == behind, "it was written to");
    let storage = storage::open(&Qcow2Options::new(&to)).unwrap();
    assert_eq!(bitmaps(&storage)[0].dirty_bytes, 8192);
}

#[test]
fn a_snapshot_that_is_applied_makes_everything_dirty() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("image");
    let options = made(&path, &New { size_bytes: 100 * 512, ..New::default() });
    let open = || Qcow2Storage::open_alone(&options).unwrap();
    let at = std::time::Duration::ZERO;
    open().add_bitmap("a", 4096).unwrap();
    open().change_snapshots(SnapshotChange::Take { name: "then", at }).unwrap();
    let told = |storage: Qcow2Storage| (storage.bitmaps()[0].consistent, storage.bitmaps()[0].dirty_bytes);
    assert_eq!(told(open()), (true, 0));
    kit::write(&mut Solo::new().unwrap(), &open(), 0, &[1; 512]).unwrap();
    open().change_snapshots(SnapshotChange::Apply("then")).unwrap();
    sound(&path, "applied");
    assert_eq!(told(open()), (true, 100 * 512));
    open().take_bitmap("a").unwrap();
    open().resize(101 * 512).unwrap();
    assert_eq!(told(open()), (true, 5 * 512));
    // Of a disk of another size they say nothing.
    open().change_snapshots(SnapshotChange::Apply("then")).unwrap();
    sound(&path, "applied");
    assert_eq!(told(open()), (false, 0));
}

/// What is left of a bitmap that could not be put right is not taken for one that knows.
#[test]
fn a_forgotten_bitmap_is_inconsistent_for_everybody() {
    let directory = TempDir::new_in(kit::shm()).unwrap();
    let path = directory.path().join("disk.qcow2");
    std::fs::write(&path, New::default().image().unwrap()).unwrap();
    let options = Qcow2Options::new(&path);
    let storage = Qcow2Storage::open_alone(&options).unwrap();
    for name in ["kept", "forgotten"] {
        storage.add_bitmap(name, 65_536).unwrap();
    }
    let dirty = storage.take_bitmap("forgotten").unwrap();
    storage.forget_bitmap("forgotten");
    storage.forget_bitmap("nobody's");
    let error = storage.give_back("forgotten", &dirty).unwrap_err().to_string();
    assert!(error.contains("is inconsistent"), "{error}");
    kit::write(&mut Solo::new().unwrap(), &storage, 0, &[1; 512]).unwrap();
    let consistent = |storage: &Qcow2Storage| storage.bitmaps().iter().map(|one| one.consistent).collect::<Vec<_>>();
    assert_eq!(consistent(&storage), [true, false]);
    let handed = storage.hand_over().unwrap();
    storage.shared.give_away();
    drop(storage);
    let next = options.adopt(handed).unwrap();
    assert_eq!(consistent(next.as_any().unwrap().downcast_ref().unwrap()), [true, false]);
    drop(next);
    assert_eq!(consistent(&Qcow2Storage::open_alone(&options).unwrap()), [true, false]);
}
