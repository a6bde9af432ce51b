//! Reservations as guests find them: what PERSISTENT RESERVE IN answers, but for the generation, which begins anew with the power.

use std::fmt;

use anyhow::{Context, Result, anyhow};
use device::scsi::reservations::{Reservations, ReserveIn};
use serde::{Deserialize, Serialize};

/// Bytes before the descriptors of an answer: the generation, and their length.
const ANSWER_HEAD: usize = 8;
/// Bytes of a descriptor of READ FULL STATUS with a TransportID of SAS (SPC-5, "READ FULL STATUS parameter data").
const DESCRIPTOR_BYTES: usize = 48;
/// Where the flags, the port and the TransportID stand in it.
const FLAGS_AT: usize = 12;
const PORT_AT: usize = 18;
const ID_AT: usize = 24;
/// PTPL_A, in byte 3 of REPORT CAPABILITIES.
const PTPL_A: u8 = 1;
/// Most that an answer may have.
pub(super) const ANSWER_BYTES_MAX: u16 = u16::MAX;

/// A TransportID: an initiator port's name.
pub(super) type Id = [u8; 24];

/// What there is of reservations.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Found {
    /// The last registration wanted all of it to survive a loss of power (APTPL).
    survives: bool,
    /// The descriptors of READ FULL STATUS: all registrations, and who among them holds what.
    full: Vec<u8>,
    /// That of READ RESERVATION.
    held: Vec<u8>,
}

/// A registration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registration {
    pub(super) key: u64,
    pub(super) id: Id,
    pub(super) port: u16,
    pub(super) holds: bool,
}

impl Found {
    /// Of answers to READ FULL STATUS, READ RESERVATION and REPORT CAPABILITIES.
    pub(super) fn of_answers(full: &[u8], held: &[u8], capabilities: &[u8]) -> Result<Self> {
        let descriptors = |answer: &[u8]| answer.get(ANSWER_HEAD..).map(<[u8]>::to_vec).context("an answer is cut off");
        let survives = capabilities.get(3).context("an answer is cut off")? & PTPL_A != 0;
        let full = descriptors(full)?;
        // Of nobody's registration it says nothing.
        Ok(Self { survives: survives && !full.is_empty(), full, held: descriptors(held)? })
    }

    /// Of what a unit would begin with.
    pub(super) fn of(reservations: &Reservations) -> Result<Self> {
        let ask = |what| {
            let mut answer = Vec::new();
            let read = reservations.read(what, ANSWER_BYTES_MAX, &mut answer);
            read.map_err(|refused| anyhow!("{refused:?}")).map(|()| answer)
        };
        Self::of_answers(&ask(ReserveIn::FullStatus)?, &ask(ReserveIn::Reservation)?, &ask(ReserveIn::Capabilities)?)
    }

    /// What has to be left of it after a loss of power: all or nothing.
    pub(super) fn left(&self) -> Self {
        if self.survives { self.clone() } else { Self::default() }
    }

    pub(super) fn registrations(&self) -> Vec<Registration> {
        let of = |descriptor: &[u8; DESCRIPTOR_BYTES]| {
            let mut id = Id::default();
            id.copy_from_slice(&descriptor[ID_AT..]);
            Registration {
                key: u64::from_be_bytes(*descriptor.first_chunk().unwrap_or(&[0; 8])),
                port: u16::from_be_bytes([descriptor[PORT_AT], descriptor[PORT_AT + 1]]),
                holds: descriptor[FLAGS_AT] & 1 != 0,
                id,
            }
        };
        self.full.as_chunks().0.iter().map(of).collect()
    }

    /// The type of the reservation, if there is one.
    pub(super) fn kind(&self) -> Option<u8> {
        self.held.get(13).map(|scope_and_type| scope_and_type & 0xf)
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registrations = self.registrations();
        if registrations.is_empty() {
            return f.write_str("nothing");
        }
        let holders = registrations.iter().filter(|it| it.holds).map(|it| format!("{:x}", it.key));
        write!(f, "{} registrations", registrations.len())?;
        let keys: Vec<_> = registrations.iter().take(4).map(|it| format!("{:x}", it.key)).collect();
        write!(f, " ({}…)", keys.join(" "))?;
        if let Some(kind) = self.kind() {
            write!(f, ", type {kind} held by {}", holders.take(4).collect::<Vec<_>>().join(" "))?;
        }
        if self.survives { Ok(()) } else { f.write_str(", not to survive") }
    }
}

/// What may be there: each of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct May(Vec<Found>);

impl May {
    /// This alone.
    pub(super) fn only(found: &Found) -> Self {
        Self(vec![found.left()])
    }

    /// This, too.
    #[must_use]
    pub(super) fn or(mut self, found: &Found) -> Self {
        let left = found.left();
        if !self.permits(&left) {
            self.0.push(left);
        }
        self
    }

    /// All of these, too.
    #[must_use]
    pub(super) fn or_any_of(self, others: &[Found]) -> Self {
        others.iter().fold(self, Self::or)
    }

    pub(super) fn permits(&self, found: &Found) -> bool {
        self.0.contains(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart() {
        let mut full = vec![0; ANSWER_HEAD + DESCRIPTOR_BYTES];
        full[ANSWER_HEAD..][..8].copy_from_slice(&0xa_u64.to_be_bytes());
        full[ANSWER_HEAD + FLAGS_AT] = 1;
        full[ANSWER_HEAD + PORT_AT + 1] = 7;
        let held = [vec![0; ANSWER_HEAD + 13], vec![5, 0, 0]].concat();
        let found = |ptpl| Found::of_answers(&full, &held, &[0, 8, 0, ptpl, 0, 0, 0, 0]).unwrap();
        let Registration { key, port, holds, .. } = found(1).registrations()[0];
        assert_eq!((key, port, holds, found(1).kind()), (0xa, 7, true, Some(5)));
        assert_eq!(found(1).left(), found(1));
        assert_eq!(found(0).left(), Found::default());
        assert_eq!(Found::of(&Reservations::new()).unwrap(), Found::default());
        let may = May::only(&Found::default()).or(&found(0));
        assert_eq!(may, May::only(&Found::default()));
        assert!(may.or(&found(1)).permits(&found(1)));
    }
}
