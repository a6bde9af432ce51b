//! The ring against the `virtio-queue` crate: two guests with the same bytes must see the same device.

use std::sync::Arc;

use crate::common::{Driver, INDIRECT, NEXT, WRITE, descriptor, get, layout_at, memory, put, ranges};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vring::{Chain, Layout, Memory, RingPosition, SplitRing};

const RING: u64 = 0x10_0000;
const RING_BYTES: u64 = 0xe_0000;
/// Two regions that touch, and one apart.
const LOW: u64 = 0x1000;
const BORDER: u64 = 0x5000;
const DATA_END: u64 = 0x9000;
const FAR: u64 = 0x1_0000_0000;
const FAR_BYTES: u64 = 0x4000;
/// Where indirect tables lie: one slot for each chain that may be in flight in a test.
const TABLES: u64 = 0x20_0000;
const TABLE_BYTES: u64 = 16 * 16;
const TABLES_BYTES: u64 = 0x4000;

const MAP: [(u64, u64); 5] =
    [(LOW, BORDER - LOW), (BORDER, DATA_END - BORDER), (RING, RING_BYTES), (TABLES, TABLES_BYTES), (FAR, FAR_BYTES)];

/// A guest whose writes go to both memories, with a ring of ours on one and the oracle's queue on the other.
struct Twins {
    driver: Driver,
    ring: SplitRing,
    other: GuestMemoryMmap<()>,
    queue: Queue,
}

impl Twins {
    fn new(layout: Layout, start: u16, used_start: u16) -> Twins {
        let map: Vec<_> = MAP.iter().map(|&(at, len)| (GuestAddress(at), len as usize)).collect();
        let other = GuestMemoryMmap::from_ranges(&map).unwrap();
        let mut queue = Queue::new(vring::QUEUE_SIZE_MAX).unwrap();
        queue.try_set_size(layout.size).unwrap();
        queue.try_set_desc_table_address(GuestAddress(layout.desc)).unwrap();
        queue.try_set_avail_ring_address(GuestAddress(layout.avail)).unwrap();
        queue.try_set_used_ring_address(GuestAddress(layout.used)).unwrap();
        queue.set_event_idx(layout.event_idx);
        queue.set_next_avail(start);
        queue.set_next_used(used_start);
        queue.set_ready(true);
        assert!(queue.is_valid(&other));

        let memory = memory(&MAP);
        let driver = Driver::new(Arc::clone(&memory), layout, start);
        crate::common::put_u16(&memory, layout.used + 2, used_start);
        let ring = SplitRing::new(memory, layout, RingPosition::split(start)).unwrap();
        let twins = Twins { driver, ring, other, queue };
        twins.put(layout.used + 2, &used_start.to_le_bytes());
        twins.put(layout.avail + 2, &start.to_le_bytes());
        twins
    }

