//! Containers that are open, against a vector and against themselves.

use super::LuksStorage;
use crate::testing::{PASSPHRASE, bytes, cheap};
use crate::{LuksError, Passphrase};
use engine::{Solo, Token};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;
use storage::{Execution, FileOptions, FileStorage, Operation, SimOptions, Step, Storage, StorageError, Task};
use testkit::storage::{Move, disk, moves, play, read, run, run_together, shm, write};
use values::Luks;

/// Bytes of the disks of these tests.
const DISK_BYTES: u64 = 256 << 10;

/// A file with a container, and one with its passphrase.
struct Files(tempfile::TempDir);

impl Files {
    fn new(directory: std::path::PathBuf, version: u16, sector_bytes: u32) -> Files {
        let directory = tempfile::TempDir::new_in(directory).unwrap();
        let files = Files(directory);
        std::fs::write(files.container(), bytes(&cheap(version, 64, sector_bytes), 5)).unwrap();
        let file = std::fs::File::options().write(true).open(files.container()).unwrap();
        file.set_len(file.metadata().unwrap().len() + DISK_BYTES).unwrap();
        files.write_key(PASSPHRASE);
        files
    }

    fn container(&self) -> std::path::PathBuf {
        self.0.path().join("container")
    }

    fn key_file(&self) -> std::path::PathBuf {
        self.0.path().join("key")
    }

    fn write_key(&self, key: &[u8]) {
        std::fs::write(self.key_file(), key).unwrap();
        allow(&self.key_file(), 0o600);
    }

    fn lower(&self) -> Arc<FileStorage> {
        Arc::new(FileStorage::open(&FileOptions::new(self.container())).unwrap())
    }

    fn open(&self) -> LuksStorage {
        self.over(self.lower(), false)
    }

    fn over(&self, lower: Arc<dyn Storage>, allow_discards: bool) -> LuksStorage {
        LuksStorage::unlock(lower, &Passphrase::read(&self.key_file()).unwrap(), allow_discards).unwrap()
    }
}

fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
}

/// What `cryptsetup reencrypt --encrypt` 2.6.1 has made: header and key material, up to where the one slot ends, then the first 8 KiB of
/// data, in sectors of 4096 bytes. The key has 256 bits, argon2id passes four times over 64 KiB in two lanes.
const FROM_CRYPTSETUP: &[u8] = include_bytes!("../../tests/cryptsetup.luks2");

#[test]
fn what_cryptsetup_has_encrypted_is_read_and_written() {
    let files = Files::new(shm(), 2, 512);
    let (header, data) = FROM_CRYPTSETUP.split_at(FROM_CRYPTSETUP.len() - 8192);
    let at = 512 << 10;
    let image = [header, &vec![0; at - header.len()], data].concat();
    std::fs::write(files.container(), &image).unwrap();
    let info = crate::tools::info(&files.container()).unwrap().unwrap();
    assert_eq!((info.version, &*info.label, info.size_bytes), (2, "fixture", 8192));
    assert_eq!((info.key_bits, info.sector_bytes, info.data_offset), (256, 4096, at as u64));
    assert_eq!((info.slots.len(), info.slots[0].kdf), (1, Some("argon2id")));
    let storage = files.open();
    let mut solo = Solo::new().unwrap();
    let plain: Vec<u8> = (0..8192).map(|at| ((at / 512 * 7 + at % 512 * 3) % 251) as u8).collect();
    assert_eq!(read(&mut solo, &storage, 0, 8192), plain);
    // The same data give the same bytes as cryptsetup wrote.
    zero(&storage);
    assert_ne!(std::fs::read(files.container()).unwrap(), image);
    write(&mut solo, &storage, 0, &plain).unwrap();
    assert_eq!(std::fs::read(files.container()).unwrap(), image);
}

/// The same history for sectors of another size, without growth, behind which there is noise.
fn in_sectors(history: &[Move], sectors: u64) -> Vec<Move> {
    let whole = |at: u64, len: u64| (at / sectors * sectors, len.next_multiple_of(sectors));
    let mut out = Vec::new();
    for step in history {
        let mut step = step.clone();
        match &mut step {
            Move::Grow { .. } => continue,
            Move::Read { at, sectors, .. }
            | Move::Write { at, sectors, .. }
            | Move::Discard { at, sectors }
            | Move::Zero { at, sectors, .. } => (*at, *sectors) = whole(*at, *sectors),
            Move::Flush | Move::Execute(_) => {}
        }
        out.push(step);
    }
    out
}

fn zero(storage: &dyn Storage) {
    let mut task = Task::new();
    task.begin(Operation::WriteZeroes { offset: 0, len: storage.capacity_bytes(), unmap: true, durable: true });
    run(&mut Solo::new().unwrap(), storage, &mut task).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn a_container_is_a_vector(
        history in moves(vec![Execution::Inline, Execution::Uring, Execution::Pool(2)], DISK_BYTES / 512),
        version in 1u16..3, shift in 0u32..4, on_tmpfs: bool,
    ) {
        let sector_bytes = if version == 1 { 512 } else { 512 << shift };
        let files = Files::new(if on_tmpfs { shm() } else { disk() }, version, sector_bytes);
        let storage = files.open();
        zero(&storage);
        let contents = play(&storage, &in_sectors(&history, u64::from(sector_bytes / 512)));
        // As after a kill: everything is in the file.
        drop(storage);
        let again = files.open();
        prop_assert_eq!(read(&mut Solo::new().unwrap(), &again, 0, contents.len()), contents);
    }
}

