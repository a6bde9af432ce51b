//! Exports, rings and the daemon itself, as the API shows them.

use super::config::ExportKind;
use super::latency::LatencySummary;
use super::limits::Limits;
use super::p9::{P9Info, SecurityModel};
use super::sandbox::SandboxInfo;
use super::scsi::Unit;
use super::upgrade::Takeover;
use super::volume::VolumeInfo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};
use values::SyncMode;
use values::{ByteSize, Execution, Placement, Poll};
use values::{CachePolicy, DaxWhen, MigrationMode, MigrationOnError};

/// The daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Info {
    /// Version of the daemon.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Time since the daemon started, in seconds.
    pub uptime_seconds: f64,
    /// Number of exports.
    pub exports: usize,
    /// Number of workers, shared and private.
    pub workers: usize,
    /// Largest number of workers the daemon will run.
    pub workers_max: usize,
    /// How often the daemon's program has been replaced while it served.
    #[serde(default)]
    pub upgrades: u64,
    /// How the running program took over from the one before it; absent in one that was started afresh.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub takeover: Option<Takeover>,
    /// Upper bounds of the latency buckets, inclusive, in microseconds.
    pub latency_bounds_us: Vec<u64>,
    /// What holds the daemon.
    #[serde(default)]
    pub sandbox: SandboxInfo,
}

/// Whether a frontend is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Waiting for a frontend.
    Listening,
    /// A frontend is connected.
    Connected,
    /// The export cannot serve any more; `last_error` says why.
    Failed,
}

/// The process at the other end of the vhost-user socket, as the kernel names it (SO_PEERCRED).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Frontend {
    /// Process id; 0 when it lives in another pid namespace.
    pub pid: i32,
    /// User id.
    pub uid: u32,
}

/// What stands behind a disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StorageInfo {
    /// `file`, `device`, `volume`, `memory`, `null` or `sim`.
    pub kind: String,
    /// Path of the file or block device; a short description for storage without one.
    pub target: String,
    /// Capacity, in bytes.
    pub capacity_bytes: u64,
    /// Logical block size, in bytes.
    pub block_size_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether the page cache is bypassed (O_DIRECT).
    pub direct: bool,
    /// Execution as it was set.
    pub execution: Execution,
    /// Execution that is in use: what `auto` chose, or the same as `execution`.
    pub execution_chosen: Execution,
    /// Of a migratable image: whether this daemon has it now, or another one may. Absent for any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
    /// Of storage on other machines that is open: how things stand with it. Absent for any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<LinkInfo>,
    /// Its intent log; absent for storage without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeInfo>,
}

/// How things stand with storage on other machines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LinkInfo {
    /// What becomes of requests.
    pub state: LinkState,
    /// For how long it has been so, in milliseconds; absent while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// Why it is not open, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What becomes of the requests of storage on other machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// They are handed over.
    Open,
    /// It is being opened again, and they wait.
    Opening,
    /// It is not opened again by itself, and they fail.
    Lost,
    /// It is not opened again by itself, and they wait until an operator reopens it.
    LostWaiting,
}

