//! Contenders on the same work, one after the other, round after round.
//!
//! Figures of a shared machine wander; what stays is the ratio of runs that alternate.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::fio;
use crate::frontend::{Report, Spec};
use crate::idle::{Idle, idle_settled};
use crate::progress::Progress;
use crate::report::{count, ops_per_cpu_s, table, time_us, times};
use crate::server::{Server, Template};
use crate::stats::{Spread, ratio};

/// Who runs.
#[derive(Debug)]
pub(crate) enum Kind {
    /// A vhost-user-blk server, driven by our frontend.
    Server(Template),
    /// fio on the image itself.
    Fio(fio::Options),
}

/// Who runs, under which name.
#[derive(Debug)]
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

/// The conditions of a contest.
#[derive(Debug)]
pub(crate) struct Rules<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) rounds: u32,
    pub(crate) image: Option<&'a Path>,
    pub(crate) server_cpus: &'a [usize],
    pub(crate) idle: Option<Duration>,
}

/// One run of one contender.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Run {
    pub(crate) contender: String,
    pub(crate) round: u32,
    #[serde(flatten)]
    pub(crate) report: Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idle: Option<Idle>,
}

/// The figures that are compared.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Standing {
    pub(crate) contender: String,
    pub(crate) iops: Spread,
    pub(crate) mean_us: Spread,
    pub(crate) p50_us: Spread,
    pub(crate) p99_us: Spread,
    pub(crate) ops_per_cpu_s: Option<Spread>,
    pub(crate) switches_per_s: Option<Spread>,
    pub(crate) idle_wakeups_per_s: Option<Spread>,
}

/// Medians of the first contender divided by another's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Ratios {
    pub(crate) of: String,
    pub(crate) to: String,
    pub(crate) iops: Option<f64>,
    pub(crate) mean_latency: Option<f64>,
    pub(crate) p99_latency: Option<f64>,
    pub(crate) ops_per_cpu_s: Option<f64>,
}

/// How a contest ended.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Results {
    pub(crate) medians: Vec<Standing>,
    pub(crate) ratios: Vec<Ratios>,
    pub(crate) runs: Vec<Run>,
}

/// Runs everyone `rounds` times, alternating.
pub(crate) fn hold(contenders: &[Contender], rules: &Rules<'_>, progress: &Progress) -> Result<Results> {
    let dir = tempfile::Builder::new().prefix("bench-").tempdir().context("cannot make a directory for sockets")?;
    let socket = dir.path().join("disk.sock");
    let mut runs = Vec::new();
    for round in 1..=rules.rounds {
        for contender in contenders {
            let run = run_once(contender, round, rules, &socket, progress)
                .with_context(|| format!("{}, round {round}", contender.name))?;
            progress.end(&run_line(&run, rules.rounds));
            runs.push(run);
        }
    }
    Ok(Results::of(contenders.iter().map(|contender| contender.name.as_str()), runs))
}

fn run_once(contender: &Contender, round: u32, rules: &Rules<'_>, socket: &Path, progress: &Progress) -> Result<Run> {
    let length = rules.spec.time.map(|time| time + rules.spec.ramp);
    progress.begin(&contender.name, length);
    let (report, idle) = match &contender.kind {
        Kind::Server(template) => run_server(template, rules, socket, progress)?,
        Kind::Fio(options) => {
            let image = rules.image.context("--host-fio needs --image or --make-image")?;
            (fio::run(rules.spec, image, options)?, None)
        }
    };
    Ok(Run { contender: contender.name.clone(), round, report, idle })
}

fn run_server(
    template: &Template,
    rules: &Rules<'_>,
    socket: &Path,
    progress: &Progress,
) -> Result<(Report, Option<Idle>)> {
    let words = template.expand(socket, rules.image);
    let mut server = Server::start(&words, socket, rules.server_cpus)?;
    let load = server.load(rules.spec)?;
    load.wait(|load| progress.look(load.elapsed(), || count(load.rate_so_far())));
    let (report, connection) = load.finish_connected().map_err(|error| server.blame(error))?;
    let idle = match rules.idle {
        Some(time) => Some(idle_settled(server.pid(), time).map_err(|error| server.blame(error))?),
        None => None,
    };
    drop(connection);
    server.stop()?;
    Ok((report, idle))
}

