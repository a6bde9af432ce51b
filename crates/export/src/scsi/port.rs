//! A device as the logical units behind it know it: the port through which its driver comes.

use super::units::hash;
use crate::label::{Keeper, Label};
use device::scsi::{InitiatorPort, Naa, Nexus, TargetPort};
use std::sync::{Arc, Mutex, PoisonError};

/// What makes a name of 60 bits one that is registered nowhere (SPC-5, "NAA Locally Assigned designator format").
const LOCALLY_ASSIGNED: u64 = 3 << 60;

/// The port of a device. Whoever connects there is one initiator port, by the name of the export: what a guest has reserved is its own
/// again when it has come back.
pub(crate) struct Port {
    pub(crate) export: String,
    pub(crate) nexus: Nexus,
    pub(crate) name: Naa,
    /// One of its rings, which knows the way to all of them.
    ring: Mutex<Option<Label>>,
}

/// The number that the port of an export's SCSI device has (relative target port identifier, 1 to 65535): by its name, so that it is the
/// same whichever others there are, and when it comes back. Registrations name ports by their numbers, so that of two exports whose names
/// make one number only one may have a shared disk.
pub fn port_number(export: &str) -> u16 {
    let numbers = u64::from(u16::MAX);
    // No port has number 0.
    u16::try_from(hash(export) % numbers).unwrap_or_default() + 1
}

impl Port {
    /// That of this export's device, which has had this number before, or has its usual one.
    pub(crate) fn new(export: &str, number: Option<u16>) -> Port {
        let number = TargetPort(number.filter(|number| *number > 0).unwrap_or_else(|| port_number(export)));
        let initiator = InitiatorPort(LOCALLY_ASSIGNED | hash(&format!("driver of {export}")) >> 4);
        let nexus = Nexus { initiator, port: number };
        Port { export: export.to_owned(), nexus, name: Naa::local(hash(export)), ring: Mutex::default() }
    }

    /// One of its rings begins.
    pub(crate) fn has(&self, ring: &Label) {
        *self.ring.lock().unwrap_or_else(PoisonError::into_inner) = Some(ring.clone());
    }

    /// Who has its rings, if it ever had any.
    pub(crate) fn keeper(&self) -> Option<Arc<dyn Keeper>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(Label::keeper)
    }
}