#[test]
fn what_lies_below_is_no_plaintext_and_never_twice_the_same() {
    let files = Files::new(shm(), 2, 512);
    let storage = files.open();
    let offset = storage.data.offset;
    let mut solo = Solo::new().unwrap();
    write(&mut solo, &storage, 0, &[0xaa; DISK_BYTES as usize]).unwrap();
    drop(storage);
    let below = std::fs::read(files.container()).unwrap();
    let mut blocks: Vec<&[u8]> = below[offset as usize..].chunks(16).collect();
    blocks.sort_unstable();
    let count = blocks.len();
    blocks.dedup();
    assert_eq!((blocks.len(), blocks.contains(&&[0xaa; 16][..])), (count, false));
}

#[test]
fn parts_of_sectors_and_what_is_outside_are_refused() {
    let files = Files::new(shm(), 2, 4096);
    let storage = files.open();
    assert_eq!((storage.describe().block_size_bytes, storage.capacity_bytes()), (4096, DISK_BYTES));
    let mut solo = Solo::new().unwrap();
    for (offset, len) in [(512, 4096), (0, 512), (0, 4096 + 512)] {
        let error = write(&mut solo, &storage, offset, &vec![1; len]).unwrap_err();
        assert!(matches!(error, StorageError::Partial { block_bytes: 4096, .. }), "{error}");
    }
    let error = write(&mut solo, &storage, DISK_BYTES, &[1; 4096]).unwrap_err();
    assert!(matches!(error, StorageError::OutOfRange(_)));
    for operation in [
        Operation::Discard { offset: 512, len: 512 },
        Operation::WriteZeroes { offset: 0, len: 512, unmap: false, durable: false },
    ] {
        let mut task = Task::new();
        task.begin(operation);
        assert!(run(&mut solo, &storage, &mut task).is_err());
    }
    // Not aligned to the sectors is not aligned to anything.
    assert!(storage.resize(DISK_BYTES + 512).unwrap_err().to_string().contains("use a multiple of that"));
    storage.resize(DISK_BYTES + 8192).unwrap();
    assert_eq!(storage.capacity_bytes(), DISK_BYTES + 8192);
    assert!(matches!(storage.resize(4096), Err(StorageError::Grow { .. })));
    write(&mut solo, &storage, DISK_BYTES + 4096, &[7; 4096]).unwrap();
    drop(storage);
    assert_eq!(read(&mut solo, &files.open(), DISK_BYTES + 4096, 4096), [7; 4096]);
}

#[test]
fn more_requests_than_buffers_wait_for_one_and_all_end() {
    let files = Files::new(disk(), 1, 512);
    let storage = files.open();
    storage.set_execution(Execution::Uring).unwrap();
    let mut solo = Solo::new().unwrap();
    // Longer than a buffer, and more of them than there are.
    let len = 96 << 10;
    let mut data = vec![3; len];
    for round in 0..2 {
        let mut tasks: Vec<Task> = (0..400)
            .map(|_| {
                let mut task = Task::new();
                task.buffers = vec![libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: len }];
                task.begin(match round {
                    0 => Operation::Write { offset: 4096, durable: false },
                    _ => Operation::Read { offset: 4096 },
                });
                task
            })
            .collect();
        run_together(&mut solo, &storage, &mut tasks);
        assert!(storage.pool.has_plenty() && !storage.pool.is_wanted());
    }
    assert_eq!(data, vec![3; len]);
}

#[test]
fn a_task_that_is_dropped_in_line_or_with_buffers_leaves_them_to_others() {
    let files = Files::new(disk(), 1, 512);
    let storage = files.open();
    storage.set_execution(Execution::Uring).unwrap();
    let mut solo = Solo::new().unwrap();
    let mut data = vec![3; 4096];
    let mut tasks: Vec<Task> = (0..300)
        .map(|_| {
            let mut task = Task::new();
            task.buffers = vec![libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() }];
            task.begin(Operation::Read { offset: 0 });
            task
        })
        .collect();
    let mut pending = 0;
    for (token, task) in tasks.iter_mut().enumerate() {
        match storage.start(task, Token::request(token as u16), &mut solo.io()) {
            Step::Done(result) => result.unwrap(),
            Step::Pending => pending += 1,
        }
    }
    assert_eq!(pending, 300);
    assert!(storage.pool.is_wanted());
    // As the end of a ring that fell: nobody resumes them, and the kernel has let go of them when all have completed.
    tasks.iter_mut().for_each(Task::lost);
    for _ in 0..300 {
        solo.wait().unwrap();
    }
    drop(tasks);
    assert!(storage.pool.has_plenty() && !storage.pool.is_wanted());
    assert_eq!(read(&mut solo, &storage, 0, 512).len(), 512);
}

