//! Contenders on the same work, one after the other, round after round, and what comes of it.
//!
//! Figures of a shared machine wander; what stays is the ratio of runs that alternate.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::commits::Figures;
use crate::frontend::Report;
use crate::idle::Idle;
use crate::progress::Progress;
use crate::report::ops_per_cpu_s;
use crate::stats::{Contrast, Pool, Ratio, Spread, ratio};
use crate::table::Sheet;
use crate::words::{count, or_none, time_us, with_interval, with_range};

/// In which order `count` contenders take their `turn`th turn: another one is first each time, so that nobody always follows
/// the same one.
pub fn turns(count: usize, turn: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (at + turn) % count)
}

/// Who takes part.
pub(crate) trait Contender {
    /// Its name, which no other has.
    fn name(&self) -> &str;

    /// What the first one is expected to do, as a multiple of this one.
    fn expected(&self) -> Option<f64> {
        None
    }
}

impl<C: Contender> Contender for &C {
    fn name(&self) -> &str {
        C::name(self)
    }

    fn expected(&self) -> Option<f64> {
        C::expected(self)
    }
}

/// What one run gave.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Measured {
    #[serde(flatten)]
    pub(crate) report: Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle: Option<Idle>,
    /// What a volume says of itself: over the whole run, ramp included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) volume: Option<Figures>,
}

impl From<Report> for Measured {
    fn from(report: Report) -> Self {
        Self { report, ..Self::default() }
    }
}

/// One run of one contender.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Run {
    pub(crate) contender: String,
    pub(crate) round: u32,
    #[serde(flatten)]
    pub(crate) measured: Measured,
}

/// The figures that are compared, over all rounds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Standing {
    pub(crate) contender: String,
    pub(crate) iops: Spread,
    pub(crate) mib_per_s: Spread,
    pub(crate) mean_us: Spread,
    pub(crate) p50_us: Spread,
    pub(crate) p99_us: Spread,
    pub(crate) ops_per_cpu_s: Option<Spread>,
    pub(crate) switches_per_s: Option<Spread>,
    pub(crate) idle_wakeups_per_s: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests_a_commit: Option<Spread>,
}

/// The first contender's figures over another's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Ratios {
    pub(crate) of: String,
    pub(crate) to: String,
    pub(crate) iops: Option<Ratio>,
    pub(crate) mean_latency: Option<Ratio>,
    pub(crate) p99_latency: Option<Ratio>,
    pub(crate) ops_per_cpu_s: Option<Ratio>,
    /// Of `iops`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expected: Option<f64>,
}

/// How a contest ended.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    pub(crate) medians: Vec<Standing>,
    pub(crate) ratios: Vec<Ratios>,
    pub(crate) runs: Vec<Run>,
}

/// Has everyone `run` once in each of `rounds` rounds, in turns. `what` they do is said before each line of progress; who gives
/// no figures is left out.
pub(crate) fn hold<C: Contender>(
    contenders: &[C],
    (what, rounds): (&str, u32),
    progress: &Progress,
    mut run: impl FnMut(&C) -> Result<Option<Measured>>,
) -> Result<Results> {
    let mut runs = Vec::new();
    for round in 1..=rounds {
        for contender in turns(contenders.len(), round as usize - 1).filter_map(|index| contenders.get(index)) {
            let name = format!("{what} {}", contender.name()).trim_start().to_owned();
            let Some(measured) = run(contender).with_context(|| format!("{name}, round {round}"))? else { continue };
            progress.end(&format!("{round}/{rounds} {name:36} {}", measured.line()));
            runs.push(Run { contender: contender.name().to_owned(), round, measured });
        }
    }
    Ok(Results::of(contenders, runs))
}

impl Measured {
    /// Whether every request succeeded, and every commit.
    pub(crate) fn is_clean(&self) -> bool {
        self.report.is_clean() && self.volume.is_none_or(|volume| volume.is_clean())
    }

    fn line(&self) -> String {
        let report = &self.report;
        let (mean, p99) = (time_us(report.latency.mean_us), time_us(report.latency.p99_us));
        let mut line = format!("{:>8} IOPS, mean {mean}, p99 {p99}", count(report.iops));
        if let Some(per_cpu_s) = ops_per_cpu_s(report) {
            line += &format!(", {} requests a CPU second", count(per_cpu_s));
        }
        if let Some(requests) = self.volume.and_then(|volume| volume.requests_a_commit()) {
            line += &format!(", {} requests a commit", count(requests));
        }
        if !self.is_clean() {
            line += &format!(", {} ERRORS, {} MISMATCHES", report.errors, report.mismatches);
        }
        line
    }
}

