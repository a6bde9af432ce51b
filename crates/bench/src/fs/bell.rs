//! How a device is told that there are requests, and how it tells that it has used some.

use anyhow::{Context, Result};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::qemu::Doorbell;

/// Both ways.
pub(crate) enum Bell {
    /// vhost-user's: a counter each way.
    Eventfds { kick: EventFd, call: EventFd },
    /// A register of a device of QEMU's. Its interrupts go nowhere, so that what it has used is looked for.
    Register(Doorbell),
}

impl Bell {
    /// Fresh eventfds.
    pub(crate) fn eventfds() -> Result<Self> {
        let eventfd = || EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).context("cannot make an eventfd");
        Ok(Self::Eventfds { kick: eventfd()?, call: eventfd()? })
    }

    /// Tells the device that there are requests.
    pub(crate) fn ring(&mut self) -> Result<()> {
        match self {
            Self::Eventfds { kick, .. } => kick.write(1).context("cannot kick"),
            Self::Register(doorbell) => doorbell.ring(),
        }
    }
}
