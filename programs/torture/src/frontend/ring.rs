//! The driver's side of a split virtqueue (virtio 1.3, section 2.7) that behaves as a guest's driver does: it looks at what
//! was used when it is called, and kicks when it is asked to.
//!
//! Each request has a *slot*: four descriptors and a place in memory for header, status, indirect table and data. Slots
//! are reused in the order in which they came back, so that an answer that comes twice meets a slot at rest.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use anyhow::{Context, Result, bail, ensure};
use vhost::VringConfigData;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::memory::{SharedMemory, USER_BASE};

/// Descriptor flags (virtio 1.3, 2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT` (2.7.6) and `VIRTQ_USED_F_NO_NOTIFY` (2.7.8).
const QUIET: u16 = 1;

/// Largest ring here, in descriptors.
pub(crate) const RING_SIZE_MAX: u16 = 256;
/// Header, two pieces of data, status.
const DESCRIPTORS_A_SLOT: u16 = 4;
/// Most data of one request, in bytes.
pub(crate) const DATA_BYTES_MAX: u32 = 64 << 10;
/// What a status byte holds before the device has written it.
const NO_STATUS: u8 = 0xee;
/// What a buffer holds before the device has written it.
const NO_DATA: u8 = 0xdd;

/// Guest memory that each ring takes, in bytes: its areas, then its slots.
pub(super) const RING_BYTES: usize =
    SLOTS_AT as usize + SLOT_BYTES as usize * (RING_SIZE_MAX / DESCRIPTORS_A_SLOT) as usize;
const AVAIL_AT: u64 = 0x4000;
const USED_AT: u64 = 0x6000;
const SLOTS_AT: u64 = 0x1_0000;
const SLOT_BYTES: u64 = DATA_AT + DATA_BYTES_MAX as u64;
// Within a slot:
const STATUS_AT: u64 = 16;
const TABLE_AT: u64 = 64;
const DATA_AT: u64 = 4096;

/// How the rings of a frontend are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingShape {
    /// Descriptors: a power of two, 4 to [`RING_SIZE_MAX`].
    pub(crate) size: u16,
    /// Whether both sides say by index when they want to be told (VIRTIO_RING_F_EVENT_IDX).
    pub(crate) event_idx: bool,
}

/// What a request says to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Type of the request (virtio 1.3, 5.2.6).
    pub(crate) kind: u32,
    /// First sector.
    pub(crate) sector: u64,
    /// Bytes of data, at most [`DATA_BYTES_MAX`].
    pub(crate) bytes: u32,
    /// Whether the device writes the data.
    pub(crate) from_device: bool,
    /// Where the data is torn into two buffers; 0 and `bytes` leave it whole.
    pub(crate) torn_at: u32,
    /// Whether the buffers stand in an indirect table.
    pub(crate) indirect: bool,
    /// Which of the slot's descriptors is the head.
    pub(crate) turn: u16,
}

/// A request that came back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    /// Its slot, which is free from now on: what it holds must be read before another request is made.
    pub(crate) slot: u16,
    /// How many bytes the device says it has written.
    pub(crate) written: u32,
}

/// One ring.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Arc<SharedMemory>,
    base: u64,
    index: u16,
    shape: RingShape,
    kick: EventFd,
    call: EventFd,
    /// The available index with all requests made, and as the device was shown it.
    next_avail: u16,
    shown: u16,
    last_used: u16,
    free: VecDeque<u16>,
    /// The slot whose request has this head.
    heads: Vec<Option<u16>>,
}

