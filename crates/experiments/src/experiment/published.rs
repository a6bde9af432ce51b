//! Published figures: a file of comma-separated values, and whose figures are compared with whose.

use std::collections::BTreeMap;

use super::expand::Wrong;
use super::problem::Problem;
use super::raw::RawPublished;
use super::{Published, PublishedFigure};

/// The figures in `text`, each under the names of all configurations and workloads here that it is compared with.
///
/// Rows of one configuration and workload are added up: the notes give reads and writes of a mixed job one by one, and ours
/// is the sum.
pub(super) fn read(raw: &RawPublished, text: &str) -> Result<Published, Wrong> {
    let in_file = |error: String| {
        let file = raw.file.clone();
        ("file".to_owned(), Problem::Figures { file, error })
    };
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let headers = reader.headers().map_err(|error| in_file(error.to_string()))?.clone();
    let column = |name: &str| {
        let found = headers.iter().position(|header| header == name);
        found.ok_or_else(|| in_file(format!("has no column {name:?}: name one of its own in published.columns")))
    };
    let columns = |names: &[String]| names.iter().map(|name| column(name)).collect::<Result<Vec<_>, _>>();
    let configuration_columns = columns(&raw.columns.configuration)?;
    let workload_columns = columns(&raw.columns.workload)?;
    let value_column = column(&raw.columns.value)?;

    // In the order of the file.
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut sums: BTreeMap<(String, String), f64> = BTreeMap::new();
    for (number, row) in reader.records().enumerate() {
        let row = row.map_err(|error| in_file(error.to_string()))?;
        let cell = |column: usize| row.get(column).unwrap_or_default();
        let joined = |columns: &[usize]| columns.iter().map(|column| cell(*column)).collect::<Vec<_>>().join(", ");
        let value: f64 = cell(value_column).parse().unwrap_or(f64::NAN);
        if !(value.is_finite() && value >= 0.0) {
            let line = number + 2;
            return Err(in_file(format!(
                "line {line}: {:?} is no figure: write a number from 0 on",
                cell(value_column)
            )));
        }
        let pair = (joined(&configuration_columns), joined(&workload_columns));
        *sums.entry(pair.clone()).or_insert_with(|| {
            pairs.push(pair);
            0.0
        }) += value;
    }

    let mut figures = Vec::new();
    for pair in pairs {
        let value = sums.get(&pair).copied().unwrap_or_default();
        let (theirs, their_workload) = pair;
        let configurations = raw.configurations.get(&theirs).ok_or_else(|| {
            in_file(format!(
                "has {theirs:?}: say in published.configurations what it is compared with, or [] for nothing"
            ))
        })?;
        // Workloads mostly have their names here.
        let same = vec![their_workload.clone()];
        let workloads = raw.workloads.get(&their_workload).unwrap_or(&same);
        for workload in workloads {
            for configuration in configurations {
                figures.push(PublishedFigure {
                    configuration: configuration.clone(),
                    workload: workload.clone(),
                    their_configuration: theirs.clone(),
                    value,
                });
            }
        }
    }
    Ok(Published { source: raw.source.clone(), baseline: raw.baseline.clone(), unit: raw.unit.clone(), figures })
}
