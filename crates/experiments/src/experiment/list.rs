//! `bench list`: what is shipped, what it compares, and what it takes.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::Serialize;

use super::{Experiment, Place};

/// An experiment in a line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listed {
    /// Name, as `bench run` takes it.
    pub name: String,
    /// What it compares.
    pub title: String,
    /// How many configurations it has, with those that are known to be unsupported.
    pub configurations: usize,
    /// How many workloads.
    pub workloads: usize,
    /// How often each pair is measured.
    pub rounds: u32,
    /// About how long a run takes, in s.
    pub estimate_s: f64,
    /// About how long a run with `--quick` takes, in s.
    pub quick_estimate_s: f64,
    /// Where its configurations run.
    pub places: Vec<Place>,
}

impl Listed {
    /// `experiment` in a line.
    #[must_use]
    pub fn of(experiment: &Experiment) -> Self {
        let mut places = Vec::new();
        for configuration in experiment.configurations.iter().filter(|it| it.unsupported.is_none()) {
            if !places.contains(&configuration.place) {
                places.push(configuration.place);
            }
        }
        Self {
            name: experiment.name.clone(),
            title: experiment.title.clone(),
            configurations: experiment.configurations.len(),
            workloads: experiment.workloads.len(),
            rounds: experiment.rounds,
            estimate_s: experiment.estimate_s(),
            quick_estimate_s: experiment.quick().estimate_s(),
            places,
        }
    }
}

impl Place {
    /// Its name, as experiments write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A table for people, at most `width` characters wide; without one, as wide as it needs.
#[must_use]
pub fn table(listed: &[Listed], width: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["NAME", "COMPARES", "SIZE", "TIME", "QUICK", "PLACES"]);
    if let Some(width) = width {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
    }
    for one in listed {
        let size = format!("{} x {} x {}", one.configurations, one.workloads, one.rounds);
        let places: Vec<&str> = one.places.iter().map(|place| place.name()).collect();
        table.add_row([
            one.name.clone(),
            one.title.clone(),
            size,
            duration(one.estimate_s),
            duration(one.quick_estimate_s),
            places.join(", "),
        ]);
    }
    for column in [2, 3, 4] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{}\n\nSIZE is configurations x workloads x rounds.", table.trim_fmt())
}

/// About how long, for people.
fn duration(time_s: f64) -> String {
    match time_s / 60.0 {
        minutes if minutes < 1.5 => format!("{time_s:.0} s"),
        minutes if minutes < 90.0 => format!("{minutes:.0} min"),
        minutes => format!("{:.1} h", minutes / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::shipped;

    #[test]
    fn durations_read_well() {
        for (time_s, text) in [(3.2, "3 s"), (89.0, "89 s"), (100.0, "2 min"), (3600.0, "60 min"), (9000.0, "2.5 h")] {
            assert_eq!(duration(time_s), text);
        }
    }

    #[test]
    fn every_experiment_has_a_row() {
        let listed: Vec<Listed> = shipped::all().unwrap().iter().map(Listed::of).collect();
        let table = table(&listed, None);
        for one in &listed {
            assert!(table.contains(&one.name) && table.contains(&one.title), "{table}");
            assert!(one.quick_estimate_s < one.estimate_s, "{one:?}");
        }
    }
}
