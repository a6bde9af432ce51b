//! Experiments as data: what is compared, under which load, where, and what was published about it.
//!
//! These are experiments as they run: every axis expanded, every name final. [`read`] makes them from TOML.

mod check;
mod estimate;
mod expand;
pub mod list;
mod options;
mod placeholder;
mod problem;
mod published;
mod quick;
mod raw;
pub mod read;
mod resolve;
pub mod shipped;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::problem::{At, Problem, ReadError, Refusal};

/// Options by name, as fio or a load generator takes them. An option whose value is empty is left out.
pub use bench::fio::job::Options;

/// One experiment, ready to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// Name, as `bench run` takes it.
    pub name: String,
    /// One line for people.
    pub title: String,
    /// What the published note claims, in a sentence.
    pub claim: String,
    /// The note it was published in.
    pub source: String,
    /// How often each pair of configuration and workload is measured.
    pub rounds: u32,
    /// The order in which configurations take turns within a round.
    pub order: Order,
    /// How long one measurement lasts, in seconds, after [`Experiment::warm_up_s`].
    pub time_s: f64,
    /// How long the load runs before figures count, in seconds.
    pub warm_up_s: f64,
    /// Which caches are dropped before each measurement.
    pub drop_caches: DropCaches,
    /// The configuration that the others are compared with, by name.
    pub baseline: String,
    /// What is compared.
    pub configurations: Vec<Configuration>,
    /// Under which loads.
    pub workloads: Vec<Workload>,
    /// What was published about the same comparison.
    pub published: Option<Published>,
    /// What `--quick` makes of it.
    #[serde(default)]
    pub quick: Quick,
}

/// What a quick run takes from an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quick {
    /// How often each pair is measured.
    pub rounds: u32,
    /// How long one measurement lasts, in seconds.
    pub time_s: f64,
    /// How long the load runs before figures count, in seconds.
    pub warm_up_s: f64,
    /// Size of an image or of each file is at most this, in MiB.
    pub size_mib: u64,
    /// Axes of which only these values are run. What has no such axis is run.
    #[serde(deserialize_with = "raw::axes")]
    pub axes: BTreeMap<String, Vec<String>>,
}

impl Default for Quick {
    fn default() -> Self {
        Self { rounds: 1, time_s: 0.5, warm_up_s: 0.2, size_mib: 32, axes: BTreeMap::new() }
    }
}

impl Experiment {
    /// Name of the configuration that `configuration` is compared with.
    #[must_use]
    pub fn baseline_of<'a>(&'a self, configuration: &'a Configuration) -> &'a str {
        configuration.baseline.as_deref().unwrap_or(&self.baseline)
    }

    /// Name of the configuration whose published figures are 1 where those of `configuration` are shown.
    #[must_use]
    pub fn published_baseline_of<'a>(&'a self, configuration: &'a Configuration) -> Option<&'a str> {
        let published = self.published.as_ref()?;
        Some(configuration.baseline.as_deref().unwrap_or(&published.baseline))
    }
}

/// Who is first in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Another one each round, so that nobody is always first.
    #[default]
    Rotating,
    /// As written.
    Fixed,
}

/// Which caches are dropped before each measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DropCaches {
    /// None.
    None,
    /// The guest's page cache, dentries and inodes.
    Guest,
    /// The guest's and the host's.
    #[default]
    All,
}

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// Name, a column of every table.
    pub name: String,
    /// Its value on every axis of the experiment, for curves and for a workload's placeholders.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What else its axes' values say, as `axis.key`, for a workload's placeholders.
    #[serde(default)]
    pub values: BTreeMap<String, String>,
    /// The configuration that it is compared with, here and in published figures, where that is not the experiment's: an
    /// experiment may hold several tables, each with a baseline of its own. See [`Experiment::baseline_of`].
    #[serde(default)]
    pub baseline: Option<String>,
    /// Where the work runs.
    pub place: Place,
    /// Who serves it.
    pub server: Server,
    /// The data behind the server.
    pub data: Data,
    /// The guest, where there is one.
    pub guest: Guest,
    /// Why this combination cannot be run: it then shows 0 and this sentence.
    #[serde(default)]
    pub unsupported: Option<String>,
}

