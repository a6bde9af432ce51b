//! Log pages (SPC-5, "Log parameters"; SBC-4, "Logical Block Provisioning log page").

use super::{Facts, put_short_length};
use crate::scsi::command::LogPage;
use crate::scsi::sense::Sense;
use crate::scsi::spec::page::log;
use crate::scsi::unit::{Counting, Unit};

/// How much of its space a thin unit's storage has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that blocks of this unit have.
    pub used_bytes: u64,
    /// Bytes that they may still have, if it is known.
    pub available_bytes: Option<u64>,
    /// Other units take from the same bytes.
    pub shared: bool,
}

const SET_BYTES: u64 = Counting::SET_BYTES;

/// log2 of the blocks in a set (SBC-4, "Logical Block Provisioning VPD page", THRESHOLD EXPONENT); 0 where nobody counts.
pub(super) fn threshold_exponent(unit: &Unit) -> u8 {
    unit.settings().counting.map_or(0, |_| (SET_BYTES / u64::from(unit.block_bytes())).ilog2() as u8)
}

/// Whether an answer to this has to be told how much is used.
pub fn asks_usage(asked: LogPage, unit: &Unit) -> bool {
    (asked.page, asked.subpage) == (log::PROVISIONING, 0) && unit.settings().counting.is_some()
}

/// Bits of byte 0 of a page: it is a subpage (SPF).
const SUBPAGE: u8 = 0x40;

pub(super) fn page(asked: LogPage, facts: &Facts<'_>, out: &mut Vec<u8>) -> Result<(), Sense> {
    let counting = facts.unit()?.settings().counting;
    let start = out.len();
    match (asked.page, asked.subpage) {
        (log::SUPPORTED, 0 | log::ALL_SUBPAGES) if asked.first > 0 => return Err(Sense::cdb(5)),
        (log::SUPPORTED, 0) => {
            out.extend_from_slice(&[log::SUPPORTED, 0, 0, 0, log::SUPPORTED]);
            out.extend(counting.map(|_| log::PROVISIONING));
        }
        (log::SUPPORTED, log::ALL_SUBPAGES) => {
            let subpages = log::ALL_SUBPAGES;
            out.extend_from_slice(&[
                log::SUPPORTED | SUBPAGE,
                subpages,
                0,
                0,
                log::SUPPORTED,
                0,
                log::SUPPORTED,
                subpages,
            ]);
            out.extend(counting.into_iter().flat_map(|_| [log::PROVISIONING, 0]));
        }
        (log::PROVISIONING, 0) => provisioning(asked.first, &facts.usage.ok_or(Sense::cdb_bit(2, 5))?, out)?,
        (log::SUPPORTED | log::PROVISIONING, _) => return Err(Sense::cdb(3)),
        _ => return Err(Sense::cdb_bit(2, 5)),
    }
    put_short_length(out, start + 2);
    Ok(())
}

/// Log parameters: AVAILABLE LBA MAPPING RESOURCE COUNT, USED LBA MAPPING RESOURCE COUNT.
const AVAILABLE: u16 = 1;
const USED: u16 = 2;

fn provisioning(first: u16, usage: &Usage, out: &mut Vec<u8>) -> Result<(), Sense> {
    /// FORMAT AND LINKING: a list of numbers.
    const LIST: u8 = 3;
    /// SCOPE: of this unit alone, or of others as well.
    const DEDICATED: u8 = 1;
    const SHARED: u8 = 2;
    let scope = if usage.shared { SHARED } else { DEDICATED };
    // Used space is in whole sets and so is free space: neither says more than there is.
    let used = (USED, Some(usage.used_bytes.div_ceil(SET_BYTES)), DEDICATED);
    let available = (AVAILABLE, usage.available_bytes.map(|bytes| bytes / SET_BYTES), scope);
    if first > USED {
        return Err(Sense::cdb(5));
    }
    out.extend_from_slice(&[log::PROVISIONING, 0, 0, 0]);
    for (code, sets, scope) in [available, used] {
        let Some(sets) = sets.filter(|_| code >= first) else {
            continue;
        };
        out.extend_from_slice(&code.to_be_bytes());
        out.extend_from_slice(&[LIST, 8]);
        out.extend_from_slice(&u32::try_from(sets).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(&[scope, 0, 0, 0]);
    }
    Ok(())
}
