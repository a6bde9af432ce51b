//! The life of rings: negotiation, start, stop, restart, enable, call, reset, the end of a session.

use crate::common::{
    Custody, DEVICE_FEATURES, EVENT_IDX, Event, Guest, PATIENCE, PROTOCOL_FEATURES, RING_PROGRESS, Server, addresses,
    eventfd, is_signalled, negotiate, running, set_up_ring, started,
};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};

#[test]
fn everything_promised_is_offered() {
    let server = Server::new(4);
    let mut frontend = server.connect();
    let features = frontend.get_features().unwrap();
    let transport = 1 << 26 | 1 << 28 | 1 << 29 | 1 << 30 | 1 << 32 | 1 << 40;
    assert_eq!(features, DEVICE_FEATURES | transport);
    negotiate(&mut frontend);
    assert_eq!(server.shared.take(), [Event::Features(features & !(PROTOCOL_FEATURES | 1 << 26))]);
    use VhostUserProtocolFeatures as P;
    assert_eq!(
        frontend.get_protocol_features().unwrap(),
        P::MQ
            | P::CONFIG
            | P::REPLY_ACK
            | P::BACKEND_REQ
            | P::CONFIGURE_MEM_SLOTS
            | P::RESET_DEVICE
            | P::INFLIGHT_SHMFD
            | P::LOG_SHMFD
    );
    assert_eq!(frontend.get_queue_num().unwrap(), 4);
    assert_eq!(frontend.get_max_mem_slots().unwrap(), 509);
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let server = Server::new(1);
    let frontend = server.negotiated();
    let offered = frontend.get_features().unwrap();
    frontend.set_features(offered | 1 << 33).unwrap_err();
    assert_eq!(server.shared.take(), []);
    frontend.set_features(offered).unwrap();
}

#[test]
fn the_frontend_is_known_by_its_credentials() {
    let server = Server::new(1);
    let _frontend = server.connect();
    let info = server.shared.info.lock().unwrap().unwrap();
    assert_eq!(info.pid, Some(std::process::id()));
    assert_eq!(info.uid, Some(rustix::process::getuid().as_raw()));
}

#[test]
fn a_ring_starts_stops_and_starts_again_where_it_was() {
    let server = Server::new(2);
    let mut frontend = server.negotiated();
    let guest = Guest::new(0, 0x10000);
    frontend.set_mem_table(&[guest.region]).unwrap();
    assert_eq!(server.shared.take(), [Event::Memory(1)]);

    let _fds = set_up_ring(&frontend, 1, 7);
    let call_later = [true, false, false];
    assert_eq!(server.shared.take(), [started(1, 7, false, call_later), Event::Call(1, true)]);
    frontend.set_vring_enable(1, true).unwrap();
    assert_eq!(server.shared.take(), [Event::Enabled(1, true)]);

    assert_eq!(frontend.get_vring_base(1).unwrap(), u32::from(7 + RING_PROGRESS));
    assert_eq!(server.shared.take(), [Event::Stop(1)]);
    // A ring that is stopped is not stopped again.
    assert_eq!(frontend.get_vring_base(1).unwrap(), u32::from(7 + RING_PROGRESS));
    assert_eq!(server.shared.take(), []);

    // Queue reset: the same ring with a fresh index. It is still enabled, and its call descriptor is remembered.
    let _fds = set_up_ring(&frontend, 1, 0);
    assert_eq!(server.shared.take(), [started(1, 0, true, [true, true, false]), Event::Call(1, true)]);
}

#[test]
fn layout_and_features_reach_the_ring() {
    let server = Server::new(4);
    let frontend = server.connect();
    let features = frontend.get_features().unwrap() & !EVENT_IDX;
    frontend.set_features(features).unwrap();
    let guest = Guest::new(0, 0x10000);
    frontend.set_mem_table(&[guest.region]).unwrap();
    frontend.set_vring_num(3, 8).unwrap();
    frontend.set_vring_addr(3, &addresses(3)).unwrap();
    frontend.set_vring_kick(3, &eventfd()).unwrap();
    server.shared.wait_for(|event| matches!(event, Event::Start { .. }));
    let rings = server.shared.rings.lock().unwrap();
    let layout = rings[&3].layout;
    assert_eq!((layout.desc, layout.avail, layout.used), (0xc00, 0xd00, 0xe00));
    assert!(!layout.event_idx);
    assert!(layout.indirect);
    drop(rings);
    drop(frontend);
}

