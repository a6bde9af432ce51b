//! What is shown together: configurations with one baseline, workloads of one kind.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::experiment::{Configuration, Experiment, Workload};
use crate::report::curves::{Curves, Series};

/// Configurations that are compared with each other.
#[derive(Serialize)]
pub(super) struct Group<'a> {
    /// What they have in common and others have not; empty where there is one group.
    pub(super) title: String,
    baseline: &'a str,
    pub(super) configurations: Vec<Named<'a>>,
}

/// A configuration of a group.
#[derive(Serialize)]
pub(super) struct Named<'a> {
    pub(super) name: &'a str,
    /// Its name without the words that all of the group have in common.
    pub(super) short: String,
}

/// Curves that are drawn in one panel.
#[derive(Serialize)]
pub(super) struct Part {
    /// What they have in common and others have not; empty where there is one part.
    title: String,
    pub(super) curves: Vec<Curve>,
}

/// A curve of a part.
#[derive(Serialize)]
pub(super) struct Curve {
    /// Its name without the words that all of the part have in common.
    pub(super) short: String,
    /// Names of the configurations along the axis.
    pub(super) configurations: Vec<Option<String>>,
}

/// Workloads of one kind.
pub(super) struct Facet<'a> {
    /// What they have in common; empty where there is one facet.
    pub(super) title: String,
    pub(super) workloads: Vec<&'a Workload>,
}

/// More curves than this are drawn in several panels.
const CURVES_TOGETHER: usize = 8;
/// More workloads than this are shown in facets.
const WORKLOADS_TOGETHER: usize = 9;
/// A label with more values than this makes no facets.
const FACETS_MAX: usize = 6;

/// The tables of an experiment: those with one baseline are together.
pub(super) fn groups(experiment: &Experiment) -> Vec<Group<'_>> {
    let mut parts: Vec<(&str, Vec<&Configuration>)> = Vec::new();
    for configuration in &experiment.configurations {
        let baseline = experiment.baseline_of(configuration);
        match parts.iter_mut().find(|(known, _)| *known == baseline) {
            Some((_, part)) => part.push(configuration),
            None => parts.push((baseline, vec![configuration])),
        }
    }
    let many = parts.len() > 1;
    parts
        .into_iter()
        .map(|(baseline, configurations)| {
            let names: Vec<&str> = configurations.iter().map(|configuration| configuration.name.as_str()).collect();
            let (common, short) = if many { without_common(&names) } else { (String::new(), owned(&names)) };
            let title = match (many, labels_in_common(experiment, &configurations), common) {
                (false, ..) => String::new(),
                (true, Some(labels), _) => labels,
                (true, None, common) if common.is_empty() => format!("beside {baseline}"),
                (true, None, common) => common,
            };
            let named = names.into_iter().zip(short).map(|(name, short)| Named { name, short });
            Group { title, baseline, configurations: named.collect() }
        })
        .collect()
}

