//! An experiment at a glance: each configuration over all workloads, and the matrix of ratios.

use maud::{Markup, html};

use crate::report::summary::{Cell, Standing, State};
use crate::stats::Ratio;

use super::chart::ratios::{self, Interval, Row};
use super::context::{self, Context, unit};
use super::facet::Group;
use super::number;
use super::panels::panel;

/// A ratio for a chart.
pub(super) fn interval(ratio: &Ratio) -> Interval {
    let (low, high) = ratio.interval.map_or((ratio.value, ratio.value), |interval| (interval.low, interval.high));
    Interval { ratio: ratio.value, low, high, hidden: ratio.is_hidden() }
}

/// Means over all workloads: a chart, and what it stands on.
pub(super) fn standings(context: &Context<'_>) -> Markup {
    let charted: Vec<&Group<'_>> = context.groups.iter().filter(|group| !rows(context, group).is_empty()).collect();
    html! {
        h3 { "Over all workloads" }
        p class="how" {
            "Geometric mean of " (context::name(context.summary.measure).to_lowercase())
            " as a ratio to the baseline of each table, over the workloads that both were measured under."
        }
        @if !charted.is_empty() {
            (ratios::legend(false))
            div class="grid wide" {
                @for group in charted {
                    @let caption = format!("{} beside {}", title(group), baseline(context, group));
                    (panel(&caption, &ratios::draw(&caption, &rows(context, group), "times the baseline (log)")))
                }
            }
        }
        (standings_table(context))
    }
}

fn title<'g>(group: &'g Group<'_>) -> &'g str {
    if group.title.is_empty() { "All configurations" } else { &group.title }
}

fn baseline<'c>(context: &Context<'c>, group: &Group<'c>) -> &'c str {
    group.configurations.first().map_or("", |configuration| context.experiment().baseline_of(configuration))
}

fn rows<'g>(context: &Context<'_>, group: &'g Group<'_>) -> Vec<Row<'g>> {
    let named = group.configurations.iter().zip(&group.short);
    named
        .filter_map(|(configuration, short)| {
            let standing = context.summary.standing(&configuration.name)?;
            let mean = standing.mean.as_ref()?;
            Some(Row {
                label: short,
                class: context.class(&configuration.name),
                ours: Some(interval(mean)),
                published: None,
                hover: format!("{}\n{} over {} workloads", configuration.name, context::ratio(mean), standing.compared),
            })
        })
        .collect()
}

fn standings_table(context: &Context<'_>) -> Markup {
    html! {
        div class="scroll" {
            table class="sortable" {
                thead {
                    tr {
                        th scope="col" { "Configuration" }
                        th scope="col" { "Mean ratio" }
                        th scope="col" { "Interval" }
                        th scope="col" { "Faster" }
                        th scope="col" { "Hidden by noise" }
                        th scope="col" { "Slower" }
                        th scope="col" { "Requests a server CPU s" }
                        th scope="col" { "Requests a CPU s" }
                        th scope="col" { "Failed" }
                        th scope="col" { "Unsupported" }
                    }
                }
                tbody { @for standing in &context.summary.standings { (standing_row(context, standing)) } }
            }
        }
    }
}

fn standing_row(context: &Context<'_>, standing: &Standing) -> Markup {
    let times = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number::ratio);
    let count = |count: u32| if count == 0 { "–".to_owned() } else { count.to_string() };
    let baseline = context.summary.is_baseline(&standing.configuration);
    html! {
        tr {
            th scope="row" class=(context.class(&standing.configuration)) { (super::chart::swatch()) (standing.configuration) }
            @match &standing.mean {
                Some(mean) => {
                    td { (number::ratio(mean.value)) }
                    td {
                        @match mean.interval {
                            Some(interval) => { (number::ratio(interval.low)) " – " (number::ratio(interval.high)) }
                            None => "–",
                        }
                    }
                }
                None => { td { @if baseline { "baseline" } @else { "–" } } td { "–" } }
            }
            td { (count(standing.faster)) }
            td { (count(standing.hidden)) }
            td { (count(standing.slower)) }
            td { (times(standing.per_server_cpu)) }
            td { (times(standing.per_cpu)) }
            td { (count(standing.failed)) }
            td { (count(standing.unsupported)) }
        }
    }
}

