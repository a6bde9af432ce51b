//! Frontends that misspeak, half speak, or come at the wrong time.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::{Event, NEED_REPLY, Server, memfd, running, write_lossy};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::FrontendReq as R;

/// The server still serves: a whole session with a running ring.
fn assert_serves(server: &Server) {
    let (frontend, _guest, _fds) = running(server);
    drop(frontend);
    let (_, before) = server.shared.wait_for_end();
    assert_eq!(before, [Event::Stop(0)]);
}

#[test]
fn garbage_ends_the_session_and_the_next_one_works() {
    let server = Server::new(1);
    // A small linear congruential generator: the same bytes in every run.
    let mut state = 12345u32;
    for _ in 0..50 {
        let bytes: Vec<u8> = (0..512)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        let mut raw = server.raw();
        write_lossy(&mut raw.0, &bytes);
        drop(raw);
        server.shared.wait_for_end();
    }
    assert_serves(&server);
}

#[test]
fn headers_that_make_no_sense_end_the_session() {
    let server = Server::new(1);
    let get_features: u32 = R::GET_FEATURES.into();
    for (flags, size, reason) in [
        (2, 0, "version 2"),
        (0, 0, "version 0"),
        (0x5, 0, "unknown flags 0x5"),
        (0x11, 0, "unknown flags 0x11"),
        (1, 4097, "4097 bytes"),
        (1, u32::MAX, "4294967295 bytes"),
    ] {
        let mut raw = server.raw();
        let mut bytes = Vec::new();
        for field in [get_features, flags, size] {
            bytes.extend_from_slice(&field.to_ne_bytes());
        }
        raw.send_bytes(&bytes, &[]);
        assert!(raw.is_closed());
        let (end, _) = server.shared.wait_for_end();
        assert!(end.contains(reason), "{end}");
    }
    assert_serves(&server);
}

#[test]
fn wrong_bodies_are_refused_and_the_session_goes_on() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    assert!(!raw.acked(R::SET_OWNER, &[0; 8], &[]));
    assert!(!raw.acked(R::SET_FEATURES, &[0; 4], &[]));
    assert!(!raw.acked(R::SET_VRING_NUM, &[0; 16], &[]));
    assert!(!raw.acked(R::SET_VRING_ADDR, &[0; 8], &[]));
    assert!(!raw.acked(R::SET_VRING_ADDR, &[], &[]));
    assert!(!raw.acked(R::SET_MEM_TABLE, &[], &[]));
    assert!(!raw.acked(R::SET_MEM_TABLE, &[0; 4096], &[]));
    assert!(!raw.acked(R::ADD_MEM_REG, &[0; 32], &[]));
    assert!(!raw.acked(R::REM_MEM_REG, &[0; 40], &[]));
    assert!(!raw.acked(R::SET_CONFIG, &[0; 3], &[]));
    assert!(!raw.acked(R::SET_VRING_BASE, &(1u64 << 48).to_ne_bytes(), &[]));
    assert!(!raw.acked(R::SET_VRING_ENABLE, &(2u64 << 32).to_ne_bytes(), &[]));
    let misaligned: Vec<u8> = [0u32, 0, 8, 0, 0, 0, 0, 0, 0, 0].iter().flat_map(|field| field.to_ne_bytes()).collect();
    assert!(!raw.acked(R::SET_VRING_ADDR, &misaligned, &[]));
    assert!(raw.acked(R::SET_OWNER, &[], &[]));
    assert_eq!(server.shared.take(), []);
}

#[test]
fn messages_that_are_not_supported_are_refused_and_the_session_goes_on() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    assert!(!raw.acked(R::SET_STATUS, &[0; 8], &[]));
    assert!(!raw.acked(R::SET_LOG_FD, &[], &[]));
    assert!(!raw.acked(R::NET_SET_MTU, &[0; 8], &[]));
    raw.send(4711, NEED_REPLY, &[1, 2, 3], &[]);
    assert_eq!(raw.receive(), (4711, 0x5, 1u64.to_ne_bytes().to_vec()));
    assert!(raw.acked(R::SET_OWNER, &[], &[]));
}

#[test]
fn a_question_that_cannot_be_answered_ends_the_session() {
    let server = Server::new(1);
    for (request, body) in [
        (R::GET_VRING_BASE, &[9, 0, 0, 0, 0, 0, 0, 0][..]),
        (R::GET_INFLIGHT_FD, &[0; 24]),
        (R::GET_STATUS, &[]),
        (R::GET_FEATURES, &[1]),
    ] {
        let mut raw = server.raw_negotiated();
        raw.send(request.into(), NEED_REPLY, body, &[]);
        assert!(raw.is_closed());
        let (end, _) = server.shared.wait_for_end();
        assert!(end.contains(&format!("{request:?}")), "{end}");
    }
    assert_serves(&server);
}

