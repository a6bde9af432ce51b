//! Chains and messages that no client sends.

use crate::p9::client::{Client, MSIZE, Server, data_of, getattr, message, outcome, read, string};
use crate::p9::guest::{Guest, ROOM};
use device::p9::Kind;
use engine::Execution;
use export::RingState;
use passthrough::Options;

#[test]
fn malformed_requests_are_refused_and_the_ring_goes_on() {
    for execution in [Execution::Inline, Execution::Pool(2)] {
        let server = Server::new(1, execution, Options::default());
        let mut client = Client::new(&server, 1);
        let huge = [&u32::MAX.to_le_bytes()[..], &[Kind::GetAttr as u8, 1, 0]].concat();
        let mut long_write = message(Kind::Write, 3, &[&1_u32.to_le_bytes(), &[0; 8], &u32::MAX.to_le_bytes()]);
        long_write[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        let walk = message(Kind::Walk, 4, &[&1_u32.to_le_bytes(), &2_u32.to_le_bytes(), &[0xff, 0xff]]);
        for bytes in [&huge[..], &long_write, &walk, &getattr(1, 1)[..10], &message(Kind::Flush, 5, &[])] {
            let sent = client.send(0, bytes);
            assert!(outcome(client.guest.wait(sent), Kind::GetAttr).is_err(), "{bytes:?}");
        }
        // Those that cannot even be answered: nothing to read, not a header, no room for an answer.
        let good = getattr(1, 1);
        let unanswered = [(&[][..], ROOM as u32), (&[7, 0, 0][..], ROOM as u32), (&good[..], 0), (&good[..], 6)];
        for (bytes, room) in unanswered {
            let sent = client.guest.send_with_room(0, bytes, room);
            assert_eq!(client.guest.wait(sent), None, "{bytes:?}");
        }
        // Room for an error, and for no more.
        let sent = client.guest.send_with_room(0, &getattr(1, 1), 11);
        assert_eq!(outcome(client.guest.wait(sent), Kind::GetAttr), Err(libc::EIO));
        let sent = client.send(0, &getattr(1, 1));
        outcome(client.guest.wait(sent), Kind::GetAttr).unwrap();
        assert_eq!(server.answered("malformed"), 7);
        assert_eq!(server.export.ring(0).unwrap().state, RingState::Running);
    }
}

#[test]
fn a_read_is_cut_to_the_room_that_there_is() {
    for execution in [Execution::Inline, Execution::Uring, Execution::Pool(1)] {
        let server = Server::new(1, execution, Options::default());
        let mut client = Client::new(&server, 1);
        std::fs::write(server.shared.path().join("file"), vec![3; 20_000]).unwrap();
        let fid = client.open("file");
        for (room, asked, expected) in [(100, 4096, 89), (ROOM as u32, 4096, 4096), (11, 50, 0)] {
            let sent = client.guest.send_with_room(0, &read(9, fid, 0, asked), room);
            let body = outcome(client.guest.wait(sent), Kind::Read).unwrap();
            assert_eq!(body.len(), 4 + expected, "{execution:?}: {asked} into {room}");
        }
        // No more than a message holds, whatever is asked for.
        let sent = client.send(0, &read(9, fid, 0, u32::MAX));
        let found = data_of(&outcome(client.guest.wait(sent), Kind::Read).unwrap()).len();
        assert!((MSIZE as usize - 24..=MSIZE as usize - 11).contains(&found), "{found}");
    }
}

#[test]
fn nothing_works_before_a_version() {
    let server = Server::new(1, Execution::Auto, Options::default());
    let mut guest = Guest::new(&server.socket(), 1);
    let sent = guest.send(0, &getattr(1, 1));
    let reply = guest.wait(sent).unwrap();
    // Rerror, as of plain 9P2000.
    assert_eq!(reply.kind, 107);
    // A version that nobody speaks.
    let sent = guest.send(0, &message(Kind::Version, u16::MAX, &[&8192_u32.to_le_bytes(), &string("9P3000")]));
    let reply = guest.wait(sent).unwrap();
    assert_eq!(reply.body[4..], string("unknown"));
    assert_eq!(server.status().dialect, None);
}

#[test]
fn a_new_version_forgets_everything() {
    let server = Server::new(1, Execution::Inline, Options::default());
    let mut client = Client::new(&server, 1);
    let fid = client.create("file");
    assert_eq!(server.status().fids, 2);
    client.call(0, Kind::Version, &[&4096_u32.to_le_bytes(), &string("9P2000.L")]).unwrap();
    assert_eq!((server.status().fids, server.status().msize), (0, 4096));
    assert_eq!(client.call(0, Kind::Clunk, &[&fid.to_le_bytes()]), Err(libc::EBADF));
}
