//! Task management: what is said of tasks that rings have, and when it is true (SAM-5, 7; virtio 1.3, 5.6.6.2).
//!
//! What a disk has begun cannot be called back: whoever aborts a task is answered when it has ended, and with it all that the driver had
//! made available before. So no task is answered behind the answer that says it is gone, and none is answered twice.
//!
//! That may take as long as a disk does, and nobody waits for it on a thread: each ring is asked between two turns of its worker, and the
//! last that has said its word completes the request.

use super::logical::Others;
use super::lost::LostTasks;
use super::ring::ScsiRing;
use crate::Ring;
use crate::label::Keeper;
use engine::Reply;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use values::Lun;

/// Tasks that somebody asks of: of one target, of one unit there, or the one with this tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Which {
    pub(crate) target: u8,
    pub(crate) lun: Option<u16>,
    pub(crate) tag: Option<u64>,
}

impl Which {
    /// All tasks of a unit.
    pub(crate) fn of_unit(lun: Lun) -> Which {
        Which { target: lun.target, lun: Some(lun.number), tag: None }
    }

    /// Whether a task is one of them.
    pub(crate) fn is(&self, lun: Lun, tag: u64) -> bool {
        self.target == lun.target
            && self.lun.is_none_or(|number| number == lun.number)
            && self.tag.is_none_or(|wanted| wanted == tag)
    }
}

/// What rings are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Whether such tasks are under way.
    Exist,
    /// To say when all have ended that the driver had made available by then.
    End,
    /// To say when all have ended that had been taken by then, but for those that wait for others in the same way: for somebody else's
    /// driver, to whom what comes later comes behind what it does.
    EndOfTaken,
}

/// How it was answered, as the result of a completion.
pub(crate) mod word {
    /// No such task is under way.
    pub(crate) const NONE: i32 = 0;
    /// One is.
    pub(crate) const FOUND: i32 = 1;
    /// Nobody waits for it any more.
    pub(crate) const GIVEN_UP: i32 = -libc::ECANCELED;
}

/// The answer of several rings to one question. It is complete when none of them has it any more: a ring that ends leaves no task
/// but to its next life, and then [gives it up](Word::give_up). One that falls keeps it until what it had begun has ended, and gives it
/// up if nobody can say when that is.
pub(crate) struct Word {
    reply: Mutex<Option<Reply>>,
    found: AtomicBool,
}

impl Word {
    /// There is such a task.
    pub(super) fn found(&self) {
        self.found.store(true, Ordering::Relaxed);
    }

    /// Completes the request at once.
    pub(super) fn give_up(&self) {
        self.complete(word::GIVEN_UP);
    }

    /// Somebody waits for it still.
    pub(super) fn is_wanted(&self) -> bool {
        self.reply().is_some()
    }

    fn reply(&self) -> MutexGuard<'_, Option<Reply>> {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, result: i32) {
        if let Some(reply) = self.reply().take() {
            reply.complete(result);
        }
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        self.complete(if self.found.load(Ordering::Relaxed) { word::FOUND } else { word::NONE });
    }
}

/// Those to ask, each after tasks as they are called there.
#[derive(Default)]
pub(crate) struct Asked {
    keepers: Vec<(Arc<dyn Keeper>, Which, Question)>,
    lost: Vec<Arc<LostTasks>>,
}

impl Asked {
    /// The rings of this device.
    pub(crate) fn own(keeper: Option<Arc<dyn Keeper>>, which: Which, question: Question) -> Asked {
        Asked { keepers: keeper.into_iter().map(|keeper| (keeper, which, question)).collect(), lost: Vec::new() }
    }

    /// And others, for the end of their tasks.
    #[must_use]
    pub(crate) fn and(mut self, others: Others) -> Asked {
        let keepers = others.keepers.into_iter();
        self.keepers.extend(keepers.map(|(keeper, which)| (keeper, which, Question::EndOfTaken)));
        self.lost.extend(others.lost);
        self
    }
}

/// Asks them all, and waits for none: `reply` completes with a [`word`]. For a worker.
pub(crate) fn ask(asked: Asked, reply: Reply) -> Weak<Word> {
    let word = Arc::new(Word { reply: Mutex::new(Some(reply)), found: AtomicBool::new(false) });
    for (keeper, which, question) in asked.keepers {
        let rings = keeper.rings();
        for (_, running) in rings.running() {
            let theirs = word.clone();
            let ask = move |ring: &mut Ring, _: &mut engine::Io<'_>| {
                if let Some(ring) = ring.of::<ScsiRing>() {
                    ring.asked(which, question, theirs);
                }
            };
            // One that has gone drops its part of the question with it. It may hear of it late: this is no matter of who asks.
            let is_gone = rings.engine().order_ring(running.id, ask).is_err();
            let is_lost = || asked.lost.iter().any(|tasks| tasks.are_of(&running.page));
            if is_gone && running.page.in_flight() > 0 && !is_lost() {
                // It falls at this moment, with what its page shows.
                word.give_up();
            }
        }
    }
    asked.lost.iter().for_each(|tasks| tasks.wait(&word));
    Arc::downgrade(&word)
}
