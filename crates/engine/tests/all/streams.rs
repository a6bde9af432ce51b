//! Rings that are told of their clients by a socket.

use crate::common::{HANG, eventually};
use engine::{Completion, Engine, Io, Poll, Pulse, Ring, RingId, Token, WorkerSpec};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const RECEIVE: Token = Token::other(1);
const SEND: Token = Token::other(7);
const ROOM: usize = 4096;

/// Sends back what it hears.
struct Echo {
    socket: OwnedFd,
    buffer: Box<[u8; ROOM]>,
    receiving: bool,
    sending: usize,
    over: bool,
    panics: bool,
}

impl Echo {
    fn new() -> (Echo, UnixStream) {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let theirs = UnixStream::from(theirs);
        theirs.set_read_timeout(Some(HANG)).unwrap();
        let buffer = Box::new([0; ROOM]);
        (Echo { socket: ours, buffer, receiving: false, sending: 0, over: false, panics: false }, theirs)
    }

    fn place(&mut self) -> NonNull<u8> {
        NonNull::from(&mut *self.buffer).cast()
    }
}

impl Ring for Echo {
    fn kick(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn must_poll(&self) -> bool {
        false
    }

    fn ready(&self) -> bool {
        !self.receiving && self.sending == 0 && !self.over
    }

    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        let place = self.place();
        self.receiving = true;
        // SAFETY: the buffer stays until the completion, and is not looked at before.
        unsafe { io.receive(RECEIVE, self.socket.as_fd(), place, ROOM, false) };
        1
    }

    fn complete(&mut self, Completion { token, result, .. }: Completion, io: &mut Io<'_>) {
        if token == SEND {
            assert_eq!(result as usize, self.sending);
            self.sending = 0;
            return;
        }
        self.receiving = false;
        match result {
            1.. => {
                assert!(!self.panics, "as the test wished");
                self.sending = result as usize;
                let place = self.place();
                // SAFETY: the buffer stays until the completion, and nothing is received before.
                unsafe { io.send(SEND, self.socket.as_fd(), place, self.sending) };
            }
            0 => self.over = true,
            _ => assert_eq!(result, -libc::ECANCELED),
        }
    }

    fn publish(&mut self, _io: &mut Io<'_>) {}

    fn arm(&mut self) -> bool {
        self.ready()
    }

    fn disarm(&mut self) {}

    fn drain(&mut self, _io: &mut Io<'_>) {
        shutdown(&self.socket, Shutdown::Read).unwrap();
    }

    fn in_flight(&self) -> usize {
        usize::from(self.receiving) + usize::from(self.sending > 0)
    }
}

fn engine_of(workers: usize, poll: Poll) -> Engine<Echo> {
    let engine = Engine::new(workers);
    for _ in 0..workers {
        engine.worker_new("test", WorkerSpec::default(), poll).unwrap();
    }
    engine
}

fn attach(engine: &Engine<Echo>, worker: u32) -> (RingId, UnixStream) {
    let (echo, client) = Echo::new();
    (engine.attach(echo, worker).map_err(|(error, _)| error).unwrap(), client)
}

fn ping(client: &mut UnixStream, round: u32) {
    let message = [round.to_le_bytes(); 8].concat();
    client.write_all(&message).unwrap();
    let mut answer = vec![0; message.len()];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer, message);
}

fn pulse(engine: &Engine<Echo>, worker: u32) -> Pulse {
    engine.workers().iter().find(|status| status.number == worker).unwrap().pulse
}

#[test]
fn waiting_for_a_client_is_no_work_under_way() {
    let engine = engine_of(1, Poll::Off);
    let (_, mut first) = attach(&engine, 0);
    let (_, mut second) = attach(&engine, 0);
    for round in 0..100 {
        ping(&mut first, round);
        ping(&mut second, round);
    }
    eventually("the worker is idle", || pulse(&engine, 0) == Pulse::Idle);
    let before = engine.worker_figures(0).unwrap();
    engine.worker_answers(0).unwrap();
    let after = engine.worker_figures(0).unwrap();
    assert!(after.turns - before.turns <= 2, "it turns although nobody says anything: {before:?} {after:?}");
    ping(&mut first, 100);
}

#[test]
fn a_ring_moves_while_its_client_is_silent_and_while_it_speaks() {
    for poll in [Poll::Off, Poll::default()] {
        let engine = engine_of(3, poll);
        let (id, mut client) = attach(&engine, 0);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let load = std::thread::spawn(move || {
            let mut rounds = 0;
            while !stopped.load(Ordering::SeqCst) {
                ping(&mut client, rounds);
                rounds += 1;
            }
            (client, rounds)
        });
        for round in 1..2000 {
            engine.attach_to(id, round % 3).unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        let (mut client, rounds) = load.join().unwrap();
        assert!(rounds > 0);

        // Nothing of a silent client keeps the workers that it has left: it waits for it on the first of these.
        for to in [1, 0, 2] {
            engine.attach_to(id, to).unwrap();
        }
        let left: Vec<i32> =
            engine.workers().iter().filter(|status| status.number != 2).map(|status| status.tid).collect();
        engine.worker_free(0).unwrap();
        engine.worker_free(1).unwrap();
        let alive = |tid: &i32| std::path::Path::new(&format!("/proc/self/task/{tid}")).exists();
        eventually("the workers that it has left end", || !left.iter().any(alive));
        ping(&mut client, 1);
        let echo = engine.detach(id).unwrap();
        assert_eq!(echo.in_flight(), 0);
        drop(echo);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn a_client_that_goes_ends_the_wait() {
    let engine = engine_of(1, Poll::Off);
    let (id, mut client) = attach(&engine, 0);
    ping(&mut client, 0);
    drop(client);
    eventually("the ring knows", || engine.with_ring(id, |ring, _| ring.over).unwrap());
    assert_eq!(engine.detach(id).unwrap().in_flight(), 0);
}

#[test]
fn a_ring_that_panics_leaves_its_worker_to_the_others() {
    let engine = engine_of(1, Poll::Off);
    let (broken, mut loud) = attach(&engine, 0);
    let (_, mut other) = attach(&engine, 0);
    engine.with_ring(broken, |ring, _| ring.panics = true).unwrap();
    loud.write_all(b"boo").unwrap();
    eventually("the ring is gone", || engine.worker_of(broken).is_none());
    ping(&mut other, 0);
}
