//! The memory table: set, added to, taken from, while rings run; and tables that must be refused.

use crate::common::{Event, Guest, Server, USER_BASE, memfd, peek, running, set_up_ring, started};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;

#[test]
fn regions_show_the_guests_bytes() {
    let server = Server::new(1);
    let frontend = server.negotiated();
    let low = Guest::new(0, 0x10000);
    // Neither the offset into the file nor the length is a multiple of the page size.
    let high = Guest::at(0x1_0000_0000, 0x1850, 0x2468);
    low.poke(0x8000, &41u64.to_ne_bytes());
    high.poke(0x1_0000_0010, &42u64.to_ne_bytes());
    high.poke(0x1_0000_1848, &43u64.to_ne_bytes());
    frontend.set_mem_table(&[high.region, low.region]).unwrap();
    let _fds = set_up_ring(&frontend, 0, 0);
    let memory = server.shared.rings.lock().unwrap()[&0].memory.clone();
    assert_eq!(peek(&memory, 0x8000), 41);
    assert_eq!(peek(&memory, 0x1_0000_0010), 42);
    assert_eq!(peek(&memory, 0x1_0000_1848), 43);
    assert!(memory.translate(0x1_0000_1850, 1, &mut 0).is_none());
}

#[test]
fn memory_is_added_and_removed_while_a_ring_runs() {
    let server = Server::new(1);
    let (mut frontend, guest, _fds) = running(&server);
    let added = Guest::new(0x4000_0000, 0x20000);
    added.poke(0x4000_0008, &7u64.to_ne_bytes());
    frontend.add_mem_region(&added.region).unwrap();
    assert_eq!(server.shared.take(), [Event::Memory(2)]);
    let seen = server.shared.rings.lock().unwrap()[&0].memory.clone();
    assert_eq!(peek(&seen, 0x4000_0008), 7);

    frontend.remove_mem_region(&added.region).unwrap();
    assert_eq!(server.shared.take(), [Event::Memory(1)]);
    // Requests in flight still hold the table they were taken with.
    assert_eq!(peek(&seen, 0x4000_0008), 7);

    frontend.remove_mem_region(&added.region).unwrap_err();
    // The ring lives in this one.
    frontend.remove_mem_region(&guest.region).unwrap_err();
    assert_eq!(server.shared.take(), []);
    frontend.get_vring_base(0).unwrap();
    frontend.remove_mem_region(&guest.region).unwrap();
    assert_eq!(server.shared.take(), [Event::Stop(0), Event::Memory(0)]);
}

#[test]
fn the_table_is_replaced_while_a_ring_runs() {
    let server = Server::new(1);
    let (frontend, guest, _fds) = running(&server);
    let before = server.shared.rings.lock().unwrap()[&0].memory.clone();
    frontend.set_mem_table(&[guest.region]).unwrap();
    let added = Guest::new(0x4000_0000, 0x1000);
    frontend.set_mem_table(&[guest.region, added.region]).unwrap();
    assert_eq!(server.shared.take(), [Event::Memory(1), Event::Memory(2)]);
    let after = server.shared.rings.lock().unwrap()[&0].memory.clone();
    // The part that stayed was not mapped anew.
    assert!(Arc::ptr_eq(&before.regions()[0].mapping, &after.regions()[0].mapping));
}

#[test]
fn pages_that_are_shown_twice_are_mapped_twice() {
    let server = Server::new(1);
    let (mut frontend, guest, _fds) = running(&server);
    let mut again = guest.region;
    again.guest_phys_addr = 0x4000_0000;
    let memory = || server.shared.rings.lock().unwrap()[&0].memory.clone();
    let hosts = || {
        let memory = memory();
        [0x8000, 0x4000_8000].map(|guest_addr| {
            let (host, _) = memory.translate(guest_addr, 1, &mut 0).unwrap();
            assert_eq!(memory.guest_addr_of(host.as_ptr()), Some(guest_addr));
            host
        })
    };
    frontend.add_mem_region(&again).unwrap();
    guest.poke(0x8000, &5u64.to_ne_bytes());
    assert_eq!((peek(&memory(), 0x8000), peek(&memory(), 0x4000_8000)), (5, 5));
    let before = hosts();
    // A whole table with both maps nothing anew.
    frontend.set_mem_table(&[guest.region, again]).unwrap();
    assert_eq!(hosts(), before);
}

#[test]
fn the_same_addresses_of_another_file_are_mapped_anew() {
    let server = Server::new(1);
    let (frontend, _guest, _fds) = running(&server);
    let other = Guest::new(0, 0x10000);
    other.poke(0x8000, &99u64.to_ne_bytes());
    frontend.set_mem_table(&[other.region]).unwrap();
    let memory = server.shared.rings.lock().unwrap()[&0].memory.clone();
    assert_eq!(peek(&memory, 0x8000), 99);
}

