//! The memory table.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use crate::common::{get, memory, put, region};
use vring::{Mapping, Memory, MemoryError, Region};

/// A region that claims anything over a mapping of one page.
fn claim(guest_addr: u64, user_addr: u64, len: u64, offset: usize) -> Region {
    let mapping = Arc::new(Mapping::anonymous(4096).unwrap());
    Region { guest_addr, user_addr, len, mapping, offset }
}

fn one(region: Region) -> Result<Memory, MemoryError> {
    Memory::new(vec![region])
}

#[test]
fn regions_are_sorted() {
    let table = memory(&[(0x9000, 0x1000), (0x1000, 0x1000), (0x4000, 0x2000)]);
    let starts: Vec<u64> = table.regions().iter().map(|region| region.guest_addr).collect();
    assert_eq!(starts, [0x1000, 0x4000, 0x9000]);
}

#[test]
fn empty_regions_are_refused() {
    assert_eq!(one(claim(5, 0, 0, 0)).unwrap_err(), MemoryError::Empty { guest_addr: 5 });
}

#[test]
fn regions_may_end_with_the_address_space_but_not_wrap() {
    assert!(one(claim(u64::MAX - 4095, 0, 4096, 0)).is_ok());
    assert!(one(claim(0, u64::MAX - 4095, 4096, 0)).is_ok());
    let guest_wraps = one(claim(u64::MAX - 4094, 0, 4096, 0)).unwrap_err();
    assert!(matches!(guest_wraps, MemoryError::Wraps { guest_addr: 0xffff_ffff_ffff_f001, .. }));
    let user_wraps = one(claim(0, u64::MAX - 4094, 4096, 0)).unwrap_err();
    assert!(matches!(user_wraps, MemoryError::Wraps { user_addr: 0xffff_ffff_ffff_f001, .. }));
    assert!(matches!(one(claim(1, 0, u64::MAX, 0)).unwrap_err(), MemoryError::BeyondMapping { .. }));
}

#[test]
fn regions_stay_inside_their_mapping() {
    assert!(one(claim(0, 0, 4096, 0)).is_ok());
    assert!(one(claim(0, 0, 96, 4000)).is_ok());
    let beyond = |len, room| MemoryError::BeyondMapping { guest_addr: 0, len, room };
    assert_eq!(one(claim(0, 0, 4097, 0)).unwrap_err(), beyond(4097, 4096));
    assert_eq!(one(claim(0, 0, 97, 4000)).unwrap_err(), beyond(97, 96));
    assert_eq!(one(claim(0, 0, 1, 4096)).unwrap_err(), beyond(1, 0));
    assert_eq!(one(claim(0, 0, 1, usize::MAX)).unwrap_err(), beyond(1, 0));
}

#[test]
fn overlaps_are_refused() {
    for (second, len) in [(0x1000, 0x1000), (0x1fff, 1), (0x1800, 0x100), (0x0800, 0x801)] {
        let table = Memory::new(vec![region(0x1000, 0x1000), region(second, len)]);
        assert!(matches!(table.unwrap_err(), MemoryError::Overlap { .. }), "{second:#x}");
    }
    for (second, len) in [(0x2000, 0x1000), (0x0800, 0x800)] {
        assert!(Memory::new(vec![region(0x1000, 0x1000), region(second, len)]).is_ok());
    }
    // At the very end no sum of an address and a length exists.
    let end = u64::MAX - 0xfff;
    assert!(Memory::new(vec![region(end, 0x1000), region(end + 0xfff, 1)]).is_err());
}

#[test]
fn regions_come_and_go() {
    let table = memory(&[(0x1000, 0x1000)]);
    let more = table.with(region(0x3000, 0x1000)).unwrap();
    assert_eq!((table.regions().len(), more.regions().len()), (1, 2));
    assert!(matches!(more.with(region(0x3800, 0x1000)).unwrap_err(), MemoryError::Overlap { .. }));

    let user_addr = more.regions()[0].user_addr;
    let less = more.without(0x1000, user_addr, 0x1000).unwrap();
    assert_eq!(less.regions()[0].guest_addr, 0x3000);
    for (guest_addr, user_addr, len) in
        [(0x1001, user_addr, 0x1000), (0x1000, user_addr + 1, 0x1000), (0x1000, user_addr, 0xfff)]
    {
        let refused = more.without(guest_addr, user_addr, len).unwrap_err();
        assert_eq!(refused, MemoryError::NotFound { guest_addr, user_addr, len });
    }
    assert!(less.without(0x3000, less.regions()[0].user_addr, 0x1000).unwrap().regions().is_empty());
}

