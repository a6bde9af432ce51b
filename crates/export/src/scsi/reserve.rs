//! Reservations, as commands ask for them. They are the logical unit's, and gone with the daemon: what is to survive a loss of power is
//! refused.

use super::logical::State;
use super::ring::ScsiRing;
use super::tasks::{self, Question};
use super::work::Work;
use crate::trace::OTHER;
use device::scsi::reservations::{Action, Refused, ReserveIn, ReserveOut};
use device::scsi::{Nexus, Response, Status};
use engine::{Io, Token};

impl ScsiRing {
    /// PERSISTENT RESERVE IN.
    pub(super) fn reserve_in(&mut self, head: u16, action: ReserveIn, allocation: u16, io: &Io<'_>) {
        let Some(entry) = self.entry_of(head) else { return };
        let mut out = Vec::new();
        match entry.unit.logical.look(|state| state.reservations.read(action, allocation, &mut out)) {
            Ok(()) => self.send(head, &out, io),
            Err(refused) => self.refuse(head, refused, io),
        }
    }

    /// PERSISTENT RESERVE OUT.
    pub(super) fn reserve_out(&mut self, head: u16, out: ReserveOut, io: &mut Io<'_>) {
        let list = self.list_bytes(out.list_bytes as usize);
        let moved = list.len() as u64;
        let Some(entry) = self.entry_of(head) else { return };
        let unit = entry.unit.clone();
        // Before anything is changed: it is sent again.
        let place = match out.action {
            Action::PreemptAndAbort => match unit.logical.clone().wait() {
                None => return self.full(head, io),
                place => place,
            },
            _ => None,
        };
        let changed = unit.change(|state, _| {
            let ports = state.ports();
            let change = state.reservations.change(&out, &list, unit.nexus(), &ports)?;
            change.attentions.iter().for_each(|(nexus, what)| state.tell_nexus(*nexus, *what));
            Ok(change.aborted)
        });
        match (changed, place) {
            // Who aborts commands of its own knows which those are.
            (Ok(aborted), Some(place)) if aborted.iter().any(|nexus| *nexus != unit.nexus()) => {
                let asked = unit.others_of(|nexus| aborted.contains(&nexus));
                let asked = asked.into_iter().map(|(keeper, which)| (keeper, which, Question::EndOfTaken)).collect();
                self.keep(head, Work::Preempt { moved, place });
                // What has been begun ends as it does, and nothing that they begin now gets in.
                let _word = tasks::ask(asked, io.reply_by(OTHER, Token::request(head)));
                self.turns.trace.pending(head, io);
            }
            (changed, _) => self.reserved(head, changed.map(drop), moved, io),
        }
    }

    /// RESERVE.
    pub(super) fn reserve(&mut self, head: u16, io: &Io<'_>) {
        self.change_reserved(head, |state, nexus| state.reservations.reserve(nexus), io);
    }

    /// RELEASE.
    pub(super) fn release(&mut self, head: u16, io: &Io<'_>) {
        self.change_reserved(head, |state, nexus| state.reservations.release(nexus), io);
    }

    fn change_reserved(&mut self, head: u16, f: fn(&mut State, Nexus) -> Result<(), Refused>, io: &Io<'_>) {
        let Some(entry) = self.entry_of(head) else { return };
        let nexus = entry.unit.nexus();
        let changed = entry.unit.logical.change(|state| f(state, nexus));
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
