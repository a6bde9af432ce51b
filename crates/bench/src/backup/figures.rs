//! What a run gave, and what the rounds come to.

use std::collections::BTreeMap;

use serde::Serialize;

use super::case::Side;
use crate::frontend::Snapshot;
use crate::stats::{Contrast, Latency, Pool, Ratio, Spread, ratio};
use crate::words::{count, time_us, times};
use guest::usage::Usage;

/// A stretch of a load.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Phase {
    pub(super) seconds: f64,
    /// Requests that completed.
    pub(super) ops: u64,
    pub(super) iops: f64,
    pub(super) latency: Latency,
    /// The longest time without a completion.
    pub(super) longest_gap_us: f64,
}

impl Phase {
    /// From one whole snapshot to the next.
    pub(super) fn between(one: &Snapshot, next: &Snapshot) -> Self {
        let (ops, seconds) = (next.ops.saturating_sub(one.ops), next.seconds - one.seconds);
        let iops = ratio(ops as f64, seconds).unwrap_or(0.0);
        Self { seconds, ops, iops, latency: next.latency, longest_gap_us: next.worst_gap_us() }
    }

    fn p99_us(&self) -> Option<f64> {
        (self.latency.count > 0).then_some(self.latency.p99_us)
    }
}

/// What one run gave.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Measured {
    /// From the command until a backup is done or a mirror is ready; none for a job that was given up.
    pub(super) job_s: Option<f64>,
    /// From the command until a backup is closed and on stable storage.
    pub(super) durable_s: Option<f64>,
    /// Size of the disk.
    pub(super) copied_bytes: u64,
    /// The load without the job.
    pub(super) before: Phase,
    /// The load with it, until it is there or given up.
    pub(super) during: Phase,
    /// What the server used for both in that time.
    pub(super) server: Usage,
    /// Requests that failed.
    pub(super) errors: u64,
    /// The first of them, and what is wrong with the copy.
    pub(super) faults: Vec<String>,
}

impl Measured {
    /// Whether every request succeeded and the copy is sound.
    pub(super) fn is_clean(&self) -> bool {
        self.errors == 0 && self.faults.is_empty()
    }

    /// The run in a line, for who watches.
    pub(super) fn line(&self) -> String {
        let job = self.job_s.map_or_else(
            || format!("given up after {:.1} s", self.during.seconds),
            |seconds| format!("{seconds:.2} s"),
        );
        let mut line = format!(
            "{job}, guest {} IOPS before and {} during, p99 {} and {}",
            count(self.before.iops),
            count(self.during.iops),
            time_us(self.before.latency.p99_us),
            time_us(self.during.latency.p99_us)
        );
        if !self.is_clean() {
            line += &format!(", {} ERRORS", self.errors.max(1));
        }
        line
    }
}

/// A figure that is compared.
pub(super) struct Figure {
    /// Its name in JSON.
    pub(super) name: &'static str,
    /// Its name above a column.
    pub(super) title: &'static str,
    pub(super) of: fn(&Measured) -> Option<f64>,
    pub(super) show: fn(f64) -> String,
}

/// In the order of the table.
pub(super) const FIGURES: [Figure; 11] = [
    Figure { name: "job_s", title: "job", of: |run| run.job_s, show: seconds },
    Figure { name: "durable_s", title: "durable", of: |run| run.durable_s, show: seconds },
    Figure { name: "mib_per_s", title: "MiB/s", of: mib_per_s, show: count },
    Figure { name: "iops_before", title: "IOPS before", of: |run| Some(run.before.iops), show: count },
    Figure { name: "iops_during", title: "during", of: |run| Some(run.during.iops), show: count },
    Figure { name: "iops_kept", title: "kept", of: |run| ratio(run.during.iops, run.before.iops), show: times },
    Figure { name: "p99_before_us", title: "p99 before", of: |run| run.before.p99_us(), show: time_us },
    Figure { name: "p99_during_us", title: "during", of: |run| run.during.p99_us(), show: time_us },
    Figure { name: "p99_grown", title: "grown", of: p99_grown, show: times },
    Figure { name: "longest_gap_us", title: "longest gap", of: |run| Some(run.during.longest_gap_us), show: time_us },
    Figure { name: "cpu_s", title: "server CPU", of: |run| Some(run.server.cpu_s()), show: seconds },
];

fn seconds(seconds: f64) -> String {
    format!("{seconds:.2} s")
}

fn mib_per_s(run: &Measured) -> Option<f64> {
    ratio(run.copied_bytes as f64 / f64::from(1 << 20), run.job_s?)
}

fn p99_grown(run: &Measured) -> Option<f64> {
    ratio(run.during.p99_us()?, run.before.p99_us()?)
}

/// One run of one side.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Run {
    pub(super) contender: &'static str,
    pub(super) round: u32,
    #[serde(flatten)]
    pub(super) measured: Measured,
}

/// A side over all rounds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Standing {
    pub(super) contender: &'static str,
    /// Runs whose job was given up: the figures of jobs are those of the others.
    pub(super) given_up: u32,
    #[serde(flatten)]
    pub(super) figures: BTreeMap<&'static str, Spread>,
}

/// Our figures over the other side's.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Ratios {
    pub(super) of: &'static str,
    pub(super) to: &'static str,
    #[serde(flatten)]
    pub(super) figures: BTreeMap<&'static str, Ratio>,
}

/// How a case ended.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Results {
    pub(super) medians: Vec<Standing>,
    pub(super) ratios: Vec<Ratios>,
    pub(super) runs: Vec<Run>,
}

