//! The driver's side of a split virtqueue (virtio 1.3, section 2.7).
//!
//! Requests are made available in batches: one store of the index and at most one kick for all of them. Chains are
//! direct, and the caller says which descriptors they use.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost::VringConfigData;

use super::bell::Bell;
use super::memory::Area;

/// Descriptor flags (2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT` (2.7.6) and `VIRTQ_USED_F_NO_NOTIFY` (2.7.8).
const QUIET: u16 = 1;
const DESCRIPTOR_BYTES: usize = 16;

/// A buffer of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffer {
    /// Guest address.
    pub(crate) addr: u64,
    /// Length in bytes, not 0.
    pub(crate) len: u32,
    /// Whether the device writes it.
    pub(crate) writable: bool,
}

/// A chain that the device has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Used {
    /// Head of the chain, as the device says it.
    pub(crate) head: u32,
    /// Bytes it says it wrote.
    pub(crate) len: u32,
}

/// One queue.
pub(crate) struct Queue {
    area: Area,
    size: u16,
    event_idx: bool,
    bell: Bell,
    /// Next available index, and how far the device was shown it.
    avail: u16,
    shown: u16,
    /// Next used index.
    used: u16,
}

impl Queue {
    /// Bytes of area that a queue of `size` descriptors takes.
    pub(crate) fn area_bytes(size: u16) -> usize {
        used_at(size) + 6 + 8 * usize::from(size)
    }

    /// An empty queue of `size` descriptors (a power of two) in `area`, which is zero.
    pub(crate) fn new(area: Area, size: u16, event_idx: bool, bell: Bell) -> Self {
        let queue = Self { area, size, event_idx, bell, avail: 0, shown: 0, used: 0 };
        queue.disarm();
        queue
    }

    /// Guest addresses of descriptors, available ring and used ring of a queue of `size` descriptors in `area`.
    pub(crate) fn guest_addresses(area: &Area, size: u16) -> [u64; 3] {
        [0, avail_at(size), used_at(size)].map(|at| area.guest_addr(at))
    }

    /// Descriptors.
    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    /// How the device is told of requests, and tells of those it has used.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// Where the areas are, as SET_VRING_ADDR says it.
    pub(crate) fn addresses(&self) -> VringConfigData {
        VringConfigData {
            queue_max_size: self.size,
            queue_size: self.size,
            flags: 0,
            desc_table_addr: self.area.user_addr(0),
            used_ring_addr: self.area.user_addr(used_at(self.size)),
            avail_ring_addr: self.area.user_addr(avail_at(self.size)),
            log_addr: None,
        }
    }

    /// Writes a chain into the descriptors from `head` on, which are free, and enters it. Shows the device nothing yet.
    pub(crate) fn add(&mut self, head: u16, buffers: &[Buffer]) {
        for (position, buffer) in (head..).zip(buffers) {
            let is_last = usize::from(position - head) + 1 == buffers.len();
            let flags = if buffer.writable { WRITE } else { 0 } | if is_last { 0 } else { NEXT };
            let descriptor = self.area.bytes_mut(DESCRIPTOR_BYTES * usize::from(position), DESCRIPTOR_BYTES);
            descriptor[..8].copy_from_slice(&buffer.addr.to_le_bytes());
            descriptor[8..12].copy_from_slice(&buffer.len.to_le_bytes());
            descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
            descriptor[14..].copy_from_slice(&(if is_last { 0 } else { position + 1 }).to_le_bytes());
        }
        let entry = avail_at(self.size) + 4 + 2 * usize::from(self.avail % self.size);
        self.area.u16(entry).store(head.to_le(), Ordering::Relaxed);
        self.avail = self.avail.wrapping_add(1);
    }

