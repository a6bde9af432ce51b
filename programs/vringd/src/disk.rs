//! Arguments of `vringd disk`: one export, spelled as options.

use crate::confine::Confinement;
use clap::ValueEnum;
use control::ctl::LimitFlags;
use control::model::config::{
    Distribution, ExportKind, FileStorage, MemoryStorage, NewExport, NullStorage, SimStorage, Storage,
};
use control::model::{
    ByteSize, CpuList, Execution, FileMode, IntentLog, MemoryFile, Placement, Poll, Span, SyncMode, VolumeStorage,
    WriteCache,
};
use std::path::PathBuf;

/// Serve one disk on one socket, until SIGTERM or SIGINT.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Attach a guest:
  qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \\
    -chardev socket,id=c0,path=SOCKET -device vhost-user-blk-pci,chardev=c0,num-queues=QUEUES …
  cloud-hypervisor --memory size=1G,shared=on --disk vhost_user=true,socket=SOCKET,num_queues=QUEUES …
A disk whose synchronous writes share commits:
  vringd volume create --size 20G --log-size 256M disk.vol
  vringd disk --socket SOCKET --storage volume disk.vol")]
pub(crate) struct Args {
    /// The image file or block device; for --storage memory a file on tmpfs or hugetlbfs, which is optional
    #[arg(value_name = "IMAGE", required_unless_present_any = ["size", "path"])]
    pub(crate) image: Option<PathBuf>,
    /// The same as IMAGE
    #[arg(long, value_name = "IMAGE", conflicts_with = "image", help_heading = "Storage")]
    pub(crate) path: Option<PathBuf>,
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
    /// Bypass the page cache (O_DIRECT); volumes do so anyway
    #[arg(long, help_heading = "Storage")]
    pub(crate) direct: bool,
    /// Let a volume go through the page cache
    #[arg(long, conflicts_with = "direct", help_heading = "Storage")]
    pub(crate) no_direct: bool,
    /// Refuse writes
    #[arg(long, visible_alias = "read-only", help_heading = "Storage")]
    pub(crate) readonly: bool,
    /// Do not lock the image against other writers
    #[arg(long, help_heading = "Storage")]
    pub(crate) no_lock: bool,
    /// Where storage calls run, or who waits for a simulated device: auto, uring, inline or pool=N
    #[arg(long, value_name = "HOW", default_value = "auto", help_heading = "Storage")]
    pub(crate) execution: Execution,
    /// Threads that wait for the storage: the same as --execution pool=N
    #[arg(long, value_name = "N", conflicts_with = "execution", value_parser = threads, help_heading = "Storage")]
    pub(crate) threads: Option<usize>,
    /// Use huge pages for anonymous memory
    #[arg(long, help_heading = "Storage")]
    pub(crate) hugepages: bool,

