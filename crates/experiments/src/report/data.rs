//! A report as data: one JSON document, and two tables of comma-separated values.
//!
//! The form is described in `docs/formats/bench-results.md`.

use std::io::Write;

use displaydoc::Display;
use serde::Serialize;
use thiserror::Error;

use super::Report;
use super::summary::{Agreement, Cell, Measure, State, Summary};
use crate::record::{Environment, Figures, Outcome, Sample};
use bench::stats::{Ratio, Spread};

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

/// A row of `results.csv`.
#[derive(Clone, Copy, Default, Serialize)]
struct SampleRow<'a> {
    experiment: &'a str,
    quick: bool,
    begun: &'a str,
    round: u32,
    workload: &'a str,
    configuration: &'a str,
    outcome: &'a str,
    reason: &'a str,
    seconds: Option<f64>,
    requests: Option<u64>,
    iops: Option<f64>,
    kib_per_s: Option<f64>,
    mean_us: Option<f64>,
    p50_us: Option<f64>,
    p90_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    max_us: Option<f64>,
    server_cpu_s: Option<f64>,
    guest_cpu_s: Option<f64>,
}

/// Writes `results.csv`: one row a sample.
///
/// # Errors
/// `to` cannot be written.
pub fn samples_csv(reports: &[Report], to: impl Write) -> Result<(), DataError> {
    let mut writer = csv::Writer::from_writer(to);
    for report in reports {
        for sample in &report.run.samples {
            writer.serialize(sample_row(report, sample))?;
        }
    }
    Ok(writer.flush()?)
}

fn sample_row<'a>(report: &'a Report, sample: &'a Sample) -> SampleRow<'a> {
    let header = &report.run.header;
    let row = SampleRow {
        experiment: &header.experiment.name,
        quick: header.quick,
        begun: &header.begun,
        round: sample.round,
        workload: &sample.workload,
        configuration: &sample.configuration,
        ..SampleRow::default()
    };
    match &sample.outcome {
        Outcome::Measured(figures) => measured_row(row, figures),
        Outcome::Failed { reason } => SampleRow { outcome: "failed", reason, ..row },
        Outcome::Unsupported { reason } => SampleRow { outcome: "unsupported", reason, ..row },
    }
}

fn measured_row<'a>(row: SampleRow<'a>, figures: &Figures) -> SampleRow<'a> {
    SampleRow {
        outcome: "measured",
        seconds: Some(figures.seconds),
        requests: Some(figures.requests),
        iops: Some(figures.iops),
        kib_per_s: Some(figures.kib_per_s),
        mean_us: Some(figures.latency.mean_us),
        p50_us: Some(figures.latency.p50_us),
        p90_us: Some(figures.latency.p90_us),
        p99_us: Some(figures.latency.p99_us),
        p999_us: Some(figures.latency.p999_us),
        max_us: Some(figures.latency.max_us),
        server_cpu_s: figures.server_cpu_s,
        guest_cpu_s: figures.guest_cpu_s,
        ..row
    }
}

/// A row of `summary.csv`.
#[derive(Clone, Copy, Default, Serialize)]
struct CellRow<'a> {
    experiment: &'a str,
    quick: bool,
    workload: &'a str,
    configuration: &'a str,
    state: &'a str,
    reason: &'a str,
    rounds: u32,
    failures: usize,
    kib_per_s: Option<f64>,
    kib_per_s_min: Option<f64>,
    kib_per_s_max: Option<f64>,
    iops: Option<f64>,
    iops_min: Option<f64>,
    iops_max: Option<f64>,
    spread: Option<f64>,
    uncertainty: Option<f64>,
    mean_us: Option<f64>,
    p50_us: Option<f64>,
    p90_us: Option<f64>,
    p99_us: Option<f64>,
    p999_us: Option<f64>,
    max_us: Option<f64>,
    server_cpu_s: Option<f64>,
    guest_cpu_s: Option<f64>,
    requests_per_server_cpu_s: Option<f64>,
    requests_per_cpu_s: Option<f64>,
    measure: &'a str,
    baseline: &'a str,
    ratio: Option<f64>,
    ratio_low: Option<f64>,
    ratio_high: Option<f64>,
    hidden: Option<bool>,
    published: Option<f64>,
    published_unit: &'a str,
    published_configuration: &'a str,
    published_baseline: &'a str,
    published_ratio: Option<f64>,
    ratio_here: Option<f64>,
    ratio_here_low: Option<f64>,
    ratio_here_high: Option<f64>,
    agreement: &'a str,
}

