//! What an operator does to volumes: made, looked at, replayed, resized, given logs and robbed of them, converted.

use crate::common::Plain;
use engine::Solo;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use storage::{FileOptions, FileStorage, Operation, Storage, Task, open};
use testkit::storage::{disk, image, read, run, shm, write};
use values::{ByteSize, MemoryFile, SyncMode};
use volume::format::{self, FormatError, Uuid};
use volume::tools::{CreateOptions, Discard};
use volume::{LoggedOptions, LoggedStorage, VolumeError, VolumeOptions, tools};

/// What was in memory goes.
const GIVE_UP: Discard = Discard { memory: true, unreadable: false };

const SIZE: u64 = 8 << 20;
const LOG: u64 = 256 << 10;

/// A directory with a volume, and another on tmpfs for its memory.
struct Place {
    directory: tempfile::TempDir,
    memory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { directory: tempfile::tempdir_in(disk()).unwrap(), memory: tempfile::tempdir_in(shm()).unwrap() }
    }

    fn at(&self) -> VolumeOptions {
        let memory_file = MemoryFile::Path(self.memory.path().join("memory"));
        VolumeOptions { memory_file, ..VolumeOptions::new(self.directory.path().join("volume")) }
    }

    fn with_log(&self) -> VolumeOptions {
        VolumeOptions { log: Some(self.directory.path().join("log")), ..self.at() }
    }
}

fn options() -> CreateOptions {
    CreateOptions { size_bytes: SIZE, log_bytes: LOG, force: false, created_by: "a test".to_owned() }
}

fn spec(at: &VolumeOptions) -> VolumeOptions {
    VolumeOptions { dirty_memory: ByteSize(1 << 20), ..at.clone() }
}

fn serve(at: &VolumeOptions) -> LoggedStorage {
    let file = |path: &PathBuf| -> Arc<dyn Storage> {
        Arc::new(FileStorage::open(&FileOptions { direct: true, ..FileOptions::new(path) }).unwrap())
    };
    let options = LoggedOptions { dirty_bytes: 1 << 20, ..LoggedOptions::default() };
    LoggedStorage::open_in(file(&at.path), at.log.as_ref().map(file), &options, &at.memory_file).unwrap()
}

fn put(storage: &dyn Storage, offset: u64, data: &[u8], flushed: bool) {
    let mut solo = Solo::new().unwrap();
    write(&mut solo, storage, offset, data).unwrap();
    if flushed {
        let mut task = Task::new();
        task.begin(Operation::Flush);
        run(&mut solo, storage, &mut task).unwrap();
    }
}

fn get(at: &VolumeOptions, offset: u64, len: usize) -> Vec<u8> {
    read(&mut Solo::new().unwrap(), &serve(at), offset, len)
}

/// Takes what a power cut takes: the memory, whose boot is over. With none, no word of it was ever said, as by older versions.
fn power_cut(place: &Place, at: &VolumeOptions, boot: Option<u128>) {
    let mut data = Plain(Arc::new(FileStorage::open(&FileOptions::new(&at.path)).unwrap()));
    let mut superblock = format::read_superblock(&mut data).unwrap();
    let memory = superblock.memory.take().unwrap();
    superblock.memory = boot.map(|boot| format::MemoryAt { boot: Uuid::from_u128(boot), ..memory });
    format::write_superblock(&mut data, &mut superblock).unwrap();
    std::fs::remove_file(place.memory.path().join("memory")).unwrap();
}

