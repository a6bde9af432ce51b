//! Rings that move between workers and workers that die, in many orders of threads (`interleave`).
//!
//! Directory, mailboxes, slots and the workers' turns are those that ship. What is missing is the wait in the kernel, whose
//! place another thread's turn takes; that no wake-up is lost is shown by the mailbox's own model.

use super::Worker;
use crate::directory::{Directory, WorkerEntry};
use crate::mailbox::{Claim, Mail, Mailbox, RingMail};
use crate::price::sleep_price;
use crate::slots::Arrival;
use crate::{Completion, Io, Panic, Poll, Reply, Ring, RingId, Token, WorkerSpec};
use interleave::{in_many_orders, in_so_many_orders, random, thread, yield_now};
use policy::{Favour, PollWindow};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex};

const RING: RingId = RingId(7);
const REQUESTS: u16 = 4;
const MOVES: u32 = 3;

/// What is seen of the ring, wherever it is. Its locks are held for no turn.
#[derive(Default)]
struct Board {
    /// In the order in which the ring was told.
    told: Mutex<Vec<u16>>,
    ended: Mutex<Vec<u16>>,
    lost: Mutex<u32>,
    /// Whether it was said to be dropped some time, when it was told last that it is lost.
    is_dropped: Mutex<bool>,
    /// How many rings were dropped, and whether one was while storage had requests of it.
    dropped: Mutex<u32>,
    dropped_early: Mutex<bool>,
    /// Requests that storage has been given, and has done.
    begun: Mutex<BTreeSet<u16>>,
    written: Mutex<BTreeSet<u16>>,
    /// Requests that storage has yet to complete.
    storage: Mutex<Vec<Reply>>,
    /// No more will come.
    closed: Mutex<bool>,
}

/// A ring that takes its requests from mail.
struct Probe {
    board: Arc<Board>,
    in_flight: BTreeSet<u16>,
}

impl Probe {
    fn begin(&mut self, request: u16, io: &mut Io<'_>) {
        self.board.told.lock().unwrap().push(request);
        assert!(self.in_flight.insert(request), "request {request} came twice");
        self.board.begun.lock().unwrap().insert(request);
        self.board.storage.lock().unwrap().push(io.reply(Token::request(request)));
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        *self.board.dropped.lock().unwrap() += 1;
        let begun = self.board.begun.lock().unwrap().clone();
        if begun != *self.board.written.lock().unwrap() {
            // Somebody may still write to its memory. A panic would be caught here.
            *self.board.dropped_early.lock().unwrap() = true;
        }
    }
}

impl Ring for Probe {
    fn kick(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn must_poll(&self) -> bool {
        false
    }

    fn ready(&self) -> bool {
        false
    }

    fn serve(&mut self, _io: &mut Io<'_>) -> usize {
        0
    }

    fn complete(&mut self, completion: Completion, _io: &mut Io<'_>) {
        let request = completion.token.index().unwrap();
        assert_eq!(completion.result, i32::from(request));
        assert!(self.in_flight.remove(&request), "request {request} ended twice");
        self.board.ended.lock().unwrap().push(request);
    }

    fn publish(&mut self, _io: &mut Io<'_>) {}

    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn lost(&mut self, _why: &Panic, is_dropped: bool) {
        *self.board.lost.lock().unwrap() += 1;
        *self.board.is_dropped.lock().unwrap() = is_dropped;
    }

    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }
}

struct Scene {
    directory: Arc<Directory<Probe>>,
    board: Arc<Board>,
    workers: Vec<thread::JoinHandle<()>>,
    others: Vec<thread::JoinHandle<()>>,
}

impl Scene {
    /// Two workers, of which the second dies in this turn, and a ring on the first.
    fn new(dies_in: Option<u64>) -> Scene {
        let (directory, board) = (Arc::new(Directory::new()), Arc::<Board>::default());
        let mut scene = Scene { directory, board, workers: Vec::new(), others: Vec::new() };
        for number in 0..2 {
            let mailbox = Arc::new(Mailbox::new().unwrap());
            let entry = WorkerEntry {
                mailbox: mailbox.clone(),
                owner: String::new(),
                spec: WorkerSpec::default(),
                poll: Poll::Off,
                tid: 0,
                alive: true,
                incoming: 0,
            };
            scene.directory.lock().workers.insert(number, entry);
            let directory = scene.directory.clone();
            let dies_in = dies_in.filter(|_| number == 1);
            scene.workers.push(thread::spawn(move || work(number, &mailbox, &directory, dies_in)));
        }
        let ring = Box::new(Probe { board: scene.board.clone(), in_flight: BTreeSet::new() });
        let arrival = Arrival::new(ring);
        let stay = arrival.stay.clone();
        let (done, adopted) = channel();
        let adopt = Mail::Adopt { id: RING, arrival, done };
        assert!(scene.directory.hand_over(RING, 0, stay, adopt).is_ok());
        assert_eq!(answer(&adopted), Some(true));
        scene
    }

