//! What a well-behaved driver sees: layouts, batches, suppression, moves to another memory table.

use std::sync::Arc;

use crate::common::{Driver, INDIRECT, NEXT, WRITE, descriptor, get, layout_at, memory, put, ranges};
use vring::copy::{read_at, write_at};
use vring::{Chain, Layout, Memory, RingError, RingPosition, SplitRing};

const BASE: u64 = 0x1000;
const DATA: u64 = 0x10_0000;

fn pair(layout: Layout, start: u16) -> (Driver, SplitRing) {
    let driver = Driver::new(memory(&[(BASE, 0x8000), (DATA, 0x1000), (DATA + 0x1000, 0x1000)]), layout, start);
    let ring = SplitRing::new(Arc::clone(&driver.memory), layout, RingPosition::split(start)).unwrap();
    (driver, ring)
}

fn plain(size: u16) -> Layout {
    Layout { event_idx: false, ..layout_at(BASE, size) }
}

#[test]
fn a_disk_request_goes_through() {
    let (mut driver, mut ring) = pair(layout_at(BASE, 8), 0);
    driver.set(5, DATA, 16, NEXT, 2);
    driver.set(2, DATA + 512, 1024, NEXT | WRITE, 7);
    driver.set(7, DATA + 64, 1, WRITE, 0);
    put(&driver.memory, DATA, b"header of 16 byt");
    assert!(!ring.has_pending());
    driver.offer(5);
    assert!(ring.has_pending());

    let mut chain = Chain::default();
    assert_eq!(ring.pop(&mut chain), Ok(Some(5)));
    assert!(!ring.has_pending());
    assert_eq!(ring.pop(&mut Chain::default()), Ok(None));
    assert_eq!((chain.readable_bytes(), chain.writable_bytes()), (16, 1025));
    let mut header = [0; 16];
    assert_eq!(read_at(chain.readable_segments(), 0, &mut header), 16);
    assert_eq!(&header, b"header of 16 byt");
    assert_eq!(write_at(chain.writable_segments(), 1020, b"data!"), 5);

    ring.push(5, 1025);
    assert_eq!((driver.used_idx(), ring.next_used()), (0, 1));
    assert!(ring.publish());
    assert_eq!(driver.used_idx(), 1);
    assert_eq!(driver.used_element(0), (5, 1025));
    assert_eq!(get(&driver.memory, DATA + 512 + 1020, 4), b"data");
    assert_eq!(get(&driver.memory, DATA + 64, 1), b"!");
}

#[test]
fn buffers_across_regions_are_split() {
    let (mut driver, mut ring) = pair(layout_at(BASE, 4), 0);
    driver.set(0, DATA + 0xff0, 0x20, NEXT, 1);
    driver.set(1, DATA + 0x800, 0x1000, WRITE, 0);
    driver.offer(0);
    let mut chain = Chain::default();
    assert_eq!(ring.pop(&mut chain), Ok(Some(0)));
    assert_eq!(
        ranges(&driver.memory, &chain.segments),
        [(DATA + 0xff0, 0x10), (DATA + 0x1000, 0x10), (DATA + 0x800, 0x800), (DATA + 0x1000, 0x800)]
    );
    assert_eq!(chain.readable, 2);
}

#[test]
fn indirect_tables_may_lie_anywhere() {
    // Unaligned, across the border of two regions, one entry cut by it, behind a normal descriptor; the write flag on the
    // descriptor that refers to the table means nothing.
    for at in [DATA + 1, DATA + 0xff0, DATA + 0xfe9, DATA + 0xff8, DATA + 0x1000] {
        let (mut driver, mut ring) = pair(layout_at(BASE, 4), 0);
        driver.set(3, DATA + 0x500, 4, NEXT, 1);
        driver.set(1, at, 48, INDIRECT | WRITE, 9);
        put(&driver.memory, at, &descriptor(DATA + 0x600, 5, NEXT, 2));
        put(&driver.memory, at + 32, &descriptor(DATA + 0x700, 6, NEXT | WRITE, 1));
        put(&driver.memory, at + 16, &descriptor(DATA + 0x800, 7, WRITE, 77));
        driver.offer(3);
        let mut chain = Chain::default();
        assert_eq!(ring.pop(&mut chain), Ok(Some(3)));
        assert_eq!(
            ranges(&driver.memory, &chain.segments),
            [(DATA + 0x500, 4), (DATA + 0x600, 5), (DATA + 0x700, 6), (DATA + 0x800, 7)]
        );
        assert_eq!(chain.readable, 2);
    }
}

