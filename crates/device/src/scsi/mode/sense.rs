//! MODE SENSE (SPC-5, "MODE SENSE (6) command" and "(10)").

use super::page::pages_of;
use super::{HEADER_6_BYTES, HEADER_10_BYTES, LONG_LBA, long_descriptor, short_descriptor};
use crate::scsi::command::{ModePages, PageControl};
use crate::scsi::sense::Sense;
use crate::scsi::spec::page::mode;
use crate::scsi::unit::Unit;

/// DEVICE-SPECIFIC PARAMETER (SBC-4, "Mode parameter header"): WP, and DPOFUA (there is FUA).
const WRITE_PROTECTED: u8 = 0x80;
const DPOFUA: u8 = 0x10;

pub(in crate::scsi) fn sense(asked: ModePages, unit: &Unit, out: &mut Vec<u8>) -> Result<(), Sense> {
    let of_code = || pages_of(unit).filter(|page| asked.page == mode::ALL || asked.page == page.code);
    if of_code().next().is_none() {
        return Err(Sense::cdb_bit(2, 5));
    }
    let pages = || of_code().filter(|page| asked.subpage == mode::ALL_SUBPAGES || asked.subpage == page.subpage);
    // All pages have no subpage in common but 0.
    if pages().next().is_none() || asked.page == mode::ALL && !matches!(asked.subpage, 0 | mode::ALL_SUBPAGES) {
        return Err(Sense::cdb(3));
    }
    let start = out.len();
    let specific = DPOFUA | if unit.settings().read_only { WRITE_PROTECTED } else { 0 };
    let long_lba = asked.descriptor && asked.long_lba;
    let (short, long) = (short_descriptor(unit), long_descriptor(unit));
    let descriptor: &[u8] = match (asked.descriptor, long_lba) {
        (false, _) => &[],
        (true, false) => &short,
        (true, true) => &long,
    };
    // A descriptor has at most 16 bytes.
    let descriptor_bytes = descriptor.len() as u8;
    if asked.long {
        let flags = if long_lba { LONG_LBA } else { 0 };
        let header: [u8; HEADER_10_BYTES] = [0, 0, 0, specific, flags, 0, 0, descriptor_bytes];
        out.extend_from_slice(&header);
    } else {
        let header: [u8; HEADER_6_BYTES] = [0, 0, specific, descriptor_bytes];
        out.extend_from_slice(&header);
    }
    out.extend_from_slice(descriptor);
    for page in pages() {
        let bytes = match asked.control {
            PageControl::Current => page.values(unit.mode(), unit),
            PageControl::Default => page.values(unit.settings().mode, unit),
            PageControl::Changeable => page.changeable(unit),
        };
        out.extend_from_slice(&bytes);
    }
    // MODE DATA LENGTH does not count itself; all pages together have 80 bytes.
    let bytes = out.len() - start;
    let field = if asked.long { bytes - 2 } else { bytes - 1 } as u8;
    let at = if asked.long { start + 1 } else { start };
    if let Some(length) = out.get_mut(at) {
        *length = field;
    }
    Ok(())
}
