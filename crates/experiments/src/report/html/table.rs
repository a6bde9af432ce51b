//! The tables of a page: every figure with its spread, and every published figure beside ours.

use maud::{Markup, html};

use crate::report::summary::{Agreement, Cell, CellFigures, Comparison, State};
use crate::stats::Spread;

use super::context::{self, Context};
use super::number;

/// All figures of all cells.
pub(super) fn figures(context: &Context<'_>) -> Markup {
    html! {
        details {
            summary { "All figures" }
            p class="how" {
                "Medians over the rounds. Spread: the largest less the smallest round, as a part of the median. ±: half of a 95 % interval of "
                "the median."
            }
            div class="scroll" {
                table class="sortable figures" {
                    thead { tr { @for heading in HEADINGS { th scope="col" { (heading) } } } }
                    tbody { @for cell in &context.summary.cells { (row(context, cell)) } }
                }
            }
        }
    }
}

const HEADINGS: [&str; 18] = [
    "Workload",
    "Configuration",
    "MiB/s",
    "IOPS",
    "Spread",
    "±",
    "Ratio to baseline",
    "Mean, µs",
    "p50, µs",
    "p90, µs",
    "p99, µs",
    "p99.9, µs",
    "Max, µs",
    "Server CPU, s",
    "Guest CPU, s",
    "Requests a CPU s",
    "Rounds",
    "Failed",
];

fn row(context: &Context<'_>, cell: &Cell) -> Markup {
    html! {
        tr {
            th scope="row" { (cell.workload) }
            th scope="row" class=(context.class(&cell.configuration)) { (super::chart::swatch()) (cell.configuration) }
            @match &cell.figures {
                Some(figures) => (cells(context, cell, figures)),
                None => {
                    td { "0" (context.notes.links(&context.id, cell)) }
                    td { "0" }
                    td class="reason" colspan=(HEADINGS.len() - 6) { (state(&cell.state)) }
                    td { "0" }
                    td { (cell.failures.len()) }
                }
            }
        }
    }
}

fn cells(context: &Context<'_>, cell: &Cell, figures: &CellFigures) -> Markup {
    let measured = context.summary.measure.of_figures(figures);
    let latency = &figures.latency;
    let some = |spread: &Option<Spread>| spread.map_or_else(|| "–".to_owned(), |spread| number::figure(spread.median));
    let part = |part: Option<f64>| part.map_or_else(|| "–".to_owned(), number::percent);
    let times =
        [&latency.mean_us, &latency.p50_us, &latency.p90_us, &latency.p99_us, &latency.p999_us, &latency.max_us];
    html! {
        td { (number::figure(figures.kib_per_s.median / 1024.0)) (context.notes.links(&context.id, cell)) }
        td { (number::figure(figures.iops.median)) }
        td { (part(measured.relative())) }
        td { (part(measured.uncertainty)) }
        td {
            @match &cell.ratio {
                Some(ratio) => { @if ratio.is_hidden() { "≈ " } (context::ratio(ratio)) }
                None => "–",
            }
        }
        @for spread in times { td { (number::figure(spread.median)) } }
        td { (some(&figures.server_cpu_s)) }
        td { (some(&figures.guest_cpu_s)) }
        td { (some(&figures.requests_per_cpu_s)) }
        td { (measured.rounds) }
        td { (cell.failures.len()) }
    }
}

fn state(state: &State) -> String {
    match state {
        State::Measured => String::new(),
        State::Failed { reason } => format!("failed: {reason}"),
        State::Unsupported { reason } => format!("unsupported: {reason}"),
        State::Missing => "not run".to_owned(),
    }
}

/// Published figures with ours and whether they agree.
pub(super) fn published(context: &Context<'_>, cells: &[(&Cell, &Comparison)]) -> Markup {
    let unit = context.experiment().published.as_ref().map_or("", |published| published.unit.as_str());
    html! {
        div class="scroll" {
            table class="sortable" {
                thead {
                    tr {
                        th scope="col" { "Workload" }
                        th scope="col" class="text" { "Configuration" }
                        th scope="col" class="text" { "Published as" }
                        th scope="col" { "Published, " (unit) }
                        th scope="col" { "Their ratio" }
                        th scope="col" { "Our ratio" }
                        th scope="col" class="text" { "Direction" }
                    }
                }
                tbody {
                    @for (cell, comparison) in cells {
                        tr {
                            th scope="row" { (cell.workload) }
                            th scope="row" { (cell.configuration) }
                            td class="text" { (comparison.figure.their_configuration) }
                            td {
                                (number::figure(comparison.figure.value))
                                @if comparison.figure.value == 0.0 { " (not supported)" }
                            }
                            td { (comparison.theirs.map_or_else(|| "–".to_owned(), number::ratio)) }
                            td { (comparison.ours.as_ref().map_or_else(|| "–".to_owned(), context::ratio)) }
                            td class="text" { (agreement(comparison.agreement)) }
                        }
                    }
                }
            }
        }
    }
}

/// A verdict in words.
pub(super) fn agreement(agreement: Option<Agreement>) -> &'static str {
    match agreement {
        Some(Agreement::Agree) => "agree",
        Some(Agreement::Disagree) => "disagree",
        Some(Agreement::CannotTell) => "cannot tell",
        None => "nothing to compare",
    }
}
