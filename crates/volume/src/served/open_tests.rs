use super::*;
use crate::served::epoch::EPOCH_STEP_MIN;
use crate::served::left::close_again;
use crate::served::tools;
use std::sync::atomic::Ordering;
use storage::OPENING_UNKNOWN;

/// A volume in `directory` that changes hands.
fn made(directory: &Path, name: &str) -> VolumeOptions {
    let memory_file = MemoryFile::Path(directory.join(name).with_extension("memory"));
    let at = VolumeOptions { memory_file, migratable: true, ..VolumeOptions::new(directory.join(name)) };
    let options =
        tools::CreateOptions { size_bytes: 1 << 20, log_bytes: 1 << 20, force: false, created_by: "a test".to_owned() };
    tools::create(&at, &options, &mut |_| {}).unwrap();
    at
}

fn change(at: &VolumeOptions, change: impl FnOnce(&mut Superblock)) -> Superblock {
    let file = Arc::new(FileStorage::open(&at.file(&at.path, false)).unwrap());
    let mut blocks = way(&at.path, file).unwrap();
    let mut superblock = read_superblock(&mut blocks).unwrap();
    change(&mut superblock);
    write_superblock(&mut blocks, &mut superblock).unwrap();
    superblock
}

/// There is no word of memory in what an opening writes first, nor in what one without a memory file writes.
#[test]
fn a_volume_that_is_being_opened_elsewhere_is_not_taken() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = made(directory.path(), "disk");
    let MemoryFile::Path(memory) = &at.memory_file else { unreachable!("it has a path") };
    let open = || at.open().map(drop).map_err(|error| error.to_string());
    let superblock = change(&at, |superblock| superblock.clean = false);
    assert!(open().unwrap_err().contains("was not given up") && !memory.exists());
    // A killed opening of this host has left its file, however far it was.
    std::fs::write(memory, "").unwrap();
    open().unwrap();
    let left = |epoch: u64| {
        let file = Memory::open(&at.memory_file, &superblock, None).unwrap();
        drop(file.cache(&Contents::Blank, &Superblock { epoch, ..superblock.clone() }, 1 << 20).unwrap());
    };
    left(superblock.epoch);
    open().unwrap();
    // And one that others have gone on without says nothing.
    left(superblock.epoch + EPOCH_STEP_MIN);
    assert!(open().unwrap_err().contains("was not given up"));
}

#[test]
fn a_volume_that_gets_no_memory_is_closed_again() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = made(directory.path(), "disk");
    let opened = OpenedVolume::new(&at).unwrap();
    let memory = opened.memory.shown();
    let fd = std::fs::File::open(&memory).unwrap().into();
    let unusable = OpenedVolume { memory: Memory { fd, ..opened.memory }, ..opened };
    assert!(matches!(unusable.start(), Err(VolumeError::Memory { .. })));
    assert!(tools::info(&at).unwrap().clean && !memory.exists());
    drop(at.open().unwrap().start().unwrap());
}

/// Locks of a device are each host's own, and memory is too: what another host has not given up is not taken.
#[test]
fn a_volume_that_was_not_given_up_elsewhere_is_not_taken() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let here = made(directory.path(), "here");
    let there = VolumeOptions {
        path: directory.path().join("there"),
        memory_file: MemoryFile::Path(directory.path().join("there.memory")),
        ..here.clone()
    };
    let served = here.open().unwrap().start().unwrap();
    // As another host sees it, which has neither these locks nor that memory.
    std::fs::copy(&here.path, &there.path).unwrap();
    let refused = || there.open().map(drop).unwrap_err().to_string();
    assert!(refused().contains("is the memory file that volume"), "{}", refused());
    let other = crate::format::Uuid::from_u128(7);
    change(&there, |superblock| superblock.memory.as_mut().unwrap().boot = other);
    assert!(refused().contains("was not given up") && refused().contains("vringd volume replay"), "{}", refused());
    there.look().unwrap();
    // Whoever knows that the other one is gone says so.
    let known = VolumeOptions { migratable: false, ..there.clone() };
    tools::replay(&known, &tools::Discard::default(), &mut |_| {}).unwrap();
    drop(there.open().unwrap());
    drop(served);
    drop(here.open().unwrap());
}

