//! A summary as tables for a terminal, in the forms that readers of the notes know.
//!
//! Where the configurations have a numeric axis, a column is a value of it (`fio jobs 1 2 4 8`); else rows are workloads and
//! columns configurations, or the other way round where there are many configurations and few workloads. Then
//! every pair has a line as in the notes on directories: NAME, WORKLOAD, Bandwidth, IOPS.

mod grid;

use super::notes::Notes;
use super::summary::{Cell, CellFigures, Standing, Summary};
use super::words::{self, NONE};
use bench::stats::Spread;
use bench::table::Sheet;
use grid::Grid;

/// Everything: what was run, figures, ratios, standings, published figures, and why something shows 0. No line is wider than
/// `width` where columns can be shared out among several tables.
pub fn render(summary: &Summary, width: usize) -> String {
    let notes = Notes::of(summary, |cell| match cell.reason() {
        Some(reason) => vec![reason.to_owned()],
        None => cell.failures.iter().map(|failure| failure.reason.clone()).collect(),
    });
    let mut parts = vec![head(summary)];
    parts.extend(figures(summary, width, &notes));
    parts.push(list(summary, width));
    parts.extend(ratios(summary, width));
    parts.extend(standings(summary, width));
    parts.extend(published(summary, width));
    parts.extend(explained(&notes));
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
    if summary.is_quick() {
        lines.push("a run of minutes: its figures decide nothing".to_owned());
    }
    if !machine.kernel.is_empty() {
        let processors = words::plural(machine.processors as usize, "processor");
        let mut words = vec![format!("Linux {}", machine.kernel), processors, format!("{} MiB", machine.memory_mib)];
        words.extend([machine.processor.clone(), machine.accelerator.clone()]);
        words.retain(|word| !word.is_empty());
        lines.push(words.join(", "));
    }
    lines.join("\n")
}

/// A title that says when a run was quick.
fn titled(summary: &Summary, title: &str) -> String {
    if summary.is_quick() { format!("QUICK {title}") } else { title.to_owned() }
}

/// The medians with their spread.
fn figures(summary: &Summary, width: usize, notes: &Notes) -> Vec<String> {
    let title = format!("{}: median (spread)", summary.measure.unit());
    let marks = |cell: &Cell| notes.numbers(cell).iter().map(|number| format!(" [{number}]")).collect::<String>();
    let show = |cell: &Cell| match &cell.figures {
        Some(figures) => {
            let spread = summary.measure.of_figures(figures);
            words::with_spread(spread, |value| words::value(summary.measure, value)) + &marks(cell)
        }
        None if cell.reason().is_some() => format!("0{}", marks(cell)),
        None => NONE.to_owned(),
    };
    Grid::of(summary, show).render(&titled(summary, &title), width)
}

/// The ratios to the baseline.
fn ratios(summary: &Summary, width: usize) -> Vec<String> {
    if summary.cells.iter().all(|cell| cell.ratio.is_none()) {
        return Vec::new();
    }
    let title =
        format!("{} as a ratio to {} (~: noise hides which is faster)", summary.measure.unit(), baselines(summary));
    let show = |cell: &Cell| match &cell.ratio {
        Some(ratio) => words::marked(ratio),
        None if cell.figures.is_some() && summary.is_baseline(&cell.configuration) => "1".to_owned(),
        None => NONE.to_owned(),
    };
    Grid::of(summary, show).render(&titled(summary, &title), width)
}

/// What ratios are to.
fn baselines(summary: &Summary) -> String {
    match summary.baselines().as_slice() {
        [only] => (*only).to_owned(),
        several => format!("each table's baseline: {}", words::list(several)),
    }
}

