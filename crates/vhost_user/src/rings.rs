//! What the frontend has said about each ring, and the moment at which that is enough to start it.

mod handover;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use vhost::vhost_user::message::{VhostUserVringAddr, VhostUserVringAddrFlags};
use vring::{Layout, Memory, Note, QUEUE_SIZE_MAX, RingLog, RingPosition};

use crate::features::{Acked, RING_EVENT_IDX, RING_INDIRECT_DESC};
use crate::inflight::Inflight;
use crate::log::Log;
use crate::refusal::Refusal;
use crate::{RingStart, Target};

/// How a ring learns of new requests.
#[derive(Debug, Default)]
pub enum Kick {
    /// Not said yet: the ring must not start.
    #[default]
    Missing,
    /// SET_VRING_KICK without a descriptor: look at the ring, nobody will kick.
    Polled,
    /// The frontend signals this.
    Eventfd(OwnedFd),
}

/// Addresses of the ring's areas in the frontend's own address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Areas {
    desc: u64,
    avail: u64,
    used: u64,
}

/// One ring of a session, from its first message to the last.
#[derive(Debug)]
pub(crate) struct Ring {
    index: u16,
    size: Option<u16>,
    areas: Option<Areas>,
    /// Guest address by which the used ring is logged (`VHOST_VRING_F_LOG`).
    used_log: Option<u64>,
    position: RingPosition,
    kick: Kick,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    /// What SET_VRING_ENABLE said last. Until it speaks, the negotiated features decide.
    enabled: Option<bool>,
    /// Taken by the ring when it was suspended, and not answered: for its next start.
    owed: Vec<u16>,
    /// Present exactly while the target serves the ring.
    running: Option<Layout>,
    /// It has run in this session.
    has_run: bool,
}

impl Ring {
    pub(crate) fn new(index: u16) -> Ring {
        Ring {
            index,
            size: None,
            areas: None,
            used_log: None,
            position: RingPosition::default(),
            kick: Kick::Missing,
            call: None,
            err: None,
            enabled: None,
            owed: Vec::new(),
            running: None,
            has_run: false,
        }
    }

    fn is_enabled(&self, acked: Acked) -> bool {
        self.enabled.unwrap_or(!acked.starts_disabled())
    }

    /// SET_VRING_NUM.
    pub(crate) fn set_size(&mut self, size: u32, acked: Acked, target: &mut dyn Target) -> Result<(), Refusal> {
        let valid = u16::try_from(size)
            .ok()
            .filter(|size| size.is_power_of_two() && *size <= QUEUE_SIZE_MAX)
            .ok_or(Refusal::RingSize(size))?;
        self.prepare_change(acked, target)?;
        self.size = Some(valid);
        Ok(())
    }

    /// SET_VRING_BASE.
    pub(crate) fn set_base(&mut self, base: u32, acked: Acked, target: &mut dyn Target) -> Result<(), Refusal> {
        let position = RingPosition::from_payload(base).ok_or(Refusal::RingBase(base))?;
        self.prepare_change(acked, target)?;
        self.position = position;
        Ok(())
    }

    /// SET_VRING_ADDR. With the areas that a ring has already it only says whether its used ring is logged, and the ring runs on:
    /// QEMU sends it when a migration begins and when it is given up.
    pub(crate) fn set_areas(
        &mut self,
        message: &VhostUserVringAddr,
        log: Option<&Log>,
        acked: Acked,
        target: &mut dyn Target,
    ) -> Result<(), Refusal> {
        let wants_log = VhostUserVringAddrFlags::from_bits_truncate(message.flags)
            .contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        if wants_log && !acked.log() {
            return Err(Refusal::Log);
        }
        let used_log = wants_log.then_some(message.log);
        if acked.log_all() && self.is_serving(acked) {
            self.check_used_log(used_log, log)?;
        }
        let areas = Areas { desc: message.descriptor, avail: message.available, used: message.used };
        if !(self.is_serving(acked) && self.areas == Some(areas)) {
            self.prepare_change(acked, target)?;
        }
        (self.areas, self.used_log) = (Some(areas), used_log);
        if acked.log_all() {
            self.tell_log(log, acked, target);
        }
        Ok(())
    }

    /// Whether the log has bits for a used ring that is logged at this address. Of a ring whose size nobody has said yet, and so
    /// does not run, its first byte counts.
    fn check_used_log(&self, used_log: Option<u64>, log: Option<&Log>) -> Result<(), Refusal> {
        match (used_log, log) {
            (Some(at), Some(log)) => log.check_used_ring(at, used_bytes(self.size.unwrap_or_default().into())),
            _ => Ok(()),
        }
    }

