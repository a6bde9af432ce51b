//! The model that every report renders: medians, ratios and verdicts of one run.

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::curves::Curves;
use crate::experiment::{Experiment, PublishedFigure};
use crate::record::Header;
use bench::stats::{Ratio, Spread};

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// What was run, when and on what; the experiment is in it.
    pub header: Header,
    /// Rounds of which there is at least one sample.
    pub rounds: u32,
    /// The quantity that is compared.
    pub measure: Measure,
    /// Every pair, workload by workload, within one in the order of the configurations: there is a cell for each, whether
    /// it was measured or not.
    pub cells: Vec<Cell>,
    /// Each configuration over all workloads, in their order.
    pub standings: Vec<Standing>,
    /// Who leads under each workload, in each table of configurations that share a baseline and, where the experiment has
    /// [`Curves`], a value on their axis; where at least two were measured.
    pub leaders: Vec<Leader>,
    /// How often the published direction was found here.
    pub tally: Tally,
}

/// The quantity that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// KiB a second, as notes on file systems give it.
    Bandwidth,
    /// Requests a second, as notes on disks give it.
    Iops,
}

/// One configuration under one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Name of the configuration.
    pub configuration: String,
    /// Name of the workload.
    pub workload: String,
    /// What came of it, over all rounds.
    pub state: State,
    /// The rounds that failed, with their reasons; there may be some though others were measured.
    pub failures: Vec<Failure>,
    /// The figures, where at least one round was measured.
    pub figures: Option<CellFigures>,
    /// [`Summary::measure`] of this cell over that of its baseline ([`Experiment::baseline_of`]) under the same workload;
    /// `None` where either was not measured, and for the baseline itself.
    pub ratio: Option<Ratio>,
    /// The published figure of this cell beside ours.
    pub published: Option<Comparison>,
}

/// What came of a pair over all rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum State {
    /// At least one round was measured.
    Measured,
    /// It was tried, and every round failed: shows 0.
    Failed {
        /// The reason of the last failure, in a line.
        reason: String,
    },
    /// It cannot be run here: shows 0.
    Unsupported {
        /// Why, in a line.
        reason: String,
    },
    /// There is no sample: the run was interrupted, or its journal is of an older experiment.
    Missing,
}

/// A round that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The round, from 1.
    pub round: u32,
    /// One line.
    pub reason: String,
}

/// The figures of one cell, each over the rounds that were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellFigures {
    /// KiB moved a second.
    pub kib_per_s: Spread,
    /// Requests a second.
    pub iops: Spread,
    /// Latencies of requests.
    pub latency: LatencySpreads,
    /// Processor time of the server, in seconds of a measurement.
    pub server_cpu_s: Option<Spread>,
    /// Processor time of the guest or the load generator, in seconds of a measurement.
    pub guest_cpu_s: Option<Spread>,
    /// Requests a second of the server's processor time.
    pub requests_per_server_cpu_s: Option<Spread>,
    /// Requests a second of processor time of server and guest together; where the guest's process serves, of that.
    pub requests_per_cpu_s: Option<Spread>,
}

/// Latencies in microseconds, each over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencySpreads {
    /// Arithmetic mean.
    pub mean_us: Spread,
    /// Median.
    pub p50_us: Spread,
    /// 90th percentile.
    pub p90_us: Spread,
    /// 99th percentile.
    pub p99_us: Spread,
    /// 99.9th percentile.
    pub p999_us: Spread,
    /// The slowest request.
    pub max_us: Spread,
}

/// A published figure and ours, as ratios to the same baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// What was published.
    pub figure: PublishedFigure,
    /// The published figure over that of its baseline ([`Experiment::published_baseline_of`]) under the same workload;
    /// `None` where either is missing or 0, for the baseline itself, and for what stands beside the same published
    /// configuration as its baseline.
    pub theirs: Option<f64>,
    /// Ours over ours of that baseline; `None` where either was not measured.
    pub ours: Option<Ratio>,
    /// Whether the two say the same; `None` for the published baseline itself, and for what stands beside the same published
    /// configuration as its baseline.
    pub agreement: Option<Agreement>,
}

/// Whether a measured ratio has the direction of the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Agreement {
    /// The same side of 1, or both without a difference that counts.
    Agree,
    /// The other side of 1, or a difference on one side alone.
    Disagree,
    /// Noise is too large, a figure is missing, or the run was quick.
    CannotTell,
}

/// How many comparisons came out how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// [`Agreement::Agree`].
    pub agree: u32,
    /// [`Agreement::Disagree`].
    pub disagree: u32,
    /// [`Agreement::CannotTell`].
    pub cannot_tell: u32,
}

