//! Commands and their parameter lists (SPC-5, SBC-4), encoded here and not taken from the server's rooms.

use crate::frontend::request::Question;

/// A command; shorter ones are filled up with zeroes.
pub(super) type Cdb = [u8; 16];

/// Forms of commands that read and write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Of 16 bytes instead of 10.
    pub(super) long: bool,
    /// Force unit access.
    pub(super) fua: bool,
}

/// Operation codes.
mod opcode {
    pub(super) const TEST_UNIT_READY: u8 = 0x00;
    pub(super) const INQUIRY: u8 = 0x12;
    pub(super) const MODE_SENSE_6: u8 = 0x1a;
    pub(super) const READ_10: u8 = 0x28;
    pub(super) const WRITE_10: u8 = 0x2a;
    pub(super) const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    pub(super) const UNMAP: u8 = 0x42;
    pub(super) const PERSISTENT_RESERVE_IN: u8 = 0x5e;
    pub(super) const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
    pub(super) const READ_16: u8 = 0x88;
    pub(super) const COMPARE_AND_WRITE: u8 = 0x89;
    pub(super) const WRITE_16: u8 = 0x8a;
    pub(super) const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    pub(super) const WRITE_SAME_16: u8 = 0x93;
    pub(super) const SERVICE_ACTION_IN_16: u8 = 0x9e;
}

/// Service actions.
const READ_CAPACITY_16: u8 = 0x10;
const READ_KEYS: u8 = 0;
const READ_RESERVATION: u8 = 1;
pub(super) const REGISTER: u8 = 0;
pub(super) const RESERVE: u8 = 1;

/// Pages of INQUIRY and of MODE SENSE.
pub(super) const SERIAL: u8 = 0x80;
pub(super) const BLOCK_LIMITS: u8 = 0xb0;
pub(super) const PROVISIONING: u8 = 0xb2;
const CACHING: u8 = 0x08;

/// Bits of a command's second byte.
const FUA: u8 = 0x08;
const UNMAP: u8 = 0x08;
const EVPD: u8 = 0x01;
const NO_BLOCK_DESCRIPTORS: u8 = 0x08;

/// Parameter lists, in bytes: UNMAP with one range, PERSISTENT RESERVE OUT.
pub(super) const UNMAP_BYTES: usize = 24;
pub(super) const RESERVE_BYTES: usize = 24;
/// Activate persist through power loss.
const APTPL: u8 = 0x01;

fn ranged(opcode: [u8; 2], flags: u8, long: bool, at: u64, count: u32) -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (opcode[usize::from(long)], flags);
    if long {
        cdb[2..10].copy_from_slice(&at.to_be_bytes());
        cdb[10..14].copy_from_slice(&count.to_be_bytes());
    } else {
        // The disk is small.
        cdb[2..6].copy_from_slice(&(at as u32).to_be_bytes());
        cdb[7..9].copy_from_slice(&(count as u16).to_be_bytes());
    }
    cdb
}

pub(super) fn read(Form { long, fua }: Form, at: u64, count: u32) -> Cdb {
    ranged([opcode::READ_10, opcode::READ_16], if fua { FUA } else { 0 }, long, at, count)
}

pub(super) fn write(Form { long, fua }: Form, at: u64, count: u32) -> Cdb {
    ranged([opcode::WRITE_10, opcode::WRITE_16], if fua { FUA } else { 0 }, long, at, count)
}

/// WRITE SAME (16) of a block of zeroes, which `unmap` says may be given back for that.
pub(super) fn write_zeroes(unmap: bool, at: u64, count: u32) -> Cdb {
    ranged([0, opcode::WRITE_SAME_16], if unmap { UNMAP } else { 0 }, true, at, count)
}

/// Up to 255 blocks.
pub(super) fn compare_and_write(fua: bool, at: u64, count: u32) -> Cdb {
    let mut cdb = ranged([0, opcode::COMPARE_AND_WRITE], if fua { FUA } else { 0 }, true, at, 0);
    cdb[13] = count as u8;
    cdb
}

/// Of the whole disk.
pub(super) fn synchronize_cache(long: bool) -> Cdb {
    ranged([opcode::SYNCHRONIZE_CACHE_10, opcode::SYNCHRONIZE_CACHE_16], 0, long, 0, 0)
}

