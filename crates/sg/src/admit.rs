//! Which commands are sent.

use crate::opcode;
use crate::open::kind;
use storage::{PassData, Refusal};

/// What a guest may ask of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Nothing that changes the device, or what others see of it.
    pub(crate) read_only: bool,
    /// Also what reaches beyond the device or changes it for good.
    pub(crate) unfiltered: bool,
    /// The device's type.
    pub(crate) kind: u8,
}

/// Commands that change nothing (SPC-5, SBC-4, SSC-5, MMC-6, SMC-3), by their operation codes. LOG SENSE and READ BUFFER are among them, LOG
/// SELECT is not; of a tape those that move it are.
const READERS: [u8; 33] = [
    0x00, // TEST UNIT READY
    0x01, // REWIND
    0x03, // REQUEST SENSE
    0x05, // READ BLOCK LIMITS
    0x08, // READ (6)
    0x11, // SPACE (6)
    0x12, // INQUIRY
    0x1a, // MODE SENSE (6)
    0x25, // READ CAPACITY (10)
    0x28, // READ (10)
    0x2b, // LOCATE (10), SEEK (10)
    0x2f, // VERIFY (10)
    0x34, // PRE-FETCH (10), READ POSITION
    0x37, // READ DEFECT DATA (10)
    0x3c, // READ BUFFER (10)
    0x43, // READ TOC
    0x44, // REPORT DENSITY SUPPORT
    0x46, // GET CONFIGURATION
    0x4a, // GET EVENT STATUS NOTIFICATION
    0x4d, // LOG SENSE
    0x51, // READ DISC INFORMATION
    0x5a, // MODE SENSE (10)
    0x5e, // PERSISTENT RESERVE IN
    0x88, // READ (16)
    0x8c, // READ ATTRIBUTE
    0x8f, // VERIFY (16)
    0x90, // PRE-FETCH (16)
    0x92, // LOCATE (16)
    0xa3, // MAINTENANCE IN
    0xa8, // READ (12)
    0xaf, // VERIFY (12)
    0xb8, // READ ELEMENT STATUS
    0xbe, // READ CD
];

/// Modes of WRITE BUFFER that change the device's own program (SPC-5, "WRITE BUFFER command").
const MICROCODE: [u8; 7] = [0x04, 0x05, 0x06, 0x07, 0x0d, 0x0e, 0x0f];

/// Service actions of MAINTENANCE OUT that change what others see of the device, or its ways (SPC-5: SET IDENTIFYING INFORMATION, SET TARGET
/// PORT GROUPS, CHANGE ALIASES, REMOVE I_T NEXUS).
const MAINTENANCE: [u8; 4] = [0x06, 0x0a, 0x0b, 0x0c];

/// Service actions of SERVICE ACTION IN (16) that only ask (SBC-5): READ CAPACITY, READ LONG, GET LBA STATUS, REPORT REFERRALS, GET STREAM
/// STATUS. Others, which send no data either, give up parts of a disk.
const ASKS: [u8; 5] = [0x10, 0x11, 0x12, 0x13, 0x16];

/// Copies between devices of SCSI-2: COPY, COMPARE, COPY AND VERIFY. To a CD they are nothing of the kind.
const OLD_COPIES: [u8; 3] = [0x18, 0x39, 0x3a];

/// READ SUB-CHANNEL of a CD (MMC-6); UNMAP of a disk.
const READ_SUB_CHANNEL: u8 = 0x42;

/// DOWNLOAD MICROCODE and its form with DMA (ATA8-ACS).
const ATA_MICROCODE: [u8; 2] = [0x92, 0x93];

/// The ATA command that a CDB carries to a disk behind a translation (SAT-4, "ATA PASS-THROUGH": 12, 16 and 32 bytes). Of a CD the first of
/// them is BLANK.
fn ata_command(cdb: &[u8], kind: u8) -> Option<u8> {
    let at = match cdb {
        [0xa1, ..] if kind != kind::CD => 9,
        [0x85, ..] => 14,
        [0x7f, _, _, _, _, _, _, _, 0x1f, 0xf0, ..] => 25,
        _ => return None,
    };
    cdb.get(at).copied()
}