#[test]
fn a_volume_is_made_sparse_and_known() {
    let place = Place::new();
    for at in [place.at(), VolumeOptions { path: place.directory.path().join("second"), ..place.with_log() }] {
        let at = &at;
        let mut seen = 0;
        let large = CreateOptions { size_bytes: 1 << 40, ..options() };
        let info = tools::create(at, &large, &mut |now| seen = now.done_bytes).unwrap();
        assert!(seen >= LOG, "the log is laid out: {seen}");
        assert_eq!((info.capacity_bytes, info.clean, info.memory.is_none()), (1 << 40, true, true));
        assert!(info.file_bytes > 1 << 40 && info.allocated_bytes < 8 << 20, "{info:?}");
        assert_eq!(info.log.external.is_some(), at.log.is_some());
        assert_eq!(info.created_by, "a test");
        assert_eq!(tools::info(at).unwrap(), info);
        let report = tools::check(at, &mut |_| {}).unwrap();
        assert!(report.is_sound() && !report.needs_replay(), "{report:?}");
        let again = tools::create(at, &large, &mut |_| {}).unwrap_err().to_string();
        assert!(again.contains("--force"), "{again}");
        assert_eq!(tools::info(at).unwrap(), info);
        let forced = tools::create(at, &CreateOptions { force: true, ..large }, &mut |_| {}).unwrap();
        assert_ne!(forced.volume, info.volume);
    }
}