/// One configuration over all workloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Name of the configuration.
    pub configuration: String,
    /// Name of the configuration that it is compared with; a baseline's is its own.
    pub baseline: String,
    /// Geometric mean of its ratios to the baseline; `None` for the baseline and where there are none.
    pub mean: Option<Ratio>,
    /// Workloads that the mean covers.
    pub compared: u32,
    /// Workloads under which it was faster than the baseline, beyond noise.
    pub faster: u32,
    /// Workloads under which it was slower than the baseline, beyond noise.
    pub slower: u32,
    /// Workloads under which noise hides which is faster.
    pub hidden: u32,
    /// Workloads under which every round failed.
    pub failed: u32,
    /// Workloads that cannot be run.
    pub unsupported: u32,
    /// Requests a second of the server's processor time, as a geometric mean of ratios to the baseline.
    pub per_server_cpu: Option<f64>,
    /// Requests a second of all processor time, as a geometric mean of ratios to the baseline.
    pub per_cpu: Option<f64>,
    /// Geometric mean of the published ratios to the published baseline, over the workloads that have both those and ours.
    pub published: Option<f64>,
    /// Geometric mean of ours to that baseline, over the same workloads.
    pub published_ours: Option<Ratio>,
    /// Whether the two means say the same; `None` where there is nothing to compare.
    pub agreement: Option<Agreement>,
    /// How its comparisons with published figures came out.
    pub tally: Tally,
}

/// Who leads a table under a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Leader {
    /// The baseline that the table's configurations share.
    pub baseline: String,
    /// The value that they share on the axis of the curves; `None` without one.
    #[serde(default)]
    pub along: Option<String>,
    /// Name of the workload.
    pub workload: String,
    /// Name of the configuration with the largest median.
    pub configuration: String,
    /// Name of the one with the largest median but one.
    pub runner_up: String,
    /// The first over the second. Where noise hides which is faster, nobody leads.
    pub ratio: Ratio,
}

impl Summary {
    /// The experiment.
    pub fn experiment(&self) -> &Experiment {
        &self.header.experiment
    }

    /// Whether the run was one of minutes, whose figures decide nothing.
    pub fn is_quick(&self) -> bool {
        self.header.quick
    }

    /// Whether `configuration`, by name, is one that others or itself are compared with.
    pub fn is_baseline(&self, configuration: &str) -> bool {
        self.standing(configuration).is_some_and(|standing| standing.baseline == configuration)
    }

    /// The baselines, in the order of the configurations. Configurations that share one are a table of the notes.
    pub fn baselines(&self) -> Vec<&str> {
        let mut baselines: Vec<&str> = Vec::new();
        for standing in &self.standings {
            if !baselines.contains(&standing.baseline.as_str()) {
                baselines.push(&standing.baseline);
            }
        }
        baselines
    }

    /// The cell of a configuration and a workload, by name.
    pub fn cell(&self, configuration: &str, workload: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.configuration == configuration && cell.workload == workload)
    }

    /// The standing of a configuration, by name.
    pub fn standing(&self, configuration: &str) -> Option<&Standing> {
        self.standings.iter().find(|standing| standing.configuration == configuration)
    }
}

impl Measure {
    /// What `experiment` is compared by: the unit of what was published, else what the field gives for such servers.
    pub fn of(experiment: &Experiment) -> Self {
        if let Some(published) = &experiment.published {
            if published.unit.contains("IOPS") {
                return Self::Iops;
            }
            if published.unit.contains("B/s") {
                return Self::Bandwidth;
            }
        }
        let of_files = experiment.configurations.iter().any(|configuration| configuration.server.kind.is_directory());
        if of_files { Self::Bandwidth } else { Self::Iops }
    }

    /// Its unit, for headings.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "KiB/s",
            Self::Iops => "IOPS",
        }
    }

    /// It in a cell's figures.
    pub fn of_figures(self, figures: &CellFigures) -> &Spread {
        match self {
            Self::Bandwidth => &figures.kib_per_s,
            Self::Iops => &figures.iops,
        }
    }
}

impl Cell {
    /// What the cell shows: the median of `measure`, 0 where it failed or cannot be run, nothing where there is no sample.
    pub fn shown(&self, measure: Measure) -> Option<f64> {
        match (&self.figures, &self.state) {
            (Some(figures), _) => Some(measure.of_figures(figures).median),
            (None, State::Failed { .. } | State::Unsupported { .. }) => Some(0.0),
            (None, _) => None,
        }
    }

    /// Why the cell shows 0, in a line.
    pub fn reason(&self) -> Option<&str> {
        match &self.state {
            State::Failed { reason } | State::Unsupported { reason } => Some(reason),
            State::Measured | State::Missing => None,
        }
    }
}
