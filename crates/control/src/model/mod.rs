//! The words of the API: every type that crosses the control socket, and the tables of the
//! configuration file. Doc comments of fields become the descriptions in the OpenAPI document.

mod bitmap;
pub mod config;
pub mod directory;
mod disk;
mod export;
mod job;
mod latency;
mod limits;
mod name;
pub mod p9;
mod place;
pub mod policy;
mod pull;
mod sandbox;
mod scsi;
mod snapshot;
pub mod trace;
mod upgrade;
mod volume;
mod worker;
mod write_cache;

pub use self::disk::{Disk, NewDisk};
pub use bitmap::{Bitmap, NewBitmap};
pub use config::NewExport;
pub use directory::{Dax, Directory};
pub use export::{
    DaxInfo, DirectoryInfo, Export, Frontend, Info, LinkInfo, LinkState, Remove, Resize, RingFigures, RingInfo,
    RingState, SessionFigures, SessionState, Settings, StorageInfo,
};
pub use job::{
    CopyDisk, CopyFormat, Job, JobDisk, JobKind, JobSettings, JobState, NewBackup, NewCommit, NewJob, NewMirror,
    NewStream,
};
pub use latency::{LATENCY_BOUNDS_US, LatencySummary};
pub use limits::{Group, GroupSettings, Limits, NewGroup, Rates};
pub use p9::{P9Info, Protocol, SecurityModel};
pub use place::NO_NBD;
pub use pull::{NewPull, PullDisk};
pub use sandbox::{FileSystem, LandlockInfo, SandboxInfo, SeccompState};
pub use scsi::{NewUnit, Unit, UnitReservation, check_alike, serial_is_taken};
pub use snapshot::{NewSnapshot, SnapshotDisk};
pub use upgrade::{NewUpgrade, Takeover};
pub use values::{
    ByteSize, CachePolicy, CpuList, DaxWhen, Execution, Favour, FieldError, FileHandles, FileMode, IntentLog, Listen,
    LogFile, Lun, MemoryFile, MigrationMode, MigrationOnError, Multidevs, Negotiation, OnLost, ParseError, Placement,
    PolicyMode, Poll, Readdirplus, Span, SyncMode, Tls,
};
pub use volume::VolumeInfo;
pub use worker::{Attach, Attached, NewWorker, Owner, RingRef, Worker, WorkerFigures, WorkerState};
pub use write_cache::WriteCache;
