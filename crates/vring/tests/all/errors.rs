//! Every way in which a ring can be wrong, and the limits right beside it.

use std::sync::Arc;

use crate::common::{Driver, INDIRECT, NEXT, WRITE, descriptor, layout_at, memory, put, ranges, region};
use vring::{Area, Chain, Layout, Memory, Region, RingError, RingPosition, SplitRing};

const BASE: u64 = 0x1_0000;
/// Where the tests put indirect tables, and buffers.
const TABLE: u64 = 0x20_0000;
const DATA: u64 = 0x30_0000;

fn guest() -> Arc<Memory> {
    memory(&[(BASE, 0x10_0000), (TABLE, 0x9_0000), (DATA, 0x1_0000), (DATA + 0x1_0000, 0x1000)])
}

/// A driver and a ring of `size`, both fresh.
fn pair(size: u16) -> (Driver, SplitRing) {
    let driver = Driver::new(guest(), layout_at(BASE, size), 0);
    let ring = SplitRing::new(Arc::clone(&driver.memory), driver.layout, RingPosition::default()).unwrap();
    (driver, ring)
}

fn pop(ring: &mut SplitRing) -> Result<Option<u16>, RingError> {
    ring.pop(&mut Chain::default())
}

/// Offers head 0 and expects the error twice: a refused chain is not consumed.
fn refused(mut driver: Driver, mut ring: SplitRing, error: RingError) {
    driver.offer(0);
    assert_eq!(pop(&mut ring), Err(error));
    assert_eq!(pop(&mut ring), Err(error));
    assert_eq!(ring.position().avail(), 0);
}

fn new_error(layout: Layout) -> RingError {
    SplitRing::new(guest(), layout, RingPosition::default()).unwrap_err()
}

#[test]
fn bad_sizes() {
    for size in [0, 3, 5, 255, 257, 32767, 32769, u16::MAX] {
        let layout = Layout { size, ..layout_at(BASE, 1) };
        assert_eq!(new_error(layout), RingError::BadSize { size });
    }
    for shift in 0..16 {
        assert!(SplitRing::new(guest(), layout_at(BASE, 1 << shift), RingPosition::default()).is_ok());
    }
}

#[test]
fn misaligned_areas() {
    let good = layout_at(BASE, 8);
    for off in 1..16 {
        let error =
            |area, guest_addr: u64, align| Some(RingError::Misaligned { area, guest_addr: guest_addr + off, align });
        let desc = Layout { desc: good.desc + off, ..good };
        assert_eq!(Some(new_error(desc)), error(Area::Descriptors, good.desc, 16));
        let avail = SplitRing::new(guest(), Layout { avail: good.avail + off, ..good }, RingPosition::default()).err();
        assert_eq!(avail, error(Area::Available, good.avail, 2).filter(|_| off % 2 != 0));
        let used = SplitRing::new(guest(), Layout { used: good.used + off, ..good }, RingPosition::default()).err();
        assert_eq!(used, error(Area::Used, good.used, 4).filter(|_| off % 4 != 0));
    }
}

#[test]
fn areas_that_a_mapping_misaligns() {
    let shifted = Region { offset: 8, len: 0x1000, ..region(BASE, 0x2000) };
    let table = Arc::new(Memory::new(vec![shifted]).unwrap());
    let error = SplitRing::new(table, layout_at(BASE, 8), RingPosition::default()).unwrap_err();
    assert_eq!(error, RingError::Misaligned { area: Area::Descriptors, guest_addr: BASE, align: 16 });
}

