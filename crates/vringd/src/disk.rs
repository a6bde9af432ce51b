//! Arguments of `vringd disk`: one export, spelled as options.

use crate::confine::Confinement;
use clap::ValueEnum;
use control::ctl::LimitFlags;
use control::model::config::{
    Distribution, ExportKind, FileStorage, MemoryStorage, NewExport, NullStorage, SimStorage, Storage,
};
use control::model::{ByteSize, CpuList, Execution, FileMode, Placement, Poll, Span};
use std::path::PathBuf;

/// Serve one disk on one socket, until SIGTERM or SIGINT.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Attach a guest:
  qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \\
    -chardev socket,id=c0,path=SOCKET -device vhost-user-blk-pci,chardev=c0,num-queues=QUEUES …
  cloud-hypervisor --memory size=1G,shared=on --disk vhost_user=true,socket=SOCKET,num_queues=QUEUES …")]
pub(crate) struct Args {
    /// The image file or block device; for --storage memory a file on tmpfs or hugetlbfs, which is optional
    #[arg(value_name = "IMAGE", required_unless_present = "size")]
    pub(crate) image: Option<PathBuf>,
    /// Path of the vhost-user socket to make; left out with --fd, or with a socket from the service manager
    #[arg(long, short, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Inherited descriptor of a listening vhost-user socket, instead of --socket
    #[arg(long, value_name = "N", conflicts_with = "socket")]
    pub(crate) fd: Option<i32>,
    /// Permission bits of the socket, in octal [default: 0600]
    #[arg(long, value_name = "MODE", requires = "socket")]
    pub(crate) socket_mode: Option<FileMode>,
    /// Owner of the socket, a user name or number
    #[arg(long, value_name = "USER", requires = "socket")]
    pub(crate) socket_owner: Option<String>,
    /// Group of the socket, a group name or number
    #[arg(long, value_name = "GROUP", requires = "socket")]
    pub(crate) socket_group: Option<String>,
    /// Name of the export [default: disk]
    #[arg(long, value_name = "NAME", default_value = "disk", hide_default_value = true)]
    pub(crate) name: String,
    /// Path of a control socket for `vringd ctl`; none when left out
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Name requests in the log that have not been answered for this long; 0s for none [default: 30s]
    #[arg(long, value_name = "TIME", default_value_t = crate::config::stuck_after_default(), hide_default_value = true)]
    pub(crate) stuck_after: Span,

    /// What stands behind the disk
    #[arg(long, value_name = "KIND", value_enum, default_value_t = StorageKind::File, help_heading = "Storage")]
    pub(crate) storage: StorageKind,
    /// Capacity, for memory without an image, null and sim, as in 10G
    #[arg(long, value_name = "SIZE", help_heading = "Storage")]
    pub(crate) size: Option<ByteSize>,
    /// Bypass the page cache (O_DIRECT)
    #[arg(long, help_heading = "Storage")]
    pub(crate) direct: bool,
    /// Refuse writes
    #[arg(long, visible_alias = "read-only", help_heading = "Storage")]
    pub(crate) readonly: bool,
    /// Do not lock the image against other writers
    #[arg(long, help_heading = "Storage")]
    pub(crate) no_lock: bool,
    /// Where storage calls run, or who waits for a simulated device: auto, uring, inline or pool=N
    #[arg(long, value_name = "HOW", default_value = "auto", help_heading = "Storage")]
    pub(crate) execution: Execution,
    /// Use huge pages for anonymous memory
    #[arg(long, help_heading = "Storage")]
    pub(crate) hugepages: bool,

    /// Queues the guest may use, 1 to 256 [default: one a CPU, up to 8]
    #[arg(long, value_name = "N", help_heading = "Device")]
    pub(crate) queues: Option<u16>,
    /// Largest ring, in descriptors: a power of two up to 32768 [default: 1024]
    #[arg(long, value_name = "N", help_heading = "Device")]
    pub(crate) queue_size: Option<u16>,
    /// Serial number the guest sees, up to 20 characters [default: the name]
    #[arg(long, value_name = "TEXT", help_heading = "Device")]
    pub(crate) serial: Option<String>,
    /// Logical block size in bytes, 512 or 4096 [default: 512, or what the storage needs]
    #[arg(long, value_name = "BYTES", help_heading = "Device")]
    pub(crate) block_size: Option<u32>,

    /// Who serves the queues: shared, one (worker), per-queue, or a number of workers
    #[arg(long, value_name = "PLACEMENT", default_value = "shared", help_heading = "Execution")]
    pub(crate) workers: Placement,
    /// How long a worker looks for work before it sleeps: off, fixed=US, adaptive, adaptive=US [default: adaptive]
    #[arg(long, value_name = "WINDOW", help_heading = "Execution")]
    pub(crate) poll: Option<Poll>,
    /// CPUs of the export's own workers, as in 0-3,8
    #[arg(long, value_name = "LIST", help_heading = "Execution")]
    pub(crate) cpus: Option<CpuList>,

    /// Its limits.
    #[command(flatten)]
    pub(crate) limits: LimitFlags,

    /// Options of the simulated device.
    #[command(flatten)]
    pub(crate) sim: SimArgs,

    /// What the process gives up.
    #[command(flatten)]
    pub(crate) confinement: Confinement,
}