/// The table that notes on directories have, with latency beside, and the processor time that a throughput took: half the
/// throughput for a tenth of the processor may be the better bargain.
fn list(summary: &Summary, width: usize) -> String {
    let row = |cell: &Cell| {
        let mut row = vec![cell.configuration.clone(), cell.workload.clone()];
        match &cell.figures {
            Some(figures) => row.extend(list_row(figures)),
            None => row.push(if cell.reason().is_some() { "0 (KiB/s)" } else { NONE }.to_owned()),
        }
        row
    };
    let header =
        ["NAME", "WORKLOAD", "Bandwidth", "IOPS", "mean", "p99", "server CPU s", "guest CPU s", "requests/CPU s"];
    let sheet = Sheet::new(2, &header, summary.cells.iter().map(row).collect());
    sheet.render(&titled(summary, "every pair (medians)"), width)
}

fn list_row(figures: &CellFigures) -> [String; 7] {
    let time_s = |spread: Option<Spread>| words::or_none(spread, |it| format!("{:.2}", it.median));
    [
        words::bandwidth(figures.kib_per_s.median),
        words::count(figures.iops.median),
        words::time_us(figures.latency.mean_us.median),
        words::time_us(figures.latency.p99_us.median),
        time_s(figures.server_cpu_s),
        time_s(figures.guest_cpu_s),
        words::or_none(figures.requests_per_cpu_s, |spread| words::count(spread.median)),
    ]
}

/// Each configuration over all workloads.
fn standings(summary: &Summary, width: usize) -> Option<String> {
    summary.standings.iter().find(|standing| standing.mean.is_some())?;
    let header = [
        "NAME",
        "geometric mean",
        "faster",
        "slower",
        "hidden",
        "failed",
        "unsupported",
        "per server CPU s",
        "per CPU s",
    ];
    let title = titled(summary, &format!("over all workloads, as ratios to {}", baselines(summary)));
    let rows = summary.standings.iter().map(standing_row).collect();
    Some(Sheet::new(1, &header, rows).render(&title, width))
}

fn standing_row(standing: &Standing) -> Vec<String> {
    let times = |ratio: Option<f64>| words::or_none(ratio, words::times);
    let counts = [standing.faster, standing.slower, standing.hidden, standing.failed, standing.unsupported];
    let mean = match &standing.mean {
        Some(mean) => words::with_interval(mean),
        None if standing.configuration == standing.baseline => "1".to_owned(),
        None => NONE.to_owned(),
    };
    let mut row = vec![standing.configuration.clone(), mean];
    row.extend(counts.map(|count| count.to_string()));
    row.extend([times(standing.per_server_cpu), times(standing.per_cpu)]);
    row
}

/// The published figures beside ours.
fn published(summary: &Summary, width: usize) -> Option<String> {
    let published = summary.experiment().published.as_ref()?;
    let rows: Vec<Vec<String>> = summary.cells.iter().filter_map(published_row).collect();
    if rows.is_empty() {
        return None;
    }
    let header = ["WORKLOAD", "NAME", "theirs was", "published", "here", "verdict"];
    let title = format!("published ({}) beside ours, as ratios to the same baseline", published.source);
    Some(Sheet::new(3, &header, rows).render(&titled(summary, &title), width))
}

fn published_row(cell: &Cell) -> Option<Vec<String>> {
    let comparison = cell.published.as_ref()?;
    let agreement = comparison.agreement?;
    let theirs = match comparison.theirs {
        Some(theirs) => words::times(theirs),
        None if comparison.figure.value == 0.0 => "0".to_owned(),
        None => NONE.to_owned(),
    };
    let ours = match &comparison.ours {
        Some(ours) => words::with_interval(ours),
        None if cell.reason().is_some() => "0".to_owned(),
        None => NONE.to_owned(),
    };
    let names = [cell.workload.clone(), cell.configuration.clone(), comparison.figure.their_configuration.clone()];
    Some(names.into_iter().chain([theirs, ours, words::verdict(agreement).to_owned()]).collect())
}

/// Why something shows 0, numbered.
fn explained(notes: &Notes) -> Option<String> {
    let lines = (1..).zip(notes.list()).map(|(number, note)| {
        let configurations: Vec<&str> = note.about.keys().map(String::as_str).collect();
        format!("[{number}] {}: {}", words::list(&configurations), note.text)
    });
    let lines: Vec<String> = lines.collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}