#[test]
fn without_protocol_features_a_ring_starts_enabled() {
    let server = Server::new(1);
    let frontend = server.connect();
    let features = frontend.get_features().unwrap();
    frontend.set_features(features & !PROTOCOL_FEATURES).unwrap();
    let guest = Guest::new(0, 0x10000);
    frontend.set_mem_table(&[guest.region]).unwrap();
    let _fds = set_up_ring(&frontend, 0, 0);
    let events = server.shared.wait_for(|event| matches!(event, Event::Start { .. }));
    assert_eq!(events.last(), Some(&started(0, 0, true, [true, false, false])));
}

#[test]
fn the_messages_of_a_ring_may_come_in_any_order() {
    let server = Server::new(1);
    let mut frontend = server.negotiated();
    let err = eventfd();
    frontend.set_vring_kick(0, &eventfd()).unwrap();
    frontend.set_vring_call(0, &eventfd()).unwrap();
    frontend.set_vring_err(0, &err).unwrap();
    frontend.set_vring_addr(0, &addresses(0)).unwrap();
    frontend.set_vring_num(0, 8).unwrap();
    frontend.set_vring_base(0, 9).unwrap();
    let guest = Guest::new(0, 0x10000);
    frontend.set_mem_table(&[guest.region]).unwrap();
    assert_eq!(server.shared.take(), [Event::Memory(1)]);
    frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(server.shared.take(), [started(0, 9, true, [true, true, true])]);
}

#[test]
fn memory_may_come_last() {
    let server = Server::new(1);
    let mut frontend = server.negotiated();
    let _fds = set_up_ring(&frontend, 0, 0);
    frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(server.shared.take(), []);
    let guest = Guest::new(0, 0x10000);
    frontend.add_mem_region(&guest.region).unwrap();
    assert_eq!(server.shared.take(), [Event::Memory(1), started(0, 0, true, [true, true, false])]);
}

#[test]
fn a_new_call_descriptor_replaces_the_old_one() {
    let server = Server::new(1);
    let (frontend, _guest, fds) = running(&server);
    assert!(is_signalled(&fds.call));
    let other = eventfd();
    frontend.set_vring_call(0, &other).unwrap();
    assert_eq!(server.shared.take(), [Event::Call(0, true)]);
    assert!(is_signalled(&other));
    assert!(!is_signalled(&fds.call));
}

#[test]
fn a_new_kick_descriptor_continues_the_ring() {
    let server = Server::new(1);
    let (frontend, _guest, _fds) = running(&server);
    frontend.set_vring_kick(0, &eventfd()).unwrap();
    let restarted = started(0, RING_PROGRESS, true, [true, true, false]);
    assert_eq!(server.shared.take(), [Event::Stop(0), restarted]);
}

#[test]
fn disabling_pauses_without_stopping() {
    let server = Server::new(1);
    let (mut frontend, _guest, _fds) = running(&server);
    frontend.set_vring_enable(0, false).unwrap();
    frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(server.shared.take(), [Event::Enabled(0, false), Event::Enabled(0, true)]);
}

#[test]
fn a_running_ring_keeps_its_shape() {
    let server = Server::new(1);
    let (frontend, _guest, _fds) = running(&server);
    frontend.set_vring_num(0, 16).unwrap_err();
    frontend.set_vring_base(0, 3).unwrap_err();
    frontend.set_vring_addr(0, &addresses(1)).unwrap_err();
    assert_eq!(server.shared.take(), []);
}

/// UML and Cloud Hypervisor reset a device by disabling its rings and setting them up anew, without GET_VRING_BASE.
#[test]
fn a_disabled_ring_may_be_set_up_anew() {
    let server = Server::new(1);
    let (mut frontend, guest, _fds) = running(&server);
    frontend.set_vring_enable(0, false).unwrap();
    server.shared.take();
    frontend.set_mem_table(&[guest.region]).unwrap();
    assert_eq!(server.shared.take(), [Event::Memory(1)]);
    let _fds = set_up_ring(&frontend, 0, 0);
    frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(
        server.shared.take(),
        [Event::Stop(0), started(0, 0, false, [true, true, false]), Event::Call(0, true), Event::Enabled(0, true)]
    );
}