pub(crate) fn run_line(run: &Run, rounds: u32) -> String {
    let report = &run.report;
    let mut line = format!(
        "{}/{rounds} {:20} {:>8} IOPS, mean {}, p99 {}",
        run.round,
        run.contender,
        count(report.iops),
        time_us(report.latency.mean_us),
        time_us(report.latency.p99_us)
    );
    if let Some(per_cpu_s) = ops_per_cpu_s(report) {
        line += &format!(", {} requests a CPU second", count(per_cpu_s));
    }
    if !report.is_clean() {
        line += &format!(", {} ERRORS, {} MISMATCHES", report.errors, report.mismatches);
    }
    line
}

impl Results {
    /// Sums up `runs`; ratios are those of the first of `names` to each other one.
    pub(crate) fn of<'a>(names: impl Iterator<Item = &'a str>, runs: Vec<Run>) -> Self {
        let medians: Vec<Standing> = names.filter_map(|name| Standing::of(name, &runs)).collect();
        let ratios = match medians.split_first() {
            Some((first, others)) => others.iter().map(|other| Ratios::of(first, other)).collect(),
            None => Vec::new(),
        };
        Self { medians, ratios, runs }
    }

    /// Whether every request of every run succeeded.
    pub(crate) fn is_clean(&self) -> bool {
        self.runs.iter().all(|run| run.report.is_clean())
    }

    /// The tables.
    pub(crate) fn render(&self) -> String {
        let mut text = self.medians_table().to_string();
        if !self.ratios.is_empty() {
            text += &format!("\n\n{}", self.ratios_table());
        }
        let faults = self.runs.iter().flat_map(|run| run.report.faults.iter().map(move |fault| (run, fault)));
        for (run, fault) in faults {
            text += &format!("\n{}, round {}: {fault}", run.contender, run.round);
        }
        trim_lines(&text)
    }

    fn medians_table(&self) -> comfy_table::Table {
        let with_idle = self.medians.iter().any(|standing| standing.idle_wakeups_per_s.is_some());
        let mut header = vec!["median (min..max)", "IOPS", "mean", "p50", "p99", "requests/CPU s", "switches/s"];
        header.extend(with_idle.then_some("idle wake-ups/s"));
        let mut table = table(&header);
        let optional = |spread: &Option<Spread>| spread.as_ref().map_or_else(|| "-".into(), |s| with_range(s, count));
        for standing in &self.medians {
            let mut row = vec![
                standing.contender.clone(),
                with_range(&standing.iops, count),
                with_range(&standing.mean_us, time_us),
                time_us(standing.p50_us.median),
                with_range(&standing.p99_us, time_us),
                optional(&standing.ops_per_cpu_s),
                standing.switches_per_s.as_ref().map_or_else(|| "-".into(), |spread| count(spread.median)),
            ];
            row.extend(with_idle.then(|| optional(&standing.idle_wakeups_per_s)));
            table.add_row(row);
        }
        table
    }

    fn ratios_table(&self) -> comfy_table::Table {
        let mut table = table(&["ratio of medians", "IOPS", "mean latency", "p99 latency", "requests/CPU s"]);
        for ratios in &self.ratios {
            table.add_row([
                format!("{} / {}", ratios.of, ratios.to),
                times(ratios.iops),
                times(ratios.mean_latency),
                times(ratios.p99_latency),
                times(ratios.ops_per_cpu_s),
            ]);
        }
        table
    }
}

impl Standing {
    fn of(name: &str, runs: &[Run]) -> Option<Self> {
        let own = || runs.iter().filter(|run| run.contender == name);
        let spread = |field: fn(&Report) -> f64| Spread::of(own().map(|run| field(&run.report)));
        Some(Self {
            contender: name.to_owned(),
            iops: spread(|report| report.iops)?,
            mean_us: spread(|report| report.latency.mean_us)?,
            p50_us: spread(|report| report.latency.p50_us)?,
            p99_us: spread(|report| report.latency.p99_us)?,
            ops_per_cpu_s: Spread::of(own().filter_map(|run| ops_per_cpu_s(&run.report))),
            switches_per_s: Spread::of(own().filter_map(|run| switches_per_s(&run.report))),
            idle_wakeups_per_s: Spread::of(own().filter_map(|run| run.idle.map(|idle| idle.wakeups_per_s()))),
        })
    }
}