/// Every ratio, coloured by its direction where noise does not hide it.
pub(super) fn matrix(context: &Context<'_>) -> Markup {
    let experiment = context.experiment();
    // The longer side goes down the page.
    let upright = experiment.workloads.len() >= experiment.configurations.len();
    html! {
        h3 { "Ratio to the baseline, workload by workload" }
        p class="how" {
            "Blue is faster, orange slower, and the stronger the farther; grey with ≈ is hidden by noise. "
            "The baseline shows its median in " (unit(context.summary.measure).0) "."
        }
        div class="scroll" {
            @if upright { (by_workload(context)) } @else { (by_configuration(context)) }
        }
    }
}

fn by_workload(context: &Context<'_>) -> Markup {
    let experiment = context.experiment();
    html! {
        table class="matrix" {
            thead {
                tr {
                    th scope="col" { "Workload" }
                    @for configuration in &experiment.configurations { th scope="col" { (configuration.name) } }
                }
            }
            @for facet in &context.facets {
                tbody {
                    @if !facet.title.is_empty() {
                        tr class="group" { th scope="rowgroup" colspan=(experiment.configurations.len() + 1) { (facet.title) } }
                    }
                    @for workload in &facet.workloads {
                        tr {
                            th scope="row" { (workload.name) }
                            @for configuration in &experiment.configurations {
                                (cell(context, context.cell(configuration, workload)))
                            }
                        }
                    }
                }
            }
        }
    }
}

fn by_configuration(context: &Context<'_>) -> Markup {
    let workloads = &context.experiment().workloads;
    html! {
        table class="matrix" {
            thead {
                tr {
                    th scope="col" { "Configuration" }
                    @for workload in workloads { th scope="col" { (workload.name) } }
                }
            }
            @for group in &context.groups {
                tbody {
                    @if !group.title.is_empty() {
                        tr class="group" { th scope="rowgroup" colspan=(workloads.len() + 1) { (group.title) } }
                    }
                    @for configuration in &group.configurations {
                        tr {
                            th scope="row" { (configuration.name) }
                            @for workload in workloads { (cell(context, context.cell(configuration, workload))) }
                        }
                    }
                }
            }
        }
    }
}

fn cell(context: &Context<'_>, cell: Option<&Cell>) -> Markup {
    let Some(cell) = cell else { return html! { td { "–" } } };
    let links = context.notes.links(&context.id, cell);
    let hover = context.hover(&cell.configuration, &cell.workload);
    let class = cell.ratio.as_ref().map_or("plain", |ratio| match () {
        () if ratio.is_hidden() => "same",
        () if ratio.value > 1.0 => "up",
        () => "down",
    });
    // Four times the baseline, or a quarter, is as strong as colours get.
    let strength = cell.ratio.as_ref().map_or(0.0, |ratio| (ratio.value.log2().abs() / 2.0).min(1.0));
    let strength = if strength.is_finite() { 10.0 + 55.0 * strength } else { 0.0 };
    html! {
        td class=(class) title=(hover) style=(format!("--t:{strength:.0}%")) {
            @match (&cell.state, &cell.ratio) {
                (State::Failed { .. }, _) => { span class="hatched" { "0 failed" } }
                (State::Unsupported { .. }, _) => { span class="hatched" { "0 unsup." } }
                (State::Missing, _) => "–",
                (State::Measured, Some(ratio)) => {
                    @if class == "same" { "≈ " }
                    (number::ratio(ratio.value))
                }
                (State::Measured, None) => (figure(context, cell)),
            }
            (links)
        }
    }
}

fn figure(context: &Context<'_>, cell: &Cell) -> String {
    let measure = context.summary.measure;
    cell.shown(measure).map_or_else(|| "–".to_owned(), |value| number::short(value / unit(measure).1))
}
