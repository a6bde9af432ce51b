//! Ratios on a logarithmic axis, with the line at which nothing differs: ours filled with its interval, a published one
//! hollow, and what lies between them.

use maud::{Markup, html};

use super::super::number::ratio;
use super::super::scale::Scale;
use super::{Px, RowLabels, WIDTH, axis_title, axis_x, frame};

/// One row.
pub(in super::super) struct Row<'a> {
    /// Beside it.
    pub(in super::super) label: &'a str,
    /// Which configuration's colour.
    pub(in super::super) class: String,
    /// Our ratio with its interval.
    pub(in super::super) ours: Option<Interval>,
    /// The published ratio.
    pub(in super::super) published: Option<f64>,
    /// Whether the two say the same, a sign at the end of the row; empty where there is nothing to compare.
    pub(in super::super) sign: &'static str,
    /// All that can be said of it, shown on hover.
    pub(in super::super) hover: String,
}

/// A ratio and where it may lie.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Interval {
    pub(in super::super) ratio: f64,
    pub(in super::super) low: f64,
    pub(in super::super) high: f64,
    /// Whether noise hides the difference: the mark is then pale.
    pub(in super::super) hidden: bool,
}

/// Intervals of few noisy rounds can be endless; a chart that shows them whole shows nothing else.
const AXIS: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// Draws rows on one axis. `what` says what the ratios are of.
pub(in super::super) fn draw(title: &str, rows: &[Row<'_>], what: &str) -> Markup {
    let labels = RowLabels::of(rows.iter().map(|row| row.label));
    let ratios = rows.iter().flat_map(|row| [row.ours.map(|ours| ours.ratio), row.published]).flatten();
    let bounds = rows.iter().filter_map(|row| row.ours).flat_map(|ours| [ours.low, ours.high]);
    let shown = ratios.chain(bounds.filter(|bound| AXIS.contains(bound)));
    let scale = Scale::log(shown.chain([1.0]), labels.left, WIDTH - 22.0);
    let (top, bottom) = (2.0, 4.0 + labels.row * rows.len() as f64);
    let content = html! {
        (axis_x(&scale, &scale.ticks(40.0), top, bottom, ratio_tick))
        line class="one" x1=(Px(scale.at(1.0))) x2=(Px(scale.at(1.0))) y1=(Px(top)) y2=(Px(bottom)) {}
        (axis_title(what, WIDTH, bottom + 26.0))
        @for (at, row) in rows.iter().enumerate() {
            (one(row, &labels, &scale, labels.middle(top, at)))
        }
    };
    frame(bottom + 31.0, title, &content)
}

fn one(row: &Row<'_>, labels: &RowLabels, scale: &Scale, middle: f64) -> Markup {
    html! {
        g class=(row.class) {
            title { (row.hover) }
            (labels.label(row.label, middle))
            text class="sign" x=(Px(WIDTH - 4.0)) y=(Px(middle + 3.8)) text-anchor="end" { (row.sign) }
            @if let (Some(ours), Some(published)) = (row.ours, row.published) {
                line class="between" x1=(Px(scale.at(published))) x2=(Px(scale.at(ours.ratio))) y1=(Px(middle)) y2=(Px(middle)) {}
            }
            @if let Some(ours) = row.ours {
                line class="span" x1=(Px(scale.at(ours.low))) x2=(Px(scale.at(ours.high))) y1=(Px(middle)) y2=(Px(middle)) {}
            }
            @if let Some(published) = row.published {
                circle class="point hollow" cx=(Px(scale.at(published))) cy=(Px(middle)) r="4.2" {}
            }
            @if let Some(ours) = row.ours {
                circle class={ "point" @if ours.hidden { " pale" } } cx=(Px(scale.at(ours.ratio))) cy=(Px(middle)) r="4" {}
            }
        }
    }
}

/// What the marks mean.
pub(in super::super) fn legend(published: bool) -> Markup {
    html! {
        ul class="legend" {
            li {
                svg class="swatch wide" viewBox="0 0 44 12" aria-hidden="true" {
                    line class="span" x1="4" x2="40" y1="6" y2="6" {}
                    circle class="point" cx="22" cy="6" r="4" {}
                }
                "ours, with its interval"
            }
            li {
                svg class="swatch" viewBox="0 0 22 12" aria-hidden="true" { circle class="point pale" cx="11" cy="6" r="4" {} }
                "ours, where noise hides a difference"
            }
            @if published {
                li {
                    svg class="swatch" viewBox="0 0 22 12" aria-hidden="true" {
                        circle class="point hollow" cx="11" cy="6" r="4.2" {}
                    }
                    "published"
                }
                li { "= agree, ≠ disagree, ? cannot tell" }
            }
        }
    }
}

fn ratio_tick(value: f64) -> String {
    let text = ratio(value);
    let number = text.trim_end_matches('×');
    if number.contains('.') { format!("{}×", number.trim_end_matches('0').trim_end_matches('.')) } else { text }
}
