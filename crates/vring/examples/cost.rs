//! What one request costs in the ring alone: `cargo run --release -p vring --example cost`.
//!
//! A driver in the same thread offers a batch of disk requests (header, 4 KiB of data, status); the timed part pops,
//! pushes and publishes them, once as they are and once with every request in an inflight region, in turns. The driver's own
//! writes are timed apart. Figures are medians over many batches.

use std::error::Error;
use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use vring::{Chain, InflightQueue, Layout, Mapping, Memory, Region, RingPosition, SplitRing};

const SIZE: u16 = 256;
const ROUNDS: usize = 20_000;
/// How often the two ways take turns; the figures are medians of the turns' medians.
const TURNS: usize = 9;
const MEMORY_BYTES: usize = 64 << 20;
const TABLES: u64 = 0x10_0000;
const DATA: u64 = 0x20_0000;
const NEXT: u64 = 1 << 32;
const WRITE: u64 = 2 << 32;
const INDIRECT: u64 = 4 << 32;

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:<28} {:>10} {:>12} {:>12} {:>12}", "request", "batch", "ns/request", "in a region", "more");
    for (name, indirect) in [("3 direct descriptors", false), ("3 in an indirect table", true)] {
        for batch in [1, 8, 64] {
            let (mut plain_ns, mut tracked_ns) = (Vec::new(), Vec::new());
            for _ in 0..TURNS {
                plain_ns.push(measure(batch, indirect, false)?);
                tracked_ns.push(measure(batch, indirect, true)?);
            }
            let (plain_ns, tracked_ns) = (median(plain_ns), median(tracked_ns));
            let more_ns = tracked_ns - plain_ns;
            println!("{name:<28} {batch:>10} {plain_ns:>12.1} {tracked_ns:>12.1} {more_ns:>12.1}");
        }
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The guest's memory, written as a driver would.
struct Guest {
    base: NonNull<u8>,
}

impl Guest {
    fn put<T>(&self, at: u64, value: T) {
        // SAFETY: every address below lies in the mapping and is aligned for its type.
        unsafe { self.base.as_ptr().add(at as usize).cast::<T>().write_volatile(value) };
    }

    fn descriptor(&self, at: u64, addr: u64, len_and_flags: u64, next: u64) {
        self.put(at, addr);
        self.put(at + 8, len_and_flags | next << 48);
    }
}

fn measure(batch: u16, indirect: bool, tracked: bool) -> Result<f64, Box<dyn Error>> {
    let mapping = Arc::new(Mapping::anonymous(MEMORY_BYTES)?);
    let guest = Guest { base: NonNull::new(mapping.as_ptr()).ok_or("no mapping")? };
    let len = MEMORY_BYTES as u64;
    let memory = Memory::new(vec![Region { guest_addr: 0, user_addr: 0, len, mapping, offset: 0 }])?;
    let layout = Layout { size: SIZE, desc: 0, avail: 0x2000, used: 0x4000, event_idx: true, indirect };
    let mut ring = SplitRing::new(Arc::new(memory), layout, RingPosition::default())?;
    if tracked {
        let region = Arc::new(Mapping::anonymous(InflightQueue::bytes(SIZE))?);
        ring.track(InflightQueue::new(region, 0, SIZE)?)?;
    }
    // As many chains as may be in flight, so that heads and descriptors vary as they do in a guest.
    let chains = if indirect { SIZE } else { SIZE / 4 };
    let stride = if indirect { 1 } else { 4 };
    for i in 0..u64::from(chains) {
        let (head, data) = (i * stride, DATA + i * 0x2000);
        let (table, first) = if indirect { (TABLES + i * 64, 0) } else { (0, head) };
        if indirect {
            guest.descriptor(head * 16, table, 48 | INDIRECT, 0);
        }
        guest.descriptor(table + first * 16, data, 16 | NEXT, first + 1);
        guest.descriptor(table + first * 16 + 16, data + 0x1000, 4096 | NEXT | WRITE, first + 2);
        guest.descriptor(table + first * 16 + 32, data + 16, 1 | WRITE, 0);
    }
    let mut pool: Vec<(u16, Chain)> = (0..batch).map(|_| (0, Chain::default())).collect();
    let mut costs_ns = Vec::with_capacity(ROUNDS);
    let mut avail_idx = 0_u16;
    for _ in 0..ROUNDS {
        for _ in 0..batch {
            let head = avail_idx % chains * stride as u16;
            guest.put(layout.avail + 4 + 2 * u64::from(avail_idx % SIZE), head);
            avail_idx = avail_idx.wrapping_add(1);
        }
        guest.put(layout.avail + 2, avail_idx);
        let start = Instant::now();
        for (head, chain) in &mut pool {
            *head = ring.pop(chain)?.ok_or("a request was lost")?;
            black_box(&chain.segments);
        }
        for (head, _) in &pool {
            ring.push(*head, 4097);
        }
        black_box(ring.publish());
        costs_ns.push(start.elapsed().as_nanos() as f64 / f64::from(batch));
    }
    Ok(median(costs_ns))
}
