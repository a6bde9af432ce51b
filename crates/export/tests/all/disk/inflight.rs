//! A disk whose earlier life ended with requests in flight: they are done again, once, in their order, before new ones.

use super::{Guest, MEMORY_BYTES, NO_STATUS, Server};
use std::os::unix::fs::FileExt;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;

/// A guest of which a server took five of six requests and answered two.
fn bereaved(server: &Server) -> Guest {
    let mut guest = Guest::new(server);
    for number in 0..6_u8 {
        guest.offer(u64::from(number) % 4, Some(number + 1));
    }
    guest.live(5, &[3, 1]);
    assert_eq!((guest.used_idx(), guest.is_settled()), (2, false));
    guest
}

#[test]
fn what_was_in_flight_is_done_again_once_and_in_order() {
    let server = Server::new();
    let mut guest = bereaved(&server);
    let mut frontend = server.connect();
    guest.set_up(&mut frontend);
    frontend.set_vring_enable(0, true).unwrap();
    guest.wait_for_used_idx(6);
    let answered: Vec<u16> = (2..6).map(|index| guest.used_head(index) / 3).collect();
    assert_eq!(answered, [0, 2, 4, 5]);
    assert!(answered.iter().all(|&number| guest.status(number) == 0));
    // Those that the guest has seen answered were left alone.
    assert_eq!((guest.status(1), guest.status(3)), (NO_STATUS, NO_STATUS));
    // A guest that waits for a notification which its last server did not live to send gets one.
    assert!(guest.call.read().is_ok());

    (0..4).for_each(|sector| guest.offer(sector, None));
    guest.kick.write(1).unwrap();
    guest.wait_for_used_idx(10);
    // Sectors 0 and 1 were written twice; sector 3 by a request that the last server had answered.
    let sectors: Vec<u8> = (6..10).map(|number| guest.data(number)[0]).collect();
    assert_eq!(sectors, [5, 6, 3, 0]);
    assert_eq!(frontend.get_vring_base(0).unwrap(), 10);
    assert!(guest.is_settled());
    drop(frontend);
    server.export.end();
}

#[test]
fn a_ring_that_stops_before_it_was_enabled_owes_nothing() {
    let server = Server::new();
    let guest = bereaved(&server);
    let mut frontend = server.connect();
    guest.set_up(&mut frontend);
    // The sixth request was never taken, and a disabled ring takes nothing new.
    assert_eq!(frontend.get_vring_base(0).unwrap(), 5);
    assert_eq!((guest.used_idx(), guest.is_settled()), (5, true));
    assert_eq!([0, 2, 4, 5].map(|number| guest.status(number)), [0, 0, 0, NO_STATUS]);
}

#[test]
fn a_frontend_that_comes_again_finds_everything_settled() {
    let server = Server::new();
    let mut guest = bereaved(&server);
    for used in [6, 7] {
        let mut frontend = server.connect();
        guest.set_up(&mut frontend);
        frontend.set_vring_enable(0, true).unwrap();
        guest.wait_for_used_idx(used);
        // It disconnects without a word; the ring is drained all the same.
        drop(frontend);
        guest.offer(0, Some(9));
    }
    let mut frontend = server.connect();
    guest.set_up(&mut frontend);
    frontend.set_vring_enable(0, true).unwrap();
    guest.wait_for_used_idx(8);
    assert_eq!(frontend.get_vring_base(0).unwrap(), 8);
    assert!(guest.is_settled());
}

/// Whether this process, which is the server, has a memory file of that name mapped.
fn is_mapped(name: &str) -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains(&format!("memfd:{name} "))
}

/// Memory that a guest has given back is let go at once, and not when the ring takes its next request, on a worker.
#[test]
fn an_idle_ring_keeps_no_memory_that_the_table_has_no_more() {
    let server = Server::new();
    let mut guest = Guest::named(&server, "guest-before");
    let mut frontend = server.connect();
    guest.set_up(&mut frontend);
    frontend.set_vring_enable(0, true).unwrap();
    guest.offer(0, Some(1));
    guest.kick.write(1).unwrap();
    guest.wait_for_used_idx(1);
    assert!(is_mapped("guest-before"));
    let mut bytes = vec![0; MEMORY_BYTES as usize];
    guest.memory.read_exact_at(&mut bytes, 0).unwrap();
    guest.memory = Guest::memory("guest-behind");
    guest.memory.write_all_at(&bytes, 0).unwrap();
    frontend.set_mem_table(&[guest.table()]).unwrap();
    assert!(!is_mapped("guest-before") && is_mapped("guest-behind"));
    guest.offer(0, None);
    guest.kick.write(1).unwrap();
    guest.wait_for_used_idx(2);
    assert_eq!(guest.data(1)[0], 1);
}
