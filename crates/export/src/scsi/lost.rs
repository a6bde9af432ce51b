//! Commands of rings that have fallen: what their disks do for them goes on, and whoever fences their driver waits for that, too.

use super::tasks::Word;
use super::units::Unit;
use crate::counters::Counters;
use crate::page::RingPage;
use std::sync::{Arc, Mutex, PoisonError};

/// What a ring had begun on one unit when it fell.
pub(crate) struct LostTasks {
    /// The ring's, by which it is told from others.
    counters: Arc<Counters>,
    /// Who waits for their end; `None` where nobody can say when that is.
    words: Mutex<Option<Vec<Arc<Word>>>>,
}

impl LostTasks {
    /// Somebody waits for them: lets go of the word when they have ended, or gives it up at once.
    pub(super) fn wait(&self, word: &Arc<Word>) {
        match &mut *self.words.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(words) => {
                words.retain(|word| word.is_wanted());
                words.push(word.clone());
            }
            None => word.give_up(),
        }
    }

    /// Whether they were the ring's that this page is of.
    pub(super) fn are_of(&self, page: &RingPage) -> bool {
        Arc::ptr_eq(&self.counters, &page.counters)
    }

    /// Whether they are known to end some time.
    pub(super) fn end(&self) -> bool {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Them, as the ring has them: dropped with it, when they have ended.
pub(crate) struct Lost {
    unit: Arc<Unit>,
    tasks: Arc<LostTasks>,
}

impl Lost {
    /// Of a ring with these counters, which falls with commands under way on this unit.
    pub(super) fn on(unit: Arc<Unit>, counters: Arc<Counters>) -> Lost {
        let tasks = Arc::new(LostTasks { counters, words: Mutex::new(Some(Vec::new())) });
        unit.lose(tasks.clone());
        Lost { unit, tasks }
    }

    /// The ring is never dropped: nobody can say when they end.
    pub(super) fn never_end(&self) {
        let words = self.tasks.words.lock().unwrap_or_else(PoisonError::into_inner).take();
        if words.is_some() {
            let disk = self.unit.logical.disk();
            let why = "a ring fell whose requests nobody can wait for: PREEMPT AND ABORT of its guest is BUSY until the daemon is started \
                       again, PREEMPT is not";
            tracing::error!(disk, reason = why, "a guest cannot be fenced");
        }
        words.into_iter().flatten().for_each(|word| word.give_up());
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        self.unit.find(&self.tasks);
    }
}
