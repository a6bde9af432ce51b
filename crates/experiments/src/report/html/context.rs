//! One experiment as its charts ask for it: cells to values, configurations to colours, reasons to notes.

use std::collections::BTreeSet;

use crate::experiment::{Configuration, Experiment, Workload};
use crate::report::curves::Curves;
use crate::report::summary::{Cell, CellFigures, Measure, State, Summary};
use crate::stats::{Ratio, Spread};

use super::chart::{Absent, Measured, Value};
use super::facet::{Facet, Group, facets, groups};
use super::notes::Notes;
use super::number;
use super::paint::Paint;

/// What the parts of an experiment's section share.
pub(super) struct Context<'a> {
    pub(super) summary: &'a Summary,
    /// Identifier of its element in the page.
    pub(super) id: String,
    pub(super) paint: Paint,
    pub(super) curves: Option<Curves>,
    pub(super) groups: Vec<Group<'a>>,
    pub(super) facets: Vec<Facet<'a>>,
    pub(super) notes: Notes,
    /// Names of the configurations that have a figure.
    measured: BTreeSet<&'a str>,
}

impl<'a> Context<'a> {
    pub(super) fn new(summary: &'a Summary, id: String) -> Self {
        let experiment = summary.experiment();
        let curves = Curves::of(experiment);
        let groups = groups(experiment);
        let measured = summary.cells.iter().filter(|cell| cell.figures.is_some());
        Self {
            summary,
            id,
            paint: Paint::of(experiment, curves.as_ref(), &groups),
            curves,
            groups,
            facets: facets(experiment),
            notes: Notes::of(summary),
            measured: measured.map(|cell| cell.configuration.as_str()).collect(),
        }
    }

    pub(super) fn experiment(&self) -> &'a Experiment {
        self.summary.experiment()
    }

    /// The class that gives a configuration its colour.
    pub(super) fn class(&self, configuration: &str) -> String {
        format!("c{}", self.paint.ink_of(self.experiment(), configuration))
    }

    /// The configurations of a table that have a figure under any workload, with their names within it.
    pub(super) fn shown<'s>(&self, group: &'s Group<'a>) -> impl Iterator<Item = (&'a Configuration, &'s str)> {
        let named = group.configurations.iter().copied().zip(group.short.iter().map(String::as_str));
        named.filter(|(configuration, _)| self.has_figures(&configuration.name))
    }

    /// Whether a configuration, by name, was measured under any workload.
    pub(super) fn has_figures(&self, configuration: &str) -> bool {
        self.measured.contains(configuration)
    }

    pub(super) fn cell(&self, configuration: &Configuration, workload: &Workload) -> Option<&'a Cell> {
        self.summary.cell(&configuration.name, &workload.name)
    }

    /// A cell's quantity as charts draw it, in units of `factor`.
    pub(super) fn value(
        &self,
        cell: Option<&Cell>,
        quantity: impl Fn(&CellFigures) -> Option<Spread>,
        factor: f64,
    ) -> Value {
        let notes = cell.map(|cell| self.notes.numbers(cell)).unwrap_or_default();
        let spread = cell.and_then(|cell| cell.figures.as_ref()).map(quantity);
        match (spread, cell.map(|cell| &cell.state)) {
            (Some(Some(spread)), _) => Value::Measured(Measured {
                median: spread.median / factor,
                low: spread.min / factor,
                high: spread.max / factor,
                notes,
            }),
            (Some(None), _) => {
                // Measured, but without this quantity: no processor time could be told apart, for example.
                Value::Absent(Absent { word: "unknown", notes: Vec::new() })
            }
            (None, Some(State::Failed { .. })) => Value::Absent(Absent { word: "failed", notes }),
            (None, Some(State::Unsupported { .. })) => Value::Absent(Absent { word: "unsupported", notes }),
            (None, _) => Value::Absent(Absent { word: "not run", notes }),
        }
    }

    /// All that can be said of a cell, in lines.
    pub(super) fn hover(&self, configuration: &str, workload: &str) -> String {
        let mut lines = vec![format!("{configuration}, {workload}")];
        let Some(cell) = self.summary.cell(configuration, workload) else { return lines.remove(0) };
        if let Some(reason) = cell.reason() {
            lines.push(reason.to_owned());
        }
        if let Some(figures) = &cell.figures {
            lines.push(format!("{} ({})", number::bandwidth(figures.kib_per_s.median), spread(&figures.kib_per_s)));
            lines.push(format!("{} IOPS", number::figure(figures.iops.median)));
            let latency = &figures.latency;
            lines.push(format!(
                "latency {} median, {} p99",
                number::time_us(latency.p50_us.median),
                number::time_us(latency.p99_us.median)
            ));
        }
        if let Some(ratio) = &cell.ratio {
            lines.push(format!("{} the baseline", self::ratio(ratio)));
        }
        if cell.figures.is_some() && !cell.failures.is_empty() {
            lines.push(format!("{} rounds failed", cell.failures.len()));
        }
        lines.join("\n")
    }
}

/// Unit and factor in which charts show a measure.
pub(super) fn unit(measure: Measure) -> (&'static str, f64) {
    match measure {
        Measure::Bandwidth => ("MiB/s", 1024.0),
        Measure::Iops => ("IOPS", 1.0),
    }
}

/// What charts and tables call a measure.
pub(super) fn name(measure: Measure) -> &'static str {
    match measure {
        Measure::Bandwidth => "Bandwidth",
        Measure::Iops => "Requests a second",
    }
}

/// How far the rounds lay apart, and how many there were.
pub(super) fn spread(spread: &Spread) -> String {
    match spread.relative() {
        Some(relative) => format!("spread {} of {} rounds", number::percent(relative), spread.rounds),
        None if spread.rounds == 1 => "one round".to_owned(),
        None => format!("{} rounds", spread.rounds),
    }
}

/// A ratio with its interval.
pub(super) fn ratio(ratio: &Ratio) -> String {
    let value = number::ratio(ratio.value);
    match ratio.interval {
        Some(interval) => format!("{value} [{} – {}]", number::ratio(interval.low), number::ratio(interval.high)),
        None => value,
    }
}
