//! Memory files: what is found in them, and what is not believed.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pwrite;

use super::super::{Cache, CacheOptions, Pins, Round, create, peek, recover};
use crate::{BLOCK_BYTES, SectorMask};

const VOLUME: [u8; 16] = *b"of these sixteen";
const CAPACITY_BYTES: u64 = 1 << 20;
const OPTIONS: CacheOptions = CacheOptions { capacity_bytes: CAPACITY_BYTES, data_slots: 4, zero_slots: 3 };

fn file() -> OwnedFd {
    memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap()
}

fn fill(cache: &Cache, block: u64, byte: u8) {
    // SAFETY: `fill` is given 4096 bytes for itself.
    cache.store(block, SectorMask::ALL, |data| unsafe { data.write_bytes(byte, BLOCK_BYTES) }).unwrap();
}

/// The first byte of each block that the cache has.
fn versions(cache: &Arc<Cache>) -> Vec<(u64, Option<u8>)> {
    let mut pins = Pins::new(cache);
    for block in 0..CAPACITY_BYTES / BLOCK_BYTES as u64 {
        cache.pin(block, &mut pins);
    }
    // SAFETY: a pinned version has 4096 bytes.
    pins.iter().map(|pinned| (pinned.block, pinned.data.map(|data| unsafe { data.read() }))).collect()
}

#[test]
fn what_a_process_leaves_is_found_once() {
    let file = file();
    let cache = create(file.try_clone().unwrap(), &OPTIONS, VOLUME, 7).unwrap();
    fill(&cache, 1, 1);
    fill(&cache, 9, 2);
    fill(&cache, 1, 3);
    fill(&cache, 5, 4);
    cache.zero(2).unwrap();
    cache.drop_range(5..6);
    cache.announce(1000);
    drop(cache);
    let header = peek(&file).unwrap();
    assert_eq!((header.volume, header.epoch, header.next_epoch, header.current), (VOLUME, 7, 1000, 3));
    assert_eq!(header.capacity_bytes, CAPACITY_BYTES);

    let cache = Arc::new(recover(file.try_clone().unwrap(), VOLUME, CAPACITY_BYTES * 2).unwrap());
    cache.settle_epoch(1000);
    assert_eq!(versions(&cache), [(1, Some(3)), (2, None), (9, Some(2))]);
    let figures = cache.figures();
    assert_eq!((figures.data_slots_free, figures.zero_slots_free), (2, 2));
    assert_eq!((figures.dirty_blocks, figures.unlogged_blocks), (3, 3));
    let mut pins = Pins::new(&cache);
    assert_eq!(cache.take_unlogged(10, &mut Round::default(), &mut pins), 3);
    cache.logged(&pins);
    pins.clear();
    assert_eq!(cache.take_dirty(0, 10, &mut pins), None);
    assert_eq!(cache.evict(&mut pins, false).removed, 3);
    let header = peek(&file).unwrap();
    assert_eq!((header.epoch, header.next_epoch, header.current), (1000, 0, 0));
    assert_eq!(header.capacity_bytes, CAPACITY_BYTES * 2);
}

#[test]
fn a_new_cache_forgets_what_the_file_held() {
    let file = file();
    fill(&create(file.try_clone().unwrap(), &OPTIONS, VOLUME, 7).unwrap(), 1, 1);
    drop(create(file.try_clone().unwrap(), &OPTIONS, VOLUME, 8).unwrap());
    assert_eq!(peek(&file).unwrap().current, 0);
}

#[test]
fn other_files_are_refused() {
    let volume = file();
    drop(create(volume.try_clone().unwrap(), &OPTIONS, VOLUME, 7).unwrap());
    let told = |file: &OwnedFd| recover(file.try_clone().unwrap(), VOLUME, CAPACITY_BYTES).err().unwrap().to_string();
    assert_eq!(told(&file()), "not the memory of a volume");
    let zeroes = file();
    ftruncate(&zeroes, 1 << 20).unwrap();
    assert_eq!(told(&zeroes), "not the memory of a volume");
    let other = recover(volume.try_clone().unwrap(), [1; 16], CAPACITY_BYTES).err().unwrap();
    assert_eq!(other.to_string(), "the memory of another volume");
    ftruncate(&volume, 4096 * 5).unwrap();
    assert_eq!(told(&volume), "the memory of a volume, cut short");
    pwrite(&volume, &[0xff; 4], 8).unwrap();
    assert_eq!(told(&volume), "the memory of a volume, left by another version of vringd");
}

proptest! {
    /// Whatever is in the file, the cache that is made of it works: each block has one version, and all slots come back.
    #[test]
    fn what_is_in_a_file_is_not_believed(
        stores in prop::collection::vec((0..4u64, 1..=255u8), 0..20),
        changes in prop::collection::vec((12..4096 + 7 * 16usize, any::<u8>()), 0..20),
        records in prop::collection::vec((0..7usize, 0..5u64, 0..9u32, any::<u8>(), any::<bool>()), 0..10),
    ) {
        let file = file();
        let cache = create(file.try_clone().unwrap(), &OPTIONS, VOLUME, 7).unwrap();
        for (block, byte) in stores {
            let _full = cache.store(block, SectorMask(byte), |_| {});
        }
        drop(cache);
        for (slot, block, replaces, sectors, current) in records {
            let mut record = block.to_ne_bytes().to_vec();
            record.extend(replaces.to_ne_bytes());
            record.extend([sectors, u8::from(current)]);
            pwrite(&file, &record, 4096 + 16 * slot as u64).unwrap();
        }
        for (offset, byte) in changes {
            // Anywhere in the records, seldom in the header: that would mostly be refused.
            let offset = if offset % 16 == 0 { offset % 96 } else { 4096 + offset % 112 };
            pwrite(&file, &[byte], offset as u64).unwrap();
        }
        let Ok(header) = peek(&file) else { return Ok(()) };
        let Ok(cache) = recover(file, header.volume, CAPACITY_BYTES) else { return Ok(()) };
        let cache = Arc::new(cache);
        let found = versions(&cache);
        prop_assert!(found.len() as u64 <= header.current);
        prop_assert!(found.is_sorted_by(|left, right| left.0 < right.0));
        let mut pins = Pins::new(&cache);
        prop_assert_eq!(cache.take_dirty(0, 100, &mut pins), None);
        prop_assert_eq!(pins.len(), found.len());
        prop_assert_eq!(cache.evict(&mut pins, true).removed, found.len());
        let figures = cache.figures();
        prop_assert_eq!(figures.data_slots_free, figures.data_slots);
        prop_assert_eq!((figures.dirty_blocks, figures.unlogged_blocks), (0, 0));
        prop_assert!(!cache.touches(0..u64::MAX));
    }
}