impl Results {
    /// Sums up `runs`; ratios are those of the first of `contenders` to each other one.
    pub(crate) fn of<C: Contender>(contenders: &[C], runs: Vec<Run>) -> Self {
        let medians: Vec<Standing> = contenders.iter().filter_map(|it| Standing::of(it.name(), &runs)).collect();
        let first = contenders.first().map_or("", Contender::name);
        let others = contenders.iter().skip(1).filter(|it| medians.iter().any(|other| other.contender == it.name()));
        let others = others.filter(|_| medians.first().is_some_and(|standing| standing.contender == first));
        let ratios = others.map(|other| Ratios::of(first, other, &runs)).collect();
        Self { medians, ratios, runs }
    }

    /// Of one run that is compared with nothing.
    pub(crate) fn alone(contender: String, measured: Measured) -> Self {
        let runs = vec![Run { contender, round: 1, measured }];
        Self { medians: Standing::of(&runs[0].contender, &runs).into_iter().collect(), ratios: Vec::new(), runs }
    }

    /// Whether every request of every run succeeded.
    pub(crate) fn is_clean(&self) -> bool {
        self.runs.iter().all(|run| run.measured.is_clean())
    }

    /// The first contender's figures over those of `contender`.
    pub(crate) fn ratios_to(&self, contender: &str) -> Option<&Ratios> {
        self.ratios.iter().find(|ratios| ratios.to == contender)
    }

    /// What went wrong, a line each that begins with `what` was done.
    pub(crate) fn faults(&self, what: &str) -> String {
        let unclean = self.runs.iter().filter(|run| !run.measured.is_clean());
        unclean
            .flat_map(|run| {
                run.faults().map(move |fault| format!("\n{what}{}, round {}: {fault}", run.contender, run.round))
            })
            .collect()
    }

    /// The tables.
    pub(crate) fn render(&self) -> String {
        let mut text = self.medians_table().text();
        if !self.ratios.is_empty() {
            text += &format!("\n\n{}", self.ratios_table().text());
        }
        text + &self.faults("")
    }

    fn medians_table(&self) -> Sheet {
        let with_idle = self.medians.iter().any(|standing| standing.idle_wakeups_per_s.is_some());
        let mut header = vec!["median (min..max)", "IOPS", "mean", "p50", "p99", "requests/CPU s", "switches/s"];
        header.extend(with_idle.then_some("idle wake-ups/s"));
        let optional = |spread: &Option<Spread>| or_none(spread.as_ref(), |spread| with_range(spread, count));
        let row = |standing: &Standing| {
            let mut row = vec![
                standing.contender.clone(),
                with_range(&standing.iops, count),
                with_range(&standing.mean_us, time_us),
                time_us(standing.p50_us.median),
                with_range(&standing.p99_us, time_us),
                optional(&standing.ops_per_cpu_s),
                or_none(standing.switches_per_s, |spread| count(spread.median)),
            ];
            row.extend(with_idle.then(|| optional(&standing.idle_wakeups_per_s)));
            row
        };
        Sheet::new(1, &header, self.medians.iter().map(row).collect())
    }

    fn ratios_table(&self) -> Sheet {
        let header = [
            "ratio of medians (~: noise hides which is more)",
            "IOPS",
            "mean latency",
            "p99 latency",
            "requests/CPU s",
        ];
        let row = |ratios: &Ratios| {
            let figures = [ratios.iops, ratios.mean_latency, ratios.p99_latency, ratios.ops_per_cpu_s];
            let cells = figures.map(|ratio| or_none(ratio.as_ref(), with_interval));
            std::iter::once(ratios.name()).chain(cells).collect()
        };
        Sheet::new(1, &header, self.ratios.iter().map(row).collect())
    }
}

impl Run {
    fn faults(&self) -> impl Iterator<Item = &str> {
        let faults = &self.measured.report.faults;
        let other = faults.is_empty().then_some("a commit or a write-back failed");
        faults.iter().map(String::as_str).chain(other)
    }
}

