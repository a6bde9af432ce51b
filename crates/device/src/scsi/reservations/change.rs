//! PERSISTENT RESERVE OUT (SPC-5, "PERSISTENT RESERVE OUT command", and "Reservations" for what each action does).

use super::kind::Kind;
use super::list::{Basic, Move};
use super::request::{Action, ReserveOut};
use super::state::{Change, REGISTRATIONS_MAX, Refused, Reservation, Reservations};
use crate::scsi::attention::Attention;
use crate::scsi::{InitiatorPort, Nexus, Sense, TargetPort};

impl Reservations {
    /// Carries out PERSISTENT RESERVE OUT for `nexus`. `list` is all of the parameter list, and `ports` are the target ports that
    /// there are.
    ///
    /// # Errors
    /// The status of a command that changes nothing.
    pub fn change(
        &mut self,
        out: &ReserveOut,
        list: &[u8],
        nexus: Nexus,
        ports: &[TargetPort],
    ) -> Result<Change, Refused> {
        if self.reserved.is_some() {
            return Err(Refused::Conflict);
        }
        let mut next = self.clone();
        let change = next.apply(out, list, nexus, ports)?;
        *self = next;
        Ok(change)
    }

    fn apply(&mut self, out: &ReserveOut, list: &[u8], nexus: Nexus, ports: &[TargetPort]) -> Result<Change, Refused> {
        let mut change = Change::default();
        if out.action == Action::RegisterAndMove {
            self.register_and_move(&Move::decode(list)?, nexus, ports)?;
            return Ok(change);
        }
        let list = Basic::decode(list, out.action == Action::Register)?;
        if out.action == Action::Register || out.action == Action::RegisterAndIgnore {
            let ignore = out.action == Action::RegisterAndIgnore;
            self.register(&list, nexus, ports, ignore, &mut change)?;
            return Ok(change);
        }
        // All others are for registered nexuses.
        self.check_key(nexus, list.key)?;
        match out.action {
            Action::Reserve => self.establish(nexus, out.kind()?)?,
            Action::Release => self.end(nexus, out, &mut change)?,
            Action::Clear => self.clear(nexus, &mut change),
            Action::Preempt => self.preempt(nexus, list.new_key, out, &mut change)?,
            Action::PreemptAndAbort => {
                change.aborted = self.abortable(list.new_key);
                self.preempt(nexus, list.new_key, out, &mut change)?;
            }
            Action::Register | Action::RegisterAndIgnore | Action::RegisterAndMove => {}
        }
        Ok(change)
    }

    /// The nexus is registered with this key.
    fn check_key(&self, nexus: Nexus, key: u64) -> Result<(), Refused> {
        if self.registrations.get(&nexus) == Some(&key) { Ok(()) } else { Err(Refused::Conflict) }
    }

    /// REGISTER, and REGISTER AND IGNORE EXISTING KEY.
    fn register(
        &mut self,
        list: &Basic,
        nexus: Nexus,
        ports: &[TargetPort],
        ignore: bool,
        change: &mut Change,
    ) -> Result<(), Refused> {
        let registered = self.registrations.get(&nexus).copied();
        if !ignore && list.key != registered.unwrap_or_default() {
            return Err(Refused::Conflict);
        }
        if registered.is_some() && list.initiators.is_some() {
            return Err(Sense::list_bit(20, 3).into());
        }
        if registered.is_none() && list.new_key == 0 {
            return Ok(());
        }
        // ALL_TG_PT: the same through every port, but for registrations that have another key.
        let through = |initiator: InitiatorPort| {
            let others = ports.iter().copied().filter(|port| list.all_ports && *port != nexus.port);
            others.chain([nexus.port]).map(move |port| Nexus { initiator, port })
        };
        let same = |key: Option<&u64>| ignore || key.is_none() || key == registered.as_ref();
        let own: Vec<Nexus> = through(nexus.initiator).filter(|nexus| same(self.registrations.get(nexus))).collect();
        let mut ended = None;
        for nexus in own {
            if list.new_key == 0 {
                ended = self.unregister(nexus).or(ended);
            } else {
                self.registrations.insert(nexus, list.new_key);
            }
        }
        if let Some(ended) = ended {
            self.tell_release(ended, nexus, change);
        }
        // Of the initiator ports in the list, those that are not registered yet.
        for &initiator in list.initiators.iter().flatten() {
            for nexus in through(initiator) {
                self.registrations.entry(nexus).or_insert(list.new_key);
            }
            self.check_count()?;
        }
        self.check_count()?;
        if list.survives_power_loss && self.volatile {
            return Err(Sense::list_bit(20, 0).into());
        }
        self.survives_power_loss = list.survives_power_loss;
        self.count_generation();
        Ok(())
    }

    fn check_count(&self) -> Result<(), Sense> {
        if self.registrations.len() > REGISTRATIONS_MAX { Err(Sense::NO_REGISTRATIONS) } else { Ok(()) }
    }

    fn count_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    /// RESERVE. A holder that has it already has it still.
    fn establish(&mut self, nexus: Nexus, kind: Kind) -> Result<(), Refused> {
        match self.reservation {
            None => {
                self.reservation = Some(reservation(kind, nexus));
                Ok(())
            }
            Some(held) if held.kind == kind && self.holds(nexus) => Ok(()),
            Some(_) => Err(Refused::Conflict),
        }
    }

