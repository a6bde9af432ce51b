//! What a storage refuses, and in which words.

use engine::{Solo, Token};
use std::time::Duration;
use storage::{
    Action, Distribution, Execution, FileOptions, FileStorage, Kind, MemoryOptions, NullOptions, OpenError, Operation,
    SimOptions, Step, Storage, StorageError, Task,
};
use testkit::storage::{disk, image, read, run, shm, write};
use values::{ByteSize, Span};

fn refusal(spec: &dyn Kind) -> String {
    storage::open(spec).err().expect("must be refused").to_string()
}

#[test]
fn errors_name_the_path_and_the_fix() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| FileOptions::new(directory.path().join(name));
    let text = refusal(&file("absent"));
    assert!(text.contains("absent") && text.contains("truncate -s SIZE"), "{text}");

    std::fs::write(directory.path().join("tiny"), [0; 100]).unwrap();
    let text = refusal(&file("tiny"));
    assert!(text.contains("tiny") && text.contains("100 bytes"), "{text}");

    let text = refusal(&FileOptions { read_only: true, ..FileOptions::new(directory.path()) });
    assert!(text.contains("is a directory"), "{text}");

    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let text = refusal(&FileOptions::new(&fifo));
    assert!(text.contains("named pipe"), "{text}");

    let text = refusal(&FileOptions { read_only: true, ..FileOptions::new("/dev/null") });
    assert!(text.contains("character device"), "{text}");
}

#[test]
fn two_writers_cannot_open_one_image() {
    let image = image(disk(), 1 << 20);
    let options = FileOptions::new(image.path());
    let reader = FileOptions { read_only: true, ..options.clone() };
    let first = FileStorage::open(&options).unwrap();
    for second in [&options, &reader] {
        let Err(error) = FileStorage::open(second) else { panic!("two on one image") };
        let text = error.to_string();
        assert!(matches!(error, OpenError::Locked { .. }), "{text}");
        assert!(text.contains("another export of this process") && text.contains("--no-lock"), "{text}");
    }
    // The way out, and the way back.
    drop(FileStorage::open(&FileOptions { lock: false, ..options.clone() }).unwrap());
    drop(first);
    let readers = [FileStorage::open(&reader).unwrap(), FileStorage::open(&reader).unwrap()];
    assert!(FileStorage::open(&options).is_err());
    drop(readers);
    FileStorage::open(&options).unwrap();
}

#[test]
fn a_mapped_file_is_locked_as_well() {
    let image = image(shm(), 1 << 20);
    let options = MemoryOptions { path: Some(image.path().to_owned()), ..MemoryOptions::default() };
    let memory = storage::open(&options).unwrap();
    assert!(matches!(FileStorage::open(&FileOptions::new(image.path())), Err(OpenError::Locked { .. })));
    drop(memory);
    FileStorage::open(&FileOptions::new(image.path())).unwrap();
}

fn every_kind() -> Vec<(&'static str, std::sync::Arc<dyn Storage>, Option<tempfile::NamedTempFile>)> {
    let bytes = 64 * 512;
    let on_disk = image(disk(), bytes);
    let on_shm = image(shm(), bytes);
    let direct = image(disk(), bytes);
    let open = |spec: &dyn Kind| storage::open(spec).unwrap();
    vec![
        ("disk", open(&FileOptions::new(on_disk.path())), Some(on_disk)),
        ("tmpfs", open(&FileOptions::new(on_shm.path())), Some(on_shm)),
        ("direct", open(&FileOptions { direct: true, ..FileOptions::new(direct.path()) }), Some(direct)),
        ("memory", open(&MemoryOptions { size: Some(ByteSize(bytes)), ..MemoryOptions::default() }), None),
        ("null", open(&NullOptions { size: ByteSize(bytes), zeroes: true, ..NullOptions::default() }), None),
        ("sim", open(&SimOptions { size: ByteSize(bytes), ..SimOptions::default() }), None),
    ]
}