    /// Moves the ring to and fro, now and then without patience, as [`Engine::attach_to`](crate::Engine::attach_to) does.
    fn moves(&mut self) {
        let directory = self.directory.clone();
        self.others.push(thread::spawn(move || {
            for round in 1..=MOVES {
                let (to, claim) = (round % 2, Claim::default());
                let (done, adopted) = channel();
                let release = RingMail::Release { to, done, claim: claim.clone() };
                if directory.send(RING, release).is_err() || (random().is_multiple_of(4) && claim.take()) {
                    continue;
                }
                if answer(&adopted) == Some(true) {
                    let home = directory.lock().rings.get(&RING).map(|home| home.worker);
                    // Nobody else moves it; a worker may have died with it.
                    assert!(home.is_none_or(|home| home == to), "moved to {to}, and found at {home:?}");
                }
            }
        }));
    }

    /// Moves the ring to the second worker, and frees the first, as a change of the placement does.
    fn leaves(&mut self) {
        let directory = self.directory.clone();
        self.others.push(thread::spawn(move || {
            let (done, adopted) = channel();
            let release = RingMail::Release { to: 1, done, claim: Claim::default() };
            if directory.send(RING, release).is_err() || answer(&adopted) != Some(true) {
                return;
            }
            let freed = directory.lock().workers.get(&0).map(|entry| entry.mailbox.clone());
            freed.into_iter().for_each(|mailbox| drop(mailbox.send(Mail::Stop)));
        }));
    }

    /// Completes requests, in whichever order.
    fn completes(&mut self) {
        let board = self.board.clone();
        self.others.push(thread::spawn(move || {
            loop {
                let closed = *board.closed.lock().unwrap();
                let reply = {
                    let mut storage = board.storage.lock().unwrap();
                    let waiting = storage.len() as u64;
                    (waiting > 0).then(|| storage.swap_remove((random() % waiting) as usize))
                };
                match reply {
                    Some(reply) => {
                        let request = reply.token().index().unwrap();
                        board.written.lock().unwrap().insert(request);
                        reply.complete(i32::from(request));
                    }
                    None if closed => return,
                    None => yield_now(),
                }
            }
        }));
    }

    /// Tells the ring to begin its requests. False where the ring has gone.
    fn tell(&self, waits: bool) -> bool {
        let mut heard = Vec::new();
        for request in 0..REQUESTS {
            let (done, receiver) = channel();
            let run = Box::new(move |ring: &mut Probe, io: &mut Io<'_>| {
                ring.begin(request, io);
                let _ = done.send(true);
            });
            if self.directory.send(RING, RingMail::With(run)).is_err() {
                return false;
            }
            heard.push(receiver);
            if waits && answer(&heard[usize::from(request)]).is_none() {
                return false;
            }
        }
        heard.iter().all(|heard| waits || answer(heard).is_some())
    }

    /// Takes the ring back; `None` where it has gone.
    fn detach(&self) -> Option<Probe> {
        let (done, drained) = channel();
        self.directory.send(RING, RingMail::Detach { done }).ok()?;
        answer(&drained)
    }

    /// Ends everything that still runs.
    fn end(&mut self) {
        *self.board.closed.lock().unwrap() = true;
        let mailboxes: Vec<_> = self.directory.lock().workers.values().map(|entry| entry.mailbox.clone()).collect();
        for mailbox in mailboxes {
            let _ = mailbox.send(Mail::Stop);
        }
        self.workers.drain(..).chain(self.others.drain(..)).for_each(|thread| thread.join().unwrap());
    }
}

/// Waits for an answer; `None` when none will come. One that never comes is an order that does not end.
fn answer<T>(receiver: &Receiver<T>) -> Option<T> {
    loop {
        match receiver.try_recv() {
            Ok(answer) => return Some(answer),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => yield_now(),
        }
    }
}

