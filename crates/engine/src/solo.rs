//! A lane without rings: runs storage to completion on the calling thread, for tools and tests.

use crate::lane::{Lane, Tag};
use crate::mailbox::Post;
use crate::{Io, Token};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

struct Replies(Mutex<Sender<(Token, i32)>>);

impl Post for Replies {
    fn post(&self, _slot: u32, token: Token, result: i32) {
        // The receiver lives in the Solo; a reply that outlives it has nobody to tell.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send((token, result));
    }
}

/// A single-threaded executor of [`Io`] work.
pub struct Solo {
    lane: Lane,
    post: Arc<dyn Post>,
    replies: Receiver<(Token, i32)>,
    outstanding: u32,
}

impl Solo {
    /// Sets an io_uring up for the calling thread; the value must stay on it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn new() -> io::Result<Solo> {
        let (sender, replies) = channel();
        Ok(Solo {
            lane: Lane::new()?,
            post: Arc::new(Replies(Mutex::new(sender))),
            replies,
            outstanding: 0,
        })
    }

    /// For starting work.
    pub fn io(&mut self) -> Io<'_> {
        self.lane.tick();
        Io {
            lane: &mut self.lane,
            post: &self.post,
            slot: 0,
            outstanding: &mut self.outstanding,
        }
    }

    /// Waits for the next completion.
    ///
    /// # Errors
    /// `NotFound` when nothing is outstanding.
    pub fn wait(&mut self) -> io::Result<(Token, i32)> {
        if self.outstanding == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "nothing is outstanding"));
        }
        loop {
            if let Some(done) = self.look() {
                self.outstanding -= 1;
                return Ok(done);
            }
            self.lane.submit();
            if self.lane.completions.is_empty()
                && let Ok(done) = self.replies.recv_timeout(Duration::from_micros(50))
            {
                self.outstanding -= 1;
                return Ok(done);
            }
        }
    }

    fn look(&mut self) -> Option<(Token, i32)> {
        while let Some(completion) = (!self.lane.completions.is_empty()).then(|| self.lane.completions.remove(0)) {
            if let Tag::Request { token, .. } = completion.tag {
                return Some((token, completion.result));
            }
        }
        self.lane.tick();
        let due = self.lane.timers.pop_due(self.lane.now_ns);
        due.map(|due| (due.token, 0)).or_else(|| self.replies.try_recv().ok())
    }
}
