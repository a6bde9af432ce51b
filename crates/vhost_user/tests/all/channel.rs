//! The channel back, with a frontend that answers in time, late, wrongly, twice or never.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::common::{Guest, NEED_REPLY, PATIENCE, Raw, Server, running};
use rustix::net::{RecvFlags, recv};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::{BackendReq, FrontendReq};
use vhost_user::{BackendChannel, HandoverError, NoAnswer};

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(50);
/// An answer's flags: version 1, and REPLY.
const REPLY: u32 = 5;
const MAP: BackendReq = BackendReq::SHMEM_MAP;
const UNMAP: BackendReq = BackendReq::SHMEM_UNMAP;

type Answer = Receiver<Result<u64, NoAnswer>>;

/// The frontend's end of a channel, by the messages' bytes.
fn open(server: &Server, raw: &mut Raw) -> (Raw, BackendChannel) {
    let (near, far) = UnixStream::pair().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(raw.acked(FrontendReq::SET_BACKEND_REQ_FD, &[], &[near.as_fd()]));
    (Raw(far), server.shared.channel.lock().unwrap().clone().unwrap())
}

fn ask(channel: &BackendChannel, code: BackendReq, patience: Duration) -> Answer {
    let (told, answer) = self::channel();
    channel.ask(code, &7u64.to_ne_bytes(), None, patience, move |outcome| told.send(outcome).unwrap());
    answer
}

fn answer(far: &mut Raw, code: BackendReq, value: u64) {
    far.send(code.into(), REPLY, &value.to_ne_bytes(), &[]);
}

/// The outcome, which is told once.
fn outcome(answer: &Answer) -> Result<u64, NoAnswer> {
    let outcome = answer.recv_timeout(PATIENCE).expect("nobody is told anything");
    assert_eq!(answer.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
    outcome
}

/// Has a request be late that was sent. One that was late before the session's thread got to it is not, and asked again.
fn be_late(channel: &BackendChannel, far: &mut Raw) {
    loop {
        let began = Instant::now();
        let late = ask(channel, MAP, SHORT);
        assert_eq!(outcome(&late), Err(NoAnswer::Late));
        assert!(began.elapsed() >= SHORT);
        if recv(&far.0, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok() {
            far.receive();
            return;
        }
    }
}

#[test]
fn requests_are_answered_in_their_order() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let (mut far, channel) = open(&server, &mut raw);
    let answers = [ask(&channel, MAP, LONG), ask(&channel, UNMAP, LONG), ask(&channel, MAP, LONG)];
    assert!(channel.config_changed());
    for code in [MAP, UNMAP, MAP] {
        assert_eq!(far.receive(), (code.into(), NEED_REPLY, 7u64.to_ne_bytes().to_vec()));
    }
    // What asks for no answer has no place among those that do.
    assert_eq!(far.receive(), (BackendReq::CONFIG_CHANGE_MSG.into(), 1, vec![]));
    for (code, value) in [(MAP, 0), (UNMAP, 1), (MAP, u64::MAX)] {
        answer(&mut far, code, value);
    }
    assert_eq!(answers.each_ref().map(outcome), [Ok(0), Ok(1), Ok(u64::MAX)]);
}

#[test]
fn the_frontend_may_say_other_things_first() {
    let server = Server::new(4);
    let (mut frontend, _guest, _fds) = running(&server);
    let (near, far) = UnixStream::pair().unwrap();
    frontend.set_backend_request_fd(&near).unwrap();
    let mut far = Raw(far);
    let channel = server.shared.channel.lock().unwrap().clone().unwrap();
    let mapped = ask(&channel, MAP, LONG);
    far.receive();
    // As QEMU does, which waits for the end of this before it answers.
    let window = Guest::new(0x8000_0000, 0x1000);
    frontend.add_mem_region(&window.region).unwrap();
    frontend.get_features().unwrap();
    assert_eq!(mapped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
    answer(&mut far, MAP, 0);
    assert_eq!(outcome(&mapped), Ok(0));
}

#[test]
fn an_answer_that_comes_too_late_is_not_another_requests() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let (mut far, channel) = open(&server, &mut raw);
    be_late(&channel, &mut far);
    let next = ask(&channel, MAP, LONG);
    far.receive();
    answer(&mut far, MAP, 1);
    answer(&mut far, MAP, 2);
    assert_eq!(outcome(&next), Ok(2));
    raw.ask_u64(FrontendReq::GET_FEATURES);
}

#[test]
fn a_wrong_answer_closes_the_channel_and_nothing_else() {
    let wrong: [(u32, u32, Vec<u8>); 5] = [
        // To another request; not marked as an answer; of another version; without a number; with more than one.
        (UNMAP.into(), REPLY, vec![0; 8]),
        (MAP.into(), 1, vec![0; 8]),
        (MAP.into(), 6, vec![0; 8]),
        (MAP.into(), REPLY, vec![0; 4]),
        (MAP.into(), REPLY, vec![0; 16]),
    ];
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    for (code, flags, mut body) in wrong {
        let (mut far, channel) = open(&server, &mut raw);
        let answers = [ask(&channel, MAP, LONG), ask(&channel, UNMAP, LONG)];
        far.receive();
        let size = body.len() as u32;
        // What is too short waits for its rest.
        body.resize(body.len().max(8), 0);
        let header: Vec<u8> = [code, flags, size].into_iter().flat_map(u32::to_ne_bytes).collect();
        far.send_bytes(&[header, body].concat(), &[]);
        assert_eq!(answers.each_ref().map(outcome), [Err(NoAnswer::Misspoken); 2]);
        assert_eq!(outcome(&ask(&channel, MAP, LONG)), Err(NoAnswer::Closed));
        assert!(!channel.config_changed());
        raw.ask_u64(FrontendReq::GET_FEATURES);
    }
}

#[test]
fn answers_that_nobody_waits_for_are_left_alone() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let (mut far, channel) = open(&server, &mut raw);
    assert!(channel.config_changed());
    far.receive();
    // More than the session reads at a time, and more than it keeps.
    for _ in 0..1000 {
        answer(&mut far, BackendReq::CONFIG_CHANGE_MSG, 0);
    }
    far.wait_until_read();
    let mapped = ask(&channel, MAP, LONG);
    far.receive();
    // In pieces.
    for piece in [&u32::from(MAP).to_ne_bytes()[..], &REPLY.to_ne_bytes(), &8u32.to_ne_bytes(), &9u64.to_ne_bytes()] {
        far.send_bytes(piece, &[]);
        far.wait_until_read();
    }
    assert_eq!(outcome(&mapped), Ok(9));
    // And once more.
    answer(&mut far, MAP, 9);
    far.wait_until_read();
    let again = ask(&channel, MAP, LONG);
    far.receive();
    answer(&mut far, MAP, 10);
    assert_eq!(outcome(&again), Ok(10));
}

