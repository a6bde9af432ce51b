//! A lane without rings: runs storage to completion on the calling thread, for tools and tests.

use crate::lane::{Lane, Tag};
use crate::reply::Post;
use crate::{Completion, Io, Token};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

struct Replies {
    sender: Mutex<Sender<Completion>>,
    wake: OwnedFd,
}

impl Post for Replies {
    fn post(&self, _slot: u32, completion: Completion) {
        // The receiver lives in the Solo; a reply that outlives it has nobody to tell.
        let _ = self.sender.lock().unwrap_or_else(PoisonError::into_inner).send(completion);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A single-threaded executor of [`Io`] work.
pub struct Solo {
    lane: Lane,
    posted: Arc<Replies>,
    post: Arc<dyn Post>,
    replies: Receiver<Completion>,
    finished: VecDeque<Completion>,
    outstanding: u32,
    awaited: Option<Token>,
}

impl Solo {
    /// Sets an io_uring up for the calling thread; the value must stay on it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn new() -> io::Result<Solo> {
        Solo::on(Lane::new()?)
    }

    fn on(mut lane: Lane) -> io::Result<Solo> {
        let (sender, replies) = channel();
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let posted = Arc::new(Replies { sender: Mutex::new(sender), wake });
        lane.watch(Tag::Mail, posted.wake.as_fd());
        let finished = VecDeque::new();
        Ok(Solo { lane, post: posted.clone(), posted, replies, finished, outstanding: 0, awaited: None })
    }

    /// As [`new`](Self::new), for a thread that has one thing under way at a time: what would hold up a worker's other rings
    /// ([`Io::may_block`]) it does itself, and waits for no thread that others share.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn for_one() -> io::Result<Solo> {
        Solo::on(Lane::small()?)
    }

    /// For starting work.
    pub fn io(&mut self) -> Io<'_> {
        self.lane.tick();
        self.lane.looked_before_ns = self.lane.now_ns;
        let Solo { lane, post, outstanding, awaited, .. } = self;
        Io { lane, post, slot: 0, outstanding, awaited }
    }

    /// Waits for the next completion.
    ///
    /// # Errors
    /// `NotFound` when nothing is outstanding.
    pub fn wait(&mut self) -> io::Result<Completion> {
        self.wait_gathered(1, 0)
    }

    /// As [`wait`](Self::wait), but where it has to sleep it sleeps until `want` of the kernel's completions are there, or
    /// `patience_us` microseconds are over and there is one: with many under way, a wake-up and a submission for many. Deadlines
    /// and replies are not kept waiting: while there are deadlines, or nothing of the kernel's is under way, it is a plain wait. So
    /// it is on a kernel that cannot do it (before 6.12).
    ///
    /// # Errors
    /// `NotFound` when nothing is outstanding.
    pub fn wait_gathered(&mut self, want: usize, patience_us: u32) -> io::Result<Completion> {
        if self.outstanding == 0 && self.awaited.is_none() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "nothing is outstanding"));
        }
        loop {
            self.gather();
            if let Some(done) = self.finished.pop_front() {
                self.outstanding -= 1;
                return Ok(done);
            }
            let has_deadline = self.lane.timers.next_ns().is_some();
            let most = if has_deadline { 1 } else { self.lane.in_kernel as usize };
            self.lane.submit_and_wait(want.min(most), patience_us);
        }
    }

    fn gather(&mut self) {
        self.lane.reap();
        for completion in std::mem::take(&mut self.lane.completions) {
            match completion.tag {
                Tag::Request { token, .. } => self.finished.push_back(Completion::new(token, completion.result)),
                Tag::Receive { token, .. } => {
                    self.awaited = None;
                    self.outstanding += 1;
                    self.finished.push_back(Completion::new(token, completion.result));
                }
                Tag::Mail if !completion.more => self.lane.watch(Tag::Mail, self.posted.wake.as_fd()),
                _ => {}
            }
        }
        self.lane.tick();
        while let Some(due) = self.lane.timers.pop_due(self.lane.now_ns) {
            self.finished.push_back(Completion::new(due.token, 0));
        }
        self.finished.extend(self.replies.try_iter());
    }
}
