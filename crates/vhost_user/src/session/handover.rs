//! A session that pauses between two messages, and one that goes on where another paused.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Session;
use crate::SessionEnd;
use crate::features::{LOG_ALL, PROTOCOL_FEATURES};
use crate::handover::{HandoverError, Order, SessionState};
use crate::inflight::Inflight;
use crate::log::Log;
use crate::rings::Ring;

/// How long the rest of a message is waited for that has begun to arrive.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(1);
/// Pauses between two looks at rings that are being drained: short at first, because the guest waits.
const LOOK_AGAIN_FIRST: Duration = Duration::from_micros(20);
const LOOK_AGAIN_MOST: Duration = Duration::from_millis(1);

/// Why a session does not pause.
#[derive(Debug)]
pub(crate) enum NoPause {
    /// It goes on as before.
    Refused(HandoverError),
    /// It ends.
    Ended(SessionEnd),
}

impl From<HandoverError> for NoPause {
    fn from(error: HandoverError) -> Self {
        NoPause::Refused(error)
    }
}

impl From<std::io::Error> for NoPause {
    fn from(error: std::io::Error) -> Self {
        NoPause::Refused(error.into())
    }
}

/// The rings that ran when a session paused.
#[derive(Debug, Default)]
pub(crate) struct Paused(Vec<usize>);

