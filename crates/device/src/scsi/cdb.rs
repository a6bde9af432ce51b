//! The fields of a CDB.

use super::sense::Sense;
use super::unit::Unit;
use crate::wire::{be16, be32, be64};

/// Bytes of the longest CDB of our commands.
const BYTES: usize = 16;

/// A CDB: what lies behind it is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cdb([u8; BYTES]);

impl Cdb {
    /// The first `len` bytes; `None` when there are fewer, or when that is longer than our commands are.
    #[inline]
    pub(super) fn new(area: &[u8], len: usize) -> Option<Cdb> {
        // Every request comes here: areas have room for the longest, of which what lies behind the CDB is cut off.
        if let (Some(bytes), 1..=BYTES) = (area.first_chunk::<BYTES>(), len) {
            let bits = u128::from_le_bytes(*bytes) & u128::MAX >> (8 * (BYTES - len));
            return Some(Cdb(bits.to_le_bytes()));
        }
        let mut bytes = [0; BYTES];
        bytes.get_mut(..len)?.copy_from_slice(area.get(..len)?);
        Some(Cdb(bytes))
    }

    pub(super) fn byte<const AT: usize>(&self) -> u8 {
        const { assert!(AT < BYTES) };
        self.0[AT]
    }

    pub(super) fn bit<const AT: usize, const BIT: u8>(&self) -> bool {
        const { assert!(BIT < 8) };
        self.byte::<AT>() & 1 << BIT != 0
    }

    pub(super) fn u16<const AT: usize>(&self) -> u16 {
        be16::<AT, BYTES>(&self.0)
    }

    pub(super) fn u32<const AT: usize>(&self) -> u32 {
        be32::<AT, BYTES>(&self.0)
    }

    pub(super) fn u64<const AT: usize>(&self) -> u64 {
        be64::<AT, BYTES>(&self.0)
    }

    /// All bits are ones that the command has, by its [mask].
    ///
    /// # Errors
    /// INVALID FIELD IN CDB, with the first byte and the highest bit in it that the command does not have (SPC-5, "Reserved fields
    /// in CDBs" lets us; an initiator that sets a bit expects something of it).
    #[inline]
    pub(super) fn only(&self, mask: u128) -> Result<(), Sense> {
        let unknown = u128::from_le_bytes(self.0) & !mask;
        if unknown == 0 {
            return Ok(());
        }
        let at = unknown.trailing_zeros() / 8;
        let byte = unknown.to_le_bytes()[at as usize];
        // A byte has 8 bits, and a CDB 16 bytes.
        Err(Sense::cdb_bit(at as u16, byte.ilog2() as u8))
    }
}

/// The bits that a CDB may have, byte 0 lowest, by its usage data: any operation code, which is not a mask there, and nothing behind its
/// end.
pub(super) const fn mask(usage: &[u8]) -> u128 {
    let (mut mask, mut at) = (u8::MAX as u128, 1);
    while at < usage.len() {
        mask |= (usage[at] as u128) << (8 * at);
        at += 1;
    }
    mask
}

/// Offset and length in bytes of `blocks` blocks from `block` on, which lie inside the unit.
pub(super) fn extent(unit: &Unit, block: u64, blocks: u64) -> Result<(u64, u64), Sense> {
    match block.checked_add(blocks) {
        Some(end) if end <= unit.blocks() => {
            let bytes = u64::from(unit.block_bytes());
            // The unit has fewer than 2^64 bytes.
            Ok((block * bytes, blocks * bytes))
        }
        _ => Err(Sense::LBA_OUT_OF_RANGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Against bytes copied, and looked at one by one.
        #[test]
        fn a_cdb_has_its_bytes_and_no_bits_but_its_own(area in vec(any::<u8>(), 0..40), len in 0..20_usize, usage in vec(any::<u8>(), 1..=16)) {
            let cdb = Cdb::new(&area, len);
            let expected = area.get(..len).filter(|_| len <= BYTES).map(|cdb| {
                let mut bytes = [0; BYTES];
                bytes[..len].copy_from_slice(cdb);
                Cdb(bytes)
            });
            prop_assert_eq!(cdb, expected);
            // A CDB is as long as its usage data.
            let Some(cdb) = Cdb::new(&area, usage.len()) else { return Ok(()) };
            let unknown = cdb.0.iter().zip(&usage).map(|(byte, mask)| byte & !mask).enumerate().skip(1);
            let first = unknown.into_iter().find(|(_, unknown)| *unknown != 0);
            let expected = first.map(|(at, unknown)| Sense::cdb_bit(at as u16, unknown.ilog2() as u8));
            prop_assert_eq!(cdb.only(mask(&usage)).err(), expected);
        }
    }
}
