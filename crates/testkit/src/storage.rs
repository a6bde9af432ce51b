//! Runs operations on a storage, on the calling thread, and compares with a plain vector.

use engine::{Solo, Token};
use proptest::prelude::*;
use std::path::PathBuf;
use storage::{Execution, Operation, Step, Storage, StorageError, Task};

/// A directory on a disk: the one that cargo keeps for tests, beside the program that runs.
pub fn disk() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).unwrap().join("tmp");
    std::fs::create_dir_all(&target).unwrap();
    target
}

/// A directory in memory.
pub fn shm() -> PathBuf {
    PathBuf::from("/dev/shm")
}

/// An image of `bytes` bytes, deleted at the end.
pub fn image(directory: PathBuf, bytes: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new_in(directory).unwrap();
    file.as_file().set_len(bytes).unwrap();
    file
}

/// Memory for buffers: page aligned, so that tests choose their misalignment.
pub struct Arena {
    memory: Vec<u8>,
}

impl Arena {
    /// Room for so many bytes, wherever they begin.
    pub fn new(bytes: usize) -> Arena {
        Arena { memory: vec![0; bytes + 8192] }
    }

    /// `len` bytes, `shift` bytes behind a page boundary.
    pub fn bytes(&mut self, shift: usize, len: usize) -> &mut [u8] {
        let start = self.memory.as_ptr().align_offset(4096) + shift;
        &mut self.memory[start..start + len]
    }

    /// The same bytes as a list of buffers of the given lengths, repeated until all is covered.
    pub fn buffers(&mut self, shift: usize, len: usize, cuts: &[usize]) -> Vec<libc::iovec> {
        let mut at = self.bytes(shift, len).as_mut_ptr();
        let mut cuts = cuts.iter().cycle();
        let (mut left, mut out) = (len, Vec::new());
        while left > 0 {
            let iov_len = (*cuts.next().unwrap()).clamp(1, left);
            out.push(libc::iovec { iov_base: at.cast(), iov_len });
            at = at.wrapping_add(iov_len);
            left -= iov_len;
        }
        out
    }
}

/// Runs one task to its end.
pub fn run(solo: &mut Solo, storage: &dyn Storage, task: &mut Task) -> Result<(), StorageError> {
    let mut step = storage.start(task, Token::request(7), &mut solo.io());
    loop {
        match step {
            Step::Done(result) => return result,
            Step::Pending => {
                let completion = solo.wait().unwrap();
                assert_eq!(completion.token, Token::request(7));
                step = storage.resume(task, completion, &mut solo.io());
            }
        }
    }
}

/// Starts all tasks, then waits for all of them.
pub fn run_together(solo: &mut Solo, storage: &dyn Storage, tasks: &mut [Task]) {
    let mut pending = 0;
    for (token, task) in tasks.iter_mut().enumerate() {
        match storage.start(task, Token::request(token as u16), &mut solo.io()) {
            Step::Done(result) => result.unwrap(),
            Step::Pending => pending += 1,
        }
    }
    while pending > 0 {
        let completion = solo.wait().unwrap();
        match storage.resume(&mut tasks[completion.index()], completion, &mut solo.io()) {
            Step::Done(result) => {
                result.unwrap();
                pending -= 1;
            }
            Step::Pending => {}
        }
    }
}

/// What is there, of which nothing was in the buffer before.
pub fn read(solo: &mut Solo, storage: &dyn Storage, offset: u64, len: usize) -> Vec<u8> {
    let mut arena = Arena::new(len);
    arena.bytes(0, len).fill(0x5a);
    let mut task = Task::new();
    task.buffers = arena.buffers(0, len, &[len]);
    task.begin(Operation::Read { offset });
    run(solo, storage, &mut task).unwrap();
    arena.bytes(0, len).to_vec()
}

/// A write that need not be durable.
pub fn write(solo: &mut Solo, storage: &dyn Storage, offset: u64, data: &[u8]) -> Result<(), StorageError> {
    let mut arena = Arena::new(data.len());
    arena.bytes(0, data.len()).copy_from_slice(data);
    let mut task = Task::new();
    task.buffers = arena.buffers(0, data.len(), &[data.len().max(1)]);
    task.begin(Operation::Write { offset, durable: false });
    run(solo, storage, &mut task)
}

/// One step of a random history. Places and lengths are in sectors, taken modulo what there is.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each is an operation of a storage, and its fields are named as there")]
pub enum Move {
    Read { at: u64, sectors: u64, shift: usize, cuts: Vec<usize> },
    Write { at: u64, sectors: u64, shift: usize, cuts: Vec<usize>, durable: bool },
    Flush,
    Discard { at: u64, sectors: u64 },
    Zero { at: u64, sectors: u64, unmap: bool, durable: bool },
    Grow { sectors: u64 },
    Execute(Execution),
}

/// Random histories on so many sectors, with changes between the executions.
pub fn moves(executions: Vec<Execution>, sectors: u64) -> impl Strategy<Value = Vec<Move>> {
    let place = move || (0..sectors * 2, 1..sectors);
    let small = move || (0..sectors * 2, 1..20u64);
    let shift = || prop_oneof![4 => Just(0usize), 1 => Just(512), 1 => 0usize..4096];
    let cuts = || {
        let cut = prop_oneof![3 => (1usize..9).prop_map(|n| n * 512), 1 => Just(4096), 1 => 1usize..5000];
        proptest::collection::vec(cut, 1..5)
    };
    let span = move || prop_oneof![3 => small(), 1 => place()];
    let step = prop_oneof![
        6 => (span(), shift(), cuts()).prop_map(|((at, sectors), shift, cuts)| Move::Read { at, sectors, shift, cuts }),
        8 => (span(), shift(), cuts(), proptest::bool::weighted(0.1)).prop_map(|((at, sectors), shift, cuts, durable)| {
            Move::Write { at, sectors, shift, cuts, durable }
        }),
        1 => Just(Move::Flush),
        1 => span().prop_map(|(at, sectors)| Move::Discard { at, sectors }),
        2 => (span(), any::<bool>(), proptest::bool::weighted(0.1)).prop_map(|((at, sectors), unmap, durable)| {
            Move::Zero { at, sectors, unmap, durable }
        }),
        1 => (1..9u64).prop_map(|sectors| Move::Grow { sectors }),
        2 => proptest::sample::select(executions).prop_map(Move::Execute),
    ];
    proptest::collection::vec(step, 1..30)
}

