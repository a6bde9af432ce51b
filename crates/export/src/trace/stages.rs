//! What is noted of a request under way.

use super::slow::{SlowRequest, Wait, What};
use engine::Ways;

/// When a request came to which stage, in nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stages {
    pub(super) taken_ns: u64,
    pub(super) taken_by: u32,
    pub(super) waited_max_ns: u64,
    pub(super) waited_for: Wait,
    /// Until when it was put aside; 0 when it was not.
    pub(super) held_ns: u64,
    /// It is put aside.
    pub(super) is_aside: bool,
    pub(super) started_ns: Option<u64>,
    pub(super) ended_ns: Option<u64>,
    pub(super) late_max_ns: u64,
    pub(super) ways: Ways,
    pub(super) parts: u32,
    pub(super) is_partly_known: bool,
    pub(super) what: What,
}

impl Stages {
    /// A request is taken by this worker.
    pub(super) fn new(taken_ns: u64, taken_by: u32, (waited_max_ns, waited_for): (u64, Wait)) -> Stages {
        Stages {
            taken_ns,
            taken_by,
            waited_max_ns,
            waited_for,
            held_ns: 0,
            is_aside: false,
            started_ns: None,
            ended_ns: None,
            late_max_ns: 0,
            ways: Ways::default(),
            parts: 0,
            is_partly_known: false,
            what: What::default(),
        }
    }

    /// One that was taken before anybody traced.
    pub(super) fn unknown(taken_ns: u64, worker: u32) -> Stages {
        Stages { is_partly_known: true, ..Stages::new(taken_ns, worker, (0, Wait::Worker)) }
    }

    /// A part of its work has ended, by now; the worker looked for that at `looked_ns` before.
    pub(super) fn ended(&mut self, now_ns: u64, looked_ns: u64) {
        self.ended_ns = Some(now_ns);
        self.late_max_ns = now_ns.saturating_sub(looked_ns.max(self.started_ns.unwrap_or(looked_ns)));
        self.parts = self.parts.saturating_add(1);
    }

    /// When it can have come to its ring.
    pub(super) fn came_ns(&self) -> u64 {
        self.taken_ns.saturating_sub(self.waited_max_ns)
    }
}

/// A request that is answered, and not shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) stages: Stages,
    pub(super) kind: &'static str,
    pub(super) failed: bool,
    pub(super) answered_by: u32,
    pub(super) answered_ns: u64,
}

impl Answered {
    /// As it is told, when it is shown. Clocks that were read in another order than they are listed in make a stage empty, not negative.
    pub(super) fn shown(&self, ring: u16, shown_ns: u64) -> SlowRequest {
        let Answered { stages, kind, failed, answered_by, answered_ns } = *self;
        let mut last_ns = 0;
        let mut since = |at_ns: u64| {
            last_ns = at_ns.saturating_sub(stages.taken_ns).max(last_ns);
            last_ns
        };
        // It is answered without having been taken up again.
        let until_ns = if stages.is_aside { answered_ns } else { stages.held_ns };
        let held_ns = since(until_ns);
        let started_ns = stages.started_ns.map(&mut since);
        let ended_ns = stages.ended_ns.map(&mut since);
        let answered_ns = since(answered_ns);
        SlowRequest {
            ring,
            kind,
            what: stages.what,
            failed,
            taken_by: stages.taken_by,
            answered_by,
            taken_ns: stages.taken_ns,
            waited_max_ns: stages.waited_max_ns,
            waited_for: stages.waited_for,
            held_ns,
            started_ns,
            ended_ns,
            late_max_ns: stages.late_max_ns,
            ways: stages.ways,
            parts: stages.parts,
            is_partly_known: stages.is_partly_known,
            answered_ns,
            shown_ns: since(shown_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Times;
    use super::*;
    use proptest::prelude::*;

    fn stages() -> impl Strategy<Value = Stages> {
        let times = (0..1000_u64, 0..1000_u64, 0..2000_u64, any::<[Option<u16>; 2]>());
        (times, any::<(bool, bool)>()).prop_map(|((taken, waited, held, [started, ended]), (is_aside, unknown))| {
            Stages {
                held_ns: held,
                is_aside,
                started_ns: started.map(u64::from),
                ended_ns: ended.map(u64::from),
                is_partly_known: unknown,
                ways: if held % 2 == 0 { super::super::LOCK } else { Ways::URING },
                ..Stages::new(taken, 1, (waited, Wait::Turn))
            }
        })
    }

    proptest! {
        /// Whatever was noted, stages come one after the other, and their times are the whole.
        #[test]
        fn stages_add_up(stages in stages(), answered_ns in 0..100_000_u64, shown_ns in 0..100_000_u64) {
            let answered = Answered { stages, kind: "read", failed: false, answered_by: 1, answered_ns };
            let slow = answered.shown(3, shown_ns);
            let (started, ended) = (slow.started_ns.unwrap_or(slow.held_ns), slow.ended_ns.unwrap_or(slow.answered_ns));
            prop_assert!(slow.held_ns <= started && started <= slow.answered_ns);
            prop_assert!(ended <= slow.answered_ns && slow.answered_ns <= slow.shown_ns);
            prop_assert_eq!(slow.times().total_ns(), slow.shown_ns);
            prop_assert!(slow.shown_ns >= shown_ns.saturating_sub(stages.taken_ns));
            prop_assert_eq!(slow.length_ns(), slow.shown_ns + stages.waited_max_ns);
        }
    }

    #[test]
    fn each_stage_has_its_time() {
        let begun = Stages::new(1000, 2, (50, Wait::Limit));
        let mut uring = Stages { started_ns: Some(1010), ways: Ways::URING, ..begun };
        uring.ended(1500, 1300);
        uring.ended(1700, 1600);
        let answered = |stages| Answered { stages, kind: "write", failed: true, answered_by: 3, answered_ns: 1720 };
        let slow = answered(uring).shown(0, 1800);
        assert_eq!((slow.taken_by, slow.answered_by, slow.parts, slow.late_max_ns), (2, 3, 2, 100));
        let times =
            Times { waited_max_ns: 50, start_ns: 10, behind_ns: 690, answer_ns: 20, show_ns: 80, ..Times::default() };
        assert_eq!(slow.times(), times);
        // Done at once, behind what held it up.
        let slow = answered(Stages { held_ns: 1300, ..begun }).shown(0, 1800);
        assert_eq!(
            slow.times(),
            Times { waited_max_ns: 50, held_ns: 300, inline_ns: 420, show_ns: 80, ..Times::default() }
        );
        // Given up while it was held.
        let slow = answered(Stages { is_aside: true, ..begun }).shown(0, 1800);
        assert_eq!(slow.times(), Times { waited_max_ns: 50, held_ns: 720, show_ns: 80, ..Times::default() });
        let mut unknown = Stages::unknown(1000, 3);
        unknown.ended(1700, 1600);
        assert_eq!(
            answered(unknown).shown(0, 1800).times(),
            Times { unknown_ns: 700, answer_ns: 20, show_ns: 80, ..Times::default() }
        );
        let locked = Stages { ways: super::super::LOCK, ..uring };
        assert_eq!(answered(locked).shown(0, 1800).times().lock_ns, 690);
    }
}
