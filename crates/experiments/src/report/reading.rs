//! The short automatic reading: who wins where, by how much, what noise hides, what failed, and whether what was published
//! holds. Every sentence can be checked against the tables.

use std::collections::BTreeMap;

use super::curves::{Curves, Series};
use super::summary::{Agreement, Cell, Leader, Standing, State, Summary};
use super::words::{list, plural, times, told, value as value_of, with_interval};

/// A single table of more configurations than this is read by its best and worst alone, as tables are where there are several.
const STANDINGS_MAX: usize = 9;

/// More curves than this are seen in their tables and not read out.
const CLIMBS_MAX: usize = 6;

/// The sentences for `summary`.
pub fn of(summary: &Summary) -> Vec<String> {
    let mut sentences = Vec::new();
    if summary.is_quick() {
        sentences.push("This was a quick run: its figures decide nothing.".to_owned());
    }
    if summary.rounds < 2 && summary.cells.iter().any(|cell| cell.figures.is_some()) {
        sentences.push("One round says nothing about noise, so that no difference counts.".to_owned());
    }
    let curves = Curves::of(summary.experiment());
    if let Some(curves) = curves.as_ref().filter(|curves| curves.series.len() <= CLIMBS_MAX) {
        sentences.extend(climbs(summary, curves));
    }
    let baselines = summary.baselines();
    let standings_max = if curves.is_none() && baselines.len() == 1 { STANDINGS_MAX } else { 2 };
    for baseline in baselines {
        sentences.extend(leaders(summary, baseline, curves.as_ref()));
        sentences.extend(standings(summary, baseline, standings_max));
    }
    sentences.extend(zeros(summary));
    sentences.extend(published(summary));
    sentences
}

/// How each curve goes: where it begins, where it is highest, where it ends.
fn climbs(summary: &Summary, curves: &Curves) -> Vec<String> {
    let show = |value: f64| value_of(summary.measure, value);
    let climb = |series: &Series, workload: &str| {
        let points = series.configurations.iter().zip(&curves.values).filter_map(|(name, along)| {
            let figures = summary.cell(name.as_deref()?, workload)?.figures.as_ref()?;
            Some((along, summary.measure.of_figures(figures).median))
        });
        let points: Vec<(&String, f64)> = points.collect();
        let (first, last) = (points.first()?, points.last()?);
        let most = points.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        let mut parts = vec![format!("{} at {}", show(first.1), first.0)];
        if most.0 != first.0 && most.0 != last.0 {
            parts.push(format!("most {} at {}", show(most.1), most.0));
        }
        if last.0 != first.0 {
            parts.push(format!("{} at {}", show(last.1), last.0));
        }
        Some(format!("{} {}", series.name, parts.join(", ")))
    };
    let sentence = |workload: &str| {
        let climbs: Vec<String> = curves.series.iter().filter_map(|series| climb(series, workload)).collect();
        (!climbs.is_empty())
            .then(|| format!("{} by {} under {workload}: {}.", summary.measure.unit(), curves.axis, climbs.join("; ")))
    };
    summary.experiment().workloads.iter().filter_map(|workload| sentence(&workload.name)).collect()
}

