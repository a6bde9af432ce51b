//! How an experiment is laid out: what is shown together, in which colour, under which name, with which notes.

use std::collections::BTreeSet;

use serde::Serialize;

use super::facet::{self, Group, Part};
use super::head;
use super::ink::{self, Ink};
use super::notes::{self, Told};
use crate::experiment::Workload;
use crate::report::curves::Curves;
use crate::report::notes::Notes;
use crate::report::summary::{Cell, Measure, Summary};
use crate::report::words;
use bench::stats::Spread;

/// What the page's script needs besides the summary.
#[derive(Serialize)]
pub(super) struct Plan<'a> {
    /// How the experiment was run, in a sentence.
    method: String,
    measure: Shown,
    groups: Vec<Group<'a>>,
    facets: Vec<Facet<'a>>,
    /// Workloads that stand for all.
    chosen: Vec<&'a str>,
    curves: Option<CurvePlan>,
    /// The colour of each configuration, in their order.
    inks: Vec<Ink>,
    /// What is said of each cell, in their order.
    cells: Vec<CellWords>,
    notes: Vec<Told>,
    /// Configurations that have no figure under any workload.
    without: Vec<&'a str>,
    /// What ratios beside published ones are to.
    published_baselines: Vec<&'a str>,
}

/// The compared quantity as charts show it.
#[derive(Serialize)]
struct Shown {
    name: &'static str,
    unit: &'static str,
    /// Its field in a cell's figures.
    field: &'static str,
    /// The unit in terms of the field's.
    factor: f64,
}

#[derive(Serialize)]
struct Facet<'a> {
    title: String,
    workloads: Vec<&'a str>,
}

/// [`Curves`] in the panels in which they are drawn.
#[derive(Serialize)]
struct CurvePlan {
    axis: String,
    values: Vec<String>,
    parts: Vec<Part>,
    others: Vec<String>,
}

#[derive(Serialize)]
struct CellWords {
    /// Numbers of its notes, from 1.
    notes: Vec<usize>,
    /// All that can be said of it, in lines.
    hover: String,
}

impl<'a> Plan<'a> {
    pub(super) fn of(summary: &'a Summary) -> Self {
        let experiment = summary.experiment();
        let groups = facet::groups(experiment);
        let facets = facet::facets(experiment);
        let curves = Curves::of(experiment).map(|curves| CurvePlan {
            parts: facet::parts(experiment, &curves),
            axis: curves.axis,
            values: curves.values,
            others: curves.others,
        });
        let notes = Notes::of(summary, notes::reasons);
        let measured: BTreeSet<&str> = summary
            .cells
            .iter()
            .filter(|cell| cell.figures.is_some())
            .map(|cell| cell.configuration.as_str())
            .collect();
        let names = experiment.configurations.iter().map(|configuration| configuration.name.as_str());
        Self {
            method: head::method(&summary.header, summary.rounds),
            measure: Shown::of(summary.measure),
            chosen: names_of(&facet::chosen(&facets)),
            inks: ink::of(experiment, curves.as_ref().map_or(&[], |curves| &curves.parts), &groups),
            groups,
            facets: facets
                .iter()
                .map(|it| Facet { title: it.title.clone(), workloads: names_of(&it.workloads) })
                .collect(),
            curves,
            cells: summary
                .cells
                .iter()
                .map(|cell| CellWords { notes: notes.numbers(cell).to_vec(), hover: hover(cell) })
                .collect(),
            notes: notes::told(&notes, experiment.workloads.len()),
            without: names.filter(|name| !measured.contains(name)).collect(),
            published_baselines: published_baselines(summary),
        }
    }
}

fn names_of<'a>(workloads: &[&'a Workload]) -> Vec<&'a str> {
    workloads.iter().map(|workload| workload.name.as_str()).collect()
}

fn published_baselines(summary: &Summary) -> Vec<&str> {
    let experiment = summary.experiment();
    let mut baselines: Vec<&str> = Vec::new();
    for configuration in &experiment.configurations {
        let is_compared = |cell: &Cell| cell.configuration == configuration.name && cell.published.is_some();
        let compared = summary.cells.iter().any(is_compared);
        let baseline = experiment.published_baseline_of(configuration).filter(|_| compared);
        baselines.extend(baseline.filter(|baseline| !baselines.contains(baseline)));
    }
    baselines
}

impl Shown {
    fn of(measure: Measure) -> Self {
        match measure {
            Measure::Bandwidth => Self { name: "Bandwidth", unit: "MiB/s", field: "kib_per_s", factor: 1024.0 },
            Measure::Iops => Self { name: "Requests a second", unit: "IOPS", field: "iops", factor: 1.0 },
        }
    }
}

/// All that can be said of a cell, in lines.
fn hover(cell: &Cell) -> String {
    let mut lines = vec![format!("{}, {}", cell.configuration, cell.workload)];
    lines.extend(cell.reason().map(str::to_owned));
    if let Some(figures) = &cell.figures {
        let latency = &figures.latency;
        lines.push(format!("{} ({})", words::bandwidth(figures.kib_per_s.median), spread(&figures.kib_per_s)));
        lines.push(format!("{} IOPS", words::count(figures.iops.median)));
        let [median, p99] = [&latency.p50_us, &latency.p99_us].map(|spread| words::time_us(spread.median));
        lines.push(format!("latency {median} median, {p99} p99"));
    }
    lines.extend(cell.ratio.as_ref().map(|ratio| format!("{} the baseline", words::with_interval(ratio))));
    if cell.figures.is_some() && !cell.failures.is_empty() {
        lines.push(format!("{} failed", words::plural(cell.failures.len(), "round")));
    }
    lines.join("\n")
}

/// How far the rounds lay apart, and how many there were.
fn spread(spread: &Spread) -> String {
    let rounds = words::plural(spread.rounds as usize, "round");
    spread.relative().map_or_else(|| rounds.clone(), |part| format!("spread {:.0}% of {rounds}", part * 100.0))
}
