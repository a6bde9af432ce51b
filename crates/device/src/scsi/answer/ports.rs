//! REPORT TARGET PORT GROUPS.

use super::put_length;
use crate::scsi::identity::Naa;
use crate::scsi::nexus::TargetPort;

/// The one group that all ports are in: each of them leads to the same storage, at the same cost.
pub(super) const GROUP: u16 = 1;

/// The target ports of a device.
#[derive(Clone, Copy, Debug)]
pub struct Ports<'a> {
    /// The one that the command came through.
    pub own: TargetPort,
    /// Its name.
    pub name: &'a Naa,
    /// All of them, at most 255.
    pub all: &'a [TargetPort],
}

impl Ports<'_> {
    /// Whether there is more than one way to the units.
    pub(super) fn are_several(&self) -> bool {
        self.all.len() > 1
    }
}

/// SPC-5, "REPORT TARGET PORT GROUPS command": one group, active and optimized, which is all that it can be.
pub(super) fn groups(extended: bool, ports: Ports<'_>, out: &mut Vec<u8>) {
    /// PARAMETER DATA FORMAT 001b, and IMPLICIT TRANSITION TIME 0: nothing changes.
    const EXTENDED: [u8; 4] = [0x10, 0, 0, 0];
    const ACTIVE_OPTIMIZED: u8 = 0;
    /// AO_SUP.
    const CAN_BE_OPTIMIZED: u8 = 1;
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    if extended {
        out.extend_from_slice(&EXTENDED);
    }
    let all = ports.all.get(..usize::from(u8::MAX)).unwrap_or(ports.all);
    let [high, low] = GROUP.to_be_bytes();
    out.extend_from_slice(&[ACTIVE_OPTIMIZED, CAN_BE_OPTIMIZED, high, low, 0, 0, 0, all.len() as u8]);
    for port in all {
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&port.0.to_be_bytes());
    }
    put_length(out, start);
}
