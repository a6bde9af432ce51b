//! Commands on reservations, as a driver sends them.

use device::scsi::reservations::{Change, Kind, Refused, Reservations, ReserveIn};
use device::scsi::{Addressed, Command, InitiatorPort, Nexus, TargetPort, decode};

use crate::scsi::units::unit;

/// Ports of the tests.
pub(super) const PORTS: [TargetPort; 2] = [TargetPort(1), TargetPort(2)];

pub(super) const fn nexus(initiator: u64, port: u16) -> Nexus {
    Nexus { initiator: InitiatorPort(0x3000_0000_0000_0000 | initiator), port: TargetPort(port) }
}

/// A PERSISTENT RESERVE OUT: its service action, type and parameter list.
#[derive(Clone, Debug)]
pub(super) struct Out {
    pub(super) action: u8,
    pub(super) kind: u8,
    pub(super) list: Vec<u8>,
}

impl Out {
    /// With the basic parameter list; flags are SPEC_I_PT (8), ALL_TG_PT (4) and APTPL (1).
    pub(super) fn new(action: u8, kind: u8, key: u64, new_key: u64, flags: u8) -> Out {
        let mut list = [key.to_be_bytes(), new_key.to_be_bytes(), [0; 8]].concat();
        list[20] = flags;
        Out { action, kind, list }
    }

    /// REGISTER that lists initiator ports.
    pub(super) fn listing(key: u64, new_key: u64, flags: u8, initiators: &[InitiatorPort]) -> Out {
        let mut out = Out::new(0, 0, key, new_key, 8 | flags);
        out.list.extend((initiators.len() as u32 * 24).to_be_bytes());
        initiators.iter().for_each(|initiator| out.list.extend(transport_id(*initiator)));
        out
    }

    /// REGISTER AND MOVE; flags are UNREG (2) and APTPL (1).
    pub(super) fn moving(key: u64, new_key: u64, flags: u8, to: Nexus) -> Out {
        let mut list = [key.to_be_bytes(), new_key.to_be_bytes(), [0; 8]].concat();
        list[17] = flags;
        list[18..20].copy_from_slice(&to.port.0.to_be_bytes());
        list[20..24].copy_from_slice(&24_u32.to_be_bytes());
        list.extend(transport_id(to.initiator));
        Out { action: 7, kind: 0, list }
    }

    pub(super) fn send(&self, from: Nexus, to: &mut Reservations) -> Result<Change, Refused> {
        let bytes = (self.list.len() as u32).to_be_bytes();
        let cdb = [&[0x5f, self.action, self.kind, 0, 0][..], &bytes, &[0]].concat();
        let Ok(Command::ReserveOut(out)) = decode(&cdb, Addressed::Disk(&unit())) else { panic!("{self:?}") };
        to.change(&out, &self.list, from, &PORTS)
    }
}

/// A TransportID of SAS.
pub(super) fn transport_id(initiator: InitiatorPort) -> [u8; 24] {
    let mut out = [0; 24];
    out[0] = 6;
    out[4..12].copy_from_slice(&initiator.0.to_be_bytes());
    out
}

pub(super) fn register(key: u64, new_key: u64) -> Out {
    Out::new(0, 0, key, new_key, 0)
}

pub(super) fn reserve(key: u64, kind: Kind) -> Out {
    Out::new(1, kind.code(), key, 0, 0)
}

pub(super) fn release(key: u64, kind: Kind) -> Out {
    Out::new(2, kind.code(), key, 0, 0)
}

pub(super) fn clear(key: u64) -> Out {
    Out::new(3, 0, key, 0, 0)
}

pub(super) fn preempt(key: u64, victim: u64, kind: Kind) -> Out {
    Out::new(4, kind.code(), key, victim, 0)
}

/// What PERSISTENT RESERVE IN says.
pub(super) fn read(of: &Reservations, action: ReserveIn) -> Vec<u8> {
    let mut out = Vec::new();
    of.read(action, u16::MAX, &mut out).unwrap();
    out
}
