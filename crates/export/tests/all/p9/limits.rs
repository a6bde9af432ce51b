//! Limits: what ends things passes, and what is held up can be flushed.

use crate::p9::client::{Client, Server, clunk, flush, getattr, outcome, read};
use device::p9::Kind;
use engine::Execution;
use export::{Limits, Rate};
use passthrough::Options;

/// One request a second, and a client that has spent its burst.
fn held_up(server: &Server, client: &mut Client) -> Vec<crate::p9::guest::Sent> {
    let limits = Limits { requests: Some(Rate::new(1, None)), bytes: None };
    server.export.set_limits(limits, None);
    (1..=24).map(|tag| client.send(0, &getattr(tag, 1))).collect()
}

#[test]
fn a_clunk_passes_what_a_limit_holds_up() {
    let server = Server::new(1, Execution::Inline, Options::default());
    let mut client = Client::new(&server, 1);
    let fid = client.walk("").unwrap();
    let held = held_up(&server, &mut client);
    let sent = client.send(0, &clunk(90, fid));
    outcome(client.guest.wait(sent), Kind::Clunk).unwrap();
    assert!(!client.guest.is_answered(held[23]), "the last of the others still waits");
    // A flush gives up what waits for a limit.
    let flushed = client.send(0, &flush(91, 20));
    outcome(client.guest.wait(flushed), Kind::Flush).unwrap();
    assert!(client.guest.place(held[19]) < client.guest.place(flushed));
    assert_eq!(client.guest.wait(held[19]), None);
    // Without the limit they go on at once, in their order.
    server.export.set_limits(Limits::default(), None);
    for (place, sent) in held.iter().enumerate().filter(|(place, _)| *place != 19) {
        outcome(client.guest.wait(*sent), Kind::GetAttr).unwrap();
        let before = place.checked_sub(1).filter(|before| *before != 19);
        assert!(before.is_none_or(|before| client.guest.place(held[before]) < client.guest.place(*sent)));
    }
    let figures = server.export.ring(0).unwrap().figures;
    assert!(figures.throttled_ns > 0);
}

#[test]
fn a_ring_that_stops_owes_nothing_to_a_limit() {
    use vhost::VhostBackend;
    let server = Server::new(1, Execution::Pool(1), Options::default());
    let mut client = Client::new(&server, 1);
    let held = held_up(&server, &mut client);
    let sent = client.send(0, &flush(91, 500));
    outcome(client.guest.wait(sent), Kind::Flush).unwrap();
    // GET_VRING_BASE is answered when nothing is in flight.
    client.guest.session.link().get_vring_base(0).unwrap();
    assert_eq!(held.iter().filter(|sent| client.guest.is_answered(**sent)).count(), held.len());
}

#[test]
fn a_limit_counts_what_can_move_and_not_what_is_asked_for() {
    let server = Server::new(1, Execution::Inline, Options::default());
    let mut client = Client::new(&server, 1);
    server.export.set_limits(Limits { requests: None, bytes: Some(Rate::new(1 << 20, None)) }, None);
    // Of a fid that there is not. As it stands there, it would take an hour's worth.
    for _ in 0..3 {
        let sent = client.send(0, &read(1, 77, 0, u32::MAX));
        assert_eq!(outcome(client.guest.wait(sent), Kind::Read), Err(libc::EBADF));
    }
    let sent = client.send(0, &getattr(2, 1));
    outcome(client.guest.wait(sent), Kind::GetAttr).unwrap();
}