/// What can stand behind a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StorageKind {
    /// An image file or block device
    File,
    /// Memory: anonymous, or a file on tmpfs or hugetlbfs
    Memory,
    /// Nothing: data is dropped
    Null,
    /// A model of a device, for experiments
    Sim,
}

/// The model of a device.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Simulated device (--storage sim)")]
pub(crate) struct SimArgs {
    /// Mean latency of a read, as in 100us
    #[arg(long, value_name = "TIME", default_value = "100us")]
    pub(crate) read_latency: Span,
    /// Mean latency of a write
    #[arg(long, value_name = "TIME", default_value = "100us")]
    pub(crate) write_latency: Span,
    /// Shape of the latencies
    #[arg(long, value_name = "SHAPE", default_value = "constant", value_parser = distribution)]
    pub(crate) distribution: Distribution,
    /// Spread of the latencies relative to their mean, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) latency_spread: f64,
    /// Operations the device serves at once
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) channels: u16,
    /// Time a flush takes, alone or behind a write that must be durable
    #[arg(long, value_name = "TIME", default_value = "0us")]
    pub(crate) flush_cost: Span,
    /// Time that a read or write takes longer when it does not follow the last one of its channel
    #[arg(long, value_name = "TIME", default_value = "0us")]
    pub(crate) seek: Span,
    /// Share of operations that fail, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(crate) error_rate: f64,
    /// Operation, counted from 1, at which our own code panics, to see what that takes down [default: none]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(crate) panic_after: u64,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

fn distribution(text: &str) -> Result<Distribution, String> {
    match text {
        "constant" => Ok(Distribution::Constant),
        "uniform" => Ok(Distribution::Uniform),
        "normal" => Ok(Distribution::Normal),
        "exponential" => Ok(Distribution::Exponential),
        _ => Err("use constant, uniform, normal or exponential".into()),
    }
}

impl Args {
    /// The export that these options describe.
    pub(crate) fn into_export(self) -> Result<NewExport, String> {
        let storage = self.storage()?;
        Ok(NewExport {
            name: self.name,
            kind: ExportKind::Disk,
            socket: self.socket,
            socket_mode: self.socket_mode,
            socket_owner: self.socket_owner,
            socket_group: self.socket_group,
            socket_fd: self.fd,
            storage: Some(storage),
            directory: None,
            queues: self.queues,
            queue_size: self.queue_size,
            serial: self.serial,
            block_size: self.block_size,
            workers: self.workers,
            poll: self.poll.or_else(|| Some(crate::config::poll_default())),
            cpus: self.cpus,
            limits: self.limits.limits(None),
        })
    }

    fn storage(&self) -> Result<Storage, String> {
        let size = || self.size.ok_or_else(|| "--size: is missing: give the capacity, as in --size 10G".to_owned());
        self.refuse_misplaced()?;
        match self.storage {
            StorageKind::File => Ok(Storage::File(FileStorage {
                path: self.image.clone().ok_or("IMAGE: is missing: give the path of the image file")?,
                direct: self.direct,
                read_only: self.readonly,
                execution: self.execution,
                lock: !self.no_lock,
            })),
            StorageKind::Memory => Ok(Storage::Memory(MemoryStorage {
                size: self.size,
                path: self.image.clone(),
                hugepages: self.hugepages,
                read_only: self.readonly,
            })),
            StorageKind::Null => Ok(Storage::Null(NullStorage { size: size()? })),
            StorageKind::Sim => Ok(Storage::Sim(SimStorage {
                size: size()?,
                read_latency: self.sim.read_latency,
                write_latency: self.sim.write_latency,
                distribution: self.sim.distribution,
                latency_spread: self.sim.latency_spread,
                channels: self.sim.channels,
                flush_cost: self.sim.flush_cost,
                seek: self.sim.seek,
                error_rate: self.sim.error_rate,
                panic_after: self.sim.panic_after,
                seed: self.sim.seed,
                execution: self.execution,
            })),
        }
    }

    /// An option that the storage would ignore is an error, not a surprise.
    fn refuse_misplaced(&self) -> Result<(), String> {
        let kind = self.storage;
        let misplaced = [
            ("--direct", self.direct && kind != StorageKind::File),
            ("--no-lock", self.no_lock && kind != StorageKind::File),
            ("--execution", self.execution != Execution::Auto && !matches!(kind, StorageKind::File | StorageKind::Sim)),
            ("--size", self.size.is_some() && kind == StorageKind::File),
            ("--hugepages", self.hugepages && kind != StorageKind::Memory),
            ("--readonly", self.readonly && !matches!(kind, StorageKind::File | StorageKind::Memory)),
            ("IMAGE", self.image.is_some() && !matches!(kind, StorageKind::File | StorageKind::Memory)),
        ];
        match misplaced.iter().find(|(_, wrong)| *wrong) {
            Some((option, _)) => Err(format!("{option}: has no meaning for --storage {}", kind.name())),
            None => Ok(()),
        }
    }
}

impl StorageKind {
    fn name(self) -> &'static str {
        match self {
            StorageKind::File => "file",
            StorageKind::Memory => "memory",
            StorageKind::Null => "null",
            StorageKind::Sim => "sim",
        }
    }
}