impl Session<'_> {
    /// Pauses as far as `order` wants, and says what there is to hand over.
    pub(crate) fn pause(&mut self, order: &Order) -> Result<(SessionState, Paused), NoPause> {
        if self.transfer.is_some() {
            return Err(HandoverError::Refused(
                "its state is on its way to another host, or comes from there".to_owned(),
            )
            .into());
        }
        self.target.hand_over().map_err(HandoverError::Refused)?;
        let Some(drained_by) = order.drained_by else {
            return Ok((self.state(&self.running())?, Paused::default()));
        };
        self.channel.turn();
        if self.channel.is_waited_for() {
            return Err(HandoverError::Unanswered.into());
        }
        self.finish_message()?;
        // That message may have changed it.
        self.target.hand_over().map_err(HandoverError::Refused)?;
        let running = self.running();
        // A ring that cannot even say this would not stop either.
        for at in &running {
            self.in_flight(*at)?;
        }
        for at in &running {
            self.rings[*at].hold(self.target);
        }
        if let Err(error) = self.wait_drained(&running, drained_by, order) {
            for at in &running {
                self.rings[*at].unhold(self.acked, self.target);
            }
            return Err(error.into());
        }
        for at in &running {
            self.rings[*at].pause(self.target);
        }
        match self.state(&running) {
            Ok(state) => Ok((state, Paused(running))),
            Err(error) => {
                self.go_on(&Paused(running)).map_err(NoPause::Ended)?;
                Err(error.into())
            }
        }
    }

    /// Starts the rings again that [`Session::pause`] stopped: the last one first, since what a device's first queue is asked may be of
    /// requests on the others (virtio-scsi's control queue), which have to run by then.
    pub(crate) fn go_on(&mut self, Paused(running): &Paused) -> Result<usize, SessionEnd> {
        for at in running.iter().rev() {
            self.start_if_ready(*at, true).map_err(|error| SessionEnd::Resume(error.to_string()))?;
            self.rings[*at].notify();
        }
        Ok(running.len())
    }

    /// Takes over what another session was, and starts its rings. Returns how many.
    pub(crate) fn restore(&mut self, state: SessionState) -> Result<usize, SessionEnd> {
        let failed = |error: &dyn std::fmt::Display| SessionEnd::Resume(error.to_string());
        let unknown = state.features & !self.features_known();
        if unknown != 0 {
            return Err(failed(&format_args!("features {unknown:#x} of the session are not offered any more")));
        }
        let unknown = state.protocol_features & !self.protocol_features_offered();
        if unknown != 0 {
            return Err(failed(&format_args!("protocol features {unknown:#x} are not offered any more")));
        }
        (self.acked.virtio, self.acked.protocol) = (state.features, state.protocol_features);
        self.target.set_features(state.features & !(PROTOCOL_FEATURES | LOG_ALL));
        if let Some(channel) = state.backend_channel {
            // Without it the frontend is not told of a new size, and has everything else.
            if let Err(error) = self.channel.open(channel, self.acked) {
                tracing::warn!(%error, "the backend channel does not go along");
            }
        }
        if let Some(regions) = state.memory {
            let memory = self.memory.restored(regions).map_err(|error| failed(&error))?;
            self.target.set_memory(&memory);
            self.memory.adopt(memory);
        }
        if let Some(region) = state.inflight {
            let region = Inflight::restored(region, self.rings.len()).map_err(|error| failed(&error))?;
            self.inflight = Some(region);
        }
        self.log = match state.log.map(Log::restored).transpose() {
            // Nothing is marked in it, and it may be gone by now.
            Err(error) if !self.acked.log_all() => {
                tracing::warn!(%error, "the dirty log does not go along");
                None
            }
            log => log.map_err(|error| failed(&error))?,
        };
        self.unlogged = self.acked.log_all();
        let mut running = Paused::default();
        for ring in state.rings {
            let at = self.ring_index(u32::from(ring.index)).map_err(|error| failed(&error))?;
            if ring.running {
                running.0.push(at);
            }
            self.rings[at] = Ring::restored(ring);
        }
        self.go_on(&running)
    }

    /// The rings that the target serves.
    fn running(&self) -> Vec<usize> {
        (0..self.rings.len()).filter(|at| self.rings[*at].runs()).collect()
    }

    /// What there is to hand over; `running` are the rings that are to run again.
    fn state(&self, running: &[usize]) -> std::io::Result<SessionState> {
        let mut rings = Vec::new();
        for (at, ring) in self.rings.iter().enumerate() {
            rings.extend(ring.state(running.contains(&at))?);
        }
        Ok(SessionState {
            socket: self.wire.as_fd().try_clone_to_owned()?,
            features: self.acked.virtio,
            protocol_features: self.acked.protocol,
            memory: self.memory.state()?,
            inflight: self.inflight.as_ref().map(Inflight::state),
            log: self.log.as_ref().map(Log::state),
            rings,
            backend_channel: self.channel.duplicate()?,
        })
    }

    /// A message that has begun to arrive belongs to this program.
    fn finish_message(&mut self) -> Result<(), NoPause> {
        let end = Instant::now() + MESSAGE_PATIENCE;
        while self.wire.is_in_message() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(HandoverError::HalfMessage.into());
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let mut readable = [PollFd::from_borrowed_fd(self.wire.as_fd(), PollFlags::IN)];
            // What poll has to complain of shows in the next reading.
            let ready = poll(&mut readable, Some(&left));
            if ready.is_ok_and(|ready| ready > 0) {
                self.advance().map_err(NoPause::Ended)?;
            }
        }
        Ok(())
    }

    /// Requests of a ring that runs which are not answered yet.
    fn in_flight(&mut self, at: usize) -> Result<usize, HandoverError> {
        let index = self.rings[at].index();
        self.target.in_flight(index).map_err(|why| HandoverError::Ring(index, why))
    }

    /// Waits until none of these rings has a request in flight.
    fn wait_drained(&mut self, running: &[usize], drained_by: Instant, order: &Order) -> Result<(), HandoverError> {
        let mut pause = LOOK_AGAIN_FIRST;
        for at in running {
            let index = self.rings[*at].index();
            loop {
                match self.in_flight(*at)? {
                    0 => break,
                    in_flight if Instant::now() >= drained_by || !order.is_wanted() => {
                        return Err(HandoverError::Busy { index, in_flight });
                    }
                    _ => thread::sleep(pause),
                }
                pause = (pause * 2).min(LOOK_AGAIN_MOST);
            }
        }
        Ok(())
    }
}