#[test]
fn reset_stops_all_rings_and_keeps_the_session() {
    let server = Server::new(2);
    let (mut frontend, _guest, _fds) = running(&server);
    let _second = set_up_ring(&frontend, 1, 0);
    server.shared.take();
    frontend.reset_device().unwrap();
    assert_eq!(server.shared.take(), [Event::Stop(0), Event::Stop(1)]);
    // Nothing is left of the ring's state: a kick alone does not start it.
    frontend.set_vring_kick(0, &eventfd()).unwrap();
    assert_eq!(server.shared.take(), []);
    let _fds = set_up_ring(&frontend, 0, 0);
    let again = server.shared.take();
    assert_eq!(again[0], started(0, 0, false, [true, true, false]));
}

#[test]
fn rings_and_values_out_of_range_are_refused() {
    let server = Server::new(2);
    let mut frontend = server.negotiated();
    frontend.set_vring_num(2, 8).unwrap_err();
    frontend.set_vring_base(2, 8).unwrap_err();
    frontend.set_vring_addr(2, &addresses(2)).unwrap_err();
    frontend.set_vring_kick(2, &eventfd()).unwrap_err();
    frontend.set_vring_call(255, &eventfd()).unwrap_err();
    frontend.set_vring_err(2, &eventfd()).unwrap_err();
    frontend.set_vring_enable(299, true).unwrap_err();
    frontend.set_vring_num(0, 0).unwrap_err();
    frontend.set_vring_num(0, 9).unwrap_err();
    frontend.set_vring_num(0, 65535).unwrap_err();
    frontend.set_vring_num(0, 32768).unwrap();
    assert_eq!(server.shared.take(), []);
}

#[test]
fn a_ring_outside_memory_does_not_start() {
    let server = Server::new(1);
    let frontend = server.negotiated();
    // The used ring is cut off by the end of memory.
    let guest = Guest::new(0, 0x240);
    frontend.set_mem_table(&[guest.region]).unwrap();
    server.shared.take();
    frontend.set_vring_num(0, 8).unwrap();
    frontend.set_vring_addr(0, &addresses(0)).unwrap();
    frontend.set_vring_kick(0, &eventfd()).unwrap_err();
    assert_eq!(server.shared.take(), []);
}

#[test]
fn a_start_that_fails_is_told_and_can_be_tried_again() {
    let server = Server::new(1);
    let frontend = server.negotiated();
    let guest = Guest::new(0, 0x10000);
    frontend.set_mem_table(&[guest.region]).unwrap();
    server.shared.take();
    *server.shared.start_error.lock().unwrap() = Some("no worker".to_owned());
    frontend.set_vring_num(0, 8).unwrap();
    frontend.set_vring_addr(0, &addresses(0)).unwrap();
    frontend.set_vring_kick(0, &eventfd()).unwrap_err();
    assert_eq!(frontend.get_vring_base(0).unwrap(), 0);
    assert_eq!(server.shared.take(), []);
    let _fds = set_up_ring(&frontend, 0, 0);
    assert_eq!(server.shared.take()[0], started(0, 0, false, [true, false, false]));
}

#[test]
fn all_256_rings_run_and_are_stopped_at_the_end() {
    let server = Server::new(256);
    let mut frontend = server.negotiated();
    assert_eq!(frontend.get_queue_num().unwrap(), 256);
    let guest = Guest::new(0, 256 * 0x400);
    frontend.set_mem_table(&[guest.region]).unwrap();
    server.shared.take();
    let (kick, call) = (eventfd(), eventfd());
    for index in 0..256 {
        frontend.set_vring_num(index, 8).unwrap();
        frontend.set_vring_addr(index, &addresses(index)).unwrap();
        frontend.set_vring_call(index, &call).unwrap();
        frontend.set_vring_kick(index, &kick).unwrap();
    }
    let all: Vec<_> = (0..256).map(|index| started(index, 0, false, [true, true, false])).collect();
    assert_eq!(server.shared.take(), all);
    drop(frontend);
    let (reason, before) = server.shared.wait_for_end();
    assert_eq!(reason, "the frontend disconnected");
    assert_eq!(before, (0..256).map(Event::Stop).collect::<Vec<_>>());
}

