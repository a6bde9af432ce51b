//! What an export is made from.

use crate::status::SessionCounts;
use crate::{DirtyBitmap, FuseSession, StreamListener};
use engine::{Placement, Poll, WorkerSpec};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tls::Certificates;
use vhost_user::{Endpoint, Resume, SocketOptions};

/// Where a frontend connects.
#[derive(Debug)]
pub enum Socket {
    /// A path at which the socket is made.
    Path {
        /// The path.
        path: PathBuf,
        /// Its mode and owner.
        options: SocketOptions,
    },
    /// A socket that was inherited.
    Fd(OwnedFd),
    /// A socket that was made before, by this program or by the one before it.
    Bound(Endpoint),
    /// Where many clients connect, each with a stream of 9P messages.
    Stream(StreamListener),
}

/// What every export has.
#[derive(Debug)]
pub struct Hosting {
    /// Its name, unique in the daemon.
    pub name: String,
    /// Where a frontend connects.
    pub socket: Socket,
    /// Largest ring, in descriptors.
    pub queue_size_max: u16,
    /// How rings are placed.
    pub placement: Placement,
    /// How its own workers look for work.
    pub poll: Poll,
    /// Where its own workers run.
    pub workers: WorkerSpec,
    /// Told at the end of every session.
    pub session_ended: Option<Sender<()>>,
    /// Told once, when the export cannot serve any more.
    pub failed: Option<Sender<()>>,
    /// What it carries over from the program before this one; nothing for a new export.
    pub carried: Carried,
    /// The session that it goes on with.
    pub resume: Option<Resume>,
}

/// What an export carries over from the program before this one, besides its description, its endpoint and its storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Workers of its own, by the place of its placement that they hold.
    pub placed: Vec<Option<u32>>,
    /// Rings that an operator attached to a worker: ring, worker.
    pub attached: Vec<(u16, u32)>,
    /// Workers on which rings ran: ring, worker.
    pub homes: Vec<(u16, u32)>,
    /// Sessions so far.
    pub sessions: SessionCounts,
    /// Why the last bad session ended.
    pub last_error: Option<String>,
    /// Whether the driver has a disk's write cache on; `None` leaves it to the options.
    pub write_back: Option<bool>,
    /// The number of a SCSI device's port.
    pub port: Option<u16>,
    /// How its socket is shown; as usual if this does not say.
    pub shown: Option<String>,
    /// The guest's session with a directory by FUSE, whose tree was made from `Export::hand_directory_over`.
    pub fuse: Option<FuseSession>,
}

/// A disk to serve.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// Rings a frontend may use, 1 to 256.
    pub queues: u16,
    /// Serial number for the guest, cut at 20 bytes.
    pub serial: String,
    /// Smallest logical block the guest may see, in bytes; the storage may need larger ones.
    pub block_size_bytes: u32,
    /// Whether a driver finds a write cache.
    pub write_back: bool,
    /// Whether it is offered to turn that on or off. What it has done nobody tells the next frontend that brings it.
    pub write_back_changeable: bool,
    /// What NBD clients find.
    pub nbd: NbdOptions,
}

/// What NBD clients find of a disk, besides what it is.
#[derive(Clone, Debug, Default)]
pub struct NbdOptions {
    /// The name by which they ask for it; that of the export if there is none.
    pub name: Option<String>,
    /// A dirty bitmap.
    pub bitmap: Option<Arc<DirtyBitmap>>,
    /// What TLS is made of, which every client has to begin; none if connections are not protected.
    pub tls: Option<Arc<Certificates>>,
}
