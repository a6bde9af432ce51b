//! From the samples of a run to its [`Summary`].

use std::collections::{BTreeMap, BTreeSet};

use super::contest::Contest;
use super::summary::{Cell, CellFigures, Failure, LatencySpreads, Measure, State, Summary, Tally};
use crate::experiment::{Configuration, Experiment};
use crate::record::{Figures, Outcome, Run};
use bench::stats::Spread;

impl Summary {
    /// Sums `run` up. Samples of pairs that its experiment does not have are left out; of two samples of one pair and round
    /// the later counts.
    pub fn of(run: &Run) -> Self {
        let experiment = &run.header.experiment;
        let rounds = Rounds::of(run);
        let measure = Measure::of(experiment);
        let mut cells = rounds.cells(experiment);
        let contest = Contest { experiment, rounds: &rounds, measure };
        contest.rate(&mut cells);
        contest.compare(run.header.quick, &mut cells);
        let standings =
            experiment.configurations.iter().map(|c| contest.standing(c, run.header.quick, &cells)).collect();
        let seen: BTreeSet<u32> = run.samples.iter().map(|sample| sample.round).collect();
        Self {
            header: run.header.clone(),
            rounds: number(seen.len()),
            measure,
            standings,
            leaders: contest.leaders(&cells),
            tally: tally(&cells),
            cells,
        }
    }
}

pub(super) fn tally<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Tally {
    let mut tally = Tally::default();
    let agreements = cells.into_iter().filter_map(|cell| cell.published.as_ref()?.agreement);
    agreements.for_each(|agreement| tally.add(agreement));
    tally
}

/// A count as it is written down.
pub(super) fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The outcomes of each pair, by round.
pub(super) struct Rounds<'a>(BTreeMap<(&'a str, &'a str), BTreeMap<u32, &'a Outcome>>);

impl<'a> Rounds<'a> {
    pub(super) fn of(run: &'a Run) -> Self {
        let mut pairs: BTreeMap<(&str, &str), BTreeMap<u32, &Outcome>> = BTreeMap::new();
        for sample in &run.samples {
            let pair = pairs.entry((sample.configuration.as_str(), sample.workload.as_str())).or_default();
            pair.insert(sample.round, &sample.outcome);
        }
        Self(pairs)
    }

    fn outcomes(&self, configuration: &str, workload: &str) -> Vec<(u32, &'a Outcome)> {
        let outcomes = self.0.get(&(configuration, workload)).into_iter().flatten();
        outcomes.map(|(round, outcome)| (*round, *outcome)).collect()
    }

    /// What `measure` was, by round.
    pub(super) fn values(&self, configuration: &str, workload: &str, measure: Measure) -> BTreeMap<u32, f64> {
        let outcomes = self.outcomes(configuration, workload).into_iter();
        let measured = outcomes.filter_map(|(round, outcome)| match outcome {
            Outcome::Measured(figures) => Some((round, measure.of_sample(figures))),
            Outcome::Failed { .. } | Outcome::Unsupported { .. } => None,
        });
        measured.collect()
    }

    fn cells(&self, experiment: &Experiment) -> Vec<Cell> {
        let pairs = experiment.workloads.iter().flat_map(|w| experiment.configurations.iter().map(move |c| (c, w)));
        pairs.map(|(configuration, workload)| self.cell(configuration, &workload.name)).collect()
    }

    fn cell(&self, configuration: &Configuration, workload: &str) -> Cell {
        let (mut measured, mut failures) = (Vec::new(), Vec::new());
        let mut unsupported = configuration.unsupported.clone();
        for (round, outcome) in self.outcomes(&configuration.name, workload) {
            match outcome {
                Outcome::Measured(figures) => measured.push(*figures),
                Outcome::Failed { reason } => failures.push(Failure { round, reason: reason.clone() }),
                Outcome::Unsupported { reason } => unsupported = Some(reason.clone()),
            }
        }
        let figures = CellFigures::of(&measured);
        let state = match (&figures, failures.last(), unsupported) {
            (Some(_), _, _) => State::Measured,
            (None, Some(last), _) => State::Failed { reason: last.reason.clone() },
            (None, None, Some(reason)) => State::Unsupported { reason },
            (None, None, None) => State::Missing,
        };
        Cell {
            configuration: configuration.name.clone(),
            workload: workload.to_owned(),
            state,
            failures,
            figures,
            ratio: None,
            published: None,
        }
    }
}

impl Measure {
    /// It in the figures of one measurement.
    pub fn of_sample(self, figures: &Figures) -> f64 {
        match self {
            Self::Bandwidth => figures.kib_per_s,
            Self::Iops => figures.iops,
        }
    }
}

impl CellFigures {
    fn of(measured: &[Figures]) -> Option<Self> {
        let spread = |field: fn(&Figures) -> f64| Spread::of(measured.iter().map(field));
        let known = |field: fn(&Figures) -> Option<f64>| Spread::of(measured.iter().filter_map(field));
        Some(Self {
            kib_per_s: spread(|f| f.kib_per_s)?,
            iops: spread(|f| f.iops)?,
            latency: LatencySpreads {
                mean_us: spread(|f| f.latency.mean_us)?,
                p50_us: spread(|f| f.latency.p50_us)?,
                p90_us: spread(|f| f.latency.p90_us)?,
                p99_us: spread(|f| f.latency.p99_us)?,
                p999_us: spread(|f| f.latency.p999_us)?,
                max_us: spread(|f| f.latency.max_us)?,
            },
            server_cpu_s: known(|f| f.server_cpu_s),
            guest_cpu_s: known(|f| f.guest_cpu_s),
            requests_per_server_cpu_s: known(|f| a_second(f.requests, f.server_cpu_s?)),
            // Without a server of its own the guest's process serves, and its time is all of it.
            requests_per_cpu_s: known(|f| a_second(f.requests, f.guest_cpu_s? + f.server_cpu_s.unwrap_or(0.0))),
        })
    }
}

/// Requests a second of processor time; `None` where that time was too short to be counted.
fn a_second(requests: u64, cpu_s: f64) -> Option<f64> {
    (cpu_s > 0.0).then(|| requests as f64 / cpu_s)
}
