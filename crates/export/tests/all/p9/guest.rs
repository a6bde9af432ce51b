//! A virtio-9p driver without a kernel: memory, rings, and messages as bytes.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

/// How long a test waits for something that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Descriptors of a ring.
pub(crate) const SIZE: u16 = 64;
/// Requests that can be under way on a ring: of two descriptors each.
pub(crate) const REQUESTS: u16 = SIZE / 2;
/// Room for a request, and for its answer, in bytes.
pub(crate) const ROOM: usize = 0x2000;
/// Frontend addresses differ from guest addresses by this.
const USER_BASE: u64 = 0x7f00_0000_0000;
const AVAIL: u64 = 0x1000;
const USED: u64 = 0x2000;
const DATA: u64 = 0x3000;
const QUEUE_BYTES: u64 = DATA + REQUESTS as u64 * 2 * ROOM as u64;

/// A request that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    queue: usize,
    slot: u16,
}

/// An answer: its type, its tag, and what is behind the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) kind: u8,
    pub(crate) tag: u16,
    pub(crate) body: Vec<u8>,
}

struct Queue {
    base: u64,
    kick: EventFd,
    _call: EventFd,
    free: Vec<u16>,
    offered: u16,
    seen: u16,
    /// Length of what was written, by slot, of those that nobody has asked for yet.
    done: BTreeMap<u16, u32>,
    /// Every answer so far, in their order.
    order: Vec<Sent>,
}

pub(crate) struct Guest {
    pub(crate) frontend: Frontend,
    memory: File,
    queues: Vec<Queue>,
}

