//! Tags: which requests are under way, and who waits for their end.
//!
//! A client that flushes a request may use its tag again when it has the answer to the flush, so that answer must not overtake
//! the old request's own. Only requests whose answers come later need to be here.

use engine::Reply;
use passthrough::Wait;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// When a flush is answered.
pub(crate) enum Flush {
    /// Now: there is no such request, or it has its answer.
    Now(Reply),
    /// Behind the old request's answer: whoever was given the [`Reply`] hears of it.
    Later,
}

#[derive(Default)]
struct Begun {
    /// Of how many requests this is the tag. A client that sees an answer uses its tag again, perhaps on another queue, and
    /// perhaps before who has answered gets to say so.
    requests: usize,
    /// What they wait for, where that can be given up.
    cancel: Vec<Arc<Wait>>,
    /// Those that flush them, in their order.
    told: Vec<Reply>,
}

/// The requests of a session that are answered later. There are no more of them, and of flushes, than a ring has slots.
#[derive(Default)]
pub(crate) struct Tags(Mutex<HashMap<u16, Begun>>);

impl Tags {
    fn lock(&self) -> MutexGuard<'_, HashMap<u16, Begun>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is answered later. [`Tags::end`] belongs to it.
    pub(crate) fn begin(&self, tag: u16) {
        self.lock().entry(tag).or_default().requests += 1;
    }

    /// What a request that has begun waits for, to be given up when it is flushed: at once, when a flush was faster.
    pub(crate) fn cancel_by(&self, tag: u16, wait: Arc<Wait>) {
        if let Some(begun) = self.lock().get_mut(&tag) {
            if !begun.told.is_empty() {
                wait.cancel();
            }
            begun.cancel.push(wait);
        }
    }

    /// A request is flushed. `told` is completed, with 0, when its answer is out.
    pub(crate) fn flush(&self, oldtag: u16, told: Reply) -> Flush {
        match self.lock().get_mut(&oldtag) {
            Some(begun) => {
                begun.cancel.iter().for_each(|wait| wait.cancel());
                begun.told.push(told);
                Flush::Later
            }
            None => Flush::Now(told),
        }
    }

    /// Whether a flush waits for this tag's request.
    pub(crate) fn is_flushed(&self, tag: u16) -> bool {
        self.lock().get(&tag).is_some_and(|begun| !begun.told.is_empty())
    }

    /// The answer of a request is out, or there will be none.
    pub(crate) fn end(&self, tag: u16) {
        let mut requests = self.lock();
        let Some(begun) = requests.get_mut(&tag) else { return };
        begun.requests = begun.requests.saturating_sub(1);
        if begun.requests > 0 {
            return;
        }
        let begun = requests.remove(&tag);
        drop(requests);
        for told in begun.into_iter().flat_map(|begun| begun.told) {
            told.complete(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{Solo, Token};

    #[test]
    fn a_flush_is_answered_behind_what_it_flushes() {
        let tags = Tags::default();
        let mut solo = Solo::new().unwrap();
        tags.begin(1);
        assert!(!tags.is_flushed(1));
        let first = solo.io().reply(Token::request(10));
        assert!(matches!(tags.flush(1, first), Flush::Later));
        assert!(tags.is_flushed(1));
        let second = solo.io().reply(Token::request(11));
        assert!(matches!(tags.flush(1, second), Flush::Later));
        // Of another request, on another queue.
        tags.begin(1);
        tags.end(1);
        assert!(tags.is_flushed(1), "one of the two is still under way");
        tags.end(1);
        assert_eq!(solo.wait().unwrap().index(), 10, "flushes are answered in their order");
        assert_eq!(solo.wait().unwrap().index(), 11);
        let third = solo.io().reply(Token::request(12));
        let Flush::Now(third) = tags.flush(1, third) else { panic!("nothing is under way") };
        third.complete(0);
        assert_eq!(solo.wait().unwrap().index(), 12);
        tags.end(1);
    }
}
