//! The dirty log: shown by the frontend, checked here, and given to rings that run and to those that start.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::common::{Event, Guest, NEED_REPLY, PATIENCE, RingFds, Server, addresses, memfd, running, set_up_ring};
use vhost::vhost_user::message::{FrontendReq as R, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VringConfigData};
use vring::SplitRing;

/// VHOST_F_LOG_ALL.
const LOG_ALL: u64 = 1 << 26;
/// VHOST_VRING_F_LOG.
const F_LOG: u32 = 1;
/// Bytes of a log for the memory of the tests, 16 pages.
const LOG_BYTES: u64 = 2;
/// Guest address of the first ring's used ring.
const USED: u64 = 0x200;

fn region(file: &File, bytes: u64, offset: u64) -> Option<VhostUserDirtyLogRegion> {
    Some(VhostUserDirtyLogRegion { mmap_size: bytes, mmap_offset: offset, mmap_handle: file.as_raw_fd() })
}

/// Shows a log of so many bytes, which begins at this place of its file.
fn show(frontend: &Frontend, bytes: u64, offset: u64) -> File {
    let file = memfd(offset + bytes);
    frontend.set_log_base(0, region(&file, bytes, offset)).unwrap();
    file
}

fn logged(index: usize, used: u64) -> VringConfigData {
    VringConfigData { flags: F_LOG, log_addr: Some(used), ..addresses(index) }
}

/// Acknowledges all features but LOG_ALL, or that as well.
fn set_log_all(frontend: &Frontend, on: bool) -> bool {
    let all = frontend.get_features().unwrap();
    assert_ne!(all & LOG_ALL, 0, "it is offered");
    frontend.set_features(if on { all } else { all & !LOG_ALL }).is_ok()
}

/// A frontend whose first ring runs, and that does not log.
fn quiet(server: &Server) -> (Frontend, Guest, RingFds) {
    let all = running(server);
    assert!(set_log_all(&all.0, false));
    server.shared.take();
    all
}

/// What the first ring marks when it begins to log: all of its used ring.
fn marks(server: &Server, file: &File, bytes: usize) -> Vec<u8> {
    let rings = server.shared.rings.lock().unwrap();
    let running = &rings[&0];
    let mut ring = SplitRing::new(running.memory.clone(), running.layout, Default::default()).unwrap();
    ring.set_log(running.log.clone());
    let mut seen = vec![0; bytes];
    file.read_exact_at(&mut seen, 0).unwrap();
    seen
}

#[test]
fn logging_is_offered_for_devices_that_can_be_migrated_and_is_not_theirs() {
    for (server, offered) in [(Server::new(1), true), (Server::without_log(1), false)] {
        let mut frontend = server.connect();
        assert_eq!(frontend.get_features().unwrap() & LOG_ALL != 0, offered);
        let features = frontend.get_features().unwrap();
        frontend.set_features(features).unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        assert_eq!(protocol.contains(VhostUserProtocolFeatures::LOG_SHMFD), offered);
        let told = server.shared.wait_for(|event| matches!(event, Event::Features(_)));
        assert!(matches!(told[..], [Event::Features(acked)] if acked & LOG_ALL == 0));
    }
}

/// As QEMU begins and gives up a migration, under a ring that runs.
#[test]
fn a_ring_that_runs_begins_to_log_and_ends() {
    let server = Server::new(1);
    let (frontend, _guest, _fds) = quiet(&server);
    let file = show(&frontend, LOG_BYTES, 3);
    assert_eq!(server.shared.take(), [], "nothing is logged before the feature is acknowledged");
    assert!(set_log_all(&frontend, true));
    frontend.set_vring_addr(0, &logged(0, USED)).unwrap();
    let events: Vec<_> = server.shared.take().into_iter().filter(|it| matches!(it, Event::Log(..))).collect();
    assert_eq!(events, [Event::Log(0, Some(None)), Event::Log(0, Some(Some(USED)))]);
    assert_eq!(marks(&server, &file, 5), [0, 0, 0, 1, 0]);

    // More memory is on its way: another log, while everything runs.
    let longer = show(&frontend, 2 * LOG_BYTES, 0);
    assert_eq!(server.shared.take(), [Event::Log(0, Some(Some(USED)))]);
    assert_eq!(marks(&server, &longer, 4), [1, 0, 0, 0]);

    assert!(set_log_all(&frontend, false));
    frontend.set_vring_addr(0, &addresses(0)).unwrap();
    let events: Vec<_> = server.shared.take().into_iter().filter(|it| !matches!(it, Event::Features(_))).collect();
    assert_eq!(events, [Event::Log(0, None)], "it was not stopped for any of this");
    assert!(server.shared.rings.lock().unwrap()[&0].log.is_none());
    // The log is forgotten: whoever begins again shows another one first.
    assert!(set_log_all(&frontend, true));
    assert!(matches!(server.shared.take()[..], [Event::Features(_), Event::Log(0, None)]));
    assert!(set_log_all(&frontend, false));
    server.shared.take();
    let another = show(&frontend, LOG_BYTES, 0);
    assert!(set_log_all(&frontend, true));
    assert!(matches!(server.shared.take()[..], [Event::Features(_), Event::Log(0, Some(None))]));
    let mut seen = [0; LOG_BYTES as usize];
    another.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(seen, [0, 0], "nothing was written that nobody knows of");
}

