//! Scaling curves: a figure against a number that was chosen, both axes so that doubling is equally far.

use maud::{Markup, html};

use super::super::scale::Scale;
use super::{Measured, Px, Value, WIDTH, axis_title, axis_x, frame, marks, shape, width_of};

/// Height of the drawing without its axes.
const HEIGHT: f64 = 190.0;

/// One line.
pub(in super::super) struct Line {
    /// Which colour, a class.
    pub(in super::super) class: String,
    /// Which mark; a line without marks is a level to compare with, and dashed.
    pub(in super::super) mark: Option<usize>,
    /// What it shows.
    pub(in super::super) points: Vec<Point>,
}

/// A point of a line.
pub(in super::super) struct Point {
    /// The number that was chosen.
    pub(in super::super) x: f64,
    /// What came of it.
    pub(in super::super) value: Value,
    /// All that can be said of it, shown on hover.
    pub(in super::super) hover: String,
}

/// What the axes say.
pub(in super::super) struct Axes<'a> {
    /// Name of the number that was chosen.
    pub(in super::super) x: &'a str,
    /// The unit of the figures.
    pub(in super::super) y: &'a str,
    /// Whether figures are on a logarithmic axis whatever their range.
    pub(in super::super) log: bool,
}

/// Draws lines with the band between the smallest and the largest round.
pub(in super::super) fn draw(title: &str, lines: &[Line], axes: &Axes<'_>, tick: impl Fn(f64) -> String) -> Markup {
    let points = || lines.iter().flat_map(|line| &line.points);
    let measured = || points().filter_map(|point| point.value.measured());
    let spread = || measured().flat_map(|value| [value.low, value.median, value.high]);
    let (low, high) = spread().fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), y| (low.min(y), high.max(y)));
    // Lines a factor of thirty apart would lie on the bottom of a linear chart.
    let log = low > 0.0 && (axes.log || high / low > 30.0);
    let (top, bottom) = (20.0, 20.0 + HEIGHT);
    let y = if log { Scale::log(spread(), bottom, top) } else { Scale::from_zero(spread(), bottom, top) };
    let y_ticks = y.ticks(if log { 26.0 } else { 34.0 });
    let left = y_ticks.iter().map(|value| width_of(&tick(*value))).fold(16.0, f64::max) + 10.0;
    let x = Scale::log(points().map(|point| point.x), left + 6.0, WIDTH - 10.0);
    let content = html! {
        g class="axis" {
            @for value in &y_ticks {
                line x1=(Px(left)) x2=(Px(WIDTH)) y1=(Px(y.at(*value))) y2=(Px(y.at(*value))) {}
                text x=(Px(left - 5.0)) y=(Px(y.at(*value) + 3.8)) text-anchor="end" { (tick(*value)) }
            }
        }
        text class="unit" x="0" y="10" { (axes.y) @if log { " (log)" } }
        (axis_x(&x, &x_ticks(lines, &x), bottom, bottom + 4.0, super::super::number::short))
        (axis_title(axes.x, WIDTH, bottom + 28.0))
        @for line in lines { (band(line, &x, &y)) }
        @for line in lines { (one(line, &x, &y, bottom)) }
    };
    frame(bottom + 33.0, title, &content)
}

/// The numbers that were chosen, as far as they can be written beside each other; the ends always.
fn x_ticks(lines: &[Line], x: &Scale) -> Vec<f64> {
    let mut all: Vec<f64> = lines.iter().flat_map(|line| line.points.iter().map(|point| point.x)).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    let mut kept: Vec<f64> = all.last().copied().into_iter().collect();
    for value in all {
        let width = |value: f64| width_of(&super::super::number::short(value));
        if kept.iter().all(|other| (x.at(value) - x.at(*other)).abs() > (width(value) + width(*other)) / 2.0 + 4.0) {
            kept.push(value);
        }
    }
    kept
}

/// Stretches of a line without a gap: across a point that failed nothing is known.
fn stretches(line: &Line) -> impl Iterator<Item = Vec<(f64, &Measured)>> {
    let parts = line.points.split(|point| point.value.measured().is_none());
    parts
        .map(|part| part.iter().filter_map(|point| Some((point.x, point.value.measured()?))).collect::<Vec<_>>())
        .filter(|stretch| !stretch.is_empty())
}

/// The area between the smallest and the largest round.
fn band(line: &Line, x: &Scale, y: &Scale) -> Markup {
    let outline = |stretch: &[(f64, &Measured)]| {
        let there = stretch.iter().map(|(at, value)| format!("{:.1},{:.1}", x.at(*at), y.at(value.high)));
        let back = stretch.iter().rev().map(|(at, value)| format!("{:.1},{:.1}", x.at(*at), y.at(value.low)));
        there.chain(back).collect::<Vec<_>>().join(" ")
    };
    html! {
        @for stretch in stretches(line) { polygon class={ "band " (line.class) } points=(outline(&stretch)) {} }
    }
}

fn one(line: &Line, x: &Scale, y: &Scale, bottom: f64) -> Markup {
    let path = |stretch: &[(f64, &Measured)]| {
        let points = stretch.iter().map(|(at, value)| format!("{:.1},{:.1}", x.at(*at), y.at(value.median)));
        points.collect::<Vec<_>>().join(" ")
    };
    html! {
        g class=(line.class) {
            @for stretch in stretches(line) {
                polyline class={ "curve" @if line.mark.is_none() { " level" } } points=(path(&stretch)) {}
            }
            @for point in &line.points {
                g {
                    title { (point.hover) }
                    @match &point.value {
                        Value::Measured(value) => {
                            @if let Some(mark) = line.mark { (shape(mark, x.at(point.x), y.at(value.median))) }
                            @if !value.notes.is_empty() {
                                text class="value" x=(Px(x.at(point.x) + 3.0)) y=(Px(y.at(value.median) - 4.0)) {
                                    (marks(&value.notes))
                                }
                            }
                        }
                        // A level without a figure has no place of its own on the axis.
                        Value::Absent(_) if line.mark.is_none() => {}
                        Value::Absent(absent) => {
                            path class="cross" d=(cross(x.at(point.x), bottom)) {}
                            text class="value none" x=(Px(x.at(point.x) + 2.0)) y=(Px(bottom - 3.0)) {
                                (marks(&absent.notes))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The mark of a point that was not measured, on the zero line.
fn cross(x: f64, y: f64) -> String {
    format!("M{:.1} {:.1}l7 7m0 -7l-7 7", x - 3.5, y - 3.5)
}
