//! A connection to a server, and what survives it: guest memory, rings, the inflight region.

use std::fs::File;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use frontkit::{Memory, Session};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures};

use super::ring::{RING_BYTES, Ring, RingShape};

/// How long a server may take for any one step of the protocol. GET_VRING_BASE waits for storage.
const PATIENCE: Duration = Duration::from_secs(20);

/// Features that the frontend takes if they are offered: those of virtio-blk (virtio 1.3, 5.2.3), and others.
mod feature {
    pub(super) use frontkit::feature::{EVENT_IDX, INDIRECT_DESC, PROTOCOL_FEATURES, VERSION_1};

    pub(super) const BLK_SIZE: u64 = 1 << 6;
    pub(super) const FLUSH: u64 = 1 << 9;
    pub(super) const CONFIG_WCE: u64 = 1 << 11;
    pub(super) const MQ: u64 = 1 << 12;
    pub(super) const WRITE_ZEROES: u64 = 1 << 14;
}

/// Length of the configuration space up to the last field that is read here (virtio 1.3, 5.2.4).
const CONFIG_BYTES: u32 = 60;
const BLK_SIZE_AT: usize = 20;
const WRITEBACK_AT: u32 = 32;

/// How a frontend is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Rings.
    pub(crate) queues: u16,
    /// What each of them is like.
    pub(crate) ring: RingShape,
    /// Whether requests may stand in indirect tables.
    pub(crate) indirect: bool,
    /// Whether requests in flight are tracked in a region that outlives the server (INFLIGHT_SHMFD).
    pub(crate) inflight: bool,
    /// Whether the driver turns the write cache off (CONFIG_WCE), and then never flushes.
    pub(crate) write_cache_off: bool,
}

/// The disk as the server describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Capacity in sectors of 512 bytes.
    pub(crate) sectors: u64,
    /// Logical block size in sectors.
    pub(crate) block_sectors: u64,
    /// Whether it takes WRITE_ZEROES.
    pub(crate) write_zeroes: bool,
    /// Whether it takes FLUSH.
    pub(crate) flush: bool,
}

/// How a connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Farewell {
    /// Each ring is stopped (GET_VRING_BASE), then the connection is closed.
    Stopped,
    /// The connection is closed, as when the frontend's process dies.
    Silent,
}

/// The guest's side of a disk: memory and rings, connected or not.
pub(crate) struct Driver {
    shape: Shape,
    memory: Arc<Memory>,
    pub(super) rings: Vec<Ring>,
    region: Option<(VhostUserInflight, File)>,
    session: Option<Session>,
    /// What the first server negotiated: a guest's driver cannot negotiate again.
    agreed: Option<(u64, Geometry)>,
    /// A server has acknowledged that it has no write cache. No other one is told: QEMU's driver asks once, too.
    cache_is_off: bool,
}

impl Driver {
    /// A frontend with empty rings and no connection.
    pub(crate) fn new(shape: Shape) -> Result<Self> {
        ensure!(shape.queues > 0, "a frontend needs a ring");
        let memory = Arc::new(Memory::new(0, u64::from(shape.queues) * RING_BYTES as u64)?);
        let rings =
            (0..shape.queues).map(|index| Ring::new(memory.clone(), index, shape.ring)).collect::<Result<_>>()?;
        Ok(Self { shape, memory, rings, region: None, session: None, agreed: None, cache_is_off: false })
    }

    /// How it was made.
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The disk, once a server has described it.
    pub(crate) fn geometry(&self) -> Option<Geometry> {
        self.agreed.map(|(_, geometry)| geometry)
    }

    /// Requests made and not seen completed, on all rings.
    pub(crate) fn in_flight(&self) -> u64 {
        self.rings.iter().map(|ring| u64::from(ring.queue.in_flight())).sum()
    }

    /// Introduces itself to a server and has it serve the rings, as QEMU does: a region that there is already is given
    /// back, rings go on at the index that was used last, and each is kicked once.
    ///
    /// # Errors
    /// The server refuses a step, does not answer within 20 s, hangs up, or is not what the last one was.
    pub(crate) fn connect(&mut self, stream: UnixStream) -> Result<()> {
        self.session = None;
        let deadline = Deadline::new(&stream)?;
        let connected = self.introduce(stream);
        self.session = Some(deadline.met(connected)?);
        self.rings.iter().try_for_each(Ring::kick)
    }

