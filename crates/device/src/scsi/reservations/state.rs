//! Who is registered, who holds the reservation, and what that means for a nexus.

use std::collections::BTreeMap;

use super::gate::Gate;
use super::kind::Kind;
use crate::scsi::attention::Attention;
use crate::scsi::{Nexus, Sense};

/// Most registrations of a logical unit. More are refused: INSUFFICIENT REGISTRATION RESOURCES.
pub const REGISTRATIONS_MAX: usize = 256;

/// Why a command on reservations was refused. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// RESERVATION CONFLICT.
    Conflict,
    /// CHECK CONDITION.
    Check(Sense),
}

impl From<Sense> for Refused {
    fn from(sense: Sense) -> Refused {
        Refused::Check(sense)
    }
}

/// The persistent reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Its type.
    pub kind: Kind,
    /// Who holds it; `None`: everybody who is registered.
    pub holder: Option<Nexus>,
}

/// What else comes of a change: conditions to establish, and commands to end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Unit attention conditions, by nexus.
    pub attentions: Vec<(Nexus, Attention)>,
    /// Nexuses whose commands end before this one's status (PREEMPT AND ABORT). The requester may be among them: its other commands
    /// end then.
    pub aborted: Vec<Nexus>,
}

/// The registrations and the reservation of one logical unit, and a reservation of SCSI-2.
///
/// A change takes `&mut self` and is whole or not at all, and [`Gate`]s are of this moment: the export has a lock around it, and
/// publishes the gates of its nexuses after each change, before its status. Where registrations survive a loss of power
/// ([`Reservations::stored`]), the file has to be durable before that status, too: change a clone, store it, and take it over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    pub(super) registrations: BTreeMap<Nexus, u64>,
    pub(super) reservation: Option<Reservation>,
    /// PRGENERATION.
    pub(super) generation: u32,
    /// APTPL.
    pub(super) survives_power_loss: bool,
    /// The reservation of RESERVE (6); there are no registrations then.
    pub(super) reserved: Option<Nexus>,
    /// There is no file: APTPL is refused.
    pub(super) volatile: bool,
}

impl Reservations {
    /// None.
    pub fn new() -> Reservations {
        Reservations::default()
    }

    /// None, and whoever wants them to survive a loss of power is refused: nobody stores them.
    pub fn volatile() -> Reservations {
        Reservations { volatile: true, ..Reservations::default() }
    }

    /// The same, for whom nobody stores them.
    #[must_use]
    pub fn into_volatile(self) -> Reservations {
        Reservations { volatile: true, survives_power_loss: false, ..self }
    }

    /// Nobody is registered, and so nothing is reserved but by RESERVE (6) and (10).
    pub fn is_empty(&self) -> bool {
        self.registrations.is_empty()
    }

    /// The persistent reservation.
    pub fn reservation(&self) -> Option<Reservation> {
        self.reservation
    }

