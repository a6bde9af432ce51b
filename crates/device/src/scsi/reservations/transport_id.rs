//! TransportIDs: initiator ports in parameter lists and in READ FULL STATUS.
//!
//! No protocol identifier is that of virtio. Ours are those of SAS, whose ports have names of 8 bytes as well (SPC-5, "TransportID
//! for initiator ports using SCSI over SAS").

use crate::scsi::{InitiatorPort, Sense};
use crate::wire::{be64, put};

/// Bytes of a TransportID.
pub(super) const TRANSPORT_ID_BYTES: usize = 24;
/// TPID FORMAT 00b and PROTOCOL IDENTIFIER 6h.
const SAS: u8 = 0x06;

pub(super) fn encode(initiator: InitiatorPort) -> [u8; TRANSPORT_ID_BYTES] {
    let mut out = [0; TRANSPORT_ID_BYTES];
    out[0] = SAS;
    put::<4, _, _>(&mut out, initiator.0.to_be_bytes());
    out
}

/// `at`: where in the parameter list it begins.
pub(super) fn decode(bytes: &[u8; TRANSPORT_ID_BYTES], at: usize) -> Result<InitiatorPort, Sense> {
    if bytes[0] == SAS {
        Ok(InitiatorPort(be64::<4, _>(bytes)))
    } else {
        // A parameter list has at most 8192 bytes.
        Err(Sense::list(at as u16))
    }
}
