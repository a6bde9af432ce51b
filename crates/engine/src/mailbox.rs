//! How other threads reach a worker: a queue, and an eventfd that is written only while the worker sleeps.

use crate::figures::RingStay;
use crate::{Io, PollMode, RingId, Token, WorkerFigures};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

/// What a ring's owner is asked to do with it.
pub(crate) enum RingMail<R> {
    /// Give the ring to another worker; the new owner answers true, the old one false when there is no new owner.
    Release { to: u32, done: Sender<bool> },
    /// Take no more requests, finish those in flight, hand the ring back.
    Detach { done: Sender<R> },
    /// Run this on the ring, between two turns.
    With(WithRing<R>),
    /// Work that another worker started for the ring has ended.
    Completion { token: Token, result: i32 },
}

pub(crate) type WithRing<R> = Box<dyn FnOnce(&mut R, &RingStay, &mut Io<'_>) + Send>;

pub(crate) enum Mail<R> {
    /// A ring arrives, new or from another worker.
    Adopt {
        id: RingId,
        ring: Box<R>,
        stay: RingStay,
        done: Sender<bool>,
    },
    Ring(RingId, RingMail<R>),
    /// A [`Reply`] was used.
    Done {
        slot: u32,
        token: Token,
        result: i32,
    },
    Figures(Sender<WorkerFigures>),
    Poll(PollMode),
    SweepFiles(Sender<()>),
    Stop,
}

struct Queue<R> {
    mail: VecDeque<Mail<R>>,
    closed: bool,
}

pub(crate) struct Mailbox<R> {
    queue: Mutex<Queue<R>>,
    pending: AtomicBool,
    sleeping: AtomicBool,
    wake: OwnedFd,
}

impl<R> Mailbox<R> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Mailbox {
            queue: Mutex::new(Queue { mail: VecDeque::new(), closed: false }),
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Queues a message; hands it back when the worker is gone.
    pub(crate) fn send(&self, mail: Mail<R>) -> Result<(), Mail<R>> {
        {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if queue.closed {
                return Err(mail);
            }
            queue.mail.push_back(mail);
            self.pending.store(true, Ordering::SeqCst);
        }
        // Pairs with `may_sleep`: either the worker sees `pending`, or we see that it sleeps.
        if self.sleeping.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    pub(crate) fn pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Moves all messages, in their order, to the end of `out`.
    pub(crate) fn take(&self, out: &mut VecDeque<Mail<R>>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending.store(false, Ordering::SeqCst);
        out.append(&mut queue.mail);
    }

    /// The worker is about to sleep: from now on a message writes the eventfd. False when one has come already.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.pending.load(Ordering::SeqCst) {
            self.awake();
            return false;
        }
        true
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Refuses further messages and drops the waiting ones, so that nobody waits for an answer.
    pub(crate) fn close(&self) {
        let mail = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.closed = true;
            std::mem::take(&mut queue.mail)
        };
        drop(mail);
    }
}

/// Delivery of a completion to the worker that started the work.
pub(crate) trait Post: Send + Sync {
    fn post(&self, slot: u32, token: Token, result: i32);
}

impl<R: Send> Post for Mailbox<R> {
    fn post(&self, slot: u32, token: Token, result: i32) {
        // A worker ends only when nothing is outstanding, so that a refusal can only follow its panic.
        let _ = self.send(Mail::Done { slot, token, result });
    }
}

/// Completes one request from any thread. Dropping it unused completes the request with EIO: no request is ever lost.
pub struct Reply {
    post: Option<Arc<dyn Post>>,
    slot: u32,
    token: Token,
}

impl Reply {
    pub(crate) fn new(post: Arc<dyn Post>, slot: u32, token: Token) -> Self {
        Reply { post: Some(post), slot, token }
    }

    /// Hands in the result: bytes, or a negated errno.
    pub fn complete(mut self, result: i32) {
        if let Some(post) = self.post.take() {
            post.post(self.slot, self.token, result);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(post) = self.post.take() {
            post.post(self.slot, self.token, -libc::EIO);
        }
    }
}
