//! A frontend on the `vhost` crate: a connection, guest memory, and rings for [`crate::driver`].

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend as Link, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};

use crate::driver::{RING_BYTES, Ring};
use crate::guest_memory::GuestMemory;

/// VIRTIO_BLK_F_RO and its neighbours (virtio 1.3, 5.2.3), as masks.
pub const RO: u64 = 1 << 5;
/// VIRTIO_RING_F_INDIRECT_DESC (virtio 1.3, 6).
pub const INDIRECT_DESC: u64 = 1 << 28;
/// VIRTIO_RING_F_EVENT_IDX (virtio 1.3, 6), which the driver here does not have.
pub const EVENT_IDX: u64 = 1 << 29;

/// Request types (virtio 1.3, 5.2.6).
pub mod kind {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Make writes durable.
    pub const FLUSH: u32 = 4;
    /// Read the serial number.
    pub const GET_ID: u32 = 8;
    /// Contents no longer matter.
    pub const DISCARD: u32 = 11;
    /// Must read as zeroes.
    pub const WRITE_ZEROES: u32 = 13;
}

/// Status bytes (virtio 1.3, 5.2.6).
pub mod status {
    /// Done.
    pub const OK: u8 = 0;
    /// Failed or malformed.
    pub const IOERR: u8 = 1;
    /// Not known.
    pub const UNSUPP: u8 = 2;
}

/// Of the configuration space, what every virtio-blk device has: to the end of the write cache's byte (virtio 1.3, 5.2.4).
const CONFIG_BYTES: u32 = 33;
/// Rings that fit into the first region.
const RINGS: u64 = 4;
/// Where the first region has room for data.
pub const DATA: u64 = RINGS * RING_BYTES;
const DATA_BYTES: u64 = 64 << 20;

/// A connected frontend.
pub struct Frontend {
    link: Link,
    memory: Arc<GuestMemory>,
    features: u64,
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
    /// Connects and negotiates all that is offered but EVENT_IDX and what `without` names. Every
    /// message asks for an acknowledgement. The first memory region holds the rings, and data from
    /// [`DATA`] on.
    pub fn connect(socket: &Path, without: u64) -> Result<Self> {
        let mut frontend = Self::connect_with(socket, without, Arc::new(GuestMemory::new(0, DATA + DATA_BYTES)?))?;
        // A driver that finds a device reads about it; one whose backend has come back does not.
        if frontend.link.get_protocol_features()?.contains(VhostUserProtocolFeatures::CONFIG) {
            frontend.config(0, CONFIG_BYTES)?;
        }
        Ok(frontend)
    }

    /// As [`connect`](Self::connect), with the first region of a frontend whose connection ended.
    pub fn connect_with(socket: &Path, without: u64, memory: Arc<GuestMemory>) -> Result<Self> {
        let mut link = Link::connect(socket, 256).context("cannot connect")?;
        link.set_owner()?;
        let features = link.get_features()? & !(EVENT_IDX | without);
        link.set_features(features)?;
        let protocol = link.get_protocol_features()?;
        ensure!(protocol.contains(VhostUserProtocolFeatures::REPLY_ACK), "REPLY_ACK is offered");
        link.set_protocol_features(protocol)?;
        link.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        link.set_mem_table(&[memory.info()])?;
        Ok(Self { link, memory, features })
    }

    /// Acknowledges all that is offered but EVENT_IDX, whatever was acknowledged before (SET_FEATURES).
    pub fn acknowledge_all(&mut self) -> Result<()> {
        self.features = self.link.get_features()? & !EVENT_IDX;
        Ok(self.link.set_features(self.features)?)
    }

    /// The negotiated features.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The first region.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// The vhost-user connection.
    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Sets a fresh ring up, from empty.
    pub fn ring(&mut self, index: usize, size: u16) -> Result<Ring> {
        let ring = Ring::new(self.memory.clone(), index, size);
        self.start(&ring, 0)?;
        Ok(ring)
    }

    /// Starts a ring, or starts it again, with `base` as the next available index.
    pub fn start(&mut self, ring: &Ring, base: u16) -> Result<()> {
        let index = ring.index();
        self.link.set_vring_num(index, ring.size()).context("SET_VRING_NUM")?;
        self.link.set_vring_base(index, base).context("SET_VRING_BASE")?;
        self.link.set_vring_addr(index, &ring.addresses()).context("SET_VRING_ADDR")?;
        self.link.set_vring_call(index, ring.call_fd()).context("SET_VRING_CALL")?;
        self.link.set_vring_kick(index, ring.kick_fd()).context("SET_VRING_KICK")?;
        self.link.set_vring_enable(index, true).context("SET_VRING_ENABLE")?;
        Ok(())
    }

    /// Stops a ring (GET_VRING_BASE); the server answers when nothing is in flight any more.
    pub fn stop(&mut self, ring: &Ring) -> Result<u16> {
        Ok(u16::try_from(self.link.get_vring_base(ring.index())?)?)
    }

    /// Gets a region that tracks requests in flight for `queues` rings of `size` (GET_INFLIGHT_FD).
    pub fn new_tracker(&mut self, queues: u16, size: u16) -> Result<Tracker> {
        let (region, file) = self.link.get_inflight_fd(&VhostUserInflight::new(0, 0, queues, size))?;
        Ok(Tracker { region, file })
    }

    /// Has requests in flight tracked there, before rings are started (SET_INFLIGHT_FD).
    pub fn track(&mut self, tracker: &Tracker) -> Result<()> {
        Ok(self.link.set_inflight_fd(&tracker.region, tracker.file.as_raw_fd())?)
    }

    /// Adds a region (ADD_MEM_REG).
    pub fn add_region(&mut self, region: &GuestMemory) -> Result<()> {
        self.link.add_mem_region(&region.info())?;
        Ok(())
    }

    /// Removes a region (REM_MEM_REG).
    pub fn remove_region(&mut self, region: &GuestMemory) -> Result<()> {
        Ok(self.link.remove_mem_region(&region.info())?)
    }

    /// Replaces the table (SET_MEM_TABLE): the first region, which holds the rings, and these.
    pub fn set_regions(&mut self, others: &[&GuestMemory]) -> Result<()> {
        let mut table: Vec<VhostUserMemoryRegionInfo> = vec![self.memory.info()];
        table.extend(others.iter().map(|region| region.info()));
        self.link.set_mem_table(&table)?;
        Ok(())
    }

    /// Reads the configuration space.
    pub fn config(&mut self, offset: u32, bytes: u32) -> Result<Vec<u8>> {
        let blank = vec![0; bytes as usize];
        let (_, data) = self.link.get_config(offset, bytes, VhostUserConfigFlags::empty(), &blank)?;
        Ok(data)
    }

    /// Writes the configuration space.
    pub fn set_config(&mut self, offset: u32, data: &[u8]) -> Result<()> {
        Ok(self.link.set_config(offset, VhostUserConfigFlags::WRITABLE, data)?)
    }
}
