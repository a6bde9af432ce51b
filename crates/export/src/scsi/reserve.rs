//! Reservations, as commands ask for them. They are the device's alone, and gone with the daemon: a unit has one nexus here, and what is
//! to survive a loss of power is refused.

use super::commands::PORT;
use super::ring::ScsiRing;
use device::scsi::reservations::{Refused, ReserveIn, ReserveOut};
use device::scsi::{InitiatorPort, Nexus, Response, Status};
use engine::Io;

/// Whoever has connected: each device has one driver.
pub(super) const NEXUS: Nexus = Nexus { initiator: InitiatorPort(0x3000_0000_0000_0001), port: PORT };

impl ScsiRing {
    /// PERSISTENT RESERVE IN.
    pub(super) fn reserve_in(&mut self, head: u16, action: ReserveIn, allocation: u16, io: &Io<'_>) {
        let Some(entry) = self.entry_of(head) else { return };
        let mut out = Vec::new();
        let (_, state) = entry.unit.state();
        match state.reservations.read(action, allocation, &mut out) {
            Ok(()) => self.send(head, &out, io),
            Err(refused) => self.refuse(head, refused, io),
        }
    }

    /// PERSISTENT RESERVE OUT.
    pub(super) fn reserve_out(&mut self, head: u16, out: ReserveOut, io: &Io<'_>) {
        let list = self.list_bytes(out.list_bytes as usize);
        let Some(entry) = self.entry_of(head) else { return };
        let changed = entry.unit.clone().change(|state| {
            let change = state.reservations.change(&out, &list, NEXUS, &[PORT])?;
            // There is no other nexus to be told of anything.
            change.attentions.iter().filter(|(nexus, _)| *nexus == NEXUS).for_each(|(_, what)| state.establish(*what));
            Ok(())
        });
        self.reserved(head, changed, list.len() as u64, io);
    }

    /// RESERVE.
    pub(super) fn reserve(&mut self, head: u16, io: &Io<'_>) {
        let Some(entry) = self.entry_of(head) else { return };
        let changed = entry.unit.clone().change(|state| state.reservations.reserve(NEXUS));
        self.reserved(head, changed, 0, io);
    }

    /// RELEASE.
    pub(super) fn release(&mut self, head: u16, io: &Io<'_>) {
        let Some(entry) = self.entry_of(head) else { return };
        let changed = entry.unit.clone().change(|state| state.reservations.release(NEXUS));
        self.reserved(head, changed, 0, io);
    }

    fn reserved(&mut self, head: u16, changed: Result<(), Refused>, moved: u64, io: &Io<'_>) {
        match changed {
            Ok(()) => self.good(head, moved, 0, io),
            Err(refused) => self.refuse(head, refused, io),
        }
    }

    fn refuse(&mut self, head: u16, refused: Refused, io: &Io<'_>) {
        match refused {
            Refused::Check(sense) => self.check(head, sense, io),
            Refused::Conflict => {
                let buffers = self.ring.slot(head).request.buffers;
                self.respond(head, &Response::status(&buffers, Status::ReservationConflict), 0, io);
            }
        }
    }
}
