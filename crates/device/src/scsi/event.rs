//! Events: what the device tells the driver unasked.

use super::address::Address;
use super::spec::{EVENT_BYTES, event, reset_reason};
use crate::wire::put;

/// What has become of a logical unit (virtio 1.3, section 5.6.6.3). Linux scans for logical units that have come, and removes
/// those that have gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// It was reset.
    Hard,
    /// It has come. Only for drivers that took `VIRTIO_SCSI_F_HOTPLUG`.
    Rescan,
    /// It has gone. Only for drivers that took `VIRTIO_SCSI_F_HOTPLUG`.
    Removed,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Nothing has happened; only says that events were missed.
    None,
    /// A logical unit was reset, has come or has gone. Of logical unit 0 it is about the whole target.
    Reset(Address, Reset),
    /// Parameters of a logical unit have changed: the additional sense code of the unit attention that goes with it
    /// ([`spec::sense::code`](super::spec::sense::code)). Only for drivers that took `VIRTIO_SCSI_F_CHANGE`.
    Changed(Address, u16),
}

impl Event {
    /// The bytes of a buffer on the event queue. `missed`: others before it found no buffer.
    pub fn encode(&self, missed: bool) -> [u8; EVENT_BYTES] {
        let (kind, address, reason) = match *self {
            Event::None => (event::NONE, [0; 8], 0),
            Event::Reset(address, reset) => {
                let reason = match reset {
                    Reset::Hard => reset_reason::HARD,
                    Reset::Rescan => reset_reason::RESCAN,
                    Reset::Removed => reset_reason::REMOVED,
                };
                (event::TRANSPORT_RESET, address.bytes(), reason)
            }
            // The code in bits 0 to 7, its qualifier in bits 8 to 15.
            Event::Changed(address, code) => (event::PARAM_CHANGE, address.bytes(), u32::from(code.swap_bytes())),
        };
        let kind = if missed { kind | event::MISSED } else { kind };
        let mut out = [0; EVENT_BYTES];
        put::<0, _, _>(&mut out, kind.to_le_bytes());
        put::<4, _, _>(&mut out, address);
        put::<12, _, _>(&mut out, reason.to_le_bytes());
        out
    }
}
