//! The state of a daemon as one program writes it and the next one reads it. `docs/formats/upgrade-state.md` says it in
//! prose.
//!
//! A field more, a field less or another meaning is another [`VERSION`]: a program that does not know a field would lose
//! what is in it without a word. The exception is a field that is left out where a program that does not know it would do the same.

use crate::confine::Held;
use control::model::{CpuList, Favour, NewDisk, NewExport, NewGroup, PolicyMode, Poll, Span};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use storage::Description;
use values::Lun;
use vhost_user::RingPosition;

/// The version of this form.
pub(crate) const VERSION: u32 = 4;
/// The oldest that is read, too: without `disks`, and with exports that all have disks of their own. Version 3 has no dirty logs.
pub(crate) const VERSION_MIN: u32 = 2;

/// Number of a descriptor that stays open from one program to the next.
pub(crate) type Number = i32;

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    /// Version of the program that wrote it.
    pub(crate) program: String,
    /// Programs that have served before the one that reads it: 1 for the first upgrade.
    pub(crate) upgrades: u64,
    /// When the first of them was started, in nanoseconds of CLOCK_MONOTONIC.
    pub(crate) started_ns: u64,
    /// When the first ring was halted, on the same clock.
    pub(crate) paused_ns: u64,
    /// Every descriptor that is named in here, and what it is, but for those of trees: for a person who reads this.
    pub(crate) descriptors: BTreeMap<Number, String>,
    /// Largest number of workers.
    pub(crate) workers_max: usize,
    /// What is favoured, unless that is the usual.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub(crate) favour: Favour,
    /// Whether anything is chosen by itself, unless that is the usual.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub(crate) policy: PolicyMode,
    /// The workers, by number.
    pub(crate) workers: Vec<Worker>,
    /// The control socket, if there is one.
    pub(crate) control: Option<Socket>,
    /// After how long a request is said to be stuck; 0 for never.
    pub(crate) stuck_after: Span,
    /// The process ends when its only export has failed.
    pub(crate) one: bool,
    /// Nobody can add exports: the process is made for the one that it has.
    pub(crate) alone: bool,
    /// What holds the process: an execve changes nothing of it.
    pub(crate) held: Held,
    /// Groups of exports that share limits, as they are now.
    pub(crate) groups: Vec<NewGroup>,
    /// Disks apart from exports, by name.
    #[serde(default)]
    pub(crate) disks: Vec<Disk>,
    /// What guests have reserved of SCSI devices' disks; left out if nobody is registered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) reservations: Vec<Reservations>,
    /// What else drivers have made of them; left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) units: Vec<Unit>,
    /// The exports, by name.
    pub(crate) exports: Vec<Export>,
}

fn is_usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Worker {
    pub(crate) number: u32,
    /// The export that it belongs to; empty for a shared one.
    pub(crate) owner: String,
    pub(crate) cpus: Option<CpuList>,
    pub(crate) numa_node: Option<u32>,
    pub(crate) cgroup: Option<PathBuf>,
    pub(crate) poll: Poll,
}

/// A listening socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Socket {
    pub(crate) fd: Number,
    /// The file that is to be removed in the end; none for an inherited socket.
    pub(crate) file: Option<SocketFile>,
}

/// The file of a socket, by its name and its identity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SocketFile {
    pub(crate) path: PathBuf,
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// A disk that is no export's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Disk {
    /// The description that opens it as it is now.
    pub(crate) description: NewDisk,
    pub(crate) storage: Storage,
    /// What keeps its reservations over a loss of power, and the lock on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reservations: Option<Kept>,
}

/// A file that keeps reservations, and what it keeps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kept {
    pub(crate) fd: Number,
    pub(crate) number: u64,
    pub(crate) record: Vec<u8>,
}

/// Reservations of a logical unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reservations {
    /// Its disk.
    pub(crate) disk: String,
    /// The export that alone has the unit; none for a shared disk.
    pub(crate) export: Option<String>,
    /// As `docs/formats/reservations.md` has them.
    pub(crate) bytes: Vec<u8>,
}

/// What drivers have made of a logical unit, and what they are to be told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unit {
    /// Its disk.
    pub(crate) disk: String,
    /// The export that alone has the unit; none for a shared disk.
    pub(crate) export: Option<String>,
    pub(crate) write_cache: bool,
    pub(crate) descriptor_sense: bool,
    pub(crate) stopped: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) space_is_low: bool,
    /// Unit attentions as bits, by port and LUN.
    pub(crate) attentions: Vec<(u16, Lun, u16)>,
}

