//! Sessions that end, also with requests under way.

use crate::p9::client::{Client, MSIZE, Server, getattr, lock, message, outcome, read, string};
use device::p9::Kind;
use engine::Execution;
use passthrough::Options;
use std::time::Duration;

#[test]
fn a_session_ends_with_requests_in_flight() {
    for execution in [Execution::Uring, Execution::Pool(1)] {
        let options = Options { delay: Duration::from_millis(5), ..Options::default() };
        let server = Server::new(2, execution, options);
        for round in 1..=3 {
            let mut client = Client::new(&server, 2);
            let fid = if round == 1 { client.create("file") } else { client.open("file") };
            client.write(0, fid, 0, &[1; 4096]);
            for tag in 1..=10 {
                client.send(usize::from(tag % 2), &getattr(tag, 1));
                client.send(usize::from(tag % 2), &read(20 + tag, fid, 0, 4096));
            }
            drop(client);
            server.wait_until("the session has ended", |status| status.fids == 0 && status.dialect.is_none());
            let status = server.export.status();
            assert_eq!(status.sessions.errors, 0, "{:?}", status.last_error);
        }
        // A thread of the pool lets go of its file a little later than it answers.
        server.wait_until("no file is open", |status| status.tree.handles == 0);
    }
}

#[test]
fn a_session_ends_while_it_waits_for_a_lock() {
    let server = Server::new(1, Execution::Auto, Options::default());
    std::fs::write(server.shared.path().join("file"), "text").unwrap();
    let mut first = Client::new(&server, 1);
    let fid = first.open("file");
    let sent = first.send(0, &lock(1, fid, 1));
    assert_eq!(outcome(first.guest.wait(sent), Kind::Lock), Ok(vec![0]));
    // Another process of the same guest waits for it, and the guest vanishes.
    let other = first.open("file");
    first.send(0, &lock(2, other, 2));
    server.wait_until("a lock is waited for", |status| status.locks_waiting == 1);
    drop(first);
    server.wait_until("the session has ended", |status| status.locks_waiting == 0 && status.fids == 0);
    // Its locks are gone with it.
    let mut second = Client::new(&server, 1);
    let fid = second.open("file");
    let sent = second.send(0, &lock(1, fid, 9));
    assert_eq!(outcome(second.guest.wait(sent), Kind::Lock), Ok(vec![0]));
}

#[test]
fn a_ring_that_stops_lets_go_of_locks_that_it_waits_for() {
    use vhost::VhostBackend;
    let server = Server::new(1, Execution::Auto, Options::default());
    let mut client = Client::new(&server, 1);
    let fid = client.create("file");
    let sent = client.send(0, &lock(1, fid, 1));
    assert_eq!(outcome(client.guest.wait(sent), Kind::Lock), Ok(vec![0]));
    let other = client.open("file");
    let waiting = client.send(0, &lock(2, other, 2));
    server.wait_until("a lock is waited for", |status| status.locks_waiting == 1);
    client.guest.session.link().get_vring_base(0).unwrap();
    // P9_LOCK_BLOCKED: a client that goes on asks again.
    assert_eq!(outcome(client.guest.wait(waiting), Kind::Lock), Ok(vec![1]));
}

#[test]
fn a_guest_that_resets_the_device_leaves_nothing() {
    use vhost::vhost_user::VhostUserFrontend;
    let server = Server::new(1, Execution::Auto, Options::default());
    let mut client = Client::new(&server, 1);
    let fid = client.create("file");
    let sent = client.send(0, &lock(1, fid, 1));
    assert_eq!(outcome(client.guest.wait(sent), Kind::Lock), Ok(vec![0]));
    assert_eq!((server.status().fids, server.status().tree.lock_owners), (2, 1));
    client.guest.session.link().reset_device().unwrap();
    // The frontend stays.
    server.wait_until("everything is given up", |status| status.fids == 0 && status.tree.lock_owners == 0);
    assert!(server.export.connected());
}

/// How many fids are given up in one turn of a ring, at most.
const GIVEN_UP_AT_ONCE: usize = 64;
/// What no number of fids needs that are given up in one go.
const TURNS: usize = 20;

/// A client that has so many fids that it gives them up in [`TURNS`] turns.
fn client_with_many_fids(server: &Server) -> Client {
    let mut client = Client::new(server, 1);
    for _ in 0..TURNS * GIVEN_UP_AT_ONCE {
        client.walk("").unwrap();
    }
    client
}

fn version(tag: u16) -> Vec<u8> {
    message(Kind::Version, tag, &[&MSIZE.to_le_bytes(), &string("9P2000.L")])
}

#[test]
fn others_have_their_turns_while_a_client_with_many_fids_begins_anew() {
    let server = Server::new(1, Execution::Auto, Options::default());
    let mut client = client_with_many_fids(&server);
    let worker = server.engine.workers()[0].number;
    let turns = || server.engine.worker_figures(worker).unwrap().turns;
    let before = turns();
    // The second one waits behind the first.
    let sent = [client.send(0, &version(1)), client.send(0, &version(2))];
    for sent in sent {
        outcome(client.guest.wait(sent), Kind::Version).unwrap();
    }
    let turns = turns() - before;
    assert!(turns >= TURNS as u64, "{turns} turns of the worker");
    assert_eq!(server.status().fids, 0, "all is given up when the answer comes");
}

#[test]
fn a_ring_that_stops_while_its_client_begins_anew_answers_it() {
    use vhost::VhostBackend;
    let server = Server::new(1, Execution::Auto, Options::default());
    let mut client = client_with_many_fids(&server);
    let sent = [client.send(0, &version(1)), client.send(0, &version(2))];
    client.guest.session.link().get_vring_base(0).unwrap();
    let answered = sent.iter().filter(|sent| client.guest.is_answered(**sent)).count();
    assert_eq!(server.answered("Tversion"), 1 + answered as u64, "what was taken is answered");
    drop(client);
    server.wait_until("everything is given up", |status| status.fids == 0);
}
