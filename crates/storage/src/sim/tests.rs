//! Executions of one device: who is blocked, and that nobody is early.

use super::*;
use crate::{Action, Operation};
use engine::Solo;
use libc::iovec;
use std::time::Instant;

const EVERY: [Execution; 5] =
    [Execution::Auto, Execution::Uring, Execution::Inline, Execution::Pool(1), Execution::Pool(8)];
const BYTES: usize = 512;

fn open(execution: Execution, channels: u16, latency: Duration) -> SimStorage {
    let (read_latency, write_latency) = (Span(latency), Span(latency));
    let small = SimOptions { size: ByteSize(1 << 20), ..SimOptions::default() };
    SimStorage::open(&SimOptions { read_latency, write_latency, channels, execution, ..small }).unwrap()
}

/// Tasks with a sector of memory each.
fn tasks(memory: &mut [[u8; BYTES]], operation: impl Fn(u64) -> Operation) -> Vec<Task> {
    let task = |(number, sector): (usize, &mut [u8; BYTES])| {
        let mut task = Task::new();
        task.buffers = vec![iovec { iov_base: sector.as_mut_ptr().cast(), iov_len: BYTES }];
        task.begin(operation(number as u64 * BYTES as u64));
        task
    };
    memory.iter_mut().enumerate().map(task).collect()
}

fn write(offset: u64) -> Operation {
    Operation::Write { offset, durable: false }
}

fn read(offset: u64) -> Operation {
    Operation::Read { offset }
}

/// Starts all tasks within one turn. How many did not end there and then.
fn start(storage: &SimStorage, solo: &mut Solo, tasks: &mut [Task]) -> usize {
    let mut pending = 0;
    let mut io = solo.io();
    for (token, task) in tasks.iter_mut().enumerate() {
        match storage.start(task, Token::request(token as u16), &mut io) {
            Step::Done(result) => result.unwrap(),
            Step::Pending => pending += 1,
        }
    }
    pending
}

/// Waits for `pending` tasks. In which order they ended, and what completed them.
fn finish(storage: &SimStorage, solo: &mut Solo, tasks: &mut [Task], pending: usize) -> Vec<Completion> {
    let completions: Vec<_> = (0..pending).map(|_| solo.wait().unwrap()).collect();
    for completion in &completions {
        let step = storage.resume(&mut tasks[completion.index()], *completion, &mut solo.io());
        assert!(matches!(step, Step::Done(Ok(()))), "{step:?}");
    }
    completions
}

#[test]
fn each_execution_waits_in_its_own_place() {
    for execution in EVERY {
        let storage = open(execution, 4, Duration::from_micros(50));
        let mut solo = Solo::new().unwrap();
        let mut memory = [[7; BYTES]; 20];
        let mut tasks = tasks(&mut memory, write);
        let pending = start(&storage, &mut solo, &mut tasks);
        let completions = finish(&storage, &mut solo, &mut tasks, pending);
        let by = |part| completions.iter().filter(|completion| completion.part == part).count();
        let expected = match execution {
            Execution::Inline => (0, 0),
            Execution::Auto | Execution::Uring => (20, 0),
            Execution::Pool(_) => (0, 20),
        };
        assert_eq!((by(0), by(SERVED)), expected, "{execution}");
        let about = storage.describe();
        let chosen = if execution == Execution::Auto { Execution::Uring } else { execution };
        assert_eq!((about.execution, about.execution_chosen), (execution, chosen));
    }
}

#[test]
fn nobody_is_faster_than_the_device_or_than_its_threads() {
    let latency = Duration::from_millis(2);
    // Twelve operations: how many rounds of one latency they need at least.
    for (execution, channels, rounds) in [
        (Execution::Auto, 4, 3),
        (Execution::Inline, 4, 12),
        (Execution::Pool(64), 4, 3),
        (Execution::Pool(3), 32, 4),
        (Execution::Pool(64), 1, 12),
        (Execution::Pool(1), 32, 12),
    ] {
        let storage = open(execution, channels, latency);
        let mut solo = Solo::new().unwrap();
        let mut memory = [[0; BYTES]; 12];
        let mut tasks = tasks(&mut memory, read);
        let begun = Instant::now();
        let pending = start(&storage, &mut solo, &mut tasks);
        finish(&storage, &mut solo, &mut tasks, pending);
        let least = latency * rounds;
        assert!(begun.elapsed() >= least, "{execution} on {channels} channels: {:?} < {least:?}", begun.elapsed());
    }
}

