//! Vital product data (SPC-5, "Vital product data parameters"; SBC-4, "Vital product data parameters").

use super::Facts;
use super::inquiry::peripheral;
use super::log::threshold_exponent;
use super::put_short_length;
use crate::scsi::decode::Addressed;
use crate::scsi::identity::{Identity, VENDOR, VENDOR_BYTES, padded};
use crate::scsi::sense::Sense;
use crate::scsi::spec::page::vpd;
use crate::scsi::unit::{Rotation, Unit};

/// Pages of a disk; the first two are those of a well known logical unit, the first that of nothing.
const DISK_PAGES: [u8; 6] =
    [vpd::SUPPORTED, vpd::SERIAL, vpd::IDENTIFICATION, vpd::BLOCK_LIMITS, vpd::CHARACTERISTICS, vpd::PROVISIONING];
const WELL_KNOWN_PAGES: [u8; 2] = [vpd::SUPPORTED, vpd::IDENTIFICATION];
const NO_PAGES: [u8; 1] = [vpd::SUPPORTED];
/// Bytes behind the header of the Block Limits and the Block Device Characteristics page.
const BLOCK_PAGE_BYTES: usize = 0x3c;

/// One page.
pub(super) fn page(page: u8, facts: &Facts<'_>, out: &mut Vec<u8>) -> Result<(), Sense> {
    let pages: &[u8] = match facts.addressed {
        Addressed::Disk(_) => &DISK_PAGES,
        Addressed::ReportLuns => &WELL_KNOWN_PAGES,
        Addressed::Nothing => &NO_PAGES,
    };
    if !pages.contains(&page) {
        return Err(Sense::cdb(2));
    }
    let start = out.len();
    out.extend_from_slice(&[peripheral(facts.addressed), page, 0, 0]);
    match (page, facts.addressed) {
        (vpd::SUPPORTED, _) => out.extend_from_slice(pages),
        (vpd::IDENTIFICATION, _) => identification(facts, out),
        (vpd::SERIAL, _) => out.extend(facts.identity.map_or("", Identity::serial).bytes()),
        (vpd::BLOCK_LIMITS, Addressed::Disk(unit)) => block_limits(unit, out),
        (vpd::CHARACTERISTICS, Addressed::Disk(unit)) => characteristics(unit, out),
        (_, Addressed::Disk(unit)) => provisioning(unit, out),
        (_, _) => {}
    }
    put_short_length(out, start + 2);
    Ok(())
}

/// Code sets, associations and types of designators (SPC-5, "Designation descriptor").
const BINARY: u8 = 1;
const ASCII: u8 = 2;
const OF_UNIT: u8 = 0x00;
const OF_PORT: u8 = 0x10;
const T10_VENDOR: u8 = 1;
const NAA: u8 = 3;
const RELATIVE_PORT: u8 = 4;
const PORT_GROUP: u8 = 5;

fn designator(code_set: u8, kind: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    // At most 8 + 64 bytes.
    out.extend_from_slice(&[code_set, kind, 0, bytes as u8]);
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// SPC-5, "Device Identification VPD page". No protocol identifier is that of virtio, so none is said.
fn identification(facts: &Facts<'_>, out: &mut Vec<u8>) {
    if let Some(identity) = facts.identity {
        designator(BINARY, OF_UNIT | NAA, &[identity.naa().bytes()], out);
        let vendor = padded::<VENDOR_BYTES>(VENDOR);
        designator(ASCII, OF_UNIT | T10_VENDOR, &[&vendor, identity.serial().as_bytes()], out);
    }
    let ports = facts.ports;
    designator(BINARY, OF_PORT | NAA, &[ports.name.bytes()], out);
    designator(BINARY, OF_PORT | RELATIVE_PORT, &[&[0, 0], &ports.own.0.to_be_bytes()], out);
    designator(BINARY, OF_PORT | PORT_GROUP, &[&[0, 0], &super::ports::GROUP.to_be_bytes()], out);
}

/// SBC-4, "Block Limits VPD page".
fn block_limits(unit: &Unit, out: &mut Vec<u8>) {
    /// No WRITE SAME of zero blocks.
    const WSNZ: u8 = 1;
    /// UNMAP GRANULARITY ALIGNMENT is valid: 0.
    const ALIGNMENT_VALID: u32 = 1 << 31;
    let start = out.len();
    let settings = unit.settings();
    let limits = &settings.limits;
    let granularity = match settings.physical_block_exp {
        0 => 0,
        exp => u16::try_from(1_u32 << exp).unwrap_or(u16::MAX),
    };
    out.extend_from_slice(&[WSNZ, limits.compare_and_write_blocks_max]);
    out.extend_from_slice(&granularity.to_be_bytes());
    out.extend_from_slice(&limits.transfer_blocks_max.to_be_bytes());
    out.extend_from_slice(&(settings.optimal_bytes / settings.block_bytes).to_be_bytes());
    // MAXIMUM PREFETCH LENGTH.
    out.extend_from_slice(&[0; 4]);
    let unmap = limits
        .unmap
        .map_or([0; 4], |unmap| [unmap.blocks_max, unmap.descriptors_max, unmap.granularity_blocks, ALIGNMENT_VALID]);
    unmap.iter().for_each(|field| out.extend_from_slice(&field.to_be_bytes()));
    out.extend_from_slice(&u64::from(limits.write_same_blocks_max).to_be_bytes());
    out.resize(start + BLOCK_PAGE_BYTES, 0);
}

/// SBC-4, "Block Device Characteristics VPD page".
fn characteristics(unit: &Unit, out: &mut Vec<u8>) {
    let start = out.len();
    let rotation = match unit.settings().rotation {
        Rotation::Unknown => 0,
        Rotation::Still => 1,
        Rotation::PerMinute(rpm) => rpm,
    };
    out.extend_from_slice(&rotation.to_be_bytes());
    out.resize(start + BLOCK_PAGE_BYTES, 0);
}

/// SBC-4, "Logical Block Provisioning VPD page".
fn provisioning(unit: &Unit, out: &mut Vec<u8>) {
    /// UNMAP, WRITE SAME (16) and WRITE SAME (10) unmap.
    const LBPU: u8 = 0x80;
    const LBPWS: u8 = 0x40;
    const LBPWS10: u8 = 0x20;
    /// LBPRZ 001b: unmapped blocks read as zeroes.
    const LBPRZ: u8 = 0x04;
    /// PROVISIONING TYPE.
    const THIN: u8 = 2;
    let (flags, kind) = match unit.limits().unmap {
        None => (0, 0),
        Some(unmap) => {
            let same = if unit.limits().write_same_blocks_max > 0 { LBPWS | LBPWS10 } else { 0 };
            (LBPU | same | if unmap.zeroes { LBPRZ } else { 0 }, THIN)
        }
    };
    out.extend_from_slice(&[threshold_exponent(unit), flags, kind, 0]);
}
