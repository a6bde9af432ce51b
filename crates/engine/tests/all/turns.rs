//! A turn does not go on with what has ended for as long as there is more of it.

use crate::common::{HANG, engine};
use engine::{Completion, Io, Poll, Reply, Ring, Token};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

const ENDS: usize = 100;

/// What two rings of one worker and the test see.
struct Stage {
    /// The patient ring has a request.
    asked: AtomicBool,
    asked_kick: OwnedFd,
    /// Requests of the other ring that have ended.
    ended: AtomicUsize,
    replies: mpsc::Sender<Reply>,
    /// How many those were when the patient ring was served.
    served_after: mpsc::Sender<usize>,
}

enum Role {
    /// Has many requests, whose ends take their time.
    Busy,
    /// Has one request, which comes while those end.
    Patient,
}

struct Actor {
    role: Role,
    kick: OwnedFd,
    waiting: bool,
    in_flight: usize,
    stage: Arc<Stage>,
    /// Held by the first end until all others are there.
    gate: Option<mpsc::Receiver<()>>,
}

impl Ring for Actor {
    fn kick(&self) -> Option<BorrowedFd<'_>> {
        Some(self.kick.as_fd())
    }

    fn ready(&self) -> bool {
        match self.role {
            Role::Busy => self.waiting,
            Role::Patient => self.stage.asked.load(Ordering::SeqCst),
        }
    }

    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        match self.role {
            Role::Busy => {
                self.waiting = false;
                self.in_flight = ENDS;
                for token in 0..ENDS {
                    self.stage.replies.send(io.reply(Token::request(token as u16))).unwrap();
                }
                ENDS
            }
            Role::Patient => {
                self.stage.asked.store(false, Ordering::SeqCst);
                self.stage.served_after.send(self.stage.ended.load(Ordering::SeqCst)).unwrap();
                1
            }
        }
    }

    fn complete(&mut self, completion: Completion, _io: &mut Io<'_>) {
        assert_eq!(completion.result, 7);
        let token = usize::from(completion.token.index().unwrap());
        self.in_flight -= 1;
        if let Some(gate) = self.gate.take() {
            gate.recv_timeout(HANG).unwrap();
        }
        if token == 1 {
            self.stage.asked.store(true, Ordering::SeqCst);
            rustix::io::write(&self.stage.asked_kick, &1u64.to_ne_bytes()).unwrap();
        }
        // As long as a copy of a mebibyte or two.
        std::thread::sleep(Duration::from_micros(500));
        assert_eq!(self.stage.ended.fetch_add(1, Ordering::SeqCst), token, "in their order");
    }

    fn publish(&mut self, _io: &mut Io<'_>) {}

    fn arm(&mut self) -> bool {
        self.ready()
    }

    fn disarm(&mut self) {}

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

#[test]
fn rings_have_their_turn_while_another_has_much_that_ends() {
    let engine = engine(1, Poll::Off);
    let descriptor = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let (replies, held) = mpsc::channel();
    let (served_after, served) = mpsc::channel();
    let asked_kick = descriptor();
    let patient_kick = asked_kick.try_clone().unwrap();
    let (asked, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
    let stage = Arc::new(Stage { asked, asked_kick, ended, replies, served_after });
    let (open, gate) = mpsc::channel();
    let actor = |role, kick, waiting, gate| Actor { role, kick, waiting, in_flight: 0, stage: stage.clone(), gate };
    let patient =
        engine.attach(actor(Role::Patient, patient_kick, false, None), 0).map_err(|(error, _)| error).unwrap();
    let busy = engine.attach(actor(Role::Busy, descriptor(), true, Some(gate)), 0).map_err(|(error, _)| error).unwrap();
    // The first end keeps the worker until all others are in its mailbox: those come in one turn.
    for reply in held.iter().take(ENDS) {
        reply.complete(7);
    }
    open.send(()).unwrap();
    let after = served.recv_timeout(HANG).unwrap();
    assert!(after < ENDS / 2, "served after {after} of {ENDS}");
    engine.detach(busy).map_err(|_| "detached").unwrap();
    engine.detach(patient).map_err(|_| "detached").unwrap();
    assert_eq!(stage.ended.load(Ordering::SeqCst), ENDS);
}