#[test]
fn what_cannot_be_made_leaves_nothing() {
    let place = Place::new();
    let at = place.at();
    for (options, words) in [
        (CreateOptions { size_bytes: 1000, ..options() }, "size"),
        (CreateOptions { log_bytes: 1, ..options() }, "log size"),
        (CreateOptions { size_bytes: u64::MAX / 512 * 512, ..options() }, "size"),
    ] {
        let error = tools::create(&at, &options, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
        assert!(!at.path.exists());
    }
}

#[test]
fn other_files_are_no_volumes() {
    let file = image(disk(), SIZE);
    let at = VolumeOptions::new(file.path());
    for error in [
        tools::info(&at).unwrap_err(),
        tools::replay(&at, &Discard::default(), &mut |_| {}).unwrap_err(),
        tools::resize(&at, 2 * SIZE).unwrap_err(),
        tools::log_remove(&at, true, &mut |_| {}).unwrap_err(),
    ] {
        assert!(matches!(error, VolumeError::Format { source: FormatError::NotAVolume, .. }), "{error}");
        assert!(error.to_string().contains("vringd volume create"), "{error}");
    }
    assert!(!tools::check(&at, &mut |_| {}).unwrap().is_sound());
    assert_eq!(file.as_file().metadata().unwrap().len(), SIZE);
    let missing = tools::info(&VolumeOptions::new("/nonexistent/volume")).unwrap_err().to_string();
    assert!(missing.contains("/nonexistent/volume"), "{missing}");
}

#[test]
fn only_one_has_a_volume() {
    let place = Place::new();
    let at = place.with_log();
    tools::create(&at, &options(), &mut |_| {}).unwrap();
    let served = serve(&at);
    let in_use = |error: &dyn std::fmt::Display| assert!(error.to_string().contains("is in use"), "{error}");
    in_use(&open(&spec(&at)).err().unwrap());
    in_use(&tools::info(&at).unwrap_err());
    in_use(&tools::check(&at, &mut |_| {}).unwrap_err());
    in_use(&tools::replay(&at, &Discard::default(), &mut |_| {}).unwrap_err());
    in_use(&tools::replay(&at, &GIVE_UP, &mut |_| {}).unwrap_err());
    in_use(&tools::resize(&at, 2 * SIZE).unwrap_err());
    in_use(&tools::log_remove(&at, false, &mut |_| {}).unwrap_err());
    in_use(&tools::create(&at, &CreateOptions { force: true, ..options() }, &mut |_| {}).unwrap_err());
    let raw = place.directory.path().join("raw");
    in_use(&tools::to_raw(&at, &raw, false, &mut |_| {}).unwrap_err());
    in_use(&tools::to_volume(&at.path, &VolumeOptions::new(&raw), &options(), &mut |_| {}).unwrap_err());
    assert!(!raw.exists());
    put(&served, 0, &[1; 512], true);
    drop(served);
    assert_eq!(get(&at, 0, 512), [1; 512]);
}

#[test]
fn a_log_is_replayed_by_hand() {
    let place = Place::new();
    let at = place.at();
    tools::create(&at, &options(), &mut |_| {}).unwrap();
    let served = serve(&at);
    put(&served, 4096, &[6; 8192], true);
    served.abandon();
    // Only the log: the power went.
    power_cut(&place, &at, Some(7));
    assert!(!tools::info(&at).unwrap().clean);
    assert!(tools::check(&at, &mut |_| {}).unwrap().needs_replay());
    for error in [
        tools::resize(&at, 2 * SIZE).unwrap_err(),
        tools::log_add(
            &VolumeOptions { log: Some(place.directory.path().join("log")), ..at.clone() },
            LOG,
            false,
            &mut |_| {},
        )
        .unwrap_err(),
        tools::to_raw(&at, &place.directory.path().join("raw"), false, &mut |_| {}).unwrap_err(),
    ] {
        assert!(error.to_string().contains("vringd volume replay"), "{error}");
    }
    let replayed = tools::replay(&at, &Discard::default(), &mut |_| {}).unwrap();
    assert_eq!((replayed.log.records, replayed.memory_blocks), (1, 0));
    assert!(tools::info(&at).unwrap().clean);
    let again = tools::replay(&at, &Discard::default(), &mut |_| {}).unwrap();
    assert_eq!(again.log.records, 0);
    assert_eq!(get(&at, 4096, 8192), [6; 8192]);
}

#[test]
fn sizes_change_both_ways() {
    let place = Place::new();
    let at = place.at();
    tools::create(&at, &options(), &mut |_| {}).unwrap();
    put(&serve(&at), SIZE - 4096, &[9; 4096], false);
    let info = tools::resize(&at, SIZE + 512).unwrap();
    assert_eq!(info.capacity_bytes, SIZE + 512);
    assert_eq!(get(&at, SIZE - 4096, 4608)[4096..], [0; 512]);
    put(&serve(&at), SIZE - 4096, &[9; 4608], false);
    let info = tools::resize(&at, SIZE - 512).unwrap();
    assert_eq!((info.capacity_bytes, info.file_bytes), (SIZE - 512, info.data_offset + SIZE));
    // What was cut off does not come back.
    tools::resize(&at, SIZE + 4096).unwrap();
    let end = get(&at, SIZE - 4096, 8192);
    assert!(end[..3584].iter().all(|byte| *byte == 9) && end[3584..].iter().all(|byte| *byte == 0));
    for size in [0, 100, u64::MAX] {
        assert!(tools::resize(&at, size).unwrap_err().to_string().contains("size"));
    }
    assert_eq!(tools::info(&at).unwrap().capacity_bytes, SIZE + 4096);
}

#[test]
fn logs_come_and_go() {
    let place = Place::new();
    let (inside, outside) = (place.at(), place.with_log());
    tools::create(&inside, &options(), &mut |_| {}).unwrap();
    put(&serve(&inside), 0, &[1; 4096], true);
    let unnamed = tools::log_add(&inside, LOG, false, &mut |_| {}).unwrap_err().to_string();
    assert!(unnamed.contains("--log"), "{unnamed}");
    let info = tools::log_add(&outside, 2 * LOG, false, &mut |_| {}).unwrap();
    assert_eq!(info.log.len, 2 * LOG);
    assert!(tools::log_add(&outside, LOG, true, &mut |_| {}).unwrap_err().to_string().contains("already"));
    // Without its log it is not opened, and the error says that nothing is lost, and where it was.
    let error = open(&spec(&inside)).err().unwrap().to_string();
    assert!(error.contains("nothing is lost") && error.contains("/log") && error.contains("--lost"), "{error}");
    assert_eq!(get(&outside, 0, 4096), [1; 4096]);
    put(&serve(&outside), 4096, &[2; 4096], true);
    let without = tools::log_remove(&inside, false, &mut |_| {}).unwrap_err().to_string();
    assert!(without.contains("--log"), "{without}");
    assert_eq!(tools::log_remove(&outside, false, &mut |_| {}).unwrap().log.external, None);
    assert!(tools::log_remove(&inside, true, &mut |_| {}).is_err(), "it is inside");
    assert_eq!(get(&inside, 0, 8192)[4096..], [2; 4096]);
}

#[test]
fn a_lost_log_is_said_and_given_up() {
    let place = Place::new();
    let mut at = place.with_log();
    tools::create(&at, &options(), &mut |_| {}).unwrap();
    put(&serve(&at), 0, &[1; 4096], true);
    let served = serve(&at);
    put(&served, 0, &[2; 4096], true);
    served.abandon();
    power_cut(&place, &at, Some(7));
    // Another log in its place.
    let other = Place::new();
    tools::create(&other.with_log(), &options(), &mut |_| {}).unwrap();
    let foreign = VolumeOptions { log: other.with_log().log, ..at.clone() };
    let error = open(&spec(&foreign)).err().unwrap().to_string();
    assert!(error.contains("not this volume's log") && error.contains("may be lost"), "{error}");
    std::fs::remove_file(at.log.take().unwrap()).unwrap();
    let error = open(&spec(&at)).err().unwrap().to_string();
    assert!(error.contains("may be lost") && error.contains("log remove --lost"), "{error}");
    tools::log_remove(&at, true, &mut |_| {}).unwrap();
    assert_eq!(get(&at, 0, 4096), [1; 4096]);
}

/// The memory file has all that the log had, and more: who gives the log up does not give that up.
#[test]
fn memory_is_not_passed_over_when_a_log_is_lost() {
    let place = Place::new();
    let mut at = place.with_log();
    tools::create(&at, &options(), &mut |_| {}).unwrap();
    let served = serve(&at);
    put(&served, 0, &[1; 4096], true);
    put(&served, 4096, &[2; 4096], false);
    served.abandon();
    std::fs::remove_file(at.log.take().unwrap()).unwrap();
    let info = tools::log_remove(&at, true, &mut |_| {}).unwrap();
    assert_eq!(info.memory.unwrap().blocks, 2);
    let raw = place.directory.path().join("raw");
    for error in [
        tools::to_raw(&at, &raw, false, &mut |_| {}).unwrap_err(),
        tools::resize(&at, SIZE / 2).unwrap_err(),
        tools::log_add(&place.with_log(), LOG, false, &mut |_| {}).unwrap_err(),
    ] {
        assert!(error.to_string().contains("vringd volume replay"), "{error}");
    }
    assert!(!raw.exists() && !place.with_log().log.unwrap().exists());
    assert_eq!(tools::replay(&at, &Discard::default(), &mut |_| {}).unwrap().memory_blocks, 2);
    tools::to_raw(&at, &raw, false, &mut |_| {}).unwrap();
    let content = std::fs::read(&raw).unwrap();
    assert!(content[..4096] == [1; 4096] && content[4096..8192] == [2; 4096]);
}

#[test]
fn what_is_refused_is_left_as_it_was() {
    let place = Place::new();
    let forced = CreateOptions { force: true, ..options() };
    let image = place.directory.path().join("image");
    std::fs::write(&image, [5; 4096]).unwrap();
    let at = VolumeOptions { log: Some("/nonexistent/log".into()), ..place.at() };
    std::fs::write(&at.path, "precious").unwrap();
    tools::create(&at, &forced, &mut |_| {}).unwrap_err();
    tools::to_volume(&image, &at, &CreateOptions { size_bytes: 0, ..forced.clone() }, &mut |_| {}).unwrap_err();
    assert_eq!(std::fs::read(&at.path).unwrap(), b"precious");
    // Memory that was to be given up, for the volume's sake.
    let at = place.with_log();
    tools::create(&at, &forced, &mut |_| {}).unwrap();
    let served = serve(&at);
    put(&served, 0, &[1; 4096], false);
    served.abandon();
    let error = tools::replay(&place.at(), &GIVE_UP, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("--log"), "{error}");
    assert_eq!(tools::info(&at).unwrap().memory.unwrap().blocks, 1);
    assert_eq!(tools::replay(&at, &GIVE_UP, &mut |_| {}).unwrap().discarded_blocks, 1);
}

/// Power went when the superblock said the smaller size already, and nothing had been cut off.
#[test]
fn what_was_to_be_cut_off_does_not_come_back() {
    let place = Place::new();
    let at = place.at();
    let whole = tools::create(&at, &options(), &mut |_| {}).unwrap();
    let small = tools::resize(&at, SIZE / 2 + 512).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&at.path).unwrap();
    let end = small.data_offset + small.capacity_bytes;
    file.write_all_at(&vec![9; (whole.file_bytes - end) as usize], end).unwrap();
    file.sync_all().unwrap();
    drop(file);
    tools::resize(&at, SIZE).unwrap();
    assert!(get(&at, SIZE / 2, (SIZE / 2) as usize).iter().all(|byte| *byte == 0));
}

