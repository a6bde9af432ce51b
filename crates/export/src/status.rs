//! Exports and rings as they are at one moment, for whoever asks.

use crate::figures::RingFigures;
use crate::limit::Limits;
use crate::{DirectoryStatus, P9Status, UnitStatus};
use engine::{Placement, Poll, RingStay};
use storage::{Description, Link, VolumeStatus};
use vhost_user::SessionInfo;

/// How the sessions of an export went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Frontends that connected.
    pub connects: u64,
    /// Sessions that the frontend ended.
    pub disconnects: u64,
    /// Sessions that ended by a broken protocol or connection.
    pub errors: u64,
}

/// What an export serves.
#[derive(Clone, Debug)]
pub enum Content {
    /// A disk.
    Disk {
        /// Capacity as the guest sees it, in bytes.
        capacity_bytes: u64,
        /// Logical block size as the guest sees it, in bytes.
        block_size_bytes: u32,
        /// What stands behind it.
        description: Description,
        /// Of one that changes hands: whether it is this process's now.
        held: Option<bool>,
        /// Of one on other machines: how things stand with it.
        link: Option<Link>,
        /// Its intent log, if it has one.
        volume: Option<Box<VolumeStatus>>,
    },
    /// A directory.
    Directory(Box<DirectoryStatus>),
    /// A directory, by 9P.
    P9(Box<P9Status>),
    /// A SCSI device, by its logical units.
    Scsi(Vec<UnitStatus>),
}

/// An export.
#[derive(Clone, Debug)]
pub struct ExportStatus {
    /// Its name.
    pub name: String,
    /// Its socket's path, or the inherited descriptor.
    pub socket: String,
    /// What it serves.
    pub content: Content,
    /// Features of the present session, the transport's included.
    pub features_negotiated: u64,
    /// Rings a frontend may use.
    pub queues: u16,
    /// How its rings are placed.
    pub placement: Placement,
    /// How its own workers look for work.
    pub poll: Poll,
    /// Its own limits.
    pub limits: Limits,
    /// The group whose limits it shares.
    pub group: Option<String>,
    /// Who is connected.
    pub frontend: Option<SessionInfo>,
    /// Sessions so far.
    pub sessions: SessionCounts,
    /// It cannot serve any more; the reason is in `last_error`.
    pub failed: bool,
    /// Why it failed, or why the last bad session ended.
    pub last_error: Option<String>,
}

/// What a ring is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingState {
    /// It serves requests.
    Running,
    /// The driver paused it.
    Disabled,
    /// No frontend has started it.
    Stopped,
    /// It lied; the reason is beside this.
    Broken,
    /// Its worker takes no turns: it has been busy with one thing for more than a second.
    Unresponsive,
}

/// A ring.
#[derive(Clone, Debug)]
pub struct RingStatus {
    /// Its index in the device.
    pub index: u16,
    /// What it is doing.
    pub state: RingState,
    /// Why it is broken.
    pub broken: Option<String>,
    /// Size in descriptors; 0 while it is stopped.
    pub size: u16,
    /// The worker that serves it, or that it was attached to.
    pub worker: Option<u32>,
    /// Requests taken and not yet answered.
    pub in_flight: usize,
    /// How long the request has been in flight that was taken first, in nanoseconds. For a ring whose worker does not answer:
    /// how long that has been busy with one thing.
    pub oldest_in_flight_ns: Option<u64>,
    /// What it has done since the export was added.
    pub figures: RingFigures,
    /// What the engine has counted of it since the export was added.
    pub stay: RingStay,
}
