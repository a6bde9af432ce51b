//! A frontend that has set everything up as it should: from here on it may lie.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use frontkit::{Areas, Memory, USER_BASE, borrow};
use tests::driver::{NEXT, Ring, WRITE};
use tests::frontend::{DATA, EVENT_IDX};

use super::raw::{Raw, request};
use crate::rng::Rng;

/// Descriptors of a ring.
pub(crate) const RING_SIZE: u16 = 64;
/// Places in memory behind the rings: a request's header, its status, its data, tables of descriptors.
pub(crate) const HEADER: u64 = DATA;
/// As above.
pub(crate) const STATUS: u64 = DATA + 64;
/// As above.
pub(crate) const BUFFER: u64 = DATA + 4096;
/// As above.
pub(crate) const TABLE: u64 = DATA + (1 << 20);
/// Bytes of memory.
pub(crate) const MEMORY_BYTES: u64 = DATA + (16 << 20);
/// An address that no memory region has.
pub(crate) const NOWHERE: u64 = 1 << 40;
/// Bytes of data of a request.
pub(crate) const BLOCK: u32 = 4096;

/// MQ, REPLY_ACK, CONFIG and CONFIGURE_MEM_SLOTS (vhost-user, "Protocol features").
const PROTOCOL: u64 = 1 | 1 << 3 | 1 << 9 | 1 << 15;
/// INFLIGHT_SHMFD (as above).
pub(crate) const INFLIGHT_SHMFD: u64 = 1 << 12;
/// How long a server may take to serve whoever comes next.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// How long a server is given to meet what was laid out for it.
const SETTLE: Duration = Duration::from_millis(20);

/// What an export is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Device {
    Disk,
    Directory,
    /// A directory that speaks 9P.
    P9,
    /// A SCSI device with two disks.
    Scsi,
}

impl Device {
    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Directory => "directory",
            Self::P9 => "9p",
            Self::Scsi => "scsi",
        }
    }

    /// The ring that requests go to.
    pub(crate) fn request_ring(self) -> usize {
        match self {
            Self::Disk | Self::P9 => 0,
            // The first is the high-priority queue (virtio 1.3, 5.11.2).
            Self::Directory => 1,
            Self::Scsi => super::scsi::REQUEST,
        }
    }
}

/// A memory region as messages name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) guest_addr: u64,
    pub(crate) bytes: u64,
    pub(crate) user_addr: u64,
    pub(crate) offset: u64,
}

impl Region {
    /// The whole of `memory`.
    pub(crate) fn of(memory: &Memory) -> Self {
        let info = memory.info();
        Self {
            guest_addr: info.guest_phys_addr,
            bytes: info.memory_size,
            user_addr: info.userspace_addr,
            offset: info.mmap_offset,
        }
    }

    fn fields(self) -> [u64; 4] {
        [self.guest_addr, self.bytes, self.user_addr, self.offset]
    }

    /// The body of ADD_MEM_REG and REM_MEM_REG.
    pub(crate) fn single(self) -> Vec<u8> {
        [0].into_iter().chain(self.fields()).flat_map(u64::to_ne_bytes).collect()
    }
}

/// The body of SET_MEM_TABLE.
pub(crate) fn table(regions: &[Region]) -> Vec<u8> {
    let mut body = (regions.len() as u64).to_ne_bytes().to_vec();
    body.extend(regions.iter().flat_map(|region| region.fields()).flat_map(u64::to_ne_bytes));
    body
}

/// The body of the messages about a ring that carry one number.
pub(crate) fn ring_state(index: u32, number: u32) -> Vec<u8> {
    [index, number].into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// The body of SET_VRING_ADDR; addresses of descriptor table, used ring and available ring are the frontend's.
pub(crate) fn ring_areas(index: u32, flags: u32, [desc, used, avail]: [u64; 3]) -> Vec<u8> {
    let mut body = ring_state(index, flags);
    body.extend([desc, used, avail, 0].into_iter().flat_map(u64::to_ne_bytes));
    body
}

/// The file behind memory.
pub(crate) fn file(memory: &Memory) -> BorrowedFd<'_> {
    memory.file().as_fd()
}

/// A connected frontend with memory.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) raw: Raw,
    pub(crate) memory: Arc<Memory>,
}