/// Writes `summary.csv`: one row a pair of configuration and workload.
///
/// # Errors
/// `to` cannot be written.
pub fn summary_csv(reports: &[Report], to: impl Write) -> Result<(), DataError> {
    let mut writer = csv::Writer::from_writer(to);
    for report in reports {
        for cell in &report.summary.cells {
            let row = cell_row(&report.summary, cell);
            writer.serialize(with_published(with_figures(row, cell, report.summary.measure), &report.summary, cell))?;
        }
    }
    Ok(writer.flush()?)
}

fn cell_row<'a>(summary: &'a Summary, cell: &'a Cell) -> CellRow<'a> {
    CellRow {
        experiment: &summary.experiment().name,
        quick: summary.is_quick(),
        workload: &cell.workload,
        configuration: &cell.configuration,
        state: match &cell.state {
            State::Measured => "measured",
            State::Failed { .. } => "failed",
            State::Unsupported { .. } => "unsupported",
            State::Missing => "missing",
        },
        reason: cell.reason().unwrap_or_default(),
        failures: cell.failures.len(),
        measure: summary.measure.unit(),
        baseline: baseline_of(summary, cell),
        ratio: cell.ratio.map(|ratio| ratio.value),
        ratio_low: cell.ratio.and_then(low),
        ratio_high: cell.ratio.and_then(high),
        hidden: cell.ratio.map(|ratio| ratio.is_hidden()),
        ..CellRow::default()
    }
}

fn with_figures<'a>(row: CellRow<'a>, cell: &Cell, measure: Measure) -> CellRow<'a> {
    let Some(figures) = &cell.figures else { return row };
    let median = |spread: &Option<Spread>| spread.map(|spread| spread.median);
    let compared = measure.of_figures(figures);
    CellRow {
        rounds: compared.rounds,
        kib_per_s: Some(figures.kib_per_s.median),
        kib_per_s_min: Some(figures.kib_per_s.min),
        kib_per_s_max: Some(figures.kib_per_s.max),
        iops: Some(figures.iops.median),
        iops_min: Some(figures.iops.min),
        iops_max: Some(figures.iops.max),
        spread: compared.relative(),
        uncertainty: compared.uncertainty,
        mean_us: Some(figures.latency.mean_us.median),
        p50_us: Some(figures.latency.p50_us.median),
        p90_us: Some(figures.latency.p90_us.median),
        p99_us: Some(figures.latency.p99_us.median),
        p999_us: Some(figures.latency.p999_us.median),
        max_us: Some(figures.latency.max_us.median),
        server_cpu_s: median(&figures.server_cpu_s),
        guest_cpu_s: median(&figures.guest_cpu_s),
        requests_per_server_cpu_s: median(&figures.requests_per_server_cpu_s),
        requests_per_cpu_s: median(&figures.requests_per_cpu_s),
        ..row
    }
}

fn with_published<'a>(row: CellRow<'a>, summary: &'a Summary, cell: &'a Cell) -> CellRow<'a> {
    let (Some(published), Some(comparison)) = (&summary.experiment().published, &cell.published) else { return row };
    CellRow {
        published: Some(comparison.figure.value),
        published_unit: &published.unit,
        published_configuration: &comparison.figure.their_configuration,
        published_baseline: published_baseline_of(summary, cell),
        published_ratio: comparison.theirs,
        ratio_here: comparison.ours.map(|ours| ours.value),
        ratio_here_low: comparison.ours.and_then(low),
        ratio_here_high: comparison.ours.and_then(high),
        agreement: match comparison.agreement {
            Some(Agreement::Agree) => "agree",
            Some(Agreement::Disagree) => "disagree",
            Some(Agreement::CannotTell) => "cannot-tell",
            None => "",
        },
        ..row
    }
}

fn baseline_of<'a>(summary: &'a Summary, cell: &Cell) -> &'a str {
    summary.standing(&cell.configuration).map_or("", |standing| &standing.baseline)
}

fn published_baseline_of<'a>(summary: &'a Summary, cell: &Cell) -> &'a str {
    let experiment = summary.experiment();
    let configuration = experiment.configurations.iter().find(|c| c.name == cell.configuration);
    configuration.and_then(|configuration| experiment.published_baseline_of(configuration)).unwrap_or_default()
}

fn low(ratio: Ratio) -> Option<f64> {
    ratio.interval.map(|interval| interval.low)
}

fn high(ratio: Ratio) -> Option<f64> {
    ratio.interval.map(|interval| interval.high)
}