    fn introduce(&mut self, stream: UnixStream) -> Result<Session> {
        let mut session =
            Session::negotiate(stream, |offered| self.features(offered), |offered| self.protocol_features(offered))?;
        let queues = session.link().get_queue_num().context("GET_QUEUE_NUM")?;
        ensure!(
            queues >= u64::from(self.shape.queues),
            "the server has {queues} queues, {} are wanted",
            self.shape.queues
        );
        if self.agreed.is_none() {
            self.agreed = Some((session.features, self.geometry_of(&mut session)?));
        }
        if self.shape.inflight {
            self.track_requests(&mut session)?;
        }
        session.share(&[&self.memory])?;
        self.start_rings(&mut session)?;
        self.look_at_disk(&mut session)?;
        self.settle_cache(&mut session)?;
        Ok(session)
    }

    /// A driver has not changed because its device's server has: only its first one is asked before rings start.
    fn look_at_disk(&self, session: &mut Session) -> Result<()> {
        let Some(before) = self.geometry() else { return Ok(()) };
        let now = self.geometry_of(session)?;
        ensure!(before == now, "the server is not what the last one was: the disk was {before:x?}, is {now:x?}");
        Ok(())
    }

    fn geometry_of(&self, session: &mut Session) -> Result<Geometry> {
        let geometry = geometry(session)?;
        Ok(Geometry { flush: geometry.flush && !self.shape.write_cache_off, ..geometry })
    }

    /// Turns the write cache off, once; whoever serves later must know of it.
    fn settle_cache(&mut self, session: &mut Session) -> Result<()> {
        if !self.shape.write_cache_off {
            return Ok(());
        }
        if !self.cache_is_off {
            session.set_config(WRITEBACK_AT, &[0])?;
            self.cache_is_off = true;
        }
        let byte = session.config(WRITEBACK_AT, 1)?;
        ensure!(byte == [0], "the server has a write cache again, which a driver that has turned it off never flushes");
        Ok(())
    }

    fn features(&self, offered: u64) -> Result<u64> {
        if let Some((agreed, _)) = self.agreed {
            // A driver that may turn the cache off keeps that over servers that would not offer it: QEMU asks for what its driver has.
            let lacking = agreed & !offered & !feature::CONFIG_WCE;
            ensure!(lacking == 0, "the server lacks features {lacking:#x}");
            return Ok(agreed);
        }
        let required = feature::VERSION_1
            | feature::PROTOCOL_FEATURES
            | if self.shape.ring.event_idx { feature::EVENT_IDX } else { 0 }
            | if self.shape.indirect { feature::INDIRECT_DESC } else { 0 }
            | if self.shape.write_cache_off { feature::CONFIG_WCE } else { 0 };
        ensure!(offered & required == required, "the server lacks features {:#x}", required & !offered);
        let optional = feature::BLK_SIZE | feature::FLUSH | feature::MQ | feature::WRITE_ZEROES;
        Ok(required | (offered & optional))
    }

    fn protocol_features(&self, offered: VhostUserProtocolFeatures) -> Result<VhostUserProtocolFeatures> {
        let mut wanted =
            VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::CONFIG;
        ensure!(offered.contains(wanted), "the server lacks protocol features: {:?}", wanted - offered);
        if self.shape.inflight {
            wanted |= VhostUserProtocolFeatures::INFLIGHT_SHMFD;
            ensure!(
                offered.contains(wanted),
                "the server does not offer INFLIGHT_SHMFD, so that what is in flight when it dies is lost; \
                 --no-inflight goes without"
            );
        }
        Ok(wanted)
    }