impl Results {
    /// Sums up `runs`.
    pub(super) fn of(runs: Vec<Run>) -> Self {
        let medians = Side::ALL.iter().map(|side| Standing::of(side.name(), &runs)).collect();
        let [ours, theirs] = Side::ALL.map(Side::name);
        Self { medians, ratios: vec![Ratios::of(ours, theirs, &runs)], runs }
    }

    /// Whether every request succeeded and every copy is sound.
    pub(super) fn is_clean(&self) -> bool {
        self.runs.iter().all(|run| run.measured.is_clean())
    }
}

fn by_round(name: &str, figure: &Figure, runs: &[Run]) -> BTreeMap<u32, f64> {
    let own = runs.iter().filter(|run| run.contender == name);
    own.filter_map(|run| Some((run.round, (figure.of)(&run.measured)?))).collect()
}

impl Standing {
    fn of(contender: &'static str, runs: &[Run]) -> Self {
        let spread = |figure: &Figure| {
            let values = by_round(contender, figure, runs);
            Some((figure.name, Spread::of(values.into_values())?))
        };
        let given_up = runs.iter().filter(|run| run.contender == contender && run.measured.job_s.is_none()).count();
        let figures = FIGURES.iter().filter_map(spread).collect();
        Self { contender, given_up: u32::try_from(given_up).unwrap_or(u32::MAX), figures }
    }
}

impl Ratios {
    fn of(of: &'static str, to: &'static str, runs: &[Run]) -> Self {
        let ratio = |figure: &Figure| {
            let (part, whole) = (by_round(of, figure, runs), by_round(to, figure, runs));
            let median = |values: &BTreeMap<u32, f64>| Some(Spread::of(values.values().copied())?.median);
            let contrast = Contrast::of_rounds(&part, &whole);
            Some((figure.name, Ratio::of(median(&part)?, median(&whole)?, contrast, Pool::default())?))
        };
        Self { of, to, figures: FIGURES.iter().filter_map(ratio).collect() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn run(side: Side, round: u32, job_s: Option<f64>, iops: f64) -> Run {
        let phase = |seconds: f64, iops: f64| Phase {
            seconds,
            ops: (iops * seconds) as u64,
            iops,
            latency: Latency { count: 1, p99_us: 1e6 / iops, ..Latency::default() },
            longest_gap_us: 3e6 / iops,
        };
        let measured = Measured {
            job_s,
            copied_bytes: 512 << 20,
            before: phase(3.0, 1000.0),
            during: phase(job_s.unwrap_or(60.0), iops),
            server: Usage { user_s: 1.0, system_s: 0.5, ..Usage::default() },
            ..Measured::default()
        };
        Run { contender: side.name(), round, measured }
    }

    #[test]
    fn a_phase_is_what_lies_between_two_snapshots() {
        let snapshot = |seconds: f64, ops: u64, gap_us: f64| Snapshot {
            seconds,
            ops,
            bytes: 0,
            errors: 0,
            mismatches: 0,
            latency: Latency { count: ops, p99_us: gap_us, ..Latency::default() },
            gap_us_max: vec![gap_us],
        };
        let phase = Phase::between(&snapshot(1.0, 100, 9.0), &snapshot(3.0, 700, 4.0));
        assert_eq!((phase.seconds, phase.ops, phase.iops), (2.0, 600, 300.0));
        assert_eq!((phase.longest_gap_us, phase.p99_us()), (4.0, Some(4.0)));
        assert_eq!(Phase::default().p99_us(), None, "of no request");
    }

    #[test]
    fn ratios_are_ours_over_theirs() {
        let runs = vec![run(Side::Vringd, 1, Some(1.0), 800.0), run(Side::Qemu, 1, Some(4.0), 400.0)];
        let results = Results::of(runs);
        let ratio = |name: &str| results.ratios[0].figures.get(name).map(|ratio| ratio.value);
        assert_eq!((ratio("job_s"), ratio("mib_per_s")), (Some(0.25), Some(4.0)));
        assert_eq!((ratio("iops_kept"), ratio("p99_grown"), ratio("cpu_s")), (Some(2.0), Some(0.5), Some(1.0)));
        assert_eq!(ratio("durable_s"), None);
        let median = |name: &str| results.medians[0].figures[name].median;
        assert_eq!((median("mib_per_s"), median("iops_kept")), (512.0, 0.8));
    }

    #[test]
    fn a_job_that_is_given_up_has_no_time() {
        let runs = vec![run(Side::Vringd, 1, Some(1.0), 800.0), run(Side::Qemu, 1, None, 400.0)];
        assert!(runs[1].measured.line().starts_with("given up after 60.0 s"), "{}", runs[1].measured.line());
        let results = Results::of(runs);
        assert_eq!(results.medians.iter().map(|it| it.given_up).collect::<Vec<_>>(), [0, 1]);
        assert!(!results.medians[1].figures.contains_key("job_s"));
        assert!(!results.ratios[0].figures.contains_key("job_s") && results.ratios[0].figures.contains_key("cpu_s"));
        assert!(results.is_clean(), "it is a figure, and no failure");
    }

    #[test]
    fn json_holds_every_run_the_medians_and_ratios() {
        let runs = vec![run(Side::Vringd, 1, Some(1.0), 800.0), run(Side::Qemu, 1, Some(4.0), 400.0)];
        let json = serde_json::to_value(Results::of(runs)).unwrap();
        assert_eq!(
            (&json["runs"][1]["contender"], &json["runs"][1]["during"]["iops"]),
            (&"qemu".into(), &400.0.into())
        );
        assert_eq!(json["medians"][0]["job_s"]["median"], 1.0);
        assert_eq!(json["ratios"][0]["job_s"]["value"], 0.25);
    }
}