    /// Registrations with their keys.
    pub fn registrations(&self) -> impl Iterator<Item = (Nexus, u64)> + '_ {
        self.registrations.iter().map(|(nexus, key)| (*nexus, *key))
    }

    /// Who has reserved the unit by RESERVE (6) or (10).
    pub fn reserved(&self) -> Option<Nexus> {
        self.reserved
    }

    /// What a nexus may do (SPC-5, "Commands allowed in the presence of various persistent reservations"; SPC-2, "Reservations").
    pub fn gate(&self, nexus: Nexus) -> Gate {
        if let Some(reserved) = self.reserved {
            return if reserved == nexus { Gate::EVERYTHING } else { Gate::CLOSED };
        }
        let Some(Reservation { kind, .. }) = self.reservation else {
            return Gate::EVERYTHING;
        };
        let registrant = kind.is_for_registrants() && self.registrations.contains_key(&nexus);
        if registrant || self.holds(nexus) {
            Gate::EVERYTHING
        } else if kind.lets_others_read() {
            Gate::READS
        } else {
            Gate::STATUS
        }
    }

    /// A nexus holds the persistent reservation.
    pub fn holds(&self, nexus: Nexus) -> bool {
        match self.reservation {
            None => false,
            Some(Reservation { holder: Some(holder), .. }) => holder == nexus,
            Some(Reservation { holder: None, .. }) => self.registrations.contains_key(&nexus),
        }
    }

    /// RESERVE (6) and (10): the unit is this nexus' own until it releases it, is lost, or the unit is reset. Beside registrations
    /// it is GOOD and does nothing for those whom the persistent reservation lets do everything (SPC-5, "Exceptions to SPC-2
    /// RESERVE and RELEASE behavior", CRH).
    ///
    /// # Errors
    /// Another has it, or there are registrations.
    pub fn reserve(&mut self, nexus: Nexus) -> Result<(), Refused> {
        if !self.registrations.is_empty() {
            return self.excepted(nexus);
        }
        match self.reserved {
            Some(other) if other != nexus => Err(Refused::Conflict),
            _ => {
                self.reserved = Some(nexus);
                Ok(())
            }
        }
    }

    /// RELEASE (6) and (10): ends the nexus' own reservation of SCSI-2; another's stays, and that is GOOD. Beside registrations as
    /// [`reserve`](Reservations::reserve).
    ///
    /// # Errors
    /// There are registrations.
    pub fn release(&mut self, nexus: Nexus) -> Result<(), Refused> {
        if !self.registrations.is_empty() {
            return self.excepted(nexus);
        }
        self.nexus_lost(nexus);
        Ok(())
    }

    /// Holders, and registrants of a reservation that is for registrants, may say RESERVE and RELEASE in vain.
    fn excepted(&self, nexus: Nexus) -> Result<(), Refused> {
        let excepted = self.reservation.is_some() && self.gate(nexus) == Gate::EVERYTHING;
        if excepted { Ok(()) } else { Err(Refused::Conflict) }
    }

    /// A nexus was lost or reset: its reservation of SCSI-2 ends. Registrations and persistent reservations stay.
    pub fn nexus_lost(&mut self, nexus: Nexus) {
        if self.reserved == Some(nexus) {
            self.reserved = None;
        }
    }

    /// The unit was reset: every reservation of SCSI-2 ends. Registrations and persistent reservations stay.
    pub fn reset(&mut self) {
        self.reserved = None;
    }

    /// What is left of it after a loss of power: everything persistent if the last registration wanted that (APTPL), or else
    /// nothing; PRGENERATION begins anew.
    #[must_use]
    pub fn after_power_loss(self) -> Reservations {
        if self.survives_power_loss {
            Reservations { generation: 0, reserved: None, ..self }
        } else {
            Reservations { volatile: self.volatile, ..Reservations::default() }
        }
    }

    /// Ends the registration of a nexus, and with it the reservation that depends on it, which it returns (SPC-5, "Unregistering").
    pub(super) fn unregister(&mut self, nexus: Nexus) -> Option<Reservation> {
        let held = self.reservation.filter(|_| self.holds(nexus));
        self.registrations.remove(&nexus);
        let ended = held.filter(|held| !held.kind.is_held_by_all() || self.registrations.is_empty());
        if ended.is_some() {
            self.reservation = None;
        }
        ended
    }

    /// Everybody else who is registered hears of the end of a reservation for registrants.
    pub(super) fn tell_release(&self, ended: Reservation, nexus: Nexus, change: &mut Change) {
        if ended.kind.is_for_registrants() {
            self.tell_others(nexus, Attention::ReservationsReleased, change);
        }
    }

    /// Everybody who is registered, but one, hears of it.
    pub(super) fn tell_others(&self, but: Nexus, attention: Attention, change: &mut Change) {
        let others = self.registrations.keys().filter(|nexus| **nexus != but);
        change.attentions.extend(others.map(|nexus| (*nexus, attention)));
    }
}
