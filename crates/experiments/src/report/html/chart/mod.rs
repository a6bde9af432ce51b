//! Charts as inline SVG. A chart knows what it draws and nothing of experiments; its colours are classes that the page
//! defines, so that it follows the reader's dark or light screen.

pub(super) mod bars;
pub(super) mod curve;
pub(super) mod percentiles;
pub(super) mod ratios;

use maud::{Markup, Render, html};

use super::scale::Scale;

/// Width of a chart in its own units: as wide as a phone, so that text keeps its size there.
pub(super) const WIDTH: f64 = 380.0;
/// Size of a chart's text.
const TEXT: f64 = 11.0;
/// What labels may take of a row before they get a line of their own.
const LABEL_MAX: f64 = 165.0;

/// A value to draw, or why there is none.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A median with the smallest and the largest round.
    Measured(Measured),
    /// Nothing was measured.
    Absent(Absent),
}

/// A median with its spread.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Notes to refer to, for example of rounds that failed.
    pub(super) notes: Vec<usize>,
}

/// Why there is no figure.
#[derive(Clone, Debug)]
pub(super) struct Absent {
    /// `failed`, `unsupported` or `not run`.
    pub(super) word: &'static str,
    /// Notes to refer to.
    pub(super) notes: Vec<usize>,
}

impl Value {
    pub(super) fn measured(&self) -> Option<&Measured> {
        match self {
            Self::Measured(measured) => Some(measured),
            Self::Absent(_) => None,
        }
    }
}

/// A coordinate: a tenth of a unit is finer than any screen.
#[derive(Clone, Copy)]
struct Px(f64);

impl Render for Px {
    fn render_to(&self, text: &mut String) {
        let value = if self.0.is_finite() { self.0 } else { 0.0 };
        let written = format!("{value:.1}");
        text.push_str(written.strip_suffix(".0").unwrap_or(&written));
    }
}

/// How wide a text is about, in a chart's units: fonts differ, so on the generous side.
fn width_of(text: &str) -> f64 {
    let em: f64 = text
        .chars()
        .map(|letter| match letter {
            'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | 'I' | ' ' | 't' | 'f' | 'r' | '(' | ')' => 0.36,
            'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.9,
            'A'..='Z' => 0.68,
            _ if letter.is_ascii() => 0.575,
            _ => 0.8,
        })
        .sum();
    em * TEXT
}

/// The text, its middle left out where it is wider than `room`: names differ at both ends.
fn fitted(text: &str, room: f64) -> String {
    if width_of(text) <= room {
        return text.to_owned();
    }
    let letters: Vec<char> = text.chars().collect();
    let kept = |count: usize| {
        let head = count.div_ceil(2);
        let tail = letters.len() - (count - head);
        format!("{}…{}", letters.iter().take(head).collect::<String>(), letters.iter().skip(tail).collect::<String>())
    };
    (1..letters.len()).rev().map(kept).find(|short| width_of(short) <= room).unwrap_or_else(|| "…".to_owned())
}

/// An `svg` element of `height`, with its title for those who hear it.
fn frame(height: f64, title: &str, content: &Markup) -> Markup {
    html! {
        svg class="chart" viewBox=(format!("0 0 {WIDTH} {height:.0}")) role="img" aria-label=(title) {
            title { (title) }
            (content)
        }
    }
}

/// Vertical rules with their values below, along the bottom of a chart.
fn axis_x(scale: &Scale, ticks: &[f64], top: f64, bottom: f64, format: impl Fn(f64) -> String) -> Markup {
    html! {
        g class="axis" {
            @for tick in ticks {
                line x1=(Px(scale.at(*tick))) x2=(Px(scale.at(*tick))) y1=(Px(top)) y2=(Px(bottom)) {}
                text x=(Px(scale.at(*tick))) y=(Px(bottom + 13.0)) text-anchor="middle" { (format(*tick)) }
            }
        }
    }
}

/// The unit of an axis, below its right end.
fn axis_title(text: &str, x: f64, y: f64) -> Markup {
    html! { text class="unit" x=(Px(x)) y=(Px(y)) text-anchor="end" { (text) } }
}

