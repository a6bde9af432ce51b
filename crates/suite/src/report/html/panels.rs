//! The same quantity of many cells: a panel of bars for each workload, or of curves where a number was varied.

use maud::{Markup, html};

use crate::experiment::{Configuration, Workload};
use crate::report::curves::{Curves, Series};
use crate::report::summary::CellFigures;
use crate::stats::Spread;

use super::chart::bars::{self, Bar};
use super::chart::curve::{self, Axes, Line, Point};
use super::chart::{self, Value};
use super::context::Context;
use super::facet::Group;
use super::number;

/// More curves than this are drawn in several panels.
const CURVES_TOGETHER: usize = 6;

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
    let values: Vec<(Value, Option<Value>)> = group
        .configurations
        .iter()
        .map(|configuration| {
            let cell = context.cell(configuration, workload);
            let behind = quantity.behind.map(|behind| context.value(cell, behind, quantity.factor));
            (context.value(cell, quantity.of, quantity.factor), behind)
        })
        .collect();
    let named = group.configurations.iter().zip(&group.short).zip(&values);
    let bars: Vec<Bar<'_>> = named
        .map(|((configuration, short), (value, behind))| Bar {
            label: short,
            class: context.class(&configuration.name),
            value,
            behind: behind.as_ref(),
            hover: context.hover(&configuration.name, &workload.name),
        })
        .collect();
    let title = format!("{}, {}: {}", quantity.name, quantity.unit, spoken(&workload.name, group));
    bars::draw(&title, &bars, quantity.unit, number::short, number::short)
}

fn spoken(workload: &str, group: &Group<'_>) -> String {
    if group.title.is_empty() { workload.to_owned() } else { format!("{workload}, {}", group.title) }
}

/// A panel of curves for each workload, and for each kind of curve where there are many.
pub(super) fn curves(context: &Context<'_>, curves: &Curves, quantity: &Quantity<'_>, log: bool) -> Markup {
    let parts = parts(context, curves);
    html! {
        div class="grid" {
            @for (part, series) in &parts {
                @for workload in &context.experiment().workloads {
                    @let caption = if part.is_empty() { workload.name.clone() } else { format!("{}, {part}", workload.name) };
                    (panel(&caption, &curve_panel(context, curves, series, workload, quantity, log, &caption)))
                }
            }
        }
    }
}

/// The curves of each panel: all, or those with one value of the label that parts them best.
fn parts<'c>(context: &Context<'_>, curves: &'c Curves) -> Vec<(String, Vec<&'c Series>)> {
    let all: Vec<&Series> = curves.series.iter().collect();
    if all.len() <= CURVES_TOGETHER {
        return vec![(String::new(), all)];
    }
    let label = |series: &Series, axis: &str| {
        let name = series.configurations.iter().flatten().next()?;
        context.experiment().configurations.iter().find(|other| other.name == *name)?.labels.get(axis).cloned()
    };
    let axes = context.experiment().configurations.iter().flat_map(|configuration| configuration.labels.keys());
    let parted = axes.filter(|axis| **axis != curves.axis).map(|axis| {
        let mut parts: Vec<(String, Vec<&Series>)> = Vec::new();
        for series in &all {
            let value = label(series, axis).unwrap_or_default();
            match parts.iter_mut().find(|(known, _)| *known == value) {
                Some((_, part)) => part.push(series),
                None => parts.push((value, vec![series])),
            }
        }
        parts
    });
    // The fewest panels that are not too full.
    let fullest = |parts: &[(String, Vec<&Series>)]| parts.iter().map(|(_, part)| part.len()).max().unwrap_or(0);
    let best = parted.min_by_key(|parts| (fullest(parts).max(CURVES_TOGETHER), parts.len()));
    best.unwrap_or_else(|| vec![(String::new(), all)])
}

fn curve_panel(
    context: &Context<'_>,
    curves: &Curves,
    series: &[&Series],
    workload: &Workload,
    quantity: &Quantity<'_>,
    log: bool,
    caption: &str,
) -> Markup {
    let numbers: Vec<f64> = curves.values.iter().map(|value| value.parse().unwrap_or(f64::NAN)).collect();
    let point = |name: &str, x: f64| {
        let cell = context.summary.cell(name, &workload.name);
        let value = context.value(cell, quantity.of, quantity.factor);
        Point { x, value, hover: context.hover(name, &workload.name) }
    };
    let moving = series.iter().map(|series| {
        let named = series.configurations.iter().zip(&numbers);
        let points: Vec<Point> = named.filter_map(|(name, x)| Some(point(name.as_ref()?, *x))).collect();
        let head = series.configurations.iter().flatten().next().map_or("", String::as_str);
        let ink = context.paint.ink_of(context.experiment(), head);
        Line { class: format!("c{ink}"), mark: Some(ink), points }
    });
    let ends: Vec<f64> = numbers.first().into_iter().chain(numbers.last()).copied().collect();
    let levels = curves.others.iter().map(|name| Line {
        class: context.class(name),
        mark: None,
        points: ends.iter().map(|x| point(name, *x)).collect(),
    });
    let lines: Vec<Line> = moving.chain(levels).collect();
    let axes = Axes { x: &curves.axis, y: quantity.unit, log };
    let title = format!("{}, {} by {}: {caption}", quantity.name, quantity.unit, curves.axis);
    curve::draw(&title, &lines, &axes, number::short)
}

/// Which colour and mark is whose.
pub(super) fn legend(context: &Context<'_>) -> Markup {
    let item = |name: &str, head: &str, swatch: Markup| {
        html! { li class=(context.class(head)) { (swatch) (name) } }
    };
    let configuration = |configuration: &Configuration| {
        item(&configuration.name, &configuration.name, chart::swatch())
    };
    html! {
        ul class="legend" {
            @match &context.curves {
                Some(curves) => {
                    @for series in &curves.series {
                        @let head = series.configurations.iter().flatten().next().map_or("", String::as_str);
                        @let mark = context.paint.ink_of(context.experiment(), head);
                        (item(&series.name, head, chart::swatch_of_line(Some(mark))))
                    }
                    @for name in &curves.others { (item(name, name, chart::swatch_of_line(None))) }
                }
                None => @for one in &context.experiment().configurations { (configuration(one)) }
            }
        }
    }
}
