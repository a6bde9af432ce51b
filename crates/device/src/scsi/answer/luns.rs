//! REPORT LUNS (SPC-5, "REPORT LUNS command").

use crate::scsi::address::{Address, Lun};

/// The logical units that REPORT LUNS lists.
#[derive(Clone, Copy, Debug)]
pub enum Inventory<'a> {
    /// Those of the target that is asked.
    Target(&'a [Lun]),
    /// Those of every target, by the device's own well known logical unit: in the form in which requests address them.
    Device(&'a [(u8, Lun)]),
}

/// SELECT REPORT: well known logical units alone; 0 is all others, 2 is both.
const WELL_KNOWN: u8 = 1;
const ALL: u8 = 2;
/// LUN LIST LENGTH, and four reserved bytes.
const HEADER_BYTES: usize = 8;

pub(super) fn report(select: u8, inventory: Inventory<'_>, out: &mut Vec<u8>) {
    // LUN LIST LENGTH does not count the four bytes behind it.
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    if select == WELL_KNOWN || select == ALL {
        out.extend_from_slice(&Address::ReportLuns { target: None }.bytes());
    }
    if select != WELL_KNOWN {
        match inventory {
            Inventory::Target(luns) => luns.iter().for_each(|lun| {
                out.extend_from_slice(&lun.bytes());
                out.extend_from_slice(&[0; 6]);
            }),
            Inventory::Device(units) => units.iter().for_each(|&(target, lun)| {
                out.extend_from_slice(&Address::Unit { target, lun }.bytes());
            }),
        }
    }
    let list_bytes = out.len().saturating_sub(start + HEADER_BYTES);
    if let Some(field) = out.get_mut(start..start + 4) {
        field.copy_from_slice(&u32::try_from(list_bytes).unwrap_or(u32::MAX).to_be_bytes());
    }
}
