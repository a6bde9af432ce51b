//! Commands that another device performs: what has to be known of them all the same.

use super::spec::opcode::{self as op, service_in_16};

/// Bytes of a CDB by the group of its operation code, as Linux sends them (SPC-5, "Operation code"; `scsi_command_size_tbl`). Those of
/// groups 6 and 7 are the vendor's.
const GROUP_BYTES: [usize; 8] = [6, 10, 10, 12, 16, 12, 10, 10];
/// Lengths that CDBs have.
const LENGTHS: [usize; 4] = [10, 12, 16, 32];
/// Variable length CDBs (SPC-5, "Variable type CDB formats"): ADDITIONAL CDB LENGTH is their eighth byte.
const VARIABLE: u8 = 0x7f;
/// The page of limits that a disk says (SBC-4, "Block Limits VPD page").
const BLOCK_LIMITS: u8 = 0xb0;

/// The CDB at the beginning of an area that may be longer. A vendor's is as long as what it says: there is no way to tell.
pub fn sent_cdb(area: &[u8]) -> &[u8] {
    let Some(&operation) = area.first() else { return area };
    let group = usize::from(operation >> 5);
    let usual = if operation == VARIABLE {
        8 + usize::from(area.get(7).copied().unwrap_or(0))
    } else if group >= 6 {
        let said = area.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        LENGTHS.into_iter().find(|len| *len >= said).unwrap_or(area.len())
    } else {
        GROUP_BYTES[group]
    };
    &area[..usual.min(area.len())]
}

/// Whether a command that may have been performed already may be sent once more: it asks, or it reads or writes the same blocks of a disk
/// (peripheral device type 0) again. What moves a tape is not among them.
pub fn may_be_sent_again(cdb: &[u8], is_disk: bool) -> bool {
    let Some(&operation) = cdb.first() else { return false };
    match operation {
        op::TEST_UNIT_READY
        | op::INQUIRY
        | op::MODE_SENSE_6
        | op::MODE_SENSE_10
        | op::LOG_SENSE
        | op::PERSISTENT_RESERVE_IN => true,
        op::SERVICE_ACTION_IN_16 => {
            let service = cdb.get(1).map_or(0, |byte| byte & 0x1f);
            is_disk && matches!(service, service_in_16::READ_CAPACITY_16 | service_in_16::GET_LBA_STATUS)
        }
        op::READ_6
        | op::READ_10
        | op::READ_12
        | op::READ_16
        | op::WRITE_6
        | op::WRITE_10
        | op::WRITE_12
        | op::WRITE_16
        | op::WRITE_VERIFY_10
        | op::WRITE_VERIFY_12
        | op::WRITE_VERIFY_16
        | op::VERIFY_10
        | op::VERIFY_12
        | op::VERIFY_16
        | op::SYNCHRONIZE_CACHE_10
        | op::SYNCHRONIZE_CACHE_16
        | op::WRITE_SAME_10
        | op::WRITE_SAME_16
        | op::UNMAP
        | op::READ_CAPACITY_10
        | op::MAINTENANCE_IN => is_disk,
        _ => false,
    }
}

/// Whether the answer to a command is a page of limits, which hold for whoever sends commands in the driver's place.
pub fn is_block_limits(cdb: &[u8]) -> bool {
    matches!(cdb, [op::INQUIRY, evpd, BLOCK_LIMITS, ..] if evpd & 1 != 0)
}

/// Bytes of that page which [`limit_transfers`] looks at.
pub const BLOCK_LIMITS_BYTES: usize = 16;

