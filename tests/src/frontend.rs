//! A connected frontend: a session, guest memory, and rings for [`crate::driver`].

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use frontkit::{Memory, Session};
use vhost::VhostBackend;
use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend as Link, VhostUserFrontend};

use crate::driver::{RING_BYTES, Ring};

pub use frontkit::blk::{kind, status};
use frontkit::feature::LOG_ALL;
pub use frontkit::feature::{EVENT_IDX, INDIRECT_DESC};

/// VIRTIO_BLK_F_RO (virtio 1.3, 5.2.3), as a mask.
pub const RO: u64 = 1 << 5;
/// Of the configuration space, what every virtio-blk device has: to the end of the write cache's byte (virtio 1.3, 5.2.4).
const CONFIG_BYTES: u32 = 33;
/// Rings that fit into the first region.
const RINGS: u64 = 4;
/// Where the first region has room for data.
pub const DATA: u64 = RINGS * RING_BYTES;
const DATA_BYTES: u64 = 64 << 20;

/// A connected frontend.
pub struct Frontend {
    session: Session,
    memory: Arc<Memory>,
}

/// A region that tracks requests in flight (vhost-user, "Inflight I/O tracking"). It outlives its server.
pub struct Tracker {
    region: VhostUserInflight,
    file: File,
}

impl Tracker {
    /// Takes away what a backend left there about the device, as if it had been one that leaves nothing, or had died while
    /// it changed. The byte is in the padding of the first descriptor's entry, which follows 16 bytes of the queue's own
    /// (vhost-user, "Queue Region layout").
    pub fn forget_note(&self) -> Result<()> {
        Ok(self.file.write_all_at(&[0], self.region.mmap_offset + 16 + 1)?)
    }
}

impl Frontend {
    /// Connects and negotiates all that is offered but EVENT_IDX, LOG_ALL and what `without` names. Every
    /// message asks for an acknowledgement. The first memory region holds the rings, and data from
    /// [`DATA`] on.
    pub fn connect(socket: &Path, without: u64) -> Result<Self> {
        let mut frontend = Self::connect_with(socket, without, Arc::new(Memory::new(0, DATA + DATA_BYTES)?))?;
        // A driver that finds a device reads about it; one whose backend has come back does not.
        if frontend.session.protocol.contains(VhostUserProtocolFeatures::CONFIG) {
            frontend.config(0, CONFIG_BYTES)?;
        }
        Ok(frontend)
    }

    /// As [`connect`](Self::connect), with the first region of a frontend whose connection ended.
    pub fn connect_with(socket: &Path, without: u64, memory: Arc<Memory>) -> Result<Self> {
        let mut frontend = Self::connect_unshared(socket, without, memory)?;
        frontend.session.share(&[&frontend.memory])?;
        Ok(frontend)
    }

    /// As [`connect_with`](Self::connect_with), for a memory that the backend is not shown.
    pub fn connect_unshared(socket: &Path, without: u64, memory: Arc<Memory>) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("cannot connect")?;
        let all = |offered: VhostUserProtocolFeatures| {
            ensure!(offered.contains(VhostUserProtocolFeatures::REPLY_ACK), "REPLY_ACK is offered");
            Ok(offered)
        };
        // The driver does not have EVENT_IDX, and LOG_ALL is for when the guest is moved.
        let session = Session::negotiate(stream, |offered| Ok(offered & !(EVENT_IDX | LOG_ALL | without)), all)?;
        Ok(Self { session, memory })
    }

    /// Acknowledges all that is offered but EVENT_IDX and LOG_ALL, whatever was acknowledged before (SET_FEATURES).
    pub fn acknowledge_all(&mut self) -> Result<()> {
        let features = self.link().get_features()? & !(EVENT_IDX | LOG_ALL);
        self.session.features = features;
        Ok(self.link().set_features(features)?)
    }

    /// Acknowledges these as well, which a driver has from an earlier backend, offered or not.
    pub fn acknowledge_too(&mut self, features: u64) -> Result<()> {
        self.session.features |= features;
        let features = self.session.features;
        Ok(self.link().set_features(features)?)
    }

    /// The negotiated features.
    pub fn features(&self) -> u64 {
        self.session.features
    }

    /// The first region.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// The session, for what has no step of its own here.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The vhost-user connection.
    pub fn link(&mut self) -> &mut Link {
        self.session.link()
    }

    /// Sets a fresh ring up, from empty.
    pub fn ring(&mut self, index: usize, size: u16) -> Result<Ring> {
        let ring = Ring::new(self.memory.clone(), index, size);
        self.start(&ring, 0)?;
        Ok(ring)
    }

    /// Starts a ring, or starts it again, with `base` as the next available index.
    pub fn start(&mut self, ring: &Ring, base: u16) -> Result<()> {
        self.session.start(ring.index(), &ring.queue, &ring.eventfds, base)
    }

    /// Stops a ring (GET_VRING_BASE); the server answers when nothing is in flight any more.
    pub fn stop(&mut self, ring: &Ring) -> Result<u16> {
        Ok(u16::try_from(self.link().get_vring_base(ring.index())?)?)
    }

    /// Gets a region that tracks requests in flight for `queues` rings of `size` (GET_INFLIGHT_FD).
    pub fn new_tracker(&mut self, queues: u16, size: u16) -> Result<Tracker> {
        let (region, file) = self.link().get_inflight_fd(&VhostUserInflight::new(0, 0, queues, size))?;
        Ok(Tracker { region, file })
    }

    /// Has requests in flight tracked there, before rings are started (SET_INFLIGHT_FD).
    pub fn track(&mut self, tracker: &Tracker) -> Result<()> {
        Ok(self.link().set_inflight_fd(&tracker.region, tracker.file.as_raw_fd())?)
    }

    /// Adds a region (ADD_MEM_REG).
    pub fn add_region(&mut self, region: &Memory) -> Result<()> {
        self.link().add_mem_region(&region.info())?;
        Ok(())
    }

    /// Removes a region (REM_MEM_REG).
    pub fn remove_region(&mut self, region: &Memory) -> Result<()> {
        Ok(self.link().remove_mem_region(&region.info())?)
    }

    /// Replaces the table (SET_MEM_TABLE): the first region, which holds the rings, and these.
    pub fn set_regions(&mut self, others: &[&Memory]) -> Result<()> {
        self.session.share(&[&[&*self.memory], others].concat())
    }

    /// Reads the configuration space.
    pub fn config(&mut self, offset: u32, bytes: u32) -> Result<Vec<u8>> {
        self.session.config(offset, bytes)
    }

    /// Writes the configuration space.
    pub fn set_config(&mut self, offset: u32, data: &[u8]) -> Result<()> {
        self.session.set_config(offset, data)
    }
}
