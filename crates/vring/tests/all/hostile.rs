//! A guest that rewrites its ring while we read it, from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{INDIRECT, NEXT, WRITE, guest_addr, layout_at, memory};
use vring::copy::{read_at, write_at};
use vring::{Chain, Memory, RingError, RingPosition, SplitRing};

const RING: u64 = 0x1000;
const SIZE: u16 = 8;
/// The rings' page and the tables behind it, one region of data beside it, and one apart.
const MAP: [(u64, u64); 3] = [(RING, 0x1000), (0x2000, 0x1000), (0x8000, 0x1000)];
const TABLES: u64 = 0x1800;
const ROUNDS: usize = 200_000;
/// Chains that must have been whole; on a busy machine the other thread may start late, so rounds alone prove nothing.
const CHAINS: usize = 1000;
const HANG_GUARD: Duration = Duration::from_secs(120);

/// Descriptors that differ in every field, so that a value read twice is likely read differently.
fn words(step: u64) -> (u64, u64) {
    let addr = [0x2000, 0x2ff0, 0x8000, TABLES, 0xffff_ffff_ffff_fff0][(step % 5) as usize];
    let len = [16, 64, 4096, 1 << 20, 0][(step / 5 % 5) as usize];
    let flags = [0, NEXT, WRITE, INDIRECT, NEXT | WRITE, INDIRECT | NEXT][(step / 7 % 6) as usize];
    let next = [1, 3, 7, 8, 0xffff][(step / 11 % 5) as usize];
    (addr, len | u64::from(flags) << 32 | next << 48)
}

/// Writes to the ring's memory until told to stop, 8 bytes at a time as another CPU would.
fn scribble(memory: &Memory, stop: &AtomicBool) {
    let layout = layout_at(RING, SIZE);
    let (page, _) = memory.translate(RING, 0x1000, &mut 0).unwrap();
    let word = |at: u64| {
        // SAFETY: an aligned word of the page, which the test keeps; all threads use it through atomics or volatile.
        unsafe { AtomicU64::from_ptr(page.as_ptr().add((at - RING) as usize).cast()) }
    };
    let mut step = 1_u64;
    while !stop.load(Ordering::Relaxed) {
        step = step.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
        let random = step >> 20;
        let table = if random & 8 == 0 { layout.desc } else { TABLES };
        let at = table + 16 * (random & 7);
        let (low, high) = words(random >> 8);
        word(at).store(low, Ordering::Relaxed);
        word(at + 8).store(high, Ordering::Relaxed);
        // Flags 0, an index that creeps on, two heads: most in range.
        let (index, heads) = (random >> 16 & 0xffff, random >> 32 & 0x0009_0007);
        word(layout.avail).store(index << 16 | heads << 32, Ordering::Relaxed);
    }
}

#[test]
fn a_ring_that_changes_under_us_stays_inside_memory() {
    let memory = memory(&MAP);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let scribbler = scope.spawn(|| scribble(&memory, &stop));
        // A failed assertion has to stop the other thread too, or the scope would wait for ever.
        let served = std::panic::catch_unwind(|| serve(&memory));
        stop.store(true, Ordering::Relaxed);
        scribbler.join().unwrap();
        if let Err(panic) = served {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Pops for a while, starting over where the ring is found broken.
fn serve(memory: &Arc<Memory>) {
    let mut chains = 0;
    let mut chain = Chain::default();
    let mut next_avail = 0_u16;
    let mut bytes = [0; 64];
    let (mut rounds, start) = (0, Instant::now());
    while rounds < ROUNDS || chains < CHAINS {
        rounds += 1;
        assert!(start.elapsed() < HANG_GUARD, "{chains} chains in {rounds} rounds");
        let mut ring =
            SplitRing::new(Arc::clone(memory), layout_at(RING, SIZE), RingPosition::split(next_avail)).unwrap();
        loop {
            match ring.pop(&mut chain) {
                Ok(Some(head)) => {
                    assert!(head < SIZE && chain.readable <= chain.segments.len());
                    for segment in &chain.segments {
                        guest_addr(memory, segment);
                    }
                    read_at(chain.readable_segments(), 0, &mut bytes);
                    chain.segments.retain(|segment| guest_addr(memory, segment) >= 0x2000);
                    write_at(&chain.segments, 0, &bytes);
                    chains += 1;
                    ring.push(head, 0);
                }
                Ok(None) => break,
                Err(RingError::AvailableRanAhead { index, .. }) => {
                    // Follow the driver, so that the rest of the ring is met as well.
                    next_avail = index.wrapping_sub(2);
                    break;
                }
                Err(_) => {
                    next_avail = ring.position().avail().wrapping_add(1);
                    break;
                }
            }
        }
        ring.publish();
        ring.enable_kicks();
    }
}
