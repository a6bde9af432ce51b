//! Rings that are held while another storage comes behind their disk.

use super::{Guest, PATIENCE, SECTOR, Server, sectors};
use crate::nbd::client::{Replies, Request};
use crate::nbd::server::{self, Scripted, eventually};
use engine::Solo;
use export::ExportError;
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::Storage;
use testkit::storage as kit;
use vhost::VhostBackend;

/// Long enough to be served in.
const A_WHILE: Duration = Duration::from_millis(50);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn first_byte(storage: &dyn Storage, sector: u64) -> u8 {
    kit::read(&mut Solo::new().unwrap(), storage, sector * SECTOR, SECTOR as usize)[0]
}

#[test]
fn requests_wait_and_go_to_the_storage_that_came_meanwhile() {
    let [one, two]: [Arc<dyn Storage>; 2] = [Arc::new(sectors()), Arc::new(sectors())];
    let server = Server::of("disk", one.clone());
    let mut guest = Guest::new(&server);
    let mut frontend = server.connect();
    guest.set_up(&mut frontend);
    vhost::vhost_user::VhostUserFrontend::set_vring_enable(&mut frontend, 0, true).unwrap();
    guest.offer(0, Some(1));
    guest.kick.write(1).unwrap();
    guest.wait_for_used_idx(1);

    let held = server.export.hold(soon()).unwrap();
    guest.offer(1, Some(2));
    guest.kick.write(1).unwrap();
    std::thread::sleep(A_WHILE);
    assert_eq!(guest.used_idx(), 1);
    // The disks of other exports are exchanged in the same moment, and this one stays.
    held.put(&one, &two);
    let other: Arc<dyn Storage> = Arc::new(sectors());
    held.put(&other, &one);
    std::thread::sleep(A_WHILE);
    assert_eq!(guest.used_idx(), 1);
    drop(held);
    guest.wait_for_used_idx(2);
    assert_eq!([&one, &two].map(|it| [0, 1].map(|sector| first_byte(&**it, sector))), [[1, 0], [0, 2]]);

    // Nothing comes of one that is let go.
    drop(server.export.hold(soon()).unwrap());
    guest.offer(2, Some(3));
    guest.kick.write(1).unwrap();
    guest.wait_for_used_idx(3);
    assert_eq!(first_byte(&*two, 2), 3);

    // A ring neither ends meanwhile nor begins, and begins with what is there then.
    let held = server.export.hold(soon()).unwrap();
    guest.offer(3, Some(4));
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| frontend.get_vring_base(0).unwrap());
        std::thread::sleep(A_WHILE);
        assert!(!ends.is_finished());
        held.put(&two, &one);
        drop(held);
        ends.join().unwrap();
    });
    guest.set_up(&mut frontend);
    guest.kick.write(1).unwrap();
    guest.wait_for_used_idx(4);
    assert_eq!([&one, &two].map(|it| first_byte(&**it, 3)), [4, 0]);
}

#[test]
fn what_does_not_end_lets_the_rings_go_on() {
    let storage = Scripted::new(1 << 20);
    let server = server::Server::new(storage.clone());
    let before: Arc<dyn Storage> = storage.clone();
    let mut client = server.client(Replies::Simple);
    storage.hold(|_| true);
    client.post(&Request::write(0, &[1; 512]));
    eventually("it is under way", || server.in_flight() == 1);
    let error = server.export.hold(Instant::now() + A_WHILE).err().unwrap();
    assert!(matches!(error, ExportError::InFlight { requests: 1, .. }), "{error}");
    client.post(&Request::write(512, &[2; 512]));
    eventually("another one is taken", || server.in_flight() == 2);
    // Who waits long enough has them all answered.
    std::thread::scope(|scope| {
        let released = scope.spawn(|| {
            std::thread::sleep(A_WHILE);
            storage.release();
            Instant::now()
        });
        let held = server.export.hold(soon()).unwrap();
        assert!(Instant::now() > released.join().unwrap());
        client.post(&Request::write(1024, &[3; 512]));
        std::thread::sleep(A_WHILE);
        assert_eq!(server.in_flight(), 0);
        let next: Arc<dyn Storage> = Arc::new(server::memory(1 << 20));
        held.put(&before, &next);
    });
    for _ in 0..3 {
        assert_eq!(client.answer().errno, 0);
    }
    assert_eq!(client.read(512, 1024), [[0; 512], [3; 512]].concat());
    // Clients that come now find it, too.
    assert_eq!(server.client(Replies::Simple).read(512, 1024), [[0; 512], [3; 512]].concat());
}