impl Standing {
    fn of(name: &str, runs: &[Run]) -> Option<Self> {
        let own = || runs.iter().filter(|run| run.contender == name).map(|run| &run.measured);
        let spread = |field: fn(&Report) -> f64| Spread::of(own().map(|run| field(&run.report)));
        let known = |field: fn(&Measured) -> Option<f64>| Spread::of(own().filter_map(field));
        Some(Self {
            contender: name.to_owned(),
            iops: spread(|report| report.iops)?,
            mib_per_s: spread(|report| report.mib_per_s)?,
            mean_us: spread(|report| report.latency.mean_us)?,
            p50_us: spread(|report| report.latency.p50_us)?,
            p99_us: spread(|report| report.latency.p99_us)?,
            ops_per_cpu_s: known(|run| ops_per_cpu_s(&run.report)),
            switches_per_s: known(|run| ratio(run.report.server?.switches() as f64, run.report.seconds)),
            idle_wakeups_per_s: known(|run| Some(run.idle?.wakeups_per_s())),
            requests_a_commit: known(|run| run.volume?.requests_a_commit()),
        })
    }
}

impl Ratios {
    fn of(first: &str, other: &impl Contender, runs: &[Run]) -> Self {
        let values = |name: &str, field: fn(&Report) -> Option<f64>| -> BTreeMap<u32, f64> {
            let own = runs.iter().filter(|run| run.contender == name);
            own.filter_map(|run| Some((run.round, field(&run.measured.report)?))).collect()
        };
        let ratio = |field| {
            let (part, whole) = (values(first, field), values(other.name(), field));
            let median = |values: &BTreeMap<u32, f64>| Spread::of(values.values().copied()).map(|spread| spread.median);
            Ratio::of(median(&part)?, median(&whole)?, Contrast::of_rounds(&part, &whole), Pool::default())
        };
        Self {
            of: first.to_owned(),
            to: other.name().to_owned(),
            iops: ratio(|report| Some(report.iops)),
            mean_latency: ratio(|report| Some(report.latency.mean_us)),
            p99_latency: ratio(|report| Some(report.latency.p99_us)),
            ops_per_cpu_s: ratio(ops_per_cpu_s),
            expected: other.expected(),
        }
    }

    /// Of whom to whom.
    pub(crate) fn name(&self) -> String {
        format!("{} / {}", self.of, self.to)
    }

