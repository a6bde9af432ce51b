//! A summary as tables for a terminal, in the forms that readers of the notes know.
//!
//! Where the configurations have a numeric axis, a column is a value of it (`fio jobs 1 2 4 8`); else rows are workloads and
//! columns configurations, or the other way round where there are many configurations and few workloads. Of directories there
//! is the list of their tables, too: NAME, WORKLOAD, Bandwidth, IOPS.

mod grid;
mod notes;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::summary::{Cell, CellFigures, Measure, Standing, Summary};
use super::words;
use grid::Grid;
use notes::Notes;

/// What is shown in the place of a figure that there is none of.
const NONE: &str = "-";

/// Everything: what was run, figures, ratios, standings, published figures, and why something shows 0. No line is wider than
/// `width` where columns can be shared out among several tables.
pub fn render(summary: &Summary, width: usize) -> String {
    let mut notes = Notes::default();
    let mut parts = vec![head(summary)];
    parts.extend(figures(summary, width, &mut notes));
    if summary.measure == Measure::Bandwidth {
        parts.push(list(summary));
    }
    parts.extend(ratios(summary, width));
    parts.extend(standings(summary));
    parts.extend(published(summary));
    parts.extend(notes.render());
    parts.join("\n\n") + "\n"
}

/// What was run, when, on what.
fn head(summary: &Summary) -> String {
    let (header, experiment) = (&summary.header, summary.experiment());
    let machine = &header.environment;
    let mut lines = vec![
        titled(summary, &format!("{}: {}", experiment.name, experiment.title)),
        format!(
            "{}, begun {}, vringd {}",
            words::plural(summary.rounds as usize, "round"),
            header.begun,
            header.vringd
        ),
    ];
    if !machine.kernel.is_empty() {
        lines.push(format!(
            "{}, {}, {} MiB, Linux {}",
            machine.processor,
            words::plural(machine.processors as usize, "processor"),
            machine.memory_mib,
            machine.kernel
        ));
    }
    lines.join("\n")
}

/// A title that says when a run was quick.
fn titled(summary: &Summary, title: &str) -> String {
    if summary.is_quick() {
        format!("QUICK {title} (a run of minutes: its figures decide nothing)")
    } else {
        title.to_owned()
    }
}

/// The medians with their spread.
fn figures(summary: &Summary, width: usize, notes: &mut Notes) -> Vec<String> {
    let title = format!("{}: median (spread)", summary.measure.unit());
    let show = |cell: &Cell| match (&cell.figures, cell.reason()) {
        (Some(figures), _) => {
            let spread = summary.measure.of_figures(figures);
            words::with_spread(spread, |value| words::value(summary.measure, value)) + &notes.of_failures(cell)
        }
        (None, Some(reason)) => format!("0 {}", notes.mark(&cell.configuration, reason)),
        (None, None) => NONE.to_owned(),
    };
    Grid::of(summary, show).render(&titled(summary, &title), width)
}

/// The ratios to the baseline.
fn ratios(summary: &Summary, width: usize) -> Vec<String> {
    let baseline = &summary.experiment().baseline;
    if summary.cells.iter().all(|cell| cell.ratio.is_none()) {
        return Vec::new();
    }
    let title = format!("{} as a ratio to {baseline} (~: noise hides which is faster)", summary.measure.unit());
    let show = |cell: &Cell| match &cell.ratio {
        Some(ratio) => words::marked(ratio),
        None if cell.configuration == *baseline && cell.figures.is_some() => "1".to_owned(),
        None => NONE.to_owned(),
    };
    Grid::of(summary, show).render(&titled(summary, &title), width)
}