/// Has the page say no more blocks of one transfer than these, which is at least one: MAXIMUM TRANSFER LENGTH, and OPTIMAL TRANSFER LENGTH
/// where it says one.
pub fn limit_transfers(page: &mut [u8], blocks: u32) {
    if page.get(1) != Some(&BLOCK_LIMITS) {
        return;
    }
    let (most, blocks) = (8..12, blocks.max(1));
    for (at, is_said) in [(most, true), (12..16, false)] {
        if let Some(field) = page.get_mut(at)
            && let Ok(bytes) = <[u8; 4]>::try_from(&*field)
        {
            let said = u32::from_be_bytes(bytes);
            // Zero: it does not say.
            if said > blocks || said == 0 && is_said {
                field.copy_from_slice(&blocks.to_be_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cdb_is_as_long_as_its_group() {
        let area = |operation| {
            let mut area = [0; 32];
            area[0] = operation;
            area
        };
        for (operation, len) in
            [(0x12, 6), (0x28, 10), (0x5f, 10), (0x88, 16), (0xa8, 12), (0xc1, 10), (0xff, 10), (0x7f, 8)]
        {
            assert_eq!(sent_cdb(&area(operation)).len(), len, "{operation:#x}");
        }
        let mut vendor = area(0xc1);
        vendor[11] = 1;
        assert_eq!(sent_cdb(&vendor).len(), 12);
        vendor[20] = 1;
        assert_eq!(sent_cdb(&vendor).len(), 32);
        let mut variable = area(0x7f);
        variable[7] = 0x18;
        assert_eq!(sent_cdb(&variable).len(), 32);
        variable[7] = 0xff;
        assert_eq!(sent_cdb(&variable).len(), 32, "no longer than what there is");
        assert_eq!(sent_cdb(&[0x28, 0]), [0x28, 0]);
        assert_eq!(sent_cdb(&[]), [0; 0]);
    }

    #[test]
    fn what_moves_a_tape_is_sent_once() {
        for operation in 0..=u8::MAX {
            let (disk, tape) = (may_be_sent_again(&[operation], true), may_be_sent_again(&[operation], false));
            assert!(disk || !tape, "{operation:#x}");
        }
        for (operation, disk, tape) in [
            (0x28, true, false),
            (0x0a, true, false),
            (0x08, true, false),
            (0x12, true, true),
            (0x5f, false, false),
            (0x89, false, false),
            (0x01, false, false),
            (0x15, false, false),
            (0xc0, false, false),
            (0x03, false, false),
        ] {
            assert_eq!((may_be_sent_again(&[operation], true), may_be_sent_again(&[operation], false)), (disk, tape));
        }
        assert!(may_be_sent_again(&[0x9e, 0x10], true) && !may_be_sent_again(&[0x9e, 0x10], false));
        // REMOVE ELEMENT AND TRUNCATE.
        assert!(!may_be_sent_again(&[0x9e, 0x18], true));
        assert!(!may_be_sent_again(&[], true));
    }

    #[test]
    fn a_page_of_limits_says_what_the_host_takes() {
        assert!(is_block_limits(&[0x12, 1, 0xb0, 0, 64, 0]));
        assert!(!is_block_limits(&[0x12, 0, 0xb0, 0, 64, 0]) && !is_block_limits(&[0x12, 1, 0xb1, 0, 64, 0]));
        let limited = |most: u32, optimal: u32| {
            let mut page = [0; 64];
            page[1] = 0xb0;
            page[8..12].copy_from_slice(&most.to_be_bytes());
            page[12..16].copy_from_slice(&optimal.to_be_bytes());
            limit_transfers(&mut page, 128);
            [8, 12].map(|at| u32::from_be_bytes(page[at..at + 4].try_into().unwrap()))
        };
        assert_eq!(limited(0, 0), [128, 0]);
        assert_eq!(limited(64, 32), [64, 32]);
        assert_eq!(limited(65_536, 512), [128, 128]);
        // A part of it, or another page.
        let mut short = [0, 0xb0, 0, 60, 0, 0, 0, 0, 0, 1, 0, 0];
        limit_transfers(&mut short, 128);
        assert_eq!(short[8..], [0, 0, 0, 128]);
        let mut other = [0xff; 16];
        limit_transfers(&mut other, 1);
        assert_eq!(other, [0xff; 16]);
        limit_transfers(&mut [], 1);
    }
}
