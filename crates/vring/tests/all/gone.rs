//! Guest memory that goes away under a ring: its frontend shortens the file behind it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::common::{Driver, NEXT, WRITE, layout_at};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vring::{Chain, Mapping, Memory, Region, RingError, RingPosition, SplitRing};

const RING: u64 = 0x1000;
const DATA: u64 = 0x10_0000;
const BYTES: u64 = 0x8000;
const SIZE: u16 = 16;

/// A region and the file behind it.
fn region(guest_addr: u64) -> (Region, OwnedFd) {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, BYTES).unwrap();
    let mapping = Arc::new(Mapping::shared(&file, 0, BYTES as usize).unwrap());
    (Region { guest_addr, user_addr: guest_addr, len: BYTES, mapping, offset: 0 }, file)
}

/// A ring in one region, room for data in another, and the files of both.
fn guest() -> (SplitRing, Driver, OwnedFd, OwnedFd) {
    let ((ring, ring_file), (data, data_file)) = (region(RING), region(DATA));
    let memory = Arc::new(Memory::new(vec![ring, data]).unwrap());
    let layout = layout_at(RING, SIZE);
    let driver = Driver::new(memory.clone(), layout, 0);
    (SplitRing::new(memory, layout, RingPosition::default()).unwrap(), driver, ring_file, data_file)
}

#[test]
fn a_ring_whose_memory_is_gone_breaks_and_stays_broken() {
    let (mut ring, mut driver, file, _data) = guest();
    driver.set(0, DATA, 64, 0, 0);
    driver.offer(0);
    let mut chain = Chain::default();
    assert_eq!(ring.pop(&mut chain), Ok(Some(0)));
    ftruncate(&file, 0).unwrap();
    // What was popped before is answered into the void.
    ring.push(0, 0);
    ring.publish();
    assert!(ring.has_pending(), "it is to be looked at");
    for _ in 0..2 {
        assert_eq!(ring.pop(&mut chain), Err(RingError::MemoryGone { guest_addr: RING }));
    }
    assert_eq!(ring.memory().gone(), Some(RING));
    assert!(ring.enable_kicks());
}

/// Nothing but a lost region tells: a ring of zeroes, at its start, has no requests.
#[test]
fn a_ring_that_has_never_seen_a_request_breaks_too() {
    let (mut ring, _driver, file, _data) = guest();
    ftruncate(&file, 0).unwrap();
    assert!(ring.has_pending());
    assert_eq!(ring.pop(&mut Chain::default()), Err(RingError::MemoryGone { guest_addr: RING }));
}

#[test]
fn buffers_that_are_gone_break_the_ring_at_the_next_look() {
    let (mut ring, mut driver, _ring, file) = guest();
    driver.set(0, DATA, 64, NEXT, 1);
    driver.set(1, DATA + 4096, 64, WRITE, 0);
    driver.offer(0);
    let mut chain = Chain::default();
    ftruncate(&file, 0).unwrap();
    assert_eq!(ring.pop(&mut chain), Ok(Some(0)), "the ring itself is there");
    let mut bytes = [1; 64];
    assert_eq!(vring::copy::read_at(chain.readable_segments(), 0, &mut bytes), 64);
    assert_eq!(bytes, [0; 64]);
    assert_eq!(vring::copy::write_at(chain.writable_segments(), 0, &bytes), 64);
    ring.push(0, 64);
    driver.offer(0);
    assert_eq!(ring.pop(&mut chain), Err(RingError::MemoryGone { guest_addr: DATA }));
}

#[test]
fn other_rings_go_on_and_a_new_table_mends_the_ring() {
    let (mut lost, _, file, _data) = guest();
    let (mut kept, mut driver, _ring, _file) = guest();
    ftruncate(&file, 0).unwrap();
    let mut chain = Chain::default();
    assert!(lost.pop(&mut chain).is_err());
    driver.set(0, DATA, 64, 0, 0);
    driver.offer(0);
    assert_eq!(kept.pop(&mut chain), Ok(Some(0)));
    assert_eq!(kept.pop(&mut chain), Ok(None));
    assert!(!kept.has_pending());

    let (whole, _file) = region(RING);
    lost.set_memory(Arc::new(Memory::new(vec![whole]).unwrap())).unwrap();
    assert_eq!(lost.pop(&mut chain), Ok(None));
    // And one that was lost before the ring came to it.
    let (gone, file) = region(RING);
    ftruncate(&file, 0).unwrap();
    // SAFETY: a byte of the mapping.
    unsafe { gone.mapping.as_ptr().read_volatile() };
    assert!(gone.mapping.is_gone());
    lost.set_memory(Arc::new(Memory::new(vec![gone]).unwrap())).unwrap();
    assert_eq!(lost.pop(&mut chain), Err(RingError::MemoryGone { guest_addr: RING }));
}
