//! A session pauses between two messages, and goes on: here, or where its state was handed over to.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::common::{Event, Guest, PATIENCE, RING_PROGRESS, Server, is_signalled, peek, running, set_up_ring, started};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::FrontendReq;
use vhost_user::{EndpointState, Handover, HandoverError, Hold, Kick};

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

fn pause(server: &Server) -> Result<(EndpointState, Hold), HandoverError> {
    server.handover.pause(soon()).wait(soon())
}

#[test]
fn a_session_goes_on_where_it_was_handed_over_to() {
    let old = Server::new(4);
    let (mut frontend, guest, fds) = running(&old);
    guest.poke(0x4000, &77u64.to_le_bytes());
    let extra = Guest::at(0x10_0000, 0x2000, 0x1000);
    frontend.add_mem_region(&extra.region).unwrap();
    old.shared.take();

    let (state, hold) = pause(&old).unwrap();
    assert_eq!(old.shared.take(), [Event::Enabled(0, false), Event::Stop(0)]);
    let session = state.session.as_ref().unwrap();
    let ring = &session.rings[0];
    assert_eq!((session.rings.len(), ring.index, ring.size, ring.position.avail()), (1, 0, Some(8), RING_PROGRESS));
    assert!(ring.running && matches!(ring.kick, Kick::Eventfd(_)) && ring.err.is_none());
    assert_eq!(state.file.as_ref().unwrap().path, old.path);
    let _ = is_signalled(&fds.call);

    let (new, outcome) = Server::resumed(state, 4);
    assert_eq!(outcome, Ok(1));
    let events = new.shared.take();
    assert!(matches!(events[..], [Event::SessionStarted, Event::Features(_), Event::Memory(2), Event::Start { .. }]));
    assert_eq!(events[3], started(0, RING_PROGRESS, true, [true, true, false]));
    assert!(is_signalled(&fds.call), "a notification too many is better than one too few");
    {
        let rings = new.shared.rings.lock().unwrap();
        assert_eq!(peek(&rings[&0].memory, 0x4000), 77);
        extra.poke(0x10_0000, &78u64.to_le_bytes());
        assert_eq!(peek(&rings[&0].memory, 0x10_0000), 78);
    }
    // The other thread ends without a word to the frontend: the connection is the new one's as well.
    old.stop.signal();
    drop(hold);
    drop(old);
    assert_eq!(frontend.get_features().unwrap() & 1 << 9, 1 << 9);
    frontend.remove_mem_region(&extra.region).unwrap();
    assert_eq!(frontend.get_vring_base(0).unwrap(), u32::from(2 * RING_PROGRESS));
    drop(frontend);
    assert_eq!(new.shared.wait_for_end().0, "the frontend disconnected");
}

#[test]
fn a_session_that_was_not_handed_over_goes_on() {
    let server = Server::new(4);
    let (mut frontend, _guest, fds) = running(&server);
    for round in 1..=3u16 {
        let (state, hold) = pause(&server).unwrap();
        assert_eq!(server.shared.take(), [Event::Enabled(0, false), Event::Stop(0)]);
        drop((state, hold));
        let at = RING_PROGRESS * round;
        server.shared.wait_for(|event| *event == started(0, at, true, [true, true, false]));
        assert!(is_signalled(&fds.call));
    }
    frontend.set_vring_enable(0, false).unwrap();
    assert_eq!(frontend.get_vring_base(0).unwrap(), u32::from(4 * RING_PROGRESS));
}

#[test]
fn requests_that_were_left_are_taken_again_once() {
    let old = Server::new(4);
    let (frontend, _guest, _fds) = running(&old);
    let left = vec![3, 1];
    *old.shared.owed.lock().unwrap() = left.clone();
    old.shared.take();
    // Here, where nothing came of it; and in another program.
    drop(pause(&old).unwrap());
    old.shared.wait_for(|event| matches!(event, Event::Start { .. }));
    assert_eq!(old.shared.rings.lock().unwrap()[&0].owed, left);
    let (state, hold) = pause(&old).unwrap();
    assert_eq!(state.session.as_ref().unwrap().rings[0].owed, left);
    let (new, outcome) = Server::resumed(state, 4);
    assert_eq!(outcome, Ok(1));
    assert_eq!(new.shared.rings.lock().unwrap()[&0].owed, left);
    old.stop.signal();
    drop(hold);
    drop(old);
    // A ring that the frontend stops leaves nothing, and neither does one that is suspended with nothing left.
    let (state, hold) = pause(&new).unwrap();
    assert_eq!(state.session.as_ref().unwrap().rings[0].owed, Vec::<u16>::new());
    drop((state, hold));
    new.shared.wait_for(|event| *event == started(0, 3 * RING_PROGRESS, true, [true, true, false]));
    frontend.get_vring_base(0).unwrap();
}

#[test]
fn looking_stops_nothing() {
    let server = Server::new(4);
    let (frontend, _guest, _fds) = running(&server);
    let (state, hold) = server.handover.look().wait(soon()).unwrap();
    let rings = &state.session.as_ref().unwrap().rings;
    assert!(rings.len() == 1 && rings[0].running);
    drop((state, hold));
    frontend.get_features().unwrap();
    assert_eq!(server.shared.take(), []);
}