#[test]
fn wrong_numbers_of_descriptors_are_refused_and_the_session_goes_on() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let file = memfd(0x1000);
    let fd = file.as_fd();
    let many = vec![fd; 40];
    let ring = 0u64.to_ne_bytes();
    let ring_without_fd = 0x100u64.to_ne_bytes();
    assert!(!raw.acked(R::SET_VRING_KICK, &ring, &[]));
    assert!(!raw.acked(R::SET_VRING_KICK, &ring, &[fd, fd]));
    assert!(!raw.acked(R::SET_VRING_CALL, &ring, &many));
    assert!(!raw.acked(R::SET_VRING_CALL, &ring, &[fd; 253]));
    assert!(!raw.acked(R::SET_VRING_ERR, &ring_without_fd, &[fd]));
    assert!(!raw.acked(R::SET_BACKEND_REQ_FD, &[], &[]));
    // One region of 0x1000 bytes at guest address 0, with too few and too many files.
    let table: Vec<u8> = [1u64, 0, 0x1000, 0x7000_0000, 0].iter().flat_map(|field| field.to_ne_bytes()).collect();
    assert!(!raw.acked(R::SET_MEM_TABLE, &table, &[]));
    assert!(!raw.acked(R::SET_MEM_TABLE, &table, &[fd, fd]));
    assert!(!raw.acked(R::ADD_MEM_REG, &[&[0; 8], &table[8..]].concat(), &[]));
    assert_eq!(server.shared.take(), []);
    assert!(raw.acked(R::SET_MEM_TABLE, &table, &[fd]));
    assert_eq!(server.shared.take(), [Event::Memory(1)]);
}

#[test]
fn a_descriptor_with_a_removal_is_tolerated() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let file = memfd(0x1000);
    let region: Vec<u8> = [0u64, 0, 0x1000, 0x7000_0000, 0].iter().flat_map(|field| field.to_ne_bytes()).collect();
    assert!(raw.acked(R::ADD_MEM_REG, &region, &[file.as_fd()]));
    assert!(raw.acked(R::REM_MEM_REG, &region, &[file.as_fd()]));
    assert_eq!(server.shared.take(), [Event::Memory(1), Event::Memory(0)]);
}

#[test]
fn descriptors_are_not_kept_open() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let ring = 0u64.to_ne_bytes();
    assert!(!raw.acked(R::SET_VRING_CALL, &ring, &[theirs.as_fd(); 40]));
    drop(theirs);
    // Were a copy still open, reading would wait instead of finding the end.
    ours.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
    assert_eq!(rustix::io::read(&ours, &mut [0; 1]), Ok(0));
}

/// A message is complete only when its body is, so a frontend could pile descriptors up until then.
#[test]
fn descriptors_beyond_the_limit_are_closed_at_once() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let (near, far): (Vec<_>, Vec<_>) = (0..40).map(|_| UnixStream::pair().unwrap()).unzip();
    let fds: Vec<_> = far.iter().map(AsFd::as_fd).collect();
    raw.send_bytes(&[1], &fds);
    raw.wait_until_read();
    drop(far);
    let (kept, closed) = near.split_at(32);
    for (at, stream) in closed.iter().enumerate() {
        // The server has read them, but may be about to close them.
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(rustix::io::read(stream, &mut [0; 1]), Ok(0), "descriptor {at} behind the limit");
    }
    for (at, stream) in kept.iter().enumerate() {
        stream.set_nonblocking(true).unwrap();
        assert_eq!(rustix::io::read(stream, &mut [0; 1]), Err(Errno::AGAIN), "descriptor {at}");
    }
}

#[test]
fn a_message_may_arrive_byte_by_byte() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let file = memfd(0x1000);
    let table: Vec<u8> = [1u64, 0, 0x1000, 0x7000_0000, 0].iter().flat_map(|field| field.to_ne_bytes()).collect();
    let mut bytes = Vec::new();
    for field in [R::SET_MEM_TABLE.into(), NEED_REPLY, table.len() as u32] {
        bytes.extend_from_slice(&field.to_ne_bytes());
    }
    bytes.extend_from_slice(&table);
    raw.send_bytes(&bytes[..1], &[file.as_fd()]);
    for byte in &bytes[1..] {
        raw.wait_until_read();
        raw.send_bytes(&[*byte], &[]);
    }
    assert_eq!(raw.receive(), (R::SET_MEM_TABLE.into(), 0x5, vec![0; 8]));
}