/// Plays a history on a storage that reads as zeroes at first, and on a vector; gives the vector.
pub fn play(storage: &dyn Storage, history: &[Move]) -> Vec<u8> {
    let mut solo = Solo::new().unwrap();
    let mut oracle = vec![0u8; storage.capacity_bytes() as usize];
    let mut task = Task::new();
    let mut done_bytes = 0;
    for (number, step) in history.iter().enumerate() {
        let sectors_now = oracle.len() as u64 / 512;
        let range = |at: u64, sectors: u64| {
            let at = at % sectors_now;
            (at * 512, sectors.min(sectors_now - at) * 512)
        };
        match step {
            Move::Read { at, sectors, shift, cuts } => {
                let (offset, len) = range(*at, *sectors);
                let mut arena = Arena::new(len as usize);
                arena.bytes(*shift, len as usize).fill(0x5a);
                task.buffers = arena.buffers(*shift, len as usize, cuts);
                task.begin(Operation::Read { offset });
                run(&mut solo, storage, &mut task).unwrap();
                let got = arena.bytes(*shift, len as usize);
                assert_same(got, &oracle[offset as usize..(offset + len) as usize], offset);
            }
            Move::Write { at, sectors, shift, cuts, durable } => {
                let (offset, len) = range(*at, *sectors);
                let mut arena = Arena::new(len as usize);
                let target = &mut oracle[offset as usize..(offset + len) as usize];
                for (i, byte) in target.iter_mut().enumerate() {
                    *byte = (number * 31 + i / 512 * 7 + i) as u8 | 1;
                }
                arena.bytes(*shift, len as usize).copy_from_slice(target);
                task.buffers = arena.buffers(*shift, len as usize, cuts);
                task.begin(Operation::Write { offset, durable: *durable });
                run(&mut solo, storage, &mut task).unwrap();
            }
            Move::Flush => {
                task.begin(Operation::Flush);
                run(&mut solo, storage, &mut task).unwrap();
            }
            Move::Discard { at, sectors } => {
                let (offset, len) = range(*at, *sectors);
                task.begin(Operation::Discard { offset, len });
                run(&mut solo, storage, &mut task).unwrap();
                // What was discarded may have gone or not, byte by byte; from now on it stays what it is.
                let now = read(&mut solo, storage, offset, len as usize);
                for (old, new) in oracle[offset as usize..].iter_mut().zip(now) {
                    assert!(new == 0 || new == *old);
                    *old = new;
                }
            }
            Move::Zero { at, sectors, unmap, durable } => {
                let (offset, len) = range(*at, *sectors);
                task.begin(Operation::WriteZeroes { offset, len, unmap: *unmap, durable: *durable });
                run(&mut solo, storage, &mut task).unwrap();
                oracle[offset as usize..(offset + len) as usize].fill(0);
            }
            Move::Grow { sectors } => {
                let bytes = oracle.len() as u64 + sectors * 512;
                storage.resize(bytes).unwrap();
                assert_eq!(storage.capacity_bytes(), bytes);
                oracle.resize(bytes as usize, 0);
            }
            Move::Execute(execution) => storage.set_execution(*execution).unwrap(),
        }
        let from = number % 40 * 512;
        let told = assert_holes_are_zeroes(storage, &oracle[from..], from as u64, number % 5 + 1);
        assert!(told > 0 || from == oracle.len());
    }
    while let len @ 1.. = oracle.len() - done_bytes {
        let told = assert_holes_are_zeroes(storage, &oracle[done_bytes..], done_bytes as u64, 3);
        assert!(told > 0 && told <= len);
        done_bytes += told;
    }
    assert_same(&read(&mut solo, storage, 0, oracle.len()), &oracle, 0);
    oracle
}

/// What the storage takes for holes from `offset` on reads as zeroes. Returns of how many bytes it told.
fn assert_holes_are_zeroes(storage: &dyn Storage, contents: &[u8], offset: u64, most: usize) -> usize {
    let extents = storage.extents(offset..offset + contents.len() as u64, most).unwrap();
    assert!(extents.len() <= most && extents.windows(2).all(|pair| pair[0].data != pair[1].data), "{extents:?}");
    let mut at = 0;
    for extent in extents {
        let end = at + extent.bytes as usize;
        assert!(extent.bytes > 0 && extent.bytes.is_multiple_of(512) && end <= contents.len());
        assert!(extent.data || contents[at..end].iter().all(|byte| *byte == 0), "{at}..{end} of {offset} is no hole");
        at = end;
    }
    at
}

/// Names the first byte that differs.
pub fn assert_same(got: &[u8], expected: &[u8], offset: u64) {
    assert_eq!(got.len(), expected.len());
    if let Some(at) = got.iter().zip(expected).position(|(a, b)| a != b) {
        panic!("byte {} is {:#x} and should be {:#x}", offset + at as u64, got[at], expected[at]);
    }
}
