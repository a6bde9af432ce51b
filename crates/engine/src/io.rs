//! What a ring may ask of the worker that serves it.

use crate::lane::{Lane, Tag};
use crate::mailbox::Post;
use crate::{Bell, File, Reply, Token};
use std::sync::Arc;

/// The way from a ring to its worker's io_uring, deadlines and clock; valid for one turn.
///
/// Every piece of work started here with a token ends with exactly one
/// [`Ring::complete`](crate::Ring::complete) of that token, also when the ring has moved in between.
pub struct Io<'a> {
    pub(crate) lane: &'a mut Lane,
    pub(crate) post: &'a Arc<dyn Post>,
    pub(crate) slot: u32,
    pub(crate) outstanding: &'a mut u32,
}

impl Io<'_> {
    fn tag(&mut self, token: Token) -> Tag {
        *self.outstanding += 1;
        Tag::Request { slot: self.slot, token }
    }

    /// CLOCK_MONOTONIC of this turn, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.lane.now_ns
    }

    /// CLOCK_MONOTONIC now, in nanoseconds: a reading of the clock, so once a turn at most.
    pub fn clock_ns(&self) -> u64 {
        crate::lane::monotonic_ns()
    }

    /// Reads from `file` at `offset` (bytes) into `buffers`.
    ///
    /// # Safety
    /// What `buffers` points to stays mapped until the completion of `token`; the slice itself stays in place until then too.
    pub unsafe fn read(&mut self, token: Token, file: File<'_>, buffers: &[libc::iovec], offset: u64) {
        let tag = self.tag(token);
        // SAFETY: promised by our caller.
        unsafe { self.lane.read(tag, file, buffers, offset) };
    }

    /// Writes `buffers` to `file` at `offset` (bytes); `durable` asks for stable storage before completion (RWF_DSYNC).
    ///
    /// # Safety
    /// As for [`read`](Self::read).
    pub unsafe fn write(&mut self, token: Token, file: File<'_>, buffers: &[libc::iovec], offset: u64, durable: bool) {
        let tag = self.tag(token);
        // SAFETY: promised by our caller.
        unsafe { self.lane.write(tag, file, buffers, offset, durable) };
    }

    /// Makes completed writes of `file` stable: the data and what is needed to find it (fdatasync), or all that is known of
    /// the file (fsync).
    pub fn sync(&mut self, token: Token, file: File<'_>, data_only: bool) {
        let tag = self.tag(token);
        self.lane.sync(tag, file, data_only);
    }

    /// Completes `token` with 0 once CLOCK_MONOTONIC has reached `deadline_ns`.
    pub fn timer(&mut self, token: Token, deadline_ns: u64) {
        *self.outstanding += 1;
        self.lane.timers.set(deadline_ns, self.slot, token);
    }

    /// A handle by which any thread completes `token`.
    pub fn reply(&mut self, token: Token) -> Reply {
        *self.outstanding += 1;
        Reply::new(self.post.clone(), self.slot, token)
    }

    /// Rings a bell by the end of this turn, in the turn's system call if there will be one.
    pub fn signal(&mut self, bell: &mut Bell) {
        self.lane.signal(bell);
    }

    /// Rings a bell while the turn goes on, so that whoever hears it works meanwhile: at once, unless the turn has something to
    /// submit anyway.
    pub fn signal_now(&mut self, bell: &mut Bell) {
        self.lane.signal_now(bell);
    }
}
