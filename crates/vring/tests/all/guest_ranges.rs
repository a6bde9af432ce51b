//! From host pointers back to guest addresses, against lists of guest addresses, byte by byte.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::common::{Driver, NEXT, WRITE, layout_at, region};
use proptest::collection::vec;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vring::copy::{trim_front, truncate};
use vring::{Chain, Mapping, Memory, MemoryError, Region, RingPosition, Segment, SplitRing};

const RING: u64 = 0x10_0000;
const PAGE: u64 = 4096;
/// The guest's first addresses of data: three regions, of which two touch, and one region that shows the first one's pages again.
const DATA: [u64; 4] = [0x1000, 0x2000, 0x8000, 0x1_0000_0000];

fn pages() -> File {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, PAGE).unwrap();
    File::from(file)
}

fn shows(file: &File, guest_addr: u64) -> Region {
    let mapping = Arc::new(Mapping::shared(file, 0, PAGE as usize).unwrap());
    Region { guest_addr, user_addr: 0x7000_0000, len: PAGE, mapping, offset: 0 }
}

/// A table in which the same page lies at the first and at the last guest address.
fn table() -> Arc<Memory> {
    let [first, second, third, again] = DATA;
    let file = pages();
    let mut table = Memory::new(vec![region(second, PAGE), region(third, PAGE), region(RING, 2 * PAGE)]).unwrap();
    for guest_addr in [first, again] {
        table = table.with(shows(&file, guest_addr)).unwrap();
    }
    Arc::new(table)
}

/// Every byte of these buffers, by guest address.
fn bytes_of(ranges: impl IntoIterator<Item = (u64, u64)>) -> Vec<u64> {
    ranges.into_iter().flat_map(|(start, len)| start..start + len).collect()
}

/// A buffer that lies inside the data: it may cross from the first region into the second.
fn buffer() -> impl Strategy<Value = (u64, u32)> {
    (0..DATA.len(), 0..PAGE, 0..600_u32).prop_map(|(region, offset, len)| {
        let room = if region == 0 { 2 * PAGE } else { PAGE } - offset;
        (DATA[region] + offset, len.min(room as u32))
    })
}

proptest! {
    #[test]
    fn what_is_left_of_a_chain_is_where_the_guest_put_it(
        readable in vec(buffer(), 0..5),
        writable in vec(buffer(), 0..5),
        front in 0_u64..1500,
        back in 0_u64..1500,
        cut in 0_u64..1500,
    ) {
        let table = table();
        let mut driver = Driver::new(Arc::clone(&table), layout_at(RING, 16), 0);
        let count = readable.len() + writable.len();
        prop_assume!(count > 0);
        for (index, &(addr, len)) in readable.iter().chain(&writable).enumerate() {
            let write = if index < readable.len() { 0 } else { WRITE };
            let next = if index + 1 < count { NEXT } else { 0 };
            driver.set(index as u16, addr, len, write | next, index as u16 + 1);
        }
        driver.offer(0);
        let mut ring = SplitRing::new(Arc::clone(&table), driver.layout, RingPosition::default()).unwrap();
        let mut chain = Chain::default();
        prop_assert_eq!(ring.pop(&mut chain), Ok(Some(0)));

        let widen = |list: &[(u64, u32)]| bytes_of(list.iter().map(|&(addr, len)| (addr, u64::from(len))));
        let (may_read, may_write) = (widen(&readable), widen(&writable));
        prop_assert_eq!(bytes_of(chain.guest_ranges(chain.readable_segments())), may_read);
        prop_assert_eq!(bytes_of(chain.guest_ranges(chain.writable_segments())), may_write.clone());

        // Cut at both ends, then in two, as requests for data are.
        let mut left = chain.writable_segments().to_vec();
        trim_front(&mut left, front);
        truncate(&mut left, back);
        let from = may_write.len().min(front as usize);
        let to = may_write.len().min((front + back) as usize);
        prop_assert_eq!(bytes_of(chain.guest_ranges(&left)), &may_write[from..to]);
        let mut right = left.clone();
        truncate(&mut left, cut);
        trim_front(&mut right, cut);
        let both = [left, right].concat();
        prop_assert_eq!(bytes_of(chain.guest_ranges(&both)), &may_write[from..to]);
        // The kernel is given the same.
        let iovecs = Segment::as_iovecs(&both).iter();
        let named = iovecs.map(|it| (table.guest_addr_of(it.iov_base.cast()).unwrap(), it.iov_len as u64));
        prop_assert_eq!(bytes_of(named), &may_write[from..to]);
    }
}

#[test]
fn a_page_that_is_shown_twice_keeps_the_name_by_which_it_was_called() {
    let table = table();
    for guest_addr in [DATA[0] + 5, DATA[3] + 5] {
        let (host, _) = table.translate(guest_addr, 1, &mut 0).unwrap();
        assert_eq!(table.guest_addr_of(host.as_ptr()), Some(guest_addr));
    }
}

#[test]
fn what_is_not_the_guests_has_no_address() {
    let table = table();
    let byte = 7_u8;
    assert_eq!(table.guest_addr_of(&raw const byte), None);
    assert_eq!(table.guest_addr_of(std::ptr::null()), None);
    assert_eq!(Memory::default().guest_addr_of(&raw const byte), None);
    for region in table.regions() {
        let start = region.mapping.as_ptr();
        assert_eq!(table.guest_addr_of(start), Some(region.guest_addr));
        let last = start.wrapping_add(region.len as usize - 1);
        assert_eq!(table.guest_addr_of(last), Some(region.guest_addr + region.len - 1));
    }
    // SAFETY: nobody touches the byte by it.
    let ours = unsafe { Segment::from_raw_parts(NonNull::from(&byte), 1) };
    assert_eq!(Chain::default().guest_ranges(&[ours]).count(), 0);
}

#[test]
fn regions_do_not_share_bytes_of_a_mapping() {
    let mapping = Arc::new(Mapping::anonymous(3 * PAGE as usize).unwrap());
    let part = |guest_addr, offset| Region {
        guest_addr,
        user_addr: guest_addr,
        len: PAGE,
        mapping: Arc::clone(&mapping),
        offset,
    };
    assert!(Memory::new(vec![part(0, 4096), part(PAGE, 0), part(2 * PAGE, 8192)]).is_ok());
    for (offset, guest_addr, other_guest_addr) in [(0, 0x9000, 0), (4095, 0x9000, 0), (1, 0x9000, 0)] {
        let shared = Memory::new(vec![part(0, 0), part(0x9000, offset)]).unwrap_err();
        let same = shared == MemoryError::SharedBytes { guest_addr, other_guest_addr }
            || shared == MemoryError::SharedBytes { guest_addr: other_guest_addr, other_guest_addr: guest_addr };
        assert!(same, "{shared:?}");
    }
}
