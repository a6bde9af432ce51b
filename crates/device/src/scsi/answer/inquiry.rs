//! Standard INQUIRY data (SPC-5, "Standard INQUIRY data").

use super::Facts;
use crate::scsi::decode::Addressed;
use crate::scsi::identity::{PRODUCT_BYTES, REVISION_BYTES, VENDOR, VENDOR_BYTES, padded};
use crate::scsi::spec::device_type;

/// Bytes up to the last version descriptor.
const BYTES: usize = 74;
/// VERSION: SPC-5.
const VERSION: u8 = 0x07;
/// HISUP, and the only RESPONSE DATA FORMAT there is.
const FORMAT: u8 = 0x12;
/// TPGS 01b: asymmetric access is reported, and changes by itself alone.
const TPGS_IMPLICIT: u8 = 0x10;
/// MULTIP: there are several target ports.
const MULTIPLE_PORTS: u8 = 0x10;
/// CMDQUE: several commands at once.
const COMMAND_QUEUE: u8 = 0x02;
/// PERIPHERAL QUALIFIER 011b: nothing can be here.
const NOT_CAPABLE: u8 = 0x60;
/// Version descriptors (SPC-5, "Version descriptor values"): SAM-5, SPC-5 and SBC-4, no version claimed.
const VERSIONS: [u16; 3] = [0x00a0, 0x05c0, 0x0600];
/// The product that is no disk.
const NO_PRODUCT: &str = "VIRTIO-SCSI";

/// Peripheral qualifier and device type.
pub(super) fn peripheral(addressed: Addressed<'_>) -> u8 {
    match addressed {
        Addressed::Disk(_) => device_type::DISK,
        Addressed::Nothing => NOT_CAPABLE | device_type::NONE,
        Addressed::ReportLuns => device_type::WELL_KNOWN,
    }
}

pub(super) fn standard(facts: &Facts<'_>, out: &mut Vec<u8>) {
    let (product, revision) = match facts.identity {
        Some(identity) => (identity.product(), identity.revision()),
        None => (NO_PRODUCT, ""),
    };
    let (tpgs, multiple) = if facts.ports.are_several() { (TPGS_IMPLICIT, MULTIPLE_PORTS) } else { (0, 0) };
    let additional = (BYTES - 5) as u8;
    let start = out.len();
    out.extend_from_slice(&[
        peripheral(facts.addressed),
        0,
        VERSION,
        FORMAT,
        additional,
        tpgs,
        multiple,
        COMMAND_QUEUE,
    ]);
    out.extend_from_slice(&padded::<VENDOR_BYTES>(VENDOR));
    out.extend_from_slice(&padded::<PRODUCT_BYTES>(product));
    out.extend_from_slice(&padded::<REVISION_BYTES>(revision));
    // 20 bytes of the vendor's, and two of other transports.
    out.extend_from_slice(&[0; 22]);
    for version in VERSIONS {
        out.extend_from_slice(&version.to_be_bytes());
    }
    out.resize(start + BYTES, 0);
}
