//! The arguments of `vringd ctl`. Doc comments are the help texts.

use super::add::AddArgs;
use super::directory::AddDirArgs;
use super::disks::DiskCommand;
use super::jobs::JobArgs;
use super::limit::{GroupCommand, LimitCommand};
use super::policy::PolicyArgs;
use super::scsi::AddScsiArgs;
use super::trace::TraceArgs;
use super::units::UnitCommand;
use crate::model::{ByteSize, CpuList, Execution, Placement, Poll, SyncMode};
use clap::Subcommand;
use std::path::PathBuf;

/// Look at a running daemon, and change it while it serves.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Control socket of the daemon.
    #[arg(
        long,
        global = true,
        env = "VRINGD_CONTROL",
        value_name = "SOCKET",
        default_value = "/run/vringd/control.sock"
    )]
    pub control: PathBuf,

    /// Print the API's JSON instead of tables.
    #[arg(long, global = true)]
    pub json: bool,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `vringd ctl` can do.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Show the daemon: version, uptime, bounds.
    Info,

    /// List, add, change and remove exports.
    #[command(subcommand)]
    Export(ExportCommand),

    /// List, open, resize and close disks, apart from exports; snapshot, back up, mirror, stream and commit those that are served, let
    /// backup programs pull them, and manage their dirty bitmaps.
    #[command(subcommand)]
    Disk(DiskCommand),

    /// List, add and remove the disks of SCSI devices while they serve.
    #[command(subcommand)]
    Lun(UnitCommand),

    /// List, await, limit, complete and cancel jobs: backups, mirrors, streams, commits and pulls of disks.
    #[command(visible_alias = "jobs")]
    Job(JobArgs),

    /// List, start and end workers.
    #[command(subcommand)]
    Worker(WorkerCommand),

    /// List rings and attach them to workers.
    #[command(subcommand)]
    Ring(RingCommand),

    /// List and change limits of exports: requests and bytes a second.
    #[command(subcommand)]
    Limit(LimitCommand),

    /// List, make, change and remove groups of exports that share limits.
    #[command(subcommand)]
    Group(GroupCommand),

    /// Show what is chosen by itself and why; change what is favoured; save a record.
    Policy(PolicyArgs),

    /// Print all figures in the format Prometheus reads.
    Metrics,

    /// Show what rings and workers do now; refreshes on a terminal until interrupted.
    Top(TopArgs),

    /// Show requests that take long, as they are answered, by stages; sums up when it ends.
    ///
    /// Nobody need restart anything: rings note stages for as long as somebody traces. A line says when the request was taken, on
    /// which ring and worker, what it was, and where its time went.
    Trace(TraceArgs),

    /// Replace the daemon's program while its exports serve: they go on in the new one after a short pause.
    ///
    /// Nothing changes when the new program cannot be started or cannot read the state of the old one, when requests do not
    /// end (a storage that does not answer), or while a guest uses a directory by 9p.
    Upgrade {
        /// The new program [default: what is now at the path of the running one].
        #[arg(long, value_name = "PATH")]
        binary: Option<PathBuf>,
    },

    /// Stop the daemon: exports are drained and closed.
    Shutdown,
}

/// Exports.
#[derive(Debug, Clone, Subcommand)]
pub enum ExportCommand {
    /// List the exports.
    List,

    /// Show one export with its rings and workers.
    Show {
        /// Name of the export.
        name: String,
    },

    /// Add exports from a file, or a disk from options.
    Add(Box<AddArgs>),

    /// Add a directory.
    AddDir(Box<AddDirArgs>),

    /// Add a SCSI device, with disks that are open by themselves.
    AddScsi(Box<AddScsiArgs>),

    /// Remove an export.
    Remove {
        /// Name of the export.
        name: String,

        /// Remove it even though a frontend is connected.
        #[arg(long)]
        force: bool,
    },

    /// Resize the disk of an export and announce it to the guests that use it.
    Resize {
        /// Name of the export.
        name: String,

        /// New capacity, as in 20G.
        size: ByteSize,
    },

    /// Change an export while it serves.
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true).args(["poll", "execution", "placement", "sync"]))]
    Set {
        /// Name of the export.
        name: String,

        /// Poll window of its own workers: off, fixed=US or adaptive=US.
        #[arg(long)]
        poll: Option<Poll>,

        /// Where its storage or file-system calls run: auto, uring, inline or pool=N.
        #[arg(long)]
        execution: Option<Execution>,

        /// Which workers its rings get: shared, one, per-queue or a number.
        #[arg(long)]
        placement: Option<Placement>,

        /// When writes to its volume are on stable storage.
        #[arg(long, value_name = "MODE")]
        sync: Option<SyncMode>,
    },

    /// Commit what was written to a volume so far, and write it back to the storage below its log.
    Sync {
        /// Name of the export.
        name: String,
    },
}

/// Workers.
#[derive(Debug, Clone, Subcommand)]
pub enum WorkerCommand {
    /// List the workers.
    List {
        /// Only the private workers of this export.
        #[arg(long, value_name = "NAME")]
        export: Option<String>,
    },

    /// Start a worker; it serves rings once they are attached to it.
    New {
        /// Make it a private worker of this export; without it, the worker is shared.
        #[arg(long, value_name = "NAME")]
        export: Option<String>,

        /// CPUs to bind it to, as in 0-3,5.
        #[arg(long, value_name = "LIST")]
        cpus: Option<CpuList>,

        /// NUMA node whose CPUs and memory it shall prefer.
        #[arg(long, value_name = "NODE")]
        numa_node: Option<u32>,

        /// Directory of the control group to put it into. Where Landlock holds, `allow` must name it.
        #[arg(long, value_name = "PATH")]
        cgroup: Option<String>,

        /// Poll window: off, fixed=US or adaptive=US.
        #[arg(long)]
        poll: Option<Poll>,
    },

    /// End a worker that has no rings.
    Free {
        /// Identifier of the worker.
        id: u32,

        /// Only if it is a private worker of this export.
        #[arg(long, value_name = "NAME")]
        export: Option<String>,
    },

    /// Show one worker.
    Get {
        /// Identifier of the worker.
        id: u32,

        /// Only if it is a private worker of this export.
        #[arg(long, value_name = "NAME")]
        export: Option<String>,
    },
}

/// Rings.
#[derive(Debug, Clone, Subcommand)]
pub enum RingCommand {
    /// List the rings of one export, or of all.
    List {
        /// Name of the export.
        name: Option<String>,
    },

    /// Show one ring.
    Get {
        /// Name of the export.
        name: String,

        /// Index of the ring.
        ring: u16,
    },

    /// Attach a ring to a worker, while it serves requests.
    Attach {
        /// Name of the export.
        name: String,

        /// Index of the ring.
        ring: u16,

        /// Identifier of the worker.
        worker: u32,
    },
}

/// How to look.
#[derive(Debug, Clone, clap::Args)]
pub struct TopArgs {
    /// Time between two looks, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: f64,

    /// Stop after this many samples; without it, one sample when the output is not a terminal.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
}

fn interval(text: &str) -> Result<f64, String> {
    let legal = |seconds: &f64| (0.1..=3600.0).contains(seconds);
    text.parse().ok().filter(legal).ok_or_else(|| "must be a number of seconds from 0.1 to 3600".to_owned())
}
