//! A way for messages to a server and back, with a fixed number of slots, each with at most one request in flight.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::ring::Ring;
use super::stream::Stream;
use super::wire::{HEADER_BYTES, Header, NO_TAG, READ_HEAD_BYTES, kind};
use crate::bytes::{Encoder, u32_at};
use crate::fs::patience::wait_for;

/// What a request is, besides its fields.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Request {
    /// Type of the message.
    pub(crate) kind: u8,
    /// Bytes of the slot's data that go to the server, of Twrite.
    pub(crate) data_out: usize,
    /// Room for data of the reply, in bytes, of Tread and Treaddir.
    pub(crate) data_in: usize,
}

/// A reply that fits its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) slot: u16,
    /// 0, or what went wrong.
    pub(crate) errno: i32,
    /// Bytes of data, or of fields where the reply carries none.
    pub(crate) len: usize,
    /// Where the message lies in what was received from a stream.
    pub(super) at: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    request: Request,
    tag: u16,
    is_busy: bool,
}

/// Which slots have a request, and which.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Box<[Slot]>,
    in_flight: usize,
}

impl Slots {
    /// `depth` slots.
    pub(super) fn new(depth: u16) -> Self {
        Self { slots: vec![Slot::default(); usize::from(depth)].into_boxed_slice(), in_flight: 0 }
    }

    /// Gives a request to a free slot; the tag it is sent with.
    pub(super) fn give(&mut self, slot: u16, request: Request) -> u16 {
        let tag = if request.kind == kind::TVERSION { NO_TAG } else { slot };
        let state = &mut self.slots[usize::from(slot)];
        assert!(!state.is_busy, "slot {slot} has a request already");
        *state = Slot { request, tag, is_busy: true };
        self.in_flight += 1;
        tag
    }

    /// The slot whose request has `tag`.
    pub(super) fn by_tag(&self, tag: u16) -> Result<u16> {
        let has_tag = |slot: &Slot| slot.is_busy && slot.tag == tag;
        // Tags are slots but for Tversion's.
        let own = self.slots.get(usize::from(tag)).is_some_and(has_tag).then_some(tag);
        match own.or_else(|| self.slots.iter().position(has_tag).map(|slot| slot as u16)) {
            Some(slot) => Ok(slot),
            None => bail!("the server answered tag {tag}, which no request in flight has"),
        }
    }

    /// Judges the reply to the request of `slot`, which is free then. `front` is what the message begins with: as much of
    /// it as the header and a count, or all.
    pub(super) fn judge(&mut self, slot: u16, front: &[u8], at: usize) -> Result<Reply> {
        let Some(state) = self.slots.get_mut(usize::from(slot)).filter(|state| state.is_busy) else {
            bail!("the server answered slot {slot}, which has no request");
        };
        let Slot { request, tag, .. } = *state;
        let header = Header::parse(front)?;
        let size = header.size as usize;
        ensure!(header.tag == tag, "the reply to message {} has tag {}, not {tag}", request.kind, header.tag);
        let (errno, len) = if header.kind == kind::RLERROR {
            ensure!(size == READ_HEAD_BYTES, "Rlerror has {size} bytes");
            let errno = u32_at(front, HEADER_BYTES)?;
            ensure!((1..=4095).contains(&errno), "a reply's error is {errno}, which is no errno");
            (errno as i32, 0)
        } else {
            let expected = request.kind + 1;
            ensure!(header.kind == expected, "the reply to message {} is {}", request.kind, header.kind);
            if request.data_in > 0 {
                let count = u32_at(front, HEADER_BYTES)? as usize;
                ensure!(
                    count <= request.data_in && size == READ_HEAD_BYTES + count,
                    "message {expected} of {size} bytes carries {count}, of {} that were asked for",
                    request.data_in
                );
                (0, count)
            } else {
                ensure!(size >= HEADER_BYTES, "message {expected} has {size} bytes");
                (0, size - HEADER_BYTES)
            }
        };
        state.is_busy = false;
        self.in_flight -= 1;
        Ok(Reply { slot, errno, len, at })
    }

    /// How many there are.
    pub(super) fn depth(&self) -> u16 {
        self.slots.len() as u16
    }

    /// How many have a request.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// One without a request.
    pub(super) fn free(&self) -> Option<u16> {
        self.slots.iter().position(|slot| !slot.is_busy).map(|slot| slot as u16)
    }
}

/// A queue of a device, or a connection.
pub(crate) enum Channel {
    Ring(Ring),
    Stream(Stream),
}

impl Channel {
    /// Which slots have a request.
    pub(super) fn slots(&self) -> &Slots {
        match self {
            Self::Ring(ring) => &ring.slots,
            Self::Stream(stream) => &stream.slots,
        }
    }

