//! Files whose O_DIRECT wants blocks of 4096 bytes, whatever the file system of the test machine wants: the storage is told so
//! after it was opened. Every request of 512 bytes is then a partial block.

use super::gate::Gate;
use super::{FileOptions, FileStorage};
use crate::{Execution, Operation, Step, Storage, Task};
use engine::{Solo, Token};
use proptest::prelude::*;

const SECTORS: usize = 256;

fn open(path: &std::path::Path, execution: Execution) -> FileStorage {
    let mut storage = FileStorage::open(&FileOptions { execution, ..FileOptions::new(path) }).unwrap();
    storage.direct = true;
    storage.measures.offset_align = 4096;
    storage.measures.memory_align = 512;
    storage.gate = Gate::new(true);
    storage
}

fn image() -> tempfile::NamedTempFile {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(SECTORS as u64 * 512).unwrap();
    image
}

/// Starts all tasks, then waits for all of them.
fn run_together(storage: &FileStorage, tasks: &mut [Task]) {
    let mut solo = Solo::new().unwrap();
    let mut pending = 0;
    for (token, task) in tasks.iter_mut().enumerate() {
        match storage.start(task, Token::request(token as u16), &mut solo.io()) {
            Step::Done(result) => result.unwrap(),
            Step::Pending => pending += 1,
        }
    }
    while pending > 0 {
        let completion = solo.wait().unwrap();
        if let Step::Done(result) = storage.resume(&mut tasks[completion.index()], completion, &mut solo.io()) {
            result.unwrap();
            pending -= 1;
        }
    }
}

/// One operation a run of sectors, all in flight together; each run has its own, so no two overlap. What was in the file
/// before is left where nothing was written.
fn neighbours(runs: &[(usize, u8)], execution: Execution) {
    let image = image();
    let mut expected: Vec<u8> = (0..SECTORS * 512).map(|i| (i / 512) as u8 | 1).collect();
    std::fs::write(image.path(), &expected).unwrap();
    let storage = open(image.path(), execution);
    let mut memory = vec![0u8; SECTORS * 512 + 4096];
    let shift = memory.as_ptr().align_offset(4096);
    let mut at = 0;
    let mut tasks = Vec::new();
    for (sectors, kind) in runs {
        let (offset, len) = (at as u64 * 512, sectors * 512);
        at += sectors;
        if at > SECTORS {
            break;
        }
        let range = offset as usize..offset as usize + len;
        let fill = if *kind == 1 { 0 } else { 0xf0 | kind };
        if *kind != 0 {
            expected[range.clone()].fill(fill);
        }
        let mut task = Task::new();
        if *kind >= 2 {
            let data = &mut memory[shift + range.start..shift + range.end];
            data.fill(fill);
            task.buffers.push(libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: len });
        }
        match kind {
            0 => continue,
            1 => task.begin(Operation::WriteZeroes { offset, len: len as u64, unmap: false, durable: false }),
            _ => task.begin(Operation::Write { offset, durable: false }),
        }
        tasks.push(task);
    }
    run_together(&storage, &mut tasks);
    let seen = std::fs::read(image.path()).unwrap();
    let wrong = seen.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!(wrong.map(|at| at / 512), None, "the first wrong sector");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// Partial blocks, whole blocks and zeroed ranges next to each other and in flight together: none undoes another.
    #[test]
    fn writes_of_one_block_do_not_undo_each_other(
        runs in proptest::collection::vec((1usize..12, 0u8..6), 1..60),
        execution in proptest::sample::select(vec![Execution::Inline, Execution::Uring, Execution::Pool(4)]),
    ) {
        neighbours(&runs, execution);
    }
}

#[test]
fn every_sector_of_a_block_at_once() {
    for _ in 0..50 {
        neighbours(&[(1, 2); SECTORS], Execution::Pool(8));
    }
}

#[test]
fn the_gate_is_empty_when_all_is_done() {
    let image = image();
    let storage = open(image.path(), Execution::Uring);
    let mut data = vec![7u8; 512];
    let mut tasks: Vec<Task> = (0..200).map(|_| Task::new()).collect();
    for task in &mut tasks {
        task.buffers = vec![libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: 512 }];
        task.begin(Operation::Write { offset: 512, durable: false });
    }
    run_together(&storage, &mut tasks);
    assert!(storage.gate.is_empty());
    assert_eq!(std::fs::read(image.path()).unwrap()[512..1024], [7; 512]);
}

/// The ring of some tasks falls while they are in flight, and another ring goes on with the same storage.
#[test]
fn tasks_that_nobody_goes_on_with_keep_nobody_out() {
    let image = image();
    let storage = open(image.path(), Execution::Uring);
    let mut data = vec![7u8; 512];
    let mut make = |count: usize| -> Vec<Task> {
        let write = |_| {
            let mut task = Task::new();
            task.buffers = vec![libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: 512 }];
            task.begin(Operation::Write { offset: 512, durable: false });
            task
        };
        (0..count).map(write).collect()
    };
    let (mut fallen, mut living) = (make(100), make(3));
    let mut solo = Solo::new().unwrap();
    for (token, task) in fallen.iter_mut().enumerate() {
        assert!(matches!(storage.start(task, Token::request(token as u16), &mut solo.io()), Step::Pending));
    }
    // One has the block, and 99 stand in line: those leave it at once, which their ring hears as the end of its work.
    fallen.iter_mut().for_each(Task::lost);
    for _ in 0..100 {
        solo.wait().unwrap();
    }
    // Nothing of them is with the kernel any more.
    drop(fallen);
    assert!(storage.gate.is_empty());
    run_together(&storage, &mut living);
    assert_eq!(std::fs::read(image.path()).unwrap()[512..1024], [7; 512]);
}

#[test]
fn bounced_reads_cross_chunks_and_the_end_of_the_file() {
    let image = tempfile::NamedTempFile::new().unwrap();
    // Larger than a bounce buffer, and not a whole number of blocks.
    let contents: Vec<u8> = (0..(600 << 10) + 512).map(|i| (i % 249) as u8).collect();
    std::fs::write(image.path(), &contents).unwrap();
    for execution in [Execution::Inline, Execution::Uring, Execution::Pool(1)] {
        let storage = open(image.path(), execution);
        let mut data = vec![0xffu8; contents.len() - 512];
        let mut task = [Task::new()];
        task[0].buffers = vec![libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: data.len() }];
        task[0].begin(Operation::Read { offset: 512 });
        run_together(&storage, &mut task);
        assert!(data == contents[512..], "{execution}");
    }
}