fn patterned(path: &Path, bytes: u64) -> Vec<u8> {
    let mut content = vec![0; bytes as usize];
    let file = std::fs::File::create(path).unwrap();
    file.set_len(bytes).unwrap();
    for (at, len) in [(512, 1000), (1 << 20, 300_000), ((5 << 20) + 100, 1), (bytes as usize - 512, 512)] {
        for (n, byte) in content[at..at + len].iter_mut().enumerate() {
            *byte = (n % 250) as u8 + 1;
        }
        file.write_all_at(&content[at..at + len], at as u64).unwrap();
    }
    content
}

#[test]
fn images_become_volumes_and_volumes_images() {
    let place = Place::new();
    let raw = place.directory.path().join("raw");
    let content = patterned(&raw, SIZE + 512);
    for at in [place.at(), VolumeOptions { path: place.directory.path().join("second"), ..place.with_log() }] {
        let mut last = 0;
        let whole = CreateOptions { size_bytes: 0, ..options() };
        let converted = tools::to_volume(&raw, &at, &whole, &mut |now| last = now.done_bytes).unwrap();
        assert_eq!(converted.capacity_bytes, SIZE + 512);
        assert_eq!(converted.copied.data_bytes + converted.copied.zero_bytes, SIZE + 512);
        assert_eq!(last, SIZE + 512);
        assert!(tools::info(&at).unwrap().clean);
        let allocated = std::fs::metadata(&at.path).unwrap().blocks() * 512;
        assert!(allocated < 3 << 20, "holes stay holes: {allocated}");
        assert!(get(&at, 0, content.len()) == content);
        assert!(tools::to_volume(&raw, &at, &whole, &mut |_| {}).unwrap_err().to_string().contains("--force"));
        let back = place.directory.path().join("back");
        tools::to_raw(&at, &back, false, &mut |_| {}).unwrap();
        assert!(std::fs::read(&back).unwrap() == content);
        assert!(std::fs::metadata(&back).unwrap().blocks() * 512 < 2 << 20);
        assert!(tools::to_raw(&at, &back, false, &mut |_| {}).unwrap_err().to_string().contains("--force"));
        std::fs::write(&back, vec![0xee; SIZE as usize * 2]).unwrap();
        tools::to_raw(&at, &back, true, &mut |_| {}).unwrap();
        assert!(std::fs::read(&back).unwrap() == content);
        std::fs::remove_file(&back).unwrap();
    }
    let larger = VolumeOptions { path: place.directory.path().join("third"), ..place.at() };
    tools::to_volume(&raw, &larger, &CreateOptions { size_bytes: 2 * SIZE, ..options() }, &mut |_| {}).unwrap();
    assert!(get(&larger, 0, content.len()) == content);
    assert_eq!(get(&larger, 2 * SIZE - 512, 512), [0; 512]);
    let smaller = CreateOptions { size_bytes: SIZE, force: true, ..options() };
    assert!(tools::to_volume(&raw, &larger, &smaller, &mut |_| {}).unwrap_err().to_string().contains("size"));
}