    /// Shows the device what was added, and kicks it if it wants to be.
    pub(crate) fn publish(&mut self) -> Result<()> {
        if self.avail == self.shown {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.shown, self.avail);
        self.area.u16(avail_at(self.size) + 2).store(self.avail.to_le(), Ordering::Release);
        // Either the device sees the index that was just stored, or its wish for a kick is seen here.
        fence(Ordering::SeqCst);
        let is_wanted = if self.event_idx {
            let event = self.load(used_at(self.size) + 4 + 8 * usize::from(self.size));
            needs_event(event, self.avail, before)
        } else {
            self.load(used_at(self.size)) & QUIET == 0
        };
        if is_wanted {
            self.bell.ring()?;
        }
        Ok(())
    }

    fn load(&self, at: usize) -> u16 {
        u16::from_le(self.area.u16(at).load(Ordering::Relaxed))
    }

    /// Whether the device has used a chain that was not taken yet.
    pub(crate) fn has_used(&self) -> bool {
        u16::from_le(self.area.u16(used_at(self.size) + 2).load(Ordering::Acquire)) != self.used
    }

    /// Takes the next used chain.
    pub(crate) fn take_used(&mut self) -> Option<Used> {
        if !self.has_used() {
            return None;
        }
        let element = self.area.bytes(used_at(self.size) + 4 + 8 * usize::from(self.used % self.size), 8);
        let word = |at: usize| u32::from_le_bytes([element[at], element[at + 1], element[at + 2], element[at + 3]]);
        let used = Used { head: word(0), len: word(4) };
        self.used = self.used.wrapping_add(1);
        Some(used)
    }

    /// Asks to be told about the next used chain; false when there is one already.
    fn arm(&self) -> bool {
        if self.event_idx {
            self.area
                .u16(avail_at(self.size) + 4 + 2 * usize::from(self.size))
                .store(self.used.to_le(), Ordering::Relaxed);
        } else {
            self.area.u16(avail_at(self.size)).store(0, Ordering::Relaxed);
        }
        // Either the device sees the wish, or what it used is seen here.
        fence(Ordering::SeqCst);
        !self.has_used()
    }

    /// Asks for no more notifications. With EVENT_IDX the one that was asked for is the only one.
    fn disarm(&self) {
        if !self.event_idx {
            self.area.u16(avail_at(self.size)).store(QUIET.to_le(), Ordering::Relaxed);
        }
    }

    /// Waits until the device has used a chain, at most `limit`; whether it has. Where the device cannot say so, it is
    /// looked for.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<bool> {
        let Bell::Eventfds { call, .. } = &self.bell else { return Ok(self.look(limit)) };
        if !self.arm() {
            self.disarm();
            return Ok(true);
        }
        // SAFETY: the descriptor is open as long as `self` lives.
        let announced = unsafe { BorrowedFd::borrow_raw(call.as_raw_fd()) };
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        let mut fds = [PollFd::from_borrowed_fd(announced, PollFlags::IN)];
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the server"),
        }
        // Empties the counter; that it was empty is the time-out.
        let _count = call.read();
        self.disarm();
        Ok(self.has_used())
    }

    fn look(&self, limit: Duration) -> bool {
        let started = Instant::now();
        while !self.has_used() {
            if started.elapsed() > limit {
                return false;
            }
            // Whoever is to use it may need this processor.
            thread::yield_now();
        }
        true
    }
}

fn avail_at(size: u16) -> usize {
    DESCRIPTOR_BYTES * usize::from(size)
}

fn used_at(size: u16) -> usize {
    (avail_at(size) + 6 + 2 * usize::from(size)).next_multiple_of(4)
}