/// As QEMU up to 7.1 starts a device while it is being migrated: rings take requests before there is a log.
#[test]
fn what_was_written_before_the_first_log_is_all_of_the_memory() {
    let server = Server::new(1);
    let (frontend, _guest, _fds) = running(&server);
    // Of pages 0 to 15; the second log is shown under a ring that logs already.
    for expected in [[0xff, 0xff], [0, 0]] {
        let file = show(&frontend, LOG_BYTES, 0);
        let mut seen = [0; LOG_BYTES as usize];
        file.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!(seen, expected);
    }
}

/// The same of a ring that serves when logging begins without a log.
#[test]
fn what_is_written_between_the_feature_and_the_log_is_all_of_the_memory() {
    let server = Server::new(1);
    let (frontend, _guest, _fds) = quiet(&server);
    assert!(set_log_all(&frontend, true));
    let file = show(&frontend, LOG_BYTES, 0);
    let mut seen = [0; LOG_BYTES as usize];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(seen, [0xff, 0xff]);
}

/// A log that nobody uses any more says nothing about memory that came since.
#[test]
fn a_log_of_a_migration_that_was_given_up_stands_in_the_way_of_nothing() {
    let server = Server::new(1);
    let (mut frontend, _guest, _fds) = quiet(&server);
    show(&frontend, LOG_BYTES, 0);
    assert!(set_log_all(&frontend, true));
    assert!(set_log_all(&frontend, false));
    frontend.get_vring_base(0).unwrap();
    assert!(set_log_all(&frontend, true));
    // Beyond what the log had.
    frontend.set_vring_addr(0, &logged(0, 0x12000)).unwrap();
    let _again = set_up_ring(&frontend, 0, 0);
    frontend.set_vring_enable(0, true).unwrap();
    assert!(server.shared.rings.lock().unwrap().contains_key(&0));
}

/// As QEMU starts a device while it is being migrated.
#[test]
fn a_ring_that_starts_logs_from_its_first_request_on() {
    let server = Server::new(2);
    let mut frontend = server.negotiated();
    let guest = Guest::new(0, 0x10000);
    frontend.set_mem_table(&[guest.region]).unwrap();
    let _first = set_up_ring(&frontend, 0, 0);
    frontend.set_vring_addr(0, &logged(0, USED)).unwrap();
    server.shared.take();
    let file = show(&frontend, LOG_BYTES, 0);
    let _second = set_up_ring(&frontend, 1, 0);
    for index in 0..2 {
        frontend.set_vring_enable(index, true).unwrap();
    }
    let rings = server.shared.rings.lock().unwrap();
    let used = |index| rings[&index].log.as_ref().map(|log| log.used);
    assert_eq!((used(0), used(1)), (Some(Some(USED)), Some(None)));
    drop(rings);
    assert_eq!(marks(&server, &file, 2), [1, 0]);
}

/// Why a session ends that shows such a log; `None` when it is taken.
fn refusal(body: &[u8], files: &[&File]) -> Option<String> {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let guest = Guest::new(0, 0x10000);
    let table = [1, 0, 0x10000, crate::common::USER_BASE, 0].map(u64::to_ne_bytes).concat();
    assert!(raw.acked(R::SET_MEM_TABLE, &table, &[guest.file.as_fd()]));
    let fds: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    // Whoever asks for an acknowledgement as well gets one answer.
    for flags in [1, NEED_REPLY] {
        raw.send(R::SET_LOG_BASE.into(), flags, body, &fds);
        let mut header = [0; 12];
        if raw.0.read_exact(&mut header).is_err() {
            return Some(server.shared.wait_for_end().0);
        }
        let mut answer = vec![0; body.len()];
        raw.0.read_exact(&mut answer).unwrap();
        assert_eq!(answer, body);
    }
    assert!(raw.acked(R::SET_OWNER, &[], &[]));
    None
}