impl Ratios {
    fn of(first: &Standing, other: &Standing) -> Self {
        let medians = |a: &Spread, b: &Spread| ratio(a.median, b.median);
        Self {
            of: first.contender.clone(),
            to: other.contender.clone(),
            iops: medians(&first.iops, &other.iops),
            mean_latency: medians(&first.mean_us, &other.mean_us),
            p99_latency: medians(&first.p99_us, &other.p99_us),
            ops_per_cpu_s: first.ops_per_cpu_s.zip(other.ops_per_cpu_s).and_then(|(a, b)| medians(&a, &b)),
        }
    }
}

fn switches_per_s(report: &Report) -> Option<f64> {
    ratio(report.server?.switches() as f64, report.seconds)
}

pub(crate) fn with_range(spread: &Spread, show: fn(f64) -> String) -> String {
    format!("{} ({}..{})", show(spread.median), show(spread.min), show(spread.max))
}

/// Tables pad their last column; nobody needs that.
pub(crate) fn trim_lines(text: &str) -> String {
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::stats::Latency;
    use guest::usage::Usage;

    pub(crate) fn run(contender: &str, round: u32, iops: f64, cpu_s: f64) -> Run {
        let report = Report {
            seconds: 1.0,
            ops: iops as u64,
            reads: iops as u64,
            writes: 0,
            flushes: 0,
            bytes: 0,
            iops,
            mib_per_s: 0.0,
            latency: Latency { mean_us: 1e6 / iops, p99_us: 2e6 / iops, ..Latency::default() },
            flush_latency: Latency::default(),
            errors: 0,
            mismatches: 0,
            faults: Vec::new(),
            gap_us_max: Vec::new(),
            server: Some(Usage { user_s: cpu_s, ..Usage::default() }),
            load_cpu_s: 0.0,
        };
        Run { contender: contender.into(), round, report, idle: None }
    }

    fn results() -> Results {
        let runs = vec![
            run("ours", 1, 4000.0, 0.5),
            run("peer", 1, 1000.0, 0.5),
            run("ours", 2, 2000.0, 0.5),
            run("peer", 2, 900.0, 0.5),
            run("ours", 3, 3000.0, 0.5),
            run("peer", 3, 2000.0, 0.5),
        ];
        Results::of(["ours", "peer"].into_iter(), runs)
    }

    #[test]
    fn ratios_are_those_of_medians_ours_over_theirs() {
        let results = results();
        assert_eq!(results.medians[0].iops, Spread { min: 2000.0, median: 3000.0, max: 4000.0 });
        let ratios = &results.ratios[..];
        assert_eq!(ratios.len(), 1);
        assert_eq!((ratios[0].of.as_str(), ratios[0].to.as_str()), ("ours", "peer"));
        assert_eq!(ratios[0].iops, Some(3.0));
        assert_eq!(ratios[0].ops_per_cpu_s, Some(3.0));
        let mean = ratios[0].mean_latency.unwrap();
        assert!((mean - 1.0 / 3.0).abs() < 1e-9, "{mean}");
    }

    #[test]
    fn the_tables_show_medians_spread_and_ratios() {
        let text = results().render();
        assert!(text.contains("3000 (2000..4000)"), "{text}");
        assert!(text.contains("ours / peer") && text.contains("3.00x"), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    }

    #[test]
    fn an_unknown_cpu_time_leaves_a_dash_and_one_contender_no_ratio() {
        let results = Results::of(std::iter::once("ours"), vec![run("ours", 1, 10.0, 0.0)]);
        assert!(results.ratios.is_empty());
        assert_eq!(results.medians[0].ops_per_cpu_s, None);
        assert!(results.render().contains(" -"), "{}", results.render());
    }

    #[test]
    fn faults_are_shown_and_make_a_contest_unclean() {
        let mut bad = run("ours", 1, 10.0, 1.0);
        bad.report.mismatches = 1;
        bad.report.faults.push("offset 0: wrong".into());
        let results = Results::of(std::iter::once("ours"), vec![bad]);
        assert!(!results.is_clean());
        assert!(results.render().contains("ours, round 1: offset 0: wrong"));
    }

    #[test]
    fn json_holds_every_run_and_the_medians() {
        let json = serde_json::to_value(results()).unwrap();
        assert_eq!(json["runs"].as_array().unwrap().len(), 6);
        assert_eq!(json["runs"][1]["contender"], "peer");
        assert_eq!(json["runs"][1]["iops"], 1000.0);
        assert_eq!(json["medians"][0]["iops"]["median"], 3000.0);
        assert_eq!(json["ratios"][0]["iops"], 3.0);
    }
}
