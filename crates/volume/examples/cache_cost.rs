//! What the cache costs a request: nanoseconds of processor time (so that a busy machine does not count) for a store, a pin, a look, and a round of commit and write-back, on one thread
//! and on two. `cargo run --release -p volume --example cache_cost`

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime};
use volume::SectorMask;
use volume::cache::{Cache, CacheOptions, Pins, Round};

const DATA_SLOTS: u32 = 32 * 1024;
const CAPACITY_BYTES: u64 = 64 << 30;
const CAPACITY_BLOCKS: u64 = CAPACITY_BYTES / 4096;
const TIMES: u64 = 2_000_000;

fn cache() -> Arc<Cache> {
    let options = CacheOptions { capacity_bytes: CAPACITY_BYTES, data_slots: DATA_SLOTS, zero_slots: 1024 };
    Arc::new(Cache::new(&options).expect("memory for a cache"))
}

/// Nanoseconds for which this thread has had a processor.
fn processor_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Runs `work` (a thread's number, a number that differs each time) on so many threads, and prints what one time took.
fn measure(name: &str, threads: u64, work: impl Fn(u64, u64) + Sync) {
    let spent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (work, spent) = (&work, &spent);
            scope.spawn(move || {
                let started = processor_ns();
                for time in 0..TIMES {
                    work(thread, time);
                }
                spent.fetch_add(processor_ns() - started, Ordering::Relaxed);
            });
        }
    });
    let nanoseconds = spent.into_inner() as f64 / (TIMES * threads) as f64;
    println!("{name:<46} {threads} thread(s) {nanoseconds:8.1} ns");
}

/// Spreads numbers over the disk, the same way each time.
fn anywhere(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 & (CAPACITY_BLOCKS - 1)
}

fn copy(data: *mut u8, from: &[u8; 4096]) {
    // SAFETY: `store` gives 4096 bytes of its own.
    unsafe { data.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
}

fn main() {
    let block = [7u8; 4096];
    for threads in [1, 2] {
        let target = cache();
        let full = |thread: u64, time: u64| thread * 8192 + time % 8192;
        measure("store 4 KiB, among 8192 blocks of its own", threads, |thread, time| {
            target.store(full(thread, time), SectorMask::ALL, |data| copy(data, &block)).expect("a slot");
        });
        measure("store 4 KiB, without the copy", threads, |thread, time| {
            target.store(full(thread, time), SectorMask::ALL, |_| {}).expect("a slot");
        });
        measure("store 512 bytes into a cached block", threads, |thread, time| {
            target.store(full(thread, time), SectorMask(1), |_| {}).expect("a slot");
        });
        measure("zero a block", threads, |thread, time| {
            target.zero(thread * 400 + time % 400).expect("a slot");
        });
        let pins = || std::sync::Mutex::new(Pins::new(&target));
        let pins = [pins(), pins()];
        measure("pin a cached block, and let go", threads, |thread, time| {
            let mut pins = pins[thread as usize].lock().expect("no panic");
            black_box(target.pin(full(thread, time), &mut pins));
            pins.clear();
        });
        measure("look: 4 KiB that is not cached", threads, |_, time| {
            let block = anywhere(time) | 1 << 23;
            black_box(target.touches(block..block + 1));
        });
        measure("look: 1 MiB of which nothing is cached", threads, |_, time| {
            let block = anywhere(time) | 1 << 23;
            black_box(target.touches(block..block + 256));
        });
        measure("lone synchronous write: store, take, logged", threads, |thread, time| {
            let mut pins = pins[0].lock().expect("no panic");
            target.store(full(thread, time), SectorMask::ALL, |_| {}).expect("a slot");
            target.take_unlogged(1, &mut Round::default(), &mut pins);
            target.logged(&pins);
            pins.clear();
        });
        write_back(threads, &block);
    }
}

/// Random writes at the rate at which a thread that writes nothing anywhere takes them out again.
fn write_back(threads: u64, block: &[u8; 4096]) {
    let target = cache();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut pins = Pins::new(&target);
            while !done.load(Ordering::Relaxed) {
                let mut from = Some(0);
                while let Some(at) = from {
                    from = target.take_dirty(at, 256, &mut pins);
                    target.evict(&mut pins, true);
                }
            }
        });
        measure("store 4 KiB anywhere, write-back beside it", threads, |thread, time| {
            while target.store(anywhere(time * 2 + thread), SectorMask::ALL, |data| copy(data, block)).is_err() {
                std::thread::yield_now();
            }
        });
        done.store(true, Ordering::Relaxed);
    });
}