#[test]
fn nothing_reaches_beyond_the_capacity() {
    let mut solo = Solo::new().unwrap();
    for (name, storage, _image) in every_kind() {
        let mut data = vec![1; 1024];
        let capacity = storage.capacity_bytes();
        let mut task = Task::new();
        task.buffers = vec![libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: 1024 }];
        let len = 1024;
        for offset in [capacity - 512, capacity, 1 << 63, u64::MAX - 511] {
            for operation in [
                Operation::Read { offset },
                Operation::Write { offset, durable: true },
                Operation::Discard { offset, len },
                Operation::WriteZeroes { offset, len, unmap: true, durable: false },
            ] {
                task.begin(operation);
                let result = run(&mut solo, storage.as_ref(), &mut task);
                assert!(matches!(result, Err(StorageError::OutOfRange(_))), "{name}: {operation:?}: {result:?}");
            }
        }
        task.begin(Operation::Read { offset: 100 });
        let result = run(&mut solo, storage.as_ref(), &mut task);
        assert!(matches!(result, Err(StorageError::OutOfRange(Action::Read))), "{name}");
        task.begin(Operation::Write { offset: capacity - 1024, durable: true });
        run(&mut solo, storage.as_ref(), &mut task).unwrap();
        task.begin(Operation::Flush);
        run(&mut solo, storage.as_ref(), &mut task).unwrap();
    }
}

#[test]
fn nothing_to_transfer_is_done_at_once() {
    let mut solo = Solo::new().unwrap();
    for (name, storage, _image) in every_kind().into_iter().filter(|kind| kind.0 != "sim") {
        let mut task = Task::new();
        for operation in [Operation::Read { offset: 512 }, Operation::Write { offset: 512, durable: false }] {
            task.begin(operation);
            let step = storage.start(&mut task, Token::request(1), &mut solo.io());
            assert!(matches!(step, Step::Done(Ok(()))), "{name}");
        }
    }
}

#[test]
fn sizes_grow_and_do_not_shrink() {
    let mut solo = Solo::new().unwrap();
    for (name, storage, image) in every_kind() {
        let before = storage.capacity_bytes();
        let small = storage.resize(before - 512);
        assert!(matches!(small, Err(StorageError::Shrink { .. })), "{name}: {small:?}");
        assert!(matches!(storage.resize(before + 100), Err(StorageError::Unaligned(_))), "{name}");
        assert_eq!(storage.capacity_bytes(), before);
        storage.resize(before).unwrap();
        storage.resize(before + 4096).unwrap();
        assert_eq!(storage.capacity_bytes(), before + 4096);
        assert_eq!(read(&mut solo, storage.as_ref(), before, 4096), [0; 4096], "{name}");
        if let Some(image) = image {
            assert_eq!(std::fs::metadata(image.path()).unwrap().len(), before + 4096, "{name}");
        }
    }
}

#[test]
fn a_file_that_others_have_grown_is_not_cut() {
    let image = image(disk(), 1 << 20);
    let storage = FileStorage::open(&FileOptions::new(image.path())).unwrap();
    image.as_file().set_len(4 << 20).unwrap();
    storage.resize(2 << 20).unwrap();
    assert_eq!(storage.capacity_bytes(), 2 << 20);
    assert_eq!(image.as_file().metadata().unwrap().len(), 4 << 20);
}

#[test]
fn a_file_that_others_have_cut_reads_as_zeroes() {
    let mut solo = Solo::new().unwrap();
    for directory in [disk(), shm()] {
        for direct in [false, true] {
            for execution in [Execution::Inline, Execution::Uring, Execution::Pool(1)] {
                let image = image(directory.clone(), 64 * 512);
                let options = FileOptions { direct, execution, ..FileOptions::new(image.path()) };
                let storage = FileStorage::open(&options).unwrap();
                write(&mut solo, &storage, 0, &[9; 64 * 512]).unwrap();
                image.as_file().set_len(10 * 512 + 100).unwrap();
                let seen = read(&mut solo, &storage, 0, 64 * 512);
                assert!(seen[..10 * 512 + 100].iter().all(|b| *b == 9), "{directory:?} {direct} {execution}");
                assert!(seen[10 * 512 + 100..].iter().all(|b| *b == 0), "{directory:?} {direct} {execution}");
            }
        }
    }
}

