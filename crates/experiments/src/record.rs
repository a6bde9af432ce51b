//! What a run writes down: one file a run, one line a measurement, and everything that a report needs.

use bench::frontend::Report;
pub use bench::stats::Latency;
use serde::{Deserialize, Serialize};

use crate::experiment::Experiment;

/// Version of the form of [`Header`] and [`Sample`]. A reader refuses any other.
pub const SCHEMA: u32 = 1;

/// The first line of a run's journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Version of vringd that ran it.
    pub vringd: String,
    /// Whether it was a run of minutes (`--quick`), whose figures decide nothing.
    pub quick: bool,
    /// When it began, RFC 3339 in UTC.
    pub begun: String,
    /// The machine.
    pub environment: Environment,
    /// What was run, expanded.
    pub experiment: Experiment,
}

/// The machine that a run was made on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Release of the host's kernel.
    pub kernel: String,
    /// Name of its processor.
    pub processor: String,
    /// How many processors are online.
    pub processors: u32,
    /// NUMA nodes.
    pub nodes: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// What the data lies on: each medium with its file system and device.
    pub storage: Vec<String>,
    /// Programs with their versions: servers, QEMU, fio, guests' kernels.
    pub programs: Vec<String>,
    /// How QEMU guests run: `kvm` or `tcg`; empty without one.
    pub accelerator: String,
}

/// One measurement: a configuration, a workload, a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The round, from 1.
    pub round: u32,
    /// Name of the configuration.
    pub configuration: String,
    /// Name of the workload.
    pub workload: String,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// It was measured.
    Measured(Figures),
    /// It was tried and failed; the run went on.
    Failed {
        /// One line.
        reason: String,
    },
    /// It cannot be run here.
    Unsupported {
        /// One line.
        reason: String,
    },
}

/// The figures of one measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Requests completed.
    pub requests: u64,
    /// Requests a second.
    pub iops: f64,
    /// Bytes moved a second, in KiB.
    pub kib_per_s: f64,
    /// Latency of requests.
    pub latency: Latency,
    /// Processor time of the server, in seconds; `None` where it cannot be told from the guest's.
    pub server_cpu_s: Option<f64>,
    /// Processor time of the guest or of the load generator, in seconds; the server's is in it where the guest's process
    /// serves.
    pub guest_cpu_s: Option<f64>,
}

impl From<&Report> for Figures {
    fn from(report: &Report) -> Self {
        Self {
            seconds: report.seconds,
            requests: report.ops,
            iops: report.iops,
            kib_per_s: report.mib_per_s * 1024.0,
            latency: report.latency,
            server_cpu_s: report.server.map(|usage| usage.cpu_s()),
            guest_cpu_s: Some(report.load_cpu_s),
        }
    }
}

/// A run, read back: all that a report needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What was run, when and on what.
    pub header: Header,
    /// The measurements so far, in the order in which they were made.
    pub samples: Vec<Sample>,
}