/// Small raised numbers of notes.
fn marks(notes: &[usize]) -> Markup {
    html! {
        @if !notes.is_empty() { tspan class="mark" dx="3" dy="-3" { @for note in notes { "[" (note) "]" } } }
    }
}

/// A row's label and where the row lies.
struct RowLabels {
    /// Whether labels have lines of their own.
    stacked: bool,
    /// Where the drawing begins.
    left: f64,
    /// Height of a row.
    row: f64,
}

impl RowLabels {
    /// The layout in which all of `labels` can be read.
    fn of<'a>(labels: impl Iterator<Item = &'a str>) -> Self {
        let widest = labels.map(width_of).fold(0.0, f64::max);
        if widest <= LABEL_MAX {
            Self { stacked: false, left: widest + 10.0, row: 17.0 }
        } else {
            Self { stacked: true, left: 8.0, row: 28.0 }
        }
    }

    /// The middle of the `at`th row's drawing.
    fn middle(&self, top: f64, at: usize) -> f64 {
        top + self.row * at as f64 + if self.stacked { 20.5 } else { self.row / 2.0 }
    }

    /// The label of the row whose drawing has its middle at `middle`.
    fn label(&self, text: &str, middle: f64) -> Markup {
        html! {
            @if self.stacked {
                text class="label" x=(Px(2.0)) y=(Px(middle - 9.0)) { (fitted(text, WIDTH - 6.0)) }
            } @else {
                text class="label" x=(Px(self.left - 6.0)) y=(Px(middle + 3.8)) text-anchor="end" { (text) }
            }
        }
    }
}

/// The mark of a point on a curve. Shapes differ, so that lines can be told apart without their colours.
fn shape(kind: usize, x: f64, y: f64) -> Markup {
    let around = |corners: &[(f64, f64)]| {
        corners.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect::<Vec<_>>().join(" ")
    };
    html! {
        @match kind % 8 {
            0 => circle class="point" cx=(Px(x)) cy=(Px(y)) r="3.4" {},
            1 => rect class="point" x=(Px(x - 3.0)) y=(Px(y - 3.0)) width="6" height="6" {},
            2 => polygon class="point" points=(around(&[(0.0, -4.2), (3.9, 2.9), (-3.9, 2.9)])) {},
            3 => polygon class="point" points=(around(&[(0.0, -4.4), (4.4, 0.0), (0.0, 4.4), (-4.4, 0.0)])) {},
            4 => polygon class="point" points=(around(&[(0.0, 4.2), (3.9, -2.9), (-3.9, -2.9)])) {},
            5 => circle class="point hollow" cx=(Px(x)) cy=(Px(y)) r="3.2" {},
            6 => rect class="point hollow" x=(Px(x - 2.8)) y=(Px(y - 2.8)) width="5.6" height="5.6" {},
            _ => polygon class="point hollow" points=(around(&[(0.0, -4.2), (4.2, 0.0), (0.0, 4.2), (-4.2, 0.0)])) {},
        }
    }
}

/// A block of colour for a legend.
pub(super) fn swatch() -> Markup {
    html! {
        svg class="swatch" viewBox="0 0 22 12" aria-hidden="true" {
            rect class="bar" x="2" y="1" width="18" height="10" rx="1.5" {}
        }
    }
}

/// A line for a legend, with its mark or dashed.
pub(super) fn swatch_of_line(mark: Option<usize>) -> Markup {
    html! {
        svg class="swatch" viewBox="0 0 22 12" aria-hidden="true" {
            line class={ "curve" @if mark.is_none() { " level" } } x1="0" x2="22" y1="6" y2="6" {}
            @if let Some(mark) = mark { (shape(mark, 11.0, 6.0)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_both_ends() {
        let name = "vringd dir cache=always with a pool of 64 threads on one node";
        let short = fitted(name, 120.0);
        assert!(width_of(&short) <= 120.0);
        assert!(short.starts_with("vringd") && short.ends_with("node") && short.contains('…'), "{short}");
        assert_eq!(fitted("short", 120.0), "short");
        assert_eq!(fitted("anything", 0.0), "…");
    }

    #[test]
    fn coordinates_are_short_and_finite() {
        assert_eq!(html! { (Px(1.0)) " " (Px(1.26)) " " (Px(f64::NAN)) }.into_string(), "1 1.3 0");
    }
}