#[test]
fn a_read_only_image_refuses_changes() {
    let mut solo = Solo::new().unwrap();
    let image = image(shm(), 1 << 20);
    let fill = vec![3; 1 << 20];
    std::fs::write(image.path(), &fill).unwrap();
    let path = image.path().to_owned();
    let file = FileOptions { read_only: true, ..FileOptions::new(&path) };
    let memory = MemoryOptions { read_only: true, path: Some(path), ..MemoryOptions::default() };
    for spec in [&file as &dyn Kind, &memory] {
        let storage = storage::open(spec).unwrap();
        let about = storage.describe();
        assert!(about.read_only && !about.discard && !about.write_zeroes);
        assert!(matches!(write(&mut solo, storage.as_ref(), 0, &[1; 512]), Err(StorageError::ReadOnly(Action::Write))));
        let mut task = Task::new();
        for operation in [
            Operation::Discard { offset: 0, len: 512 },
            Operation::WriteZeroes { offset: 0, len: 512, unmap: false, durable: false },
        ] {
            task.begin(operation);
            let result = run(&mut solo, storage.as_ref(), &mut task);
            assert!(matches!(result, Err(StorageError::ReadOnly(_))));
        }
        task.begin(Operation::Flush);
        run(&mut solo, storage.as_ref(), &mut task).unwrap();
        assert_eq!(read(&mut solo, storage.as_ref(), 0, 1 << 20), fill);
        assert!(storage.resize(2 << 20).is_err());
    }
}

#[test]
fn opening_an_image_changes_nothing_of_it() {
    for directory in [disk(), shm()] {
        let image = image(directory, 0);
        let fill: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8 | 1).collect();
        std::fs::write(image.path(), &fill).unwrap();
        for direct in [false, true] {
            let storage = FileStorage::open(&FileOptions { direct, ..FileOptions::new(image.path()) }).unwrap();
            assert_eq!(storage.capacity_bytes(), 100_000 / 512 * 512);
            assert!(storage.describe().discard);
        }
        assert_eq!(std::fs::read(image.path()).unwrap(), fill);
    }
}

#[test]
fn discard_gives_space_back_and_zeroes_keep_it() {
    use std::os::unix::fs::MetadataExt;
    let mut solo = Solo::new().unwrap();
    let image = image(disk(), 1 << 20);
    let storage = FileStorage::open(&FileOptions::new(image.path())).unwrap();
    let blocks = || {
        image.as_file().sync_all().unwrap();
        std::fs::metadata(image.path()).unwrap().blocks()
    };
    let mut task = Task::new();
    write(&mut solo, &storage, 0, &[1; 1 << 20]).unwrap();
    let full = blocks();
    let len = 1 << 19;
    task.begin(Operation::WriteZeroes { offset: 0, len, unmap: false, durable: true });
    run(&mut solo, &storage, &mut task).unwrap();
    assert_eq!(blocks(), full);
    task.begin(Operation::Discard { offset: 1 << 19, len });
    run(&mut solo, &storage, &mut task).unwrap();
    assert!(blocks() <= full / 2 + 8);
    task.begin(Operation::WriteZeroes { offset: 0, len, unmap: true, durable: false });
    run(&mut solo, &storage, &mut task).unwrap();
    assert!(blocks() <= 8);
}

