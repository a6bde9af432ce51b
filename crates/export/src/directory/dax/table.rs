//! What is in the window: a row of slots, each with a part of a file of the same length, or with nothing.
//!
//! QEMU refuses mappings that overlap and takes out only what was mapped exactly so, it ends when a machine has too many regions of
//! memory (`VHOST_USER_MAX_RAM_SLOTS`, 512), and so would do what a hostile guest says. With slots of one length none of that can
//! be said: a mapping is a slot, and there are no more mappings than slots.
//!
//! The frontend does what it is told in the order in which it is told. So the table says what will be in a slot when all that was said is
//! done, and what has not been answered yet matters only if the answer is bad and nothing else was said of the slot since.

use rustix::io::Errno;

/// Length of a slot in bytes: `FUSE_DAX_SZ` of Linux' fs/fuse/dax.c, which maps nothing longer or shorter, and the alignment that INIT
/// tells.
pub(crate) const SLOT_BYTES: u64 = 1 << SLOT_SHIFT;
/// Its logarithm, for `fuse_init_out.map_alignment`.
pub(crate) const SLOT_SHIFT: u16 = 21;
/// Most slots: half of the 512 regions of memory with which QEMU ends (`VHOST_USER_MAX_RAM_SLOTS` of its hw/virtio/vhost-user.c).
const SLOTS_MAX: u64 = 256;
/// Longest window in bytes.
pub const WINDOW_BYTES_MAX: u64 = SLOTS_MAX * SLOT_BYTES;

/// A part of a file that is as long as a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) node: u64,
    /// First byte.
    pub(crate) offset: u64,
}

/// The number of a slot.
pub(crate) type Slot = u16;

/// What the frontend is to do next, and the number by which the answer is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Map { slot: Slot, part: Part, number: u64 },
    Unmap { slot: Slot, number: u64 },
}

/// What came of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// It was not done.
    Refused,
    /// It may be done yet, or never: the frontend was not patient, or said nothing.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// What will be there.
    part: Option<Part>,
    /// The order that was said last, and whether its answer is still to come.
    number: u64,
    pending: bool,
    /// The last answer was bad, and leaves open whether the frontend has something there: it is told to take it out before it maps again, and
    /// whether it refuses that does not matter.
    unsure: bool,
}

/// The window's slots.
#[derive(Debug)]
pub(crate) struct Table {
    slots: Vec<State>,
    next: u64,
}

impl Table {
    /// A window of so many bytes, of which no more than [`WINDOW_BYTES_MAX`] count.
    pub(crate) fn new(window_bytes: u64) -> Table {
        let slots = (window_bytes / SLOT_BYTES).min(SLOTS_MAX) as usize;
        Table { slots: vec![State::default(); slots], next: 1 }
    }

    /// How many slots have something, or will have.
    pub(crate) fn mapped(&self) -> usize {
        self.slots.iter().filter(|state| state.part.is_some()).count()
    }

    /// The slot of a request.
    ///
    /// # Errors
    /// `EINVAL` for anything that is no slot of the window, or no part of a file that a slot could have.
    pub(crate) fn slot(&self, window_offset: u64, offset: u64, len: u64) -> Result<Slot, Errno> {
        let slot = window_offset / SLOT_BYTES;
        let fits = len == SLOT_BYTES && window_offset.is_multiple_of(SLOT_BYTES) && offset.is_multiple_of(SLOT_BYTES);
        if fits && slot < self.slots.len() as u64 { Ok(slot as Slot) } else { Err(Errno::INVAL) }
    }

    /// The slots of a range that is to be taken out; all of them for the length that Linux has for that (`~0`).
    ///
    /// # Errors
    /// `EINVAL` for a range that does not consist of slots.
    pub(crate) fn slots(&self, window_offset: u64, len: u64) -> Result<std::ops::Range<Slot>, Errno> {
        if len == u64::MAX {
            return Ok(self.all());
        }
        let end = window_offset.checked_add(len).ok_or(Errno::INVAL)?;
        let fits = len > 0 && window_offset.is_multiple_of(SLOT_BYTES) && len.is_multiple_of(SLOT_BYTES);
        if !fits || end > self.slots.len() as u64 * SLOT_BYTES {
            return Err(Errno::INVAL);
        }
        Ok((window_offset / SLOT_BYTES) as Slot..(end / SLOT_BYTES) as Slot)
    }

    /// Whether a slot has that, and the frontend has said so.
    pub(crate) fn has(&self, slot: Slot, part: Part) -> bool {
        let state = self.slots[usize::from(slot)];
        state.part == Some(part) && !state.pending
    }

    /// Puts a part of a file into a slot. What was there goes first.
    pub(crate) fn map(&mut self, slot: Slot, part: Part) -> impl Iterator<Item = Order> + use<> {
        let before = self.unmap(slot);
        let number = self.say(slot, Some(part));
        before.into_iter().chain([Order::Map { slot, part, number }])
    }

    /// Takes out what a slot has, or may have.
    pub(crate) fn unmap(&mut self, slot: Slot) -> Option<Order> {
        let state = self.slots[usize::from(slot)];
        if state.part.is_none() && !state.unsure {
            return None;
        }
        Some(Order::Unmap { slot, number: self.say(slot, None) })
    }

    fn say(&mut self, slot: Slot, part: Option<Part>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.slots[usize::from(slot)] = State { part, number, pending: true, unsure: false };
        number
    }

    /// All slots.
    pub(crate) fn all(&self) -> std::ops::Range<Slot> {
        0..self.slots.len() as Slot
    }

    /// The slots with parts of files that are not wanted any more.
    pub(crate) fn of(&self, is_unwanted: impl Fn(Part) -> bool) -> Vec<Slot> {
        let slots = self.slots.iter().zip(0..);
        slots.filter_map(|(state, slot)| state.part.is_some_and(&is_unwanted).then_some(slot)).collect()
    }

    /// The frontend has answered an order. What is to be said because of that.
    pub(crate) fn answered(&mut self, order: Order, answer: Answer) -> Option<Order> {
        let (slot, number) = match order {
            Order::Map { slot, number, .. } | Order::Unmap { slot, number } => (slot, number),
        };
        let state = &mut self.slots[usize::from(slot)];
        if state.number != number {
            // Something else was said of it since, and will be done behind that.
            return None;
        }
        state.pending = false;
        match (order, answer) {
            (Order::Map { .. }, Answer::Refused) => (state.part, state.unsure) = (None, true),
            (Order::Unmap { .. }, Answer::Unknown) => state.unsure = true,
            // It is taken out again, if it ever comes.
            (Order::Map { .. }, Answer::Unknown) => return self.unmap(slot),
            _ => {}
        }
        None
    }

    /// The frontend has taken everything out by itself.
    pub(crate) fn forget(&mut self) {
        let number = self.next;
        self.next += 1;
        self.slots.fill(State { part: None, number, pending: false, unsure: false });
    }
}