    /// GET_INFLIGHT_FD from the first server; SET_INFLIGHT_FD to each.
    fn track_requests(&mut self, session: &mut Session) -> Result<()> {
        if self.region.is_none() {
            let asked = VhostUserInflight::new(0, 0, self.shape.queues, self.shape.ring.size);
            let (region, file) = session.link().get_inflight_fd(&asked).context("GET_INFLIGHT_FD")?;
            let bytes = file.metadata().context("the inflight region")?.len();
            let end = region.mmap_offset.checked_add(region.mmap_size);
            ensure!(
                region.mmap_size > 0 && end.is_some_and(|end| end <= bytes),
                "the inflight region has {} bytes from {} on, in a file of {bytes}",
                region.mmap_size,
                region.mmap_offset
            );
            ensure!(
                (region.num_queues, region.queue_size) == (asked.num_queues, asked.queue_size),
                "the inflight region is for {} queues of {}, asked for were {} of {}",
                region.num_queues,
                region.queue_size,
                asked.num_queues,
                asked.queue_size
            );
            self.region = Some((region, file));
        }
        if let Some((region, file)) = &self.region {
            session.link().set_inflight_fd(region, file.as_raw_fd()).context("SET_INFLIGHT_FD")?;
        }
        Ok(())
    }

    fn start_rings(&self, session: &mut Session) -> Result<()> {
        for ring in &self.rings {
            // The base is what QEMU takes when the server died without having been asked.
            session.set_up(ring.index().into(), &ring.queue, &ring.eventfds, ring.queue.used_index())?;
        }
        self.rings.iter().try_for_each(|ring| session.enable(ring.index().into()))
    }

    /// Ends the connection. Memory, rings and the region stay.
    ///
    /// # Errors
    /// A ring that was stopped says another index than what it has used: then something is in flight although
    /// GET_VRING_BASE was answered.
    pub(crate) fn disconnect(&mut self, farewell: Farewell) -> Result<()> {
        let Some(mut session) = self.session.take() else { return Ok(()) };
        if farewell == Farewell::Silent {
            return Ok(());
        }
        let socket = frontkit::borrow(session.link()).try_clone_to_owned()?;
        let deadline = Deadline::new(&socket.into())?;
        let stopped = self.stop_rings(&mut session);
        deadline.met(stopped)
    }

    fn stop_rings(&self, session: &mut Session) -> Result<()> {
        for ring in &self.rings {
            let index = ring.index();
            let base = session.link().get_vring_base(index.into()).context("GET_VRING_BASE")?;
            let used = ring.queue.used_index();
            ensure!(
                base == u32::from(used),
                "ring {index}: GET_VRING_BASE says {base}, but {used} was used: requests are in flight"
            );
        }
        Ok(())
    }

    /// Waits until a ring is called, or for `limit`.
    pub(super) fn wait(&self, limit: Duration) -> Result<()> {
        frontkit::wait_for_any(self.rings.iter().map(|ring| &ring.eventfds), limit)
    }
}

fn geometry(session: &mut Session) -> Result<Geometry> {
    let (config, features) = (session.config(0, CONFIG_BYTES)?, session.features);
    let (Some(capacity), Some(block)) =
        (config.first_chunk::<8>(), config.get(BLK_SIZE_AT..).and_then(<[u8]>::first_chunk))
    else {
        bail!("GET_CONFIG: {} bytes are no configuration of a disk", config.len());
    };
    let block_bytes = if features & feature::BLK_SIZE == 0 { 512 } else { u32::from_le_bytes(*block) };
    let geometry = Geometry {
        sectors: u64::from_le_bytes(*capacity),
        block_sectors: u64::from(block_bytes / 512),
        write_zeroes: features & feature::WRITE_ZEROES != 0,
        flush: features & feature::FLUSH != 0,
    };
    ensure!(
        geometry.block_sectors > 0 && geometry.sectors >= geometry.block_sectors,
        "GET_CONFIG: {geometry:?} is no disk"
    );
    Ok(geometry)
}

/// Cuts a connection whose server does not answer: the `vhost` crate waits for ever.
struct Deadline {
    done: mpsc::Sender<()>,
    cut: thread::JoinHandle<bool>,
}

impl Deadline {
    fn new(stream: &UnixStream) -> Result<Self> {
        let stream = stream.try_clone()?;
        let (done, wait) = mpsc::channel();
        let cut = thread::spawn(move || {
            let late = wait.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout);
            late && stream.shutdown(Shutdown::Both).is_ok()
        });
        Ok(Self { done, cut })
    }

    /// The result of what was waited for, or that the server did not answer.
    fn met<T>(self, result: Result<T>) -> Result<T> {
        drop(self.done);
        match self.cut.join() {
            Ok(true) => result.with_context(|| format!("the server did not answer within {} s", PATIENCE.as_secs())),
            _ => result,
        }
    }
}
