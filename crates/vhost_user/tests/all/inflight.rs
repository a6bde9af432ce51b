//! The inflight region: made for the frontend, kept by it, and given to rings.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use crate::common::{Event, Guest, RingFds, Server, eventfd, memfd, set_up_ring, started};
use rustix::fs::{SealFlags, fcntl_get_seals};
use vhost::VhostBackend;
use vhost::vhost_user::message::{FrontendReq as R, VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};

/// Descriptors that a queue has room for in a region that was made here, and the bytes that they take.
const ROOM: u16 = 1024;
const QUEUE_BYTES: u64 = 16_448;

fn asked(queues: u16, queue_size: u16) -> VhostUserInflight {
    VhostUserInflight::new(0, 0, queues, queue_size)
}

/// A frontend with memory and a region for rings of eight descriptors.
fn tracked(server: &Server, queues: u16) -> (Frontend, Guest, VhostUserInflight, File) {
    let mut frontend = server.negotiated();
    let guest = Guest::new(0, 0x10000);
    frontend.set_mem_table(&[guest.region]).unwrap();
    let (region, file) = frontend.get_inflight_fd(&asked(queues, 8)).unwrap();
    frontend.set_inflight_fd(&region, file.as_raw_fd()).unwrap();
    server.shared.take();
    (frontend, guest, region, file)
}

fn start(frontend: &mut Frontend, index: usize) -> RingFds {
    let fds = set_up_ring(frontend, index, 0);
    frontend.set_vring_enable(index, true).unwrap();
    fds
}

fn inflight_events(server: &Server) -> Vec<Event> {
    server.shared.take().into_iter().filter(|event| matches!(event, Event::Inflight(..))).collect()
}

#[test]
fn a_new_region_is_empty_and_cannot_shrink() {
    let server = Server::new(4);
    let mut frontend = server.negotiated();
    let (region, file) = frontend.get_inflight_fd(&asked(3, 8)).unwrap();
    assert_eq!((region.mmap_size, region.mmap_offset), (3 * QUEUE_BYTES, 0));
    assert_eq!((region.num_queues, region.queue_size), (3, 8));
    assert_eq!(file.metadata().unwrap().len(), 3 * QUEUE_BYTES);
    let mut bytes = [1; 3 * QUEUE_BYTES as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
    assert!(fcntl_get_seals(&file).unwrap().contains(SealFlags::SHRINK));
    // The largest one that a device can have.
    let (region, _file) = frontend.get_inflight_fd(&asked(4, 32768)).unwrap();
    assert_eq!(region.mmap_size, 4 * 524_352);
}

#[test]
fn rings_get_their_part_of_the_region() {
    let server = Server::new(2);
    let (mut frontend, _guest, _region, file) = tracked(&server, 2);
    let _fds = [start(&mut frontend, 1), start(&mut frontend, 0)];
    assert_eq!(inflight_events(&server), [Event::Inflight(1, ROOM), Event::Inflight(0, ROOM)]);
    // Each its own: what one resets, the frontend sees there.
    file.write_all_at(&[1; 2 * QUEUE_BYTES as usize], 0).unwrap();
    server.shared.rings.lock().unwrap().get_mut(&1).unwrap().inflight.as_mut().unwrap().reset();
    let version = |queue: u64| {
        let mut bytes = [0; 2];
        file.read_exact_at(&mut bytes, queue * QUEUE_BYTES + 8).unwrap();
        u16::from_ne_bytes(bytes)
    };
    assert_eq!((version(0), version(1)), (0x101, 0));
}

#[test]
fn a_region_may_lie_anywhere_in_a_file_of_the_frontends_own() {
    let server = Server::new(1);
    let mut frontend = server.negotiated();
    let guest = Guest::new(0, 0x10000);
    frontend.set_mem_table(&[guest.region]).unwrap();
    let file = memfd(0x3000);
    let region = VhostUserInflight::new(0x1000, 0x1840, 1, 256);
    // Room for one queue of 256 descriptors, which takes 4160 bytes, is not in the 4096 that the frontend gives it.
    frontend.set_inflight_fd(&region, file.as_raw_fd()).unwrap_err();
    let region = VhostUserInflight::new(0x1040, 0x1840, 1, 256);
    frontend.set_inflight_fd(&region, file.as_raw_fd()).unwrap();
    server.shared.take();
    let _fds = start(&mut frontend, 0);
    assert_eq!(inflight_events(&server), [Event::Inflight(0, 256)]);
    file.write_all_at(&[1; 0x3000], 0).unwrap();
    server.shared.rings.lock().unwrap().get_mut(&0).unwrap().inflight.as_mut().unwrap().reset();
    let mut bytes = [0; 0x3000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let zeroed: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] == 0).collect();
    assert_eq!(zeroed, [0x1848, 0x1849]);
}

#[test]
fn regions_that_cannot_be_are_refused_and_the_session_goes_on() {
    let server = Server::new(2);
    let (mut frontend, _guest, region, file) = tracked(&server, 2);
    let size = region.mmap_size;
    for wrong in [
        VhostUserInflight::new(383, 0, 2, 8),
        VhostUserInflight::new(size, 8, 2, 8),
        VhostUserInflight::new(u64::MAX, u64::MAX - 7, 2, 8),
        VhostUserInflight::new(u64::MAX, 0, 3, 8),
        VhostUserInflight::new(size, 0, 2, 2048),
        VhostUserInflight::new(size, 0, 1, 32769),
    ] {
        frontend.set_inflight_fd(&wrong, file.as_raw_fd()).unwrap_err();
    }
    frontend.set_inflight_fd(&region, eventfd().as_raw_fd()).unwrap_err();
    // What was there before is still in force.
    let _fds = start(&mut frontend, 0);
    assert_eq!(inflight_events(&server), [Event::Inflight(0, ROOM)]);
    // And stays so while a ring writes into it.
    frontend.set_inflight_fd(&region, file.as_raw_fd()).unwrap_err();
    frontend.set_vring_enable(0, false).unwrap();
    server.shared.take();
    frontend.set_inflight_fd(&region, file.as_raw_fd()).unwrap();
    assert_eq!(server.shared.take(), [Event::Stop(0)]);
}

