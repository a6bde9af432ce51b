//! Which colour each configuration has in every chart of its experiment, as classes and their definitions.

use std::fmt::Write as _;

use crate::experiment::{Configuration, Experiment};
use crate::report::curves::Curves;

use super::facet::{Group, Part, parts};
use super::palette::{Ink, inks};

/// The colours of one experiment.
pub(super) struct Paint {
    inks: Vec<Ink>,
    /// Ink of each configuration, by place.
    of: Vec<usize>,
}

impl Paint {
    /// A colour a configuration. Points of one curve share theirs, and so do configurations and curves of several tables
    /// whose names differ in the table alone.
    pub(super) fn of(experiment: &Experiment, curves: Option<&Curves>, groups: &[Group<'_>]) -> Self {
        let parts = curves.map(|curves| parts(experiment, curves)).unwrap_or_default();
        let mut keys: Vec<String> = Vec::new();
        let mut heads: Vec<&Configuration> = Vec::new();
        let mut of = Vec::with_capacity(experiment.configurations.len());
        for configuration in &experiment.configurations {
            let key = match curves {
                Some(_) => on_curve(&parts, &configuration.name),
                None => in_table(groups, &configuration.name),
            };
            let known = keys.iter().position(|known| *known == key);
            of.push(known.unwrap_or(keys.len()));
            if known.is_none() {
                keys.push(key);
                heads.push(configuration);
            }
        }
        Self { inks: inks(&heads), of }
    }

    /// The place of a configuration's colour among those of the experiment; marks of curves follow it, too.
    pub(super) fn ink_of(&self, experiment: &Experiment, configuration: &str) -> usize {
        let place = experiment.configurations.iter().position(|other| other.name == configuration);
        place.and_then(|place| self.of.get(place).copied()).unwrap_or(0)
    }

    /// Definitions of the classes `c0`, `c1` … for light and for dark screens, below the element `id`.
    pub(super) fn style(&self, id: &str) -> String {
        let rules = |of: fn(&Ink) -> &str| {
            self.inks.iter().enumerate().fold(String::new(), |mut text, (at, ink)| {
                // Writing to a string does not fail.
                let _ = write!(text, "#{id} .c{at}{{--c:{}}}", of(ink));
                text
            })
        };
        format!(
            "{}@media screen and (prefers-color-scheme:dark){{{}}}",
            rules(|ink| &ink.light),
            rules(|ink| &ink.dark)
        )
    }
}

/// The name, within its panel, of the curve that a configuration is a point of, or the configuration's own.
fn on_curve(parts: &[Part<'_>], name: &str) -> String {
    let holds = |place: &Option<String>| place.as_deref() == Some(name);
    let named = parts.iter().flat_map(|part| part.series.iter().zip(&part.short));
    let found = named.into_iter().find(|(series, _)| series.configurations.iter().any(holds));
    found.map_or_else(|| name.to_owned(), |(_, short)| short.clone())
}

/// A configuration's name within its table.
fn in_table(groups: &[Group<'_>], name: &str) -> String {
    let named = groups.iter().flat_map(|group| group.configurations.iter().zip(&group.short));
    let found = named.into_iter().find(|(configuration, _)| configuration.name == name);
    found.map_or_else(|| name.to_owned(), |(_, short)| short.clone())
}