#[test]
fn executions_are_described_and_changed() {
    let on_disk = image(disk(), 1 << 20);
    let on_shm = image(shm(), 1 << 20);
    let chosen = |image: &tempfile::NamedTempFile| {
        let about = FileStorage::open(&FileOptions::new(image.path())).unwrap().describe();
        (about.execution, about.execution_chosen)
    };
    assert_eq!(chosen(&on_disk), (Execution::Auto, Execution::Uring));
    assert_eq!(chosen(&on_shm), (Execution::Auto, Execution::Inline));
    let storage = FileStorage::open(&FileOptions::new(on_disk.path())).unwrap();
    storage.set_execution(Execution::Pool(3)).unwrap();
    assert_eq!(storage.describe().execution_chosen, Execution::Pool(3));
    assert!(matches!(storage.set_execution(Execution::Pool(1000)), Err(StorageError::Pool { .. })));
    assert_eq!(storage.describe().execution, Execution::Pool(3), "a refused change changes nothing");
}

#[test]
fn memory_says_what_it_cannot_have() {
    let huge = MemoryOptions { size: Some(ByteSize(1 << 46)), hugepages: true, ..MemoryOptions::default() };
    let text = refusal(&huge);
    assert!(text.contains("/proc/sys/vm/nr_hugepages"), "{text}");
    let on_disk = image(disk(), 1 << 20);
    let options = MemoryOptions { path: Some(on_disk.path().to_owned()), ..MemoryOptions::default() };
    let text = refusal(&options);
    assert!(text.contains("/dev/shm"), "{text}");
    let on_shm = image(shm(), 1 << 20);
    let sized = |size_bytes, read_only| MemoryOptions {
        size: Some(ByteSize(size_bytes)),
        path: Some(on_shm.path().to_owned()),
        read_only,
        ..MemoryOptions::default()
    };
    let text = refusal(&sized(4096, false));
    assert!(text.contains("1048576") && text.contains("4096"), "{text}");
    let text = refusal(&sized(0, true));
    assert!(text.contains("sparse"), "{text}");
    let storage = storage::open(&sized(2 << 20, false)).unwrap();
    assert_eq!(storage.capacity_bytes(), 2 << 20);
    let space = rustix::fs::stat(on_shm.path()).unwrap().st_blocks * 512;
    assert!(space >= 2 << 20, "all space is allocated");
    assert!(storage.set_execution(Execution::Uring).is_err());
}

#[test]
fn memory_makes_its_file() {
    let directory = tempfile::tempdir_in(shm()).unwrap();
    let path = directory.path().join("new");
    let options = MemoryOptions { size: Some(ByteSize(1 << 20)), path: Some(path.clone()), ..MemoryOptions::default() };
    let mut solo = Solo::new().unwrap();
    let storage = storage::open(&options).unwrap();
    write(&mut solo, storage.as_ref(), 1024, &[5; 512]).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[1024..1536], [5; 512]);
}

/// In a directory of many, another user may have put a link where the file is to be made.
#[test]
fn memory_makes_no_file_through_a_link() {
    let directory = tempfile::tempdir_in(shm()).unwrap();
    let (path, elsewhere) = (directory.path().join("memory"), directory.path().join("elsewhere"));
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    let options = MemoryOptions { size: Some(ByteSize(1 << 20)), path: Some(path.clone()), ..MemoryOptions::default() };
    let text = refusal(&options.clone());
    assert!(text.contains("memory") && text.contains("through no link"), "{text}");
    assert!(!elsewhere.exists());
    // What the operator has put there is an image like others.
    std::fs::write(&elsewhere, [0; 1 << 10]).unwrap();
    storage::open(&options).unwrap();
    assert_eq!(std::fs::metadata(&elsewhere).unwrap().len(), 1 << 20);
}

