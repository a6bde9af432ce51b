//! What can go wrong with an export, as its operator reads it.

use engine::EngineError;
use std::path::PathBuf;

/// Errors of an export's verbs.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum ExportError {
    /// {0}
    Bind(#[from] vhost_user::BindError),
    /// {0}
    Config(#[from] device::blk::ConfigError),
    /// {0}
    Tag(#[from] device::fs::ConfigError),
    /// {0}
    P9Tag(#[from] device::p9::ConfigError),
    /// {0} request queues: a directory has 1 to 64
    RequestQueues(u16),
    /// {0} connections: a 9p socket serves 1 to 1024
    Connections(u16),
    /// what 9p reads and writes lies behind a message's head, where no disk reaches it: `allow_direct_io` is for virtio-fs
    DirectIo,
    /// a directory over virtio-fs is served at no address: use a socket for vhost-user, or 9p
    NoStream,
    /// {0}
    Pool(#[from] engine::PoolError),
    /// a directory has no capacity to change
    NoCapacity,
    /// it has no logical units: it is no SCSI device
    NoUnits,
    /// its disks are resized by their names: use `vringd ctl disk resize`
    ManyCapacities,
    /// requests on LUN {0} are still under way: it is out of the device, and its disk is free when its storage has answered them
    UnitInFlight(values::Lun),
    /// the reservations that {path} keeps cannot be read: {error}; serve them by the program that wrote them, or remove the file, and them with it
    Reservations {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: device::scsi::reservations::FileError,
    },
    /// reservations are being written to {path}: try again, and look at its file system if that lasts
    Storing {
        /// The file.
        path: std::path::PathBuf,
    },
    /// {0}
    Take(String),
    /// {0}
    ScsiConfig(#[from] device::scsi::ConfigError),
    /// {0}
    Unit(#[from] device::scsi::UnitError),
    /// {0}
    Identity(#[from] device::scsi::IdentityError),
    /// disk `{disk}` is a logical unit of another device already, with the serial number `{serial}`: it has the same one here, and the same block size and write cache
    AnotherUnit {
        /// The disk.
        disk: String,
        /// Its serial number.
        serial: String,
    },
    /// disk `{disk}` is shared with export `{other}`, and a guest's registrations could not tell the port of `{export}` from that one's, whose number its name makes, too: choose another name for one of the two exports
    SamePort {
        /// The disk.
        disk: String,
        /// The export that is to have it.
        export: String,
        /// One that has it.
        other: String,
    },
    /// {0}
    Storage(#[from] storage::StorageError),
    /// it has no intent log: serve a volume, or give memory, null or sim an `intent_log`
    NoIntentLog,
    /// {requests} request(s) of ring {ring} are still under way: try again when its storage has answered them
    InFlight {
        /// The ring.
        ring: u16,
        /// How many.
        requests: usize,
    },
    /// its rings are being started or stopped, or one has fallen: try again, and look at its storage if that lasts
    Unsteady,
    /// it has failed: {0}
    Failed(String),
    /// its storage has not answered all requests, or is not closed yet: the export serves nobody any more, remove it again when it has
    Undrained,
    /// not everything could be written back: {0}
    Sync(storage::StorageError),
    /// {0}
    Engine(#[from] EngineError),
    /// cannot start the session thread: {0} (check RLIMIT_NPROC and RLIMIT_NOFILE)
    Thread(std::io::Error),
    /// there are no shared workers to place rings on: start one, or give the export workers of its own
    NoSharedWorkers,
    /// there is no ring {index}: the export has {queues} queue(s), counted from 0
    NoSuchRing {
        /// The index asked for.
        index: u16,
        /// How many there are.
        queues: u16,
    },
    /// worker {worker} belongs to export `{owner}`: use a shared one or one of this export's own
    ForeignWorker {
        /// The worker.
        worker: u32,
        /// Whose it is.
        owner: String,
    },
    /// {capacity_bytes} bytes is not a multiple of the block size, {block_size_bytes} bytes
    Capacity {
        /// What was asked for.
        capacity_bytes: u64,
        /// The guest's logical block size.
        block_size_bytes: u32,
    },
}
