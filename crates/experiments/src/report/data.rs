//! A report as data: one JSON document, and two tables of comma-separated values.
//!
//! The form is described in `docs/formats/bench-results.md`. The tables are the document's values, put into rows: what a column
//! holds is a place in the JSON of a sample or a pair.

use std::io::Write;

use bench::stats::Spread;
use displaydoc::Display;
use serde::Serialize;
use serde_json::{Value, json};
use thiserror::Error;

use super::Report;
use super::summary::{Cell, Summary};
use crate::record::{Environment, Sample};

/// Version of the form of `results.json`.
pub const SCHEMA: u32 = 1;

/// Why data could not be written.
#[derive(Debug, Display, Error)]
pub enum DataError {
    /// cannot write the results as JSON
    Json(#[from] serde_json::Error),
    /// cannot write the results as CSV
    Csv(#[from] csv::Error),
    /// cannot write the results
    Write(#[from] std::io::Error),
}

#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    experiments: Vec<Full<'a>>,
}

#[derive(Serialize)]
struct Full<'a> {
    #[serde(flatten)]
    entry: Entry<'a>,
    samples: &'a [Sample],
}

/// An experiment without its samples.
#[derive(Serialize)]
pub(super) struct Entry<'a> {
    name: &'a str,
    quick: bool,
    environment: &'a Environment,
    reading: &'a [String],
    summary: &'a Summary,
}

impl<'a> Entry<'a> {
    pub(super) fn of(report: &'a Report) -> Self {
        Self {
            name: &report.summary.experiment().name,
            quick: report.summary.is_quick(),
            environment: &report.run.header.environment,
            reading: &report.reading,
            summary: &report.summary,
        }
    }
}

/// Writes `results.json`: everything that the reports hold.
///
/// # Errors
/// `to` cannot be written.
pub fn json(reports: &[Report], mut to: impl Write) -> Result<(), DataError> {
    let experiments = reports.iter().map(|report| Full { entry: Entry::of(report), samples: &report.run.samples });
    serde_json::to_writer_pretty(&mut to, &Document { schema: SCHEMA, experiments: experiments.collect() })?;
    Ok(writeln!(to)?)
}

/// A column: its name, and where in a row's JSON its value stands.
type Column = (&'static str, &'static str);

/// The columns of `results.csv`.
const OF_SAMPLES: [Column; 20] = [
    ("experiment", "/experiment"),
    ("quick", "/quick"),
    ("begun", "/begun"),
    ("round", "/sample/round"),
    ("workload", "/sample/workload"),
    ("configuration", "/sample/configuration"),
    ("outcome", "/sample/outcome"),
    ("reason", "/sample/reason"),
    ("seconds", "/sample/seconds"),
    ("requests", "/sample/requests"),
    ("iops", "/sample/iops"),
    ("kib_per_s", "/sample/kib_per_s"),
    ("mean_us", "/sample/latency/mean_us"),
    ("p50_us", "/sample/latency/p50_us"),
    ("p90_us", "/sample/latency/p90_us"),
    ("p99_us", "/sample/latency/p99_us"),
    ("p999_us", "/sample/latency/p999_us"),
    ("max_us", "/sample/latency/max_us"),
    ("server_cpu_s", "/sample/server_cpu_s"),
    ("guest_cpu_s", "/sample/guest_cpu_s"),
];

