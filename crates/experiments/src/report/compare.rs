//! Two runs of the same experiments beside each other: what got slower, what got faster, what noise hides.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::summarize::Rounds;
use super::summary::{Measure, Summary};
use super::{Report, words};
use crate::record::Header;
use bench::stats::{self, Contrast, Pool, Ratio, Spread};
use bench::table::Sheet;

/// What changed from a first set of runs to a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changes {
    /// Each experiment that both have, in the order of the first.
    pub experiments: Vec<Change>,
    /// Experiments that only the first has.
    pub only_first: Vec<String>,
    /// Experiments that only the second has.
    pub only_second: Vec<String>,
}

/// What changed in one experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Name of the experiment.
    pub experiment: String,
    /// Whether either run was quick, so that the figures decide nothing.
    pub quick: bool,
    /// What is compared.
    pub measure: Measure,
    /// What is different about the two runs besides their figures: machine, versions, the experiment itself.
    pub differences: Vec<String>,
    /// The pairs that were measured in both: first what got slower beyond noise, the worst first; then what got faster, the
    /// best first; then what noise hides.
    pub pairs: Vec<Pair>,
    /// Geometric mean of the ratios.
    pub mean: Option<f64>,
    /// Pairs that were measured in the first run alone, as `configuration, workload`.
    pub only_first: Vec<String>,
    /// Pairs that were measured in the second run alone.
    pub only_second: Vec<String>,
}

/// One pair of configuration and workload in both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Name of the configuration.
    pub configuration: String,
    /// Name of the workload.
    pub workload: String,
    /// [`Change::measure`] in the first run.
    pub first: Spread,
    /// The same in the second.
    pub second: Spread,
    /// The second over the first. Its interval knows the noise within each run, but not what else changed between them.
    pub ratio: Ratio,
}

impl Changes {
    /// Compares `second` with `first`.
    pub fn of(first: &[Report], second: &[Report]) -> Self {
        let named = |reports: &'_ [Report], name: &str| reports.iter().position(|report| name_of(report) == name);
        let only = |some: &[Report], others: &[Report]| {
            let names = some.iter().map(name_of).filter(|name| named(others, name).is_none());
            names.map(str::to_owned).collect()
        };
        let both = first.iter().filter_map(|one| Some((one, second.get(named(second, name_of(one))?)?)));
        Self {
            experiments: both.map(|(one, other)| Change::of(one, other)).collect(),
            only_first: only(first, second),
            only_second: only(second, first),
        }
    }

    /// The comparison as text, with lines as long as they come: for a file.
    pub fn render(&self) -> String {
        self.render_within(usize::MAX)
    }

    /// The comparison as text for a terminal of `width` columns.
    pub fn render_within(&self, width: usize) -> String {
        let mut parts: Vec<String> = self.experiments.iter().map(|change| change.render(width)).collect();
        for (names, which) in [(&self.only_first, "first"), (&self.only_second, "second")] {
            if !names.is_empty() {
                parts.push(format!("Only in the {which}: {}.", names.join(", ")));
            }
        }
        parts.join("\n\n") + "\n"
    }
}

fn name_of(report: &Report) -> &str {
    &report.summary.experiment().name
}

impl Change {
    fn of(first: &Report, second: &Report) -> Self {
        // By the first run's measure, so that both sides are the same quantity.
        let measure = first.summary.measure;
        let (values, other_values) = (Rounds::of(&first.run), Rounds::of(&second.run));
        let mut found = Vec::new();
        for cell in first.summary.cells.iter().filter(|cell| cell.figures.is_some()) {
            let (configuration, workload) = (&cell.configuration, &cell.workload);
            let one: Vec<f64> = values.values(configuration, workload, measure).into_values().collect();
            let other: Vec<f64> = other_values.values(configuration, workload, measure).into_values().collect();
            if let (Some(one_spread), Some(other_spread)) = (Spread::of(one.clone()), Spread::of(other.clone())) {
                found.push((cell, one_spread, other_spread, Contrast::unpaired(&other, &one)));
            }
        }
        let pool = Pool::of(found.iter().filter_map(|(_, _, _, contrast)| contrast.as_ref()));
        let mut pairs: Vec<Pair> = found
            .into_iter()
            .filter_map(|(cell, first, second, contrast)| {
                let ratio = Ratio::of(second.median, first.median, contrast, pool)?;
                let (configuration, workload) = (cell.configuration.clone(), cell.workload.clone());
                Some(Pair { configuration, workload, first, second, ratio })
            })
            .collect();
        pairs.sort_by(|a, b| a.rank().cmp(&b.rank()).then_with(|| b.distance().total_cmp(&a.distance())));
        Self {
            experiment: name_of(first).to_owned(),
            quick: first.summary.is_quick() || second.summary.is_quick(),
            measure,
            differences: differences(&first.run.header, &second.run.header),
            mean: stats::geometric_mean(pairs.iter().map(|pair| pair.ratio.value)),
            pairs,
            only_first: measured_alone(&first.summary, &second.summary),
            only_second: measured_alone(&second.summary, &first.summary),
        }
    }