#[test]
fn one_thread_keeps_the_order() {
    let storage = open(Execution::Pool(1), 8, Duration::from_micros(100));
    let mut solo = Solo::new().unwrap();
    let mut memory = [[0; BYTES]; 10];
    let mut tasks = tasks(&mut memory, read);
    let pending = start(&storage, &mut solo, &mut tasks);
    let tokens: Vec<_> = finish(&storage, &mut solo, &mut tasks, pending).iter().map(Completion::index).collect();
    assert_eq!(tokens, (0..10).collect::<Vec<_>>());
}

#[test]
fn a_change_of_execution_lets_operations_end_where_they_are() {
    for before in EVERY {
        for after in EVERY {
            let storage = open(before, 4, Duration::from_millis(1));
            let mut solo = Solo::new().unwrap();
            let mut memory: Vec<[u8; BYTES]> = (0..16).map(|number| [number + 1; BYTES]).collect();
            let mut writes = tasks(&mut memory, write);
            let pending = start(&storage, &mut solo, &mut writes);
            storage.set_execution(after).unwrap();
            let completions = finish(&storage, &mut solo, &mut writes, pending);
            let pooled = completions.iter().filter(|completion| completion.part == SERVED).count();
            assert_eq!(pooled, if matches!(before, Execution::Pool(_)) { 16 } else { 0 }, "{before} to {after}");
            let mut seen = vec![[0; BYTES]; 16];
            let mut reads = tasks(&mut seen, read);
            let pending = start(&storage, &mut solo, &mut reads);
            finish(&storage, &mut solo, &mut reads, pending);
            assert_eq!(seen, memory, "{before} to {after}");
        }
    }
}

#[test]
fn doomed_operations_fail_wherever_they_wait() {
    for execution in EVERY {
        let options = SimOptions {
            size: ByteSize(1 << 20),
            write_latency: Span(Duration::from_micros(20)),
            read_error_rate: Some(0.0),
            error_rate: 1.0,
            execution,
            ..SimOptions::default()
        };
        let storage = SimStorage::open(&options).unwrap();
        let mut solo = Solo::new().unwrap();
        let mut memory = [[9; BYTES]; 1];
        let mut writes = tasks(&mut memory, write);
        let step = match storage.start(&mut writes[0], Token::request(0), &mut solo.io()) {
            Step::Pending => {
                let completion = solo.wait().unwrap();
                storage.resume(&mut writes[0], completion, &mut solo.io())
            }
            done => done,
        };
        let injected = matches!(step, Step::Done(Err(StorageError::Injected(Action::Write))));
        assert!(injected, "{execution}: {step:?}");
        let mut seen = [[1; BYTES]; 1];
        let mut reads = tasks(&mut seen, read);
        let pending = start(&storage, &mut solo, &mut reads);
        finish(&storage, &mut solo, &mut reads, pending);
        assert_eq!(seen, [[0; BYTES]], "{execution}: a doomed write has stored something");
    }
}

#[test]
fn a_pool_that_cannot_be_is_refused_and_changes_nothing() {
    let storage = open(Execution::Inline, 1, Duration::ZERO);
    for threads in [0, 257] {
        let refused = storage.set_execution(Execution::Pool(threads));
        assert!(matches!(refused, Err(StorageError::Pool { .. })), "{refused:?}");
        assert_eq!(storage.describe().execution, Execution::Inline);
        let options = SimOptions { execution: Execution::Pool(threads), ..SimOptions::default() };
        assert!(SimStorage::open(&options).is_err());
    }
}

#[test]
fn options_out_of_range_are_named() {
    type Edit = fn(&mut SimOptions);
    let cases: [(Edit, &str); 7] = [
        (|o| o.size = ByteSize(100), "size"),
        (|o| o.channels = 0, "channels"),
        (|o| o.error_rate = f64::NAN, "error_rate"),
        (|o| o.flush_error_rate = Some(1.5), "flush_error_rate"),
        (|o| o.latency_spread = -0.1, "latency_spread"),
        (|o| o.read_latency = Span(Duration::from_secs(4000)), "read_latency"),
        (|o| o.seek = Span(Duration::from_secs(4000)), "seek"),
    ];
    for (edit, field) in cases {
        let mut options = SimOptions::default();
        edit(&mut options);
        let error = SimStorage::open(&options).err().unwrap().to_string();
        assert!(error.starts_with(field), "{error}");
    }
}
