//! Volumes and large requests: other threads copy them, and what is read is what was written.

use crate::common::{fresh, memory};
use engine::{Solo, Token};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use storage::{Execution, Operation, SimOptions, Step, Storage, Task};
use testkit::storage::{Arena, moves, play, shm};
use values::ByteSize;
use volume::VolumeOptions;

/// Of the log: less than a large write.
const LOG_BYTES: u64 = 1 << 20;

/// Sectors of 12 MiB and a little more.
const SECTORS: u64 = 24_601;

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 50, ..ProptestConfig::default() })]

    /// More than the cache holds, and less.
    #[test]
    fn a_volume_reads_what_was_written(
        history in moves(vec![Execution::Auto, Execution::Inline], SECTORS), dirty_mib in proptest::sample::select(vec![1u64, 5, 32]),
    ) {
        play(fresh(memory(SECTORS * 512), LOG_BYTES, dirty_mib << 20).as_ref(), &history);
    }
}

/// Whether a task ends without waiting for anybody.
fn on_the_spot(solo: &mut Solo, storage: &dyn Storage, task: &mut Task) -> bool {
    let mut step = storage.start(task, Token::request(7), &mut solo.io());
    let at_once = matches!(step, Step::Done(_));
    while matches!(step, Step::Pending) {
        let completion = solo.wait().unwrap();
        step = storage.resume(task, completion, &mut solo.io());
    }
    assert!(matches!(step, Step::Done(Ok(()))), "{step:?}");
    at_once
}

/// What lies in the cache is copied, zeroed and forgotten on the worker up to two mebibytes a request.
#[test]
fn large_requests_are_not_done_on_the_spot() {
    let storage = fresh(memory(32 << 20), LOG_BYTES, 16 << 20);
    let mut solo = Solo::new().unwrap();
    for (len, expected) in [(2 << 20, true), ((2 << 20) + 512, false), (9 << 20, false)] {
        let (mut written, mut read) = (Arena::new(len), Arena::new(len));
        for (at, byte) in written.bytes(0, len).iter_mut().enumerate() {
            *byte = (at / 512 + at) as u8;
        }
        let bytes = len as u64;
        let offset = 4096 + 512;
        for (operation, arena) in [
            (Operation::Write { offset, durable: false }, &mut written),
            (Operation::Read { offset }, &mut read),
            (Operation::WriteZeroes { offset: 16 << 20, len: bytes, unmap: true, durable: false }, &mut Arena::new(1)),
            (Operation::Discard { offset: 16 << 20, len: bytes.next_multiple_of(4096) }, &mut Arena::new(1)),
        ] {
            let mut task = Task::new();
            if matches!(operation, Operation::Read { .. } | Operation::Write { .. }) {
                task.buffers = arena.buffers(0, len, &[4096, 1 << 20, 61440]);
            }
            task.begin(operation);
            assert_eq!(on_the_spot(&mut solo, storage.as_ref(), &mut task), expected, "{operation:?}, {len} bytes");
        }
        assert!(written.bytes(0, len) == read.bytes(0, len), "{len} bytes");
        storage.volume().unwrap().sync_now().unwrap();
    }
}

/// Several large requests of each of two workers, while small ones go on beside them and everything is written back.
#[test]
fn large_requests_in_flight_keep_apart() {
    const REGION: usize = 3 << 20;
    const LANES: usize = 3;
    let lower = Box::new(SimOptions::new(ByteSize(64 << 20)));
    let storage = fresh(lower, LOG_BYTES, 8 << 20);
    let done = AtomicBool::new(false);
    let serve = |worker: usize| {
        let mut solo = Solo::new().unwrap();
        let mut arenas: Vec<Arena> = (0..LANES).map(|_| Arena::new(REGION)).collect();
        let mut tasks: Vec<Task> = (0..LANES).map(|_| Task::new()).collect();
        for round in 0..12u8 {
            for write in [true, false] {
                let mut pending = 0;
                for lane in 0..LANES {
                    let (task, arena) = (&mut tasks[lane], &mut arenas[lane]);
                    arena.bytes(512, REGION - 512).fill(if write { round * 8 + lane as u8 + 1 } else { 0xff });
                    task.buffers = arena.buffers(512, REGION - 512, &[4096, 65536]);
                    let offset = ((worker * LANES + lane) * REGION) as u64;
                    // The first part of the region is written in every second round only.
                    let skipped = if round % 2 == 1 { 4096 * 100 } else { 0 };
                    if write && skipped > 0 {
                        task.buffers = arena.buffers(512, REGION - 512 - skipped as usize, &[4096, 65536]);
                    }
                    task.begin(if write {
                        Operation::Write { offset: offset + skipped, durable: lane == 0 }
                    } else {
                        Operation::Read { offset }
                    });
                    match storage.start(task, Token::request(lane as u16), &mut solo.io()) {
                        Step::Pending => pending += 1,
                        Step::Done(result) => result.unwrap(),
                    }
                }
                while pending > 0 {
                    let completion = solo.wait().unwrap();
                    if let Step::Done(result) =
                        storage.resume(&mut tasks[completion.index()], completion, &mut solo.io())
                    {
                        result.unwrap();
                        pending -= 1;
                    }
                }
            }
            for (lane, arena) in arenas.iter_mut().enumerate() {
                let (before, now) = ((round & !1) * 8 + lane as u8 + 1, round * 8 + lane as u8 + 1);
                let bytes = arena.bytes(512, REGION - 512);
                let cut = if round % 2 == 1 { 4096 * 100 } else { 0 };
                assert!(bytes[..cut].iter().all(|byte| *byte == before), "worker {worker}, round {round}, lane {lane}");
                assert!(bytes[cut..].iter().all(|byte| *byte == now), "worker {worker}, round {round}, lane {lane}");
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                storage.volume().unwrap().sync_now().unwrap();
            }
        });
        let workers: Vec<_> = (0..2).map(|worker| scope.spawn(move || serve(worker))).collect();
        let ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert_eq!(storage.volume().unwrap().status().figures.parked_writers_now, 0);
}

/// A volume in a file, read where some of it is cached and the rest lies below.
#[test]
fn what_lies_below_is_read_in_parts() {
    const SIZE: usize = 24 << 20;
    let directory = tempfile::tempdir_in(shm()).unwrap();
    let path = directory.path().join("volume");
    let options = volume::tools::CreateOptions {
        size_bytes: SIZE as u64,
        log_bytes: 1 << 20,
        force: false,
        created_by: "a test".to_owned(),
    };
    volume::tools::create(&VolumeOptions::new(&path), &options, &mut |_| {}).unwrap();
    let options = VolumeOptions::new(&path);
    let storage = storage::open(&options).unwrap();
    let mut solo = Solo::new().unwrap();
    let mut expected: Vec<u8> = (0..SIZE).map(|at| (at / 4096 * 7 + at % 253) as u8).collect();
    testkit::storage::write(&mut solo, storage.as_ref(), 0, &expected).unwrap();
    storage.volume().unwrap().sync_now().unwrap();
    for block in (0..SIZE / 4096).step_by(3) {
        let at = block * 4096 + 1024;
        expected[at..at + 512].fill(0xa5);
        testkit::storage::write(&mut solo, storage.as_ref(), at as u64, &[0xa5; 512]).unwrap();
    }
    let found = testkit::storage::read(&mut solo, storage.as_ref(), 512, SIZE - 1024);
    testkit::storage::assert_same(&found, &expected[512..SIZE - 512], 512);
}
