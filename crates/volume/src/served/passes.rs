//! Discards behind the pass of write-back that was under way when they came.
//!
//! A pass may hold versions of blocks that a discard has just made the cache forget. Their writes would land behind the discard,
//! and bring back something older than what the guest has seen there. So a discard reaches the lower storage when the pass that
//! was under way has ended; one that begins later finds the versions gone: it says that it runs before it looks at the cache,
//! and a discard looks whether one runs after it has forgotten, with a fence in between on either side.

use engine::Reply;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Default)]
pub(super) struct Passes {
    running: AtomicBool,
    waiting: Mutex<Vec<Reply>>,
}

impl Passes {
    fn waiting(&self) -> MutexGuard<'_, Vec<Reply>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A pass begins: it has not taken anything yet.
    pub(super) fn begin(&self) {
        self.running.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Nothing that the pass has taken is under way any more. Whoever waited is told `result`.
    pub(super) fn end(&self, result: i32) {
        let mut waiting = self.waiting();
        self.running.store(false, Ordering::SeqCst);
        let told = std::mem::take(&mut *waiting);
        drop(waiting);
        for reply in told {
            reply.complete(result);
        }
    }

    /// Whether the caller, which has made the cache forget something, has to wait: its reply is completed then.
    pub(super) fn wait(&self, reply: impl FnOnce() -> Reply) -> bool {
        fence(Ordering::SeqCst);
        if !self.running.load(Ordering::SeqCst) {
            return false;
        }
        let mut waiting = self.waiting();
        let running = self.running.load(Ordering::SeqCst);
        if running {
            waiting.push(reply());
        }
        running
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Solo, Token};

    #[test]
    fn a_discard_waits_for_the_pass_under_way_and_no_other() {
        let passes = Passes::default();
        let mut solo = Solo::new().unwrap();
        assert!(!passes.wait(|| solo.io().reply(Token::request(1))));
        passes.begin();
        assert!(passes.wait(|| solo.io().reply(Token::request(2))));
        assert!(passes.wait(|| solo.io().reply(Token::request(3))));
        passes.end(7);
        let mut told = || solo.wait().unwrap().token.index().unwrap();
        assert_eq!([told(), told()], [2, 3]);
        assert!(!passes.wait(|| solo.io().reply(Token::request(4))));
        passes.begin();
        passes.end(7);
        assert!(solo.wait().is_err(), "nothing is owed");
    }
}
