//! The driver's side of a split virtqueue (virtio 1.3, section 2.7), without EVENT_IDX. It can obey
//! the rules, and it can break each of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use frontkit::blk::{self, HEADER_BYTES};
use frontkit::{Areas, Eventfds, Memory, Queue};

pub use frontkit::blk::NO_STATUS;
pub use frontkit::{Buffer, INDIRECT, NEXT, WRITE, readable, tear_descriptor, writable, write_descriptor};

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
    /// The queue, any step of which can be taken alone.
    pub queue: Queue,
    /// Kick and call.
    pub eventfds: Eventfds,
    base: u64,
    index: usize,
    next_slot: u64,
    free: Vec<u16>,
    chains: HashMap<u16, Vec<u16>>,
    kicks: u64,
    kicks_spared: u64,
}

impl Ring {
    /// Ring `index` of `size` descriptors, in its own part of `memory`.
    pub fn new(memory: Arc<Memory>, index: usize, size: u16) -> Self {
        let base = memory.guest_addr() + index as u64 * RING_BYTES;
        let areas = Areas { desc: base, avail: base + AVAIL_AT, used: base + USED_AT };
        Self {
            queue: Queue::new(memory, areas, size, false),
            eventfds: Eventfds::new().expect("eventfds"),
            base,
            index,
            next_slot: 0,
            free: (0..size).rev().collect(),
            chains: HashMap::new(),
            kicks: 0,
            kicks_spared: 0,
        }
    }

    /// Its number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Kicks that the device asked for, and kicks that it did not want.
    pub fn kicks(&self) -> (u64, u64) {
        (self.kicks, self.kicks_spared)
    }

    /// Shows the device one more head.
    pub fn publish(&mut self, head: u16) {
        self.queue.enter(head);
        self.queue.show();
    }

    /// Kicks, whether or not the device wants it.
    pub fn kick(&self) {
        self.eventfds.kick().expect("the eventfd takes a kick");
    }

    /// Kicks if the device wants it (`VIRTQ_USED_F_NO_NOTIFY` not set).
    pub fn kick_if_wanted(&mut self) {
        if self.queue.wants_kick(self.queue.next_available()) {
            self.kicks += 1;
            self.kick();
        } else {
            self.kicks_spared += 1;
        }
    }

    /// Writes a chain of free descriptors, publishes it, and returns its head. Does not kick.
    pub fn add(&mut self, buffers: &[Buffer]) -> u16 {
        let at: Vec<u16> = buffers.iter().map(|_| self.free.pop().expect("a free descriptor")).collect();
        self.queue.add(buffers, |position| at[position]);
        self.show(at)
    }

    /// As [`add`](Self::add), with all buffers in an indirect table at `table`.
    pub fn add_indirect(&mut self, table: u64, buffers: &[Buffer]) -> u16 {
        let descriptor = self.free.pop().expect("a free descriptor");
        self.queue.add_indirect(descriptor, table, buffers);
        self.show(vec![descriptor])
    }

    fn show(&mut self, descriptors: Vec<u16>) -> u16 {
        let head = descriptors[0];
        self.chains.insert(head, descriptors);
        self.queue.show();
        head
    }

    /// The place of a request's header, status and indirect table. They come around after 32768 requests.
    fn slot(&mut self, kind: u32, sector: u64) -> (u64, u64) {
        let slot = self.base + SLOTS_AT + (self.next_slot % SLOTS) * SLOT_BYTES;
        self.next_slot += 1;
        self.queue.memory().write(slot, &blk::header(kind, sector));
        self.queue.memory().write(slot + STATUS_AT, &[NO_STATUS]);
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
        self.queue.memory().read_byte(request.status)
    }

    /// The next used element, if there is one: head and length. Its descriptors are free again.
    pub fn take_used(&mut self) -> Option<(u16, u32)> {
        let used = self.queue.take_used()?;
        let head = u16::try_from(used.head).expect("a head of this ring");
        let descriptors = self.chains.remove(&head).expect("a head in flight, used once");
        self.free.extend(descriptors);
        Some((head, used.len))
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
        self.eventfds.wait_call(limit).expect("poll works")
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
    let mut buffers = vec![readable(header, HEADER_BYTES)];
    buffers.extend(data);
    buffers.push(writable(status, 1));
    buffers
}