/// A worker's life, as [`Worker::run`] and what surrounds it.
fn work(number: u32, mailbox: &Arc<Mailbox<Probe>>, directory: &Arc<Directory<Probe>>, dies_in: Option<u64>) {
    let policy = (PollWindow::new(Poll::Off, Favour::default(), sleep_price()), Arc::default());
    let mut worker = Worker::new(number, mailbox.clone(), directory.clone(), policy).unwrap();
    let mut turns = 0;
    loop {
        if dies_in == Some(turns) {
            let mail = mailbox.close();
            directory.ended(number, true);
            worker.abandon(mail, &Panic { message: "died".to_owned(), place: String::new() });
            return;
        }
        turns += 1;
        worker.lane.tick();
        mailbox.turns(worker.lane.now_ns);
        let worked = worker.take_mail() | worker.take_completions() | worker.serve();
        worker.publish();
        worker.finish_detaches();
        if worker.stopping
            && worker.mail.is_empty()
            && worker.by_id.is_empty()
            && worker.slots.iter().all(Option::is_none)
        {
            assert_eq!(worker.outstanding, 0);
            drop(mailbox.close());
            directory.ended(number, false);
            return;
        }
        if !worked && !mailbox.pending() {
            mailbox.rests(worker.outstanding > 0);
            yield_now();
        }
    }
}

#[test]
fn a_ring_that_moves_loses_no_mail_and_no_completion_in_any_order() {
    in_many_orders(1000, || {
        let mut scene = Scene::new(None);
        scene.moves();
        scene.completes();
        let waits = random().is_multiple_of(2);
        assert!(scene.tell(waits));
        let ring = scene.detach().expect("nobody took the ring");
        assert_eq!(ring.in_flight(), 0);
        drop(ring);
        scene.end();
        let (mut told, mut ended) =
            (scene.board.told.lock().unwrap().clone(), scene.board.ended.lock().unwrap().clone());
        if !waits {
            // What is told without waiting is overtaken where the ring moves.
            told.sort_unstable();
        }
        ended.sort_unstable();
        let all: Vec<u16> = (0..REQUESTS).collect();
        assert_eq!((told, ended), (all.clone(), all));
        assert_eq!(*scene.board.lost.lock().unwrap(), 0);
    });
}

#[test]
fn a_ring_hears_all_that_it_is_told_while_the_worker_that_it_leaves_ends() {
    in_many_orders(1000, || {
        let mut scene = Scene::new(None);
        scene.leaves();
        scene.completes();
        assert!(scene.tell(random().is_multiple_of(2)), "the ring did not hear something");
        assert!(scene.detach().is_some(), "nobody took the ring");
        scene.end();
        assert_eq!(scene.board.ended.lock().unwrap().len(), usize::from(REQUESTS));
        assert_eq!(*scene.board.lost.lock().unwrap(), 0);
    });
}

#[test]
fn a_worker_that_dies_leaves_nobody_waiting_in_any_order() {
    // A dead worker's io_uring stays open, for what the kernel may still do.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    in_so_many_orders(1000, || {
        let mut scene = Scene::new(Some(random() % 12));
        scene.moves();
        scene.completes();
        scene.tell(random().is_multiple_of(2));
        // What became of the ring is certain when the worker has ended.
        scene.workers.pop().unwrap().join().unwrap();
        let back = scene.detach().is_some();
        *scene.board.closed.lock().unwrap() = true;
        scene.end();
        assert_eq!(*scene.board.lost.lock().unwrap(), u32::from(!back), "the ring came back: {back}");
    });
}

/// Whether a worker dies as well or not.
#[test]
fn a_ring_that_falls_is_let_go_when_nothing_is_under_way_for_it_in_any_order() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    in_so_many_orders(1000, || {
        let dies = random().is_multiple_of(4);
        let mut scene = Scene::new(dies.then(|| random() % 12));
        scene.moves();
        scene.completes();
        scene.tell(random().is_multiple_of(2));
        let why = Panic { message: "falls".to_owned(), place: String::new() };
        let _ = scene.directory.send(RING, RingMail::Lose(why));
        while scene.directory.lock().rings.contains_key(&RING) {
            yield_now();
        }
        *scene.board.closed.lock().unwrap() = true;
        scene.end();
        scene.directory.burials.wait();
        let [lost, dropped] = [&scene.board.lost, &scene.board.dropped].map(|count| *count.lock().unwrap());
        let is_dropped = *scene.board.is_dropped.lock().unwrap();
        assert!(lost == 1 || dies && lost == 2, "it was told {lost} times");
        assert!(!*scene.board.dropped_early.lock().unwrap());
        // What was said last is what comes.
        assert_eq!(dropped, u32::from(is_dropped));
        assert!(dies || is_dropped);
    });
}