#[test]
fn errors_of_the_storage_below_are_the_disks() {
    let files = Files::new(shm(), 2, 512);
    let image = std::fs::read(files.container()).unwrap();
    let size = values::ByteSize(image.len() as u64);
    let sim = SimOptions { write_error_rate: Some(1.0), ..SimOptions::new(size) };
    let fails = storage::open(&sim).unwrap();
    let refused = LuksStorage::unlock(fails.clone(), &Passphrase::read(&files.key_file()).unwrap(), false);
    assert!(matches!(refused, Err(LuksError::Format { .. })), "nothing is there");
    let key = files.open().key.clone();
    let data = files.open().data;
    let storage = LuksStorage::new(fails, data, key, false).unwrap();
    let mut solo = Solo::new().unwrap();
    assert!(write(&mut solo, &storage, 0, &[1; 512]).is_err());
    assert!(write(&mut solo, &storage, 0, &vec![1; 200 << 10]).is_err());
    assert!(storage.pool.has_plenty());
}

#[test]
fn discards_are_passed_on_where_that_is_allowed() {
    use std::os::unix::fs::MetadataExt;
    for allowed in [false, true] {
        let files = Files::new(shm(), 1, 512);
        let storage = files.over(files.lower(), allowed);
        assert_eq!(storage.describe().discard, allowed);
        let mut solo = Solo::new().unwrap();
        write(&mut solo, &storage, 0, &vec![1; DISK_BYTES as usize]).unwrap();
        let blocks = || std::fs::metadata(files.container()).unwrap().blocks();
        let before = blocks();
        let mut task = Task::new();
        task.begin(Operation::Discard { offset: 0, len: DISK_BYTES });
        run(&mut solo, &storage, &mut task).unwrap();
        assert_eq!(blocks() < before, allowed);
        assert_eq!(read(&mut solo, &storage, 0, 512) == [1; 512], !allowed);
        // What is there or not is nobody's to know: no hole is told.
        assert_eq!(storage.extents(0..DISK_BYTES, 9).unwrap(), [storage::Extent { bytes: DISK_BYTES, data: true }]);
    }
}

#[test]
fn another_program_goes_on_without_the_key_file() {
    let files = Files::new(shm(), 2, 4096);
    let storage = files.open();
    let mut solo = Solo::new().unwrap();
    write(&mut solo, &storage, 8192, &[9; 4096]).unwrap();
    let handed = storage.hand_over().unwrap();
    std::fs::remove_file(files.key_file()).unwrap();
    drop(storage);
    let luks = Luks::new(files.key_file());
    let key = handed.memory.as_ref().unwrap().try_clone().unwrap();
    let options = FileOptions::new(files.container());
    let adopted = super::adopt(&luks, handed, |below| storage::Kind::adopt(&options, below)).unwrap();
    assert_eq!(adopted.describe().kind, "luks");
    assert_eq!(read(&mut solo, &*adopted, 8192, 4096), [9; 4096]);
    // It is wiped where it was.
    let mut left = [1; 104];
    std::os::unix::fs::FileExt::read_exact_at(&std::fs::File::from(key), &mut left, 0).unwrap();
    assert_eq!(left, [0; 104]);
    let mut foreign = adopted.hand_over().unwrap();
    foreign.memory = None;
    assert!(super::adopt(&luks, foreign, |below| storage::Kind::adopt(&options, below)).is_err());
}

#[test]
fn a_key_that_does_not_fit_is_refused_in_one_line() {
    let files = Files::new(shm(), 1, 512);
    let fault = |files: &Files| {
        let opened = Passphrase::read(&files.key_file())
            .and_then(|passphrase| LuksStorage::unlock(files.lower(), &passphrase, false));
        opened.err().unwrap().to_string()
    };
    files.write_key(b"wrong");
    let (container, key) = (files.container(), files.key_file());
    let expected = format!(
        "{}: no key slot opens with this key, of which every byte counts, a newline at its end too (luks.key_file: {})",
        container.display(),
        key.display()
    );
    assert_eq!(fault(&files), expected);
    files.write_key(b"");
    assert!(fault(&files).ends_with("is empty: write the passphrase into it, without a newline"));
    files.write_key(PASSPHRASE);
    allow(&key, 0o604);
    assert!(fault(&files).ends_with("may be read or written by anybody: `chmod o= FILE` takes that back"));
    std::fs::remove_file(&key).unwrap();
    assert!(fault(&files).contains("luks.key_file: "));
    files.write_key(PASSPHRASE);
    let offset = files.open().data.offset;
    std::fs::File::options().write(true).open(&container).unwrap().set_len(offset).unwrap();
    assert!(fault(&files).contains("the container is cut short"));
    std::fs::write(&container, [0; 1 << 16]).unwrap();
    assert!(fault(&files).ends_with("is no LUKS container: it begins with something else"));
}
