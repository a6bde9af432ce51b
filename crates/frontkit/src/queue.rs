//! The driver's side of a split virtqueue (virtio 1.3, section 2.7).
//!
//! Requests are made available in batches: one store of the index and at most one kick for all of them. The caller says
//! which descriptors a chain uses, and kicks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use vhost::VringConfigData;

use crate::memory::{Memory, Row, USER_BASE};

/// The flag of a descriptor that another one follows (2.7.5).
pub const NEXT: u16 = 1;
/// The flag of a buffer that the device writes (2.7.5).
pub const WRITE: u16 = 2;
/// The flag of a buffer that is a table of descriptors (2.7.5.3).
pub const INDIRECT: u16 = 4;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT` (2.7.6) and `VIRTQ_USED_F_NO_NOTIFY` (2.7.8).
const QUIET: u16 = 1;
const DESCRIPTOR_BYTES: u64 = 16;
/// Flags and index stand before the entries of either ring.
const FLAGS: usize = 0;
const INDEX: usize = 1;
const ENTRIES: usize = 2;

/// A buffer of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Guest address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
    /// Whether the device writes it.
    pub writable: bool,
}

/// A buffer that the device reads.
pub fn readable(addr: u64, len: u32) -> Buffer {
    Buffer { addr, len, writable: false }
}

/// A buffer that the device writes.
pub fn writable(addr: u64, len: u32) -> Buffer {
    Buffer { addr, len, writable: true }
}

/// A chain that the device has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    /// Head of the chain, as the device says it.
    pub head: u32,
    /// Bytes it says it wrote.
    pub len: u32,
}

/// Guest addresses of a queue's areas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Areas {
    /// Descriptor table.
    pub desc: u64,
    /// Available ring.
    pub avail: u64,
    /// Used ring.
    pub used: u64,
}

impl Areas {
    /// One behind the other from `base` on, a multiple of 16, for `size` descriptors.
    pub fn packed(base: u64, size: u16) -> Self {
        let size = u64::from(size);
        let avail = base + DESCRIPTOR_BYTES * size;
        Self { desc: base, avail, used: (avail + 6 + 2 * size).next_multiple_of(4) }
    }

    /// Bytes that they take so.
    pub fn packed_bytes(size: u16) -> usize {
        Self::packed(0, size).used as usize + 6 + 8 * usize::from(size)
    }
}

/// One queue.
#[derive(Debug)]
pub struct Queue {
    memory: Arc<Memory>,
    areas: Areas,
    descriptors: Row<[AtomicU64; 2]>,
    /// The available ring: flags, index, entries, the index that the driver wants to be told at.
    avail: Row<AtomicU16>,
    /// The used ring: flags and index, elements, the index that the device wants to be told at.
    used: Row<AtomicU16>,
    elements: Row<[AtomicU32; 2]>,
    avail_event: Row<AtomicU16>,
    size: u16,
    event_idx: bool,
    /// Next available index, and how far the device was shown it.
    next_avail: u16,
    shown: u16,
    next_used: u16,
}

impl Queue {
    /// An empty queue of `size` descriptors (a power of two), with notifications wanted.
    pub fn new(memory: Arc<Memory>, areas: Areas, size: u16, event_idx: bool) -> Self {
        let len = usize::from(size);
        let queue = Self {
            descriptors: memory.row(areas.desc, len),
            avail: memory.row(areas.avail, ENTRIES + len + 1),
            used: memory.row(areas.used, ENTRIES),
            elements: memory.row(areas.used + 4, len),
            avail_event: memory.row(areas.used + 4 + 8 * u64::from(size), 1),
            memory,
            areas,
            size,
            event_idx,
            next_avail: 0,
            shown: 0,
            next_used: 0,
        };
        // The memory may be that of an earlier queue.
        queue.avail[..ENTRIES].iter().chain(&*queue.used).for_each(|field| field.store(0, Ordering::Relaxed));
        queue
    }

    /// The memory that it lies in.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Where it lies there.
    pub fn areas(&self) -> Areas {
        self.areas
    }

    /// Descriptors.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Where the areas are, as SET_VRING_ADDR says it.
    pub fn addresses(&self) -> VringConfigData {
        VringConfigData {
            queue_max_size: self.size,
            queue_size: self.size,
            flags: 0,
            desc_table_addr: USER_BASE + self.areas.desc,
            used_ring_addr: USER_BASE + self.areas.used,
            avail_ring_addr: USER_BASE + self.areas.avail,
            log_addr: None,
        }
    }

    /// The available index with all that was entered.
    pub fn next_available(&self) -> u16 {
        self.next_avail
    }

    /// Requests that were entered and not taken back.
    pub fn in_flight(&self) -> u16 {
        self.next_avail.wrapping_sub(self.next_used)
    }

    /// Requests among them that the device was shown.
    pub fn shown(&self) -> u16 {
        self.shown.wrapping_sub(self.next_used)
    }

    /// Writes one descriptor of the table, whatever it says.
    #[inline]
    pub fn set_descriptor(&self, at: u16, addr: u64, len: u32, flags: u16, next: u16) {
        store_descriptor(&self.descriptors[usize::from(at)], addr, len, flags, next);
    }

    /// Writes one entry of the available ring, whatever it says.
    #[inline]
    pub fn set_available_entry(&self, at: u16, head: u16) {
        self.avail[ENTRIES + usize::from(at % self.size)].store(head.to_le(), Ordering::Relaxed);
    }

    /// Writes the available index, whatever it says.
    #[inline]
    pub fn set_available_index(&self, index: u16) {
        self.avail[INDEX].store(index.to_le(), Ordering::Release);
    }

    /// Writes a chain into free descriptors, those that `at` gives the positions of its buffers, and enters it. Shows the
    /// device nothing yet.
    #[inline]
    pub fn add(&mut self, buffers: &[Buffer], at: impl Fn(usize) -> u16) {
        chain(buffers, &at, |at, addr, len, flags, next| self.set_descriptor(at, addr, len, flags, next));
        self.enter(at(0));
    }

    /// As [`add`](Self::add), with an indirect table at `table` in the free descriptor `head`.
    pub fn add_indirect(&mut self, head: u16, table: u64, buffers: &[Buffer]) {
        chain(
            buffers,
            |position| position as u16,
            |at, addr, len, flags, next| {
                write_descriptor(&self.memory, table + DESCRIPTOR_BYTES * u64::from(at), addr, len, flags, next);
            },
        );
        self.set_descriptor(head, table, DESCRIPTOR_BYTES as u32 * buffers.len() as u32, INDIRECT, 0);
        self.enter(head);
    }

    /// Enters a chain that is written already.
    #[inline]
    pub fn enter(&mut self, head: u16) {
        self.set_available_entry(self.next_avail, head);
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    /// Shows the device what was entered. Whether it wants a kick for that.
    #[inline]
    #[must_use]
    pub fn publish(&mut self) -> bool {
        let before = self.shown;
        before != self.next_avail && {
            self.show();
            self.wants_kick(before)
        }
    }

    /// Shows the device what was entered, and looks at nothing.
    #[inline]
    pub fn show(&mut self) {
        self.set_available_index(self.next_avail);
        self.shown = self.next_avail;
    }

    /// Whether the device wants a kick for what was shown since the available index was `before`.
    #[inline]
    pub fn wants_kick(&self, before: u16) -> bool {
        // Either the device sees the index that was stored, or its wish for a kick is seen here.
        fence(Ordering::SeqCst);
        let load = |field: &AtomicU16| u16::from_le(field.load(Ordering::Relaxed));
        if self.event_idx {
            needs_event(load(&self.avail_event[0]), self.shown, before)
        } else {
            load(&self.used[FLAGS]) & QUIET == 0
        }
    }

    /// The used index as the device published it.
    #[inline]
    pub fn used_index(&self) -> u16 {
        u16::from_le(self.used[INDEX].load(Ordering::Acquire))
    }

    /// Chains that the device says it has used and that were not taken yet.
    #[inline]
    pub fn unseen(&self) -> u16 {
        self.used_index().wrapping_sub(self.next_used)
    }

    /// Takes the next used chain.
    #[inline]
    pub fn take_used(&mut self) -> Option<Used> {
        if self.unseen() == 0 {
            return None;
        }
        let [head, len] = &self.elements[usize::from(self.next_used % self.size)];
        let [head, len] = [head, len].map(|word| u32::from_le(word.load(Ordering::Relaxed)));
        self.next_used = self.next_used.wrapping_add(1);
        Some(Used { head, len })
    }

    /// Asks to be told about the next used chain; false when there is one already.
    pub fn arm(&self) -> bool {
        if self.event_idx {
            self.avail[ENTRIES + usize::from(self.size)].store(self.next_used.to_le(), Ordering::Relaxed);
        } else {
            self.avail[FLAGS].store(0, Ordering::Relaxed);
        }
        // Either the device sees the wish, or what it used is seen here.
        fence(Ordering::SeqCst);
        self.unseen() == 0
    }

    /// Asks for no more notifications. With EVENT_IDX the one that was asked for is the only one.
    pub fn disarm(&self) {
        if !self.event_idx {
            self.avail[FLAGS].store(QUIET.to_le(), Ordering::Relaxed);
        }
    }
}

/// Tells `write` each descriptor of a chain: which it is, by what `at` says of the position of its buffer, and its fields.
#[inline]
fn chain(buffers: &[Buffer], at: impl Fn(usize) -> u16, write: impl Fn(u16, u64, u32, u16, u16)) {
    for (position, Buffer { addr, len, writable }) in buffers.iter().enumerate() {
        let flags = if *writable { WRITE } else { 0 };
        let (flags, next) = if position + 1 == buffers.len() { (flags, 0) } else { (flags | NEXT, at(position + 1)) };
        write(at(position), *addr, *len, flags, next);
    }
}

/// Writes a descriptor (2.7.5) at the guest address `at`, whatever it says.
pub fn write_descriptor(memory: &Memory, at: u64, addr: u64, len: u32, flags: u16, next: u16) {
    store_descriptor(memory.fields(at), addr, len, flags, next);
}

/// As [`write_descriptor`], byte by byte: who reads it meanwhile may find half of it.
pub fn tear_descriptor(memory: &Memory, at: u64, addr: u64, len: u32, flags: u16, next: u16) {
    let [addr, len] = [addr.to_le_bytes().to_vec(), len.to_le_bytes().to_vec()];
    let bytes = [addr, len, flags.to_le_bytes().to_vec(), next.to_le_bytes().to_vec()].concat();
    for (at, byte) in (at..).zip(bytes) {
        memory.fields::<AtomicU8>(at).store(byte, Ordering::Relaxed);
    }
}

#[inline]
fn store_descriptor([first, second]: &[AtomicU64; 2], addr: u64, len: u32, flags: u16, next: u16) {
    let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
    first.store(addr.to_le(), Ordering::Relaxed);
    second.store(rest.to_le(), Ordering::Relaxed);
}

/// Whether going from `before` to `now` passes `event` (2.7.7.2, 2.7.10.1).
#[inline]
fn needs_event(event: u16, now: u16, before: u16) -> bool {
    now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)
}

#[cfg(test)]
mod tests {
    use crate::memory::Area;

    use super::*;

    const SIZE: u16 = 8;

    #[test]
    fn a_descriptor_that_is_torn_is_whole_in_the_end() {
        let memory = Memory::new(0, 4096).unwrap();
        write_descriptor(&memory, 64, 0x0102_0304_0506_0708, 0x090a_0b0c, 0x0d0e, 0x0f10);
        tear_descriptor(&memory, 128, 0x0102_0304_0506_0708, 0x090a_0b0c, 0x0d0e, 0x0f10);
        assert_eq!(memory.read(64, 16), memory.read(128, 16));
        assert_ne!(memory.read(64, 16), [0; 16]);
    }

    /// Our queue, the memory behind it, and the server's ring on the same memory, mapped a second time.
    fn pair(event_idx: bool) -> (Queue, Area, vring::SplitRing) {
        let (memory, mut buffers) = Memory::with_areas(1 << 30, 0, Areas::packed_bytes(SIZE), &[4096]).unwrap();
        let info = memory.info();
        let mapping = vring::Mapping::shared(memory.file(), 0, info.memory_size as usize).unwrap();
        let region = vring::Region {
            guest_addr: info.guest_phys_addr,
            user_addr: info.userspace_addr,
            len: info.memory_size,
            mapping: Arc::new(mapping),
            offset: 0,
        };
        let table = Arc::new(vring::Memory::new(vec![region]).unwrap());
        let areas = Areas::packed(memory.guest_addr(), SIZE);
        let queue = Queue::new(memory, areas, SIZE, event_idx);
        queue.disarm();
        let Areas { desc, avail, used } = areas;
        let layout = vring::Layout { size: SIZE, desc, avail, used, event_idx, indirect: true };
        let device = vring::SplitRing::new(table, layout, vring::RingPosition::default()).unwrap();
        (queue, buffers.remove(0), device)
    }

    fn echo(queue: &mut Queue, data: &mut Area, device: &mut vring::SplitRing, round: u8) {
        data.bytes_mut(0, 3).copy_from_slice(&[round, 2, 3]);
        let buffers = [readable(data.guest_addr(0), 3), writable(data.guest_addr(64), 5)];
        let head = u16::from(round % 4) * 2;
        queue.add(&buffers, |position| head + position as u16);
        let _kick = queue.publish();
        let mut chain = vring::Chain::default();
        assert_eq!(device.pop(&mut chain).unwrap(), Some(head));
        let mut seen = [0; 3];
        assert_eq!(vring::copy::read_at(chain.readable_segments(), 0, &mut seen), 3);
        assert_eq!(seen, [round, 2, 3]);
        assert_eq!(vring::copy::write_at(chain.writable_segments(), 0, &[9, round]), 2);
        device.push(head, 2);
        assert_eq!(queue.unseen(), 0);
        device.publish();
        assert_eq!(queue.take_used(), Some(Used { head: head.into(), len: 2 }));
        assert_eq!(data.bytes(64, 2), [9, round]);
    }

    #[test]
    fn chains_reach_a_device_and_come_back_around_the_ring() {
        for event_idx in [false, true] {
            let (mut queue, mut data, mut device) = pair(event_idx);
            for round in 0..40 {
                echo(&mut queue, &mut data, &mut device, round);
            }
        }
    }

    #[test]
    fn a_device_that_looks_is_not_kicked_and_one_that_sleeps_is_kicked_once_a_batch() {
        for event_idx in [false, true] {
            let (mut queue, data, mut device) = pair(event_idx);
            let buffer = [readable(data.guest_addr(0), 1)];
            let mut chain = vring::Chain::default();
            assert!(!device.enable_kicks(), "nothing is pending");
            queue.add(&buffer, |_| 0);
            queue.add(&buffer, |_| 1);
            assert!(queue.publish());
            assert!(!queue.publish(), "nothing was added");
            while device.pop(&mut chain).unwrap().is_some() {}
            device.disable_kicks();
            queue.add(&buffer, |_| 2);
            assert!(!queue.publish(), "event_idx {event_idx}: no kick was wanted");
        }
    }

    #[test]
    fn a_notification_comes_where_it_was_asked_for() {
        for event_idx in [false, true] {
            let (mut queue, data, mut device) = pair(event_idx);
            let mut chain = vring::Chain::default();
            for (head, waits) in [(0, false), (1, true), (2, false)] {
                if waits {
                    assert!(queue.arm(), "nothing is used");
                }
                queue.add(&[readable(data.guest_addr(0), 1)], |_| head);
                let _kick = queue.publish();
                device.pop(&mut chain).unwrap();
                device.push(head, 0);
                // The first use passes the event index of a fresh ring, which is 0.
                assert_eq!(device.publish(), waits || (event_idx && head == 0), "head {head}, event_idx {event_idx}");
                assert!(!queue.arm(), "one is there");
                queue.disarm();
                assert!(queue.take_used().is_some());
            }
        }
    }

    #[test]
    fn a_table_may_stand_for_its_buffers() {
        let (mut queue, data, mut device) = pair(true);
        let table = queue.areas().used + 256;
        queue.add_indirect(5, table.next_multiple_of(16), &[readable(data.guest_addr(0), 7); 3]);
        assert_eq!((queue.in_flight(), queue.shown()), (1, 0));
        let _kick = queue.publish();
        assert_eq!((queue.in_flight(), queue.shown()), (1, 1));
        let mut chain = vring::Chain::default();
        assert_eq!(device.pop(&mut chain).unwrap(), Some(5));
        assert_eq!(chain.readable_segments().iter().map(vring::Segment::len).collect::<Vec<_>>(), [7; 3]);
    }

    #[test]
    fn events_are_passed_across_the_wrap() {
        assert!(needs_event(5, 6, 5));
        assert!(!needs_event(6, 6, 5));
        assert!(needs_event(u16::MAX, 1, u16::MAX));
        assert!(!needs_event(4, 10, 6));
    }
}
