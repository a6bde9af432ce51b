//! READ CAPACITY and GET LBA STATUS.

use std::iter::Peekable;

use super::put_length;
use crate::scsi::sense::Sense;
use crate::scsi::unit::Unit;

/// Bytes of READ CAPACITY (16) parameter data.
const LONG_BYTES: usize = 32;

/// The last block. A unit without blocks has none, and says that it is not ready.
fn last_block(unit: &Unit) -> Result<u64, Sense> {
    unit.blocks().checked_sub(1).ok_or(Sense::NO_BLOCKS)
}

/// SBC-4, "READ CAPACITY (10) parameter data": of a unit with more blocks than the field has, it is all ones.
pub(super) fn short(unit: &Unit, out: &mut Vec<u8>) -> Result<(), Sense> {
    let last = u32::try_from(last_block(unit)?).unwrap_or(u32::MAX);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&unit.block_bytes().to_be_bytes());
    Ok(())
}

/// SBC-4, "READ CAPACITY (16) parameter data".
pub(super) fn long(unit: &Unit, out: &mut Vec<u8>) -> Result<(), Sense> {
    /// Blocks can be unmapped, and then read as zeroes.
    const LBPME: u8 = 0x80;
    const LBPRZ: u8 = 0x40;
    let start = out.len();
    out.extend_from_slice(&last_block(unit)?.to_be_bytes());
    out.extend_from_slice(&unit.block_bytes().to_be_bytes());
    let provisioning = match unit.limits().unmap {
        None => 0,
        Some(unmap) if unmap.zeroes => LBPME | LBPRZ,
        Some(_) => LBPME,
    };
    // No protection information; the first block is aligned.
    out.extend_from_slice(&[0, unit.settings().physical_block_exp, provisioning]);
    out.resize(start + LONG_BYTES, 0);
    Ok(())
}

/// A part of a unit that is mapped or not, as the storage has it: no multiple of blocks, perhaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of bytes, behind the extent before.
    pub len: u64,
    /// It has space of its own.
    pub mapped: bool,
}

/// Bytes before the descriptors.
const STATUS_HEADER_BYTES: usize = 8;
/// Bytes of a descriptor.
const STATUS_DESCRIPTOR_BYTES: usize = 16;
/// PROVISIONING STATUS.
const MAPPED: u8 = 0;
const DEALLOCATED: u8 = 1;

/// Appends the answer to GET LBA STATUS, at most `allocation` bytes of it: what the storage says from `offset`, a multiple of the
/// block size, on (SBC-4, "GET LBA STATUS parameter data"). A block that is mapped in part is mapped. `extents` may end anywhere
/// behind the first block, and is read only as far as there is room for.
pub fn lba_status_out(
    unit: &Unit,
    offset: u64,
    extents: impl IntoIterator<Item = Extent>,
    allocation: u32,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    let room = (allocation as usize).saturating_sub(STATUS_HEADER_BYTES) / STATUS_DESCRIPTOR_BYTES;
    out.extend_from_slice(&[0; STATUS_HEADER_BYTES]);
    // One without bytes says nothing of any block.
    let runs = Runs::new(unit, offset, extents.into_iter().filter(|extent| extent.len > 0));
    // One at least: the length says what an initiator without room for it misses.
    for run in runs.take(room.max(1)) {
        out.extend_from_slice(&run.block.to_be_bytes());
        out.extend_from_slice(&run.blocks.to_be_bytes());
        out.extend_from_slice(&[if run.mapped { MAPPED } else { DEALLOCATED }, 0, 0, 0]);
    }
    put_length(out, start);
    out.truncate(start.saturating_add(allocation as usize));
}

/// Blocks of one kind.
#[derive(Clone, Copy)]
struct Run {
    block: u64,
    blocks: u32,
    mapped: bool,
}

/// Extents in whole blocks, neighbours of one kind together.
struct Runs<I: Iterator> {
    extents: Peekable<I>,
    block_bytes: u64,
    /// Capacity, and where the next extent begins, in bytes.
    end: u64,
    at: u64,
    /// The next block to tell of.
    block: u64,
    /// Where blocks of one kind end that were not all told of.
    run: Option<(u64, bool)>,
}

impl<I: Iterator<Item = Extent>> Runs<I> {
    fn new(unit: &Unit, offset: u64, extents: I) -> Runs<I> {
        let block_bytes = u64::from(unit.block_bytes());
        let end = unit.settings().capacity_bytes;
        Runs { extents: extents.peekable(), block_bytes, end, at: offset, block: offset / block_bytes, run: None }
    }

    /// Extents of one kind up to the next one of the other: where they end, in blocks.
    fn pull(&mut self) -> Option<(u64, bool)> {
        let mapped = self.extents.peek()?.mapped;
        while self.at < self.end
            && let Some(extent) = self.extents.next_if(|extent| extent.mapped == mapped)
        {
            self.at = self.at.saturating_add(extent.len).min(self.end);
        }
        Some((if mapped { self.at.div_ceil(self.block_bytes) } else { self.at / self.block_bytes }, mapped))
    }
}

impl<I: Iterator<Item = Extent>> Iterator for Runs<I> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        loop {
            if let Some((end, mapped)) = self.run
                && let Some(left) = end.checked_sub(self.block).filter(|left| *left > 0)
            {
                let blocks = u32::try_from(left).unwrap_or(u32::MAX);
                let run = Run { block: self.block, blocks, mapped };
                self.block += u64::from(blocks);
                return Some(run);
            }
            if self.at >= self.end {
                return None;
            }
            self.run = Some(self.pull()?);
        }
    }
}
