//! Messages in the bytes that a client has sent.
//!
//! Bytes are received where they stay until their request has been executed. A message that is longer than what usually comes at
//! once is waited for as a whole, and nothing behind it: then a write's data lies in a buffer of its own, which goes along with
//! the request if that takes its time.

use super::buffers::{Buffers, SMALL_BYTES};
use std::ptr::NonNull;

/// Longest message, in bytes, that shares its buffer with others.
const SHARED_BYTES_MAX: usize = 32 << 10;
/// Least room to receive into, in bytes: what has been received is moved to the front before there is less.
const ROOM_BYTES_MIN: usize = 16 << 10;

/// Largest buffer, in bytes, that is kept while nothing is in it, and most that is expected to come like the last time.
const IDLE_BYTES_MAX: usize = 2 << 20;

/// What a protocol says of the message at the front of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// So many bytes have to be there before it is known.
    Unknown(usize),
    /// It has so many.
    Known(usize),
    /// It is none: where the next one begins is not known.
    Impossible,
}

/// What lies at the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// Not all of a message.
    Part,
    /// A message of so many bytes.
    Message(usize),
    /// No message, and nothing behind it can be one.
    Impossible,
}

/// Where to receive to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) place: NonNull<u8>,
    pub(super) bytes: usize,
    /// Nothing can be done before all of it is there.
    pub(super) whole: bool,
}

/// Bytes that were received and not taken.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Filled up to its length.
    buffer: Vec<u8>,
    /// What is in front of this was taken.
    start: usize,
    /// Size of the message that was taken last, if it was a long one: the next will be as long.
    usual: usize,
}

impl Inbox {
    /// What lies at the front, by what `size` says of it.
    #[inline]
    pub(crate) fn front(&self, size: impl Fn(&[u8]) -> Size) -> Front {
        match size(self.all()) {
            Size::Impossible => Front::Impossible,
            Size::Known(bytes) if bytes <= self.bytes() => Front::Message(bytes),
            Size::Known(_) | Size::Unknown(_) => Front::Part,
        }
    }

    /// All that was not taken.
    #[inline]
    pub(crate) fn all(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// Bytes that were not taken.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// The first `bytes` bytes, which are there.
    #[inline]
    pub(crate) fn peek(&self, bytes: usize) -> &[u8] {
        self.buffer.get(self.start..self.start + bytes).unwrap_or_default()
    }

    /// Takes the message of `bytes` bytes at the front.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) {
        self.start = self.buffer.len().min(self.start + bytes);
        self.usual = usual(bytes);
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            if self.buffer.capacity() > IDLE_BYTES_MAX {
                self.buffer = Vec::new();
            }
        }
    }

    /// Takes the message of `bytes` bytes at the front out, in a buffer of its own. Returns that, and where in it the message
    /// begins.
    pub(crate) fn take_out(&mut self, bytes: usize, buffers: &mut Buffers) -> (Vec<u8>, usize) {
        if bytes > SHARED_BYTES_MAX && bytes == self.bytes() {
            let start = std::mem::take(&mut self.start);
            self.usual = usual(bytes);
            // The next message is received into another buffer.
            return (std::mem::take(&mut self.buffer), start);
        }
        let mut message = buffers.take(bytes);
        message.extend_from_slice(self.peek(bytes));
        self.take(bytes);
        (message, 0)
    }

    /// Where to receive more. There is not all of a message. `None` where there is no memory for it.
    pub(super) fn room(&mut self, size: impl Fn(&[u8]) -> Size, buffers: &mut Buffers) -> Option<Room> {
        let there = self.bytes();
        let size = match size(self.all()) {
            Size::Unknown(bytes) | Size::Known(bytes) => bytes,
            Size::Impossible => 0,
        };
        let missing = size.saturating_sub(there).max(1);
        let whole = size > SHARED_BYTES_MAX;
        // Enough for the message that has begun, or for one like the last.
        let wanted = if whole { missing } else { self.usual.max(missing).max(ROOM_BYTES_MIN) };
        if self.buffer.capacity() - self.buffer.len() < wanted {
            self.make_room(there, there + wanted, buffers)?;
        }
        // Not more than usual: what comes behind a long message would have to be moved.
        let bytes = if whole { missing } else { self.usual.max(SMALL_BYTES) };
        let spare = self.buffer.spare_capacity_mut();
        let bytes = bytes.min(spare.len());
        Some(Room { place: NonNull::from(spare).cast(), bytes, whole })
    }

    /// Puts bytes behind all others that were received somewhere else. `None` where there is no memory for them.
    pub(super) fn put(&mut self, bytes: &[u8], size: impl Fn(&[u8]) -> Size, buffers: &mut Buffers) -> Option<()> {
        let there = self.bytes();
        let size = match size(self.all()) {
            Size::Unknown(bytes) | Size::Known(bytes) => bytes,
            Size::Impossible => 0,
        };
        if self.buffer.capacity() - self.buffer.len() < bytes.len() {
            // Once for all of a long message.
            self.make_room(there, size.max(there + bytes.len()), buffers)?;
        }
        self.buffer.extend_from_slice(bytes);
        Some(())
    }

    /// Moves what is there to the front of a buffer with room for `bytes` bytes in all.
    fn make_room(&mut self, there: usize, bytes: usize, buffers: &mut Buffers) -> Option<()> {
        if self.buffer.capacity() >= bytes {
            self.buffer.copy_within(self.start.., 0);
            self.buffer.truncate(there);
        } else {
            let mut larger = buffers.try_take(bytes)?;
            larger.extend_from_slice(self.peek(there));
            buffers.give(std::mem::replace(&mut self.buffer, larger));
        }
        self.start = 0;
        Some(())
    }

    /// More has been received.
    ///
    /// # Safety
    /// `bytes` bytes were written from the place on that [`room`](Self::room) named last, and at most as many as it named.
    pub(super) unsafe fn received(&mut self, bytes: usize) {
        // SAFETY: the spare capacity holds that many, as our caller says, and they are initialized.
        unsafe { self.buffer.set_len(self.buffer.len() + bytes) };
    }
}

