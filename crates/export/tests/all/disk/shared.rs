//! Two exports of one storage: each with its own frontend, rings and fate.

use super::{Guest, SECTOR, Server};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use storage::{FileOptions, FileStorage, Kind as _, SimOptions, Storage};
use values::ByteSize;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::vhost_user::{Frontend, VhostUserFrontend};

const SECTORS: u64 = 8;

/// An image whose sectors are full of their numbers.
fn image() -> tempfile::NamedTempFile {
    let image = tempfile::NamedTempFile::new().unwrap();
    (0..2 * SECTORS).for_each(|sector| {
        image.as_file().write_all_at(&[sector as u8 + 1; SECTOR as usize], sector * SECTOR).unwrap();
    });
    image.as_file().set_len(SECTORS * SECTOR).unwrap();
    image
}

fn start(server: &Server) -> (Guest, Frontend) {
    let guest = Guest::new(server);
    let mut frontend = server.connect();
    guest.set_up(&mut frontend);
    frontend.set_vring_enable(0, true).unwrap();
    (guest, frontend)
}

fn capacity_bytes(frontend: &mut Frontend) -> u64 {
    let asked = frontend.get_config(0, 8, VhostUserConfigFlags::empty(), &[0; 8]).unwrap().1;
    u64::from_le_bytes(asked[..8].try_into().unwrap()) * SECTOR
}

#[test]
fn two_read_only_exports_serve_one_image_at_once() {
    let image = image();
    let options = FileOptions { read_only: true, ..FileOptions::new(image.path()) };
    let storage: Arc<dyn Storage> = Arc::new(FileStorage::open(&options).unwrap());
    let servers = ["a", "b"].map(|name| Server::of(name, storage.clone()));
    let [(mut one, mut first), (mut two, mut second)] = servers.each_ref().map(start);
    for sector in 0..SECTORS {
        one.offer(sector, None);
        two.offer(SECTORS - 1 - sector, None);
    }
    one.kick.write(1).unwrap();
    two.kick.write(1).unwrap();
    for (guest, sectors) in [(&one, (0..SECTORS).collect::<Vec<_>>()), (&two, (0..SECTORS).rev().collect())] {
        guest.wait_for_used_idx(SECTORS as u16);
        for (number, sector) in (0..).zip(sectors) {
            assert_eq!((guest.status(number), guest.data(number)), (0, vec![sector as u8 + 1; SECTOR as usize]));
        }
    }
    // Neither writes.
    two.offer(0, Some(0xcc));
    two.kick.write(1).unwrap();
    two.wait_for_used_idx(SECTORS as u16 + 1);
    assert_ne!(two.status(SECTORS as u16), 0);

    // What has grown has grown for both.
    for sector in SECTORS..2 * SECTORS {
        image.as_file().write_all_at(&[sector as u8 + 1; SECTOR as usize], sector * SECTOR).unwrap();
    }
    assert_eq!([&mut first, &mut second].map(capacity_bytes), [SECTORS * SECTOR; 2]);
    servers.iter().for_each(|server| server.export.check_capacity(2 * SECTORS * SECTOR).unwrap());
    storage.resize(2 * SECTORS * SECTOR).unwrap();
    servers.iter().for_each(|server| server.export.follow_capacity().unwrap());
    assert_eq!([&mut first, &mut second].map(capacity_bytes), [2 * SECTORS * SECTOR; 2]);
    one.offer(2 * SECTORS - 1, None);
    one.kick.write(1).unwrap();
    one.wait_for_used_idx(SECTORS as u16 + 1);
    assert_eq!((one.status(SECTORS as u16), one.data(SECTORS as u16)[0]), (0, 2 * SECTORS as u8));

    // The end of one is none of the other's.
    let [a, b] = servers;
    drop(first);
    drop(a);
    two.offer(2 * SECTORS - 1, None);
    two.kick.write(1).unwrap();
    two.wait_for_used_idx(SECTORS as u16 + 2);
    assert_eq!((two.status(SECTORS as u16 + 1), two.data(SECTORS as u16 + 1)[0]), (0, 2 * SECTORS as u8));
    drop(second);
    drop(b);
    // The image is closed with the last who has it.
    assert!(FileStorage::open(&FileOptions::new(image.path())).is_err());
    drop(storage);
    FileStorage::open(&FileOptions::new(image.path())).unwrap();
}

#[test]
fn a_panic_ends_one_export_of_a_storage_and_not_the_other() {
    let options = SimOptions { panic_after: 1, ..SimOptions::new(ByteSize(SECTORS * SECTOR)) };
    let storage = options.open().unwrap().start().unwrap();
    let servers = ["a", "b"].map(|name| Server::of(name, storage.clone()));
    let [(mut one, _first), (mut two, _second)] = servers.each_ref().map(start);
    one.offer(0, None);
    one.kick.write(1).unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while servers[0].export.failure().is_none() {
        assert!(std::time::Instant::now() < end, "the export must fail");
        std::thread::yield_now();
    }
    two.offer(1, None);
    two.kick.write(1).unwrap();
    two.wait_for_used_idx(1);
    assert_eq!((two.status(0), servers[1].export.failure()), (0, None));
}