impl Guest {
    /// Connects and starts so many rings.
    pub(crate) fn new(socket: &Path, queues: usize) -> Guest {
        let memory = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let memory = File::from(memory);
        memory.set_len(QUEUE_BYTES * queues as u64).unwrap();
        let mut frontend = Frontend::connect(socket, queues as u64).unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        frontend.set_features(features).unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        frontend.set_protocol_features(protocol).unwrap();
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        let table = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: QUEUE_BYTES * queues as u64,
            userspace_addr: USER_BASE,
            mmap_offset: 0,
            mmap_handle: memory.as_raw_fd(),
        };
        frontend.set_mem_table(&[table]).unwrap();
        let mut guest = Guest { frontend, memory, queues: Vec::new() };
        (0..queues).for_each(|index| guest.start(index));
        guest
    }

    fn start(&mut self, index: usize) {
        let eventfd = || EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC).unwrap();
        let (kick, call) = (eventfd(), eventfd());
        let base = QUEUE_BYTES * index as u64;
        let areas = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: USER_BASE + base,
            used_ring_addr: USER_BASE + base + USED,
            avail_ring_addr: USER_BASE + base + AVAIL,
            log_addr: None,
        };
        let frontend = &mut self.frontend;
        frontend.set_vring_num(index, SIZE).unwrap();
        frontend.set_vring_base(index, 0).unwrap();
        frontend.set_vring_addr(index, &areas).unwrap();
        frontend.set_vring_call(index, &call).unwrap();
        frontend.set_vring_kick(index, &kick).unwrap();
        frontend.set_vring_enable(index, true).unwrap();
        let free = (0..REQUESTS).rev().collect();
        let (done, order) = (BTreeMap::new(), Vec::new());
        self.queues.push(Queue { base, kick, _call: call, free, offered: 0, seen: 0, done, order });
    }

    /// Sends a message with this much room for its answer.
    pub(crate) fn send_with_room(&mut self, queue: usize, message: &[u8], room: u32) -> Sent {
        let slot = self.free_slot(queue);
        let ring = &mut self.queues[queue];
        let (base, head) = (ring.base, 2 * slot);
        let at = base + DATA + u64::from(slot) * 2 * ROOM as u64;
        self.memory.write_all_at(message, at).unwrap();
        let answer = (at + ROOM as u64, room);
        // A chain may have one part only.
        match (message.is_empty(), room) {
            (true, _) => descriptor(&self.memory, base, head, answer, 2, 0),
            (false, 0) => descriptor(&self.memory, base, head, (at, message.len() as u32), 0, 0),
            (false, _) => {
                descriptor(&self.memory, base, head, (at, message.len() as u32), 1, head + 1);
                descriptor(&self.memory, base, head + 1, answer, 2, 0);
            }
        }
        let place = u64::from(ring.offered % SIZE);
        self.memory.write_all_at(&head.to_le_bytes(), base + AVAIL + 4 + 2 * place).unwrap();
        ring.offered = ring.offered.wrapping_add(1);
        self.memory.write_all_at(&ring.offered.to_le_bytes(), base + AVAIL + 2).unwrap();
        ring.kick.write(1).unwrap();
        Sent { queue, slot }
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, queue: usize, message: &[u8]) -> Sent {
        self.send_with_room(queue, message, ROOM as u32)
    }

    fn free_slot(&mut self, queue: usize) -> u16 {
        self.queues[queue].free.pop().expect("a test has fewer requests under way than a ring has room for")
    }

    /// Takes note of what was answered.
    pub(crate) fn look(&mut self, queue: usize) {
        let ring = &mut self.queues[queue];
        let used = read_u16(&self.memory, ring.base + USED + 2);
        while ring.seen != used {
            let mut element = [0; 8];
            let place = u64::from(ring.seen % SIZE);
            self.memory.read_exact_at(&mut element, ring.base + USED + 4 + 8 * place).unwrap();
            let [head, len] = [&element[..4], &element[4..]].map(|half| u32::from_le_bytes(half.try_into().unwrap()));
            let slot = head as u16 / 2;
            assert!(ring.done.insert(slot, len).is_none(), "an answer that was given twice");
            ring.order.push(Sent { queue, slot });
            ring.seen = ring.seen.wrapping_add(1);
        }
    }

    /// Whether an answer is there that was not waited for yet.
    pub(crate) fn is_answered(&mut self, sent: Sent) -> bool {
        self.look(sent.queue);
        self.queues[sent.queue].done.contains_key(&sent.slot)
    }

    /// Waits for an answer. `None` for a chain that was given back without one.
    pub(crate) fn wait(&mut self, sent: Sent) -> Option<Reply> {
        let end = Instant::now() + PATIENCE;
        while !self.is_answered(sent) {
            assert!(Instant::now() < end, "no answer");
            std::thread::yield_now();
        }
        let ring = &mut self.queues[sent.queue];
        let len = ring.done.remove(&sent.slot).unwrap() as usize;
        ring.free.push(sent.slot);
        let mut bytes = vec![0; len];
        let at = ring.base + DATA + u64::from(sent.slot) * 2 * ROOM as u64 + ROOM as u64;
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        if bytes.is_empty() {
            return None;
        }
        let (header, body) = bytes.split_at(7);
        assert_eq!(u32::from_le_bytes(header[..4].try_into().unwrap()) as usize, len, "size and used length");
        Some(Reply { kind: header[4], tag: u16::from_le_bytes(header[5..].try_into().unwrap()), body: body.to_vec() })
    }

    /// The place of the last answer to this request among all answers of its ring.
    pub(crate) fn place(&self, sent: Sent) -> usize {
        self.queues[sent.queue].order.iter().rposition(|answered| *answered == sent).expect("it was answered")
    }
}

fn descriptor(memory: &File, base: u64, index: u16, (addr, len): (u64, u32), flags: u16, next: u16) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    memory.write_all_at(&bytes, base + 16 * u64::from(index)).unwrap();
}

fn read_u16(file: &File, at: u64) -> u16 {
    let mut bytes = [0; 2];
    file.read_exact_at(&mut bytes, at).unwrap();
    u16::from_le_bytes(bytes)
}
