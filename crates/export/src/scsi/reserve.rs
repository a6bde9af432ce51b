//! Reservations, as commands ask for them. They are the logical unit's. What is to survive a loss of power is stored before its status,
//! and refused where nothing keeps it.

use super::commands::MAY_BE_DONE;
use super::logical::State;
use super::ring::ScsiRing;
use super::tasks::{self, Asked, word};
use super::work::{Reserve, Work};
use crate::trace::OTHER;
use device::scsi::reservations::{Action, Refused, Reservations, ReserveIn, ReserveOut};
use device::scsi::{Attention, InitiatorPort, Nexus, Response, Sense, Status};
use engine::{Io, Token};

/// What became of a change.
enum Changed {
    /// Not now.
    Not,
    /// It is made, and commands of these are aborted.
    Now(Vec<InitiatorPort>),
    /// It is made when it is stored.
    Stored(Reservations, Vec<(Nexus, Attention)>, Vec<InitiatorPort>),
}

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
        let changed = unit.change(|state, path| {
            if state.storing {
                return Ok(Changed::Not);
            }
            let mut next = state.reservations.clone();
            let change = next.change(&out, &list, unit.nexus(), &state.ports())?;
            // Who aborts commands of its own knows which those are.
            let own = unit.nexus().initiator;
            let aborted: Vec<_> = change.aborted.iter().map(|nexus| nexus.initiator).filter(|it| *it != own).collect();
            // Nobody can say when commands have ended whose end would be told of.
            if state.others_of(path, |nexus| aborted.contains(&nexus.initiator)).lost.iter().any(|tasks| !tasks.end()) {
                return Ok(Changed::Not);
            }
            if unit.logical.are_stored(&state.reservations, &next) {
                state.storing = true;
                return Ok(Changed::Stored(next, change.attentions, aborted));
            }
            state.reservations = next;
            change.attentions.iter().for_each(|(nexus, what)| state.tell_nexus(*nexus, *what));
            Ok(Changed::Now(aborted))
        });
        match changed {
            Ok(Changed::Not) => self.busy(head, io),
            Ok(Changed::Now(aborted)) => {
                self.keep(head, Work::Reserve(Box::new(Reserve::new(moved, aborted, place, true))));
                self.wait_for_preempted(head, io);
            }
            Ok(Changed::Stored(next, attentions, aborted)) => {
                self.keep(head, Work::Reserve(Box::new(Reserve::new(moved, aborted, place, false))));
                // Rings find it before whoever asks is told.
                unit.logical.clone().store_elsewhere(next, attentions, io.reply(Token::request(head)));
                self.turns.trace.pending(head, io);
            }
            Err(refused) => self.refuse(head, refused, io),
        }
    }

    /// Reservations have changed. What has been begun by those who were preempted ends as it does, and nothing that they begin now gets in.
    fn wait_for_preempted(&mut self, head: u16, io: &mut Io<'_>) {
        let Some(unit) = self.entry_of(head).map(|entry| entry.unit.clone()) else { return };
        let Work::Reserve(reserve) = &mut self.ring.slot(head).request.work else { return };
        let moved = reserve.moved;
        if reserve.aborted.is_empty() {
            return self.good(head, moved, 0, io);
        }
        let asked = Asked::default().and(unit.others_of(|nexus| reserve.aborted.contains(&nexus.initiator)));
        reserve.word = tasks::ask(asked, io.reply_by(OTHER, Token::request(head)));
        self.turns.trace.pending(head, io);
    }

    /// The change is stored, or all who were asked have said their word.
    pub(super) fn go_on_reserving(&mut self, head: u16, result: i32, io: &mut Io<'_>) {
        let Some(unit) = self.entry_of(head).map(|entry| entry.unit.clone()) else { return };
        let Work::Reserve(reserve) = &mut self.ring.slot(head).request.work else { return };
        let moved = reserve.moved;
        if !std::mem::replace(&mut reserve.is_stored, true) {
            return if result == 0 { self.wait_for_preempted(head, io) } else { self.check(head, Sense::INTERNAL, io) };
        }
        if result == word::GIVEN_UP {
            // One of them has a command under way of which nobody can say when it ends.
            return self.check(head, MAY_BE_DONE, io);
        }
        // A ring that fell while it was asked may not have heard of it.
        if unit.others_of(|nexus| reserve.aborted.contains(&nexus.initiator)).lost.is_empty() {
            self.good(head, moved, 0, io);
        } else {
            self.wait_for_preempted(head, io);
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
        let changed = entry.unit.logical.change(|state| (!state.storing).then(|| f(state, nexus)));
        match changed {
            None => self.busy(head, io),
            Some(Ok(())) => self.good(head, 0, 0, io),
            Some(Err(refused)) => self.refuse(head, refused, io),
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