    /// Whether this log has bits for what the ring writes, if it takes requests.
    pub(crate) fn check_log(&self, log: &Log, acked: Acked) -> Result<(), Refusal> {
        if self.is_serving(acked) { self.check_used_log(self.used_log, Some(log)) } else { Ok(()) }
    }

    /// Whether this log, if it is used, has bits for all that the ring could write from now on.
    pub(crate) fn check_start(&self, memory: &Memory, log: &Log, acked: Acked) -> Result<(), Refusal> {
        if !acked.log_all() {
            return Ok(());
        }
        log.check_memory(memory)?;
        self.check_used_log(self.used_log, Some(log))
    }

    /// Where the ring is to mark what it writes.
    fn ring_log(&self, log: Option<&Log>, acked: Acked) -> Option<RingLog> {
        let log = log.filter(|_| acked.log_all())?;
        Some(RingLog { log: log.log().clone(), used: self.used_log })
    }

    /// Tells a ring that runs where it is to mark what it writes.
    pub(crate) fn tell_log(&self, log: Option<&Log>, acked: Acked, target: &mut dyn Target) {
        if self.running.is_some() {
            target.set_log(self.index, self.ring_log(log, acked));
        }
    }

    /// A ring that runs keeps its shape. One that is merely disabled is stopped instead: UML disables its rings when
    /// a driver lets go of them, never asks for their base, and sets them up anew.
    fn prepare_change(&mut self, acked: Acked, target: &mut dyn Target) -> Result<(), Refusal> {
        if self.running.is_some() {
            if self.is_enabled(acked) {
                return Err(Refusal::RingRuns(self.index));
            }
            self.halt(target);
        }
        Ok(())
    }

    /// Whether it runs and takes requests.
    pub(crate) fn is_serving(&self, acked: Acked) -> bool {
        self.running.is_some() && self.is_enabled(acked)
    }

    /// The next start is to find another inflight region: a ring that does not serve is stopped for it.
    pub(crate) fn prepare_inflight(&mut self, target: &mut dyn Target) {
        self.halt(target);
    }

    /// SET_VRING_KICK: from here on the ring may start. A ring that runs continues with the new descriptor.
    pub(crate) fn set_kick(&mut self, kick: Option<OwnedFd>, target: &mut dyn Target) {
        self.halt(target);
        self.kick = kick.map_or(Kick::Polled, Kick::Eventfd);
    }

