//! Parameter lists of PERSISTENT RESERVE OUT.

use super::transport_id::{self, TRANSPORT_ID_BYTES};
use crate::scsi::spec::data::RESERVE_OUT_BYTES;
use crate::scsi::{InitiatorPort, Sense, TargetPort};
use crate::wire::{be16, be32, be64};

/// SPC-5, "Basic PERSISTENT RESERVE OUT parameter list".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Basic {
    /// RESERVATION KEY.
    pub(super) key: u64,
    /// SERVICE ACTION RESERVATION KEY.
    pub(super) new_key: u64,
    /// APTPL.
    pub(super) survives_power_loss: bool,
    /// ALL_TG_PT.
    pub(super) all_ports: bool,
    /// SPEC_I_PT: the initiator ports that it lists.
    pub(super) initiators: Option<Vec<InitiatorPort>>,
}

/// SPC-5, "PERSISTENT RESERVE OUT command with REGISTER AND MOVE service action parameter list".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) key: u64,
    pub(super) new_key: u64,
    pub(super) survives_power_loss: bool,
    /// UNREG.
    pub(super) unregister: bool,
    pub(super) port: TargetPort,
    pub(super) initiator: InitiatorPort,
}

/// Bits of byte 20.
const SPEC_I_PT: u8 = 0x08;
const ALL_TG_PT: u8 = 0x04;
const APTPL: u8 = 0x01;
/// Bits of byte 17 of REGISTER AND MOVE.
const UNREG: u8 = 0x02;

impl Basic {
    /// `with_initiators`: the action may list initiator ports (REGISTER).
    pub(super) fn decode(list: &[u8], with_initiators: bool) -> Result<Basic, Sense> {
        let (fixed, rest) = list.split_first_chunk::<RESERVE_OUT_BYTES>().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let flags = fixed[20];
        let initiators = match flags & SPEC_I_PT != 0 {
            true if !with_initiators => return Err(Sense::list_bit(20, 3)),
            true => Some(initiators(rest)?),
            false if rest.is_empty() => None,
            false => return Err(Sense::PARAMETER_LIST_LENGTH),
        };
        Ok(Basic {
            key: be64::<0, _>(fixed),
            new_key: be64::<8, _>(fixed),
            survives_power_loss: flags & APTPL != 0,
            all_ports: flags & ALL_TG_PT != 0,
            initiators,
        })
    }
}

/// TRANSPORTID PARAMETER DATA LENGTH, and TransportIDs.
fn initiators(rest: &[u8]) -> Result<Vec<InitiatorPort>, Sense> {
    let (length, ids) = rest.split_first_chunk::<4>().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    let (whole, left) = ids.as_chunks::<TRANSPORT_ID_BYTES>();
    if be32::<0, _>(length) as usize != ids.len() || !left.is_empty() {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    let at = |index: usize| RESERVE_OUT_BYTES + 4 + index * TRANSPORT_ID_BYTES;
    whole.iter().enumerate().map(|(index, id)| transport_id::decode(id, at(index))).collect()
}

impl Move {
    pub(super) fn decode(list: &[u8]) -> Result<Move, Sense> {
        let (fixed, rest) = list.split_first_chunk::<RESERVE_OUT_BYTES>().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let id = rest.try_into().map_err(|_| Sense::PARAMETER_LIST_LENGTH)?;
        if be32::<20, _>(fixed) as usize != TRANSPORT_ID_BYTES {
            return Err(Sense::list(20));
        }
        Ok(Move {
            key: be64::<0, _>(fixed),
            new_key: be64::<8, _>(fixed),
            survives_power_loss: fixed[17] & APTPL != 0,
            unregister: fixed[17] & UNREG != 0,
            port: TargetPort(be16::<18, _>(fixed)),
            initiator: transport_id::decode(id, RESERVE_OUT_BYTES)?,
        })
    }
}