/// Who leads a table. Of one without curves and of two configurations, the standing says the same.
fn leaders(summary: &Summary, baseline: &str, curves: Option<&Curves>) -> Option<String> {
    let measured = |name: &str| summary.cells.iter().any(|cell| cell.configuration == name && cell.figures.is_some());
    let table = summary.standings.iter().filter(|standing| standing.baseline == baseline);
    let configurations = table.filter(|standing| measured(&standing.configuration)).count();
    let leaders: Vec<&Leader> = summary.leaders.iter().filter(|leader| leader.baseline == baseline).collect();
    if configurations < 3 || leaders.is_empty() {
        return None;
    }
    let (hidden, clear): (Vec<&Leader>, Vec<&Leader>) = leaders.iter().partition(|leader| leader.ratio.is_hidden());
    let mut led: BTreeMap<&str, Vec<&Leader>> = BTreeMap::new();
    for leader in clear {
        let series = curves.and_then(|curves| curves.find(&leader.configuration));
        let name = series.map_or(leader.configuration.as_str(), |(series, _)| &series.name);
        led.entry(name).or_default().push(leader);
    }
    let mut most_first: Vec<(&str, Vec<&Leader>)> = led.into_iter().collect();
    most_first.sort_by_key(|(_, led)| std::cmp::Reverse(led.len()));
    let mut parts: Vec<String> =
        most_first.iter().map(|(name, led)| format!("{name} leads {} ({})", led.len(), lead(led))).collect();
    if !hidden.is_empty() {
        parts.push(format!("noise hides who leads {}", hidden.len()));
    }
    let at = curves.map_or_else(String::new, |curves| format!(" at each value of {}", curves.axis));
    Some(format!(
        "The {configurations} configurations around {baseline}, ranked under each workload{at} ({}): {}.",
        plural(leaders.len(), "ranking"),
        parts.join("; ")
    ))
}

/// By how much the leader is ahead of the next: `by 1.20x`, `by 1.20x to 1.50x`.
fn lead(led: &[&Leader]) -> String {
    let ratios = || led.iter().map(|leader| leader.ratio.value);
    let (least, most) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
    if led.len() == 1 { format!("by {}", told(most)) } else { format!("by {} to {}", told(least), told(most)) }
}

/// Each configuration against the baseline of its table.
fn standings(summary: &Summary, baseline: &str, standings_max: usize) -> Vec<String> {
    let mut rated: Vec<(&Standing, f64)> = summary
        .standings
        .iter()
        .filter(|standing| standing.baseline == baseline)
        .filter_map(|standing| Some((standing, standing.mean?.value)))
        .collect();
    if rated.len() > standings_max {
        rated.sort_by(|a, b| b.1.total_cmp(&a.1));
        let (first, last) = (rated.first().copied(), rated.last().copied());
        rated = first.into_iter().chain(last).collect();
    }
    rated.into_iter().map(|(standing, _)| standing_sentence(summary, standing)).collect()
}

fn standing_sentence(summary: &Summary, standing: &Standing) -> String {
    let own = || summary.cells.iter().filter(|cell| cell.configuration == standing.configuration);
    let clear = || own().filter_map(|cell| Some((cell, cell.ratio.filter(|ratio| !ratio.is_hidden())?.value)));
    let most = |pick: Option<(&Cell, f64)>| {
        pick.map_or_else(String::new, |(cell, ratio)| format!(", most under {} ({})", cell.workload, told(ratio)))
    };
    let mut parts = Vec::new();
    if standing.faster > 0 {
        let best = clear().max_by(|a, b| a.1.total_cmp(&b.1));
        parts.push(format!("faster under {}{}", standing.faster, most(best)));
    }
    if standing.slower > 0 {
        let worst = clear().min_by(|a, b| a.1.total_cmp(&b.1));
        parts.push(format!("slower under {}{}", standing.slower, most(worst)));
    }
    if standing.hidden > 0 {
        parts.push(format!("no difference beyond noise under {}", standing.hidden));
    }
    let mean =
        standing.mean.as_ref().map_or_else(String::new, |mean| format!("; geometric mean {}", with_interval(mean)));
    format!(
        "{} against {}, over {}: {}{mean}.",
        standing.configuration,
        standing.baseline,
        plural(standing.compared as usize, "workload"),
        parts.join("; ")
    )
}