#[test]
fn messages_that_arrive_together_are_all_handled() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let mut bytes = Vec::new();
    for _ in 0..3 {
        for field in [R::GET_QUEUE_NUM.into(), 1, 0] {
            bytes.extend_from_slice(&u32::to_ne_bytes(field));
        }
    }
    raw.send_bytes(&bytes, &[]);
    for _ in 0..3 {
        assert_eq!(raw.receive().2, 1u64.to_ne_bytes());
    }
}

#[test]
fn a_disconnect_inside_a_message_stops_the_rings() {
    let server = Server::new(1);
    let mut raw = server.raw();
    raw.send_bytes(&[1, 0, 0, 0, 1], &[]);
    drop(raw);
    let (end, _) = server.shared.wait_for_end();
    assert_eq!(end, "the frontend disconnected");
    assert_serves(&server);
}

#[test]
fn a_second_frontend_is_turned_away_at_once() {
    let server = Server::new(1);
    let (mut frontend, _guest, _fds) = running(&server);
    let mut second = server.raw();
    assert!(second.is_closed());
    frontend.set_vring_enable(0, false).unwrap();
    assert_eq!(server.shared.take(), [Event::Enabled(0, false)]);
    drop(frontend);
    server.shared.wait_for_end();
    assert_serves(&server);
}

#[test]
fn stop_while_idle() {
    let mut server = Server::new(1);
    server.stop.signal();
    server.join();
    assert!(!server.path.exists(), "the socket file is left behind");
    assert_eq!(server.shared.take(), []);
}

#[test]
fn stop_while_a_ring_runs() {
    let mut server = Server::new(1);
    let (frontend, _guest, _fds) = running(&server);
    server.stop.signal();
    server.join();
    let (end, before) = server.shared.wait_for_end();
    assert_eq!((end.as_str(), before), ("the export stopped", vec![Event::Stop(0)]));
    frontend.get_features().unwrap_err();
    assert!(!server.path.exists());
}

#[test]
fn stop_while_half_a_message_is_there() {
    let mut server = Server::new(1);
    let mut raw = server.raw_negotiated();
    raw.send_bytes(&[5, 0, 0, 0, 1, 0, 0, 0, 40, 0, 0, 0, 1], &[]);
    raw.wait_until_read();
    server.stop.signal();
    server.join();
    assert!(raw.is_closed());
}

#[test]
fn stop_while_the_frontend_does_not_read_its_answers() {
    let mut server = Server::new(1);
    let raw = server.raw_negotiated();
    let mut body: Vec<u8> = [0u32, 64, 0].iter().flat_map(|field| field.to_ne_bytes()).collect();
    body.extend_from_slice(&[0; 64]);
    raw.0.set_nonblocking(true).unwrap();
    let mut bytes: Vec<u8> =
        [R::GET_CONFIG.into(), 1, body.len() as u32].iter().flat_map(|field: &u32| field.to_ne_bytes()).collect();
    bytes.extend_from_slice(&body);
    // Both directions fill up: the server waits to write, then it reads no more, and then nobody can write.
    let patience = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
    while poll(&mut [PollFd::new(&raw.0, PollFlags::OUT)], Some(&patience)).unwrap() > 0 {
        match send(&raw.0, &bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => assert_eq!(sent, bytes.len()),
            Err(error) => assert_eq!(error, Errno::AGAIN),
        }
    }
    server.stop.signal();
    server.join();
}

/// A backend that has come back with other options may lack what its frontend negotiated. Rings that go on with half of it
/// would wait for notifications that never come.
#[test]
fn features_that_were_not_offered_end_a_session_that_cannot_be_told() {
    for (request, name) in [(R::SET_FEATURES, "SET_FEATURES"), (R::SET_PROTOCOL_FEATURES, "SET_PROTOCOL_FEATURES")] {
        let server = Server::new(1);
        let mut raw = server.raw_negotiated();
        assert!(
            !raw.acked(request, &(1u64 << 63).to_ne_bytes(), &[]),
            "an acknowledgement says so, and the session goes on"
        );
        raw.send(request.into(), 1, &(1u64 << 63).to_ne_bytes(), &[]);
        assert!(raw.is_closed());
        let (end, _) = server.shared.wait_for_end();
        assert!(end.contains(name) && end.contains("were not offered"), "{end}");
        assert_serves(&server);
    }
}
