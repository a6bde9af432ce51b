//! How other threads reach a worker: a queue, and an eventfd that is written only while the worker sleeps.

use crate::figures::WorkerPage;
use crate::reply::Post;
use crate::slots::Arrival;
use crate::sync::{AtomicBool, AtomicU64, Mutex};
use crate::{Completion, Io, Panic, Poll, RingId};
use policy::Journal;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, PoisonError};

/// A request that can be taken back for as long as nobody has begun with it: whoever takes the claim decides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claim(Arc<AtomicBool>);

impl Claim {
    /// True for the one who comes first.
    pub(crate) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }
}

/// What a ring's owner is asked to do with it.
pub(crate) enum RingMail<R> {
    /// Give the ring to another worker, unless whoever asked for it has given up; the new owner answers true, the old one
    /// false when there is no new owner.
    Release { to: u32, done: Sender<bool>, claim: Claim },
    /// Take no more requests, finish those in flight, hand the ring back.
    Detach { done: Sender<R> },
    /// Run this on the ring, between two turns.
    With(WithRing<R>),
    /// Work that another worker started for the ring has ended.
    Completion(Completion),
    /// Work that another worker started for the ring will never end: that worker has died.
    Lose(Panic),
}

pub(crate) type WithRing<R> = Box<dyn FnOnce(&mut R, &mut Io<'_>) + Send>;

pub(crate) enum Mail<R> {
    /// A ring arrives, new or from another worker.
    Adopt {
        id: RingId,
        arrival: Arrival<R>,
        done: Sender<bool>,
    },
    Ring(RingId, RingMail<R>),
    /// A [`Reply`] was used.
    Done {
        slot: u32,
        completion: Completion,
    },
    /// Answered at once, to show that the worker takes its turns.
    Ping(Sender<()>),
    Poll(Poll),
    SweepFiles(Sender<()>),
    Stop,
}

struct Queue<R> {
    mail: VecDeque<Mail<R>>,
    closed: bool,
}

/// What a worker is doing, as it can be seen without asking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// It sleeps, and nothing that it started is under way.
    Idle,
    /// It sleeps, and waits for what it has started.
    Waiting,
    /// It works, in a turn that began at this time of CLOCK_MONOTONIC.
    Busy {
        /// In nanoseconds.
        since_ns: u64,
    },
}

/// [`Pulse::Idle`] as the number that is shared; other numbers up to `WAITING` are not used.
const IDLE: u64 = 0;
/// [`Pulse::Waiting`].
const WAITING: u64 = 1;

pub(crate) struct Mailbox<R> {
    queue: Mutex<Queue<R>>,
    /// The worker's [`Pulse`], written by it alone.
    pulse: AtomicU64,
    /// What the worker has done; only the worker writes it.
    pub(crate) figures: Arc<WorkerPage>,
    /// What its policy saw and decided. The worker never waits for who reads it.
    pub(crate) journal: Mutex<Journal>,
    pending: AtomicBool,
    sleeping: AtomicBool,
    wake: OwnedFd,
}

impl<R> Mailbox<R> {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Mailbox {
            queue: Mutex::new(Queue { mail: VecDeque::new(), closed: false }),
            // No turn yet: whoever looks now must not take it for stuck.
            pulse: AtomicU64::new(IDLE),
            figures: Arc::default(),
            journal: Mutex::default(),
            pending: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Queues a message; hands it back when the worker is gone.
    pub(crate) fn send(&self, mail: Mail<R>) -> Result<(), Mail<R>> {
        {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if queue.closed {
                return Err(mail);
            }
            queue.mail.push_back(mail);
            self.pending.store(true, Ordering::SeqCst);
        }
        // Pairs with `may_sleep`: either the worker sees `pending`, or we see that it sleeps.
        if self.sleeping.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    pub(crate) fn pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Moves all messages, in their order, to the end of `out`.
    pub(crate) fn take(&self, out: &mut VecDeque<Mail<R>>) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        self.pending.store(false, Ordering::SeqCst);
        out.append(&mut queue.mail);
    }