    /// Enters a request on a free slot; `encode` writes its fields. [`Channel::publish`] shows it to the server.
    pub(crate) fn submit(&mut self, slot: u16, request: Request, encode: impl FnOnce(&mut Encoder<'_>)) {
        match self {
            Self::Ring(ring) => ring.submit(slot, request, encode),
            Self::Stream(stream) => stream.submit(slot, request, encode),
        }
    }

    /// Shows the server what was entered, as much as it takes now.
    pub(crate) fn publish(&mut self) -> Result<()> {
        match self {
            Self::Ring(ring) => ring.publish(),
            Self::Stream(stream) => stream.publish(),
        }
    }

    /// Whether there is a reply, without sleeping for one.
    pub(crate) fn has_reply(&mut self) -> Result<bool> {
        match self {
            Self::Ring(ring) => Ok(ring.has_reply()),
            Self::Stream(stream) => stream.has_reply(),
        }
    }

    /// Sleeps until there is a reply.
    ///
    /// # Errors
    /// The server died, or takes longer than a server may.
    pub(crate) fn wait(&mut self, server_pid: Option<u32>) -> Result<()> {
        wait_for(server_pid, self.slots().in_flight(), |limit: Duration| match self {
            Self::Ring(ring) => ring.sleep(limit),
            Self::Stream(stream) => stream.sleep(limit),
        })
    }

    /// The next reply that is there; its slot is free again, and what came stays until the next wait or request.
    ///
    /// # Errors
    /// The server answered what was not asked, or with something that is no reply to it.
    pub(crate) fn take(&mut self) -> Result<Option<Reply>> {
        match self {
            Self::Ring(ring) => ring.take(),
            Self::Stream(stream) => stream.take(),
        }
    }

    /// The fields of a reply without data that has just been taken.
    pub(crate) fn fields(&self, reply: Reply) -> &[u8] {
        match self {
            Self::Ring(ring) => ring.fields(reply),
            Self::Stream(stream) => stream.received(reply, HEADER_BYTES),
        }
    }

    /// The data of a reply that has just been taken.
    pub(crate) fn data(&self, reply: Reply) -> &[u8] {
        match self {
            Self::Ring(ring) => ring.data(reply),
            Self::Stream(stream) => stream.received(reply, READ_HEAD_BYTES),
        }
    }

    /// The data that the next Twrite of `slot`, which is free, sends.
    pub(crate) fn data_mut(&mut self, slot: u16) -> &mut [u8] {
        match self {
            Self::Ring(ring) => ring.data_mut(slot),
            Self::Stream(stream) => stream.data_mut(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::encoded;

    fn judge(request: Request, reply: &[u8]) -> Result<Reply> {
        let mut slots = Slots::new(2);
        assert_eq!(slots.give(1, request), 1);
        let judged = slots.judge(1, reply, 0);
        assert_eq!(slots.in_flight(), usize::from(judged.is_err()), "a reply that is none frees nothing");
        judged
    }

    #[test]
    fn replies_are_held_against_their_requests() {
        let clunk = Request { kind: kind::TCLUNK, ..Request::default() };
        let message = |size, kind, tag| encoded(|e| _ = e.header(size, kind, tag));
        assert_eq!(judge(clunk, &message(7, 121, 1)).unwrap(), Reply { slot: 1, errno: 0, len: 0, at: 0 });
        assert!(judge(clunk, &message(7, 121, 0)).is_err(), "another tag");
        assert!(judge(clunk, &message(7, 123, 1)).is_err(), "another type");
        assert!(judge(clunk, &message(6, 121, 1)).is_err(), "shorter than its header");
        let error = |size, errno| encoded(|e| _ = e.header(size, kind::RLERROR, 1).u32(errno));
        assert_eq!(judge(clunk, &error(11, 2)).unwrap().errno, 2);
        assert!(judge(clunk, &error(11, 0)).is_err(), "no errno");
        assert!(judge(clunk, &error(12, 2)).is_err(), "too long");
    }

    #[test]
    fn data_is_as_long_as_it_says_and_no_longer_than_was_asked() {
        let read = Request { kind: kind::TREAD, data_in: 8, ..Request::default() };
        let message = |size, count| encoded(|e| _ = e.header(size, 117, 1).u32(count));
        assert_eq!(judge(read, &message(15, 4)).unwrap().len, 4);
        assert!(judge(read, &message(15, 5)).is_err());
        assert!(judge(read, &message(20, 9)).is_err());
        assert!(judge(read, &message(7, 0)).is_err());
    }

    #[test]
    fn a_tag_is_answered_once() {
        let mut slots = Slots::new(2);
        slots.give(0, Request { kind: kind::TVERSION, ..Request::default() });
        assert_eq!(slots.by_tag(NO_TAG).unwrap(), 0);
        assert!(slots.by_tag(0).is_err() && slots.by_tag(1).is_err());
        let reply = encoded(|e| _ = e.header(7, kind::TVERSION + 1, NO_TAG));
        slots.judge(0, &reply, 0).unwrap();
        assert!(slots.by_tag(NO_TAG).is_err() && slots.judge(0, &reply, 0).is_err());
    }
}