#[test]
fn a_disconnect_stops_the_rings_and_the_next_session_works() {
    let server = Server::new(1);
    for _ in 0..3 {
        let (frontend, _guest, _fds) = running(&server);
        drop(frontend);
        let (reason, before) = server.shared.wait_for_end();
        assert_eq!(reason, "the frontend disconnected");
        assert_eq!(before, [Event::Stop(0)]);
    }
}

#[test]
fn acknowledgements_are_sent_only_where_asked_for() {
    let server = Server::new(1);
    let frontend = server.negotiated();
    frontend.set_hdr_flags(VhostUserHeaderFlag::empty());
    frontend.set_vring_num(0, 3).unwrap();
    frontend.set_vring_num(7, 8).unwrap();
    frontend.set_vring_num(0, 8).unwrap();
    // Were one of them acknowledged, this would read that instead of its answer.
    assert_eq!(frontend.get_vring_base(0).unwrap(), 0);
}

#[test]
fn what_others_may_have_is_given_up_with_the_last_ring() {
    let server = Server::new(2);
    let custody = || {
        let custody = server.shared.custody.lock().unwrap();
        (custody.is_held, custody.given_up)
    };
    let mut frontend = server.negotiated();
    let guest = Guest::new(0, 0x10000);
    frontend.set_mem_table(&[guest.region]).unwrap();
    for round in 0..2 {
        let _fds = [set_up_ring(&frontend, 0, 0), set_up_ring(&frontend, 1, 0)];
        assert_eq!(custody(), (true, 2 * round));
        frontend.get_vring_base(0).unwrap();
        assert_eq!(custody(), (true, 2 * round), "the other ring runs");
        frontend.get_vring_base(1).unwrap();
        // It was given up before the answer came.
        assert_eq!(custody(), (false, 2 * round + 1));
        let _fds = set_up_ring(&frontend, 0, 0);
        frontend.reset_device().unwrap();
        assert_eq!(custody(), (false, 2 * round + 2));
    }
    // Nor is it kept for a ring that does not start.
    *server.shared.start_error.lock().unwrap() = Some("a test".into());
    let fds = eventfd();
    frontend.set_vring_num(0, 16).unwrap();
    frontend.set_vring_addr(0, &addresses(0)).unwrap();
    frontend.set_vring_kick(0, &fds).unwrap_err();
    assert_eq!(custody(), (false, 5));
}

#[test]
fn who_cannot_have_what_others_have_is_hung_up_on() {
    let server = Server::new(1);
    server.shared.custody.lock().unwrap().refuses = Some("somebody else has it".into());
    let frontend = server.negotiated();
    let guest = Guest::new(0, 0x10000);
    frontend.set_mem_table(&[guest.region]).unwrap();
    frontend.set_vring_num(0, 16).unwrap();
    frontend.set_vring_addr(0, &addresses(0)).unwrap();
    frontend.set_vring_kick(0, &eventfd()).unwrap_err();
    assert_eq!(server.shared.wait_for_end().0, "what it serves is unavailable: somebody else has it");
    // It may connect again, and has it when it can.
    server.shared.custody.lock().unwrap().refuses = None;
    let (_frontend, _guest, _fds) = running(&server);
    assert!(server.shared.custody.lock().unwrap().is_held);
}

/// Whether nobody is connected then, or a frontend that has stopped its ring.
#[test]
fn what_is_kept_is_given_up_when_it_can() {
    std::thread::scope(|scope| {
        for stays in [true, false] {
            scope.spawn(move || is_given_up_when_it_can(stays));
        }
    });
}

fn is_given_up_when_it_can(stays: bool) {
    let server = Server::new(1);
    let (frontend, _guest, _fds) = running(&server);
    server.shared.custody.lock().unwrap().sticks = true;
    let _frontend = if stays {
        frontend.get_vring_base(0).unwrap();
        Some(frontend)
    } else {
        drop(frontend);
        server.shared.wait_for_end();
        None
    };
    let custody = |change: fn(&mut Custody)| {
        let mut custody = server.shared.custody.lock().unwrap();
        change(&mut custody);
        custody.given_up
    };
    assert_eq!(custody(|it| it.sticks = false), 0);
    let by = std::time::Instant::now() + PATIENCE;
    while custody(|_| ()) == 0 {
        assert!(std::time::Instant::now() < by, "it is kept");
        // However often somebody else wakes it.
        drop(server.handover.look());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