#[test]
fn areas_outside_memory() {
    let good = layout_at(BASE, 8);
    // The last address at which each area fits: 16 * 8, 6 + 2 * 8 and 6 + 8 * 8 bytes with EVENT_IDX.
    let end = DATA + 0x1_1000;
    let outside = |area, guest_addr, len| RingError::AreaOutsideMemory { area, guest_addr, len };
    let at = end - 128;
    assert!(SplitRing::new(guest(), Layout { desc: at, ..good }, RingPosition::default()).is_ok());
    assert_eq!(new_error(Layout { desc: at + 16, ..good }), outside(Area::Descriptors, at + 16, 128));
    let at = end - 22;
    assert!(SplitRing::new(guest(), Layout { avail: at, ..good }, RingPosition::default()).is_ok());
    assert_eq!(new_error(Layout { avail: at + 2, ..good }), outside(Area::Available, at + 2, 22));
    let at = end - 72;
    assert!(SplitRing::new(guest(), Layout { used: at, ..good }, RingPosition::default()).is_ok());
    assert_eq!(new_error(Layout { used: at + 4, ..good }), outside(Area::Used, at + 4, 70));
    // The event fields need no room when they do not exist.
    let plain = Layout { event_idx: false, ..good };
    assert!(
        SplitRing::new(guest(), Layout { avail: end - 20, used: end - 68, ..plain }, RingPosition::default()).is_ok()
    );
    // Nowhere at all, and at the end of the address space.
    assert_eq!(new_error(Layout { desc: 0, ..good }), outside(Area::Descriptors, 0, 128));
    let last = u64::MAX - 15;
    assert_eq!(new_error(Layout { desc: last, ..good }), outside(Area::Descriptors, last, 128));
    // Two regions that touch are still two mappings of ours.
    let border = DATA + 0x1_0000;
    assert_eq!(new_error(Layout { desc: border - 64, ..good }), outside(Area::Descriptors, border - 64, 128));
}

#[test]
fn available_index_ran_ahead() {
    let (mut driver, mut ring) = pair(8);
    driver.set_avail_idx(9);
    assert!(ring.has_pending());
    assert_eq!(pop(&mut ring), Err(RingError::AvailableRanAhead { index: 9, ahead: 9, size: 8 }));
    driver.set_avail_idx(u16::MAX);
    assert_eq!(pop(&mut ring), Err(RingError::AvailableRanAhead { index: u16::MAX, ahead: u16::MAX, size: 8 }));
    driver.set(0, DATA, 1, 0, 0);
    driver.set_avail_idx(8);
    assert_eq!(pop(&mut ring), Ok(Some(0)));
}

#[test]
fn more_in_flight_than_the_ring_holds() {
    let (mut driver, mut ring) = pair(2);
    driver.set(0, DATA, 1, 0, 0);
    for _ in 0..2 {
        driver.offer(0);
        assert_eq!(pop(&mut ring), Ok(Some(0)));
    }
    driver.offer(0);
    assert_eq!(pop(&mut ring), Err(RingError::TooManyInFlight { size: 2 }));
    ring.push(0, 0);
    assert_eq!(pop(&mut ring), Ok(Some(0)));
}

#[test]
fn heads_outside_the_table() {
    for head in [8, 9, u16::MAX] {
        let (mut driver, mut ring) = pair(8);
        driver.offer(head);
        assert_eq!(pop(&mut ring), Err(RingError::HeadOutOfRange { head, size: 8 }));
    }
}

#[test]
fn chains_that_leave_the_table() {
    for next in [8, u16::MAX] {
        let (driver, ring) = pair(8);
        driver.set(0, DATA, 1, NEXT, next);
        refused(driver, ring, RingError::NextOutOfRange { head: 0, next, size: 8 });
    }
    let (driver, ring) = pair(8);
    driver.set(0, TABLE, 32, INDIRECT, 0);
    put(&driver.memory, TABLE, &descriptor(DATA, 1, NEXT, 2));
    refused(driver, ring, RingError::NextOutOfRange { head: 0, next: 2, size: 2 });
}

#[test]
fn chains_that_loop() {
    let (driver, ring) = pair(8);
    driver.set(0, DATA, 1, NEXT, 0);
    refused(driver, ring, RingError::ChainTooLong { head: 0, limit: 8 });

    let (driver, ring) = pair(8);
    for i in 0..8 {
        driver.set(i, DATA, 1, NEXT, (i + 1) % 8);
    }
    refused(driver, ring, RingError::ChainTooLong { head: 0, limit: 8 });

    // An empty buffer adds no segment, so only the count of descriptors ends this one.
    let (driver, ring) = pair(8);
    driver.set(0, TABLE, 16 * 32768, INDIRECT, 0);
    put(&driver.memory, TABLE, &descriptor(DATA, 0, NEXT, 0));
    refused(driver, ring, RingError::ChainTooLong { head: 0, limit: 2048 });

    let (driver, ring) = pair(8);
    driver.set(0, TABLE, 16 * 100, INDIRECT, 0);
    put(&driver.memory, TABLE, &descriptor(DATA, 0, NEXT, 0));
    refused(driver, ring, RingError::ChainTooLong { head: 0, limit: 100 });
}