/// Whether a command is sent.
///
/// # Errors
/// Why not.
pub(crate) fn admit(cdb: &[u8], data: PassData, rules: Rules) -> Result<(), Refusal> {
    let Some(&operation) = cdb.first() else { return Err(Refusal::Opcode) };
    let service = cdb.get(1).copied().unwrap_or(0) & 0x1f;
    let is_beyond = match operation {
        // Copies between any two devices that the target reaches.
        opcode::EXTENDED_COPY | opcode::ACCESS_CONTROL_OUT => true,
        opcode::WRITE_BUFFER => MICROCODE.contains(&service),
        opcode::MAINTENANCE_OUT => MAINTENANCE.contains(&service),
        _ if OLD_COPIES.contains(&operation) => rules.kind != kind::CD,
        _ => ata_command(cdb, rules.kind).is_some_and(|command| ATA_MICROCODE.contains(&command)),
    };
    if is_beyond && !rules.unfiltered {
        return Err(Refusal::Opcode);
    }
    // What sends data is not one that reads, but for a verification of it.
    let sends = data == PassData::Out && !matches!(operation, 0x2f | 0x8f | 0xaf);
    let reads = match operation {
        READ_SUB_CHANNEL => rules.kind == kind::CD,
        opcode::SERVICE_ACTION_IN_16 => ASKS.contains(&service),
        _ => READERS.contains(&operation),
    };
    if rules.read_only && (sends || !reads) {
        return Err(Refusal::WriteProtected);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Rules = Rules { read_only: false, unfiltered: false, kind: kind::DISK };

    #[test]
    fn all_go_but_what_reaches_beyond_the_device() {
        for operation in 0..=u8::MAX {
            let cdb = [operation, 0, 0, 0, 0, 0];
            let refused = [opcode::EXTENDED_COPY, opcode::ACCESS_CONTROL_OUT, 0x18, 0x39, 0x3a].contains(&operation);
            assert_eq!(admit(&cdb, PassData::None, USUAL).is_err(), refused, "{operation:#x}");
            admit(&cdb, PassData::None, Rules { unfiltered: true, ..USUAL }).unwrap();
        }
        for (cdb, admitted) in [
            ([opcode::WRITE_BUFFER, 0x02], true),
            ([opcode::WRITE_BUFFER, 0x05], false),
            // A reserved bit is none of the mode.
            ([opcode::WRITE_BUFFER, 0xe5], false),
            ([opcode::MAINTENANCE_OUT, 0x0a], false),
            ([opcode::MAINTENANCE_OUT, 0x0f], true),
        ] {
            assert_eq!(admit(&cdb, PassData::Out, USUAL).is_ok(), admitted, "{cdb:x?}");
        }
        assert_eq!(admit(&[], PassData::None, USUAL), Err(Refusal::Opcode));
        let mut sixteen = [0x85; 16];
        let mut twelve = [0xa1; 12];
        let mut long = [0; 32];
        (long[0], long[8], long[9]) = (0x7f, 0x1f, 0xf0);
        for (command, admitted) in [(0xb0, true), (0x92, false), (0x93, false)] {
            (sixteen[14], twelve[9], long[25]) = (command, command, command);
            for cdb in [&sixteen[..], &twelve, &long] {
                assert_eq!(admit(cdb, PassData::Out, USUAL).is_ok(), admitted, "{cdb:x?}");
            }
        }
        admit(&twelve, PassData::None, Rules { kind: kind::CD, ..USUAL }).unwrap();
    }

    #[test]
    fn a_reader_changes_nothing() {
        let reads = Rules { read_only: true, ..USUAL };
        for operation in [0x00, 0x12, 0x28, 0x88, 0xa3, 0x5e, 0x4d] {
            admit(&[operation, 0], PassData::In, reads).unwrap();
        }
        admit(&[0x9e, 0x10], PassData::In, reads).unwrap();
        // STREAM CONTROL, BACKGROUND CONTROL, REMOVE ELEMENT AND TRUNCATE, RESTORE ELEMENTS AND REBUILD.
        for service in [0x14, 0x15, 0x18, 0x19] {
            assert_eq!(admit(&[0x9e, service], PassData::None, reads), Err(Refusal::WriteProtected), "{service:#x}");
        }
        // WRITE, UNMAP, WRITE SAME, FORMAT UNIT, MODE SELECT, PERSISTENT RESERVE OUT, START STOP UNIT, vendor's.
        for operation in [0x0a, 0x2a, 0x8a, 0x42, 0x93, 0x04, 0x15, 0x5f, 0x1b, 0xc0] {
            assert_eq!(admit(&[operation, 0], PassData::Out, reads), Err(Refusal::WriteProtected), "{operation:#x}");
        }
        admit(&[0x2f, 0x02], PassData::Out, reads).unwrap();
        assert!(admit(&[0x42, 0], PassData::In, reads).is_err(), "UNMAP, whatever its buffers say");
        admit(&[0x42, 0], PassData::In, Rules { kind: kind::CD, ..reads }).unwrap();
        let both = Rules { unfiltered: true, ..reads };
        assert_eq!(admit(&[opcode::EXTENDED_COPY, 0], PassData::Out, both), Err(Refusal::WriteProtected));
    }
}
