//! Sense data: what a CHECK CONDITION is about.

use super::spec::sense::{code, key};
use crate::wire::put;

/// The field of a CDB or a parameter list that is wrong (SPC-5, "Field pointer sense key specific data").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FieldPointer {
    /// In the CDB, or else in the parameter list.
    pub in_cdb: bool,
    /// The field's first byte.
    pub byte: u16,
    /// The field's highest bit in that byte; `None` when the whole byte is meant.
    pub bit: Option<u8>,
}

/// Sense data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sense {
    /// Sense key; see [`key`].
    pub key: u8,
    /// Additional sense code and qualifier; see [`code`].
    pub code: u16,
    /// INFORMATION: the block or the byte that it is about.
    pub information: Option<u64>,
    /// The wrong field of an ILLEGAL REQUEST.
    pub pointer: Option<FieldPointer>,
}

/// Bytes of fixed format sense data.
const FIXED_BYTES: usize = 18;
/// Response codes of current errors (SPC-5, "Sense data").
const FIXED_CURRENT: u8 = 0x70;
const DESCRIPTOR_CURRENT: u8 = 0x72;
/// Fixed format: INFORMATION is valid.
const VALID: u8 = 0x80;
/// Sense key specific data: valid (SKSV), of the CDB (C/D), with a bit pointer (BPV).
const SKSV: u8 = 0x80;
const COMMAND_DATA: u8 = 0x40;
const BIT_POINTER: u8 = 0x08;
/// Bytes before the descriptors of descriptor format sense data.
const DESCRIPTOR_HEADER_BYTES: usize = 8;
/// Descriptor types, and the lengths of these descriptors (SPC-5, "Sense data descriptors").
const INFORMATION: u8 = 0x00;
const INFORMATION_BYTES: usize = 12;
const SENSE_KEY_SPECIFIC: u8 = 0x02;
const SENSE_KEY_SPECIFIC_BYTES: usize = 8;
/// Room for every form.
const SENSE_BYTES: usize = DESCRIPTOR_HEADER_BYTES + INFORMATION_BYTES + SENSE_KEY_SPECIFIC_BYTES;

impl Sense {
    /// Nothing is wrong: what REQUEST SENSE has when there is nothing to say.
    pub const NONE: Sense = Sense::new(key::NO_SENSE, code::NONE);
    /// The operation code is unknown.
    pub const INVALID_OPCODE: Sense = Sense::new(key::ILLEGAL_REQUEST, code::INVALID_OPCODE).pointing(FieldPointer {
        in_cdb: true,
        byte: 0,
        bit: None,
    });
    /// The request reaches beyond the last block.
    pub const LBA_OUT_OF_RANGE: Sense = Sense::new(key::ILLEGAL_REQUEST, code::LBA_OUT_OF_RANGE);
    /// The target has no such logical unit.
    pub const NO_UNIT: Sense = Sense::new(key::ILLEGAL_REQUEST, code::LOGICAL_UNIT_NOT_SUPPORTED);
    /// The parameter list ends within a field.
    pub const PARAMETER_LIST_LENGTH: Sense = Sense::new(key::ILLEGAL_REQUEST, code::PARAMETER_LIST_LENGTH);
    /// Nothing can be written.
    pub const WRITE_PROTECTED: Sense = Sense::new(key::DATA_PROTECT, code::WRITE_PROTECTED);
    /// A START STOP UNIT has stopped the unit.
    pub const STOPPED: Sense = Sense::new(key::NOT_READY, code::NOT_READY_START_REQUIRED);
    /// The unit has no block.
    pub const NO_BLOCKS: Sense = Sense::new(key::NOT_READY, code::NOT_READY);
    /// The storage has no room left (SBC-4, "Resource exhaustion considerations").
    pub const NO_SPACE: Sense = Sense::new(key::DATA_PROTECT, code::SPACE_ALLOCATION_FAILED);
    /// The storage has failed to read.
    pub const READ_ERROR: Sense = Sense::new(key::MEDIUM_ERROR, code::UNRECOVERED_READ_ERROR);
    /// The storage has failed to write.
    pub const WRITE_ERROR: Sense = Sense::new(key::MEDIUM_ERROR, code::WRITE_ERROR);
    /// We have failed.
    pub const INTERNAL: Sense = Sense::new(key::HARDWARE_ERROR, code::INTERNAL_TARGET_FAILURE);
    /// There are as many registrations of reservations as there may be.
    pub const NO_REGISTRATIONS: Sense = Sense::new(key::ILLEGAL_REQUEST, code::INSUFFICIENT_REGISTRATION_RESOURCES);
    /// RELEASE names another scope or type than the reservation has.
    pub const INVALID_RELEASE: Sense = Sense::new(key::ILLEGAL_REQUEST, code::INVALID_RELEASE);
    /// Mode parameters are not saved.
    pub const SAVING_NOT_SUPPORTED: Sense = Sense::new(key::ILLEGAL_REQUEST, code::SAVING_NOT_SUPPORTED);