    /// Writes the same bytes on both sides.
    fn put(&self, at: u64, bytes: &[u8]) {
        put(&self.driver.memory, at, bytes);
        self.other.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    /// Makes one head available on both sides.
    fn offer(&mut self, head: u16) {
        let slot = u64::from(self.driver.avail_idx % self.driver.layout.size);
        self.put(self.driver.layout.avail + 4 + 2 * slot, &head.to_le_bytes());
        self.driver.avail_idx = self.driver.avail_idx.wrapping_add(1);
        self.put(self.driver.layout.avail + 2, &self.driver.avail_idx.to_le_bytes());
    }

    /// The oracle's next chain: its head, and what it may read and write, cut at the borders of regions.
    fn pop_other(&mut self) -> Option<(u16, Pieces, Pieces)> {
        let chain = self.queue.iter(&self.other).unwrap().next()?;
        let head = chain.head_index();
        let pieces = |writable| {
            chain
                .clone()
                .filter(|descriptor| descriptor.is_write_only() == writable)
                .flat_map(|descriptor| cut(descriptor.addr().0, u64::from(descriptor.len())))
                .collect()
        };
        Some((head, pieces(false), pieces(true)))
    }

    fn compare_used(&self) -> Result<(), TestCaseError> {
        let layout = &self.driver.layout;
        let event = if layout.event_idx { 2 } else { 0 };
        let len = 4 + 8 * usize::from(layout.size) + event;
        let mut theirs = vec![0; len];
        self.other.read_slice(&mut theirs, GuestAddress(layout.used)).unwrap();
        prop_assert_eq!(get(&self.driver.memory, layout.used, len), theirs);
        Ok(())
    }
}

/// Guest addresses and lengths.
type Pieces = Vec<(u64, u64)>;

/// Cuts a buffer where one region ends; written apart from the crate's own way. Empty buffers vanish.
fn cut(mut at: u64, mut len: u64) -> Pieces {
    let mut pieces = Vec::new();
    for (start, room) in MAP {
        if len > 0 && at >= start && at < start + room {
            let part = len.min(start + room - at);
            pieces.push((at, part));
            (at, len) = (at + part, len - part);
        }
    }
    pieces.extend((len > 0).then_some((at, len)));
    pieces
}

fn ours(memory: &Memory, chain: &Chain) -> (Pieces, Pieces) {
    (ranges(memory, chain.readable_segments()), ranges(memory, chain.writable_segments()))
}

/// One request as a driver would lay it out.
#[derive(Clone, Debug)]
struct Request {
    /// Places and lengths, the first `readable` (modulo their number and one) device-readable.
    buffers: Vec<(u64, u32)>,
    readable: usize,
    /// How many buffers have descriptors of the ring itself before the rest goes to an indirect table.
    direct: Option<usize>,
    /// Shuffles the entries of the indirect table.
    order: Index,
}

fn buffer() -> impl Strategy<Value = (u64, u32)> {
    let anywhere = prop_oneof![LOW..DATA_END - 0x1000, BORDER - 64..BORDER + 64, FAR..FAR + FAR_BYTES - 0x1000,];
    (anywhere, prop_oneof![1 => Just(0), 8 => 1_u32..200, 2 => 200_u32..=0x1000])
}

fn request() -> impl Strategy<Value = Request> {
    (vec(buffer(), 1..9), 0_usize..9, proptest::option::of(0_usize..8), any::<Index>())
        .prop_map(|(buffers, readable, direct, order)| Request { buffers, readable, direct, order })
}

#[derive(Clone, Debug)]
enum Step {
    Offer(Request),
    Pop(u8),
    /// Finishes some request in flight, in any order.
    Complete(usize, u32),
    Publish,
    /// Names an entry relative to the used index.
    UsedEvent(i16),
    AvailFlags(u16),
    EnableKicks,
    DisableKicks,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => request().prop_map(Step::Offer),
        3 => (1_u8..5).prop_map(Step::Pop),
        6 => (any::<usize>(), any::<u32>()).prop_map(|(which, len)| Step::Complete(which, len)),
        3 => Just(Step::Publish),
        2 => prop_oneof![-6_i16..6, any::<i16>()].prop_map(Step::UsedEvent),
        1 => (0_u16..2).prop_map(Step::AvailFlags),
        1 => Just(Step::EnableKicks),
        1 => Just(Step::DisableKicks),
    ]
}

/// The driver's descriptors and tables that are not in use.
struct Pool {
    descriptors: Vec<u16>,
    tables: Vec<u64>,
    /// What each head holds.
    held: Vec<(u16, Vec<u16>, Option<u64>)>,
}

impl Pool {
    fn new(size: u16, shuffle: u64) -> Pool {
        // A fixed permutation for each seed: chains run through the table in no order.
        let mut descriptors: Vec<u16> = (0..size.min(512)).map(|i| size - 1 - i).collect();
        let mut state = shuffle | 1;
        for i in (1..descriptors.len()).rev() {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            descriptors.swap(i, (state >> 33) as usize % (i + 1));
        }
        let tables = (0..TABLES_BYTES / TABLE_BYTES).map(|i| TABLES + i * TABLE_BYTES).collect();
        Pool { descriptors, tables, held: Vec::new() }
    }