/// Entries 0 to `count` - 1 of a table for `entries`, one after the other.
fn table(driver: &Driver, entries: u32, count: u16, (addr, len): (u64, u32)) {
    driver.set(0, TABLE, 16 * entries, INDIRECT, 0);
    for i in 0..count {
        let flags = if i + 1 < count { NEXT } else { 0 };
        put(&driver.memory, TABLE + 16 * u64::from(i), &descriptor(addr, len, flags, i + 1));
    }
}

#[test]
fn empty_buffers_count_too() {
    // No segments, and for each request thousands of descriptors to walk over.
    for (size, most) in [(8, 2048), (1024, 2048), (4096, 8192)] {
        let (driver, ring) = pair(size);
        table(&driver, 32768, most + 1, (DATA, 0));
        refused(driver, ring, RingError::ChainTooLong { head: 0, limit: most.into() });

        let (mut driver, mut ring) = pair(size);
        table(&driver, 32768, most, (DATA, 0));
        driver.offer(0);
        assert_eq!(pop(&mut ring), Ok(Some(0)));
    }
}

#[test]
fn chains_as_long_as_the_ring() {
    let (mut driver, mut ring) = pair(8);
    for i in 0..8 {
        driver.set(i, DATA, 1, if i < 7 { NEXT } else { 0 }, i + 1);
    }
    driver.offer(0);
    let mut chain = Chain::default();
    assert_eq!(ring.pop(&mut chain), Ok(Some(0)));
    assert_eq!((chain.segments.len(), chain.readable), (8, 8));
}

#[test]
fn too_many_segments() {
    // Each descriptor in two pieces.
    let twice = (DATA + 0xffff, 2);
    let (driver, ring) = pair(8);
    table(&driver, 1025, 1025, twice);
    refused(driver, ring, RingError::TooManySegments { head: 0, limit: 2048 });

    for (count, buffer) in [(1024, twice), (2048, (DATA, 1))] {
        let (mut driver, mut ring) = pair(8);
        table(&driver, count.into(), count, buffer);
        driver.offer(0);
        assert_eq!(pop(&mut ring), Ok(Some(0)));
    }

    // A ring larger than 1024 may have chains as long as itself, each descriptor in two pieces.
    let (mut driver, mut ring) = pair(32768);
    for i in 0..32768_u16 {
        driver.set(i, DATA + 0xffff, 2, if i < 32767 { NEXT } else { 0 }, i.wrapping_add(1));
    }
    driver.offer(0);
    let mut chain = Chain::default();
    assert_eq!(ring.pop(&mut chain), Ok(Some(0)));
    assert_eq!(chain.segments.len(), 65536);
}

#[test]
fn more_than_four_gib() {
    // Chains may name the same bytes again, so 4 GiB need no such memory: 4096 times 1 MiB.
    let count = 4096;
    let offer = |extra: bool| {
        let layout = layout_at(BASE, 8192);
        let driver = Driver::new(memory(&[(BASE, 0x10_0000), (DATA, 0x10_0000)]), layout, 0);
        for i in 0..count {
            let last = i + 1 == count && !extra;
            driver.set(i, DATA, 0x10_0000, if last { 0 } else { NEXT }, i + 1);
        }
        if extra {
            driver.set(count, DATA, 1, 0, 0);
        }
        let ring = SplitRing::new(Arc::clone(&driver.memory), layout, RingPosition::default()).unwrap();
        (driver, ring)
    };
    let (driver, ring) = offer(true);
    refused(driver, ring, RingError::TooManyBytes { head: 0 });
    let (mut driver, mut ring) = offer(false);
    driver.offer(0);
    let mut chain = Chain::default();
    assert_eq!(ring.pop(&mut chain), Ok(Some(0)));
    assert_eq!(chain.readable_bytes(), 1 << 32);
}

#[test]
fn buffers_outside_memory() {
    let end = DATA + 0x1_1000;
    for (addr, len) in [
        (0, 1),
        (end, 1),
        (end - 1, 2),
        (DATA - 1, 2),
        (DATA, 0x1_1001),
        (DATA, u32::MAX),
        (u64::MAX, 1),
        (u64::MAX, u32::MAX),
    ] {
        let (driver, ring) = pair(8);
        driver.set(0, addr, len, 0, 0);
        refused(driver, ring, RingError::OutsideMemory { head: 0, guest_addr: addr, len });
    }
}