impl Ring {
    /// An empty ring, in its own part of `memory`.
    pub(super) fn new(memory: Arc<SharedMemory>, index: u16, shape: RingShape) -> Result<Self> {
        let size = shape.size;
        ensure!(
            size.is_power_of_two() && (DESCRIPTORS_A_SLOT..=RING_SIZE_MAX).contains(&size),
            "a ring of {size} descriptors: take a power of two from {DESCRIPTORS_A_SLOT} to {RING_SIZE_MAX}"
        );
        let ring = Self {
            base: u64::from(index) * RING_BYTES as u64,
            memory,
            index,
            shape,
            kick: EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?,
            call: EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)?,
            next_avail: 0,
            shown: 0,
            last_used: 0,
            free: (0..size / DESCRIPTORS_A_SLOT).collect(),
            heads: vec![None; usize::from(size)],
        };
        // A driver wants to be called for its first completion.
        ring.want_call();
        Ok(ring)
    }

    /// Its number.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// Its descriptors.
    pub(super) fn size(&self) -> u16 {
        self.shape.size
    }

    /// Requests made and not seen used.
    pub(crate) fn in_flight(&self) -> u16 {
        self.next_avail.wrapping_sub(self.last_used)
    }

    /// Requests that may be in flight at once.
    pub(crate) fn slots(&self) -> u16 {
        self.shape.size / DESCRIPTORS_A_SLOT
    }

    /// Completions that the device has published and the driver has not looked at.
    pub(crate) fn unseen(&self) -> u16 {
        self.used_index().wrapping_sub(self.last_used)
    }

    /// The used index as the device published it.
    pub(super) fn used_index(&self) -> u16 {
        self.memory.load(self.base + USED_AT + 2)
    }

    /// The kick eventfd.
    pub(super) fn kick_fd(&self) -> &EventFd {
        &self.kick
    }

    /// The call eventfd.
    pub(super) fn call_fd(&self) -> &EventFd {
        &self.call
    }

    /// The call eventfd, to be waited for.
    pub(super) fn call(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as `self` lives.
        unsafe { BorrowedFd::borrow_raw(self.call.as_raw_fd()) }
    }

    /// Whether the device has called since this was asked last.
    pub(crate) fn take_call(&self) -> bool {
        self.call.read().is_ok()
    }

    /// Where the areas are, as SET_VRING_ADDR says it.
    pub(super) fn addresses(&self) -> VringConfigData {
        let base = USER_BASE + self.base;
        VringConfigData {
            queue_max_size: self.shape.size,
            queue_size: self.shape.size,
            flags: 0,
            desc_table_addr: base,
            used_ring_addr: base + USED_AT,
            avail_ring_addr: base + AVAIL_AT,
            log_addr: None,
        }
    }

    fn slot_at(&self, slot: u16) -> u64 {
        self.base + SLOTS_AT + u64::from(slot) * SLOT_BYTES
    }

    /// The next slot at rest, and guest memory for its data. The slot is taken by [`make`](Self::make).
    pub(crate) fn free_slot(&self) -> Option<u16> {
        self.free.front().copied()
    }

    /// Puts data into a slot, at its beginning.
    pub(crate) fn put_data(&self, slot: u16, data: &[u8]) {
        self.memory.write(self.slot_at(slot) + DATA_AT, data);
    }

    /// Spoils what a slot holds, so that a device that delivers nothing cannot pass for one that did.
    pub(crate) fn spoil_data(&self, slot: u16, bytes: u32) {
        self.memory.fill(self.slot_at(slot) + DATA_AT, bytes as usize, NO_DATA);
    }

    /// Reads the data of a slot.
    pub(crate) fn data(&self, slot: u16, data: &mut [u8]) {
        self.memory.read(self.slot_at(slot) + DATA_AT, data);
    }

    /// The status that the device gave, if it gave one.
    pub(crate) fn status(&self, slot: u16) -> Option<u8> {
        let mut status = [NO_STATUS];
        self.memory.read(self.slot_at(slot) + STATUS_AT, &mut status);
        Some(status[0]).filter(|status| *status != NO_STATUS)
    }

    /// Makes a request in the slot that [`free_slot`](Self::free_slot) named. The device sees it with the next
    /// [`show`](Self::show).
    pub(crate) fn make(&mut self, wanted: &Wanted) {
        let Some(slot) = self.free.pop_front() else { return };
        let at = self.slot_at(slot);
        let mut header = [0; 16];
        header[..4].copy_from_slice(&wanted.kind.to_le_bytes());
        header[8..].copy_from_slice(&wanted.sector.to_le_bytes());
        self.memory.write(at, &header);
        self.memory.write(at + STATUS_AT, &[NO_STATUS]);

        let flag = if wanted.from_device { WRITE } else { 0 };
        let torn_at = wanted.torn_at.min(wanted.bytes);
        let pieces = [
            (at, 16, 0),
            (at + DATA_AT, torn_at, flag),
            (at + DATA_AT + u64::from(torn_at), wanted.bytes - torn_at, flag),
            (at + STATUS_AT, 1, WRITE),
        ];
        let buffers: Vec<_> = pieces.into_iter().filter(|(_, len, _)| *len > 0).collect();
        let descriptor = |position: usize| {
            let step = (wanted.turn as usize + position) % usize::from(DESCRIPTORS_A_SLOT);
            slot * DESCRIPTORS_A_SLOT + step as u16
        };
        let head = descriptor(0);
        let table = if wanted.indirect { at + TABLE_AT } else { self.base };
        for (position, (addr, len, flags)) in buffers.iter().enumerate() {
            let last = position + 1 == buffers.len();
            let (here, next) = if wanted.indirect {
                (position as u16, position as u16 + 1)
            } else {
                (descriptor(position), descriptor(position + 1))
            };
            let (flags, next) = if last { (*flags, 0) } else { (flags | NEXT, next) };
            self.write_descriptor(table, here, *addr, *len, flags, next);
        }
        if wanted.indirect {
            self.write_descriptor(self.base, head, table, 16 * buffers.len() as u32, INDIRECT, 0);
        }
        let entry = self.base + AVAIL_AT + 4 + 2 * u64::from(self.next_avail % self.shape.size);
        self.memory.store(entry, head);
        self.heads[usize::from(head)] = Some(slot);
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    fn write_descriptor(&self, table: u64, at: u16, addr: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&len.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write(table + 16 * u64::from(at), &bytes);
    }

    /// Shows the device the requests made, and kicks if it wants that.
    pub(crate) fn show(&mut self) -> Result<()> {
        if self.shown == self.next_avail {
            return Ok(());
        }
        let before = self.shown;
        self.memory.store(self.base + AVAIL_AT + 2, self.next_avail);
        self.shown = self.next_avail;
        // The index before the wish: one of the two sides sees the other.
        fence(Ordering::SeqCst);
        let wanted = if self.shape.event_idx {
            let event = self.memory.load(self.base + USED_AT + 4 + 8 * u64::from(self.shape.size));
            // vring_need_event (virtio 1.3, 2.7.10).
            self.shown.wrapping_sub(event).wrapping_sub(1) < self.shown.wrapping_sub(before)
        } else {
            self.memory.load(self.base + USED_AT) & QUIET == 0
        };
        if wanted { self.kick() } else { Ok(()) }
    }

    /// Kicks, wanted or not.
    pub(super) fn kick(&self) -> Result<()> {
        self.kick.write(1).context("the kick eventfd takes no kick")
    }

    /// Says that no calls are wanted while the driver is at it. With EVENT_IDX the index that stays behind says it.
    pub(crate) fn hush(&self) {
        if !self.shape.event_idx {
            self.memory.store(self.base + AVAIL_AT, QUIET);
        }
    }

    /// Asks for a call at the next completion. Whether there is none already: then the driver may go away.
    pub(crate) fn want_call(&self) -> bool {
        if self.shape.event_idx {
            let used_event = self.base + AVAIL_AT + 4 + 2 * u64::from(self.shape.size);
            self.memory.store(used_event, self.last_used);
        } else {
            self.memory.store(self.base + AVAIL_AT, 0);
        }
        fence(Ordering::SeqCst);
        self.used_index() == self.last_used
    }

    /// The next request that came back. A device that uses what is not in flight is at fault.
    pub(crate) fn take_used(&mut self) -> Result<Option<Used>> {
        let index = self.index;
        let unseen = self.unseen();
        if unseen == 0 {
            return Ok(None);
        }
        let shown = self.shown.wrapping_sub(self.last_used);
        ensure!(
            unseen <= shown,
            "ring {index}: {unseen} completions were published with {shown} requests in flight: one came twice, or an \
             index was lost"
        );
        let mut element = [0; 8];
        self.memory.read(self.base + USED_AT + 4 + 8 * u64::from(self.last_used % self.shape.size), &mut element);
        let [id, written] = [0, 4].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|byte| element[at + byte])));
        let slot = usize::try_from(id).ok().and_then(|head| self.heads.get_mut(head)?.take());
        let Some(slot) = slot else {
            bail!("ring {index}: the chain of descriptor {id} was used although it is not in flight: it came twice");
        };
        self.last_used = self.last_used.wrapping_add(1);
        self.free.push_back(slot);
        Ok(Some(Used { slot, written }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUSH: Wanted =
        Wanted { kind: 4, sector: 0, bytes: 0, from_device: false, torn_at: 0, indirect: false, turn: 0 };

    fn ring(event_idx: bool) -> Ring {
        let memory = Arc::new(SharedMemory::new(RING_BYTES).unwrap());
        Ring::new(memory, 0, RingShape { size: 16, event_idx }).unwrap()
    }

    /// The device's side: uses a head.
    fn answer(ring: &Ring, head: u16) {
        let used = ring.used_index();
        let at = ring.base + USED_AT + 4 + 8 * u64::from(used % ring.shape.size);
        ring.memory.write(at, &[u32::from(head).to_le_bytes(), 1u32.to_le_bytes()].concat());
        ring.memory.store(ring.base + USED_AT + 2, used.wrapping_add(1));
    }

    #[test]
    fn a_request_comes_back_once() {
        let mut ring = ring(false);
        let slot = ring.free_slot().unwrap();
        ring.make(&FLUSH);
        ring.show().unwrap();
        assert!(ring.kick.read().is_ok(), "the device did not ask for quiet");
        assert_eq!(ring.in_flight(), 1);
        assert_eq!(ring.status(slot), None);
        answer(&ring, 0);
        assert_eq!(ring.take_used().unwrap().map(|used| (used.slot, used.written)), Some((slot, 1)));
        assert!(ring.take_used().unwrap().is_none());
        assert_eq!(ring.in_flight(), 0);
    }

    #[test]
    fn an_answer_that_comes_twice_is_found() {
        let mut ring = ring(false);
        ring.make(&FLUSH);
        ring.make(&FLUSH);
        ring.show().unwrap();
        answer(&ring, 4);
        answer(&ring, 4);
        assert!(ring.take_used().unwrap().is_some());
        assert!(ring.take_used().unwrap_err().to_string().contains("came twice"));
    }

    #[test]
    fn an_index_that_runs_ahead_is_found() {
        let mut ring = ring(true);
        ring.make(&FLUSH);
        ring.show().unwrap();
        answer(&ring, 0);
        answer(&ring, 0);
        assert!(ring.take_used().unwrap_err().to_string().contains("2 completions"));
    }

    #[test]
    fn calls_are_asked_for_by_index_or_by_flag() {
        for event_idx in [false, true] {
            let mut ring = ring(event_idx);
            ring.make(&FLUSH);
            ring.show().unwrap();
            assert!(ring.want_call());
            answer(&ring, 0);
            assert!(!ring.want_call(), "something came meanwhile");
            ring.take_used().unwrap();
            assert!(ring.want_call());
        }
    }

    #[test]
    fn all_slots_are_used_and_no_more() {
        let mut ring = ring(false);
        for turn in 0..6 {
            ring.make(&Wanted { turn, bytes: 1024, torn_at: 512, indirect: turn == 1, ..FLUSH });
        }
        assert_eq!((ring.in_flight(), ring.slots(), ring.free_slot()), (4, 4, None));
    }
}
