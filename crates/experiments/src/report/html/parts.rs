//! The charts of an experiment: throughput, latency, processor time, and what was published.

use maud::{Markup, html};

use crate::experiment::{Configuration, Workload};
use crate::report::summary::{Agreement, Cell, CellFigures, Comparison};

use super::chart::{percentiles, ratios};
use super::context::{self, Context, unit};
use super::facet::{Group, chosen};
use super::number;
use super::overview::interval;
use super::panels::{self, Of, Quantity, panel};

/// The compared quantity of every cell.
pub(super) fn throughput(context: &Context<'_>) -> Markup {
    let measure = context.summary.measure;
    let of = move |figures: &CellFigures| Some(*measure.of_figures(figures));
    let (unit, factor) = unit(measure);
    let quantity = Quantity { name: context::name(measure), unit, factor, of: &of, behind: None };
    html! {
        h3 { (context::name(measure)) }
        p class="how" {
            @if context.curves.is_some() {
                "Lines join medians; bands reach from the smallest to the largest round. A cross on the axis is a combination that "
                "shows 0 for the reason in the note."
            } @else {
                "Bars are medians; whiskers reach from the smallest to the largest round. Every panel has a scale of its own, from 0. "
                "Hatched: a combination that shows 0 for the reason in the note."
            }
        }
        (panels::legend(context))
        (left_out(context))
        (all(context, &quantity))
    }
}

/// Whom panels of bars leave out, since they would show 0 in each.
fn left_out(context: &Context<'_>) -> Markup {
    let without = context.experiment().configurations.iter().filter(|one| !context.has_figures(&one.name));
    let without: Vec<&Configuration> = without.filter(|_| context.curves.is_none()).collect();
    html! {
        @if !without.is_empty() {
            p class="how" {
                "0 under every workload, and left out of the panels: "
                @for (at, one) in without.iter().enumerate() {
                    @if at > 0 { ", " }
                    (one.name)
                    @if let Some(cell) = context.summary.cells.iter().find(|cell| cell.configuration == one.name) {
                        (context.notes.links(&context.id, cell))
                    }
                }
                "."
            }
        }
    }
}

/// Curves where there are some, else bars in the groups and facets of the experiment.
fn all(context: &Context<'_>, quantity: &Quantity<'_>) -> Markup {
    if let Some(curves) = &context.curves {
        return panels::curves(context, curves, quantity, false);
    }
    html! {
        @for group in &context.groups {
            @for facet in &context.facets {
                (heading(group, &facet.title))
                (panels::bars(context, group, &facet.workloads, quantity))
            }
        }
    }
}

fn heading(group: &Group<'_>, facet: &str) -> Markup {
    let parts: Vec<&str> = [group.title.as_str(), facet].into_iter().filter(|part| !part.is_empty()).collect();
    html! { @if !parts.is_empty() { h4 { (parts.join(", ")) } } }
}

/// Percentiles of latency for a few workloads, the rest behind a fold.
pub(super) fn latency(context: &Context<'_>) -> Markup {
    if let Some(curves) = &context.curves {
        let of = |figures: &CellFigures| Some(figures.latency.p99_us);
        let quantity = Quantity { name: "Latency, 99th percentile", unit: "ms", factor: 1000.0, of: &of, behind: None };
        return html! {
            h3 { "Latency, 99th percentile" }
            p class="how" { "Of a hundred requests the slowest took this long: the lower, the better." }
            (panels::legend(context))
            (panels::curves(context, curves, &quantity, true))
            (fold(context, "Median to 99.9th percentile, all configurations", &|workloads| percentile_grid(context, workloads)))
        };
    }
    let some = chosen(&context.facets);
    html! {
        h3 { "Latency" }
        p class="how" { "Medians over the rounds. The farther left, the better; a short line is a steady one." }
        (percentiles::legend())
        (percentile_grid(context, &some))
        @if some.len() < context.experiment().workloads.len() {
            (fold(context, "All workloads", &|workloads| percentile_grid(context, workloads)))
        }
    }
}

fn percentile_grid(context: &Context<'_>, workloads: &[&Workload]) -> Markup {
    html! {
        @for group in &context.groups {
            (heading(group, ""))
            div class="grid" {
                @for workload in workloads {
                    @let title = format!("Latency percentiles: {}, {}", workload.name, group.title);
                    (panel(&workload.name, &percentiles::draw(&title, &percentile_rows(context, group, workload))))
                }
            }
        }
    }
}

