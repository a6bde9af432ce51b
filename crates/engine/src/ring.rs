//! What a worker drives: one ring, as a value.

use crate::{Io, Panic};
use std::os::fd::BorrowedFd;

/// Names one request of one ring and a part of it, or something else that the ring has under way. Work is started under it, and
/// it comes back with the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u32);

impl Token {
    /// Requests have numbers below this: no ring has more descriptors (virtio 1.2, 2.6).
    const REQUESTS: u32 = 1 << 15;
    /// What is no request has this bit, which no request has.
    const OTHER: u32 = Self::REQUESTS << 16;

    /// Request `index` as a whole, which is its part 0. Below 32,768, as the heads of chains.
    #[inline]
    pub const fn request(index: u16) -> Token {
        debug_assert!((index as u32) < Self::REQUESTS);
        Token((index as u32) << 16)
    }

    /// Something of the ring's that is no request, by a number below 2 to the power of 31.
    #[inline]
    pub const fn other(number: u32) -> Token {
        Token(number | Self::OTHER)
    }

    /// The same request, and this part of it.
    #[inline]
    pub const fn part(self, part: u16) -> Token {
        Token(self.0 & !0xffff | part as u32)
    }

    /// The request's number; `None` for something else.
    #[inline]
    pub const fn index(self) -> Option<u16> {
        if self.0 & Self::OTHER == 0 { Some((self.0 >> 16) as u16) } else { None }
    }

    /// The number of something that is no request.
    #[inline]
    pub const fn number(self) -> Option<u32> {
        if self.0 & Self::OTHER == 0 { None } else { Some(self.0 & !Self::OTHER) }
    }

    #[inline]
    pub(crate) const fn bits(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u32) -> Token {
        Token(bits)
    }
}

/// A piece of work has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// What it was started under, without the part.
    pub token: Token,
    /// Which part of the request it was.
    pub part: u16,
    /// How it ended: a CQE's result, bytes or a negated errno.
    pub result: i32,
}

impl Completion {
    #[inline]
    pub(crate) fn new(token: Token, result: i32) -> Completion {
        match token.index() {
            Some(_) => Completion { token: token.part(0), part: token.bits() as u16, result },
            None => Completion { token, part: 0, result },
        }
    }

    /// The request's number, for those that keep requests in a list; of what is no request, one that is in no list.
    #[inline]
    pub fn index(&self) -> usize {
        self.token.index().map_or(usize::MAX, usize::from)
    }

    /// As [`token`](Self::token) and [`part`](Self::part) in one, under which the work was started.
    #[inline]
    pub fn started_under(&self) -> Token {
        match self.token.index() {
            Some(_) => self.token.part(self.part),
            None => self.token,
        }
    }
}

/// Names one ring of the engine for as long as it is attached; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RingId(pub u64);

/// One virtqueue with everything its owner needs to serve it.
///
/// A ring is owned by one worker at a time, and only that worker's thread calls these methods, so none of them needs a
/// lock. Moving a ring to another worker moves the value. No method may block.
pub trait Ring: Send + 'static {
    /// The eventfd by which the frontend says that it made requests available; `None` where it never kicks and must be
    /// polled. The answer and the descriptor stay the same while the ring is attached: the worker asks once and watches.
    fn kick(&self) -> Option<BorrowedFd<'_>>;

    /// Whether nothing wakes the worker when requests come, so that it must not sleep while it owns the ring. A ring that never
    /// kicks but is told of its client by [`Io::receive`] says no.
    fn must_poll(&self) -> bool {
        self.kick().is_none()
    }

    /// Whether requests wait that [`serve`](Self::serve) would take now: a ring that is broken, disabled or out of room says
    /// no, since a worker never sleeps while one says yes. Called in every round of a poll window: one load, no side effect.
    fn ready(&self) -> bool;

    /// Takes waiting requests (a bounded batch) and starts them. Returns how many were taken.
    fn serve(&mut self, io: &mut Io<'_>) -> usize;

    /// One piece of work that was started through [`Io`] has ended, here or on the worker that owned the ring before.
    fn complete(&mut self, completion: Completion, io: &mut Io<'_>);

    /// Shows finished requests to the driver and notifies it where it asked for that. Called once a turn in which
    /// [`serve`](Self::serve) or [`complete`](Self::complete) ran.
    fn publish(&mut self, io: &mut Io<'_>);

    /// Asks the driver to kick from now on. True when requests arrived before it could know: the ring must be served
    /// again first.
    fn arm(&mut self) -> bool;

    /// Tells the driver that kicks are not needed, because the worker is looking.
    fn disarm(&mut self);

    /// The ring is to stop: no more requests will be taken, and it is handed back once those in flight have ended. What
    /// could wait for ever (a lock that somebody else holds) has to be given up now.
    fn drain(&mut self, io: &mut Io<'_>) {
        let _ = io;
    }

    /// A call into this ring panicked, or the worker under it did. No other method is called any more, what is in flight is
    /// never answered, and the value is dropped when its memory is safe from the kernel, on a thread of its own, or never. Called
    /// once, on a worker's thread, between two of its turns or at its end; it must not block.
    fn lost(&mut self, why: &Panic) {
        let _ = why;
    }

    /// Requests taken and not yet shown as used. A ring is drained when this is 0.
    fn in_flight(&self) -> usize;
}