/// Not even the kernel has any for this thread: what is dirty in the page cache is written before it is read past that.
#[test]
fn no_thread_is_there_before_it_starts() {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let workers = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        let mine = format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero());
        names.filter(|name| name.trim() == mine).count()
    };
    // Threads of others are made here.
    let at = std::thread::scope(|scope| scope.spawn(|| made(directory.path(), "from")).join().unwrap());
    for migratable in [false, true] {
        let memory_file = MemoryFile::Path(memory.path().join("memory"));
        let at = VolumeOptions { path: directory.path().join("disk"), memory_file, migratable, ..at.clone() };
        std::fs::copy(directory.path().join("from"), &at.path).unwrap();
        at.look().unwrap();
        assert_eq!(workers(), 0);
        drop(at.open().unwrap());
        assert_eq!(workers(), 0);
    }
}

/// A reader locks it as well, and closes nothing.
#[test]
fn what_is_left_is_closed_by_another_opening_or_tried_again() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = made(directory.path(), "disk");
    let shut = || whole_superblock(&at.path, &at.reader(&at.path).unwrap()).unwrap().clean;
    let left = || {
        let storage = at.open().unwrap().start().unwrap();
        let opening = AtomicU64::new(storage.volume().unwrap().opening());
        let left = [at.path.clone(), at.path.with_extension("memory")].map(|path| (std::fs::read(&path), path));
        drop(storage);
        left.into_iter().for_each(|(bytes, path)| std::fs::write(path, bytes.unwrap()).unwrap());
        assert!(!shut());
        opening
    };
    let other = || VolumeOptions { migratable: false, ..at.clone() }.open().unwrap().start().unwrap();
    // One that cannot be told could be any.
    for is_known in [true, false] {
        let opening = left();
        if !is_known {
            opening.store(OPENING_UNKNOWN, Ordering::Relaxed);
        }
        let reader = FileStorage::open(&at.file(&at.path, true)).unwrap();
        assert!(matches!(at.close_left(&opening), Err(OpenError::Locked { .. })));
        assert!(!shut());
        drop(reader);
        at.close_left(&opening).unwrap();
        assert!(shut());
    }
    // So do those who have gone on with it, whose it is to close.
    let opening = left();
    let goes_on = other();
    at.close_left(&opening).unwrap();
    assert!(!shut());
    drop(goes_on);
    assert!(shut());
    at.close_left(&opening).unwrap();
    // What another opening has left, which has the memory here, is closed.
    let opening = left();
    assert!(left().into_inner() > opening.load(Ordering::Relaxed));
    at.close_left(&opening).unwrap();
    assert!(shut());
}

/// It is then left in another opening.
#[test]
fn a_close_that_fails_again_is_tried_again() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let at = made(directory.path(), "disk");
    let opening = AtomicU64::new(change(&at, |superblock| superblock.clean = false).epoch);
    let opened = || OpenedVolume::new(&VolumeOptions { migratable: false, ..at.clone() }).unwrap();
    let fails = || {
        let opened = opened();
        // Nothing can be mapped by this descriptor: its log is replayed, and that is all.
        let fd = std::fs::File::open(opened.memory.shown()).unwrap().into();
        let unusable = OpenedVolume { memory: Memory { fd, ..opened.memory }, ..opened };
        close_again(unusable, &at, &opening).unwrap_err();
        std::fs::write(at.path.with_extension("memory"), "").unwrap();
    };
    for _ in 0..3 {
        let before = opening.load(Ordering::Relaxed);
        fails();
        let epoch = change(&at, |superblock| superblock.clean = false).epoch;
        assert!(epoch > before && opening.load(Ordering::Relaxed) == epoch);
    }
    at.close_left(&opening).unwrap();
    assert!(whole_superblock(&at.path, &at.reader(&at.path).unwrap()).unwrap().clean);
}
