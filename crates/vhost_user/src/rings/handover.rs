//! A ring that pauses, and what another program needs to go on with it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Areas, Kick, Ring};
use crate::features::Acked;
use crate::handover::RingState;
use crate::{Suspended, Target};

impl Ring {
    /// Whether the target serves it.
    pub(crate) fn runs(&self) -> bool {
        self.running.is_some()
    }

    /// Its index.
    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// Lets a ring that runs take no more requests, whatever the frontend has enabled.
    pub(crate) fn hold(&self, target: &mut dyn Target) {
        if self.running.is_some() {
            target.set_enabled(self.index, false);
        }
    }

    /// Undoes [`Ring::hold`].
    pub(crate) fn unhold(&self, acked: Acked, target: &mut dyn Target) {
        if self.running.is_some() {
            target.set_enabled(self.index, self.is_enabled(acked));
        }
    }

    /// Stops a ring that runs and leaves everything else as the frontend has said it.
    pub(crate) fn pause(&mut self, target: &mut dyn Target) {
        if self.running.take().is_some() {
            let Suspended { position, owed } = target.suspend(self.index);
            (self.position, self.owed) = (position, owed);
        }
    }

    /// What was said about it; `None` when that is nothing. `running` is whether it is to run again.
    pub(crate) fn state(&self, running: bool) -> io::Result<Option<RingState>> {
        let untouched = self.size.is_none()
            && self.areas.is_none()
            && self.position.is_start()
            && matches!(self.kick, Kick::Missing)
            && self.call.is_none()
            && self.err.is_none()
            && self.enabled.is_none();
        if untouched {
            return Ok(None);
        }
        let kick = match &self.kick {
            Kick::Missing => Kick::Missing,
            Kick::Polled => Kick::Polled,
            Kick::Eventfd(fd) => Kick::Eventfd(fd.try_clone()?),
        };
        Ok(Some(RingState {
            index: self.index,
            size: self.size,
            areas: self.areas.map(|areas| [areas.desc, areas.avail, areas.used]),
            used_log: self.used_log,
            position: self.position,
            owed: self.owed.clone(),
            kick,
            call: duplicate(self.call.as_ref())?,
            err: duplicate(self.err.as_ref())?,
            enabled: self.enabled,
            running,
        }))
    }

    /// The ring of which all of this was said. It does not run yet.
    pub(crate) fn restored(state: RingState) -> Ring {
        Ring {
            size: state.size,
            areas: state.areas.map(|[desc, avail, used]| Areas { desc, avail, used }),
            used_log: state.used_log,
            position: state.position,
            owed: state.owed,
            kick: state.kick,
            call: state.call,
            err: state.err,
            enabled: state.enabled,
            has_run: state.running,
            ..Ring::new(state.index)
        }
    }

    /// Notifies the driver once, whether or not there is something new: a notification too many is a look at the used
    /// ring, one too few is a guest that waits for ever. Never blocks.
    pub(crate) fn notify(&self) {
        let Some(call) = &self.call else { return };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let writable = poll(&mut [PollFd::from_borrowed_fd(call.as_fd(), PollFlags::OUT)], Some(&now));
        if writable.is_ok_and(|ready| ready > 0) {
            let _ = rustix::io::write(call, &1u64.to_ne_bytes());
        }
    }
}

/// A duplicate of a descriptor, if there is one.
fn duplicate(fd: Option<&OwnedFd>) -> io::Result<Option<OwnedFd>> {
    fd.map(OwnedFd::try_clone).transpose()
}