/// What was completed and not flushed is in the memory file, and comes back.
#[test]
fn memory_outlives_the_process() {
    for external in [false, true] {
        let place = Place::new();
        let at = if external { place.with_log() } else { place.at() };
        tools::create(&at, &options(), &mut |_| {}).unwrap();
        let file = place.memory.path().join("memory");
        let mut expected = vec![0; 64 << 10];
        for round in 1..6u8 {
            let served = serve(&at);
            let got = read(&mut Solo::new().unwrap(), &served, 0, expected.len());
            assert!(got == expected, "round {round}");
            assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
            let from = usize::from(round) * 5000 / 512 * 512;
            expected[from..from + 9216].fill(round);
            put(&served, from as u64, &expected[from..from + 9216], round % 2 == 0);
            put(&served, 512, &[round; 512], false);
            expected[512..1024].fill(round);
            served.abandon();
            let info = tools::info(&at).unwrap();
            assert!(info.memory.is_some_and(|memory| memory.blocks > 0 && memory.refused.is_none()), "round {round}");
        }
        let replayed = tools::replay(&at, &Discard::default(), &mut |_| {}).unwrap();
        assert!(replayed.memory_blocks > 0);
        assert!(!file.exists(), "it has gone");
        assert!(get(&at, 0, expected.len()) == expected);
    }
}

