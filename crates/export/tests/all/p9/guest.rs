//! A virtio-9p driver without a kernel: memory, rings, and messages as bytes.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use frontkit::{Areas, Eventfds, Memory, Queue, Session, readable, writable};

/// How long a test waits for something that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Descriptors of a ring.
pub(crate) const SIZE: u16 = 64;
/// Requests that can be under way on a ring: of two descriptors each.
pub(crate) const REQUESTS: u16 = SIZE / 2;
/// Room for a request, and for its answer, in bytes.
pub(crate) const ROOM: usize = 0x2000;
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

struct Ring {
    queue: Queue,
    eventfds: Eventfds,
    base: u64,
    free: Vec<u16>,
    /// Length of what was written, by slot, of those that nobody has asked for yet.
    done: BTreeMap<u16, u32>,
    /// Every answer so far, in their order.
    order: Vec<Sent>,
}

pub(crate) struct Guest {
    pub(crate) session: Session,
    memory: Arc<Memory>,
    rings: Vec<Ring>,
}

impl Guest {
    /// Connects and starts so many rings.
    pub(crate) fn new(socket: &Path, queues: usize) -> Guest {
        let memory = Arc::new(Memory::new(0, QUEUE_BYTES * queues as u64).unwrap());
        // EVENT_IDX among the features: the device is kicked without a look.
        let mut session = Session::negotiate(UnixStream::connect(socket).unwrap(), Ok, Ok).unwrap();
        session.share(&[&memory]).unwrap();
        let mut guest = Guest { session, memory, rings: Vec::new() };
        (0..queues).for_each(|index| guest.start(index));
        guest
    }

    fn start(&mut self, index: usize) {
        let base = QUEUE_BYTES * index as u64;
        let areas = Areas { desc: base, avail: base + AVAIL, used: base + USED };
        let queue = Queue::new(self.memory.clone(), areas, SIZE, true);
        let eventfds = Eventfds::new().unwrap();
        self.session.start(index, &queue, &eventfds, 0).unwrap();
        let free = (0..REQUESTS).rev().collect();
        self.rings.push(Ring { queue, eventfds, base, free, done: BTreeMap::new(), order: Vec::new() });
    }

    /// Sends a message with this much room for its answer.
    pub(crate) fn send_with_room(&mut self, queue: usize, message: &[u8], room: u32) -> Sent {
        let slot = self.free_slot(queue);
        let ring = &mut self.rings[queue];
        let (at, head) = (ring.base + DATA + u64::from(slot) * 2 * ROOM as u64, 2 * slot);
        self.memory.write(at, message);
        let (sent, answer) = (readable(at, message.len() as u32), writable(at + ROOM as u64, room));
        // A chain may have one part only.
        let chain = match (message.is_empty(), room) {
            (true, _) => &[answer][..],
            (false, 0) => &[sent],
            (false, _) => &[sent, answer],
        };
        ring.queue.add(chain, |position| head + position as u16);
        ring.queue.show();
        ring.eventfds.kick().unwrap();
        Sent { queue, slot }
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, queue: usize, message: &[u8]) -> Sent {
        self.send_with_room(queue, message, ROOM as u32)
    }

    fn free_slot(&mut self, queue: usize) -> u16 {
        self.rings[queue].free.pop().expect("a test has fewer requests under way than a ring has room for")
    }

    /// Takes note of what was answered.
    pub(crate) fn look(&mut self, queue: usize) {
        let ring = &mut self.rings[queue];
        while let Some(used) = ring.queue.take_used() {
            let slot = used.head as u16 / 2;
            assert!(ring.done.insert(slot, used.len).is_none(), "an answer that was given twice");
            ring.order.push(Sent { queue, slot });
        }
    }

    /// Whether an answer is there that was not waited for yet.
    pub(crate) fn is_answered(&mut self, sent: Sent) -> bool {
        self.look(sent.queue);
        self.rings[sent.queue].done.contains_key(&sent.slot)
    }

    /// Waits for an answer. `None` for a chain that was given back without one.
    pub(crate) fn wait(&mut self, sent: Sent) -> Option<Reply> {
        let end = Instant::now() + PATIENCE;
        while !self.is_answered(sent) {
            assert!(Instant::now() < end, "no answer");
            std::thread::yield_now();
        }
        let ring = &mut self.rings[sent.queue];
        let len = ring.done.remove(&sent.slot).unwrap() as usize;
        ring.free.push(sent.slot);
        let at = ring.base + DATA + u64::from(sent.slot) * 2 * ROOM as u64 + ROOM as u64;
        let bytes = self.memory.read(at, len);
        if bytes.is_empty() {
            return None;
        }
        let (header, body) = bytes.split_at(7);
        assert_eq!(u32::from_le_bytes(header[..4].try_into().unwrap()) as usize, len, "size and used length");
        Some(Reply { kind: header[4], tag: u16::from_le_bytes(header[5..].try_into().unwrap()), body: body.to_vec() })
    }

    /// The place of the last answer to this request among all answers of its ring.
    pub(crate) fn place(&self, sent: Sent) -> usize {
        self.rings[sent.queue].order.iter().rposition(|answered| *answered == sent).expect("it was answered")
    }
}
