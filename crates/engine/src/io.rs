//! What a ring may ask of the worker that serves it.

use crate::lane::{Lane, Tag};
use crate::reply::Post;
use crate::{Bell, File, Reply, Token, Ways};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
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
    /// The token of a receive that has not completed.
    pub(crate) awaited: &'a mut Option<Token>,
}

impl Io<'_> {
    fn tag(&mut self, token: Token) -> Tag {
        *self.outstanding += 1;
        self.lane.ways |= Ways::URING;
        Tag::Request { slot: self.slot, token }
    }

    /// CLOCK_MONOTONIC of this turn, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.lane.now_ns
    }

    /// CLOCK_MONOTONIC now, in nanoseconds: a reading of the clock, so once a turn at most.
    pub fn clock_ns(&self) -> u64 {
        crate::clock::monotonic_ns()
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

    /// Receives from a connected socket, which must not be in non-blocking mode: up to `bytes` bytes as soon as there are some,
    /// or with `whole` that many. Completes with how many there were, 0 when the other end sends no more.
    ///
    /// Waiting for a client is not work under way: the worker counts as idle meanwhile. A ring has one receive at most; when
    /// the ring moves it completes with what there was by then, or with ECANCELED, and is to be started again.
    ///
    /// # Safety
    /// The `bytes` bytes at `buffer` stay allocated until the completion of `token`, and nobody reads or writes them before.
    pub unsafe fn receive(
        &mut self,
        token: Token,
        socket: BorrowedFd<'_>,
        buffer: NonNull<u8>,
        bytes: usize,
        whole: bool,
    ) {
        debug_assert!(self.awaited.is_none(), "a second receive of one ring");
        *self.awaited = Some(token);
        let tag = Tag::Receive { slot: self.slot, token };
        // SAFETY: promised by our caller.
        unsafe { self.lane.receive(tag, socket, buffer.as_ptr(), bytes, whole) };
    }

    /// Sends `bytes` bytes over a connected socket, waiting for room as long as the other end takes. Completes with how many
    /// were sent; fewer than asked for is no error.
    ///
    /// # Safety
    /// The `bytes` bytes at `buffer` stay allocated until the completion of `token`, and nobody writes to them before.
    pub unsafe fn send(&mut self, token: Token, socket: BorrowedFd<'_>, buffer: NonNull<u8>, bytes: usize) {
        let tag = self.tag(token);
        // SAFETY: promised by our caller.
        unsafe { self.lane.transmit(tag, socket, buffer.as_ptr(), bytes) };
    }

    /// Completes `token` with 0 once CLOCK_MONOTONIC has reached `deadline_ns`.
    pub fn timer(&mut self, token: Token, deadline_ns: u64) {
        *self.outstanding += 1;
        self.lane.ways |= Ways::TIMER;
        self.lane.timers.set(deadline_ns, self.slot, token);
    }

    /// A handle by which any thread completes `token`.
    pub fn reply(&mut self, token: Token) -> Reply {
        self.reply_by(Ways::THREAD, token)
    }

    /// As [`reply`](Self::reply), for what is no other thread's work: who traces the request is told `ways` instead.
    pub fn reply_by(&mut self, ways: Ways, token: Token) -> Reply {
        *self.outstanding += 1;
        self.lane.ways |= ways;
        Reply::new(self.post.clone(), self.slot, token)
    }

    /// Notes by what else the request goes whose work is begun, for those who trace it.
    pub fn note(&mut self, ways: Ways) {
        self.lane.ways |= ways;
    }

    /// Which way the work went that was begun since this was asked last.
    pub fn take_ways(&mut self) -> Ways {
        std::mem::take(&mut self.lane.ways)
    }

    /// The worker's number; 0 without one.
    pub fn worker(&self) -> u32 {
        self.lane.worker
    }

    /// When the worker last looked for requests and completions before this turn, in nanoseconds of CLOCK_MONOTONIC: what it finds in
    /// this turn came after that. A worker that had nothing to do looked all the time, and then this is the turn's begin.
    pub fn looked_before_ns(&self) -> u64 {
        self.lane.looked_before_ns
    }

    /// Whether a call may wait here for what a device takes: on a thread of its own, never on a worker.
    pub fn may_block(&self) -> bool {
        self.lane.may_block
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
