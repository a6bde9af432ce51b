//! An experiment at a glance: each configuration over all workloads, and the matrix of ratios.

use maud::{Markup, html};

use crate::experiment::{Configuration, Workload};
use crate::report::curves::Curves;
use crate::report::summary::{Cell, Standing, State};
use crate::stats::Ratio;

use super::chart::ratios::{self, Interval, Row};
use super::context::{self, Context, unit};
use super::facet::{Group, parts};
use super::number;
use super::panels::{named, panel};

/// A ratio for a chart.
pub(super) fn interval(ratio: &Ratio) -> Interval {
    let (low, high) = ratio.interval.map_or((ratio.value, ratio.value), |interval| (interval.low, interval.high));
    Interval { ratio: ratio.value, low, high, hidden: ratio.is_hidden() }
}

/// Means over all workloads: a chart, and what it stands on.
pub(super) fn standings(context: &Context<'_>) -> Markup {
    let how = html! {
        p class="how" {
            "Geometric mean of " (context::name(context.summary.measure).to_lowercase())
            " as a ratio to the baseline of each table, over the workloads that both were measured under."
        }
    };
    if context.curves.is_some() {
        // The curves say it, and a mean over points of a curve says little.
        return html! { details { summary { "Every configuration over all workloads" } (how) (standings_table(context)) } };
    }
    let charted: Vec<&Group<'_>> = context.groups.iter().filter(|group| !rows(context, group).is_empty()).collect();
    html! {
        h3 { "Over all workloads" }
        (how)
        @if !charted.is_empty() {
            (ratios::legend(false))
            div class="grid" {
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
                sign: "",
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
    let unit = unit(context.summary.measure).0;
    let colours = "Blue is faster than the baseline, orange slower, and the stronger the farther; grey with ≈ is hidden by noise. \
                   Hatched: shows 0 for the reason in the note.";
    html! {
        @match &context.curves {
            Some(curves) => {
                h3 { "Medians, " (unit) }
                p class="how" { "Below each the ratio to its baseline. " (colours) }
                (by_curve(context, curves))
            }
            None => {
                h3 { "Ratio to the baseline, workload by workload" }
                p class="how" { (colours) " The baseline shows its median in " (unit) "." }
                div class="scroll" {
                    // The longer side goes down the page.
                    @if experiment.workloads.len() >= experiment.configurations.len() { (by_workload(context)) }
                    @else { (by_configuration(context)) }
                }
            }
        }
    }
}

/// As the notes show such experiments: a row a curve, a column a number.
fn by_curve(context: &Context<'_>, curves: &Curves) -> Markup {
    let both = |name: &str, workload: &str| match context.summary.cell(name, workload) {
        Some(one) => cell(context, one, true),
        None => html! { td {} },
    };
    html! {
        div class="scroll" {
            table class="matrix" {
                thead {
                    tr {
                        th scope="col" { (curves.axis) }
                        @for value in &curves.values { th scope="col" { (value) } }
                    }
                }
                @for workload in &context.experiment().workloads {
                    @for part in parts(context.experiment(), curves) {
                        tbody {
                            tr class="group" {
                                th scope="rowgroup" colspan=(curves.values.len() + 1) { (named(&workload.name, &part.title)) }
                            }
                            @for (series, short) in part.series.iter().zip(&part.short) {
                                tr {
                                    th scope="row" { (short) }
                                    @for name in &series.configurations { (both(name.as_deref().unwrap_or(""), &workload.name)) }
                                }
                            }
                        }
                    }
                    tbody {
                        @for name in &curves.others {
                            tr { th scope="row" { (name) } (both(name, &workload.name)) }
                        }
                    }
                }
            }
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
                                (one(context, configuration, workload))
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
                            @for workload in workloads { (one(context, configuration, workload)) }
                        }
                    }
                }
            }
        }
    }
}

fn one(context: &Context<'_>, configuration: &Configuration, workload: &Workload) -> Markup {
    context.cell(configuration, workload).map_or_else(|| html! { td {} }, |found| cell(context, found, false))
}

/// A cell with its ratio, or with its figure where it has none; `both` shows both.
fn cell(context: &Context<'_>, cell: &Cell, both: bool) -> Markup {
    let class = cell.ratio.as_ref().map_or("plain", |ratio| match () {
        () if ratio.is_hidden() => "same",
        () if ratio.value > 1.0 => "up",
        () => "down",
    });
    // Four times the baseline, or a quarter, is as strong as colours get.
    let strength = cell.ratio.as_ref().map_or(0.0, |ratio| (ratio.value.log2().abs() / 2.0).min(1.0));
    let strength = if strength.is_finite() { 10.0 + 55.0 * strength } else { 0.0 };
    let measure = context.summary.measure;
    let figure = || cell.shown(measure).map_or_else(|| "–".to_owned(), |value| number::short(value / unit(measure).1));
    html! {
        td class=(class) title=(context.hover(&cell.configuration, &cell.workload)) style=(format!("--t:{strength:.0}%")) {
            @match (&cell.state, &cell.ratio) {
                (State::Failed { .. } | State::Unsupported { .. }, _) => { span class="hatched" { "0" } }
                (State::Missing, _) => "–",
                (State::Measured, Some(ratio)) => {
                    @if both { (figure()) br; }
                    @if class == "same" { "≈ " }
                    (number::ratio(ratio.value))
                }
                (State::Measured, None) => { (figure()) @if both { br; "baseline" } }
            }
            (context.notes.links(&context.id, cell))
        }
    }
}