    /// RELEASE. Of a nexus that does not hold it, it is GOOD and does nothing.
    fn end(&mut self, nexus: Nexus, out: &ReserveOut, change: &mut Change) -> Result<(), Refused> {
        let Some(held) = self.reservation.filter(|_| self.holds(nexus)) else {
            return Ok(());
        };
        if out.kind().ok() != Some(held.kind) {
            return Err(Sense::INVALID_RELEASE.into());
        }
        self.reservation = None;
        self.tell_release(held, nexus, change);
        Ok(())
    }

    /// CLEAR.
    fn clear(&mut self, nexus: Nexus, change: &mut Change) {
        self.tell_others(nexus, Attention::ReservationsPreempted, change);
        self.forget_all();
    }

    /// Ends all reservations and registrations, and that of RESERVE, as whoever operates the unit wants it: everybody who was registered
    /// hears of that as of a CLEAR.
    pub fn break_all(&mut self) -> Change {
        let told = self.registrations.keys().map(|nexus| (*nexus, Attention::ReservationsPreempted)).collect();
        self.reserved = None;
        self.forget_all();
        Change { attentions: told, aborted: Vec::new() }
    }

    fn forget_all(&mut self) {
        self.reservation = None;
        self.registrations.clear();
        self.count_generation();
    }

    /// Whose commands PREEMPT AND ABORT ends: whoever has the key, or with the key zero everybody.
    fn abortable(&self, key: u64) -> Vec<Nexus> {
        self.registrations().filter(|(_, registered)| key == 0 || *registered == key).map(|(nexus, _)| nexus).collect()
    }

    /// PREEMPT: takes the reservation from the holder with this key; or from everybody, when everybody holds it and the key is
    /// zero; or else only ends registrations with the key.
    fn preempt(&mut self, nexus: Nexus, key: u64, out: &ReserveOut, change: &mut Change) -> Result<(), Refused> {
        let taken = match self.reservation {
            Some(held @ Reservation { holder: None, .. }) if key == 0 => Some(held),
            Some(held @ Reservation { holder: Some(holder), .. })
                if key != 0 && self.registrations.get(&holder) == Some(&key) =>
            {
                Some(held)
            }
            _ if key == 0 => return Err(Sense::list(8).into()),
            _ => None,
        };
        let Some(held) = taken else {
            return self.preempt_registrations(nexus, key, change);
        };
        let kind = out.kind()?;
        let preempted: Vec<Nexus> = self.abortable(key).into_iter().filter(|other| *other != nexus).collect();
        for other in preempted {
            self.registrations.remove(&other);
            change.attentions.push((other, Attention::RegistrationsPreempted));
        }
        self.reservation = Some(reservation(kind, nexus));
        if kind != held.kind {
            self.tell_others(nexus, Attention::ReservationsReleased, change);
        }
        self.count_generation();
        Ok(())
    }

    /// The requester's own registration is among those with the key, or not.
    fn preempt_registrations(&mut self, nexus: Nexus, key: u64, change: &mut Change) -> Result<(), Refused> {
        let preempted = self.abortable(key);
        if preempted.is_empty() {
            return Err(Refused::Conflict);
        }
        for other in preempted {
            self.registrations.remove(&other);
            if other != nexus {
                change.attentions.push((other, Attention::RegistrationsPreempted));
            }
        }
        // A holder of its own has another key; one that everybody holds ends with the last of them.
        if self.registrations.is_empty() {
            self.reservation = None;
        }
        self.count_generation();
        Ok(())
    }

    /// REGISTER AND MOVE.
    fn register_and_move(&mut self, list: &Move, nexus: Nexus, ports: &[TargetPort]) -> Result<(), Refused> {
        self.check_key(nexus, list.key)?;
        let Some(Reservation { kind, holder: Some(holder) }) = self.reservation else {
            // There is none, or everybody holds it.
            return Err(Refused::Conflict);
        };
        if holder != nexus {
            return Err(Refused::Conflict);
        }
        if list.new_key == 0 {
            return Err(Sense::list(8).into());
        }
        if list.port != nexus.port && !ports.contains(&list.port) {
            return Err(Sense::list(18).into());
        }
        let to = Nexus { initiator: list.initiator, port: list.port };
        if to == nexus {
            return Err(Sense::list(24).into());
        }
        self.registrations.insert(to, list.new_key);
        self.reservation = Some(reservation(kind, to));
        if list.unregister {
            self.registrations.remove(&nexus);
        }
        self.check_count()?;
        if list.survives_power_loss && self.volatile {
            return Err(Sense::list_bit(17, 0).into());
        }
        self.survives_power_loss = list.survives_power_loss;
        self.count_generation();
        Ok(())
    }
}

/// A reservation that a nexus establishes.
fn reservation(kind: Kind, nexus: Nexus) -> Reservation {
    Reservation { kind, holder: if kind.is_held_by_all() { None } else { Some(nexus) } }
}

impl ReserveOut {
    /// The type, of the only scope that there is: the logical unit.
    fn kind(&self) -> Result<Kind, Sense> {
        let scope = self.scope_and_type >> 4;
        if scope != 0 {
            return Err(Sense::cdb_bit(2, 7));
        }
        Kind::from_code(self.scope_and_type & 0xf).ok_or(Sense::cdb_bit(2, 3))
    }
}
