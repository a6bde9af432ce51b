//! Which configurations are points of one curve: those that differ in a numeric axis alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::experiment::{Configuration, Experiment};

/// A numeric axis of an experiment, and the curves along it.
#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    /// Name of the axis, for example `jobs`.
    pub axis: String,
    /// Its values as written, in ascending order.
    pub values: Vec<String>,
    /// One curve for each kind of configuration that has the axis.
    pub series: Vec<Series>,
    /// Names of the configurations that have no value on the axis.
    pub others: Vec<String>,
}

/// One curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What its configurations have in common: their name with `…` for the value of the axis.
    pub name: String,
    /// Name of the configuration at each of [`Curves::values`].
    pub configurations: Vec<Option<String>>,
}

/// Fewer values than this are columns like any other.
const VALUES_MIN: usize = 3;

impl Curves {
    /// The curves of `experiment`: along the numeric axis of its configurations that has the most values. `None` where no axis
    /// is numeric and has three values.
    pub fn of(experiment: &Experiment) -> Option<Self> {
        let labels = experiment.configurations.iter().flat_map(|configuration| configuration.labels.keys());
        let axes: BTreeSet<&str> = labels.map(String::as_str).collect();
        let (axis, values) = axes
            .into_iter()
            .filter_map(|axis| numeric_values(experiment, axis).map(|values| (axis, values)))
            // Of axes with equally many values the first by name, so that a report is the same each time.
            .max_by(|a, b| a.1.len().cmp(&b.1.len()).then_with(|| b.0.cmp(a.0)))?;
        let templates = Templates::of(experiment, axis);
        let mut curves = Self { axis: axis.to_owned(), values, series: Vec::new(), others: Vec::new() };
        for configuration in &experiment.configurations {
            let place = configuration.labels.get(axis).and_then(|value| curves.values.iter().position(|v| v == value));
            match place {
                Some(place) => curves.add(templates.name(configuration, axis), place, &configuration.name),
                None => curves.others.push(configuration.name.clone()),
            }
        }
        Some(curves)
    }

    /// The curve that a configuration is on, and where, by its place among [`Curves::values`].
    pub fn find(&self, configuration: &str) -> Option<(&Series, usize)> {
        self.series.iter().find_map(|series| {
            let place = series.configurations.iter().position(|name| name.as_deref() == Some(configuration))?;
            Some((series, place))
        })
    }

    fn add(&mut self, series: String, place: usize, configuration: &str) {
        let known = self.series.iter().position(|known| known.name == series);
        let known = known.unwrap_or_else(|| {
            self.series.push(Series { name: series, configurations: vec![None; self.values.len()] });
            self.series.len() - 1
        });
        if let Some(point) = self.series.get_mut(known).and_then(|series| series.configurations.get_mut(place)) {
            *point = Some(configuration.to_owned());
        }
    }
}

/// The values of `axis` in ascending order; `None` where one is not a number or there are too few.
fn numeric_values(experiment: &Experiment, axis: &str) -> Option<Vec<String>> {
    let mut values: Vec<(f64, &String)> = Vec::new();
    for value in experiment.configurations.iter().filter_map(|c| c.labels.get(axis)) {
        let number: f64 = value.parse().ok()?;
        if !values.iter().any(|(_, known)| *known == value) {
            values.push((number, value));
        }
    }
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    (values.len() >= VALUES_MIN).then(|| values.into_iter().map(|(_, value)| value.clone()).collect())
}

/// Names with one number left out, and how many configurations share each.
///
/// A name such as `vringd q1 w1` has its number of queues in one of two places; the place that leaves the same rest for the
/// most configurations is that of the axis.
struct Templates(BTreeMap<String, usize>);

impl Templates {
    fn of(experiment: &Experiment, axis: &str) -> Self {
        let mut shared = BTreeMap::new();
        for configuration in &experiment.configurations {
            if let Some(value) = configuration.labels.get(axis) {
                for template in without_number(&configuration.name, value) {
                    *shared.entry(template).or_default() += 1;
                }
            }
        }
        Self(shared)
    }

    /// What the configurations of its curve have in common.
    fn name(&self, configuration: &Configuration, axis: &str) -> String {
        let templates = configuration.labels.get(axis).map(|value| without_number(&configuration.name, value));
        let best = templates.into_iter().flatten().max_by_key(|template| self.0.get(template).copied().unwrap_or(0));
        best.unwrap_or_else(|| {
            // A name that does not hold its value: what the other axes say is what is common.
            let others = configuration.labels.iter().filter(|(name, _)| *name != axis);
            let others: Vec<&str> = others.map(|(_, value)| value.as_str()).collect();
            if others.is_empty() { format!("{:?}", configuration.server.kind) } else { others.join(" ") }
        })
    }
}

/// `name` without `number`, once for each place where it stands alone among the digits.
fn without_number(name: &str, number: &str) -> Vec<String> {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit() || c == '.');
    name.match_indices(number)
        .filter_map(|(at, _)| {
            let (before, after) = (name.get(..at)?, name.get(at + number.len()..)?);
            (!is_part(before.chars().next_back()) && !is_part(after.chars().next()))
                .then(|| format!("{before}…{after}"))
        })
        .collect()
}
