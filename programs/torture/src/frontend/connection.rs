//! A connection to a server, and what survives it: guest memory, rings, the inflight region.

use std::fs::File;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use frontkit::{Memory, Session, feature};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures};

use super::blk::MAY_BE_LACKING;
use super::language::{Durability, Geometry, Language, Protocol};
use super::ring::{Answer, RING_BYTES, Ring, RingShape, Wanted};

/// How long a server may take for any one step of the protocol. GET_VRING_BASE waits for storage.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(1);

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
    /// How what is written becomes durable.
    pub(crate) durability: Durability,
    /// What is spoken.
    pub(crate) protocol: Protocol,
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
    /// Request queues.
    pub(super) rings: Vec<Ring>,
    /// Queues of the device before these.
    others: Vec<Ring>,
    pub(super) language: Language,
    region: Option<(VhostUserInflight, File)>,
    session: Option<Session>,
    /// What the first server negotiated: a guest's driver cannot negotiate again.
    agreed: Option<u64>,
    geometry: Option<Geometry>,
}

impl Driver {
    /// A frontend with empty rings and no connection, of a run with this seed.
    pub(crate) fn new(shape: Shape, run: u64) -> Result<Self> {
        ensure!(shape.queues > 0, "a frontend needs a ring");
        let language = Language::new(shape.protocol, shape.durability, run);
        let before = language.other_queues();
        let memory = Arc::new(Memory::new(0, u64::from(before + shape.queues) * RING_BYTES as u64)?);
        let ring = |index| Ring::new(memory.clone(), index, shape.ring);
        let others = (0..before).map(ring).collect::<Result<_>>()?;
        let rings = (before..before + shape.queues).map(ring).collect::<Result<_>>()?;
        Ok(Self { shape, memory, rings, others, language, region: None, session: None, agreed: None, geometry: None })
    }

    /// How it was made.
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The disk, once a server has described it.
    pub(crate) fn geometry(&self) -> Option<Geometry> {
        self.geometry
    }

    /// All queues of the device.
    fn queues(&self) -> u16 {
        self.language.other_queues() + self.shape.queues
    }

    /// In the order in which they are enabled: what ends requests may look for them when it begins.
    fn all_rings(&self) -> impl Iterator<Item = &Ring> {
        self.rings.iter().chain(self.others.iter().rev())
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
        self.all_rings().try_for_each(Ring::kick)?;
        if self.geometry.is_none() {
            let (ring, language) = (self.rings.first_mut().context("there is no ring")?, &mut self.language);
            let described = language.describe(&mut |wanted, data| ask(ring, wanted, data));
            self.geometry = Some(described.context("asking the disk what it is")?);
        }
        Ok(())
    }

    fn introduce(&mut self, stream: UnixStream) -> Result<Session> {
        let mut session =
            Session::negotiate(stream, |offered| self.features(offered), |offered| self.protocol_features(offered))?;
        let (queues, wanted) = (session.link().get_queue_num().context("GET_QUEUE_NUM")?, self.queues());
        ensure!(queues >= u64::from(wanted), "the server has {queues} queues, {wanted} are wanted");
        // A driver has not changed because its device's server has: only its first one is asked before rings start.
        let is_first = self.agreed.is_none();
        if is_first {
            self.agreed = Some(session.features);
            self.language.read_config(&mut session)?;
        }
        if self.shape.inflight {
            self.track_requests(&mut session)?;
        }
        session.share(&[&self.memory])?;
        self.start_rings(&mut session)?;
        if !is_first {
            self.language.read_config(&mut session)?;
        }
        self.language.settle_cache(&mut session)?;
        Ok(session)
    }

    fn features(&self, offered: u64) -> Result<u64> {
        if let Some(agreed) = self.agreed {
            let lacking = agreed & !offered & !MAY_BE_LACKING;
            ensure!(lacking == 0, "the server lacks features {lacking:#x}");
            return Ok(agreed);
        }
        let of_device = self.language.features();
        let required = feature::VERSION_1
            | feature::PROTOCOL_FEATURES
            | of_device.required
            | if self.shape.ring.event_idx { feature::EVENT_IDX } else { 0 }
            | if self.shape.indirect { feature::INDIRECT_DESC } else { 0 };
        ensure!(offered & required == required, "the server lacks features {:#x}", required & !offered);
        Ok(required | (offered & of_device.optional))
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
            let asked = VhostUserInflight::new(0, 0, self.queues(), self.shape.ring.size);
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

    fn start_rings(&mut self, session: &mut Session) -> Result<()> {
        for ring in self.others.iter_mut().chain(&mut self.rings) {
            ring.begin_life();
            // The base is what QEMU takes when the server died without having been asked.
            session.set_up(ring.index().into(), &ring.queue, &ring.eventfds, ring.queue.used_index())?;
        }
        self.all_rings().try_for_each(|ring| session.enable(ring.index().into()))
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
        for ring in self.others.iter().chain(&self.rings) {
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

/// Makes one request on a ring at rest, and waits for its answer: that, what was delivered, and how many bytes were written.
fn ask(ring: &mut Ring, wanted: &Wanted, data: &[u8]) -> Result<(Answer, Vec<u8>, u32)> {
    let slot = ring.free_slot().context("the ring is full")?;
    ring.spoil_data(slot, wanted.bytes);
    ring.put_data(slot, data);
    ring.make(wanted);
    ring.show()?;
    let start = Instant::now();
    loop {
        ring.eventfds.take_call();
        if let Some(used) = ring.take_used()? {
            // Whoever drives the ring next waits for a call.
            ring.queue.arm();
            let mut delivered = vec![0; if wanted.from_device { wanted.bytes as usize } else { 0 }];
            ring.data(used.slot, &mut delivered);
            return Ok((ring.answer(used.slot), delivered, used.written));
        }
        if ring.queue.arm() {
            ensure!(start.elapsed() < PATIENCE, "the first requests are not answered within {} s", PATIENCE.as_secs());
            frontkit::wait_for_any([&ring.eventfds].into_iter(), LOOK_AGAIN_AFTER)?;
        }
    }
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