    fn render(&self, width: usize) -> String {
        let quick = if self.quick { "QUICK " } else { "" };
        let mut lines = vec![format!("{quick}{}: {}, second over first", self.experiment, self.measure.unit())];
        lines.push(if self.differences.is_empty() {
            "Same machine, versions and experiment.".to_owned()
        } else {
            format!("Not the same: {}.", self.differences.join("; "))
        });
        if !self.pairs.is_empty() {
            lines.push(self.sentence());
            lines.push(self.table(width));
        }
        for (pairs, which) in [(&self.only_first, "first"), (&self.only_second, "second")] {
            if !pairs.is_empty() {
                lines.push(format!("Measured only in the {which}: {}.", pairs.join("; ")));
            }
        }
        lines.join("\n")
    }

    fn sentence(&self) -> String {
        let count = |rank| self.pairs.iter().filter(|pair| pair.rank() == rank).count();
        let mean = self.mean.map_or_else(String::new, |mean| format!("; geometric mean {}", words::times(mean)));
        format!(
            "Of {}, {} slower, {} faster, {} not told from before{mean}. The intervals know the noise within each run, not what \
             else changed between them.",
            words::plural(self.pairs.len(), "pair"),
            count(Rank::Slower),
            count(Rank::Faster),
            count(Rank::Hidden)
        )
    }

    fn table(&self, width: usize) -> String {
        let show = |spread: &Spread| words::with_spread(spread, |value| words::value(self.measure, value));
        let row = |pair: &Pair| {
            let names = [pair.configuration.clone(), pair.workload.clone()];
            let figures = [show(&pair.first), show(&pair.second), words::with_interval(&pair.ratio)];
            names.into_iter().chain(figures).collect()
        };
        let header = ["NAME", "WORKLOAD", "first", "second", "ratio (interval)"];
        Sheet::new(2, &header, self.pairs.iter().map(row).collect()).render("median (spread)", width)
    }
}

/// In what order changes matter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Slower,
    Faster,
    Hidden,
}

impl Pair {
    fn rank(&self) -> Rank {
        match (self.ratio.is_hidden(), self.ratio.value < 1.0) {
            (true, _) => Rank::Hidden,
            (false, true) => Rank::Slower,
            (false, false) => Rank::Faster,
        }
    }

    /// How far it is from no change.
    fn distance(&self) -> f64 {
        self.ratio.value.ln().abs()
    }
}

/// What `one` measured and `other` did not.
fn measured_alone(one: &Summary, other: &Summary) -> Vec<String> {
    let is_measured = |configuration: &str, workload: &str| {
        other.cell(configuration, workload).is_some_and(|cell| cell.figures.is_some())
    };
    let alone = one.cells.iter().filter(|cell| cell.figures.is_some());
    let alone = alone.filter(|cell| !is_measured(&cell.configuration, &cell.workload));
    alone.map(|cell| format!("{}, {}", cell.configuration, cell.workload)).collect()
}

/// What is different about two runs besides their figures, each as `what first -> second`.
fn differences(first: &Header, second: &Header) -> Vec<String> {
    let (one, other) = (&first.environment, &second.environment);
    let fields = [
        ("vringd", first.vringd.clone(), second.vringd.clone()),
        ("kernel", one.kernel.clone(), other.kernel.clone()),
        ("processor", one.processor.clone(), other.processor.clone()),
        ("processors", one.processors.to_string(), other.processors.to_string()),
        ("NUMA nodes", one.nodes.to_string(), other.nodes.to_string()),
        ("memory in MiB", one.memory_mib.to_string(), other.memory_mib.to_string()),
        ("accelerator", one.accelerator.clone(), other.accelerator.clone()),
        ("storage", one.storage.join(", "), other.storage.join(", ")),
    ];
    let different = fields.into_iter().filter(|(_, one, other)| one != other);
    let mut differences: Vec<String> = different.map(|(what, one, other)| format!("{what} {one} -> {other}")).collect();
    differences.extend(programs(&one.programs, &other.programs));
    if first.quick != second.quick {
        differences.push("one of the two was quick".to_owned());
    }
    if first.experiment != second.experiment {
        differences.push("the experiment's own text".to_owned());
    }
    differences
}

fn programs(first: &[String], second: &[String]) -> Option<String> {
    let (one, other): (BTreeSet<&String>, BTreeSet<&String>) = (first.iter().collect(), second.iter().collect());
    let names = |some: &BTreeSet<&String>, others: &BTreeSet<&String>| {
        some.difference(others).map(|name| name.as_str()).collect::<Vec<&str>>().join(", ")
    };
    (one != other).then(|| format!("programs {} -> {}", names(&one, &other), names(&other, &one)))
}