    /// Whether `iops` are less than was expected; a ratio that is shown as the expected one is not.
    pub(crate) fn is_short(&self) -> bool {
        let shown = self.iops.map(|ratio| (ratio.value * 100.0).round() / 100.0);
        self.expected.zip(shown).is_some_and(|(expected, shown)| shown < expected)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::stats::Latency;
    use guest::usage::Usage;

    /// A contender that is only a name, and what is expected of the first against it.
    #[derive(Debug)]
    pub(crate) struct Named(pub(crate) &'static str, pub(crate) Option<f64>);

    impl Contender for Named {
        fn name(&self) -> &str {
            self.0
        }

        fn expected(&self) -> Option<f64> {
            self.1
        }
    }

    pub(crate) fn run(contender: &str, round: u32, iops: f64, cpu_s: f64) -> Run {
        let report = Report {
            seconds: 1.0,
            ops: iops as u64,
            reads: iops as u64,
            iops,
            latency: Latency { mean_us: 1e6 / iops, p99_us: 2e6 / iops, ..Latency::default() },
            server: Some(Usage { user_s: cpu_s, ..Usage::default() }),
            ..Report::default()
        };
        Run { contender: contender.into(), round, measured: report.into() }
    }

    pub(crate) fn results(runs: Vec<Run>) -> Results {
        Results::of(&[Named("ours", None), Named("peer", Some(2.0))], runs)
    }

    fn six() -> Results {
        results(vec![
            run("ours", 1, 4000.0, 0.5),
            run("peer", 1, 1000.0, 0.5),
            run("peer", 2, 900.0, 0.5),
            run("ours", 2, 2000.0, 0.5),
            run("ours", 3, 3000.0, 0.5),
            run("peer", 3, 2000.0, 0.5),
        ])
    }

    #[test]
    fn everyone_is_first_in_turn() {
        let order = |turn| turns(3, turn).collect::<Vec<usize>>();
        assert_eq!([order(0), order(1), order(5)], [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
        assert_eq!(turns(0, 1).count(), 0);
    }

    #[test]
    fn a_contest_alternates_and_leaves_out_who_gives_nothing() {
        let mut order = Vec::new();
        let contenders = [Named("a", None), Named("b", None), Named("silent", None)];
        let results = hold(&contenders, ("work", 2), &Progress::silent(), |contender| {
            order.push(contender.0);
            Ok((contender.0 != "silent").then(|| run("", 0, 1.0, 1.0).measured))
        });
        let results = results.unwrap();
        assert_eq!(order, ["a", "b", "silent", "b", "silent", "a"]);
        assert_eq!((results.runs.len(), results.medians.len(), results.ratios.len()), (4, 2, 1));
        let failed = hold(&contenders, ("work", 1), &Progress::silent(), |_| anyhow::bail!("no"));
        assert_eq!(format!("{:#}", failed.unwrap_err()), "work a, round 1: no");
    }

    #[test]
    fn ratios_are_those_of_medians_with_the_interval_of_rounds() {
        let results = six();
        let iops = results.medians[0].iops;
        assert_eq!((iops.min, iops.median, iops.max), (2000.0, 3000.0, 4000.0));
        let [ratios] = &results.ratios[..] else { panic!("{results:?}") };
        assert_eq!((ratios.name().as_str(), ratios.is_short()), ("ours / peer", false));
        assert_eq!(ratios.iops.unwrap().value, 3.0);
        assert_eq!(ratios.ops_per_cpu_s.unwrap().value, 3.0);
        let interval = ratios.iops.unwrap().interval.unwrap();
        assert!(interval.low < 1.5 && interval.high > 4.0, "{interval:?}");
        let mean = ratios.mean_latency.unwrap().value;
        assert!((mean - 1.0 / 3.0).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn what_is_shown_decides_whether_a_ratio_is_short() {
        let of = |ours, expected| {
            let contenders = [Named("ours", None), Named("peer", expected)];
            Results::of(&contenders, vec![run("ours", 1, ours, 1.0), run("peer", 1, 1000.0, 1.0)]).ratios[0].is_short()
        };
        assert!(!of(950.0, Some(0.95)) && !of(946.0, Some(0.95)) && of(944.0, Some(0.95)));
        assert!(!of(100.0, None));
    }

    #[test]
    fn the_tables_show_medians_spread_and_ratios() {
        let text = six().render();
        assert!(text.contains("3000 (2000..4000)"), "{text}");
        assert!(text.contains("ours / peer") && text.contains("3.00x"), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }

    #[test]
    fn an_unknown_cpu_time_leaves_a_dash_and_one_contender_no_ratio() {
        let results = Results::of(&[Named("ours", None)], vec![run("ours", 1, 10.0, 0.0)]);
        assert!(results.ratios.is_empty());
        assert_eq!(results.medians[0].ops_per_cpu_s, None);
        assert!(results.render().contains(" -"), "{}", results.render());
    }

    #[test]
    fn faults_are_shown_and_make_a_contest_unclean() {
        let mut bad = run("ours", 1, 10.0, 1.0);
        bad.measured.report.mismatches = 1;
        bad.measured.report.faults.push("offset 0: wrong".into());
        let results = results(vec![bad]);
        assert!(!results.is_clean());
        assert!(results.render().contains("ours, round 1: offset 0: wrong"));
        let volume = Figures { log_errors: 1, ..Figures::default() };
        let measured = Measured { volume: Some(volume), ..run("ours", 1, 1.0, 1.0).measured };
        assert!(Results::alone("ours".into(), measured).faults("disk 8, ").contains("disk 8, ours, round 1: a commit"));
    }

    #[test]
    fn json_holds_every_run_and_the_medians() {
        let json = serde_json::to_value(six()).unwrap();
        assert_eq!(json["runs"].as_array().unwrap().len(), 6);
        assert_eq!(json["runs"][1]["contender"], "peer");
        assert_eq!(json["runs"][1]["iops"], 1000.0);
        assert_eq!(json["medians"][0]["iops"]["median"], 3000.0);
        assert_eq!(json["ratios"][0]["iops"]["value"], 3.0);
    }
}
