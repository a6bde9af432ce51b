//! What the rounds of a case come to.

use serde::Serialize;

use super::case::Case;
use super::measure::Run;
use crate::stats::{Spread, ratio};

/// A case, summed up.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Results {
    pub(super) row: &'static str,
    #[serde(skip)]
    pub(super) title: &'static str,
    pub(super) depth: u16,
    pub(super) sides: Vec<Standing>,
    pub(super) runs: Vec<Run>,
}

/// One side over all rounds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Standing {
    pub(super) side: &'static str,
    pub(super) writes_per_s: Spread,
    pub(super) mean_us: Spread,
    pub(super) p99_us: Spread,
    pub(super) cpu_us_per_write: Option<Spread>,
    pub(super) requests_a_commit: Option<Spread>,
    /// The first side's writes a second, divided by this one's; `None` for the first itself.
    pub(super) ratio: Option<Ratio>,
}

/// How many times as much.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Ratio {
    /// Of medians.
    pub(super) medians: f64,
    /// Of the two runs of each round: what one round might have shown.
    pub(super) rounds: Spread,
    pub(super) expected: Option<f64>,
}

impl Ratio {
    /// Whether it is less than was expected; a ratio that is shown as the expected one is not.
    pub(super) fn is_short(&self) -> bool {
        let shown = (self.medians * 100.0).round() / 100.0;
        self.expected.is_some_and(|expected| shown < expected)
    }
}

impl Results {
    /// Sums up `runs`.
    pub(super) fn of(case: &Case, runs: Vec<Run>) -> Self {
        let sides = case.sides.iter().enumerate().filter_map(|(index, side)| {
            let first = case.sides.first().filter(|_| index > 0).map(|first| first.name);
            Standing::of(side.name, first, side.expected, &runs)
        });
        Self { row: case.row.name(), title: case.row.title(), depth: case.depth, sides: sides.collect(), runs }
    }

    /// Whether every request of every run succeeded.
    pub(super) fn is_clean(&self) -> bool {
        self.runs.iter().all(Run::is_clean)
    }
}

impl Standing {
    fn of(name: &'static str, first: Option<&str>, expected: Option<f64>, runs: &[Run]) -> Option<Self> {
        let own = || runs.iter().filter(|run| run.side == name);
        let spread = |field: fn(&Run) -> f64| Spread::of(own().map(field));
        let writes_per_s = spread(|run| run.writes_per_s)?;
        let requests = own().filter_map(|run| run.volume?.requests_a_commit());
        Some(Self {
            side: name,
            writes_per_s,
            mean_us: spread(|run| run.mean_us)?,
            p99_us: spread(|run| run.p99_us)?,
            cpu_us_per_write: Spread::of(own().filter_map(|run| run.cpu_us_per_write)),
            requests_a_commit: Spread::of(requests),
            ratio: first.and_then(|first| Ratio::of(first, name, expected, runs)),
        })
    }
}

impl Ratio {
    fn of(first: &str, other: &str, expected: Option<f64>, runs: &[Run]) -> Option<Self> {
        let own = |side: &str| -> Vec<&Run> { runs.iter().filter(|run| run.side == side).collect() };
        let (ours, theirs) = (own(first), own(other));
        let median = |runs: &[&Run]| Spread::of(runs.iter().map(|run| run.writes_per_s)).map(|spread| spread.median);
        let pairs = ours.iter().filter_map(|our| {
            let their = theirs.iter().find(|their| their.round == our.round)?;
            ratio(our.writes_per_s, their.writes_per_s)
        });
        Some(Self { medians: ratio(median(&ours)?, median(&theirs)?)?, rounds: Spread::of(pairs)?, expected })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::case::{Kind, Row, Side};
    use super::super::figures::Figures;
    use super::*;

    pub(in super::super) fn run(side: &'static str, round: u32, writes_per_s: f64) -> Run {
        let volume = (side == "volume").then(|| Figures { commits: 10, committed_requests: 75, ..Figures::default() });
        Run {
            side,
            round,
            writes: writes_per_s as u64,
            writes_per_s,
            mean_us: 1e6 / writes_per_s,
            p99_us: 2e6 / writes_per_s,
            cpu_us_per_write: None,
            volume,
            errors: 0,
            faults: Vec::new(),
        }
    }

    pub(in super::super) fn results(runs: Vec<Run>) -> Results {
        let side = |name, expected| Side { name, kind: Kind::Fio { direct: true }, expected };
        let case = Case { row: Row::Disk, depth: 8, sides: vec![side("volume", None), side("peer", Some(2.0))] };
        Results::of(&case, runs)
    }

    #[test]
    fn ratios_are_of_medians_with_the_spread_of_rounds() {
        let runs = vec![
            run("volume", 1, 400.0),
            run("peer", 1, 100.0),
            run("peer", 2, 200.0),
            run("volume", 2, 300.0),
            run("volume", 3, 500.0),
            run("peer", 3, 400.0),
        ];
        let results = results(runs);
        let [volume, peer] = &results.sides[..] else { panic!("{results:?}") };
        assert_eq!(volume.ratio, None);
        assert_eq!(volume.requests_a_commit.unwrap().median, 7.5);
        let ratio = peer.ratio.unwrap();
        assert_eq!((ratio.medians, ratio.expected), (2.0, Some(2.0)));
        assert_eq!(ratio.rounds, Spread { min: 1.25, median: 1.5, max: 4.0 });
        assert!(!ratio.is_short());
    }

    #[test]
    fn what_is_shown_decides_whether_it_is_short() {
        let of = |medians| Ratio { medians, rounds: Spread { min: 0.0, median: 0.0, max: 0.0 }, expected: Some(0.95) };
        assert!(!of(0.95).is_short() && !of(0.946).is_short() && of(0.944).is_short());
        assert!(!Ratio { expected: None, ..of(0.1) }.is_short());
    }

    #[test]
    fn a_failed_commit_makes_a_run_unclean() {
        let mut bad = run("volume", 1, 1.0);
        assert!(bad.is_clean());
        bad.volume = Some(Figures { log_errors: 1, ..Figures::default() });
        assert!(!results(vec![bad]).is_clean());
    }
}
