//! The device's state: given out, and taken in, through pipes.

use std::fs::File;
use std::io::{Read, Write, pipe};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::thread::spawn;
use std::time::Instant;

use crate::common::{PATIENCE, Raw, Server, memfd, running, set_up_ring};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{
    FrontendReq as R, VhostTransferStateDirection, VhostTransferStatePhase, VhostUserProtocolFeatures,
};
use vhost_user::HandoverError;

/// VhostUserTransferDeviceState's directions, in the only phase.
const SAVE: [u32; 2] = [0, 0];
const LOAD: [u32; 2] = [1, 0];
/// "No file descriptor is returned", and what an error is.
const THROUGH_YOURS: u64 = 0x100;
const REFUSED: u64 = 0x101;

fn ask(raw: &mut Raw, request: R, body: &[u8], fds: &[BorrowedFd<'_>]) -> u64 {
    raw.send(request.into(), 1, body, fds);
    let (answered, flags, body) = raw.receive();
    assert_eq!((answered, flags), (request.into(), 0x5));
    u64::from_ne_bytes(body.try_into().unwrap())
}

fn set_pipe(raw: &mut Raw, way: [u32; 2], pipe: impl AsFd) -> u64 {
    let body: Vec<u8> = way.iter().flat_map(|field| field.to_ne_bytes()).collect();
    ask(raw, R::SET_DEVICE_STATE_FD, &body, &[pipe.as_fd()])
}

fn check(raw: &mut Raw) -> u64 {
    ask(raw, R::CHECK_DEVICE_STATE, &[], &[])
}

/// More than a pipe holds, and more than is moved at once.
fn state() -> Vec<u8> {
    (0..3_000_000_u32).map(|at| (at / 7) as u8).collect()
}

#[test]
fn it_is_offered_for_devices_that_have_one() {
    for (server, offered) in [(Server::with_state(1), true), (Server::new(1), false)] {
        let mut frontend = server.connect();
        let features = frontend.get_features().unwrap();
        frontend.set_features(features).unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        assert_eq!(protocol.contains(VhostUserProtocolFeatures::DEVICE_STATE), offered);
    }
    // Who did not agree on it is told so, and the session goes on.
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    assert_eq!(set_pipe(&mut raw, SAVE, pipe().unwrap().1), REFUSED);
    assert_eq!(check(&mut raw), 1);
    raw.ask_u64(R::GET_FEATURES);
}

#[test]
fn it_goes_out_and_comes_in_whole() {
    let (from, to) = (Server::with_state(1), Server::with_state(1));
    let (mut out, mut into) = (from.raw_negotiated(), to.raw_negotiated());
    *from.shared.state.lock().unwrap() = state();
    let (mut reader, writer) = pipe().unwrap();
    assert_eq!(set_pipe(&mut out, SAVE, &writer), THROUGH_YOURS);
    drop(writer);
    let mut moved = Vec::new();
    reader.read_to_end(&mut moved).unwrap();
    assert!(moved == state());
    assert_eq!(check(&mut out), 0);
    assert_eq!(check(&mut out), 1, "asked once more, nothing was moved");
    let (reader, mut writer) = pipe().unwrap();
    assert_eq!(set_pipe(&mut into, LOAD, &reader), THROUGH_YOURS);
    drop(reader);
    writer.write_all(&moved).unwrap();
    drop(writer);
    assert_eq!(check(&mut into), 0);
    assert!(*to.shared.state.lock().unwrap() == state());
    // As Cloud Hypervisor moves it.
    let (mut here, there) = UnixStream::pair().unwrap();
    assert_eq!(set_pipe(&mut out, SAVE, &there), THROUGH_YOURS);
    drop(there);
    let mut moved = Vec::new();
    here.read_to_end(&mut moved).unwrap();
    assert!(moved == state());
    assert_eq!(check(&mut out), 0);
    *to.shared.state.lock().unwrap() = Vec::new();
    let (mut here, there) = UnixStream::pair().unwrap();
    assert_eq!(set_pipe(&mut into, LOAD, &there), THROUGH_YOURS);
    drop(there);
    here.write_all(&moved).unwrap();
    here.shutdown(Shutdown::Write).unwrap();
    assert_eq!(check(&mut into), 0);
    assert!(*to.shared.state.lock().unwrap() == state());
    // What the device does not want is told.
    let (reader, mut writer) = pipe().unwrap();
    assert_eq!(set_pipe(&mut into, LOAD, &reader), THROUGH_YOURS);
    writer.write_all(b"refused").unwrap();
    drop(writer);
    assert_eq!(check(&mut into), 1);
    into.ask_u64(R::GET_FEATURES);
}

/// Flags of a pipe are those of both ends of a message.
#[test]
fn a_pipe_that_blocks_is_not_waited_for() {
    let server = Server::with_state(1);
    *server.shared.state.lock().unwrap() = state();
    let mut raw = server.raw_negotiated();
    for way in [SAVE, LOAD] {
        let (reader, writer) = pipe().unwrap();
        if way == SAVE {
            assert_eq!(set_pipe(&mut raw, way, &writer), THROUGH_YOURS);
        } else {
            assert_eq!(set_pipe(&mut raw, way, &reader), THROUGH_YOURS);
        }
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        rustix::io::ioctl_fionbio(&reader, false).unwrap();
        // Something to do, and then nothing any more.
        if way == SAVE {
            rustix::io::read(&reader, &mut [0; 5000][..]).unwrap();
        } else {
            rustix::io::write(&writer, b"12").unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        raw.ask_u64(R::GET_FEATURES);
        assert_eq!(check(&mut raw), 1);
    }
    // Nor is a socket, which nobody reads, or writes to.
    let (here, there) = UnixStream::pair().unwrap();
    for way in [SAVE, LOAD] {
        assert_eq!(set_pipe(&mut raw, way, &there), THROUGH_YOURS);
        rustix::io::write(&here, b"12").unwrap();
        raw.ask_u64(R::GET_FEATURES);
        assert_eq!(check(&mut raw), 1);
    }
    assert_eq!(set_pipe(&mut raw, SAVE, &there), THROUGH_YOURS);
    drop((here, there));
    assert_eq!(check(&mut raw), 1, "a reader that is gone ends no process");
    // One with a name, whose calls cannot say that they do not wait.
    let directory = tempfile::tempdir().unwrap();
    let named = directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &named, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let both = File::options().read(true).write(true).open(&named).unwrap();
    assert_eq!(set_pipe(&mut raw, SAVE, &both), THROUGH_YOURS);
    raw.ask_u64(R::GET_FEATURES);
    assert_eq!(rustix::io::read(&both, &mut [0; 5000][..]), Ok(5000));
    assert_eq!(check(&mut raw), 1);
    while rustix::io::ioctl_fionread(&both).unwrap() > 0 {
        rustix::io::read(&both, &mut [0; 5000][..]).unwrap();
    }
    assert_eq!(set_pipe(&mut raw, LOAD, &both), THROUGH_YOURS);
    rustix::io::write(&both, b"12").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    raw.ask_u64(R::GET_FEATURES);
    assert_eq!(check(&mut raw), 1);
}

/// A frontend that does not read or write keeps nobody from being served.
#[test]
fn whoever_stalls_stalls_alone() {
    let server = Server::with_state(1);
    *server.shared.state.lock().unwrap() = state();
    let mut raw = server.raw_negotiated();
    let (reader, writer) = pipe().unwrap();
    assert_eq!(set_pipe(&mut raw, SAVE, &writer), THROUGH_YOURS);
    raw.ask_u64(R::GET_FEATURES);
    let pending = server.handover.pause(Instant::now() + PATIENCE);
    assert!(
        matches!(pending.wait(Instant::now() + PATIENCE), Err(HandoverError::Refused(why)) if why.contains("on its way"))
    );
    assert_eq!(check(&mut raw), 1, "it was not read");
    // Nor one that closes its end, or goes on to another pipe.
    drop((reader, writer));
    let (reader, writer) = pipe().unwrap();
    assert_eq!(set_pipe(&mut raw, SAVE, &writer), THROUGH_YOURS);
    drop((reader, writer));
    assert_eq!(check(&mut raw), 1);
    let (reader, mut writer) = pipe().unwrap();
    assert_eq!(set_pipe(&mut raw, LOAD, &reader), THROUGH_YOURS);
    writer.write_all(b"half").unwrap();
    assert_eq!(check(&mut raw), 1, "its end is open");
    assert!(*server.shared.state.lock().unwrap() == state(), "half of it is nothing");
    assert_eq!(set_pipe(&mut raw, LOAD, &reader), THROUGH_YOURS);
    writer.write_all(b"another").unwrap();
    drop(writer);
    assert_eq!(check(&mut raw), 0);
    assert_eq!(*server.shared.state.lock().unwrap(), b"another");
    let (reader, writer) = pipe().unwrap();
    assert_eq!(set_pipe(&mut raw, SAVE, &writer), THROUGH_YOURS);
    drop(writer);
    let read = spawn(move || {
        let mut reader = reader;
        let mut moved = Vec::new();
        reader.read_to_end(&mut moved).unwrap();
        moved.len()
    });
    drop(raw);
    assert!(read.join().unwrap() <= state().len(), "the session's end closes it");
}

#[test]
fn what_could_block_or_makes_no_sense_is_refused() {
    let server = Server::with_state(1);
    let mut raw = server.raw_negotiated();
    let (reader, writer) = pipe().unwrap();
    assert_eq!(set_pipe(&mut raw, SAVE, memfd(4096)), REFUSED);
    assert_eq!(set_pipe(&mut raw, LOAD, File::open("/dev/zero").unwrap()), REFUSED);
    let datagrams = std::os::unix::net::UnixDatagram::pair().unwrap();
    assert_eq!(set_pipe(&mut raw, SAVE, &datagrams.0), REFUSED);
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = std::net::TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
    assert_eq!(set_pipe(&mut raw, LOAD, &tcp), REFUSED);
    assert_eq!(set_pipe(&mut raw, [2, 0], &writer), REFUSED);
    assert_eq!(set_pipe(&mut raw, [0, 1], &writer), REFUSED);
    assert_eq!(ask(&mut raw, R::SET_DEVICE_STATE_FD, &[0; 8], &[]), REFUSED);
    assert_eq!(ask(&mut raw, R::SET_DEVICE_STATE_FD, &[0; 7], &[writer.as_fd()]), REFUSED);
    assert_eq!(ask(&mut raw, R::SET_DEVICE_STATE_FD, &[0; 8], &[writer.as_fd(), reader.as_fd()]), REFUSED);
    // The wrong end of a pipe.
    assert_eq!(set_pipe(&mut raw, LOAD, &writer), THROUGH_YOURS);
    assert_eq!(check(&mut raw), 1);
    raw.ask_u64(R::GET_FEATURES);
    drop(raw);
    server.shared.wait_for_end();
    *server.shared.state.lock().unwrap() = b"cannot be saved".to_vec();
    let mut raw = server.raw_negotiated();
    assert_eq!(set_pipe(&mut raw, SAVE, &writer), REFUSED);
}

#[test]
fn a_device_that_runs_has_no_state_to_move() {
    let server = Server::with_state(1);
    let (frontend, _guest, _fds) = running(&server);
    let (_reader, writer) = pipe().unwrap();
    assert!(
        frontend
            .set_device_state_fd(VhostTransferStateDirection::SAVE, VhostTransferStatePhase::STOPPED, writer.into(),)
            .is_err()
    );
    assert!(frontend.check_device_state().is_err());
    frontend.get_features().unwrap();
}

/// Who begins to log and does not move the state would leave it behind.
#[test]
fn there_is_no_log_without_the_state() {
    let server = Server::with_state(1);
    let mut raw = server.raw_negotiated();
    let log = memfd(4096);
    let all = raw.ask_u64(R::GET_PROTOCOL_FEATURES);
    let without = all & !VhostUserProtocolFeatures::DEVICE_STATE.bits();
    raw.send(R::SET_PROTOCOL_FEATURES.into(), 1, &without.to_ne_bytes(), &[]);
    let shown: Vec<u8> = [4096_u64, 0].iter().flat_map(|field| field.to_ne_bytes()).collect();
    raw.send(R::SET_LOG_BASE.into(), 1, &shown, &[log.as_fd()]);
    let (why, _) = server.shared.wait_for_end();
    assert!(why.contains("DEVICE_STATE"), "{why}");
}

/// A migration that came to nothing, without a word.
#[test]
fn what_is_moved_ends_when_a_ring_starts() {
    let server = Server::with_state(1);
    *server.shared.state.lock().unwrap() = state();
    let (frontend, _guest, _fds) = running(&server);
    frontend.get_vring_base(0).unwrap();
    let (_reader, writer) = pipe().unwrap();
    let (direction, phase) = (VhostTransferStateDirection::SAVE, VhostTransferStatePhase::STOPPED);
    let mut frontend = frontend;
    frontend.set_device_state_fd(direction, phase, writer.into()).unwrap();
    set_up_ring(&frontend, 0, 0);
    frontend.set_vring_enable(0, true).unwrap();
    assert!(frontend.check_device_state().is_err());
    let pending = server.handover.pause(Instant::now() + PATIENCE);
    drop(pending.wait(Instant::now() + PATIENCE).unwrap());
}