    /// Sense data without more than key and code.
    pub const fn new(key: u8, code: u16) -> Sense {
        Sense { key, code, information: None, pointer: None }
    }

    const fn pointing(self, pointer: FieldPointer) -> Sense {
        Sense { pointer: Some(pointer), ..self }
    }

    /// INVALID FIELD IN CDB: a whole byte or more.
    pub const fn cdb(byte: u16) -> Sense {
        Sense::new(key::ILLEGAL_REQUEST, code::INVALID_FIELD_IN_CDB).pointing(FieldPointer {
            in_cdb: true,
            byte,
            bit: None,
        })
    }

    /// INVALID FIELD IN CDB: a field whose highest bit is `bit`.
    pub const fn cdb_bit(byte: u16, bit: u8) -> Sense {
        let pointer = FieldPointer { in_cdb: true, byte, bit: Some(bit) };
        Sense::new(key::ILLEGAL_REQUEST, code::INVALID_FIELD_IN_CDB).pointing(pointer)
    }

    /// INVALID FIELD IN PARAMETER LIST: a whole byte or more.
    pub const fn list(byte: u16) -> Sense {
        let pointer = FieldPointer { in_cdb: false, byte, bit: None };
        Sense::new(key::ILLEGAL_REQUEST, code::INVALID_FIELD_IN_PARAMETER_LIST).pointing(pointer)
    }

    /// INVALID FIELD IN PARAMETER LIST: a field whose highest bit is `bit`.
    pub const fn list_bit(byte: u16, bit: u8) -> Sense {
        let pointer = FieldPointer { in_cdb: false, byte, bit: Some(bit) };
        Sense::new(key::ILLEGAL_REQUEST, code::INVALID_FIELD_IN_PARAMETER_LIST).pointing(pointer)
    }

    /// Data differs from what is on the medium, first at this byte of data-out (SBC-4, "COMPARE AND WRITE command", "VERIFY (10)
    /// command").
    pub const fn miscompare(offset_bytes: u64) -> Sense {
        Sense { information: Some(offset_bytes), ..Sense::new(key::MISCOMPARE, code::MISCOMPARE) }
    }

    /// The block that could not be read or written (SBC-4, "Sense information for locked or encrypted logical units" and before).
    pub const fn at(self, block: u64) -> Sense {
        Sense { information: Some(block), ..self }
    }

    /// The bytes. Fixed format has no room for an INFORMATION beyond 32 bits, which it then omits.
    pub fn encode(&self, descriptor: bool) -> SenseBytes {
        if descriptor { self.descriptor() } else { self.fixed() }
    }

    /// SPC-5, "Fixed format sense data".
    fn fixed(&self) -> SenseBytes {
        let mut out = [0; SENSE_BYTES];
        out[0] = FIXED_CURRENT;
        out[2] = self.key;
        if let Some(information) = self.information.and_then(|information| u32::try_from(information).ok()) {
            out[0] |= VALID;
            put::<3, _, _>(&mut out, information.to_be_bytes());
        }
        out[7] = (FIXED_BYTES - 8) as u8;
        put::<12, _, _>(&mut out, self.code.to_be_bytes());
        if let Some(pointer) = self.pointer {
            put::<15, _, _>(&mut out, pointer.bytes());
        }
        SenseBytes { bytes: out, len: FIXED_BYTES }
    }

    /// SPC-5, "Descriptor format sense data".
    fn descriptor(&self) -> SenseBytes {
        let mut out = SenseBytes { bytes: [0; SENSE_BYTES], len: 0 };
        let [asc, ascq] = self.code.to_be_bytes();
        out.append(&[DESCRIPTOR_CURRENT, self.key, asc, ascq, 0, 0, 0, 0]);
        if let Some(information) = self.information {
            out.append(&[INFORMATION, INFORMATION_BYTES as u8 - 2, VALID, 0]);
            out.append(&information.to_be_bytes());
        }
        if let Some(pointer) = self.pointer {
            out.append(&[SENSE_KEY_SPECIFIC, SENSE_KEY_SPECIFIC_BYTES as u8 - 2, 0, 0]);
            out.append(&pointer.bytes());
            out.append(&[0]);
        }
        out.bytes[7] = (out.len - DESCRIPTOR_HEADER_BYTES) as u8;
        out
    }
}

impl FieldPointer {
    /// The three bytes of sense key specific data.
    fn bytes(self) -> [u8; 3] {
        let [high, low] = self.byte.to_be_bytes();
        let mut flags = SKSV;
        if self.in_cdb {
            flags |= COMMAND_DATA;
        }
        if let Some(bit) = self.bit {
            flags |= BIT_POINTER | (bit & 7);
        }
        [flags, high, low]
    }
}

/// Encoded sense data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenseBytes {
    bytes: [u8; SENSE_BYTES],
    len: usize,
}

impl SenseBytes {
    fn append(&mut self, part: &[u8]) {
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }
}

impl std::ops::Deref for SenseBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