/// What a directory serves, and what the guest holds of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DirectoryInfo {
    /// Path of the directory.
    pub path: String,
    /// Name by which the guest mounts it; absent when the frontend gives the device its tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Version of the protocol that the guest speaks: of FUSE, as in `7.45`, or of 9P, as in `9P2000.L`; absent before it
    /// has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// For how long the guest may believe what it was told; absent for 9p, whose clients choose by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CachePolicy>,
    /// Where owner, mode and kind of a file are kept that the guest sees.
    #[serde(default)]
    pub security_model: SecurityModel,
    /// Whether changes are refused.
    pub read_only: bool,
    /// What the guest's inodes are found by where it is migrated to; absent for 9p and with a DAX window, which are not migrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_mode: Option<MigrationMode>,
    /// What becomes of a migration that comes in, when something of its guest is not found here; absent as above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_on_error: Option<MigrationOnError>,
    /// Whether file handles go along with paths, and have to be the same where the guest is migrated to.
    #[serde(default)]
    pub migration_verify_handles: bool,
    /// Execution as it was set.
    pub execution: Execution,
    /// Execution that is in use: the same as `execution`, because with `auto` each request has its own.
    pub execution_chosen: Execution,
    /// Inodes that the guest knows now.
    pub nodes: u64,
    /// Most inodes that the guest can know.
    pub nodes_max: u64,
    /// Descriptors that are held for inodes now.
    pub descriptors: u64,
    /// Most descriptors that are held for inodes.
    pub descriptors_max: u64,
    /// Files and directories that the guest has open now.
    pub open_files: u64,
    /// Requests for a lock that wait now.
    pub locks_waiting: u64,
    /// The DAX window; absent for a directory without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dax: Option<DaxInfo>,
    /// What 9p adds; absent for virtio-fs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p9: Option<P9Info>,
}

/// A DAX window, and what is in it. What a guest reads and writes there nobody can count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DaxInfo {
    /// Length of the window.
    pub window: ByteSize,
    /// Which files the guest is told to map.
    pub when: DaxWhen,
    /// Parts of files, of 2 MiB each, that are mapped now.
    pub mapped: u64,
}

/// Sessions with frontends since the export was added. All are counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionFigures {
    /// Frontends that connected.
    pub connects: u64,
    /// Sessions that the frontend ended by closing the socket.
    pub disconnects: u64,
    /// Sessions that were ended because the frontend broke the protocol or the socket failed.
    pub failures: u64,
}

/// One export with its rings and workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// Name, unique in the daemon.
    pub name: String,
    /// What it is.
    pub kind: ExportKind,
    /// What stands behind a disk; absent for a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<StorageInfo>,
    /// Name of the disk that it serves; absent where it has one of its own, and for a directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// What a directory serves; absent for a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<DirectoryInfo>,
    /// The logical units of a SCSI device, by LUN; absent for other devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub luns: Vec<Unit>,
    /// Path of the vhost-user socket, `fd N` for an inherited one, or the address of a stream.
    pub socket: String,
    /// Whether a frontend is there.
    pub state: SessionState,
    /// The connected frontend; absent when there is none or the kernel does not name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<Frontend>,
    /// Names of the negotiated virtio and vhost-user features, as in the virtio specification without their prefix;
    /// empty when no frontend is connected.
    pub features: Vec<String>,
    /// Number of queues the device offers; for a directory the request queues, without the one for urgent requests, for a SCSI
    /// device the request queues, without those for control and events; for a
    /// stream the clients that may be connected.
    pub queues_max: u16,
    /// Placement as it was set.
    pub placement: Placement,
    /// Poll window for the export's own workers.
    pub poll: Poll,
    /// Its limits, and the group whose limits it shares; absent when nothing is limited.
    #[serde(default, skip_serializing_if = "Limits::is_none")]
    pub limits: Limits,
    /// Requests that were answered with an error since the export was added.
    pub errors: u64,
    /// How long ago the request was taken that waits longest on any of its rings, in milliseconds; absent when none is in
    /// flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_in_flight_ms: Option<u64>,
    /// Rings that are stopped because the guest broke them.
    pub broken_rings: u64,
    /// Why the export failed, if it is in that state, or why the last session did; absent when nothing failed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Sessions with frontends.
    pub sessions: SessionFigures,
    /// Its rings, by index.
    pub rings: Vec<RingInfo>,
    /// Identifiers of its private workers.
    pub workers: Vec<u32>,
}

/// What a ring does now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RingState {
    /// Started and enabled: requests are served.
    Running,
    /// Started, but the frontend has disabled it.
    Disabled,
    /// Not started, or stopped by the frontend.
    Stopped,
    /// Stopped because the guest broke it; `broken` says how.
    Broken,
    /// Its worker takes no turns: it has been busy with one thing for more than a second, and `oldest_in_flight_ms` is at least
    /// as long.
    Unresponsive,
}