    /// The worker is about to sleep: from now on a message writes the eventfd. False when one has come already.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.pending.load(Ordering::SeqCst) {
            self.awake();
            return false;
        }
        true
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).closed
    }

    /// Messages that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).mail.len()
    }

    pub(crate) fn pulse(&self) -> Pulse {
        // Pairs with `rests` and with the fence of a worker that wakes; see `Directory::watch_for_work`.
        match self.pulse.load(Ordering::SeqCst) {
            IDLE => Pulse::Idle,
            WAITING => Pulse::Waiting,
            since_ns => Pulse::Busy { since_ns },
        }
    }

    /// A turn begins.
    pub(crate) fn turns(&self, now_ns: u64) {
        self.pulse.store(now_ns.max(WAITING + 1), Ordering::Relaxed);
    }

    /// The worker is about to sleep; `owed` says that something it started is under way.
    pub(crate) fn rests(&self, owed: bool) {
        self.pulse.store(if owed { WAITING } else { IDLE }, Ordering::SeqCst);
    }

    /// Refuses further messages and hands back the waiting ones. Dropped, they tell those who wait for an answer that none
    /// will come.
    #[must_use]
    pub(crate) fn close(&self) -> VecDeque<Mail<R>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.closed = true;
        std::mem::take(&mut queue.mail)
    }
}

impl<R: Send> Post for Mailbox<R> {
    fn post(&self, slot: u32, completion: Completion) {
        // A worker ends only when nothing is outstanding, so that a refusal can only follow its panic.
        let _ = self.send(Mail::Done { slot, completion });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reply, Token};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    /// Receives as a worker does, asleep whenever the mailbox allows it. Returns what came, and how often it slept.
    fn receive(mailbox: &Mailbox<()>, want: usize) -> (Vec<(u32, Token)>, u32) {
        let mut batch = VecDeque::new();
        let (mut got, mut sleeps) = (Vec::new(), 0);
        while got.len() < want {
            if mailbox.pending() {
                mailbox.take(&mut batch);
                got.extend(batch.drain(..).filter_map(|mail| match mail {
                    Mail::Done { slot, completion } => Some((slot, completion.token)),
                    _ => None,
                }));
            } else if mailbox.may_sleep() {
                sleeps += 1;
                // A wake-up that was lost shows here: nothing else would end the wait.
                let guard = Timespec { tv_sec: 30, tv_nsec: 0 };
                let wake = mailbox.wake_fd();
                assert_eq!(poll(&mut [PollFd::new(&wake, PollFlags::IN)], Some(&guard)), Ok(1), "a wake-up was lost");
                // The worker's io_uring sees each signal once; so must we.
                let _ = rustix::io::read(wake, &mut [0; 8]);
                mailbox.awake();
            }
        }
        (got, sleeps)
    }

