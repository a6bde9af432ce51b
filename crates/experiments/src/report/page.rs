//! A run as a page: one HTML file that loads nothing and reads on paper and in the dark.
//!
//! `page.html` holds the results as JSON, `page.js` lays them out, and plotly.js draws the charts. What a figure means is
//! decided here and in [`super::summary`]; the script computes nothing. JSON leaves no way out of its element, whatever
//! stands in a name, and a policy in the page's head keeps a browser from loading anything.

mod facet;
mod head;
mod ink;
mod notes;
mod plan;

use plotly::Plot;
use serde::Serialize;

use super::Report;
use super::data::{Entry, SCHEMA};
use crate::record::Environment;
use plan::Plan;

/// What the page's script reads.
#[derive(Serialize)]
struct Document<'a> {
    schema: u32,
    title: String,
    quick: Option<String>,
    machines: Vec<Environment>,
    experiments: Vec<Section<'a>>,
}

/// An experiment as in `results.json`, but for its samples, and how it is laid out.
#[derive(Serialize)]
struct Section<'a> {
    #[serde(flatten)]
    entry: Entry<'a>,
    plan: Plan<'a>,
}

/// Writes runs as one self-contained HTML page, each with its own section, in the order given.
///
/// # Errors
/// The results have no form as JSON.
pub fn page(reports: &[Report]) -> Result<String, serde_json::Error> {
    let section = |report| Section { entry: Entry::of(report), plan: Plan::of(&report.summary) };
    let document = Document {
        schema: SCHEMA,
        title: head::title(reports),
        quick: head::quick(reports),
        machines: head::machines(reports.iter().map(|report| &report.summary.header.environment)),
        experiments: reports.iter().map(section).collect(),
    };
    Ok(format!(
        include_str!("page.html"),
        style = include_str!("page.css"),
        // In JSON this stands within texts alone, and none of them ends the element or begins a comment then.
        results = serde_json::to_string(&document)?.replace('<', "\\u003c"),
        script = include_str!("page.js"),
        library = library(),
    ))
}

/// The element with plotly.js. What else the crate has is for formulas, which no chart of ours shows.
fn library() -> String {
    const END: &str = "</script>";
    let sources = Plot::offline_js_sources();
    sources.split_once(END).map_or_else(String::new, |(first, _)| format!("{first}{END}"))
}
