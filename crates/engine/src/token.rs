//! What names work that is under way, and how it ends.

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