/// The labels that all of `some` share and that others have differently.
fn labels_in_common(experiment: &Experiment, some: &[&Configuration]) -> Option<String> {
    let shared = some.first()?.labels.iter().filter(|(axis, value)| {
        some.iter().all(|other| other.labels.get(*axis) == Some(value))
            && experiment.configurations.iter().any(|other| other.labels.get(*axis) != Some(value))
    });
    let values: Vec<&str> = shared.map(|(_, value)| value.as_str()).collect();
    (!values.is_empty()).then(|| values.join(", "))
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The words with which all names begin or end, and the names without them. No name is left empty.
fn without_common(names: &[&str]) -> (String, Vec<String>) {
    const BETWEEN: [char; 6] = [' ', '-', '_', '/', ',', ':'];
    let words: Vec<Vec<&str>> = names.iter().map(|name| name.split_inclusive(BETWEEN).collect()).collect();
    let (Some(first), true) = (words.first(), names.len() > 1) else { return (String::new(), owned(names)) };
    let bare = |word: Option<&&str>| word.map(|word| word.trim_end_matches(BETWEEN).to_owned());
    let spare = words.iter().map(Vec::len).min().unwrap_or(0).saturating_sub(1);
    let same = |of: &dyn Fn(&[&str]) -> Option<String>| words.iter().all(|other| of(other) == of(first));
    let head = (0..spare).take_while(|at| same(&|words| bare(words.get(*at)))).count();
    let tail = (0..spare - head).take_while(|at| same(&|words| bare(words.iter().rev().nth(*at)))).count();
    let clean = |part: &[&str]| part.concat().trim_matches(BETWEEN).to_owned();
    let short = words.iter().map(|words| clean(words.get(head..words.len().saturating_sub(tail)).unwrap_or_default()));
    let common =
        [first.get(..head), first.get(first.len().saturating_sub(tail)..)].map(Option::unwrap_or_default).map(clean);
    (common.join(" ").trim().to_owned(), short.collect())
}

/// The curves of each panel: all, or those with one value of the label that parts them best.
pub(super) fn parts(experiment: &Experiment, curves: &Curves) -> Vec<Part> {
    let parts = parted(experiment, curves).into_iter();
    parts
        .map(|(title, series)| {
            let names: Vec<&str> = series.iter().map(|series| series.name.as_str()).collect();
            let (_, short) = without_common(&names);
            let named = series.into_iter().zip(short);
            let curves = named.map(|(series, short)| Curve { short, configurations: series.configurations.clone() });
            Part { title, curves: curves.collect() }
        })
        .collect()
}

fn parted<'c>(experiment: &Experiment, curves: &'c Curves) -> Vec<(String, Vec<&'c Series>)> {
    let all: Vec<&Series> = curves.series.iter().collect();
    if all.len() <= CURVES_TOGETHER {
        return vec![(String::new(), all)];
    }
    let label = |series: &Series, axis: &str| {
        let name = series.configurations.iter().flatten().next()?;
        experiment.configurations.iter().find(|other| other.name == *name)?.labels.get(axis).cloned()
    };
    let axes = experiment.configurations.iter().flat_map(|configuration| configuration.labels.keys());
    let by_axis = axes.filter(|axis| **axis != curves.axis).map(|axis| {
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
    // The fewest panels that are not too full: a panel with a single curve compares nothing.
    let fullest = |parts: &[(String, Vec<&Series>)]| parts.iter().map(|(_, part)| part.len()).max().unwrap_or(0);
    let comparing = by_axis.filter(|parts| parts.len() > 1 && parts.iter().all(|(_, part)| part.len() > 1));
    let best = comparing.min_by_key(|parts| (fullest(parts).max(CURVES_TOGETHER), parts.len()));
    best.unwrap_or_else(|| vec![(String::new(), all)])
}

/// Workloads by the value of the axis that parts them into the fewest kinds; `engine` before any other.
pub(super) fn facets(experiment: &Experiment) -> Vec<Facet<'_>> {
    let workloads: Vec<&Workload> = experiment.workloads.iter().collect();
    let axis = (workloads.len() > WORKLOADS_TOGETHER).then(|| parting_axis(&workloads)).flatten();
    let Some(axis) = axis else { return vec![Facet { title: String::new(), workloads }] };
    let mut facets: Vec<Facet<'_>> = Vec::new();
    for workload in workloads {
        let value = workload.labels.get(&axis).map_or("", String::as_str);
        match facets.iter_mut().find(|facet| facet.title == value) {
            Some(facet) => facet.workloads.push(workload),
            None => facets.push(Facet { title: value.to_owned(), workloads: vec![workload] }),
        }
    }
    facets
}

fn parting_axis(workloads: &[&Workload]) -> Option<String> {
    let axes: BTreeSet<&String> = workloads.iter().flat_map(|workload| workload.labels.keys()).collect();
    let kinds =
        |axis: &String| workloads.iter().map(|workload| workload.labels.get(axis)).collect::<BTreeSet<_>>().len();
    let useful = axes.into_iter().filter(|axis| (2..=FACETS_MAX).contains(&kinds(axis)));
    useful.min_by_key(|axis| (axis.as_str() != "engine", kinds(axis))).cloned()
}

/// A few workloads that stand for all: of each facet one that reads and one that writes at random, else those that lie evenly
/// among all.
pub(super) fn chosen<'a>(facets: &[Facet<'a>]) -> Vec<&'a Workload> {
    const MANY: usize = 6;
    let all: Vec<&Workload> = facets.iter().flat_map(|facet| facet.workloads.iter().copied()).collect();
    if all.len() <= MANY {
        return all;
    }
    let of_kind = |facet: &Facet<'a>, kind: &str| {
        facet.workloads.iter().copied().find(|workload| direction(workload).is_some_and(|found| found == kind))
    };
    let random: Vec<&Workload> =
        facets.iter().flat_map(|facet| ["randread", "randwrite"].map(|kind| of_kind(facet, kind))).flatten().collect();
    if (2..=MANY).contains(&random.len()) {
        return random;
    }
    all.iter().copied().step_by(all.len().div_ceil(MANY)).collect()
}

/// Whether a workload reads or writes, in fio's words.
fn direction(workload: &Workload) -> Option<&String> {
    ["rw", "readwrite"].iter().find_map(|key| workload.fio.get(*key).or_else(|| workload.frontend.get(*key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_words_are_said_once() {
        let (common, short) = without_common(&["nvme inline", "nvme pool 4", "nvme pool 16"]);
        assert_eq!((common.as_str(), short), ("nvme", vec!["inline".to_owned(), "pool 4".into(), "pool 16".into()]));
        let (common, short) = without_common(&["vringd 1 worker disk", "vringd 2 worker disk"]);
        assert_eq!((common.as_str(), short), ("vringd worker disk", vec!["1".to_owned(), "2".into()]));
        let (common, short) = without_common(&["disk-host-…", "disk-storage-daemon-…"]);
        assert_eq!((common.as_str(), short), ("disk …", vec!["host".to_owned(), "storage-daemon".into()]));
    }

    #[test]
    fn no_name_becomes_empty() {
        let (_, short) = without_common(&["host", "host direct"]);
        assert_eq!(short, ["host", "host direct"]);
        let (_, short) = without_common(&["same", "same"]);
        assert_eq!(short, ["same", "same"]);
        assert_eq!(without_common(&["alone here"]).1, ["alone here"]);
        assert!(without_common(&[]).1.is_empty());
    }
}