/// An export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Export {
    /// The description that makes it as it is now.
    pub(crate) description: NewExport,
    pub(crate) socket: Socket,
    /// The number of a SCSI device's port, unless it is 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) port: Option<u16>,
    /// How its socket is shown.
    pub(crate) shown: Option<String>,
    /// What stands behind a disk of its own.
    pub(crate) storage: Option<Storage>,
    /// Whether the driver has the disk's write cache on.
    pub(crate) write_back: Option<bool>,
    /// Its own workers, by the place of its placement that they hold.
    pub(crate) placed: Vec<Option<u32>>,
    /// Rings that an operator attached to a worker: ring, worker.
    pub(crate) attached: Vec<(u16, u32)>,
    /// Where rings ran: ring, worker.
    pub(crate) homes: Vec<(u16, u32)>,
    pub(crate) sessions: Sessions,
    pub(crate) last_error: Option<String>,
    /// The session, while a frontend is connected.
    pub(crate) session: Option<Session>,
    /// What the guest of a directory knows and has open, in its session.
    pub(crate) directory: Option<Directory>,
    /// Certificates and the private key of TLS, which versions 2 and 3 do not have.
    pub(crate) tls: Option<Number>,
}

/// A guest's session with a directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Directory {
    /// What FUSE's INIT agreed on: minor version, flags.
    pub(crate) agreed: Option<(u32, u64)>,
    /// Requests that were interrupted before they came, by `unique`.
    pub(crate) interrupted: Vec<u64>,
    pub(crate) tree: Tree,
}

/// A tree that a guest uses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tree {
    /// The version of the form of `nodes`, which is the tree's own.
    pub(crate) form: u32,
    /// Nodes, open files and locks, in memory. None in a state that is only to be understood.
    pub(crate) nodes: Option<Number>,
    /// The descriptors of these, which `nodes` names by their places here.
    pub(crate) descriptors: Vec<Number>,
}

/// Sessions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sessions {
    pub(crate) connects: u64,
    pub(crate) disconnects: u64,
    pub(crate) errors: u64,
}

/// What a storage keeps open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Storage {
    pub(crate) capacity_bytes: u64,
    /// The image, or the memory's contents.
    pub(crate) data: Option<Number>,
    /// What holds the image's locks.
    pub(crate) lock: Option<Number>,
    /// The same of a volume's log, where that has a file of its own.
    pub(crate) log: Option<Box<Storage>>,
    /// The memory of a volume.
    pub(crate) memory: Option<Number>,
    /// What a migratable image was when it was last seen, while it is not open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seen: Option<Description>,
    /// What a storage that is opened again has to know of what it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) again: Option<String>,
}

/// A session with a frontend, between two messages and with all rings drained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Session {
    /// The connection.
    pub(crate) socket: Number,
    /// Acknowledged virtio features, the transport's included.
    pub(crate) features: u64,
    /// Acknowledged protocol features.
    pub(crate) protocol_features: u64,
    /// The memory table; none before there is one.
    pub(crate) memory: Option<Vec<Region>>,
    pub(crate) backend_channel: Option<Number>,
    /// Where requests in flight are written down.
    pub(crate) inflight: Option<Inflight>,
    /// The frontend's dirty log.
    #[serde(default)]
    pub(crate) log: Option<DirtyLog>,
    pub(crate) rings: Vec<Ring>,
}

/// A region for requests in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Inflight {
    pub(crate) fd: Number,
    pub(crate) bytes: u64,
    pub(crate) file_offset: u64,
    pub(crate) queues: u16,
    /// In descriptors.
    pub(crate) queue_size: u16,
}

/// A log of the pages that were written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DirtyLog {
    pub(crate) fd: Number,
    pub(crate) bytes: u64,
    pub(crate) file_offset: u64,
}

/// A region of guest memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Region {
    pub(crate) fd: Number,
    pub(crate) guest_addr: u64,
    pub(crate) user_addr: u64,
    /// Length, in bytes.
    pub(crate) len: u64,
    pub(crate) file_offset: u64,
}

/// What the frontend has said of a ring.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ring {
    pub(crate) index: u16,
    /// In descriptors.
    pub(crate) size: Option<u16>,
    /// Descriptor table, avail ring, used ring, as addresses of the frontend.
    pub(crate) areas: Option<[u64; 3]>,
    /// Guest address by which the used ring is logged.
    #[serde(default)]
    pub(crate) used_log: Option<u64>,
    #[serde(rename = "next_avail", with = "position")]
    pub(crate) position: RingPosition,
    /// Head descriptors of requests that were taken before and wait for a lock, the oldest first: to be taken again.
    pub(crate) owed: Vec<u16>,
    pub(crate) kick: Kick,
    pub(crate) call: Option<Number>,
    pub(crate) err: Option<Number>,
    pub(crate) enabled: Option<bool>,
    /// Whether it is to be served again.
    pub(crate) running: bool,
}

/// How a ring learns of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kick {
    /// Not said yet.
    Missing,
    /// Nobody kicks: it is to be looked at.
    Polled,
    /// By this descriptor.
    Eventfd(Number),
}

/// A ring's position as the number that SET_VRING_BASE gives.
mod position {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use vhost_user::RingPosition;

    pub(super) fn serialize<S: Serializer>(position: &RingPosition, serializer: S) -> Result<S::Ok, S::Error> {
        position.payload().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RingPosition, D::Error> {
        let num = u32::deserialize(deserializer)?;
        RingPosition::from_payload(num).ok_or_else(|| D::Error::custom(format_args!("no ring can go on at {num}")))
    }
}