/// The table that notes on directories have, with latency and processor time beside.
fn list(summary: &Summary) -> String {
    let mut table = table(&["NAME", "WORKLOAD", "Bandwidth", "IOPS", "mean", "p99", "requests/CPU s"]);
    align_left(&mut table, 1);
    for cell in &summary.cells {
        let mut row = vec![cell.configuration.clone(), cell.workload.clone()];
        match &cell.figures {
            Some(figures) => row.extend(list_row(figures)),
            None => row.push(if cell.reason().is_some() { "0 (KiB/s)" } else { NONE }.to_owned()),
        }
        table.add_row(row);
    }
    format!("{}\n{}", titled(summary, "every pair (medians)"), trimmed(&table))
}

fn list_row(figures: &CellFigures) -> [String; 5] {
    [
        words::bandwidth(figures.kib_per_s.median),
        words::count(figures.iops.median),
        words::time_us(figures.latency.mean_us.median),
        words::time_us(figures.latency.p99_us.median),
        figures.requests_per_cpu_s.map_or_else(|| NONE.to_owned(), |spread| words::count(spread.median)),
    ]
}

/// Each configuration over all workloads.
fn standings(summary: &Summary) -> Option<String> {
    summary.standings.iter().find(|standing| standing.mean.is_some())?;
    let mut table = table(&[
        "over all workloads",
        "geometric mean",
        "faster",
        "slower",
        "hidden",
        "failed",
        "unsupported",
        "requests/server CPU s",
        "requests/CPU s",
    ]);
    for standing in &summary.standings {
        table.add_row(standing_row(standing, &summary.experiment().baseline));
    }
    let title = titled(summary, &format!("against {}", summary.experiment().baseline));
    Some(format!("{title}\n{}", trimmed(&table)))
}

fn standing_row(standing: &Standing, baseline: &str) -> Vec<String> {
    let times = |ratio: Option<f64>| ratio.map_or_else(|| NONE.to_owned(), words::times);
    let counts = [standing.faster, standing.slower, standing.hidden, standing.failed, standing.unsupported];
    let mean = match &standing.mean {
        Some(mean) => words::with_interval(mean),
        None if standing.configuration == baseline => "1".to_owned(),
        None => NONE.to_owned(),
    };
    let mut row = vec![standing.configuration.clone(), mean];
    row.extend(counts.map(|count| count.to_string()));
    row.extend([times(standing.per_server_cpu), times(standing.per_cpu)]);
    row
}

/// The published figures beside ours.
fn published(summary: &Summary) -> Option<String> {
    let published = summary.experiment().published.as_ref()?;
    let mut table = table(&["WORKLOAD", "NAME", "theirs was", "published", "here", "verdict"]);
    for column in [1, 2] {
        align_left(&mut table, column);
    }
    for cell in &summary.cells {
        let Some(comparison) = &cell.published else { continue };
        let Some(agreement) = comparison.agreement else { continue };
        table.add_row([
            cell.workload.clone(),
            cell.configuration.clone(),
            comparison.figure.their_configuration.clone(),
            match comparison.theirs {
                Some(theirs) => words::times(theirs),
                None if comparison.figure.value == 0.0 => "0".to_owned(),
                None => NONE.to_owned(),
            },
            match &comparison.ours {
                Some(ours) => words::with_interval(ours),
                None if cell.reason().is_some() => "0".to_owned(),
                None => NONE.to_owned(),
            },
            words::verdict(agreement).to_owned(),
        ]);
    }
    if table.is_empty() {
        return None;
    }
    let title =
        titled(summary, &format!("published ({}) beside ours, as ratios to {}", published.source, published.baseline));
    Some(format!("{title}\n{}", trimmed(&table)))
}

/// An empty table in the house's style: no lines, the first column to the left, the others to the right.
pub(super) fn table<T: AsRef<str>>(header: &[T]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().map(AsRef::as_ref));
    for column in table.column_iter_mut() {
        let side = if column.index == 0 { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(side);
        column.set_padding((0, 2));
    }
    table
}

pub(super) fn align_left(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Left);
    }
}

/// The table without the blanks that end its lines.
pub(super) fn trimmed(table: &Table) -> String {
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n")
}
