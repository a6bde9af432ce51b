//! UNMAP's parameter list and GET LBA STATUS.

use super::units::{unit, unit_with};
use device::scsi::{Extent, Sense, Unit, Unmap, Unmaps, lba_status_out};
use proptest::prelude::*;

fn list(descriptors: &[(u64, u32)]) -> Vec<u8> {
    let bytes = (descriptors.len() * 16) as u16;
    let mut out = [(bytes + 6).to_be_bytes(), bytes.to_be_bytes(), [0; 2], [0; 2]].concat();
    for (block, blocks) in descriptors {
        out.extend(block.to_be_bytes());
        out.extend(blocks.to_be_bytes());
        out.extend([0; 4]);
    }
    out
}

fn decode(list: &[u8]) -> Result<Vec<Unmap>, Sense> {
    Unmaps::decode(list, list.len() as u16, &unit()).map(|unmaps| unmaps.iter().collect())
}

#[test]
fn ranges_are_read() {
    let expected = vec![Unmap { offset: 512, len: 1024 }, Unmap { offset: 999 * 512, len: 512 }];
    assert_eq!(decode(&list(&[(1, 2), (500, 0), (999, 1)])), Ok(expected));
    assert_eq!(decode(&list(&[])), Ok(vec![]));
    assert_eq!(decode(&[]), Ok(vec![]));
}

#[test]
fn what_the_unit_does_not_take_is_refused() {
    assert_eq!(decode(&list(&[(1, 2)])[..7]), Err(Sense::PARAMETER_LIST_LENGTH));
    assert_eq!(decode(&list(&[(0, 1); 4])), Err(Sense::list(2)));
    assert_eq!(decode(&list(&[(0, 100), (0, 100)])).map(|ranges| ranges.len()), Ok(2));
    assert_eq!(decode(&list(&[(0, 100), (0, 101)])), Err(Sense::list(8 + 16 + 8)));
    for (block, blocks) in [(1000, 1), (999, 2), (u64::MAX, 1), (0, u32::MAX), (1001, 0)] {
        assert_eq!(decode(&list(&[(block, blocks)])), Err(Sense::LBA_OUT_OF_RANGE));
    }
    let thick = unit_with(|s| s.limits.unmap = None);
    let list = list(&[(0, 1)]);
    assert_eq!(Unmaps::decode(&list, list.len() as u16, &thick), Err(Sense::INVALID_OPCODE));
}

#[test]
fn a_descriptor_that_is_not_whole_does_not_count() {
    let whole = list(&[(1, 2), (3, 4)]);
    assert_eq!(decode(&whole[..whole.len() - 1]), Ok(vec![Unmap { offset: 512, len: 1024 }]));
    let mut short = whole;
    short[3] -= 1;
    assert_eq!(decode(&short), Ok(vec![Unmap { offset: 512, len: 1024 }]));
    // The caller's copy is shorter than the list.
    assert_eq!(Unmaps::decode(&list(&[(1, 2)])[..23], 24, &unit()), Err(Sense::PARAMETER_LIST_LENGTH));
}

/// What the descriptors of an answer say, block by block from `first` on: mapped or not.
fn blocks_of(answer: &[u8], first: u64) -> Vec<bool> {
    assert_eq!(answer[..4], (answer.len() as u32 - 4).to_be_bytes());
    assert_eq!(answer[4..8], [0; 4]);
    let mut blocks = Vec::new();
    for descriptor in answer[8..].chunks(16) {
        let block = u64::from_be_bytes(descriptor[..8].try_into().unwrap());
        let count = u32::from_be_bytes(descriptor[8..12].try_into().unwrap());
        assert_eq!(block, first + blocks.len() as u64, "no gap");
        assert!(count > 0 && descriptor[12] < 2 && descriptor[13..] == [0; 3]);
        blocks.extend(std::iter::repeat_n(descriptor[12] == 0, count as usize));
    }
    blocks
}

