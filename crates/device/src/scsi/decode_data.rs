//! CDBs of commands on the medium (SBC-4, "Commands for direct access block devices").

use super::cdb::{Cdb, extent};
use super::command::{Command, Compare};
use super::sense::Sense;
use super::unit::Unit;

/// A block and a number of blocks, and where the number stands.
#[derive(Clone, Copy)]
struct Blocks {
    block: u64,
    blocks: u64,
    /// Byte of the CDB that a number which is too large is blamed on.
    count_at: u16,
}

impl Blocks {
    /// The address has 21 bits, and no blocks are 256 (SBC-4, "READ (6) command").
    fn of_6(cdb: &Cdb) -> Blocks {
        let blocks = match cdb.byte::<4>() {
            0 => 256,
            blocks => u64::from(blocks),
        };
        Blocks { block: u64::from(cdb.u32::<0>() & 0x001f_ffff), blocks, count_at: 4 }
    }

    fn of_10(cdb: &Cdb) -> Blocks {
        Blocks { block: u64::from(cdb.u32::<2>()), blocks: u64::from(cdb.u16::<7>()), count_at: 7 }
    }

    fn of_12(cdb: &Cdb) -> Blocks {
        Blocks { block: u64::from(cdb.u32::<2>()), blocks: u64::from(cdb.u32::<6>()), count_at: 6 }
    }

    fn of_16(cdb: &Cdb) -> Blocks {
        Blocks { block: cdb.u64::<2>(), blocks: u64::from(cdb.u32::<10>()), count_at: 10 }
    }

    /// Offset and length in bytes.
    fn extent(self, unit: &Unit) -> Result<(u64, u64), Sense> {
        extent(unit, self.block, self.blocks)
    }

    /// No more than MAXIMUM TRANSFER LENGTH.
    fn transfer(self, unit: &Unit) -> Result<(u64, u64), Sense> {
        match u64::from(unit.limits().transfer_blocks_max) {
            max if max > 0 && self.blocks > max => Err(Sense::cdb(self.count_at)),
            _ => self.extent(unit),
        }
    }
}

fn writable(unit: &Unit) -> Result<(), Sense> {
    if unit.settings().read_only { Err(Sense::WRITE_PROTECTED) } else { Ok(()) }
}

fn fua(cdb: &Cdb) -> bool {
    cdb.bit::<1, 3>()
}

fn read(blocks: Blocks, fua: bool, unit: &Unit) -> Result<Command, Sense> {
    let (offset, len) = blocks.transfer(unit)?;
    Ok(Command::Read { offset, len, fua })
}

pub(super) fn read_6(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    read(Blocks::of_6(cdb), false, unit)
}

pub(super) fn read_10(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    read(Blocks::of_10(cdb), fua(cdb), unit)
}

pub(super) fn read_12(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    read(Blocks::of_12(cdb), fua(cdb), unit)
}

pub(super) fn read_16(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    read(Blocks::of_16(cdb), fua(cdb), unit)
}

fn write(blocks: Blocks, fua: bool, unit: &Unit) -> Result<Command, Sense> {
    writable(unit)?;
    let (offset, len) = blocks.transfer(unit)?;
    Ok(Command::Write { offset, len, fua })
}

pub(super) fn write_6(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    write(Blocks::of_6(cdb), false, unit)
}

pub(super) fn write_10(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    write(Blocks::of_10(cdb), fua(cdb), unit)
}

pub(super) fn write_12(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    write(Blocks::of_12(cdb), fua(cdb), unit)
}

pub(super) fn write_16(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    write(Blocks::of_16(cdb), fua(cdb), unit)
}

/// BYTCHK is one bit here: the other values of the field are reserved.
fn write_verify(cdb: &Cdb, blocks: Blocks, unit: &Unit) -> Result<Command, Sense> {
    writable(unit)?;
    let (offset, len) = blocks.transfer(unit)?;
    Ok(Command::WriteAndVerify { offset, len, compare: cdb.bit::<1, 1>() })
}

pub(super) fn write_verify_10(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    write_verify(cdb, Blocks::of_10(cdb), unit)
}

pub(super) fn write_verify_12(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    write_verify(cdb, Blocks::of_12(cdb), unit)
}

pub(super) fn write_verify_16(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    write_verify(cdb, Blocks::of_16(cdb), unit)
}

fn verify(cdb: &Cdb, blocks: Blocks, unit: &Unit) -> Result<Command, Sense> {
    let compare = match cdb.byte::<1>() >> 1 & 3 {
        0 => Compare::Nothing,
        1 => Compare::Data,
        3 => Compare::Block,
        _ => return Err(Sense::cdb_bit(1, 2)),
    };
    let (offset, len) = blocks.transfer(unit)?;
    Ok(Command::Verify { offset, len, compare })
}

pub(super) fn verify_10(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    verify(cdb, Blocks::of_10(cdb), unit)
}

pub(super) fn verify_12(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    verify(cdb, Blocks::of_12(cdb), unit)
}

pub(super) fn verify_16(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    verify(cdb, Blocks::of_16(cdb), unit)
}

/// No blocks are all from the first one on.
fn flush(cdb: &Cdb, blocks: Blocks, unit: &Unit) -> Result<Command, Sense> {
    let blocks = match blocks.blocks {
        0 => Blocks { blocks: unit.blocks().saturating_sub(blocks.block), ..blocks },
        _ => blocks,
    };
    let (offset, len) = blocks.extent(unit)?;
    Ok(Command::Flush { offset, len, immediate: cdb.bit::<1, 1>() })
}

pub(super) fn flush_10(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    flush(cdb, Blocks::of_10(cdb), unit)
}

pub(super) fn flush_16(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    flush(cdb, Blocks::of_16(cdb), unit)
}

/// No blocks are none (WSNZ is one), and ANCHOR is not a bit of ours (ANC_SUP is zero).
fn write_same(cdb: &Cdb, blocks: Blocks, data: bool, unit: &Unit) -> Result<Command, Sense> {
    let unmap = cdb.bit::<1, 3>();
    if unmap && unit.limits().unmap.is_none() {
        return Err(Sense::cdb_bit(1, 3));
    }
    writable(unit)?;
    if blocks.blocks == 0 || blocks.blocks > u64::from(unit.limits().write_same_blocks_max) {
        return Err(Sense::cdb(blocks.count_at));
    }
    let (offset, len) = blocks.extent(unit)?;
    Ok(Command::WriteSame { offset, len, unmap, data })
}

pub(super) fn write_same_10(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    write_same(cdb, Blocks::of_10(cdb), true, unit)
}

pub(super) fn write_same_16(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    write_same(cdb, Blocks::of_16(cdb), !cdb.bit::<1, 0>(), unit)
}

pub(super) fn compare_and_write(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    writable(unit)?;
    let blocks = cdb.byte::<13>();
    if blocks > unit.limits().compare_and_write_blocks_max {
        return Err(Sense::cdb(13));
    }
    let (offset, len) = extent(unit, cdb.u64::<2>(), u64::from(blocks))?;
    Ok(Command::CompareAndWrite { offset, len, fua: fua(cdb) })
}

pub(super) fn unmap(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    writable(unit)?;
    Ok(Command::Unmap { list_bytes: cdb.u16::<7>() })
}

pub(super) fn lba_status(cdb: &Cdb, unit: &Unit) -> Result<Command, Sense> {
    let (offset, _) = extent(unit, cdb.u64::<2>(), 1)?;
    Ok(Command::LbaStatus { offset, allocation: cdb.u32::<10>() })
}