fn percentile_rows<'g>(
    context: &'g Context<'_>,
    group: &'g Group<'_>,
    workload: &Workload,
) -> Vec<percentiles::Row<'g>> {
    context
        .shown(group)
        .map(|(configuration, short)| {
            let figures = context.cell(configuration, workload).and_then(|cell| cell.figures.as_ref());
            let us = figures.map(|figures| {
                let latency = &figures.latency;
                [&latency.p50_us, &latency.p90_us, &latency.p99_us, &latency.p999_us].map(|spread| spread.median)
            });
            let said = us.map_or_else(
                || context.hover(&configuration.name, &workload.name),
                |us| {
                    let [p50, p90, p99, p999] = us.map(number::time_us);
                    format!("{}\nmedian {p50}, p90 {p90}, p99 {p99}, p99.9 {p999}", configuration.name)
                },
            );
            percentiles::Row { label: short, class: context.class(&configuration.name), us, hover: said }
        })
        .collect()
}

/// Charts that not everybody wants, for all workloads.
fn fold(context: &Context<'_>, summary: &str, content: &dyn Fn(&[&Workload]) -> Markup) -> Markup {
    let all: Vec<&Workload> = context.experiment().workloads.iter().collect();
    html! { details { summary { (summary) } (content(&all)) } }
}

/// What a processor's second brought.
pub(super) fn processor(context: &Context<'_>) -> Markup {
    let of_all = |figures: &CellFigures| figures.requests_per_cpu_s;
    let of_server = |figures: &CellFigures| figures.requests_per_server_cpu_s;
    let has = |of: Of<'_>| {
        context.summary.cells.iter().filter_map(|cell| cell.figures.as_ref()).any(|figures| of(figures).is_some())
    };
    if !has(&of_all) && !has(&of_server) {
        return html! { h3 { "Processor time" } p class="how" { "No processor time was recorded in this run." } };
    }
    let unit = "requests/CPU s";
    let all_cpu = Quantity { name: "Server and guest", unit, factor: 1.0, of: &of_all, behind: Some(&of_server) };
    let plain = |name, of| Quantity { name, unit, factor: 1.0, of, behind: None };
    html! {
        h3 { "Requests a CPU second" }
        @match &context.curves {
            Some(curves) => {
                p class="how" { "Requests for each second of processor time: the higher, the cheaper a request." }
                (panels::legend(context))
                @if has(&of_server) {
                    h4 { "Of the server's time" }
                    (panels::curves(context, curves, &plain("Requests a second of the server's time", &of_server), false))
                }
                @if has(&of_all) {
                    h4 { "Of server and guest together" }
                    (panels::curves(context, curves, &plain("Requests a second of all processor time", &of_all), false))
                }
            }
            None => {
                p class="how" {
                    "The higher, the cheaper a request. Filled, and the first figure: of the processor time of server and guest (or load "
                    "generator) together. Pale, and the second: of the server's alone."
                }
                @let some = chosen(&context.facets);
                @for group in &context.groups { (heading(group, "")) (panels::bars(context, group, &some, &all_cpu)) }
                @if some.len() < context.experiment().workloads.len() {
                    (fold(context, "All workloads", &|workloads| html! {
                        @for group in &context.groups { (heading(group, "")) (panels::bars(context, group, workloads, &all_cpu)) }
                    }))
                }
            }
        }
    }
}

/// Ours beside theirs.
pub(super) fn published(context: &Context<'_>) -> Markup {
    let experiment = context.experiment();
    let Some(published) = &experiment.published else { return html! {} };
    let cells: Vec<(&Cell, &Comparison)> =
        context.summary.cells.iter().filter_map(|cell| Some((cell, cell.published.as_ref()?))).collect();
    let drawn: Vec<&(&Cell, &Comparison)> = cells
        .iter()
        .filter(|(cell, comparison)| comparison.agreement.is_some() && context.has_figures(&cell.configuration))
        .collect();
    let mut baselines: Vec<&str> = Vec::new();
    for configuration in &experiment.configurations {
        let compared = cells.iter().any(|(cell, _)| cell.configuration == configuration.name);
        let baseline = experiment.published_baseline_of(configuration).filter(|_| compared);
        baselines.extend(baseline.filter(|baseline| !baselines.contains(baseline)));
    }
    html! {
        h3 { "Beside the published figures" }
        p class="how" {
            "Ratios to each table's own baseline (" (baselines.join(", ")) "): theirs from " (published.source)
            ", in " (published.unit) "; ours measured here. Configurations without a figure of ours are in the table alone."
        }
        @if drawn.is_empty() {
            p { "No published figure has a counterpart here." }
        } @else {
            (ratios::legend(true))
            (published_means(context))
            (published_grid(context, &drawn))
            (published_table(context, &cells))
        }
    }
}

