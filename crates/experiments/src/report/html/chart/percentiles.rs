//! Percentiles of latency: from the median to the thousandth that is slowest, on a logarithmic axis.

use maud::{Markup, html};

use super::super::number::time_us;
use super::super::scale::Scale;
use super::{Px, RowLabels, WIDTH, axis_title, axis_x, frame};

/// One row.
pub(in super::super) struct Row<'a> {
    /// Beside it.
    pub(in super::super) label: &'a str,
    /// Which configuration's colour.
    pub(in super::super) class: String,
    /// Median, 90th, 99th and 99.9th percentile in microseconds; `None` where nothing was measured.
    pub(in super::super) us: Option<[f64; 4]>,
    /// All that can be said of it, shown on hover.
    pub(in super::super) hover: String,
}

/// Draws rows on one axis.
pub(in super::super) fn draw(title: &str, rows: &[Row<'_>]) -> Markup {
    let labels = RowLabels::of(rows.iter().map(|row| row.label));
    let scale = Scale::log(rows.iter().filter_map(|row| row.us).flatten(), labels.left, WIDTH - 12.0);
    let (top, bottom) = (2.0, 4.0 + labels.row * rows.len() as f64);
    let content = html! {
        (axis_x(&scale, &scale.ticks(46.0), top, bottom, time_us_tick))
        (axis_title("latency (log)", WIDTH, bottom + 26.0))
        @for (at, row) in rows.iter().enumerate() {
            @let middle = labels.middle(top, at);
            g class=(row.class) {
                title { (row.hover) }
                (labels.label(row.label, middle))
                @match row.us {
                    Some([p50, p90, p99, p999]) => {
                        line class="span" x1=(Px(scale.at(p50))) x2=(Px(scale.at(p999))) y1=(Px(middle)) y2=(Px(middle)) {}
                        (dots([scale.at(p50), scale.at(p90), scale.at(p99), scale.at(p999)], middle))
                    }
                    None => rect class="absent" x=(Px(labels.left)) y=(Px(middle - 5.0)) width="16" height="10" {},
                }
            }
        }
    };
    frame(bottom + 31.0, title, &content)
}

/// The marks of the four percentiles, as the legend explains them.
fn dots([p50, p90, p99, p999]: [f64; 4], y: f64) -> Markup {
    html! {
        path class="tick" d=(format!("M{p90:.1} {:.1}v7", y - 3.5)) {}
        path class="tick" d=(format!("M{p99:.1} {:.1}v11", y - 5.5)) {}
        circle class="point hollow" cx=(Px(p999)) cy=(Px(y)) r="3.4" {}
        circle class="point" cx=(Px(p50)) cy=(Px(y)) r="4" {}
    }
}

/// What the marks mean.
pub(in super::super) fn legend() -> Markup {
    html! {
        ul class="legend" {
            li {
                svg class="swatch wide" viewBox="0 0 80 12" aria-hidden="true" {
                    line class="span" x1="6" x2="74" y1="6" y2="6" {}
                    (dots([6.0, 28.0, 50.0, 74.0], 6.0))
                }
                "median, p90, p99, p99.9"
            }
        }
    }
}

/// A tick's time has no digits that say nothing.
fn time_us_tick(value: f64) -> String {
    time_us(value).replace(".00 ", " ").replace(".0 ", " ")
}