#[test]
fn a_table_without_the_ring_is_refused_and_the_old_one_stays() {
    let server = Server::new(1);
    let (frontend, guest, _fds) = running(&server);
    let elsewhere = Guest::new(0x4000_0000, 0x10000);
    frontend.set_mem_table(&[elsewhere.region]).unwrap_err();
    // The same frontend addresses at another guest address would move the ring.
    let mut moved = guest.region;
    moved.guest_phys_addr = 0x2000_0000;
    frontend.set_mem_table(&[moved]).unwrap_err();
    // Where the used ring begins is still there, where it ends is not.
    let mut cut = guest.region;
    cut.memory_size = 0x240;
    frontend.set_mem_table(&[cut]).unwrap_err();
    assert_eq!(server.shared.take(), []);
    guest.poke(0x8000, &5u64.to_ne_bytes());
    let memory = server.shared.rings.lock().unwrap()[&0].memory.clone();
    assert_eq!(peek(&memory, 0x8000), 5);
}

#[test]
fn a_disabled_ring_gives_way_to_a_new_table() {
    let server = Server::new(1);
    let (mut frontend, guest, _fds) = running(&server);
    frontend.set_vring_enable(0, false).unwrap();
    server.shared.take();
    let elsewhere = Guest::new(0x4000_0000, 0x10000);
    frontend.set_mem_table(&[elsewhere.region]).unwrap();
    assert_eq!(server.shared.take(), [Event::Stop(0), Event::Memory(1)]);
    frontend.set_mem_table(&[guest.region]).unwrap();
    frontend.set_vring_enable(0, true).unwrap();
    let again = started(0, crate::common::RING_PROGRESS, true, [true, true, false]);
    assert_eq!(server.shared.take(), [Event::Memory(1), again]);
}

#[test]
fn bad_regions_are_refused() {
    let server = Server::new(1);
    let mut frontend = server.negotiated();
    let good = Guest::new(0x1000, 0x4000).region;
    let low = Guest::new(0, 0x2000);
    let file = memfd(0x4000);
    let refused = |region| frontend.set_mem_table(&[region]).unwrap_err();

    let mut region = good;
    region.mmap_handle = file.as_raw_fd();
    frontend.set_mem_table(&[region, low.region]).unwrap_err();
    // One byte more than the file has.
    region.memory_size = 0x4001;
    refused(region);
    region.memory_size = 0x4000;
    region.mmap_offset = 1;
    refused(region);
    region.mmap_offset = 0;
    region.guest_phys_addr = u64::MAX - 0x100;
    refused(region);
    region.guest_phys_addr = 0x1000;
    region.userspace_addr = u64::MAX - 0x100;
    refused(region);
    region.userspace_addr = USER_BASE;
    region.mmap_offset = u64::MAX - 0x100;
    refused(region);
    region.mmap_offset = 0;
    region.memory_size = u64::MAX;
    refused(region);
    region.memory_size = 0x4000;
    let null = File::open("/dev/null").unwrap();
    region.mmap_handle = null.as_raw_fd();
    refused(region);
    let read_only = File::open("/proc/self/exe").unwrap();
    region.mmap_handle = read_only.as_raw_fd();
    refused(region);
    assert_eq!(server.shared.take(), []);

    region.mmap_handle = file.as_raw_fd();
    frontend.add_mem_region(&region).unwrap();
    frontend.add_mem_region(&region).unwrap_err();
    frontend.add_mem_region(&low.region).unwrap_err();
    assert_eq!(server.shared.take(), [Event::Memory(1)]);
}

#[test]
fn slots_are_limited_to_what_was_told() {
    let server = Server::new(1);
    let mut frontend = server.negotiated();
    let slots = frontend.get_max_mem_slots().unwrap();
    let guest = Guest::new(0, (slots + 1) * 0x1000);
    let slot = |at: u64| {
        let mut region = guest.region;
        region.guest_phys_addr = at * 0x1000;
        region.userspace_addr = USER_BASE + at * 0x1000;
        region.mmap_offset = at * 0x1000;
        region.memory_size = 0x1000;
        region
    };
    for at in 0..slots {
        frontend.add_mem_region(&slot(at)).unwrap();
    }
    frontend.add_mem_region(&slot(slots)).unwrap_err();
    frontend.remove_mem_region(&slot(3)).unwrap();
    frontend.add_mem_region(&slot(slots)).unwrap();
}
