//! Task management: what is said of requests that other rings have, and when it is true (SAM-5, 7; virtio 1.3, 5.6.6.2).
//!
//! What a disk has begun cannot be called back: whoever aborts a task is answered when it has ended, and with it all that the driver had
//! made available before. So no task is answered behind the answer that says it is gone, and none is answered twice.

use super::ring::ScsiRing;
use crate::label::Label;
use crate::rings::Running;
use crate::{Ring, ring_set::RingSet};
use engine::EngineError;
use std::time::Duration;
use values::Lun;

/// How often it is looked whether what is waited for has ended.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);

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

/// A ring, and the number of the first of its tasks that is not waited for; `None` before it has said that.
struct Mark {
    ring: (u16, Running),
    until: Option<u64>,
}

impl Mark {
    /// Asks the ring, and says whether it has to be asked again.
    fn stays(&mut self, rings: &RingSet, which: Which) -> bool {
        let Some(until) = self.until else {
            return match ask(rings, &self.ring, ScsiRing::next_number) {
                Said::Busy => true,
                Said::Nothing => false,
                Said::Word(number) => {
                    self.until = Some(number);
                    self.stays(rings, which)
                }
            };
        };
        match ask(rings, &self.ring, move |ring| ring.has_task(which, until)) {
            Said::Word(under_way) => under_way,
            Said::Busy => true,
            Said::Nothing => false,
        }
    }
}

/// Waits until all these tasks have ended that the driver had made available when this was called, or until nobody has the rings
/// any more. Blocks as long as a storage does: not for a worker.
pub(crate) fn ended(label: &Label, which: Which) {
    let mut left: Option<Vec<Mark>> = None;
    loop {
        // Held for a moment at a time: the export may end meanwhile.
        let Some(keeper) = label.keeper() else { return };
        let rings = keeper.rings();
        let left =
            left.get_or_insert_with(|| rings.running().into_iter().map(|ring| Mark { ring, until: None }).collect());
        left.retain_mut(|mark| mark.stays(rings, which));
        drop(keeper);
        if left.is_empty() {
            return;
        }
        std::thread::sleep(LOOK_AGAIN_AFTER);
    }
}

/// Whether one of these tasks is under way, or may be: its worker does not say. Blocks for as long as workers take to answer.
pub(crate) fn exist(label: &Label, which: Which) -> bool {
    label.keeper().is_some_and(|keeper| {
        let rings = keeper.rings();
        let may_be = |ring| {
            !matches!(ask(rings, &ring, move |it| it.has_task(which, u64::MAX)), Said::Word(false) | Said::Nothing)
        };
        rings.running().into_iter().any(may_be)
    })
}

/// What a ring of requests has said.
enum Said<T> {
    Word(T),
    /// Its worker is with something else.
    Busy,
    /// It is of another kind, or has gone with all that it had.
    Nothing,
}

fn ask<T: Send + 'static>(
    rings: &RingSet,
    (_, running): &(u16, Running),
    f: impl FnOnce(&ScsiRing) -> T + Send + 'static,
) -> Said<T> {
    match rings.engine().ask_ring(running.id, move |ring: &mut Ring, _| ring.of::<ScsiRing>().map(|ring| f(ring))) {
        Ok(Some(word)) => Said::Word(word),
        Err(EngineError::Unresponsive { .. }) => Said::Busy,
        Ok(None) | Err(_) => Said::Nothing,
    }
}
