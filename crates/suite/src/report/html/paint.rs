//! Which colour each configuration has in every chart of its experiment, as classes and their definitions.

use std::fmt::Write as _;

use crate::experiment::{Configuration, Experiment};
use crate::report::curves::Curves;

use super::palette::{Ink, inks};

/// The colours of one experiment.
pub(super) struct Paint {
    inks: Vec<Ink>,
    /// Ink of each configuration, by place.
    of: Vec<usize>,
}

impl Paint {
    /// A colour a configuration; of those that are points of one curve, a colour a curve.
    pub(super) fn of(experiment: &Experiment, curves: Option<&Curves>) -> Self {
        let configurations = &experiment.configurations;
        let Some(curves) = curves else {
            return Self { inks: inks(configurations), of: (0..configurations.len()).collect() };
        };
        let series_of = |configuration: &Configuration| {
            let holds = |name: &Option<String>| name.as_deref() == Some(configuration.name.as_str());
            curves.series.iter().position(|series| series.configurations.iter().any(holds))
        };
        let mut heads: Vec<Configuration> = Vec::new();
        let mut ink_of_series = vec![None; curves.series.len()];
        let mut of = Vec::with_capacity(configurations.len());
        for configuration in configurations {
            let slot = series_of(configuration).and_then(|series| ink_of_series.get_mut(series));
            match slot {
                Some(Some(ink)) => of.push(*ink),
                slot => {
                    let ink = heads.len();
                    heads.push(configuration.clone());
                    if let Some(slot) = slot {
                        *slot = Some(ink);
                    }
                    of.push(ink);
                }
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
        format!("{}@media screen and (prefers-color-scheme:dark){{{}}}", rules(|ink| &ink.light), rules(|ink| &ink.dark))
    }
}
