//! A run as a page: one HTML file that loads nothing, reads without a script, on paper and in the dark.
//!
//! Charts are inline SVG (`chart`), as wide as a phone and laid in a grid, so that they keep the size of their text. Every
//! text of a run is escaped where it enters, and a policy in the page's head keeps a browser from loading anything, whatever
//! stands in a name.

mod chart;
mod context;
mod facet;
mod head;
mod notes;
mod number;
mod overview;
mod paint;
mod palette;
mod panels;
mod parts;
mod scale;
mod section;
mod table;

use maud::{DOCTYPE, PreEscaped, html};

use super::Report;

const STYLE: &str = include_str!("style.css");
/// Sorts tables by the column that is clicked; nothing needs it.
const SORT: &str = include_str!("sort.js");
/// Nothing is loaded; styles and scripts are those in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// Writes runs as one self-contained HTML page, each with its own section, in the order given.
pub fn page(reports: &[Report]) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (head::title(reports)) " – vringd bench" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (patterns())
                (head::head(reports))
                main { @for (at, report) in reports.iter().enumerate() { (section::section(at, report)) } }
                script { (PreEscaped(SORT)) }
            }
        }
    };
    page.into_string().replace(is_no_text, "\u{fffd}")
}

/// Whether a character may not stand in HTML, escaped or not: a name can hold any.
fn is_no_text(letter: char) -> bool {
    let code = u32::from(letter);
    (letter.is_control() && !matches!(letter, '\n' | '\t'))
        || (0xfdd0..=0xfdef).contains(&code)
        || code & 0xfffe == 0xfffe
}

/// The hatching of what shows 0, defined once for all charts.
fn patterns() -> maud::Markup {
    html! {
        svg class="patterns" width="0" height="0" aria-hidden="true" {
            defs {
                pattern id="hatch" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)" {
                    rect width="4" height="4" class="hatch-ground" {}
                    line x1="0" y1="0" x2="0" y2="4" class="hatch-line" {}
                }
            }
        }
    }
}