    /// Lays a request out on both sides; `None` when the driver has no room for it.
    fn lay_out(&mut self, twins: &Twins, request: &Request) -> Option<u16> {
        let count = request.buffers.len();
        let direct = if twins.driver.layout.indirect { request.direct.map(|n| n.min(count - 1)) } else { None };
        let needed = direct.map_or(count, |n| n + 1);
        if self.descriptors.len() < needed || self.tables.is_empty() {
            return None;
        }
        let own = self.descriptors.split_off(self.descriptors.len() - needed);
        let table = direct.and_then(|_| self.tables.pop());
        let readable = request.readable % (count + 1);
        let flags = |i: usize| if i < readable { 0 } else { WRITE };
        let plain = direct.unwrap_or(count);
        let at = |index: u16| twins.driver.layout.desc + 16 * u64::from(index);
        for (i, &(addr, len)) in request.buffers[..plain].iter().enumerate() {
            let (next, more) = own.get(i + 1).map_or((0xffff, 0), |&next| (next, NEXT));
            twins.put(at(own[i]), &descriptor(addr, len, flags(i) | more, next));
        }
        if let Some(table) = table {
            let rest = &request.buffers[plain..];
            // Entry 0 comes first; the others are rotated by any amount.
            let turn = request.order.index(rest.len());
            let entry = |i: usize| if i == 0 { 0 } else { 1 + (i - 1 + turn) % (rest.len() - 1) };
            for (i, &(addr, len)) in rest.iter().enumerate() {
                let more = i + 1 < rest.len();
                let (next, more) = if more { (entry(i + 1) as u16, NEXT) } else { (0xffff, 0) };
                let bytes = descriptor(addr, len, flags(plain + i) | more, next);
                twins.put(table + 16 * entry(i) as u64, &bytes);
            }
            twins.put(at(own[plain]), &descriptor(table, 16 * rest.len() as u32, INDIRECT, 0));
        }
        self.held.push((own[0], own.clone(), table));
        Some(own[0])
    }

    fn give_back(&mut self, head: u16) {
        let at = self.held.iter().position(|(held, ..)| *held == head).unwrap();
        let (_, own, table) = self.held.swap_remove(at);
        self.descriptors.extend(own);
        self.tables.extend(table);
    }
}

fn index() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), 65500_u16..=65535, any::<u16>()]
}

/// What runs through a test: the twins, the driver's pool, and the requests in flight.
struct Run {
    twins: Twins,
    pool: Pool,
    chain: Chain,
    flying: Vec<u16>,
    staged: bool,
    avail_flags: u16,
}

impl Run {
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Offer(request) => {
                if let Some(head) = self.pool.lay_out(&self.twins, request) {
                    self.twins.offer(head);
                }
            }
            Step::Pop(count) => (0..*count).try_for_each(|_| self.pop())?,
            Step::Complete(which, len) => {
                if !self.flying.is_empty() {
                    let head = self.flying.swap_remove(which % self.flying.len());
                    self.twins.ring.push(head, *len);
                    self.twins.queue.add_used(&self.twins.other, head, *len).unwrap();
                    self.staged = true;
                    // Only our side still owns the descriptors; nothing reads them again, so they may be laid out anew.
                    self.pool.give_back(head);
                }
            }
            Step::Publish => self.publish()?,
            Step::UsedEvent(relative) => {
                let named = self.twins.queue.next_used().wrapping_add_signed(*relative);
                let layout = self.twins.driver.layout;
                let at = layout.avail + 4 + 2 * u64::from(layout.size);
                self.twins.put(at, &named.to_le_bytes());
            }
            Step::AvailFlags(flags) => {
                self.avail_flags = *flags;
                self.twins.put(self.twins.driver.layout.avail, &flags.to_le_bytes());
            }
            Step::EnableKicks => {
                let theirs = self.twins.queue.enable_notification(&self.twins.other).unwrap();
                prop_assert_eq!(self.twins.ring.enable_kicks(), theirs);
            }
            Step::DisableKicks => {
                self.twins.queue.disable_notification(&self.twins.other).unwrap();
                self.twins.ring.disable_kicks();
            }
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<(), TestCaseError> {
        let theirs = self.twins.pop_other();
        prop_assert_eq!(self.twins.ring.has_pending(), theirs.is_some());
        let head = self.twins.ring.pop(&mut self.chain).unwrap();
        prop_assert_eq!(head, theirs.as_ref().map(|(head, ..)| *head));
        if let Some((head, readable, writable)) = theirs {
            prop_assert_eq!(ours(&self.twins.driver.memory, &self.chain), (readable, writable));
            self.flying.push(head);
        }
        prop_assert_eq!(self.twins.ring.position().avail(), self.twins.queue.next_avail());
        Ok(())
    }

