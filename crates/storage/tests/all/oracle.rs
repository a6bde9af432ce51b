//! Every storage against a plain vector, under random histories.

use engine::{Solo, Token};
use proptest::prelude::*;
use std::path::PathBuf;
use storage::{
    Distribution, Execution, FileOptions, FileStorage, MemoryOptions, Operation, SimOptions, Step, Storage, Task,
};
use testkit::storage::{Arena, disk, image, moves, play, run_together, shm};
use values::{ByteSize, Span};

const SECTORS: u64 = 1100;

fn executions() -> Vec<Execution> {
    vec![Execution::Auto, Execution::Inline, Execution::Uring, Execution::Pool(2)]
}

fn file(directory: PathBuf, direct: bool, history: &[testkit::storage::Move]) {
    let image = image(directory, SECTORS * 512);
    let storage = FileStorage::open(&FileOptions { direct, ..FileOptions::new(image.path()) }).unwrap();
    let oracle = play(&storage, history);
    // And what others see of the file.
    drop(storage);
    let seen = std::fs::read(image.path()).unwrap();
    testkit::storage::assert_same(&seen[..oracle.len()], &oracle, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn file_on_disk_buffered(history in moves(executions(), SECTORS)) {
        file(disk(), false, &history);
    }

    #[test]
    fn file_on_disk_direct(history in moves(executions(), SECTORS)) {
        file(disk(), true, &history);
    }

    #[test]
    fn file_on_tmpfs_buffered(history in moves(executions(), SECTORS)) {
        file(shm(), false, &history);
    }

    #[test]
    fn file_on_tmpfs_direct(history in moves(executions(), SECTORS)) {
        file(shm(), true, &history);
    }

    #[test]
    fn memory_anonymous(history in moves(vec![Execution::Auto, Execution::Inline], SECTORS)) {
        let options = MemoryOptions { size: Some(ByteSize(SECTORS * 512)), ..MemoryOptions::default() };
        play(storage::open(&options).unwrap().as_ref(), &history);
    }

    #[test]
    fn memory_of_a_file(history in moves(vec![Execution::Auto], SECTORS)) {
        let image = image(shm(), SECTORS * 512);
        let options = MemoryOptions { path: Some(image.path().to_owned()), ..MemoryOptions::default() };
        let storage = storage::open(&options).unwrap();
        let oracle = play(storage.as_ref(), &history);
        testkit::storage::assert_same(&std::fs::read(image.path()).unwrap()[..oracle.len()], &oracle, 0);
    }

    #[test]
    fn sim(history in moves(executions(), SECTORS)) {
        let latency = Span(std::time::Duration::from_micros(20));
        let options = SimOptions {
            size: ByteSize(SECTORS * 512),
            read_latency: latency,
            write_latency: latency,
            distribution: Distribution::Exponential,
            seek: latency,
            ..SimOptions::default()
        };
        play(storage::open(&options).unwrap().as_ref(), &history);
    }
}

/// Disjoint operations in flight together, each with a place of its own.
fn together(storage: &dyn Storage, slots: &[(u64, usize, u8)]) {
    const SLOT: u64 = 12;
    let mut solo = Solo::new().unwrap();
    let mut arenas: Vec<Arena> = slots.iter().map(|_| Arena::new(SLOT as usize * 512)).collect();
    let mut tasks = Vec::new();
    for (index, ((sectors, shift, kind), arena)) in slots.iter().zip(&mut arenas).enumerate() {
        let offset = index as u64 * SLOT * 512;
        let len = sectors * 512;
        arena.bytes(*shift, len as usize).fill(index as u8 + 1);
        let mut task = Task::new();
        task.buffers = arena.buffers(*shift, len as usize, &[1024, 512]);
        task.begin(match kind {
            0 => Operation::WriteZeroes { offset, len, unmap: false, durable: false },
            _ => Operation::Write { offset, durable: false },
        });
        tasks.push(task);
    }
    run_together(&mut solo, storage, &mut tasks);
    let all = testkit::storage::read(&mut solo, storage, 0, slots.len() * SLOT as usize * 512);
    for (index, (sectors, _, kind)) in slots.iter().enumerate() {
        for sector in 0..SLOT {
            let written = sector < *sectors && *kind != 0;
            let expected = if written { index as u8 + 1 } else { 0 };
            let at = (index as u64 * SLOT + sector) as usize * 512;
            assert!(all[at..at + 512].iter().all(|b| *b == expected), "slot {index}, sector {sector}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, max_shrink_iters: 100, ..ProptestConfig::default() })]

    #[test]
    fn files_serve_many_at_once(
        slots in proptest::collection::vec((1u64..=12, prop_oneof![Just(0usize), 0usize..4096], 0u8..4), 1..90),
        execution in proptest::sample::select(executions()), direct: bool, on_disk: bool,
    ) {
        let image = image(if on_disk { disk() } else { shm() }, SECTORS * 512);
        let options = FileOptions { direct, execution, ..FileOptions::new(image.path()) };
        together(&FileStorage::open(&options).unwrap(), &slots);
    }

    #[test]
    fn sim_serves_many_at_once(
        slots in proptest::collection::vec((1u64..=12, 0usize..4096, 0u8..4), 1..90), channels in 1u16..5,
        execution in proptest::sample::select(executions()),
    ) {
        let options = SimOptions {
            size: ByteSize(SECTORS * 512),
            write_latency: Span(std::time::Duration::from_micros(30)),
            channels,
            execution,
            ..SimOptions::default()
        };
        together(storage::open(&options).unwrap().as_ref(), &slots);
    }
}

/// A system call takes 1024 buffers; what has more goes on behind them.
#[test]
fn long_lists_take_several_calls() {
    const BYTES: usize = 3000 * 512;
    let contents: Vec<u8> = (0..BYTES).map(|i| (i / 512 * 7 + i % 251) as u8).collect();
    for (directory, direct) in [(disk(), false), (disk(), true), (shm(), false)] {
        for execution in executions() {
            let image = image(directory.clone(), BYTES as u64);
            let options = FileOptions { direct, execution, ..FileOptions::new(image.path()) };
            let storage = FileStorage::open(&options).unwrap();
            let mut solo = Solo::new().unwrap();
            let mut arena = Arena::new(BYTES);
            arena.bytes(0, BYTES).copy_from_slice(&contents);
            let mut task = Task::new();
            task.buffers = arena.buffers(0, BYTES, &[512]);
            task.begin(Operation::Write { offset: 0, durable: false });
            testkit::storage::run(&mut solo, &storage, &mut task).unwrap();
            testkit::storage::assert_same(&std::fs::read(image.path()).unwrap(), &contents, 0);
            arena.bytes(0, BYTES).fill(0);
            task.begin(Operation::Read { offset: 0 });
            testkit::storage::run(&mut solo, &storage, &mut task).unwrap();
            testkit::storage::assert_same(arena.bytes(0, BYTES), &contents, 0);
        }
    }
}

/// Starts a task and returns how often it had to wait for a completion.
fn waits(solo: &mut Solo, storage: &dyn Storage, task: &mut Task) -> u32 {
    let (mut step, mut waits) = (storage.start(task, Token::request(7), &mut solo.io()), 0);
    loop {
        match step {
            Step::Done(result) => {
                result.unwrap();
                return waits;
            }
            Step::Pending => waits += 1,
        }
        let completion = solo.wait().unwrap();
        step = storage.resume(task, completion, &mut solo.io());
    }
}

/// No worker copies more than two mebibytes for one request while its other rings wait; and what the kernel's threads copy comes to
/// them in pieces.
#[test]
fn large_requests_are_not_done_on_the_spot() {
    const SIZE: u64 = 16 << 20;
    let (on_disk, direct, in_memory) = (image(disk(), SIZE), image(disk(), SIZE), image(shm(), SIZE));
    let file = |path: &std::path::Path, execution, direct| {
        storage::open(&FileOptions { execution, direct, ..FileOptions::new(path) }).unwrap()
    };
    let anonymous = MemoryOptions { size: Some(ByteSize(SIZE)), ..MemoryOptions::default() };
    let storages = [
        ("disk", file(on_disk.path(), Execution::Uring, false), [1, 3]),
        ("disk, direct", file(direct.path(), Execution::Uring, true), [1, 3]),
        ("tmpfs", file(in_memory.path(), Execution::Auto, false), [0, 3]),
        ("memory", storage::open(&anonymous).unwrap(), [0, 1]),
    ];
    let mut solo = Solo::new().unwrap();
    for (name, storage, expected) in storages {
        for (len, expected) in [2 << 20, (9 << 20) + 4096].into_iter().zip(expected) {
            let (mut written, mut read) = (Arena::new(len), Arena::new(len));
            for (at, byte) in written.bytes(0, len).iter_mut().enumerate() {
                *byte = (at / 512 + at) as u8;
            }
            let mut task = Task::new();
            for (operation, arena) in [
                (Operation::Write { offset: 4096, durable: false }, &mut written),
                (Operation::Read { offset: 4096 }, &mut read),
            ] {
                task.buffers = arena.buffers(0, len, &[4096, 1 << 20, 61440]);
                task.begin(operation);
                assert_eq!(
                    waits(&mut solo, storage.as_ref(), &mut task),
                    expected,
                    "{name}, {len} bytes, {operation:?}"
                );
            }
            assert!(written.bytes(0, len) == read.bytes(0, len), "{name}, {len} bytes");
        }
    }
}