pub(super) fn unmap() -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[8]) = (opcode::UNMAP, UNMAP_BYTES as u8);
    cdb
}

/// The parameter list of [`unmap`].
pub(super) fn unmap_list(at: u64, count: u32) -> [u8; UNMAP_BYTES] {
    let mut list = [0; UNMAP_BYTES];
    // Bytes behind this field, and those of range descriptors.
    (list[1], list[3]) = (UNMAP_BYTES as u8 - 2, UNMAP_BYTES as u8 - 8);
    list[8..16].copy_from_slice(&at.to_be_bytes());
    list[16..20].copy_from_slice(&count.to_be_bytes());
    list
}

/// PERSISTENT RESERVE OUT, for a reservation of this type.
pub(super) fn reserve_out(action: u8, kind: u8) -> Cdb {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2], cdb[8]) = (opcode::PERSISTENT_RESERVE_OUT, action, kind, RESERVE_BYTES as u8);
    cdb
}

/// Its parameter list: the key that is registered and the one that is to be, for good.
pub(super) fn reserve_list(old: u64, new: u64) -> [u8; RESERVE_BYTES] {
    let mut list = [0; RESERVE_BYTES];
    list[..8].copy_from_slice(&old.to_be_bytes());
    list[8..16].copy_from_slice(&new.to_be_bytes());
    list[20] = APTPL;
    list
}

/// A page of INQUIRY.
pub(super) fn inquiry(page: u8, room: u8) -> Cdb {
    let mut cdb = [0; 16];
    cdb[..5].copy_from_slice(&[opcode::INQUIRY, EVPD, page, 0, room]);
    cdb
}

/// The caching page.
pub(super) fn caching(room: u8) -> Cdb {
    let mut cdb = [0; 16];
    cdb[..5].copy_from_slice(&[opcode::MODE_SENSE_6, NO_BLOCK_DESCRIPTORS, CACHING, 0, room]);
    cdb
}

/// What a question is.
pub(super) fn ask(question: Question, room: u8) -> Cdb {
    let mut cdb = [0; 16];
    match question {
        Question::Serial => return inquiry(SERIAL, room),
        Question::Ready | Question::OtherReady => cdb[0] = opcode::TEST_UNIT_READY,
        Question::Capacity => (cdb[0], cdb[1], cdb[13]) = (opcode::SERVICE_ACTION_IN_16, READ_CAPACITY_16, room),
        Question::Keys | Question::OtherKeys => {
            (cdb[0], cdb[1], cdb[8]) = (opcode::PERSISTENT_RESERVE_IN, READ_KEYS, room);
        }
        Question::Reservation => {
            (cdb[0], cdb[1], cdb[8]) = (opcode::PERSISTENT_RESERVE_IN, READ_RESERVATION, room);
        }
    }
    cdb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_stand_as_the_standards_have_them() {
        let short = Form { long: false, fua: true };
        assert_eq!(read(short, 0x0102_0304, 0x0506)[..10], [0x28, 8, 1, 2, 3, 4, 0, 5, 6, 0]);
        let long = Form { long: true, fua: false };
        assert_eq!(write(long, 0x0102_0304, 0x0506), [0x8a, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 5, 6, 0, 0]);
        assert_eq!(compare_and_write(true, 1, 7), [0x89, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0]);
        assert_eq!(write_zeroes(true, 1, 2), [0x93, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0]);
        assert_eq!(synchronize_cache(false)[..10], [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(unmap()[..10], [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]);
        assert_eq!(unmap_list(5, 6), [0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 0]);
        assert_eq!(reserve_out(RESERVE, 3)[..10], [0x5f, 1, 3, 0, 0, 0, 0, 0, 24, 0]);
        assert_eq!(reserve_list(1, 2)[7..16], [1, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(ask(Question::Capacity, 64)[..14], [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64]);
        assert_eq!(ask(Question::Reservation, 64)[..10], [0x5e, 1, 0, 0, 0, 0, 0, 0, 64, 0]);
        assert_eq!(caching(64)[..6], [0x1a, 8, 8, 0, 64, 0]);
    }
}