/// The columns of `summary.csv`.
const OF_PAIRS: [Column; 41] = [
    ("experiment", "/experiment"),
    ("quick", "/quick"),
    ("workload", "/cell/workload"),
    ("configuration", "/cell/configuration"),
    ("state", "/cell/state/state"),
    ("reason", "/cell/state/reason"),
    ("rounds", "/rounds"),
    ("failures", "/failures"),
    ("kib_per_s", "/cell/figures/kib_per_s/median"),
    ("kib_per_s_min", "/cell/figures/kib_per_s/min"),
    ("kib_per_s_max", "/cell/figures/kib_per_s/max"),
    ("iops", "/cell/figures/iops/median"),
    ("iops_min", "/cell/figures/iops/min"),
    ("iops_max", "/cell/figures/iops/max"),
    ("spread", "/spread"),
    ("uncertainty", "/uncertainty"),
    ("mean_us", "/cell/figures/latency/mean_us/median"),
    ("p50_us", "/cell/figures/latency/p50_us/median"),
    ("p90_us", "/cell/figures/latency/p90_us/median"),
    ("p99_us", "/cell/figures/latency/p99_us/median"),
    ("p999_us", "/cell/figures/latency/p999_us/median"),
    ("max_us", "/cell/figures/latency/max_us/median"),
    ("server_cpu_s", "/cell/figures/server_cpu_s/median"),
    ("guest_cpu_s", "/cell/figures/guest_cpu_s/median"),
    ("requests_per_server_cpu_s", "/cell/figures/requests_per_server_cpu_s/median"),
    ("requests_per_cpu_s", "/cell/figures/requests_per_cpu_s/median"),
    ("measure", "/measure"),
    ("baseline", "/baseline"),
    ("ratio", "/cell/ratio/value"),
    ("ratio_low", "/cell/ratio/interval/low"),
    ("ratio_high", "/cell/ratio/interval/high"),
    ("hidden", "/cell/ratio/hidden"),
    ("published", "/cell/published/figure/value"),
    ("published_unit", "/published_unit"),
    ("published_configuration", "/cell/published/figure/their_configuration"),
    ("published_baseline", "/published_baseline"),
    ("published_ratio", "/cell/published/theirs"),
    ("ratio_here", "/cell/published/ours/value"),
    ("ratio_here_low", "/cell/published/ours/interval/low"),
    ("ratio_here_high", "/cell/published/ours/interval/high"),
    ("agreement", "/cell/published/agreement"),
];

/// Writes `results.csv`: one row a sample.
///
/// # Errors
/// `to` cannot be written.
pub fn samples_csv(reports: &[Report], to: impl Write) -> Result<(), DataError> {
    let row = |report: &Report, sample: &Sample| {
        let header = &report.run.header;
        json!({ "experiment": header.experiment.name, "quick": header.quick, "begun": header.begun, "sample": sample })
    };
    let rows = reports.iter().flat_map(|report| report.run.samples.iter().map(move |sample| row(report, sample)));
    csv(&OF_SAMPLES, rows, to)
}

/// Writes `summary.csv`: one row a pair of configuration and workload.
///
/// # Errors
/// `to` cannot be written.
pub fn summary_csv(reports: &[Report], to: impl Write) -> Result<(), DataError> {
    let summaries = reports.iter().map(|report| &report.summary);
    csv(&OF_PAIRS, summaries.flat_map(|summary| summary.cells.iter().map(move |cell| pair(summary, cell))), to)
}

fn pair(summary: &Summary, cell: &Cell) -> Value {
    let experiment = summary.experiment();
    let compared = cell.figures.as_ref().map(|figures| summary.measure.of_figures(figures));
    let published = experiment.published.as_ref().filter(|_| cell.published.is_some());
    let configuration = experiment.configurations.iter().find(|it| it.name == cell.configuration);
    let published_baseline = configuration.and_then(|it| experiment.published_baseline_of(it));
    json!({
        "experiment": experiment.name,
        "quick": summary.is_quick(),
        "cell": cell,
        "rounds": compared.map_or(0, |spread| spread.rounds),
        "failures": cell.failures.len(),
        "spread": compared.and_then(Spread::relative),
        "uncertainty": compared.and_then(|spread| spread.uncertainty),
        "measure": summary.measure.unit(),
        "baseline": summary.standing(&cell.configuration).map(|standing| &standing.baseline),
        "published_unit": published.map(|published| &published.unit),
        "published_baseline": published.and(published_baseline),
    })
}

fn csv(columns: &[Column], rows: impl Iterator<Item = Value>, to: impl Write) -> Result<(), DataError> {
    let mut writer = csv::Writer::from_writer(to);
    writer.write_record(columns.iter().map(|(name, _)| name))?;
    for row in rows {
        writer.write_record(columns.iter().map(|(_, place)| match row.pointer(place) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }))?;
    }
    Ok(writer.flush()?)
}
