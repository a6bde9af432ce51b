//! One request on the tree, in the terms of the protocol.
//!
//! | file | concern |
//! |---|---|
//! | `session` | INIT, and what holds until the next one |
//! | `perform` | which operation answers which request |
//! | `names` | look-ups, and what makes, moves and removes names |
//! | `attributes` | attributes, extended attributes, ioctl |
//! | `files` | open files and their data |
//! | `listing` | directories |
//! | `locks` | locks, those that are waited for too |

mod attributes;
mod files;
mod listing;
mod locks;
mod names;
mod perform;
mod session;

use super::Policy;
use super::reply;
use device::fs::Dialect;
use locks::Waits;
use rustix::io::Errno;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use tree::Tree;
use vring::Segment;

pub(crate) use perform::counts_as_error;

/// What all rings of a directory share.
pub(crate) struct Service {
    tree: Arc<Tree>,
    policy: Policy,
    /// What INIT agreed on; `None` before it and after DESTROY.
    session: Mutex<Option<Dialect>>,
    /// Grows when `session` changes, so that rings need no lock to know that what they remember still holds.
    generation: AtomicU64,
    waits: Mutex<Waits>,
}

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
    /// All that the driver gave to read, the request's own bytes included.
    pub(crate) readable: &'a [Segment],
    /// All that the driver gave to write, the answer's header included.
    pub(crate) writable: &'a [Segment],
    /// Where an answer's payload is put together; empty at first.
    pub(crate) reply: &'a mut Vec<u8>,
    /// Room for a list of segments.
    pub(crate) data: &'a mut Vec<Segment>,
    pub(crate) moved: &'a mut Moved,
}

impl Scene<'_> {
    /// Bytes of payload that the driver has room for, at most `asked`.
    fn room(&self, asked: u32) -> usize {
        reply::room(self.writable).saturating_sub(device::fs::OUT_HEADER_BYTES).min(asked as usize)
    }
}

/// What answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What was put together in the reply.
    Reply,
    /// So many bytes of data, which are in guest memory already.
    Data(usize),
    /// Nothing at all.
    Silence,
}

/// How a request went.
pub(crate) type Outcome = Result<Answer, Errno>;

/// Writes the answer. Returns how many bytes that took.
pub(crate) fn write_answer(outcome: Outcome, writable: &[Segment], unique: u64, payload: &[u8]) -> u32 {
    match outcome {
        Ok(Answer::Reply) => reply::write(writable, unique, Ok(payload)),
        Ok(Answer::Data(bytes)) => reply::write_before_data(writable, unique, bytes),
        Ok(Answer::Silence) => 0,
        Err(error) => reply::write(writable, unique, Err(error)),
    }
}