#[test]
fn large_ranges_of_memory_are_zeroed_elsewhere() {
    let mut solo = Solo::new().unwrap();
    let options = MemoryOptions { size: Some(ByteSize(8 << 20)), ..MemoryOptions::default() };
    let storage = storage::open(&options).unwrap();
    for unmap in [false, true] {
        write(&mut solo, storage.as_ref(), 0, &vec![1; 8 << 20]).unwrap();
        let mut task = Task::new();
        task.begin(Operation::WriteZeroes { offset: 512, len: (8 << 20) - 1024, unmap, durable: false });
        assert!(matches!(storage.start(&mut task, Token::request(3), &mut solo.io()), Step::Pending));
        let completion = solo.wait().unwrap();
        assert!(matches!(storage.resume(&mut task, completion, &mut solo.io()), Step::Done(Ok(()))));
        let seen = read(&mut solo, storage.as_ref(), 0, 8 << 20);
        assert!(seen[..512].iter().all(|b| *b == 1) && seen[(8 << 20) - 512..].iter().all(|b| *b == 1));
        assert!(seen[512..(8 << 20) - 512].iter().all(|b| *b == 0));
    }
}

#[test]
fn null_leaves_buffers_alone_or_zeroes_them() {
    let mut solo = Solo::new().unwrap();
    for (zeroes, expected) in [(false, 0x5a), (true, 0)] {
        let storage =
            storage::open(&NullOptions { size: ByteSize(1 << 20), zeroes, ..NullOptions::default() }).unwrap();
        assert!(read(&mut solo, storage.as_ref(), 0, 4096).iter().all(|b| *b == expected));
    }
}

#[test]
fn sim_takes_at_least_its_time() {
    let mut solo = Solo::new().unwrap();
    let latency = Duration::from_millis(3);
    let options = SimOptions {
        read_latency: Span(latency),
        distribution: Distribution::Uniform,
        channels: 2,
        ..SimOptions::default()
    };
    let storage = storage::open(&options).unwrap();
    let mut memory = vec![0u8; 512];
    let mut tasks: Vec<Task> = (0..6).map(|_| Task::new()).collect();
    for task in &mut tasks {
        task.buffers = vec![libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 512 }];
        task.begin(Operation::Read { offset: 0 });
    }
    let begun = std::time::Instant::now();
    testkit::storage::run_together(&mut solo, storage.as_ref(), &mut tasks);
    assert!(begun.elapsed() >= latency * 3, "six reads on two channels are three rounds");
}

#[test]
fn sim_fails_the_same_operations_for_the_same_seed() {
    let outcomes = |seed| {
        let options = SimOptions {
            size: ByteSize(1 << 20),
            read_latency: Span::default(),
            write_latency: Span::default(),
            error_rate: 0.25,
            flush_error_rate: Some(0.0),
            seed,
            ..SimOptions::default()
        };
        let storage = storage::open(&options).unwrap();
        let mut solo = Solo::new().unwrap();
        let mut out = Vec::new();
        for i in 0..100u64 {
            let outcome = write(&mut solo, storage.as_ref(), i * 512, &[i as u8 + 1; 512]);
            assert!(matches!(outcome, Ok(()) | Err(StorageError::Injected(Action::Write))));
            out.push(outcome.is_ok());
            let mut task = Task::new();
            task.begin(Operation::Flush);
            run(&mut solo, storage.as_ref(), &mut task).unwrap();
        }
        // A doomed write has stored nothing.
        for (i, ok) in out.iter().enumerate() {
            let mut memory = [0x5au8; 512];
            let mut task = Task::new();
            task.buffers = vec![libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 512 }];
            task.begin(Operation::Read { offset: i as u64 * 512 });
            while run(&mut solo, storage.as_ref(), &mut task).is_err() {
                assert_eq!(memory, [0x5a; 512], "nor has a doomed read filled anything");
                task.begin(Operation::Read { offset: i as u64 * 512 });
            }
            assert_eq!(memory, [if *ok { i as u8 + 1 } else { 0 }; 512]);
        }
        out
    };
    let first = outcomes(5);
    assert_eq!(first, outcomes(5));
    assert_ne!(first, outcomes(6));
    let failed = first.iter().filter(|ok| !**ok).count();
    assert!((10..45).contains(&failed), "{failed} of 100");
}