/// A memory file of an opening that was not the last one is not laid over what came since, and not dropped without a word.
#[test]
fn stale_memory_is_refused() {
    let place = Place::new();
    let at = place.at();
    tools::create(&at, &options(), &mut |_| {}).unwrap();
    let served = serve(&at);
    put(&served, 0, &[1; 4096], false);
    served.abandon();
    let other = VolumeOptions { memory_file: MemoryFile::None, ..at.clone() };
    tools::replay(&other, &GIVE_UP, &mut |_| {}).unwrap();
    let served = serve(&other);
    put(&served, 0, &[2; 512], false);
    drop(served);
    let error = tools::replay(&at, &Discard::default(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("1 blocks") && error.contains("--discard-memory"), "{error}");
    assert!(tools::info(&at).unwrap().memory.unwrap().refused.is_some());
    let replayed = tools::replay(&at, &GIVE_UP, &mut |_| {}).unwrap();
    assert_eq!((replayed.discarded_blocks, replayed.memory_blocks), (1, 0));
    assert_eq!(get(&at, 0, 512), [2; 512]);
    // And one of another volume.
    let second = Place::new();
    tools::create(&second.at(), &options(), &mut |_| {}).unwrap();
    let served = serve(&second.at());
    put(&served, 0, &[1; 4096], false);
    served.abandon();
    let foreign = VolumeOptions { memory_file: second.at().memory_file, ..at };
    let error = tools::replay(&foreign, &Discard::default(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, VolumeError::ForeignMemory { .. }), "{error}");
}

/// A volume whose server was killed with something that nobody had flushed.
fn killed(place: &Place) -> VolumeOptions {
    let at = place.at();
    tools::create(&at, &options(), &mut |_| {}).unwrap();
    let served = serve(&at);
    put(&served, 0, &[1; 4096], true);
    put(&served, 4096, &[2; 4096], false);
    served.abandon();
    at
}

fn refusal(at: &VolumeOptions) -> String {
    let served = open(&spec(at)).err().map(|error| error.to_string());
    let replayed = tools::replay(at, &Discard::default(), &mut |_| {}).err().map(|error| error.to_string());
    assert_eq!(served, replayed);
    served.expect("it opens without what guests wrote")
}

/// What a killed server had in memory is not passed over because it is looked for elsewhere, or has been removed.
#[test]
fn memory_that_is_not_found_again_is_missed() {
    let place = Place::new();
    let at = killed(&place);
    let (file, away) = (place.memory.path().join("memory"), place.memory.path().join("away"));
    let elsewhere = VolumeOptions { memory_file: MemoryFile::Path(place.memory.path().join("other")), ..at.clone() };
    let nowhere = VolumeOptions { memory_file: MemoryFile::None, ..at.clone() };
    let before = std::fs::read(&at.path).unwrap();
    for other in [&elsewhere, &nowhere] {
        let error = refusal(other);
        assert!(error.contains(file.to_str().unwrap()) && error.contains("--discard-memory"), "{error}");
        let info = tools::info(other).unwrap();
        assert!(info.memory.is_some_and(|memory| memory.path == file && memory.refused.is_some()));
    }
    std::fs::rename(&file, &away).unwrap();
    refusal(&at);
    // One that is there and is not it: of somebody who did not come far, and of an earlier life.
    std::fs::write(&file, "").unwrap();
    refusal(&at);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(std::fs::read_dir(place.memory.path()).unwrap().count(), 1, "refusals leave nothing behind");
    assert!(std::fs::read(&at.path).unwrap() == before, "and change nothing");
    // Found again, nothing is lost.
    let moved = VolumeOptions { memory_file: MemoryFile::Path(away), ..at };
    assert_eq!(get(&moved, 4096, 4096), [2; 4096]);
}

/// A copy has the volume's name, and nothing of what was in memory: that stays with the original.
#[test]
fn a_copy_does_not_take_the_memory_of_its_original() {
    let place = Place::new();
    let at = place.at();
    tools::create(&at, &options(), &mut |_| {}).unwrap();
    let served = serve(&at);
    put(&served, 0, &[1; 4096], true);
    let copy = VolumeOptions { path: place.directory.path().join("copy"), ..at.clone() };
    std::fs::copy(&at.path, &copy.path).unwrap();
    put(&served, 4096, &[2; 4096], false);
    served.abandon();
    let error = refusal(&copy);
    assert!(error.contains(copy.path.to_str().unwrap()) && error.contains("--memory-file none"), "{error}");
    assert!(tools::replay(&copy, &GIVE_UP, &mut |_| {}).is_err(), "it is not the copy's to give up");
    assert!(tools::info(&copy).unwrap().memory.unwrap().refused.is_some());
    let without = VolumeOptions { memory_file: MemoryFile::None, ..copy };
    tools::replay(&without, &GIVE_UP, &mut |_| {}).unwrap();
    assert_eq!(get(&without, 0, 4096), [1; 4096]);
    // Under another name the original is what it was.
    let moved = VolumeOptions { path: place.directory.path().join("moved"), ..at.clone() };
    std::fs::rename(&at.path, &moved.path).unwrap();
    assert_eq!(get(&moved, 4096, 4096), [2; 4096]);
}

/// Over a backup that was put back in place, memory of later would make a state that there never was.
#[test]
fn memory_is_not_laid_over_an_older_copy() {
    let place = Place::new();
    let at = place.at();
    tools::create(&at, &options(), &mut |_| {}).unwrap();
    let served = serve(&at);
    put(&served, 0, &[1; 4096], true);
    let backup = std::fs::read(&at.path).unwrap();
    put(&served, 4096, &[2; 4096], true);
    served.volume().unwrap().sync_now().unwrap();
    put(&served, 8192, &[3; 4096], false);
    served.abandon();
    // In place: it is the same file.
    std::fs::write(&at.path, backup).unwrap();
    let error = refusal(&at);
    assert!(error.contains("older copy") && error.contains("--discard-memory"), "{error}");
    let replayed = tools::replay(&at, &GIVE_UP, &mut |_| {}).unwrap();
    assert_eq!((replayed.discarded_blocks, replayed.memory_blocks), (1, 0));
    let got = get(&at, 0, 12288);
    assert!(got[..4096] == [1; 4096] && got[4096..] == [0; 8192]);
}

#[test]
fn memory_of_an_earlier_life_is_not_that_of_the_last() {
    let place = Place::new();
    let at = place.at();
    tools::create(&at, &options(), &mut |_| {}).unwrap();
    let (file, early) = (place.memory.path().join("memory"), place.memory.path().join("early"));
    let served = serve(&at);
    put(&served, 0, &[1; 4096], false);
    served.volume().unwrap().sync_now().unwrap();
    std::fs::copy(&file, &early).unwrap();
    drop(served);
    let served = serve(&at);
    put(&served, 0, &[2; 4096], false);
    served.abandon();
    std::fs::rename(&early, &file).unwrap();
    refusal(&at);
}

#[test]
fn missing_memory_is_given_up_by_who_says_so() {
    for how in 0..3 {
        let place = Place::new();
        let mut at = killed(&place);
        let file = place.memory.path().join("memory");
        match how {
            0 => std::fs::remove_file(&file).unwrap(),
            1 => std::fs::write(&file, "").unwrap(),
            // It stays where it is, and must not be taken for that of the next life.
            _ => at.memory_file = MemoryFile::None,
        }
        let replayed = tools::replay(&at, &GIVE_UP, &mut |_| {}).unwrap();
        assert_eq!((replayed.discarded_blocks, replayed.memory_blocks, replayed.log.records), (0, 0, 1), "{how}");
        assert_eq!(replayed.missing_memory.as_ref(), Some(&file), "{how}");
        let got = get(&at, 0, 8192);
        assert!(got[..4096] == [1; 4096] && got[4096..] == [0; 4096], "{how}");
        if how == 2 {
            let error = refusal(&place.at());
            assert!(error.contains("another opening"), "{error}");
        }
    }
}

/// Memory does not outlive the machine's: what power or a copy to another machine took is no reason to refuse.
#[test]
fn memory_of_another_boot_is_not_missed() {
    for boot in [Some(0x0123_4567_89ab_4def_8123_4567_89ab_cdef), None] {
        let place = Place::new();
        let at = killed(&place);
        power_cut(&place, &at, boot);
        let got = get(&at, 0, 8192);
        assert!(got[..4096] == [1; 4096] && got[4096..] == [0; 4096]);
    }
}

/// The log that was lost is given up by `log remove --lost`, and not what the memory held besides.
#[test]
fn missing_memory_is_missed_when_the_log_is_lost_too() {
    let place = Place::new();
    let mut at = place.with_log();
    tools::create(&at, &options(), &mut |_| {}).unwrap();
    let served = serve(&at);
    put(&served, 4096, &[2; 4096], false);
    served.abandon();
    std::fs::remove_file(at.log.take().unwrap()).unwrap();
    std::fs::remove_file(place.memory.path().join("memory")).unwrap();
    tools::log_remove(&at, true, &mut |_| {}).unwrap();
    refusal(&at);
    let raw = place.directory.path().join("raw");
    for error in [
        tools::to_raw(&at, &raw, false, &mut |_| {}).unwrap_err(),
        tools::resize(&at, SIZE / 2).unwrap_err(),
        tools::log_add(&place.with_log(), LOG, false, &mut |_| {}).unwrap_err(),
    ] {
        assert!(error.to_string().contains("vringd volume replay"), "{error}");
    }
    tools::replay(&at, &GIVE_UP, &mut |_| {}).unwrap();
    tools::to_raw(&at, &raw, false, &mut |_| {}).unwrap();
}

#[test]
fn options_out_of_range_are_named() {
    let place = Place::new();
    let at = place.at();
    tools::create(&at, &options(), &mut |_| {}).unwrap();
    for bytes in [0, (64 << 30) + 1] {
        let spec = VolumeOptions { dirty_memory: ByteSize(bytes), sync: SyncMode::Always, ..spec(&at) };
        let error = open(&spec).err().unwrap().to_string();
        assert!(error.contains("dirty_memory"), "{error}");
    }
    let on_disk = place.directory.path().join("memory");
    let spec = VolumeOptions { memory_file: MemoryFile::Path(on_disk.clone()), ..spec(&at) };
    let error = open(&spec).err().unwrap().to_string();
    assert!(error.contains("tmpfs") && !on_disk.exists(), "{error}");
    std::fs::write(place.memory.path().join("memory"), [7; 8192]).unwrap();
    let error = tools::replay(&at, &Discard::default(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, VolumeError::NoMemoryFile { .. }), "{error}");
}