#[test]
fn buffers_that_wrap_around_the_address_space() {
    let last = u64::MAX - 0xfff;
    let table = memory(&[(0, 0x1000), (BASE, 0x1000), (last, 0x1000)]);
    let layout = layout_at(BASE, 8);
    for (len, ok) in [(16, true), (17, false)] {
        let mut driver = Driver::new(Arc::clone(&table), layout, 0);
        driver.set(0, u64::MAX - 15, len, 0, 0);
        driver.offer(0);
        let mut ring = SplitRing::new(Arc::clone(&table), layout, RingPosition::default()).unwrap();
        assert_eq!(pop(&mut ring).is_ok(), ok);
    }
}

#[test]
fn indirect_tables_outside_memory() {
    let end = DATA + 0x1_1000;
    let error = |guest_addr| RingError::OutsideMemory { head: 0, guest_addr, len: 32 };
    for addr in [0, end, u64::MAX - 31] {
        let (driver, ring) = pair(8);
        driver.set(0, addr, 32, INDIRECT, 0);
        refused(driver, ring, error(addr));
    }
    // The first entry is there and leads to the second, which is not.
    let (driver, ring) = pair(8);
    driver.set(0, end - 16, 32, INDIRECT, 0);
    put(&driver.memory, end - 16, &descriptor(DATA, 1, NEXT, 1));
    refused(driver, ring, error(end - 16));
}

#[test]
fn readable_after_writable() {
    let (driver, ring) = pair(8);
    driver.set(0, DATA, 1, NEXT | WRITE, 1);
    driver.set(1, DATA, 1, 0, 0);
    refused(driver, ring, RingError::ReadableAfterWritable { head: 0 });
    // The order goes on across the step into a table.
    let (driver, ring) = pair(8);
    driver.set(0, DATA, 1, NEXT | WRITE, 1);
    driver.set(1, TABLE, 16, INDIRECT, 0);
    put(&driver.memory, TABLE, &descriptor(DATA, 1, 0, 0));
    refused(driver, ring, RingError::ReadableAfterWritable { head: 0 });
}

#[test]
fn indirect_not_negotiated() {
    let layout = Layout { indirect: false, ..layout_at(BASE, 8) };
    let driver = Driver::new(guest(), layout, 0);
    driver.set(0, TABLE, 16, INDIRECT, 0);
    let ring = SplitRing::new(Arc::clone(&driver.memory), layout, RingPosition::default()).unwrap();
    refused(driver, ring, RingError::IndirectNotNegotiated { head: 0 });
}

#[test]
fn nested_indirect() {
    let (driver, ring) = pair(8);
    driver.set(0, TABLE, 16, INDIRECT, 0);
    put(&driver.memory, TABLE, &descriptor(TABLE, 16, INDIRECT, 0));
    refused(driver, ring, RingError::NestedIndirect { head: 0 });
}

#[test]
fn indirect_with_next() {
    let (driver, ring) = pair(8);
    driver.set(0, TABLE, 16, INDIRECT | NEXT, 1);
    refused(driver, ring, RingError::IndirectWithNext { head: 0 });
}

#[test]
fn bad_indirect_lengths() {
    for len in [0, 1, 15, 17, 16 * 32768 + 16, u32::MAX - 15, u32::MAX] {
        let (driver, ring) = pair(8);
        driver.set(0, TABLE, len, INDIRECT, 0);
        refused(driver, ring, RingError::BadIndirectLength { head: 0, len });
    }
    let (mut driver, mut ring) = pair(8);
    driver.set(0, TABLE, 16 * 32768, INDIRECT, 0);
    put(&driver.memory, TABLE, &descriptor(DATA, 1, NEXT, 32767));
    put(&driver.memory, TABLE + 16 * 32767, &descriptor(DATA + 1, 1, WRITE, 0));
    driver.offer(0);
    let mut chain = Chain::default();
    assert_eq!(ring.pop(&mut chain), Ok(Some(0)));
    assert_eq!(ranges(&driver.memory, &chain.segments), [(DATA, 1), (DATA + 1, 1)]);
}

#[test]
fn messages_carry_what_a_reader_needs() {
    let error = RingError::OutsideMemory { head: 3, guest_addr: 0xabc000, len: 512 };
    assert_eq!(error.to_string(), "chain of head 3 points to 512 bytes at 0xabc000, outside memory");
    let error = RingError::Misaligned { area: Area::Used, guest_addr: 2, align: 4 };
    assert_eq!(error.to_string(), "used ring at 0x2 is not aligned to 4 bytes");
}