#[test]
fn a_frontend_that_says_nothing_is_asked_no_more_than_so_much() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let (far, channel) = open(&server, &mut raw);
    let answers: Vec<_> = (0..1000).map(|_| ask(&channel, MAP, LONG)).collect();
    let told = answers.iter().filter(|answer| answer.try_recv() == Ok(Err(NoAnswer::Full))).count();
    assert!((900..1000).contains(&told), "{told} of 1000 were refused");
    // Those that are late keep their places: their answers may still come.
    let late = ask(&channel, MAP, SHORT);
    assert_eq!(outcome(&late), Err(NoAnswer::Full));
    raw.ask_u64(FrontendReq::GET_FEATURES);
    drop(far);
    let closed = answers.iter().filter_map(|answer| answer.recv_timeout(PATIENCE).ok());
    assert_eq!(closed.filter(|outcome| *outcome == Err(NoAnswer::Closed)).count(), 1000 - told);
    raw.ask_u64(FrontendReq::GET_FEATURES);
}

#[test]
fn the_end_of_a_channel_or_of_its_session_is_told() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let handle = server.shared.channel.lock().unwrap().clone().unwrap();
    assert_eq!(outcome(&ask(&handle, MAP, LONG)), Err(NoAnswer::Closed));
    let (_first, channel) = open(&server, &mut raw);
    let replaced = ask(&channel, MAP, LONG);
    let (mut second, _) = open(&server, &mut raw);
    assert_eq!(outcome(&replaced), Err(NoAnswer::Closed));
    let left = ask(&channel, MAP, LONG);
    second.receive();
    drop(raw);
    assert_eq!(outcome(&left), Err(NoAnswer::Closed));
    assert!(second.is_closed());
    assert_eq!(outcome(&ask(&channel, MAP, LONG)), Err(NoAnswer::Closed));
}

#[test]
fn a_frontend_that_does_not_acknowledge_is_not_asked() {
    let server = Server::new(1);
    let mut raw = server.raw();
    raw.ask_u64(FrontendReq::GET_FEATURES);
    let (near, far) = UnixStream::pair().unwrap();
    raw.send(FrontendReq::SET_BACKEND_REQ_FD.into(), 1, &[], &[near.as_fd()]);
    raw.ask_u64(FrontendReq::GET_FEATURES);
    let channel = server.shared.channel.lock().unwrap().clone().unwrap();
    assert_eq!(outcome(&ask(&channel, MAP, LONG)), Err(NoAnswer::NotNegotiated));
    assert!(channel.config_changed());
    assert_eq!(Raw(far).receive(), (BackendReq::CONFIG_CHANGE_MSG.into(), 1, vec![]));
}

#[test]
fn a_session_that_waits_for_an_answer_is_not_handed_over() {
    let server = Server::new(1);
    let mut raw = server.raw_negotiated();
    let (mut far, channel) = open(&server, &mut raw);
    let mapped = ask(&channel, MAP, LONG);
    far.receive();
    let soon = || Instant::now() + PATIENCE;
    let refused = server.handover.pause(soon()).wait(soon());
    assert!(matches!(refused, Err(HandoverError::Unanswered)), "{refused:?}");
    answer(&mut far, MAP, 0);
    assert_eq!(outcome(&mapped), Ok(0));
    // One that nobody waits for any more stays with this program, and takes the channel along.
    be_late(&channel, &mut far);
    let (state, hold) = server.handover.pause(soon()).wait(soon()).unwrap();
    assert!(state.session.unwrap().backend_channel.is_none());
    drop(hold);
    answer(&mut far, MAP, 0);
    far.wait_until_read();
    let (state, hold) = server.handover.pause(soon()).wait(soon()).unwrap();
    assert!(state.session.unwrap().backend_channel.is_some());
    drop(hold);
}