/// What a device's first queue is asked may be of requests on the others.
#[test]
fn the_first_ring_goes_on_last() {
    let old = Server::new(4);
    let (mut frontend, _guest, _fds) = running(&old);
    let _fds = [1, 3].map(|index| {
        let fds = set_up_ring(&frontend, index, 0);
        frontend.set_vring_enable(index, true).unwrap();
        fds
    });
    let order = |events: Vec<Event>| {
        let starts = events.iter().filter_map(|event| match event {
            Event::Start { index, .. } => Some(*index),
            _ => None,
        });
        starts.collect::<Vec<_>>()
    };
    frontend.get_features().unwrap();
    old.shared.take();
    drop(pause(&old).unwrap());
    frontend.get_features().unwrap();
    assert_eq!(order(old.shared.take()), [3, 1, 0]);
    let (state, hold) = pause(&old).unwrap();
    let (new, outcome) = Server::resumed(state, 4);
    assert_eq!((outcome, order(new.shared.take())), (Ok(3), vec![3, 1, 0]));
    old.stop.signal();
    drop(hold);
}

#[test]
fn what_was_said_about_a_ring_that_does_not_run_goes_along() {
    let old = Server::new(4);
    let (mut frontend, _guest, _fds) = running(&old);
    let fds = set_up_ring(&frontend, 2, 40);
    frontend.get_features().unwrap();
    let (state, hold) = pause(&old).unwrap();
    let ring = &state.session.as_ref().unwrap().rings[1];
    assert_eq!((ring.index, ring.position.avail(), ring.enabled), (2, 40 + RING_PROGRESS, None));
    let (new, outcome) = Server::resumed(state, 4);
    // SET_VRING_KICK starts a ring; that nobody has enabled it is another matter.
    assert_eq!(outcome, Ok(2));
    old.stop.signal();
    drop(hold);
    new.shared.wait_for(|event| *event == started(2, 40 + RING_PROGRESS, false, [true, true, false]));
    frontend.set_vring_enable(2, true).unwrap();
    new.shared.wait_for(|event| *event == Event::Enabled(2, true));
    drop(fds);
}

#[test]
fn an_idle_endpoint_is_handed_over_with_those_that_wait() {
    let old = Server::new(1);
    let (state, hold) = pause(&old).unwrap();
    assert!(state.session.is_none());
    let waiting = old.raw();
    let (new, outcome) = Server::resumed(state, 1);
    assert_eq!(outcome, Ok(0));
    new.shared.wait_for(|event| *event == Event::SessionStarted);
    old.stop.signal();
    drop((hold, waiting));
    new.shared.wait_for_end();
}

#[test]
fn the_rest_of_a_message_is_waited_for() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let mut message = Vec::new();
    for field in [u32::from(FrontendReq::GET_FEATURES), 1, 0] {
        message.extend_from_slice(&field.to_ne_bytes());
    }
    raw.0.write_all(&message[..5]).unwrap();
    raw.wait_until_read();
    let refused = pause(&server).unwrap_err();
    assert!(matches!(refused, HandoverError::HalfMessage), "{refused}");

    let pending = server.handover.pause(soon());
    raw.0.write_all(&message[5..]).unwrap();
    let (state, hold) = pending.wait(soon()).unwrap();
    assert!(state.session.is_some());
    drop((state, hold));
    let (answered, ..) = raw.receive();
    assert_eq!(answered, u32::from(FrontendReq::GET_FEATURES));
}

#[test]
fn nobody_waits_for_an_endpoint_that_has_ended() {
    let mut server = Server::new(1);
    server.stop.signal();
    server.join();
    assert!(matches!(pause(&server), Err(HandoverError::Ended)));
}

#[test]
fn a_ring_that_is_not_drained_goes_on() {
    let server = Server::new(4);
    let (mut frontend, _guest, _fds) = running(&server);
    *server.shared.in_flight.lock().unwrap() = Ok(3);
    let refused = server.handover.pause(Instant::now() + Duration::from_millis(20)).wait(soon()).unwrap_err();
    assert!(matches!(refused, HandoverError::Busy { index: 0, in_flight: 3 }), "{refused}");
    // It took no more requests for a while, and was never stopped.
    assert_eq!(server.shared.take(), [Event::Enabled(0, false), Event::Enabled(0, true)]);
    *server.shared.in_flight.lock().unwrap() = Err("its worker does not answer".into());
    let refused = pause(&server).unwrap_err();
    assert_eq!(refused.to_string(), "ring 0: its worker does not answer");
    assert_eq!(server.shared.take(), []);
    *server.shared.in_flight.lock().unwrap() = Ok(0);
    drop(pause(&server).unwrap());
    frontend.set_vring_enable(0, false).unwrap();
    assert_eq!(frontend.get_vring_base(0).unwrap(), u32::from(2 * RING_PROGRESS));
}

/// A caller that has given up is as if it had never asked.
#[test]
fn an_order_can_be_taken_back() {
    let server = Server::new(4);
    let (frontend, _guest, _fds) = running(&server);
    drop(server.handover.pause(soon()));
    let (state, hold) = server.handover.look().wait(soon()).unwrap();
    assert!(state.session.unwrap().rings[0].running);
    drop(hold);
    frontend.get_features().unwrap();
    assert!(server.shared.rings.lock().unwrap().contains_key(&0));
}

/// Whoever asks several endpoints finds out which of their threads is at something else, before others wait for it.
#[test]
fn an_order_is_known_to_be_taken() {
    let handover = Handover::new().unwrap();
    let briefly = || Instant::now() + Duration::from_millis(30);
    let taker = handover.taker();
    let pending = handover.pause(soon());
    assert!(matches!(pending.wait_until_taken(briefly()), Err(HandoverError::Unresponsive)));
    let order = handover.take().unwrap();
    pending.wait_until_taken(briefly()).unwrap();
    drop(order);
    let left = handover.pause(soon());
    drop(taker);
    for pending in [left, handover.pause(soon())] {
        pending.wait_until_taken(Instant::now()).unwrap();
        assert!(matches!(pending.wait(briefly()), Err(HandoverError::Ended)));
    }
}