/// One ring with its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RingInfo {
    /// Index of the ring, from 0: the number of the virtqueue, or of a stream's connection.
    pub index: u16,
    /// What it does now.
    pub state: RingState,
    /// How the guest broke it; absent when it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// Number of descriptors, 0 before the frontend has said it; of a connection, the requests that may be in flight.
    pub size: u32,
    /// Identifier of the worker it is attached to; absent when it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<u32>,
    /// What it has done since the export was added.
    pub figures: RingFigures,
}

/// What a ring has done since the export was added. Counts, unless the name says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RingFigures {
    /// Requests taken, by kind: for a disk `read`, `write`, `flush`, `discard`, `write_zeroes` and `get_id`
    /// (VIRTIO_BLK_T_IN and so on), for a SCSI device those and `compare_and_write`, `other` commands and `task_management`, for a directory the FUSE operations, as in `lookup` or `getattr`, or the 9P messages, as in
    /// `Twalk` or `Tlopen`. What did not come yet may be absent.
    pub requests: BTreeMap<String, u64>,
    /// Requests that were refused as they came: of an unknown type or a wrong form.
    pub unsupported: u64,
    /// Data read, in bytes.
    pub bytes_read: u64,
    /// Data written, in bytes.
    pub bytes_written: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Requests taken from the ring and not completed yet: the queue depth now.
    pub in_flight: u64,
    /// How long ago the request was taken that waits longest, in milliseconds; absent when none is in flight. Requests
    /// that wait for a lock do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_in_flight_ms: Option<u64>,
    /// Largest queue depth so far.
    pub in_flight_max: u64,
    /// Kicks received from the guest.
    pub kicks: u64,
    /// Notifications sent to the guest.
    pub notifications_sent: u64,
    /// Publications of completed requests for which the guest wanted no notification.
    pub notifications_suppressed: u64,
    /// Poll windows of its workers that ended because of this ring.
    pub polls_hit: u64,
    /// Poll windows of its workers that ended without work while this ring was attached.
    pub polls_missed: u64,
    /// Times the ring has moved to another worker.
    pub moves: u64,
    /// Requests that had to wait for a limit.
    #[serde(default)]
    pub throttled: u64,
    /// Time during which requests waited for a limit, in seconds.
    #[serde(default)]
    pub throttled_seconds: f64,
    /// Time from when the worker could have taken a request to when it did.
    pub latency_queued: LatencySummary,
    /// Time from when the worker took a request to when its answer was ready.
    pub latency_served: LatencySummary,
}

impl RingFigures {
    /// Requests taken, of every kind, and refused ones.
    pub fn requests(&self) -> u64 {
        self.by_kind().map(|(_, count)| count).sum()
    }

    /// Requests taken, of one kind.
    pub fn count(&self, kind: &str) -> u64 {
        self.requests.get(kind).copied().unwrap_or(0)
    }

    /// Requests taken, by the name of their kind; last those that were refused as they came, as `unsupported`.
    pub fn by_kind(&self) -> impl Iterator<Item = (&str, u64)> {
        let taken = self.requests.iter().map(|(kind, count)| (kind.as_str(), *count));
        taken.chain([("unsupported", self.unsupported)])
    }
}

/// A new capacity for a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Capacity, a multiple of the block size.
    pub capacity_bytes: ByteSize,
}

/// Changes to an export that apply while it serves. What is left out stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Poll window for the export's own workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<Poll>,
    /// Where its storage calls run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<Execution>,
    /// The rule that gives its rings their workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Its limits, and the group whose limits it shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// When writes to its volume are on stable storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<SyncMode>,
}

/// How to remove an export.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Remove {
    /// Remove it even though a frontend is connected: its session is ended.
    #[serde(default)]
    pub force: bool,
}
