//! What a service is given with a request, and how it answers.

use super::data;
use rustix::io::Errno;
use vring::Segment;

/// Most bytes of a directory's entries in one answer: their client asks for more, as it always has to. Some 800 of READDIRPLUS, each
/// with a system call, are a millisecond or two.
pub(crate) const LISTING_BYTES_MAX: u32 = 128 << 10;

/// What a request did with file data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes.
    pub(crate) read: u64,
    /// Bytes.
    pub(crate) written: u64,
    /// How long reading or writing took, in nanoseconds; 0 for other requests.
    pub(crate) took_ns: u64,
}

/// A request's surroundings.
pub(crate) struct Scene<'a> {
    /// All that the client gave to read, the request's own bytes included.
    pub(crate) readable: &'a [Segment],
    /// All that the client gave to write, the answer's header included.
    pub(crate) writable: &'a [Segment],
    /// Where an answer's payload is put together; empty at first.
    pub(crate) reply: &'a mut Vec<u8>,
    /// Room for a list of segments.
    pub(crate) data: &'a mut Vec<Segment>,
    pub(crate) moved: &'a mut Moved,
}

impl Scene<'_> {
    /// Bytes that the client has room for behind the first `head` bytes of an answer, at most `asked`.
    pub(crate) fn room(&self, head: usize, asked: u32) -> usize {
        data::room(self.writable).saturating_sub(head).min(asked as usize)
    }
}

/// What answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What was put together in the reply.
    Reply,
    /// So many bytes of data, which are where the client wants them already.
    Data(usize),
    /// Nothing at all.
    Silence,
}

/// How a request went.
pub(crate) type Outcome = Result<Answer, Errno>;

/// Something that is waited for.
pub(crate) trait Cancel: Send + Sync {
    /// It is waited for no longer: whoever waits is told EINTR soon, unless it comes before. Never blocks.
    fn cancel(&self);
}

impl Cancel for passthrough::Wait {
    fn cancel(&self) {
        passthrough::Wait::cancel(self);
    }
}