/// Where the work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Place {
    /// fio on the host, no server between.
    Host,
    /// A frontend without a virtual machine (`vringd bench disk`, `vringd bench fs`).
    Frontend,
    /// fio in a User Mode Linux guest.
    Uml,
    /// fio in a QEMU guest, under KVM where that works, else TCG.
    Qemu,
    /// fio in a guest that the person names.
    Ssh,
}

/// Who serves the data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Which program.
    pub kind: ServerKind,
    /// Its options, after those that the suite gives (socket, tag, what is served).
    #[serde(default)]
    pub options: Vec<String>,
}

impl Server {
    /// Whether it serves a volume: an image of a form of its own, which one server at a time may have open.
    #[must_use]
    pub fn serves_volume(&self) -> bool {
        options::is_volume(self)
    }

    /// Whether it has an intent log, and with it data in its memory that is still to be written.
    #[must_use]
    pub fn has_log(&self) -> bool {
        options::has_log(self)
    }
}

/// Which program serves the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerKind {
    /// Nobody: the host's own files.
    None,
    /// `vringd disk`.
    VringdDisk,
    /// `vringd scsi`, with one disk.
    VringdScsi,
    /// `vringd dir`.
    VringdDir,
    /// `vringd dir --protocol 9p`.
    #[serde(rename = "vringd-9p")]
    Vringd9p,
    /// The Rust virtiofsd.
    Virtiofsd,
    /// qemu-storage-daemon, its vhost-user-blk export.
    QemuStorageDaemon,
    /// QEMU's own virtio-blk, in the guest's process.
    QemuVirtioBlk,
    /// QEMU's own virtio-9p, in the guest's process.
    #[serde(rename = "qemu-9p")]
    Qemu9p,
}

/// The data behind a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    /// Where it lies.
    pub medium: Medium,
    /// How many files, for directories.
    pub files: u32,
    /// Size of the image or of each file, in MiB.
    pub size_mib: u64,
}

/// Where data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// The directory for data that the person gave, else that of temporary files.
    Disk,
    /// A tmpfs.
    Memory,
    /// Nowhere: the server makes it up (`sim`, `null`).
    None,
}

/// A guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// Virtual processors.
    pub processors: u32,
    /// Memory, in MiB.
    pub memory_mib: u32,
    /// Request queues of the device.
    pub queues: u16,
    /// Options of the mount, for directories (`mount -o`); empty for none.
    #[serde(default)]
    pub mount: String,
    /// Whether guest and server are bound to one NUMA node.
    #[serde(default)]
    pub one_node: bool,
    /// Whether its clock counts its instructions, see [`guest::Machine::instruction_clock`].
    #[serde(default)]
    pub instruction_clock: bool,
    /// Whether it has reserved the disk of a SCSI device before anything is measured: Write Exclusive, which lets it do everything.
    #[serde(default)]
    pub reserve: bool,
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            processors: 1,
            memory_mib: 512,
            queues: 1,
            mount: String::new(),
            one_node: false,
            instruction_clock: false,
            reserve: false,
        }
    }
}

/// One load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Name, a row of every table.
    pub name: String,
    /// Its value on every axis.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Options of a fio job, where fio makes the load. The suite adds where to, how long, and the form of the output.
    #[serde(default)]
    pub fio: Options,
    /// How many files, each with a fio job of its own; 1 for disks.
    #[serde(default = "one")]
    pub files: u32,
    /// How many small files fio makes, looks at or removes, in a directory of its own; 0 for a load on the files that lie
    /// there. It goes over them once, however long that takes.
    #[serde(default)]
    pub own_files: u32,
    /// Options of `vringd bench disk` or `vringd bench fs` without their dashes, where a frontend makes the load.
    #[serde(default)]
    pub frontend: Options,
}

fn one() -> u32 {
    1
}

/// What was published about the same comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// Where, for people.
    pub source: String,
    /// The configuration (of ours) whose published figures are 1, for configurations that name no baseline themselves.
    pub baseline: String,
    /// The unit of the figures, for example `KiB/s` or `kIOPS`.
    pub unit: String,
    /// The figures.
    pub figures: Vec<PublishedFigure>,
}

/// One published figure, in the words of our experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedFigure {
    /// The configuration here that it is compared with.
    pub configuration: String,
    /// The workload here that it is compared with.
    pub workload: String,
    /// What they called their configuration.
    pub their_configuration: String,
    /// The figure; 0 says that the combination was not supported.
    pub value: f64,
}