/// Whether going from `before` to `now` passes `event` (2.7.7.2, 2.7.10.1).
fn needs_event(event: u16, now: u16, before: u16) -> bool {
    now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vmm_sys_util::eventfd::EventFd;

    use super::super::memory::Memory;
    use super::*;

    const SIZE: u16 = 8;

    /// Our queue, the memory behind it, and the server's ring on the same memory, mapped a second time.
    fn pair(event_idx: bool) -> (Queue, Area, vring::SplitRing) {
        let (memory, areas) = Memory::areas(&[Queue::area_bytes(SIZE), 4096]).unwrap();
        let [ring, data]: [Area; 2] = areas.try_into().unwrap();
        let queue = Queue::new(ring, SIZE, event_idx, Bell::eventfds().unwrap());
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
        let guest = |user: u64| user - info.userspace_addr + info.guest_phys_addr;
        let addresses = queue.addresses();
        let layout = vring::Layout {
            size: SIZE,
            desc: guest(addresses.desc_table_addr),
            avail: guest(addresses.avail_ring_addr),
            used: guest(addresses.used_ring_addr),
            event_idx,
            indirect: false,
        };
        (queue, data, vring::SplitRing::new(table, layout, vring::RingPosition::default()).unwrap())
    }

    fn kicks(queue: &Queue) -> &EventFd {
        let Bell::Eventfds { kick, .. } = queue.bell() else { panic!("eventfds") };
        kick
    }

    fn echo(queue: &mut Queue, data: &mut Area, device: &mut vring::SplitRing, round: u8) {
        data.bytes_mut(0, 3).copy_from_slice(&[round, 2, 3]);
        let buffers = [
            Buffer { addr: data.guest_addr(0), len: 3, writable: false },
            Buffer { addr: data.guest_addr(64), len: 5, writable: true },
        ];
        let head = u16::from(round % 4) * 2;
        queue.add(head, &buffers);
        queue.publish().unwrap();
        let mut chain = vring::Chain::default();
        assert_eq!(device.pop(&mut chain).unwrap(), Some(head));
        let mut seen = [0; 3];
        assert_eq!(vring::copy::read_at(chain.readable_segments(), 0, &mut seen), 3);
        assert_eq!(seen, [round, 2, 3]);
        assert_eq!(vring::copy::write_at(chain.writable_segments(), 0, &[9, round]), 2);
        device.push(head, 2);
        assert!(!queue.has_used());
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
            let buffer = [Buffer { addr: data.guest_addr(0), len: 1, writable: false }];
            let mut chain = vring::Chain::default();
            assert!(!device.enable_kicks(), "nothing is pending");
            queue.add(0, &buffer);
            queue.add(1, &buffer);
            queue.publish().unwrap();
            assert_eq!(kicks(&queue).read().unwrap(), 1);
            while device.pop(&mut chain).unwrap().is_some() {}
            device.disable_kicks();
            queue.add(2, &buffer);
            queue.publish().unwrap();
            assert!(kicks(&queue).read().is_err(), "event_idx {event_idx}: no kick was wanted");
        }
    }

    #[test]
    fn a_wait_asks_for_a_notification_and_a_look_does_not() {
        for event_idx in [false, true] {
            let (mut queue, data, mut device) = pair(event_idx);
            let buffer = [Buffer { addr: data.guest_addr(0), len: 1, writable: false }];
            let mut chain = vring::Chain::default();
            for (head, waits) in [(0, false), (1, true), (2, false)] {
                if waits {
                    // As a wait begins: what follows is the device's turn.
                    assert!(queue.arm(), "nothing is used");
                }
                queue.add(head, &buffer);
                queue.publish().unwrap();
                device.pop(&mut chain).unwrap();
                device.push(head, 0);
                // The first use passes the event index of a fresh ring, which is 0.
                assert_eq!(device.publish(), waits || (event_idx && head == 0), "head {head}, event_idx {event_idx}");
                assert!(queue.wait(Duration::ZERO).unwrap());
                assert!(queue.take_used().is_some());
            }
        }
    }

    #[test]
    fn events_are_passed_across_the_wrap() {
        assert!(needs_event(5, 6, 5));
        assert!(!needs_event(6, 6, 5));
        assert!(needs_event(u16::MAX, 1, u16::MAX));
        assert!(!needs_event(4, 10, 6));
    }
}
