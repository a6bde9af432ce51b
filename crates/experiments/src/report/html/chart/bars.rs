//! Bars with spread: the median as the bar, the smallest and the largest round as whiskers.

use maud::{Markup, html};

use super::super::scale::Scale;
use super::{Measured, Px, RowLabels, Value, WIDTH, axis_title, axis_x, frame, marks, width_of};

/// One bar.
pub(in super::super) struct Bar<'a> {
    /// Beside it.
    pub(in super::super) label: &'a str,
    /// Which configuration's colour.
    pub(in super::super) class: String,
    /// What it shows.
    pub(in super::super) value: Value,
    /// A second value within the same bar, drawn behind it and paler: a smaller cost covers more of a larger one.
    pub(in super::super) behind: Option<Value>,
    /// All that can be said of it, shown on hover.
    pub(in super::super) hover: String,
}

/// Draws bars with one scale from 0. `write` makes a value's text, `tick` an axis', in `unit`.
pub(in super::super) fn draw(
    title: &str,
    bars: &[Bar<'_>],
    unit: &str,
    write: impl Fn(f64) -> String,
    tick: impl Fn(f64) -> String,
) -> Markup {
    let rows = RowLabels::of(bars.iter().map(|bar| bar.label));
    let measured =
        || bars.iter().flat_map(|bar| [Some(&bar.value), bar.behind.as_ref()]).flatten().filter_map(Value::measured);
    // Room for the widest text beyond the longest bar.
    let texts = bars
        .iter()
        .filter_map(|bar| Some(text(bar.value.measured()?, bar.behind.as_ref().and_then(Value::measured), &write)));
    let room = texts.map(|text| width_of(&text)).fold(30.0, f64::max) + 14.0;
    let scale = Scale::from_zero(measured().map(|measured| measured.high), rows.left, WIDTH - room);
    let (top, bottom) = (2.0, 4.0 + rows.row * bars.len() as f64);
    // The unit has the end of the line.
    let clear = |value: &f64| scale.at(*value) + width_of(&tick(*value)) / 2.0 < WIDTH - width_of(unit) - 4.0;
    let ticks: Vec<f64> = scale.ticks(52.0).into_iter().filter(clear).collect();
    let content = html! {
        (axis_x(&scale, &ticks, top, bottom, &tick))
        (axis_title(unit, WIDTH, bottom + 13.0))
        @for (at, bar) in bars.iter().enumerate() {
            (one(bar, &rows, &scale, rows.middle(top, at), &write))
        }
    };
    frame(bottom + 18.0, title, &content)
}

fn one(bar: &Bar<'_>, rows: &RowLabels, scale: &Scale, middle: f64, write: &impl Fn(f64) -> String) -> Markup {
    let left = scale.at(0.0);
    let behind = bar.behind.as_ref().and_then(Value::measured);
    html! {
        g class=(bar.class) {
            title { (bar.hover) }
            (rows.label(bar.label, middle))
            @if let Some(behind) = behind {
                rect class="bar behind" x=(Px(left)) y=(Px(middle - 5.0)) width=(Px(scale.at(behind.median) - left)) height="10" {}
            }
            @match &bar.value {
                Value::Measured(value) => {
                    @let end = scale.at(value.median);
                    @let height = if behind.is_some() { 5.0 } else { 10.0 };
                    rect class="bar" x=(Px(left)) y=(Px(middle - height / 2.0)) width=(Px(end - left)) height=(Px(height)) {}
                    @if value.high > value.low {
                        path class="whisker" d=(whisker(scale.at(value.low), scale.at(value.high), middle)) {}
                    }
                    @let furthest = behind.map_or(0.0, |behind| scale.at(behind.median));
                    text class="value" x=(Px(scale.at(value.high).max(end).max(furthest) + 5.0)) y=(Px(middle + 3.8)) {
                        (text(value, behind, write)) (marks(&value.notes))
                    }
                }
                Value::Absent(absent) => {
                    rect class="absent" x=(Px(left)) y=(Px(middle - 5.0)) width="16" height="10" {}
                    text class="value none" x=(Px(left + 21.0)) y=(Px(middle + 3.8)) {
                        "0 " (absent.word) (marks(&absent.notes))
                    }
                }
            }
        }
    }
}

/// Both figures of a bar that has one behind it, in the order in which they are drawn.
fn text(value: &Measured, behind: Option<&Measured>, write: &impl Fn(f64) -> String) -> String {
    match behind {
        Some(behind) => format!("{} | {}", write(value.median), write(behind.median)),
        None => write(value.median),
    }
}

/// A line with a cap at both ends.
fn whisker(from: f64, to: f64, y: f64) -> String {
    format!("M{from:.1} {:.1}v5M{from:.1} {y:.1}H{to:.1}M{to:.1} {:.1}v5", y - 2.5, y - 2.5)
}