#[test]
fn translation_ends_with_the_region() {
    let table = memory(&[(0x1000, 0x1000), (0x2000, 0x800), (0x8000, 0x1000)]);
    let at = |addr, len, hint: &mut usize| table.translate(addr, len, hint).map(|(ptr, n)| (ptr.as_ptr() as usize, n));
    let host = |index: usize| table.regions()[index].mapping.as_ptr() as usize;
    // Every hint, right, wrong or none at all, gives the same answer.
    for start in [0, 1, 2, 3, usize::MAX] {
        let mut hint = start;
        assert_eq!(at(0x1000, 0x1000, &mut hint), Some((host(0), 0x1000)));
        assert_eq!(hint, 0);
        assert_eq!(at(0x1ffe, 100, &mut hint), Some((host(0) + 0xffe, 2)));
        assert_eq!(at(0x2000, u64::MAX, &mut hint), Some((host(1), 0x800)));
        assert_eq!(hint, 1);
        hint = start;
        for addr in [0, 0xfff, 0x2800, 0x7fff, 0x9000, u64::MAX] {
            assert_eq!(at(addr, 1, &mut hint), None, "{addr:#x}");
        }
        assert_eq!(at(0x8fff, 1, &mut hint), Some((host(2) + 0xfff, 1)));
        assert_eq!(at(0x8000, 0, &mut hint), Some((host(2), 0)));
    }
    assert_eq!(Memory::default().translate(0, 1, &mut 0), None);
}

#[test]
fn translation_honours_the_offset() {
    let table = one(claim(0x5000, 0, 96, 4000)).unwrap();
    let (ptr, len) = table.translate(0x5001, 1000, &mut 0).unwrap();
    assert_eq!(ptr.as_ptr() as usize, table.regions()[0].mapping.as_ptr() as usize + 4001);
    assert_eq!(len, 95);
}

#[test]
fn frontend_addresses_translate() {
    let table = Memory::new(vec![claim(0x5000, 0x70_0000, 4096, 0), claim(0x1000, 0x90_0000, 4096, 0)]).unwrap();
    assert_eq!(table.user_to_guest(0x70_0000), Some(0x5000));
    assert_eq!(table.user_to_guest(0x70_0fff), Some(0x5fff));
    assert_eq!(table.user_to_guest(0x70_1000), None);
    assert_eq!(table.user_to_guest(0x90_0001), Some(0x1001));
    assert_eq!(table.user_to_guest(0), None);
    // One range shown twice: the lower guest address answers.
    let twice = Memory::new(vec![claim(0x5000, 0x70_0000, 4096, 0), claim(0x1000, 0x70_0000, 4096, 0)]).unwrap();
    assert_eq!(twice.user_to_guest(0x70_0010), Some(0x1010));
}

#[test]
fn shared_mappings_share_the_file() {
    let path = std::env::temp_dir().join(format!("vring-memory-{}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(8192).unwrap();
    file.seek(SeekFrom::Start(4096)).unwrap();
    file.write_all(b"from the file").unwrap();

    let mapping = Arc::new(Mapping::shared(&file, 4096, 4096).unwrap());
    assert_eq!(mapping.len(), 4096);
    let table = one(Region { guest_addr: 0, user_addr: 0, len: 4096, mapping, offset: 0 }).unwrap();
    assert_eq!(get(&table, 5, 8), b"the file");
    put(&table, 0, b"back");
    let mut bytes = [0; 13];
    file.seek(SeekFrom::Start(4096)).unwrap();
    file.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"back the file");
}

#[test]
fn impossible_mappings_are_errors() {
    let file = File::open("/dev/null").unwrap();
    assert!(Mapping::anonymous(0).is_err());
    assert!(Mapping::anonymous(usize::MAX / 2).is_err());
    assert!(Mapping::shared(&file, 0, 4096).is_err());
}