    fn publish(&mut self) -> Result<(), TestCaseError> {
        let theirs = self.twins.queue.needs_notification(&self.twins.other).unwrap();
        let notify = self.twins.ring.publish();
        if self.twins.driver.layout.event_idx {
            prop_assert_eq!(notify, theirs);
        } else {
            // The oracle does not know the flag and always notifies.
            prop_assert_eq!(notify, self.staged && self.avail_flags == 0);
        }
        self.staged = false;
        prop_assert_eq!(self.twins.ring.next_used(), self.twins.queue.next_used());
        self.twins.compare_used()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_lawful_driver_sees_no_difference(
        shift in 0_u32..16,
        features in any::<(bool, bool)>(),
        (start, used_start) in (index(), index()),
        shuffle in any::<u64>(),
        steps in vec(step(), 1..120),
    ) {
        let (event_idx, indirect) = features;
        let layout = Layout { event_idx, indirect, ..layout_at(RING, 1 << shift) };
        let mut run = Run {
            twins: Twins::new(layout, start, used_start),
            pool: Pool::new(layout.size, shuffle),
            chain: Chain::default(),
            flying: Vec::new(),
            staged: false,
            avail_flags: 0,
        };
        for step in &steps {
            run.step(step)?;
        }
        // Whatever is left goes through as well.
        for _ in 0..steps.len() {
            run.step(&Step::Pop(1))?;
        }
        while !run.flying.is_empty() {
            run.step(&Step::Complete(0, 1))?;
        }
        run.publish()?;
    }

    /// Descriptors that no lawful driver writes: whatever we accept, the oracle reads the same way.
    #[test]
    fn what_we_accept_the_oracle_reads_alike(
        shift in 0_u32..4,
        table in vec(any_descriptor(), 8),
        entries in vec(any_descriptor(), 16),
        heads in vec(0_u16..9, 1..8),
        start in index(),
    ) {
        let layout = layout_at(RING, 1 << shift);
        let mut twins = Twins::new(layout, start, start);
        for (i, bytes) in table.iter().enumerate().take(usize::from(layout.size)) {
            twins.put(layout.desc + 16 * i as u64, bytes);
        }
        for (i, bytes) in entries.iter().enumerate() {
            twins.put(TABLES + 16 * i as u64, bytes);
        }
        let mut chain = Chain::default();
        for head in heads {
            twins.offer(head);
            let ours_popped = twins.ring.pop(&mut chain);
            let theirs = twins.pop_other();
            match ours_popped {
                Ok(head) => {
                    let (theirs_head, readable, writable) = theirs.unwrap();
                    prop_assert_eq!(head, Some(theirs_head));
                    prop_assert_eq!(ours(&twins.driver.memory, &chain), (readable, writable));
                    twins.ring.push(theirs_head, 0);
                }
                // The oracle steps over what it cannot follow and only ends the chain early; we stop here.
                Err(_) => break,
            }
        }
    }
}

/// A descriptor with every kind of mistake in reach, and mostly without.
fn any_descriptor() -> impl Strategy<Value = [u8; 16]> {
    let place = prop_oneof![4 => LOW..DATA_END + 8, 1 => any::<u64>(), 3 => (0_u64..4).prop_map(|i| TABLES + 16 * i)];
    let len = prop_oneof![4 => 0_u32..0x1200, 3 => (0_u32..8).prop_map(|i| 16 * i), 1 => any::<u32>()];
    let flags = prop_oneof![3 => Just(0), 3 => Just(NEXT), 3 => Just(WRITE), 2 => Just(INDIRECT), 1 => 0_u16..16];
    (place, len, flags, 0_u16..9).prop_map(|(addr, len, flags, next)| descriptor(addr, len, flags, next))
}
