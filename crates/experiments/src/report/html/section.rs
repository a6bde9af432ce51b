//! One experiment: what was claimed, what was found, and the charts.

use maud::{Markup, PreEscaped, html};

use crate::report::Report;
use crate::report::summary::Summary;

use super::context::Context;
use super::{head, overview, parts, table};

/// The section of the `at`th experiment of the page.
pub(super) fn section(at: usize, report: &Report) -> Markup {
    let id = format!("x{at}");
    let context = Context::new(&report.summary, id.clone());
    let experiment = context.experiment();
    html! {
        section id=(id) {
            // Colours only: no text of a run is in it.
            style { (PreEscaped(context.paint.style(&id))) }
            h2 { (experiment.name) @if report.summary.is_quick() { " " span class="badge" { "QUICK" } } }
            p class="lead" { (experiment.title) }
            (head::method(&report.summary.header, report.summary.rounds))
            (claim(report))
            // Curves come before their figures; of bars there are so many that the ratios show the way.
            @if context.curves.is_some() {
                (parts::throughput(&context)) (overview::matrix(&context)) (overview::standings(&context))
            } @else {
                (overview::standings(&context)) (overview::matrix(&context)) (parts::throughput(&context))
            }
            (parts::published(&context))
            (parts::latency(&context))
            (parts::processor(&context))
            (table::figures(&context))
            (context.notes.list(&id, experiment.workloads.len()))
        }
    }
}

fn claim(report: &Report) -> Markup {
    let experiment = report.summary.experiment();
    html! {
        div class="claim" {
            h3 { "Published" }
            blockquote { p { (experiment.claim) } footer { (experiment.source) } }
            p { (verdict(&report.summary)) }
        }
        div class="reading" {
            h3 { "Measured here" }
            @if report.reading.is_empty() { p { "Nothing was measured." } }
            ul { @for sentence in &report.reading { li { (sentence) } } }
        }
    }
}

/// How the published direction came out, in badges.
pub(super) fn verdict(summary: &Summary) -> Markup {
    let tally = summary.tally;
    let badges = [("agree", tally.agree), ("disagree", tally.disagree), ("cannot tell", tally.cannot_tell)];
    html! {
        @if badges.iter().all(|(_, count)| *count == 0) {
            span class="about" { "nothing published to compare" }
        } @else {
            @for (word, count) in badges {
                @if count > 0 { span class={ "verdict " (word.replace(' ', "-")) } { (count) " " (word) } " " }
            }
        }
    }
}