#[test]
fn what_an_earlier_life_left_comes_first_and_once() {
    let (mut driver, mut ring) = pair(plain(8), 0);
    for head in [2, 5, 1] {
        driver.set(head, DATA, 8, WRITE, 0);
        driver.offer(head);
    }
    let mut chain = Chain::default();
    for head in [2, 5] {
        assert_eq!(ring.pop(&mut chain), Ok(Some(head)));
    }
    let next = ring.position();
    let mut again = SplitRing::new(Arc::clone(&driver.memory), *ring.layout(), next).unwrap();
    assert_eq!(again.owe(&[2, 8]), Err(RingError::HeadOutOfRange { head: 8, size: 8 }));
    again.owe(&[2, 5]).unwrap();
    assert!(again.has_pending() && again.enable_kicks());
    assert_eq!(again.pop(&mut chain), Ok(Some(2)));
    assert_eq!(chain.writable_bytes(), 8);
    assert_eq!((again.take_owed(), again.owed()), (vec![5], 0));
    again.owe(&[5]).unwrap();
    for head in [5, 1] {
        assert_eq!(again.pop(&mut chain), Ok(Some(head)));
    }
    assert_eq!(again.pop(&mut chain), Ok(None));
    for head in [1, 2, 5] {
        again.push(head, 0);
    }
    again.publish();
    assert_eq!((driver.used_idx(), again.position().avail()), (3, 3));
}

#[test]
fn empty_buffers_are_skipped() {
    let (mut driver, mut ring) = pair(layout_at(BASE, 4), 0);
    driver.set(0, 0xdead_0000_0000, 0, NEXT, 1);
    driver.set(1, DATA, 3, NEXT, 2);
    driver.set(2, DATA, 0, NEXT | WRITE, 3);
    driver.set(3, DATA + 8, 4, WRITE, 0);
    driver.offer(0);
    let mut chain = Chain::default();
    assert_eq!(ring.pop(&mut chain), Ok(Some(0)));
    assert_eq!(ranges(&driver.memory, &chain.segments), [(DATA, 3), (DATA + 8, 4)]);
    assert_eq!(chain.readable, 1);
}

#[test]
fn a_batch_is_what_was_available_at_its_start() {
    let (mut driver, mut ring) = pair(layout_at(BASE, 4), u16::MAX - 1);
    for i in 0..4 {
        driver.set(i, DATA, 1, 0, 0);
    }
    (0..3).for_each(|head| driver.offer(head));
    let mut chain = Chain::default();
    let mut heads = Vec::new();
    while let Some(head) = ring.pop(&mut chain).unwrap() {
        // Made available in the middle of the batch: found when the batch is used up.
        if head == 0 {
            driver.offer(3);
        }
        heads.push(head);
    }
    assert_eq!(heads, [0, 1, 2, 3]);
    assert_eq!(ring.position().avail(), 2);
    heads.iter().rev().for_each(|&head| ring.push(head, 0));
    assert_eq!(driver.used_idx(), u16::MAX - 1);
    ring.publish();
    assert_eq!(driver.used_idx(), 2);
    let ids: Vec<u32> = (0..4).map(|i| driver.used_element(i).0).collect();
    assert_eq!(ids, [1, 0, 3, 2]);
    assert!(!ring.publish());
}

#[test]
fn the_used_ring_continues_where_it_was() {
    let (driver, _) = pair(layout_at(BASE, 4), 40);
    crate::common::put_u16(&driver.memory, driver.layout.used + 2, 65535);
    let mut ring = SplitRing::new(Arc::clone(&driver.memory), driver.layout, RingPosition::split(40)).unwrap();
    assert_eq!((ring.position().avail(), ring.next_used(), ring.size()), (40, 65535, 4));
    ring.push(3, 9);
    ring.publish();
    assert_eq!(driver.used_idx(), 0);
    assert_eq!(driver.used_element(3), (3, 9));
}

#[test]
fn no_interrupt_suppresses_without_event_idx() {
    let (driver, mut ring) = pair(plain(4), 0);
    assert!(!ring.publish());
    ring.push(0, 0);
    assert!(ring.publish());
    driver.set_avail_flags(1);
    ring.push(1, 0);
    assert!(!ring.publish());
    assert_eq!(driver.used_idx(), 2);
    // Other bits are reserved and mean nothing.
    driver.set_avail_flags(0xfffe);
    ring.push(2, 0);
    assert!(ring.publish());
}

#[test]
fn kicks_without_event_idx() {
    let (mut driver, mut ring) = pair(plain(4), 0);
    ring.disable_kicks();
    assert_eq!(driver.used_flags(), 1);
    assert!(!ring.enable_kicks());
    assert_eq!(driver.used_flags(), 0);
    ring.disable_kicks();
    driver.offer(0);
    assert!(ring.enable_kicks());
    assert_eq!(driver.used_flags(), 0);
}