    #[test]
    fn no_message_and_no_wake_up_is_lost() {
        const EACH: u16 = 20_000;
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let senders: Vec<_> = (0..3)
            .map(|slot| {
                let mailbox = mailbox.clone();
                std::thread::spawn(move || {
                    for token in 0..EACH {
                        mailbox.post(slot, Completion::new(Token::request(token), 0));
                        // Gaps of different lengths meet the receiver at different points of falling asleep.
                        for _ in 0..token % 97 {
                            std::hint::spin_loop();
                        }
                        if token % 64 == 0 {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let (got, sleeps) = receive(&mailbox, 3 * usize::from(EACH));
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        assert!(!mailbox.pending());
        assert!(sleeps > 0);
        for slot in 0..3 {
            let tokens: Vec<_> = got.iter().filter(|(from, _)| *from == slot).map(|(_, token)| *token).collect();
            assert!(
                tokens.into_iter().eq((0..EACH).map(Token::request)),
                "each sender's messages come once and in order"
            );
        }
    }

    #[test]
    fn only_a_sleeper_is_woken_and_only_once() {
        let mailbox = Mailbox::<()>::new().unwrap();
        let signals = || {
            let mut count = [0; 8];
            rustix::io::read(mailbox.wake_fd(), &mut count).map_or(0, |_| u64::from_ne_bytes(count))
        };
        mailbox.post(0, Completion::new(Token::request(0), 0));
        assert_eq!(signals(), 0);
        assert!(!mailbox.may_sleep(), "a message waits");
        mailbox.take(&mut VecDeque::new());
        assert!(mailbox.may_sleep());
        mailbox.post(0, Completion::new(Token::request(1), 0));
        mailbox.post(0, Completion::new(Token::request(2), 0));
        assert_eq!(signals(), 1);
    }

    #[test]
    fn a_closed_mailbox_hands_mail_back_and_drops_what_waits() {
        let mailbox = Mailbox::<()>::new().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        assert!(mailbox.send(Mail::SweepFiles(sender)).is_ok());
        assert_eq!(mailbox.waiting(), 1);
        drop(mailbox.close());
        assert_eq!(mailbox.waiting(), 0);
        assert!(receiver.recv().is_err(), "whoever waits for an answer learns that none will come");
        assert!(matches!(mailbox.send(Mail::Stop), Err(Mail::Stop)));
    }

    #[test]
    fn a_pulse_is_what_the_worker_said_last() {
        let mailbox = Mailbox::<()>::new().unwrap();
        assert_eq!(mailbox.pulse(), Pulse::Idle);
        mailbox.turns(12_345);
        assert_eq!(mailbox.pulse(), Pulse::Busy { since_ns: 12_345 });
        mailbox.rests(true);
        assert_eq!(mailbox.pulse(), Pulse::Waiting);
        mailbox.rests(false);
        assert_eq!(mailbox.pulse(), Pulse::Idle);
        mailbox.turns(0);
        assert!(matches!(mailbox.pulse(), Pulse::Busy { .. }), "a clock that has just begun is no rest");
    }

    #[test]
    fn a_reply_is_posted_once_used_or_not() {
        let mailbox = Arc::new(Mailbox::<()>::new().unwrap());
        let reply = |token| Reply::new(mailbox.clone() as Arc<dyn Post>, 3, token);
        reply(Token::request(1)).complete(42);
        drop(reply(Token::request(2)));
        reply(Token::other(3)).complete(0);
        reply(Token::request(4)).complete_part(5, 6);
        let mut mail = VecDeque::new();
        mailbox.take(&mut mail);
        let results: Vec<_> = mail
            .into_iter()
            .map(|mail| match mail {
                Mail::Done { slot: 3, completion } => (completion.token, completion.part, completion.result),
                _ => panic!("unexpected mail"),
            })
            .collect();
        let request = Token::request;
        let expected = [(request(1), 0, 42), (request(2), 0, -libc::EIO), (Token::other(3), 0, 0), (request(4), 5, 6)];
        assert_eq!(results, expected);
    }

    /// Waits as a worker's io_uring does, for as long as somebody may still send.
    fn sleep(mailbox: &Mailbox<()>, senders: &std::sync::atomic::AtomicUsize) {
        loop {
            let may_come = senders.load(Ordering::SeqCst) > 0;
            if rustix::io::read(mailbox.wake_fd(), &mut [0; 8]).is_ok() {
                return;
            }
            assert!(may_come, "a wake-up was lost");
            interleave::yield_now();
        }
    }

    #[test]
    fn no_message_and_no_wake_up_is_lost_in_any_order() {
        const SENDERS: u32 = 3;
        const EACH: u16 = 3;
        interleave::in_many_orders(4000, || {
            let mailbox = Arc::new(Mailbox::<()>::new().unwrap());
            let senders = Arc::new(std::sync::atomic::AtomicUsize::new(SENDERS as usize));
            let threads: Vec<_> = (0..SENDERS)
                .map(|slot| {
                    let (mailbox, senders) = (mailbox.clone(), senders.clone());
                    interleave::thread::spawn(move || {
                        for token in 0..EACH {
                            mailbox.post(slot, Completion::new(Token::request(token), 0));
                        }
                        senders.fetch_sub(1, Ordering::SeqCst);
                    })
                })
                .collect();
            let mut next = [0; SENDERS as usize];
            let mut mail = VecDeque::new();
            while next.iter().any(|&next| next < EACH) {
                if mailbox.pending() {
                    mailbox.take(&mut mail);
                } else if mailbox.may_sleep() {
                    sleep(&mailbox, &senders);
                    mailbox.awake();
                }
                for mail in mail.drain(..) {
                    let Mail::Done { slot, completion } = mail else { panic!("unexpected mail") };
                    assert_eq!(completion.token, Token::request(next[slot as usize]), "once each, in their order");
                    next[slot as usize] += 1;
                }
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(!mailbox.pending());
        });
    }

    #[test]
    fn mail_to_a_worker_that_ends_is_handed_back_or_found_in_any_order() {
        interleave::in_many_orders(2000, || {
            let mailbox = Arc::new(Mailbox::<()>::new().unwrap());
            let sender = {
                let mailbox = mailbox.clone();
                let send = move || (0..3).filter(|_| mailbox.send(Mail::Stop).is_ok()).count();
                interleave::thread::spawn(send)
            };
            let mut taken = VecDeque::new();
            mailbox.take(&mut taken);
            taken.extend(mailbox.close());
            assert_eq!(sender.join().unwrap(), taken.len());
        });
    }

    #[test]
    fn one_of_many_takes_a_claim() {
        interleave::in_many_orders(200, || {
            let claim = Claim::default();
            let other = claim.clone();
            let other = interleave::thread::spawn(move || other.take());
            assert!(claim.take() != other.join().unwrap());
        });
    }
}