impl Session {
    /// Connects, negotiates everything but EVENT_IDX, what `without` names and the protocol features beyond `more`, and
    /// shares memory.
    pub(crate) fn open(socket: &Path, without: u64, more: u64) -> Result<Self> {
        let mut raw = Raw::connect(socket)?;
        raw.negotiate(EVENT_IDX | without, PROTOCOL | more).context("the server does not negotiate")?;
        let memory = Arc::new(Memory::new(0, MEMORY_BYTES)?);
        let obeyed = raw.order(request::SET_MEM_TABLE, &table(&[Region::of(&memory)]), &[file(&memory)]);
        ensure!(obeyed.context("SET_MEM_TABLE is not answered")?, "SET_MEM_TABLE is refused");
        Ok(Self { raw, memory })
    }

    /// As [`open`](Self::open), while the server may still be busy with the end of the session before.
    pub(crate) fn open_patiently(socket: &Path, without: u64, more: u64) -> Result<Self> {
        let end = Instant::now() + PATIENCE;
        loop {
            match Self::open(socket, without, more) {
                Err(_) if Instant::now() < end => thread::sleep(LOOK_AGAIN_AFTER),
                opened => return opened,
            }
        }
    }

    /// Sets a fresh ring up and starts it.
    pub(crate) fn ring(&mut self, index: usize) -> Result<Ring> {
        let ring = Ring::new(self.memory.clone(), index, RING_SIZE);
        self.start(&ring, borrow(&ring.eventfds.kick), borrow(&ring.eventfds.call))?;
        Ok(ring)
    }

    /// Starts a ring with any descriptors.
    pub(crate) fn start(&mut self, ring: &Ring, kick: BorrowedFd<'_>, call: BorrowedFd<'_>) -> Result<()> {
        let index = u32::try_from(ring.index())?;
        let areas = areas(ring).map(|area| area + USER_BASE);
        let which = u64::from(index).to_ne_bytes();
        let orders: [(u32, Vec<u8>, &[BorrowedFd<'_>]); 6] = [
            (request::SET_VRING_NUM, ring_state(index, u32::from(ring.queue.size())), &[]),
            (request::SET_VRING_BASE, ring_state(index, 0), &[]),
            (request::SET_VRING_ADDR, ring_areas(index, 0, areas), &[]),
            (request::SET_VRING_CALL, which.to_vec(), &[call]),
            (request::SET_VRING_KICK, which.to_vec(), &[kick]),
            (request::SET_VRING_ENABLE, ring_state(index, 1), &[]),
        ];
        for (order, body, fds) in orders {
            let obeyed =
                self.raw.order(order, &body, fds).with_context(|| format!("message {order} is not answered"))?;
            ensure!(obeyed, "message {order} is refused");
        }
        Ok(())
    }
}

/// Guest addresses of a ring's descriptor table, used ring and available ring.
pub(crate) fn areas(ring: &Ring) -> [u64; 3] {
    let Areas { desc, avail, used } = ring.queue.areas();
    [desc, used, avail]
}

/// Writes a read in three descriptors from `at` on: header, data at `buffer`, status.
pub(crate) fn lay_out(ring: &Ring, at: u16, buffer: u64, len: u32) {
    ring.queue.set_descriptor(at, HEADER, 16, NEXT, at + 1);
    ring.queue.set_descriptor(at + 1, buffer, len, NEXT | WRITE, at + 2);
    ring.queue.set_descriptor(at + 2, STATUS, 1, WRITE, 0);
}

/// Gives the server time to meet what was laid out.
pub(crate) fn settle() {
    thread::sleep(SETTLE);
}

/// Whether everything up to `wanted` is used before `limit` has passed.
pub(crate) fn is_used(ring: &Ring, wanted: u16, limit: Duration) -> bool {
    let end = Instant::now() + limit;
    while ring.queue.used_index() != wanted {
        if Instant::now() > end {
            return false;
        }
        thread::sleep(LOOK_AGAIN_AFTER);
    }
    true
}

/// A descriptor, borrowed for a message.
pub(crate) fn borrowed<T: AsFd>(fds: &[T]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

/// Some bytes of noise.
pub(crate) fn bytes(random: &mut Rng, count: usize) -> Vec<u8> {
    (0..count).map(|_| random.next() as u8).collect()
}
