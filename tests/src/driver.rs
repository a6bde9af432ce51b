//! The driver's side of a split virtqueue (virtio 1.3, section 2.7), without EVENT_IDX. It can obey
//! the rules, and it can break each of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use std::os::fd::AsRawFd;
use vhost::VringConfigData;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::guest_memory::{GuestMemory, USER_BASE};

/// Descriptor flags (2.7.5).
pub const NEXT: u16 = 1;
/// The device writes the buffer (2.7.5).
pub const WRITE: u16 = 2;
/// The buffer is a table of descriptors (2.7.5.3).
pub const INDIRECT: u16 = 4;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT` (2.7.6) and `VIRTQ_USED_F_NO_NOTIFY` (2.7.8).
const QUIET: u16 = 1;

/// How long a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Guest memory that each ring takes, in bytes: its areas, then the places of its requests.
pub const RING_BYTES: u64 = 8 << 20;
const AVAIL_AT: u64 = 0x8_0000;
const USED_AT: u64 = 0xa_0000;
const SLOTS_AT: u64 = 0x10_0000;
const SLOT_BYTES: u64 = 128;
const SLOTS: u64 = 32768;
const STATUS_AT: u64 = 16;
const TABLE_AT: u64 = 32;
/// What a status byte holds before the device has written it.
pub const NO_STATUS: u8 = 0xee;

/// A buffer of a chain.
#[derive(Clone, Copy, Debug)]
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

/// A block request that was made available.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Head of its chain.
    pub head: u16,
    status: u64,
}

/// One ring.
#[derive(Debug)]
pub struct Ring {
    memory: Arc<GuestMemory>,
    base: u64,
    index: usize,
    size: u16,
    kick: EventFd,
    call: EventFd,
    next_avail: u16,
    last_used: u16,
    next_slot: u64,
    free: Vec<u16>,
    chains: HashMap<u16, Vec<u16>>,
    kicks: u64,
    kicks_spared: u64,
}

impl Ring {
    /// Ring `index` of `size` descriptors, in its own part of `memory`.
    pub fn new(memory: Arc<GuestMemory>, index: usize, size: u16) -> Self {
        let base = memory.guest_addr() + index as u64 * RING_BYTES;
        let eventfd = || EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).expect("an eventfd");
        let ring = Self {
            memory,
            base,
            index,
            size,
            kick: eventfd(),
            call: eventfd(),
            next_avail: 0,
            last_used: 0,
            next_slot: 0,
            free: (0..size).rev().collect(),
            chains: HashMap::new(),
            kicks: 0,
            kicks_spared: 0,
        };
        ring.memory.store(ring.base + AVAIL_AT, 0);
        ring.memory.store(ring.base + AVAIL_AT + 2, 0);
        ring.memory.store(ring.base + USED_AT, 0);
        ring.memory.store(ring.base + USED_AT + 2, 0);
        ring
    }

    /// The memory that it lies in.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its descriptors.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// The kick eventfd.
    pub fn kick_fd(&self) -> &EventFd {
        &self.kick
    }

    /// The call eventfd.
    pub fn call_fd(&self) -> &EventFd {
        &self.call
    }

    /// Kicks that the device asked for, and kicks that it did not want.
    pub fn kicks(&self) -> (u64, u64) {
        (self.kicks, self.kicks_spared)
    }

    /// Where the areas are, as SET_VRING_ADDR says it.
    pub fn addresses(&self) -> VringConfigData {
        let base = USER_BASE + self.base;
        VringConfigData {
            queue_max_size: self.size,
            queue_size: self.size,
            flags: 0,
            desc_table_addr: base,
            used_ring_addr: base + USED_AT,
            avail_ring_addr: base + AVAIL_AT,
            log_addr: None,
        }
    }

    /// Writes one descriptor of the ring's table, whatever it says.
    pub fn set_descriptor(&self, at: u16, addr: u64, len: u32, flags: u16, next: u16) {
        write_descriptor(&self.memory, self.base + 16 * u64::from(at), addr, len, flags, next);
    }

    /// Writes one entry of the available ring.
    pub fn set_available_entry(&self, at: u16, head: u16) {
        self.memory.store(self.base + AVAIL_AT + 4 + 2 * u64::from(at % self.size), head);
    }

    /// Writes the available index, whatever it says.
    pub fn set_available_index(&self, index: u16) {
        self.memory.store(self.base + AVAIL_AT + 2, index);
    }

    /// The available index that the device was last shown by [`publish`](Self::publish).
    pub fn next_available(&self) -> u16 {
        self.next_avail
    }

    /// Whether the driver wants notifications (`VIRTQ_AVAIL_F_NO_INTERRUPT` not set).
    pub fn want_notifications(&self, wanted: bool) {
        self.memory.store(self.base + AVAIL_AT, if wanted { 0 } else { QUIET });
    }

    /// The used index as the device published it.
    pub fn used_index(&self) -> u16 {
        self.memory.load(self.base + USED_AT + 2)
    }

    /// Shows the device one more head.
    pub fn publish(&mut self, head: u16) {
        self.set_available_entry(self.next_avail, head);
        self.next_avail = self.next_avail.wrapping_add(1);
        self.set_available_index(self.next_avail);
    }

    /// Kicks, whether or not the device wants it.
    pub fn kick(&self) {
        self.kick.write(1).expect("the eventfd takes a kick");
    }

    /// Kicks if the device wants it (`VIRTQ_USED_F_NO_NOTIFY` not set).
    pub fn kick_if_wanted(&mut self) {
        // The index was stored and this is loaded sequentially consistent: one of the two sides sees the other.
        if self.memory.load(self.base + USED_AT) & QUIET == 0 {
            self.kicks += 1;
            self.kick();
        } else {
            self.kicks_spared += 1;
        }
    }

    /// Writes a chain of free descriptors, publishes it, and returns its head. Does not kick.
    pub fn add(&mut self, buffers: &[Buffer]) -> u16 {
        let at: Vec<u16> = buffers.iter().map(|_| self.free.pop().expect("a free descriptor")).collect();
        for (position, (buffer, descriptor)) in buffers.iter().zip(&at).enumerate() {
            let next = at.get(position + 1);
            let flags = if buffer.writable { WRITE } else { 0 } | if next.is_some() { NEXT } else { 0 };
            self.set_descriptor(*descriptor, buffer.addr, buffer.len, flags, next.copied().unwrap_or(0));
        }
        self.show(at)
    }

    /// As [`add`](Self::add), with all buffers in an indirect table at `table`.
    pub fn add_indirect(&mut self, table: u64, buffers: &[Buffer]) -> u16 {
        for (position, buffer) in buffers.iter().enumerate() {
            let last = position + 1 == buffers.len();
            let flags = if buffer.writable { WRITE } else { 0 } | if last { 0 } else { NEXT };
            let at = table + 16 * position as u64;
            write_descriptor(&self.memory, at, buffer.addr, buffer.len, flags, position as u16 + 1);
        }
        let descriptor = self.free.pop().expect("a free descriptor");
        self.set_descriptor(descriptor, table, 16 * buffers.len() as u32, INDIRECT, 0);
        self.show(vec![descriptor])
    }

    fn show(&mut self, descriptors: Vec<u16>) -> u16 {
        let head = descriptors[0];
        self.chains.insert(head, descriptors);
        self.publish(head);
        head
    }

    /// The place of a request's header, status and indirect table. They come around after 32768 requests.
    fn slot(&mut self, kind: u32, sector: u64) -> (u64, u64) {
        let slot = self.base + SLOTS_AT + (self.next_slot % SLOTS) * SLOT_BYTES;
        self.next_slot += 1;
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.memory.write(slot, &header);
        self.memory.write(slot + STATUS_AT, &[NO_STATUS]);
        (slot, slot + STATUS_AT)
    }

    /// Makes a block request available (virtio 1.3, 5.2.6): header, `data`, status. Does not kick.
    pub fn request(&mut self, kind: u32, sector: u64, data: &[Buffer]) -> Request {
        let (header, status) = self.slot(kind, sector);
        let head = self.add(&chain(header, data, status));
        Request { head, status }
    }

    /// As [`request`](Self::request), in an indirect table. At most four buffers of data.
    pub fn request_indirect(&mut self, kind: u32, sector: u64, data: &[Buffer]) -> Request {
        assert!(data.len() <= 4);
        let (header, status) = self.slot(kind, sector);
        let head = self.add_indirect(header + TABLE_AT, &chain(header, data, status));
        Request { head, status }
    }

    /// The status byte of a request.
    pub fn status(&self, request: Request) -> u8 {
        self.memory.read_byte(request.status)
    }

    /// The next used element, if there is one: head and length. Its descriptors are free again.
    pub fn take_used(&mut self) -> Option<(u16, u32)> {
        if self.used_index() == self.last_used {
            return None;
        }
        let at = self.base + USED_AT + 4 + 8 * u64::from(self.last_used % self.size);
        let element = self.memory.read(at, 8);
        self.last_used = self.last_used.wrapping_add(1);
        let id = u32::from_le_bytes(element[..4].try_into().expect("four bytes"));
        let len = u32::from_le_bytes(element[4..].try_into().expect("four bytes"));
        let head = u16::try_from(id).expect("a head of this ring");
        let descriptors = self.chains.remove(&head).expect("a head in flight, used once");
        self.free.extend(descriptors);
        Some((head, len))
    }

    /// The next used element, waited for by notification.
    pub fn wait_used(&mut self) -> (u16, u32) {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(used) = self.take_used() {
                return used;
            }
            self.wait_call(end.saturating_duration_since(Instant::now()));
            assert!(Instant::now() < end, "ring {}: nothing was used or no notification came", self.index);
        }
    }

    /// The next used element, looked for without notifications.
    pub fn watch_used(&mut self) -> (u16, u32) {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(used) = self.take_used() {
                return used;
            }
            assert!(Instant::now() < end, "ring {}: nothing was used", self.index);
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Waits for a notification and takes it. Whether there was one.
    pub fn wait_call(&self, limit: Duration) -> bool {
        // SAFETY: the descriptor is open as long as `self` lives.
        let call = unsafe { BorrowedFd::borrow_raw(self.call.as_raw_fd()) };
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        let mut fds = [PollFd::from_borrowed_fd(call, PollFlags::IN)];
        poll(&mut fds, Some(&limit)).expect("poll works");
        self.call.read().is_ok()
    }

    /// Makes one request, kicks, waits for it, and returns its status and the length that was used.
    pub fn run(&mut self, kind: u32, sector: u64, data: &[Buffer]) -> (u8, u32) {
        let request = self.request(kind, sector, data);
        self.kick_if_wanted();
        let (head, len) = self.wait_used();
        assert_eq!(head, request.head);
        (self.status(request), len)
    }
}

fn chain(header: u64, data: &[Buffer], status: u64) -> Vec<Buffer> {
    let mut buffers = vec![readable(header, 16)];
    buffers.extend(data);
    buffers.push(writable(status, 1));
    buffers
}

/// Writes a descriptor (2.7.5) anywhere in guest memory.
pub fn write_descriptor(memory: &GuestMemory, at: u64, addr: u64, len: u32, flags: u16, next: u16) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    memory.write(at, &bytes);
}