/// What the next message is expected to be like, when the last one had so many bytes.
fn usual(bytes: usize) -> usize {
    if (SHARED_BYTES_MAX + 1..=IDLE_BYTES_MAX).contains(&bytes) { bytes } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LARGEST: usize = 1 << 20;

    /// Messages that begin with their size.
    fn size(front: &[u8]) -> Size {
        match front.first_chunk().map(|size| u32::from_le_bytes(*size) as usize) {
            None => Size::Unknown(7),
            Some(bytes @ 7..=LARGEST) => Size::Known(bytes),
            Some(_) => Size::Impossible,
        }
    }

    /// A message of `size` bytes whose body begins with `fill` and counts up.
    fn message(size: usize, fill: u8) -> Vec<u8> {
        let mut bytes: Vec<u8> = (size as u32).to_le_bytes().to_vec();
        bytes.extend((0..size - 4).map(|at| fill.wrapping_add(at as u8)));
        bytes
    }

    /// Receives what fits of `sent`; returns how much that was.
    fn receive(inbox: &mut Inbox, buffers: &mut Buffers, sent: &[u8]) -> usize {
        let room = inbox.room(size, buffers).unwrap();
        let bytes = room.bytes.min(sent.len());
        assert!(room.bytes > 0);
        // SAFETY: the room is that large, and the copy fills as many bytes as are said to have been received.
        unsafe {
            std::ptr::copy_nonoverlapping(sent.as_ptr(), room.place.as_ptr(), bytes);
            inbox.received(bytes);
        }
        bytes
    }

    #[test]
    fn bytes_that_come_from_elsewhere_are_put_behind_what_is_there() {
        let (mut inbox, mut buffers) = (Inbox::default(), Buffers::default());
        buffers.set_largest(LARGEST);
        let sent = [message(LARGEST, 3), message(7, 1), message(70_000, 9)];
        let mut taken = Vec::new();
        for piece in sent.concat().chunks(16_000) {
            inbox.put(piece, size, &mut buffers).unwrap();
            while let Front::Message(bytes) = inbox.front(size) {
                taken.push(inbox.peek(bytes).to_vec());
                inbox.take(bytes);
            }
            assert!(inbox.buffer.capacity() <= LARGEST + 16_000, "{}", inbox.buffer.capacity());
        }
        assert!(taken == sent);
        assert_eq!(inbox.bytes(), 0);
    }

    #[test]
    fn sizes_that_no_message_has_end_the_stream() {
        let mut buffers = Buffers::default();
        for said in [0, 6, LARGEST as u32 + 1, u32::MAX] {
            let mut inbox = Inbox::default();
            receive(&mut inbox, &mut buffers, &said.to_le_bytes());
            assert_eq!(inbox.front(size), Front::Impossible);
        }
        let mut inbox = Inbox::default();
        receive(&mut inbox, &mut buffers, &[7, 0, 0]);
        assert_eq!(inbox.front(size), Front::Part, "its size is not known yet");
    }

    #[test]
    fn a_long_message_goes_along_with_its_buffer() {
        let (mut inbox, mut buffers) = (Inbox::default(), Buffers::default());
        buffers.set_largest(LARGEST);
        let sent = message(LARGEST, 3);
        let mut at = receive(&mut inbox, &mut buffers, &sent);
        assert!(at < LARGEST, "nobody knows yet how long it is");
        let room = inbox.room(size, &mut buffers).unwrap();
        assert!(room.whole && room.bytes == LARGEST - at, "{room:?}");
        at += receive(&mut inbox, &mut buffers, &sent[at..]);
        assert_eq!((at, inbox.front(size)), (LARGEST, Front::Message(LARGEST)));
        let place = inbox.peek(1).as_ptr();
        let (buffer, start) = inbox.take_out(LARGEST, &mut buffers);
        assert_eq!(buffer[start..].as_ptr(), place, "it was copied");
        assert_eq!(buffer[start..], sent);
        buffers.give(buffer);
        // The next one is expected to be as long, and comes at once.
        assert_eq!(receive(&mut inbox, &mut buffers, &sent), LARGEST);
    }

    #[test]
    fn a_very_long_message_leaves_nothing_behind() {
        const LONG: usize = 8 << 20;
        let size = |front: &[u8]| if front.len() < 4 { Size::Unknown(7) } else { Size::Known(LONG) };
        let (mut inbox, mut buffers) = (Inbox::default(), Buffers::default());
        let mut at = 0;
        while inbox.front(size) == Front::Part {
            let room = inbox.room(size, &mut buffers).unwrap();
            // SAFETY: the room is that large, and all of it is written.
            unsafe {
                room.place.as_ptr().write_bytes(7, room.bytes);
                inbox.received(room.bytes);
            }
            at += room.bytes;
        }
        assert!(at >= LONG && inbox.buffer.capacity() >= LONG);
        inbox.take(LONG);
        assert!(inbox.buffer.capacity() <= IDLE_BYTES_MAX && inbox.usual == 0);
        // Nobody has that much.
        let size = |_: &[u8]| Size::Known(usize::MAX >> 1);
        assert!(inbox.room(size, &mut buffers).is_none());
    }

    proptest! {
        /// However the bytes are cut, the messages come out as they were sent, in place or taken out.
        #[test]
        fn messages_survive_any_cut(
            sizes in proptest::collection::vec(prop_oneof![7_usize..64, 4096_usize..5000, 30_000_usize..200_000], 1..12),
            cuts in proptest::collection::vec(1_usize..100_000, 1..20),
            out in proptest::bits::u16::ANY,
        ) {
            let sent: Vec<Vec<u8>> = sizes.iter().zip(0..).map(|(size, fill)| message(*size, fill)).collect();
            let bytes = sent.concat();
            let (mut inbox, mut buffers) = (Inbox::default(), Buffers::default());
            buffers.set_largest(LARGEST);
            let (mut at, mut next) = (0, 0);
            let mut cuts = cuts.iter().cycle();
            while next < sent.len() {
                match inbox.front(size) {
                    Front::Message(size) => {
                        prop_assert_eq!(inbox.peek(size), &sent[next][..]);
                        if out & 1 << (next % 16) == 0 {
                            inbox.take(size);
                        } else {
                            let (buffer, start) = inbox.take_out(size, &mut buffers);
                            prop_assert_eq!(&buffer[start..start + size], &sent[next][..]);
                            buffers.give(buffer);
                        }
                        next += 1;
                    }
                    Front::Part => {
                        prop_assert!(at < bytes.len(), "message {} never comes", next);
                        let cut = (at + cuts.next().unwrap()).min(bytes.len());
                        at += receive(&mut inbox, &mut buffers, &bytes[at..cut]);
                    }
                    Front::Impossible => prop_assert!(false, "no message"),
                }
            }
            prop_assert_eq!((at, inbox.bytes()), (bytes.len(), 0));
        }
    }
}