#[test]
fn kicks_with_event_idx() {
    let (mut driver, mut ring) = pair(layout_at(BASE, 4), 65535);
    driver.set(0, DATA, 1, 0, 0);
    ring.disable_kicks();
    assert_eq!((driver.used_flags(), driver.avail_event()), (0, 0));
    assert!(!ring.enable_kicks());
    assert_eq!(driver.avail_event(), 65535);
    driver.offer(0);
    assert!(ring.enable_kicks());
    assert_eq!(ring.pop(&mut Chain::default()), Ok(Some(0)));
    assert!(!ring.enable_kicks());
    assert_eq!((driver.used_flags(), driver.avail_event()), (0, 0));
}

#[test]
fn used_event_decides_exactly() {
    // From every start around the wrap, batches of every length up to the ring: a notification is due when the entry
    // that the driver named is among those just published, and the flag of the other scheme means nothing.
    for start in [0, 1, 1000, 65530, 65535] {
        for batch in 1..=8_u16 {
            for event in -12..12_i16 {
                let (driver, mut ring) = pair(layout_at(BASE, 8), start);
                let named = start.wrapping_add_signed(event);
                driver.set_used_event(named);
                driver.set_avail_flags(1);
                (0..batch).for_each(|head| ring.push(head, 0));
                let due = (0..batch).any(|i| start.wrapping_add(i) == named);
                assert_eq!(ring.publish(), due, "start {start} batch {batch} event {event}");
                assert!(!ring.publish());
            }
        }
    }
}

#[test]
fn pops_do_not_allocate_once_grown() {
    let (mut driver, mut ring) = pair(layout_at(BASE, 8), 0);
    driver.set(0, DATA, 16, NEXT, 1);
    driver.set(1, DATA, 16, WRITE, 0);
    let mut chain = Chain::default();
    let mut room = None;
    for _ in 0..100_000 {
        driver.offer(0);
        assert_eq!(ring.pop(&mut chain), Ok(Some(0)));
        let now = (chain.segments.as_ptr(), chain.segments.capacity());
        assert_eq!(*room.get_or_insert(now), now);
        // Neither does the chain take the table again each time.
        assert_eq!(Arc::strong_count(ring.memory()), 3);
        ring.push(0, 0);
        ring.publish();
    }
}

#[test]
fn a_ring_moves_to_another_table() {
    let (mut driver, mut ring) = pair(layout_at(BASE, 4), 0);
    driver.set(0, DATA, 8, NEXT, 1);
    driver.set(1, DATA + 0x1000, 8, WRITE, 0);
    put(&driver.memory, DATA, b"old data");
    driver.offer(0);
    driver.offer(0);
    let mut flying = Chain::default();
    assert_eq!(ring.pop(&mut flying), Ok(Some(0)));

    // The second data region goes; the ring's own region and the first one keep their mappings.
    let old = Arc::downgrade(&driver.memory);
    let regions = driver.memory.regions()[..2].to_vec();
    let gone = Arc::downgrade(&driver.memory.regions()[2].mapping);
    let table = Arc::new(Memory::new(regions).unwrap());
    driver.memory = Arc::clone(&table);
    ring.set_memory(table).unwrap();
    let outside = RingError::OutsideMemory { head: 0, guest_addr: DATA + 0x1000, len: 8 };
    assert_eq!(ring.pop(&mut Chain::default()), Err(outside));

    // The request in flight still has its memory, and only it.
    assert!(gone.upgrade().is_some());
    assert_eq!(write_at(flying.writable_segments(), 0, b"finished"), 8);
    let mut read = [0; 8];
    assert_eq!(read_at(flying.readable_segments(), 0, &mut read), 8);
    assert_eq!(&read, b"old data");
    ring.push(0, 8);
    ring.publish();
    assert_eq!(driver.used_element(0), (0, 8));
    flying.clear();
    assert!(old.upgrade().is_none() && gone.upgrade().is_none());

    driver.set(1, DATA + 0x800, 8, WRITE, 0);
    assert_eq!(ring.pop(&mut flying), Ok(Some(0)));
    assert!(Arc::ptr_eq(flying.memory().unwrap(), ring.memory()));
}

#[test]
fn a_refused_table_changes_nothing() {
    let (mut driver, mut ring) = pair(layout_at(BASE, 4), 0);
    driver.set(0, DATA, 8, 0, 0);
    let without_ring = memory(&[(DATA, 0x1000)]);
    assert!(matches!(ring.set_memory(without_ring).unwrap_err(), RingError::AreaOutsideMemory { .. }));
    assert!(Arc::ptr_eq(ring.memory(), &driver.memory));
    driver.offer(0);
    assert_eq!(ring.pop(&mut Chain::default()), Ok(Some(0)));
    ring.push(0, 0);
    ring.publish();
    assert_eq!(driver.used_idx(), 1);
}