/// What shows 0 or nothing, by reason.
fn zeros(summary: &Summary) -> Vec<String> {
    let mut groups: Vec<(Zero<'_>, Vec<&str>, usize)> = Vec::new();
    let mut missing = 0;
    for cell in &summary.cells {
        let zero = match &cell.state {
            State::Failed { reason } => Zero::Failed(reason),
            State::Unsupported { reason } => Zero::Unsupported(reason),
            State::Missing => {
                missing += 1;
                continue;
            }
            State::Measured => match cell.failures.last() {
                Some(failure) => Zero::Partly(&failure.reason),
                None => continue,
            },
        };
        let known = groups.iter().position(|(known, _, _)| *known == zero).unwrap_or_else(|| {
            groups.push((zero, Vec::new(), 0));
            groups.len() - 1
        });
        if let Some((_, configurations, pairs)) = groups.get_mut(known) {
            *pairs += 1;
            if !configurations.contains(&cell.configuration.as_str()) {
                configurations.push(&cell.configuration);
            }
        }
    }
    let mut sentences: Vec<String> = groups.iter().map(|(zero, names, pairs)| zero.sentence(names, *pairs)).collect();
    if missing > 0 {
        sentences.push(format!("{missing} of {} have no sample.", plural(summary.cells.len(), "pair")));
    }
    sentences
}

/// Why there is no figure, or one of fewer rounds.
#[derive(Clone, Copy, PartialEq)]
enum Zero<'a> {
    Failed(&'a str),
    Unsupported(&'a str),
    Partly(&'a str),
}

impl Zero<'_> {
    fn sentence(self, configurations: &[&str], pairs: usize) -> String {
        let (names, pairs) = (list(configurations), plural(pairs, "workload"));
        match self {
            Self::Failed(reason) => format!("{names} failed under {pairs}: {}.", unended(reason)),
            Self::Unsupported(reason) => format!("{names} cannot be run under {pairs}: {}.", unended(reason)),
            Self::Partly(reason) => format!("{names} failed in some rounds under {pairs}: {}.", unended(reason)),
        }
    }
}

/// A sentence without its full stop.
fn unended(sentence: &str) -> &str {
    sentence.trim_end().trim_end_matches('.')
}

/// Whether what was published holds here.
fn published(summary: &Summary) -> Vec<String> {
    let experiment = summary.experiment();
    if experiment.published.is_none() || summary.tally.total() == 0 {
        return Vec::new();
    }
    let mut sentences = vec![format!("Published: {} ({}).", unended(&experiment.claim), experiment.source)];
    for agreement in [Agreement::Agree, Agreement::Disagree, Agreement::CannotTell] {
        let standings = summary.standings.iter().filter(|standing| standing.agreement == Some(agreement));
        let pairs: Vec<String> = standings.filter_map(|standing| published_pair(summary, standing)).collect();
        if !pairs.is_empty() {
            let verdict = match agreement {
                Agreement::Agree => "The directions agree",
                Agreement::Disagree => "The directions disagree",
                Agreement::CannotTell => "Whether the directions agree cannot be told",
            };
            sentences.push(format!("{verdict} (geometric means) for {}.", pairs.join("; ")));
        }
    }
    let tally = &summary.tally;
    sentences.push(format!(
        "Of {} with published figures, {} agree, {} disagree and {} cannot be told.",
        plural(tally.total() as usize, "comparison"),
        tally.agree,
        tally.disagree,
        tally.cannot_tell
    ));
    sentences
}

/// The published mean of a configuration beside ours: `two over one: 1.80x there (their two over their one), 2.01x here`.
fn published_pair(summary: &Summary, standing: &Standing) -> Option<String> {
    let (theirs, ours) = (standing.published?, standing.published_ours?);
    let their_name = |name: &str| {
        let figures = summary.cells.iter().filter(|cell| cell.configuration == name);
        let mut names = figures.filter_map(|cell| Some(&cell.published.as_ref()?.figure.their_configuration));
        names.next().map_or_else(|| name.to_owned(), String::clone)
    };
    let experiment = summary.experiment();
    let configuration = experiment.configurations.iter().find(|c| c.name == standing.configuration)?;
    let baseline = experiment.published_baseline_of(configuration)?;
    Some(format!(
        "{} over {baseline}: {} there ({} over {}), {} here",
        standing.configuration,
        times(theirs),
        their_name(&standing.configuration),
        their_name(baseline),
        with_interval(&ours)
    ))
}