fn status(unit: &Unit, offset: u64, extents: &[(u64, bool)], allocation: u32) -> Vec<u8> {
    let mut out = vec![1];
    let extents = extents.iter().map(|&(len, mapped)| Extent { len, mapped });
    lba_status_out(unit, offset, extents, allocation, &mut out);
    out.split_off(1)
}

#[test]
fn extents_are_told_in_blocks() {
    let bytes = status(&unit(), 2 * 512, &[(512, true), (1024, true), (512, false), (1 << 40, true)], 4096);
    let expected = [
        [0, 0, 0, 52, 0, 0, 0, 0].to_vec(),
        vec![0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0],
        vec![0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1, 1, 0, 0, 0],
        vec![0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 3, 0xe2, 0, 0, 0, 0],
    ];
    assert_eq!(bytes, expected.concat());
    // Room for one and a half; for less than one.
    assert_eq!(status(&unit(), 0, &[(512, true), (512, false)], 32).len(), 24);
    assert_eq!(status(&unit(), 0, &[(512, true), (512, false)], 10), [0, 0, 0, 20, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_run_longer_than_its_field_is_told_in_parts() {
    let large = unit_with(|s| s.capacity_bytes = 512 << 33);
    let bytes = status(&large, 0, &[(u64::MAX, false)], 4096);
    let counts: Vec<_> = bytes[8..].chunks(16).map(|d| u32::from_be_bytes(d[8..12].try_into().unwrap())).collect();
    assert_eq!(counts, [u32::MAX, u32::MAX, 2]);
}

#[test]
fn an_extent_without_bytes_says_nothing() {
    let unit = unit_with(|s| s.capacity_bytes = 40 * 512);
    let of = |extents: &[(u64, bool)]| status(&unit, 0, extents, 4096);
    assert_eq!(of(&[(1, false), (0, true)]), of(&[(1, false)]));
}

proptest! {
    #[test]
    fn a_block_that_is_mapped_in_part_is_mapped(first in 0..20_u64, extents in proptest::collection::vec((0..3000_u64, any::<bool>()), 1..12)) {
        let unit = unit_with(|s| s.capacity_bytes = 40 * 512);
        let answer = status(&unit, first * 512, &extents, 4096);
        // Byte by byte: what is known, and mapped.
        let known: Vec<bool> = extents.iter().flat_map(|&(len, mapped)| std::iter::repeat_n(mapped, len as usize)).take((40 - first) as usize * 512).collect();
        let told = blocks_of(&answer, first);
        for (index, block) in known.chunks(512).enumerate() {
            let mapped = block.iter().any(|byte| *byte);
            match told.get(index) {
                Some(told) => prop_assert_eq!(*told, mapped, "block {}", index),
                // The end may be left out where it is not known whether the block is mapped.
                None => prop_assert!(block.len() < 512 && !mapped),
            }
        }
        prop_assert!(told.len() <= known.len().div_ceil(512));
    }

    #[test]
    fn unmaps_lie_inside_the_unit(descriptors in proptest::collection::vec((prop_oneof![0..1100_u64, any::<u64>()], 0..150_u32), 0..5)) {
        let bytes = list(&descriptors);
        match decode(&bytes) {
            Ok(ranges) => {
                let expected = descriptors.iter().filter(|(_, blocks)| *blocks > 0);
                prop_assert!(ranges.iter().map(|range| (range.offset / 512, (range.len / 512) as u32)).eq(expected.copied()));
                prop_assert!(ranges.iter().all(|range| range.offset + range.len <= 1000 * 512));
            }
            Err(_) => {
                let beyond = descriptors.iter().any(|(block, blocks)| block.saturating_add(u64::from(*blocks)) > 1000);
                let blocks: u64 = descriptors.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
                prop_assert!(beyond || blocks > 200 || descriptors.len() > 3);
            }
        }
    }
}
