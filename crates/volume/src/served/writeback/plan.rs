//! From versions of blocks to operations of the lower storage: neighbours are written together.

use crate::{BLOCK_BYTES, SECTOR_BYTES, SectorMask};
use libc::iovec;
use std::ops::Range;

/// Most bytes of one write. Larger ones gain nothing on disks, and keep other requests waiting longer.
pub(super) const WRITE_BYTES_MAX: u64 = 1 << 20;

/// A version of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    pub(super) block: u64,
    pub(super) sectors: SectorMask,
    /// Its memory; `None`: it reads as zeroes.
    pub(super) data: Option<*const u8>,
}

/// One operation of the lower storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// First byte, in the lower storage.
    pub(super) offset: u64,
    /// Bytes.
    pub(super) len: u64,
    /// Which of the plan's buffers; none for zeroes.
    pub(super) buffers: Range<usize>,
    /// How often it has been tried.
    pub(super) attempts: u32,
}

impl Piece {
    pub(super) fn zeroes(&self) -> bool {
        self.buffers.is_empty()
    }
}

/// The operations of some versions.
pub(super) struct Plan {
    pub(super) pieces: Vec<Piece>,
    pub(super) buffers: Vec<iovec>,
    write_bytes_max: u64,
}

impl Plan {
    /// `versions` come in ascending order of their blocks; block 0 is at byte `data_offset`, and no write is longer than
    /// `write_bytes_max`, which is a block at least.
    pub(super) fn new(versions: impl Iterator<Item = Version>, data_offset: u64, write_bytes_max: u64) -> Plan {
        let mut plan = Plan { pieces: Vec::new(), buffers: Vec::new(), write_bytes_max };
        for version in versions {
            plan.add(version, data_offset);
        }
        plan
    }

    /// Bytes that are written.
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum()
    }

    fn add(&mut self, version: Version, data_offset: u64) {
        let start = data_offset.saturating_add(version.block.saturating_mul(BLOCK_BYTES as u64));
        let Some(data) = version.data else {
            for (first, count) in version.sectors.runs() {
                self.zero(start + (first * SECTOR_BYTES) as u64, (count * SECTOR_BYTES) as u64);
            }
            return;
        };
        // Parts of a block stay alone: O_DIRECT with large blocks rewrites what surrounds them, and a long write that does
        // not end where a block does would be copied as a whole for that.
        let whole = version.sectors.is_all();
        for (first, count) in version.sectors.runs() {
            let from = first * SECTOR_BYTES;
            let iov_base = data.wrapping_add(from).cast_mut().cast();
            let buffer = iovec { iov_base, iov_len: count * SECTOR_BYTES };
            self.write(start + from as u64, buffer, whole);
        }
    }

    fn write(&mut self, offset: u64, buffer: iovec, joins: bool) {
        let (len, at) = (buffer.iov_len as u64, self.buffers.len());
        self.buffers.push(buffer);
        if let Some(last) = self.pieces.last_mut()
            && joins
            && !last.zeroes()
            && last.offset + last.len == offset
            && last.len.is_multiple_of(BLOCK_BYTES as u64)
            && last.len + len <= self.write_bytes_max
        {
            last.len += len;
            last.buffers.end = at + 1;
            return;
        }
        self.pieces.push(Piece { offset, len, buffers: at..at + 1, attempts: 0 });
    }

    fn zero(&mut self, offset: u64, len: u64) {
        if let Some(last) = self.pieces.last_mut()
            && last.zeroes()
            && last.offset + last.len == offset
        {
            last.len += len;
            return;
        }
        let at = self.buffers.len();
        self.pieces.push(Piece { offset, len, buffers: at..at, attempts: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DATA_OFFSET: u64 = 3 << 20;

    /// What a plan would do, sector by sector: (sector of the lower storage, address or zeroes).
    fn effect(plan: &Plan) -> Vec<(u64, Option<usize>)> {
        let mut out = Vec::new();
        for piece in &plan.pieces {
            let buffers = &plan.buffers[piece.buffers.clone()];
            assert!(piece.zeroes() || buffers.iter().map(|buffer| buffer.iov_len as u64).sum::<u64>() == piece.len);
            let first = piece.offset / 512;
            if piece.zeroes() {
                out.extend((first..first + piece.len / 512).map(|sector| (sector, None)));
            }
            let addresses = buffers
                .iter()
                .flat_map(|buffer| (0..buffer.iov_len / 512).map(|sector| buffer.iov_base as usize + sector * 512));
            out.extend((first..).zip(addresses.map(Some)));
        }
        out
    }

    proptest! {
        #[test]
        fn every_sector_goes_where_it_belongs(
            blocks in proptest::collection::btree_map(0u64..600, (1u8.., any::<bool>(), any::<bool>()), 0..400),
            blocks_max in 1..=256u64,
        ) {
            let address = |block: u64| 0x10_0000 + block as usize * 4096;
            let version = |(block, (bits, whole, zeroes)): (&u64, &(u8, bool, bool))| Version {
                block: *block,
                sectors: SectorMask(if *whole { 0xff } else { *bits }),
                data: (!*zeroes).then(|| std::ptr::without_provenance(address(*block))),
            };
            let versions: Vec<_> = blocks.iter().map(version).collect();
            let plan = Plan::new(versions.iter().copied(), DATA_OFFSET, blocks_max * 4096);
            let expected: Vec<_> = versions.iter().flat_map(|version| {
                let first = DATA_OFFSET / 512 + version.block * 8;
                let data = version.data.map(|_| address(version.block));
                (0..8).filter(|sector| version.sectors.contains(*sector)).map(move |sector| {
                    (first + sector as u64, data.map(|at| at + sector * 512))
                })
            }).collect();
            prop_assert_eq!(effect(&plan), expected);
            prop_assert_eq!(plan.bytes() % 512, 0);
            for piece in &plan.pieces {
                prop_assert!(piece.zeroes() || piece.len <= blocks_max * 4096);
                // What is longer than a part of a block is whole blocks.
                prop_assert!(piece.zeroes() || piece.len < 4096 || piece.offset % 4096 == 0 && piece.len % 4096 == 0);
            }
        }
    }

    #[test]
    fn neighbours_are_written_together() {
        let memory = std::ptr::without_provenance::<u8>(1 << 20);
        let whole = |block| Version { block, sectors: SectorMask::ALL, data: Some(memory) };
        let plan = Plan::new((10..10 + 300).map(whole), 0, WRITE_BYTES_MAX);
        let lengths: Vec<_> = plan.pieces.iter().map(|piece| piece.len / 4096).collect();
        assert_eq!(lengths, [256, 44]);
        let zero = |block| Version { block, sectors: SectorMask::ALL, data: None };
        assert_eq!(Plan::new((0..5000).map(zero), 0, WRITE_BYTES_MAX).pieces.len(), 1);
        let apart = [whole(1), zero(2), whole(3), whole(5)];
        assert_eq!(Plan::new(apart.into_iter(), 0, WRITE_BYTES_MAX).pieces.len(), 4);
    }
}
