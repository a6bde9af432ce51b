//! PERSISTENT RESERVE IN (SPC-5, "PERSISTENT RESERVE IN command").

use super::kind::Kind;
use super::request::ReserveIn;
use super::state::{Refused, Reservation, Reservations};
use super::transport_id::{self, TRANSPORT_ID_BYTES};

/// Bytes before the descriptors: PRGENERATION, ADDITIONAL LENGTH.
const HEADER_BYTES: usize = 8;

impl Reservations {
    /// Appends the answer to `out`, at most `allocation` bytes of it.
    ///
    /// # Errors
    /// RESERVATION CONFLICT beside a reservation of SCSI-2 (SPC-2, "PERSISTENT RESERVE IN command"); `out` is as it was then.
    pub fn read(&self, asked: ReserveIn, allocation: u16, out: &mut Vec<u8>) -> Result<(), Refused> {
        if self.reserved.is_some() {
            return Err(Refused::Conflict);
        }
        let start = out.len();
        match asked {
            ReserveIn::Capabilities => out.extend_from_slice(&self.capabilities()),
            ReserveIn::Keys => self.list(out, |out| {
                self.registrations.values().for_each(|key| out.extend_from_slice(&key.to_be_bytes()));
            }),
            ReserveIn::Reservation => self.list(out, |out| {
                if let Some(held) = self.reservation {
                    out.extend_from_slice(&self.holder_key(held).to_be_bytes());
                    out.extend_from_slice(&[0, 0, 0, 0, 0, held.kind.code(), 0, 0]);
                }
            }),
            ReserveIn::FullStatus => self.list(out, |out| self.full_status(out)),
        }
        out.truncate(start.saturating_add(usize::from(allocation)));
        Ok(())
    }

    fn list(&self, out: &mut Vec<u8>, descriptors: impl FnOnce(&mut Vec<u8>)) {
        let mut listed = Vec::new();
        descriptors(&mut listed);
        out.reserve(HEADER_BYTES + listed.len());
        out.extend_from_slice(&self.generation.to_be_bytes());
        // At most 256 registrations.
        out.extend_from_slice(&(listed.len() as u32).to_be_bytes());
        out.extend_from_slice(&listed);
    }

    /// The holder's key; zero when everybody holds it.
    fn holder_key(&self, held: Reservation) -> u64 {
        held.holder.and_then(|holder| self.registrations.get(&holder)).copied().unwrap_or_default()
    }

    /// SPC-5, "REPORT CAPABILITIES service action".
    fn capabilities(&self) -> [u8; 8] {
        /// Compatible reservation handling, lists of initiator ports, all target ports, and persistence.
        const CRH: u8 = 0x10;
        const SIP_C: u8 = 0x08;
        const ATP_C: u8 = 0x04;
        const PTPL_C: u8 = 0x01;
        /// The type mask is valid; registrations survive a loss of power.
        const TMV: u8 = 0x80;
        const PTPL_A: u8 = 0x01;
        let active = if self.survives_power_loss { PTPL_A } else { 0 };
        let persistence = if self.volatile { 0 } else { PTPL_C };
        let types = Kind::ALL.into_iter().fold(0_u16, |mask, kind| mask | 1 << kind.code());
        // The mask has the types 0 to 7 in its first byte, and the others in the second.
        let [high, low] = types.to_be_bytes();
        [0, 8, CRH | SIP_C | ATP_C | persistence, TMV | active, low, high, 0, 0]
    }

    /// SPC-5, "READ FULL STATUS service action".
    fn full_status(&self, out: &mut Vec<u8>) {
        /// R_HOLDER.
        const HOLDER: u8 = 0x01;
        for (nexus, key) in self.registrations() {
            let held = self.reservation.filter(|_| self.holds(nexus));
            let (flags, scope_and_type) = held.map_or((0, 0), |held| (HOLDER, held.kind.code()));
            out.extend_from_slice(&key.to_be_bytes());
            out.extend_from_slice(&[0, 0, 0, 0, flags, scope_and_type, 0, 0, 0, 0]);
            out.extend_from_slice(&nexus.port.0.to_be_bytes());
            out.extend_from_slice(&(TRANSPORT_ID_BYTES as u32).to_be_bytes());
            out.extend_from_slice(&transport_id::encode(nexus.initiator));
        }
    }
}