    /// Log of the volume, where that is in a file or on a device of its own
    #[arg(long, value_name = "PATH", help_heading = "Volume")]
    pub(crate) log: Option<PathBuf>,
    /// When writes are on stable storage [default: standard]
    #[arg(long, value_name = "MODE", help_heading = "Volume")]
    pub(crate) sync: Option<SyncMode>,
    /// Memory for data that is not written back yet, 1M to 64G [default: a 64th of the host's memory, 64M to 256M]
    #[arg(long, value_name = "SIZE", help_heading = "Volume")]
    pub(crate) dirty_memory: Option<ByteSize>,
    /// Where that memory is: auto, none, or a path on tmpfs; in a file it outlives a killed daemon [default: auto]
    #[arg(long, value_name = "WHERE", help_heading = "Volume")]
    pub(crate) memory_file: Option<MemoryFile>,
    /// Put an intent log of this size over memory, null or sim, which lives as long as they do
    #[arg(long, value_name = "SIZE", help_heading = "Volume")]
    pub(crate) intent_log: Option<ByteSize>,

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
    /// Whether the guest finds a disk with a write cache, which it may turn on or off [default: on]
    #[arg(long, value_name = "WHETHER", help_heading = "Device")]
    pub(crate) write_cache: Option<WriteCache>,

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
    /// A volume, made by `vringd volume create`: synchronous writes share commits
    Volume,
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

fn threads(text: &str) -> Result<usize, String> {
    let legal = |threads: &usize| (1..=Execution::POOL_MAX).contains(threads);
    text.parse().ok().filter(legal).ok_or_else(|| format!("use 1 to {} threads", Execution::POOL_MAX))
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
            listen: None,
            storage: Some(storage),
            directory: None,
            queues: self.queues,
            queue_size: self.queue_size,
            serial: self.serial,
            block_size: self.block_size,
            write_cache: self.write_cache,
            workers: self.workers,
            poll: Some(self.poll.unwrap_or_default()),
            cpus: self.cpus,
            limits: self.limits.limits(None),
        })
    }

    fn storage(&self) -> Result<Storage, String> {
        let size = || self.size.ok_or_else(|| "--size: is missing: give the capacity, as in --size 10G".to_owned());
        self.refuse_misplaced()?;
        let image = self.image.clone().or_else(|| self.path.clone());
        let intent_log = self.intent_log();
        match self.storage {
            StorageKind::File => Ok(Storage::File(FileStorage {
                path: image.ok_or("IMAGE: is missing: give the path of the image file")?,
                direct: self.direct,
                read_only: self.readonly,
                execution: self.execution(),
                lock: !self.no_lock,
            })),
            StorageKind::Volume => {
                let least = VolumeStorage::new(image.ok_or("IMAGE: is missing: give the path of the volume")?);
                Ok(Storage::Volume(VolumeStorage {
                    log: self.log.clone(),
                    sync: self.sync.unwrap_or_default(),
                    dirty_memory: self.dirty_memory.unwrap_or(least.dirty_memory),
                    memory_file: self.memory_file.clone().unwrap_or_default(),
                    direct: !self.no_direct,
                    execution: self.execution(),
                    lock: !self.no_lock,
                    ..least
                }))
            }
            StorageKind::Memory => Ok(Storage::Memory(MemoryStorage {
                size: self.size,
                path: image,
                hugepages: self.hugepages,
                read_only: self.readonly,
                intent_log,
            })),
            StorageKind::Null => Ok(Storage::Null(NullStorage { size: size()?, intent_log })),
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
                execution: self.execution(),
                intent_log,
            })),
        }
    }

    fn execution(&self) -> Execution {
        self.threads.map_or(self.execution, Execution::Pool)
    }

    /// The log over a storage that is made, not found.
    fn intent_log(&self) -> Option<IntentLog> {
        let least = IntentLog::new(self.intent_log?);
        let dirty_memory = self.dirty_memory.unwrap_or(least.dirty_memory);
        Some(IntentLog { sync: self.sync.unwrap_or_default(), dirty_memory, ..least })
    }

    /// An option that the storage would ignore is an error, not a surprise.
    fn refuse_misplaced(&self) -> Result<(), String> {
        use StorageKind::{File, Memory, Null, Sim, Volume};
        let kind = self.storage;
        let among = |kinds: &[StorageKind]| kinds.contains(&kind);
        let misplaced = [
            ("--direct", self.direct && !among(&[File, Volume])),
            ("--no-direct", self.no_direct && kind != Volume),
            ("--no-lock", self.no_lock && !among(&[File, Volume])),
            ("--execution", self.execution != Execution::Auto && among(&[Memory, Null])),
            ("--threads", self.threads.is_some() && among(&[Memory, Null])),
            ("--size", self.size.is_some() && among(&[File, Volume])),
            ("--hugepages", self.hugepages && kind != Memory),
            ("--readonly", self.readonly && !among(&[File, Memory])),
            ("IMAGE", self.image.is_some() && among(&[Null, Sim])),
            ("--path", self.path.is_some() && among(&[Null, Sim])),
            ("--log", self.log.is_some() && kind != Volume),
            ("--memory-file", self.memory_file.is_some() && kind != Volume),
            ("--intent-log", self.intent_log.is_some() && among(&[File, Volume])),
        ];
        if let Some((option, _)) = misplaced.iter().find(|(_, wrong)| *wrong) {
            return Err(format!("{option}: has no meaning for --storage {}", kind.name()));
        }
        let of_a_log = [("--sync", self.sync.is_some()), ("--dirty-memory", self.dirty_memory.is_some())];
        match of_a_log.iter().find(|(_, given)| *given && kind != Volume && self.intent_log.is_none()) {
            Some((option, _)) if kind == File => Err(format!("{option}: has no meaning for --storage file")),
            Some((option, _)) => Err(format!("{option}: means nothing without a log: give --intent-log as well")),
            None => Ok(()),
        }
    }
}

impl StorageKind {
    fn name(self) -> &'static str {
        match self {
            StorageKind::File => "file",
            StorageKind::Volume => "volume",
            StorageKind::Memory => "memory",
            StorageKind::Null => "null",
            StorageKind::Sim => "sim",
        }
    }
}
