//! What the daemon of these tests is said to have chosen.

use control::model::policy::{Decision, PlacementDecision, PlacementPolicy, RingMove};
use policy::Tactic;
use policy::balance::Cause;

/// A trial that confirmed, and the one before, which had changed something.
pub(super) fn decisions() -> Vec<Decision> {
    let of = |seconds_ago, before, after, gain, processor, why: &str| Decision {
        seconds_ago,
        before,
        after,
        gain,
        processor,
        why: why.into(),
    };
    vec![
        of(11.0, Tactic::Learned, Tactic::Learned, 1.0, 1.0, "learned took 14.0 us a request"),
        of(75.0, Tactic::Sleep, Tactic::Learned, 1.43, 0.61, "sleep took 20.0 us a request"),
    ]
}

/// Rings are moved at every second look.
pub(super) fn placement(looks: u64) -> PlacementPolicy {
    let of = |cause, moves: &[(u16, u32, u32)], seconds_ago, why: &str| PlacementDecision {
        seconds_ago,
        cause,
        moves: moves.iter().map(|&(ring, from, to)| RingMove { export: "disk".into(), ring, from, to }).collect(),
        why: why.into(),
    };
    let decisions = vec![
        of(Cause::Gather, &[(1, 1, 0)], 5.0, "0.31 processors' work on 2 workers, where 1 are enough"),
        of(
            Cause::Spread,
            &[(0, 0, 1), (1, 0, 1)],
            95.0,
            "worker 0 is busy for 97 % of its time; 0.97 processors' work on 1 workers",
        ),
    ];
    PlacementPolicy { changes: 2 + looks / 2, moves: 3 + looks / 2, decisions }
}
