//! The parameter list of UNMAP (SBC-4, "UNMAP command").

use super::cdb::extent;
use super::sense::Sense;
use super::spec::data::{EXTENT_BYTES, UNMAP_HEADER_BYTES};
use super::unit::{Unit, UnmapLimits};
use crate::wire::{be16, be32, be64};

/// Longest parameter list that can be of use, in bytes: of a longer one the caller copies this much out of guest memory.
pub const UNMAP_LIST_BYTES_MAX: usize = UNMAP_HEADER_BYTES + UnmapLimits::DESCRIPTORS_MAX as usize * EXTENT_BYTES;

/// A range that no longer matters; it lies inside the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmap {
    /// First byte.
    pub offset: u64,
    /// Number of bytes, never 0.
    pub len: u64,
}

/// The checked ranges of one UNMAP, read from the caller's copy of the parameter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmaps<'a> {
    descriptors: &'a [[u8; EXTENT_BYTES]],
    block_bytes: u32,
}

impl<'a> Unmaps<'a> {
    /// Checks a parameter list of `list_bytes` bytes ([`Command::Unmap`](super::Command::Unmap)); `list` is the caller's copy of
    /// it, or of its first [`UNMAP_LIST_BYTES_MAX`]. A descriptor that is not whole does not count, and an empty list has none.
    ///
    /// # Errors
    /// The sense data of a CHECK CONDITION: no header, more descriptors or blocks than the unit takes at once, or blocks beyond its
    /// end. Nothing is unmapped then.
    pub fn decode(list: &'a [u8], list_bytes: u16, unit: &Unit) -> Result<Unmaps<'a>, Sense> {
        let block_bytes = unit.block_bytes();
        let limits = unit.limits().unmap.ok_or(Sense::INVALID_OPCODE)?;
        if list_bytes == 0 {
            return Ok(Unmaps { descriptors: &[], block_bytes });
        }
        let (header, rest) = list.split_first_chunk::<UNMAP_HEADER_BYTES>().ok_or(Sense::PARAMETER_LIST_LENGTH)?;
        let behind = usize::from(list_bytes).saturating_sub(UNMAP_HEADER_BYTES);
        let count = usize::from(be16::<2, _>(header)).min(behind) / EXTENT_BYTES;
        if count > limits.descriptors_max as usize {
            return Err(Sense::list(2));
        }
        let descriptors = rest.get(..count * EXTENT_BYTES).ok_or(Sense::PARAMETER_LIST_LENGTH)?.as_chunks().0;
        let mut blocks = 0_u64;
        for (index, descriptor) in descriptors.iter().enumerate() {
            let (first, count) = raw(descriptor);
            extent(unit, first, u64::from(count))?;
            blocks += u64::from(count);
            if blocks > u64::from(limits.blocks_max) {
                // At most 255 descriptors.
                return Err(Sense::list((UNMAP_HEADER_BYTES + index * EXTENT_BYTES + 8) as u16));
            }
        }
        Ok(Unmaps { descriptors, block_bytes })
    }

    /// The ranges, in the list's order; those without blocks are left out.
    pub fn iter(&self) -> impl Iterator<Item = Unmap> + 'a {
        let block_bytes = u64::from(self.block_bytes);
        self.descriptors
            .iter()
            .map(raw)
            .filter(|(_, blocks)| *blocks > 0)
            .map(move |(block, blocks)| Unmap { offset: block * block_bytes, len: u64::from(blocks) * block_bytes })
    }
}

/// First block and number of blocks, as the guest wrote them.
fn raw(descriptor: &[u8; EXTENT_BYTES]) -> (u64, u32) {
    (be64::<0, _>(descriptor), be32::<8, _>(descriptor))
}
