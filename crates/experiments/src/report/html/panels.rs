//! The same quantity of many cells: a panel of bars for each workload, or of curves where a number was varied.

use maud::{Markup, html};

use crate::experiment::Workload;
use crate::report::curves::{Curves, Series};
use crate::report::summary::CellFigures;
use crate::stats::Spread;

use super::chart;
use super::chart::bars::{self, Bar};
use super::chart::curve::{self, Axes, Line, Point};
use super::context::Context;
use super::facet::{Group, parts};
use super::number;

/// Where a quantity stands in a cell.
pub(super) type Of<'q> = &'q dyn Fn(&CellFigures) -> Option<Spread>;

/// What of a cell is drawn.
pub(super) struct Quantity<'q> {
    /// What it is called.
    pub(super) name: &'q str,
    pub(super) unit: &'q str,
    /// What the unit is in terms of the cell's.
    pub(super) factor: f64,
    pub(super) of: Of<'q>,
    /// A second quantity that is never smaller, drawn paler behind the first.
    pub(super) behind: Option<Of<'q>>,
}

/// A figure in the page's grid.
pub(super) fn panel(caption: &str, chart: &Markup) -> Markup {
    html! { figure { figcaption { (caption) } (chart) } }
}

/// A panel of bars for each of `workloads`, of the configurations of `group`.
pub(super) fn bars(
    context: &Context<'_>,
    group: &Group<'_>,
    workloads: &[&Workload],
    quantity: &Quantity<'_>,
) -> Markup {
    html! {
        div class="grid" {
            @for workload in workloads {
                (panel(&workload.name, &bar_panel(context, group, workload, quantity)))
            }
        }
    }
}

fn bar_panel(context: &Context<'_>, group: &Group<'_>, workload: &Workload, quantity: &Quantity<'_>) -> Markup {
    let bars: Vec<Bar<'_>> = context
        .shown(group)
        .map(|(configuration, short)| {
            let cell = context.cell(configuration, workload);
            Bar {
                label: short,
                class: context.class(&configuration.name),
                value: context.value(cell, quantity.of, quantity.factor),
                behind: quantity.behind.map(|behind| context.value(cell, behind, quantity.factor)),
                hover: context.hover(&configuration.name, &workload.name),
            }
        })
        .collect();
    let title = format!("{}, {}: {}", quantity.name, quantity.unit, named(&workload.name, &group.title));
    bars::draw(&title, &bars, quantity.unit, number::short, number::short)
}

/// A workload's name with that of its table or part, where there are several.
pub(super) fn named(workload: &str, part: &str) -> String {
    if part.is_empty() { workload.to_owned() } else { format!("{workload}, {part}") }
}

/// A panel of curves for each workload, and for each kind of curve where there are many.
pub(super) fn curves(context: &Context<'_>, curves: &Curves, quantity: &Quantity<'_>, log: bool) -> Markup {
    html! {
        div class="grid" {
            @for part in parts(context.experiment(), curves) {
                @for workload in &context.experiment().workloads {
                    @let caption = named(&workload.name, &part.title);
                    (panel(&caption, &curve_panel(context, curves, &part.series, workload, quantity, log)))
                }
            }
        }
    }
}

fn curve_panel(
    context: &Context<'_>,
    curves: &Curves,
    series: &[&Series],
    workload: &Workload,
    quantity: &Quantity<'_>,
    log: bool,
) -> Markup {
    let numbers: Vec<f64> = curves.values.iter().map(|value| value.parse().unwrap_or(f64::NAN)).collect();
    let point = |name: &str, x: f64| {
        let cell = context.summary.cell(name, &workload.name);
        let value = context.value(cell, quantity.of, quantity.factor);
        let known = cell.is_none_or(|cell| cell.figures.is_none()) || value.measured().is_some();
        // What was measured without this quantity has no place in its chart, not even as a failure.
        known.then(|| Point { x, value, hover: context.hover(name, &workload.name) })
    };
    let moving = series.iter().map(|series| {
        let named = series.configurations.iter().zip(&numbers);
        let points: Vec<Point> = named.filter_map(|(name, x)| point(name.as_ref()?, *x)).collect();
        let head = series.configurations.iter().flatten().next().map_or("", String::as_str);
        let ink = context.paint.ink_of(context.experiment(), head);
        Line { class: format!("c{ink}"), mark: Some(ink), points }
    });
    let ends: Vec<f64> = numbers.first().into_iter().chain(numbers.last()).copied().collect();
    let levels = curves.others.iter().map(|name| Line {
        class: context.class(name),
        mark: None,
        points: ends.iter().filter_map(|x| point(name, *x)).collect(),
    });
    let lines: Vec<Line> = moving.chain(levels).collect();
    let axes = Axes { x: &curves.axis, y: quantity.unit, log };
    let title = format!("{}, {} by {}: {}", quantity.name, quantity.unit, curves.axis, workload.name);
    curve::draw(&title, &lines, &axes, number::short)
}

/// Which colour and mark is whose.
pub(super) fn legend(context: &Context<'_>) -> Markup {
    // Names within their tables or parts: those that are the same there share a colour.
    let mut shown: Vec<String> = Vec::new();
    let mut once = |name: &str, head: &str, swatch: Markup| {
        let new = !shown.iter().any(|known| known == name);
        shown.push(name.to_owned());
        html! { @if new { li class=(context.class(head)) { (swatch) (name) } } }
    };
    html! {
        ul class="legend" {
            @match &context.curves {
                Some(curves) => {
                    @for part in parts(context.experiment(), curves) {
                        @for (series, short) in part.series.iter().zip(&part.short) {
                            @let head = series.configurations.iter().flatten().next().map_or("", String::as_str);
                            @let mark = context.paint.ink_of(context.experiment(), head);
                            (once(short, head, chart::swatch_of_line(Some(mark))))
                        }
                    }
                    @for name in &curves.others { (once(name, name, chart::swatch_of_line(None))) }
                }
                None => {
                    @for group in &context.groups {
                        @for (short, one) in group.short.iter().zip(&group.configurations) {
                            (once(short, &one.name, chart::swatch()))
                        }
                    }
                }
            }
        }
    }
}