    /// SET_VRING_CALL, at any time.
    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>, target: &mut dyn Target) -> Result<(), Refusal> {
        if self.running.is_some() {
            target.set_call(self.index, duplicate(call.as_ref())?);
        }
        self.call = call;
        Ok(())
    }

    /// SET_VRING_ERR. A ring that runs uses it from its next start on.
    pub(crate) fn set_err(&mut self, err: Option<OwnedFd>) {
        self.err = err;
    }

    /// SET_VRING_ENABLE.
    pub(crate) fn set_enabled(&mut self, enabled: bool, target: &mut dyn Target) {
        self.enabled = Some(enabled);
        if self.running.is_some() {
            target.set_enabled(self.index, enabled);
        }
    }

    /// Starts the ring if it is complete and wanted: by a kick descriptor just now, or because it is enabled. So
    /// the messages of a ring may come in any order.
    pub(crate) fn start_if_ready(
        &mut self,
        kicked: bool,
        (memory, inflight, log): (Option<&Arc<Memory>>, Option<&Inflight>, Option<&Log>),
        acked: Acked,
        target: &mut dyn Target,
    ) -> Result<(), Refusal> {
        let enabled = self.is_enabled(acked);
        if self.running.is_some() || !(kicked || enabled) {
            return Ok(());
        }
        let (Some(size), Some(areas), Some(memory)) = (self.size, self.areas, memory) else {
            return Ok(());
        };
        let kick = match &self.kick {
            Kick::Missing => return Ok(()),
            Kick::Polled => None,
            Kick::Eventfd(fd) => Some(fd),
        };
        let layout = layout(size, areas, memory, acked).ok_or(Refusal::RingOutsideMemory(self.index))?;
        if let Some(log) = log.filter(|_| enabled) {
            self.check_start(memory, log, acked)?;
        }
        let start = RingStart {
            memory: memory.clone(),
            layout,
            position: self.position,
            owed: self.owed.clone(),
            inflight: inflight.map(|region| region.queue(self.index, size)).transpose()?.flatten(),
            log: self.ring_log(log, acked),
            enabled,
            kick: duplicate(kick)?,
            call: duplicate(self.call.as_ref())?,
            err: duplicate(self.err.as_ref())?,
        };
        target.take().map_err(Refusal::Unavailable)?;
        target.recall(self.index, self.note(inflight));
        target.start(self.index, start).map_err(|reason| Refusal::RingStart(self.index, reason))?;
        if let Some(region) = inflight {
            region.set_note(self.index, target.note());
        }
        self.running = Some(layout);
        self.has_run = true;
        self.owed.clear();
        Ok(())
    }

    /// Whether it is to take requests, and nothing but the guest's memory is missing.
    pub(crate) fn lacks_memory(&self, acked: Acked) -> bool {
        let told = self.size.is_some() && self.areas.is_some() && !matches!(self.kick, Kick::Missing);
        told && self.is_enabled(acked) && self.running.is_none()
    }

    /// What is left of an earlier life of the ring. One that goes on where another backend has stopped has had one, also if nobody
    /// has written of it.
    fn note(&self, inflight: Option<&Inflight>) -> Note {
        match inflight.map_or(Note::Unused, |region| region.note(self.index)) {
            Note::Unused if !self.position.is_start() && !self.has_run => Note::Missing,
            note => note,
        }
    }

    /// Stops the ring if it runs, and remembers where it was.
    fn halt(&mut self, target: &mut dyn Target) {
        if self.running.take().is_some() {
            self.position = target.stop(self.index);
        }
    }

    /// GET_VRING_BASE: the ring is stopped until the next SET_VRING_KICK.
    pub(crate) fn stop(&mut self, target: &mut dyn Target) -> RingPosition {
        self.halt(target);
        self.kick = Kick::Missing;
        self.position
    }

    /// RESET_DEVICE: as if nothing had been said about the ring. Its call and err descriptors stay: they belong to
    /// the connection, and QEMU does not send them again.
    pub(crate) fn reset(&mut self, target: &mut dyn Target) {
        self.stop(target);
        let (call, err) = (self.call.take(), self.err.take());
        *self = Ring { call, err, ..Ring::new(self.index) };
    }

    /// Whether this ring can go on with another memory table. One that is merely disabled always can: it is stopped,
    /// as [`Ring::prepare_change`] would.
    pub(crate) fn allows(&self, memory: &Memory, acked: Acked) -> bool {
        !self.is_enabled(acked) || self.fits(memory)
    }

    /// Gets the ring ready for another memory table, which it allows.
    pub(crate) fn prepare_memory(&mut self, memory: &Memory, target: &mut dyn Target) {
        if !self.fits(memory) {
            self.halt(target);
        }
    }

    /// Whether the areas of this ring, if it runs, are in the table, where they were.
    fn fits(&self, memory: &Memory) -> bool {
        match (self.running, self.areas) {
            (Some(layout), Some(areas)) => {
                place(areas, memory).is_some_and(|place| place == [layout.desc, layout.avail, layout.used])
                    && covers(memory, &layout)
            }
            _ => true,
        }
    }
}

/// Where the areas are in the guest's memory: descriptor table, avail ring, used ring.
fn place(areas: Areas, memory: &Memory) -> Option<[u64; 3]> {
    Some([memory.user_to_guest(areas.desc)?, memory.user_to_guest(areas.avail)?, memory.user_to_guest(areas.used)?])
}

fn layout(size: u16, areas: Areas, memory: &Memory, acked: Acked) -> Option<Layout> {
    let [desc, avail, used] = place(areas, memory)?;
    let layout = Layout {
        size,
        desc,
        avail,
        used,
        event_idx: acked.virtio & RING_EVENT_IDX != 0,
        indirect: acked.virtio & RING_INDIRECT_DESC != 0,
    };
    covers(memory, &layout).then_some(layout)
}

/// Whether each area lies inside one region. Sizes: virtio 1.3 section 2.7, "Split Virtqueues".
fn covers(memory: &Memory, layout: &Layout) -> bool {
    let size = u64::from(layout.size);
    let areas = [(layout.desc, 16 * size), (layout.avail, 6 + 2 * size), (layout.used, used_bytes(size))];
    areas.iter().all(|&(start, bytes)| memory.translate(start, bytes, &mut 0).is_some_and(|(_, found)| found == bytes))
}

/// Bytes of a used ring of `size` descriptors, the event index included.
fn used_bytes(size: u64) -> u64 {
    6 + 8 * size
}

/// The session keeps its descriptor: a ring that stops and starts again needs it once more.
fn duplicate(fd: Option<&OwnedFd>) -> Result<Option<OwnedFd>, Refusal> {
    fd.map(OwnedFd::try_clone).transpose().map_err(Refusal::Duplicate)
}