/// Each configuration over all its comparisons.
fn published_means(context: &Context<'_>) -> Markup {
    let standings = context.summary.standings.iter();
    let rows: Vec<ratios::Row<'_>> = standings
        .filter_map(|standing| {
            let (theirs, ours) = (standing.published?, standing.published_ours.as_ref()?);
            let said = format!(
                "{}\npublished: {}\nours: {}\n{}",
                standing.configuration,
                number::ratio(theirs),
                context::ratio(ours),
                super::table::agreement(standing.agreement)
            );
            Some(ratios::Row {
                label: &standing.configuration,
                class: context.class(&standing.configuration),
                ours: Some(interval(ours)),
                published: Some(theirs),
                sign: sign(standing.agreement),
                hover: said,
            })
        })
        .collect();
    let caption = "Geometric means over the workloads of both";
    html! {
        @if context.experiment().workloads.len() > 1 && !rows.is_empty() {
            div class="grid" { (panel(caption, &ratios::draw(caption, &rows, "times the baseline (log)"))) }
        }
    }
}

/// A panel for each configuration with a row a workload, or the other way around: the fewer panels.
fn published_grid(context: &Context<'_>, cells: &[&(&Cell, &Comparison)]) -> Markup {
    let experiment = context.experiment();
    let of = |of_panel: &dyn Fn(&Cell) -> bool, label: fn(&Cell) -> &str| {
        let rows = cells.iter().filter(|(cell, _)| of_panel(cell));
        rows.map(|(cell, comparison)| published_row(context, cell, comparison, label(cell))).collect::<Vec<_>>()
    };
    let draw = |name: &str, rows: &[ratios::Row<'_>]| {
        let title = format!("Published and measured ratios: {name}");
        html! { @if !rows.is_empty() { (panel(name, &ratios::draw(&title, rows, "times the baseline (log)"))) } }
    };
    let by_configuration =
        |configuration: &Configuration| of(&|cell| cell.configuration == configuration.name, |cell| &cell.workload);
    let by_workload = |workload: &Workload| of(&|cell| cell.workload == workload.name, |cell| &cell.configuration);
    html! {
        div class="grid" {
            @if experiment.workloads.len() > 4 {
                @for one in &experiment.configurations { (draw(&one.name, &by_configuration(one))) }
            } @else {
                @for one in &experiment.workloads { (draw(&one.name, &by_workload(one))) }
            }
        }
    }
}

fn published_row<'c>(
    context: &Context<'_>,
    cell: &'c Cell,
    comparison: &Comparison,
    label: &'c str,
) -> ratios::Row<'c> {
    let theirs = comparison.theirs.filter(|theirs| *theirs > 0.0);
    let said = format!(
        "{}, {}\npublished as {}: {}\nours: {}\n{}",
        cell.configuration,
        cell.workload,
        comparison.figure.their_configuration,
        theirs.map_or_else(|| "not supported".to_owned(), number::ratio),
        comparison.ours.as_ref().map_or_else(|| "not measured".to_owned(), context::ratio),
        super::table::agreement(comparison.agreement),
    );
    ratios::Row {
        label,
        class: context.class(&cell.configuration),
        ours: comparison.ours.as_ref().map(interval),
        published: theirs,
        sign: sign(comparison.agreement),
        hover: said,
    }
}

/// A verdict as a sign.
fn sign(agreement: Option<Agreement>) -> &'static str {
    match agreement {
        Some(Agreement::Agree) => "=",
        Some(Agreement::Disagree) => "≠",
        Some(Agreement::CannotTell) => "?",
        None => "",
    }
}

fn published_table(context: &Context<'_>, cells: &[(&Cell, &Comparison)]) -> Markup {
    html! {
        details {
            summary { "All published figures with ours" }
            (super::table::published(context, cells))
        }
    }
}