#[test]
fn a_ring_that_is_not_in_the_region_does_not_start() {
    let server = Server::new(2);
    let (frontend, _guest, ..) = tracked(&server, 1);
    let fds = RingFds::new();
    frontend.set_vring_num(1, 8).unwrap();
    frontend.set_vring_addr(1, &crate::common::addresses(1)).unwrap();
    frontend.set_vring_kick(1, &fds.kick).unwrap_err();
    assert_eq!(server.shared.take(), []);
}

/// QEMU asks by a property, and lets drivers make larger rings.
#[test]
fn a_region_has_room_for_larger_rings_than_it_was_asked_for() {
    let server = Server::new(2);
    let (mut frontend, _guest, ..) = tracked(&server, 2);
    let (region, file) = frontend.get_inflight_fd(&asked(2, 4)).unwrap();
    assert_eq!((region.mmap_size, region.queue_size), (2 * QUEUE_BYTES, 4));
    frontend.set_inflight_fd(&region, file.as_raw_fd()).unwrap();
    let _fds = start(&mut frontend, 1);
    assert_eq!(inflight_events(&server), [Event::Inflight(1, ROOM)]);
}

#[test]
fn a_ring_that_is_larger_than_its_region_is_served_without() {
    let server = Server::new(2);
    let (mut frontend, _guest, ..) = tracked(&server, 2);
    let file = memfd(0x1000);
    frontend.set_inflight_fd(&VhostUserInflight::new(256, 0, 2, 4), file.as_raw_fd()).unwrap();
    let _fds = start(&mut frontend, 1);
    assert_eq!(inflight_events(&server), []);
    assert!(server.shared.rings.lock().unwrap().contains_key(&1));
}

#[test]
fn a_reset_device_has_nothing_in_flight() {
    let server = Server::new(2);
    let (mut frontend, _guest, _region, file) = tracked(&server, 2);
    let _fds = start(&mut frontend, 0);
    file.write_all_at(&[1; 2 * QUEUE_BYTES as usize], 0).unwrap();
    frontend.reset_device().unwrap();
    for queue in [0, 1] {
        let mut version = [1; 2];
        file.read_exact_at(&mut version, queue * QUEUE_BYTES + 8).unwrap();
        assert_eq!(version, [0, 0]);
    }
    // The region itself stays: not every frontend shows it again.
    server.shared.take();
    let _fds = start(&mut frontend, 0);
    assert_eq!(inflight_events(&server), [Event::Inflight(0, ROOM)]);
}

#[test]
fn the_messages_are_understood_at_both_of_their_lengths() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    for bytes in [20, 24] {
        let mut body = [0_u64.to_ne_bytes(); 2].concat();
        body.extend_from_slice(&1_u16.to_ne_bytes());
        body.extend_from_slice(&8_u16.to_ne_bytes());
        body.resize(bytes, 0);
        raw.send(R::GET_INFLIGHT_FD.into(), 1, &body, &[]);
        let (answered, flags, answer) = raw.receive();
        assert_eq!((answered, flags, answer.len()), (R::GET_INFLIGHT_FD.into(), 0x5, bytes));
        assert_eq!(answer[..8], QUEUE_BYTES.to_ne_bytes());
        assert_eq!(answer[8..], body[8..]);
        let file = memfd(0x5000);
        assert!(raw.acked(R::SET_INFLIGHT_FD, &answer, &[file.as_fd()]));
        assert!(!raw.acked(R::SET_INFLIGHT_FD, &answer, &[]));
        assert!(!raw.acked(R::SET_INFLIGHT_FD, &answer[..16], &[file.as_fd()]));
    }
}

#[test]
fn a_frontend_that_cannot_be_told_that_its_region_is_refused_is_left() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let file = memfd(0x1000);
    let mut body = [u64::MAX.to_ne_bytes(); 2].concat();
    body.extend_from_slice(&[1, 0, 8, 0]);
    raw.send(R::SET_INFLIGHT_FD.into(), 1, &body, &[file.as_fd()]);
    assert!(raw.is_closed());
    let (end, _) = server.shared.wait_for_end();
    assert!(end.contains("SET_INFLIGHT_FD"), "{end}");
}

#[test]
fn devices_whose_requests_must_not_be_done_twice_offer_no_region() {
    let server = Server::without_inflight(1);
    let mut frontend = server.negotiated();
    assert!(!frontend.get_protocol_features().unwrap().contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD));
    drop(frontend);
    server.shared.wait_for_end();
    let mut raw = server.raw_negotiated();
    let file = memfd(0x1000);
    let mut body = [0_u64.to_ne_bytes(); 2].concat();
    body.extend_from_slice(&[1, 0, 8, 0, 0, 0, 0, 0]);
    assert!(!raw.acked(R::SET_INFLIGHT_FD, &body, &[file.as_fd()]));
}

#[test]
fn a_frontend_that_never_shows_a_region_is_served_without() {
    let server = Server::new(1);
    let frontend = server.negotiated();
    let guest = Guest::new(0, 0x10000);
    frontend.set_mem_table(&[guest.region]).unwrap();
    server.shared.take();
    let _fds = set_up_ring(&frontend, 0, 0);
    assert_eq!(server.shared.take(), [started(0, 0, false, [true, false, false]), Event::Call(0, true)]);
}