#[test]
fn logs_that_are_none_end_the_session_and_say_why() {
    let file = memfd(0x1000);
    let directory = File::open("/").unwrap();
    let body = |bytes: u64, offset: u64| [bytes.to_ne_bytes(), offset.to_ne_bytes()].concat();
    for (bytes, offset, files, expected) in [
        (LOG_BYTES, 0, &[][..], "0 file descriptors"),
        (LOG_BYTES, 0, &[&file, &file], "2 file descriptors"),
        (LOG_BYTES, 0, &[&directory], "not a regular file"),
        (0, 0, &[&file], "its body is not valid"),
        (LOG_BYTES, 0xfff, &[&file], "needs 2 bytes from 4095 on and its file has 1 there"),
        (LOG_BYTES, 0x1000, &[&file], "has 0 there"),
        (0x1001, 0, &[&file], "needs 4097 bytes"),
        (u64::MAX, 0, &[&file], "has 4096 there"),
        (LOG_BYTES, u64::MAX, &[&file], "its body is not valid"),
        (1, u64::MAX - 1, &[&file], "has 0 there"),
        // It has bits for half of the memory.
        (LOG_BYTES - 1, 0, &[&file], "the dirty log of 1 bytes has no bit for guest address 0xffff"),
    ] {
        let why = refusal(&body(bytes, offset), files).unwrap_or_default();
        assert!(why.contains(expected), "{bytes} bytes at {offset:#x}: {why}");
    }
    let why = refusal(&[0; 8], &[&file]).unwrap_or_default();
    assert!(why.contains("8 bytes, expected 16"), "an address, as the kernel takes it: {why}");
    // Anywhere in its file, and of any length.
    assert_eq!(refusal(&body(LOG_BYTES, 0xffe), &[&file]), None);
    assert_eq!(refusal(&body(0x1000, 0), &[&file]), None);
}

#[test]
fn nothing_is_signalled_for_marks_and_nothing_is_logged_that_was_not_negotiated() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    assert!(!raw.acked(R::SET_LOG_FD, &[], &[memfd(8).as_fd()]));
    drop(raw);
    let server = Server::without_log(1);
    let mut raw = server.raw_negotiated();
    let body = [8u64.to_ne_bytes(), 0u64.to_ne_bytes()].concat();
    raw.send(R::SET_LOG_BASE.into(), 1, &body, &[memfd(8).as_fd()]);
    assert!(raw.is_closed());
    assert!(server.shared.wait_for_end().0.contains("it is not supported"));
}

#[test]
fn what_has_no_bit_in_the_log_is_refused_while_rings_take_requests() {
    let server = Server::new(1);
    let (mut frontend, guest, _fds) = running(&server);
    let _log = show(&frontend, LOG_BYTES, 0);
    let beyond = Guest::new(0x10000, 0x1000);
    assert!(frontend.add_mem_region(&beyond.region).is_err());
    assert!(frontend.set_vring_addr(0, &logged(0, 0xfff0)).is_err(), "the used ring ends behind it");
    assert!(frontend.set_vring_addr(0, &logged(0, u64::MAX)).is_err());
    frontend.set_vring_addr(0, &logged(0, 0xff00)).unwrap();
    let taken: Vec<_> = server.shared.take().into_iter().filter(|event| !matches!(event, Event::Log(..))).collect();
    assert_eq!(taken, [], "the ring and its memory are what they were");

    // A longer log first, as QEMU does it.
    let _longer = show(&frontend, LOG_BYTES + 1, 0);
    frontend.add_mem_region(&beyond.region).unwrap();
    // Nothing is refused while nothing is logged, and then logging is.
    assert!(set_log_all(&frontend, false));
    let _again = show(&frontend, LOG_BYTES + 1, 0);
    let far = Guest::new(0x10_0000, 0x1000);
    frontend.add_mem_region(&far.region).unwrap();
    assert!(!set_log_all(&frontend, true));
    // A ring that stands still may be told in any order; it does not take requests before all fits.
    frontend.get_vring_base(0).unwrap();
    frontend.set_vring_enable(0, false).unwrap();
    assert!(set_log_all(&frontend, true));
    let _fds = set_up_ring(&frontend, 0, 0);
    assert!(frontend.set_vring_enable(0, true).is_err());
    let _log = show(&frontend, 0x21, 0);
    frontend.set_vring_enable(0, true).unwrap();
    drop(guest);
}

#[test]
fn a_used_ring_cannot_be_logged_without_the_log_being_negotiated() {
    let server = Server::without_log(1);
    let (frontend, _guest, _fds) = running(&server);
    assert!(frontend.set_vring_addr(0, &logged(0, USED)).is_err());
}

#[test]
fn a_session_that_logs_goes_on_logging_where_it_was_handed_over_to() {
    let old = Server::new(1);
    let (frontend, _guest, _fds) = quiet(&old);
    let file = show(&frontend, LOG_BYTES, 2);
    assert!(set_log_all(&frontend, true));
    frontend.set_vring_addr(0, &logged(0, 0x3000)).unwrap();
    let soon = || Instant::now() + PATIENCE;
    let (state, hold) = old.handover.pause(soon()).wait(soon()).unwrap();
    let session = state.session.as_ref().unwrap();
    assert_eq!(session.log.as_ref().map(|log| (log.bytes, log.file_offset)), Some((LOG_BYTES, 2)));
    assert_eq!(session.rings[0].used_log, Some(0x3000));
    let (new, outcome) = Server::resumed(state, 1);
    assert_eq!(outcome, Ok(1));
    old.stop.signal();
    drop(hold);
    drop(old);
    assert_eq!(marks(&new, &file, 4), [0, 0, 1 << 3, 0]);
    // Which goes for the one after it as well, and ends when the frontend says so.
    assert!(set_log_all(&frontend, false));
    assert!(new.shared.rings.lock().unwrap()[&0].log.is_none());
}
