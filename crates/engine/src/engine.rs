//! The engine: the kernel's verbs for workers (new, free, attach, get), for any thread.

mod ask;

pub use ask::Told;

use ask::{ANSWER_TIMEOUT, answered, answered_late};

use crate::directory::{Directory, Watcher, WorkerEntry};
use crate::favoured::Favoured;
use crate::figures::StayPage;
use crate::mailbox::{Claim, Mail, Mailbox, Pulse, RingMail};
use crate::panic::{Panic, catch, remember_places};
use crate::price::{learn_sleep_price, sleep_price};
use crate::slots::Arrival;
use crate::spec::{SpecError, WorkerSpec};
use crate::worker::Worker;
use crate::{Io, Poll, Ring, RingId};
use policy::{Favour, Journal, PollWindow};
use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use values::PolicyMode;

/// Errors of the engine's verbs. They follow the kernel's vhost workers, and are stricter where those succeed silently.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum EngineError {
    /// there is no worker {0}
    NoSuchWorker(u32),
    /// worker {0} is dead: free it and use another
    WorkerDead(u32),
    /// worker {worker} still serves {rings} ring(s): attach them to another worker first
    Busy {
        /// The worker that was to be freed.
        worker: u32,
        /// How many rings it serves or is about to receive.
        rings: usize,
    },
    /// {0} workers run already, which is the bound: free one or raise workers_max
    TooManyWorkers(usize),
    /// there is a worker {0} already
    NumberTaken(u32),
    /// the ring is not attached, or is being stopped
    NoSuchRing,
    /// worker {worker} does not answer: it has been busy with one thing for {busy_ms} ms, most likely a system call on storage that does not return
    Unresponsive {
        /// The worker.
        worker: u32,
        /// When its turn began, in nanoseconds of CLOCK_MONOTONIC.
        since_ns: u64,
        /// How long it has lasted, in milliseconds.
        busy_ms: u64,
    },
    /// cannot start a worker thread: {0} (check RLIMIT_NPROC, the cgroup's pids.max and kernel.threads-max)
    Spawn(std::io::Error),
    /// cannot set an io_uring up: {0} (kernel.io_uring_disabled must be 0, seccomp or the container must allow io_uring, RLIMIT_NOFILE must leave three descriptors a worker, and RLIMIT_MEMLOCK, which counts the io_urings of all processes of this user, 128 KiB a worker)
    Uring(std::io::Error),
    /// {0}
    Spec(#[from] SpecError),
}

/// A worker as seen from outside.
#[derive(Clone, Debug)]
pub struct WorkerStatus {
    /// Its number.
    pub number: u32,
    /// Who asked for it: a label that the engine only keeps.
    pub owner: String,
    /// Where it was told to run.
    pub spec: WorkerSpec,
    /// How it looks for work.
    pub poll: Poll,
    /// Its thread's id.
    pub tid: i32,
    /// False after a panic of its thread.
    pub alive: bool,
    /// What it is doing.
    pub pulse: Pulse,
    /// The rings attached to it.
    pub rings: Vec<RingId>,
}

/// The end of a worker by a panic outside of its rings' own code; all its rings are lost with it.
#[derive(Clone, Debug)]
pub struct Death {
    /// The worker. It stays listed as dead until it is freed.
    pub worker: u32,
    /// Who had asked for it.
    pub owner: String,
    /// Where it was told to run.
    pub spec: WorkerSpec,
    /// How it looked for work.
    pub poll: Poll,
    /// Why.
    pub why: Panic,
}

type Died<R> = Box<dyn Fn(&Engine<R>, &Death) + Send + Sync>;

/// All workers of a process and the rings attached to them. Clones are handles of the same engine; when the last one is
/// dropped, workers finish what they have and end.
pub struct Engine<R: Ring> {
    shared: Arc<Shared<R>>,
}

impl<R: Ring> Clone for Engine<R> {
    fn clone(&self) -> Self {
        Engine { shared: self.shared.clone() }
    }
}

struct Shared<R: Ring> {
    directory: Arc<Directory<R>>,
    workers_max: usize,
    /// What workers favour that choose by themselves.
    favour: Arc<Favoured>,
    died: OnceLock<Died<R>>,
}

impl<R: Ring> Engine<R> {
    /// An engine without workers, which will never have more than `workers_max`, freed ones not counted.
    pub fn new(workers_max: usize) -> Self {
        remember_places();
        let shared = Shared {
            directory: Arc::new(Directory::new()),
            workers_max,
            favour: Arc::default(),
            died: OnceLock::new(),
        };
        Engine { shared: Arc::new(shared) }
    }

    /// Sets what is called when a worker has died, on the thread that was its own, when its rings have been told. Only the
    /// first one counts.
    pub fn on_death(&self, died: impl Fn(&Engine<R>, &Death) + Send + Sync + 'static) {
        let _ = self.shared.died.set(Box::new(died));
    }

    /// Adds what is called after [`watch_for_work`](Self::watch_for_work) has said yes, once, as soon as a worker has
    /// something to do. It is called on that worker's thread and must return at once.
    pub fn on_work(&self, stirred: impl Fn() + Send + Sync + 'static) -> Watcher {
        self.shared.directory.on_work(Box::new(stirred))
    }

    /// Asks to be told of the next work. False when a worker has some already. Wakes nobody, and costs workers nothing that
    /// do not sleep.
    pub fn watch_for_work(&self, watcher: Watcher) -> bool {
        self.shared.directory.watch_for_work(watcher)
    }

    /// Starts a worker and returns its number.
    ///
    /// # Errors
    /// The bound is reached, the system refuses a thread or an io_uring, or the thread cannot be put where `spec` says.
    pub fn worker_new(&self, owner: &str, spec: WorkerSpec, poll: Poll) -> Result<u32, EngineError> {
        self.worker_numbered(None, owner, spec, poll)
    }

    /// As [`worker_new`](Self::worker_new), under a number of the caller's: a daemon that was upgraded has the workers that
    /// its operator knows.
    ///
    /// # Errors
    /// Also a number that is taken.
    pub fn worker_again(&self, number: u32, owner: &str, spec: WorkerSpec, poll: Poll) -> Result<(), EngineError> {
        self.worker_numbered(Some(number), owner, spec, poll).map(drop)
    }

    fn worker_numbered(
        &self,
        wanted: Option<u32>,
        owner: &str,
        spec: WorkerSpec,
        poll: Poll,
    ) -> Result<u32, EngineError> {
        let mailbox = Arc::new(Mailbox::new().map_err(EngineError::Uring)?);
        let number = {
            let mut state = self.shared.directory.lock();
            if state.workers.len() >= self.shared.workers_max {
                return Err(EngineError::TooManyWorkers(self.shared.workers_max));
            }
            let number = wanted.unwrap_or(state.next_worker);
            if state.workers.contains_key(&number) || state.ending.contains_key(&number) {
                return Err(EngineError::NumberTaken(number));
            }
            state.next_worker = state.next_worker.max(number.saturating_add(1));
            // The place is taken before the thread runs, so that the bound holds for concurrent callers.
            state.workers.insert(
                number,
                WorkerEntry {
                    mailbox: mailbox.clone(),
                    owner: owner.to_owned(),
                    spec: spec.clone(),
                    poll,
                    tid: 0,
                    alive: true,
                    incoming: 0,
                },
            );
            number
        };
        let tid = spawn(number, mailbox, &self.shared, spec, poll)?;
        if let Some(worker) = self.shared.directory.lock().workers.get_mut(&number) {
            worker.tid = tid;
        }
        Ok(number)
    }

    /// Ends a worker without rings. Requests that were started there by rings that moved on are finished first.
    ///
    /// # Errors
    /// No such worker, or rings are attached to it.
    pub fn worker_free(&self, number: u32) -> Result<(), EngineError> {
        let mailbox = {
            let mut state = self.shared.directory.lock();
            let rings = state.rings.values().filter(|home| home.worker == number).count();
            let worker = state.workers.get(&number).ok_or(EngineError::NoSuchWorker(number))?;
            let rings = rings + worker.incoming as usize;
            if rings > 0 {
                return Err(EngineError::Busy { worker: number, rings });
            }
            let (mailbox, alive) = (worker.mailbox.clone(), worker.alive);
            state.workers.remove(&number);
            if alive {
                state.ending.insert(number, mailbox.clone());
            }
            mailbox
        };
        let _ = mailbox.send(Mail::Stop);
        Ok(())
    }

    /// Rings that nobody took back and that are being dropped, each on a thread of its own. A ring may close what it serves.
    pub fn ending(&self) -> usize {
        self.shared.directory.burials.under_way()
    }

    /// All workers, by number.
    pub fn workers(&self) -> Vec<WorkerStatus> {
        let state = self.shared.directory.lock();
        let mut rings: HashMap<u32, Vec<RingId>> = HashMap::new();
        for (id, home) in &state.rings {
            rings.entry(home.worker).or_default().push(*id);
        }
        rings.values_mut().for_each(|ids| ids.sort_unstable());
        state
            .workers
            .iter()
            .map(|(&number, worker)| WorkerStatus {
                number,
                owner: worker.owner.clone(),
                spec: worker.spec.clone(),
                poll: worker.poll,
                tid: worker.tid,
                alive: worker.alive,
                pulse: worker.mailbox.pulse(),
                rings: rings.remove(&number).unwrap_or_default(),
            })
            .collect()
    }

    /// Changes how a worker looks for work.
    ///
    /// # Errors
    /// No such worker, a dead one, or one that has not answered for a second.
    pub fn worker_poll(&self, number: u32, poll: Poll) -> Result<(), EngineError> {
        let mailbox = self.mailbox(number)?;
        answered(number, &mailbox)?;
        mailbox.send(Mail::Poll(poll)).map_err(|_| EngineError::WorkerDead(number))?;
        if let Some(worker) = self.shared.directory.lock().workers.get_mut(&number) {
            worker.poll = poll;
        }
        Ok(())
    }

    /// What workers favour that choose by themselves how they wait.
    pub fn favour(&self) -> Favour {
        self.shared.favour.get()
    }

    /// Has all workers favour this, now and later. Wakes none: they hear of it when they next look at what they do.
    pub fn set_favour(&self, favour: Favour) {
        self.shared.favour.set(favour);
    }

    /// Whether workers choose by themselves how they wait.
    pub fn policy_mode(&self) -> PolicyMode {
        self.shared.favour.mode()
    }

    /// Has all workers go on choosing, or wait as they do. Wakes none, as [`set_favour`](Self::set_favour).
    pub fn set_policy_mode(&self, mode: PolicyMode) {
        self.shared.favour.set_mode(mode);
    }

    /// What a worker's policy saw and decided. Asks nobody: works for a hung worker too, and wakes none.
    ///
    /// # Errors
    /// No such worker, or a dead one.
    pub fn worker_journal(&self, number: u32) -> Result<Journal, EngineError> {
        let mailbox = self.mailbox(number)?;
        let journal = mailbox.journal.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(journal.clone())
    }

    fn mailbox(&self, number: u32) -> Result<Arc<Mailbox<R>>, EngineError> {
        let state = self.shared.directory.lock();
        let worker = state.workers.get(&number).ok_or(EngineError::NoSuchWorker(number))?;
        if worker.alive { Ok(worker.mailbox.clone()) } else { Err(EngineError::WorkerDead(number)) }
    }

    /// Gives a new ring to a worker.
    ///
    /// # Errors
    /// No such worker, or a dead one; the ring comes back with the error.
    pub fn attach(&self, ring: R, number: u32) -> Result<RingId, (EngineError, Box<R>)> {
        let ring = Box::new(ring);
        let id = match self.reserve(number) {
            Ok(id) => id,
            Err(error) => return Err((error, ring)),
        };
        let (done, adopted) = channel();
        let arrival = Arrival::new(ring);
        let stay = arrival.stay.clone();
        let sent = self.shared.directory.hand_over(id, number, stay, Mail::Adopt { id, arrival, done });
        self.arrived(number);
        match sent {
            Err(Mail::Adopt { arrival, .. }) => Err((EngineError::WorkerDead(number), arrival.ring)),
            _ => {
                // An answer that never comes means that the worker died with the ring; the next verb on it will say so.
                let _ = adopted.recv();
                Ok(id)
            }
        }
    }

    /// Moves a ring to another worker while I/O runs; returns once the new owner has it. Does not wait for requests.
    ///
    /// # Errors
    /// No such ring, or no such or a dead worker, or one of the two workers does not answer within a second: the ring stays
    /// where it is.
    pub fn attach_to(&self, id: RingId, number: u32) -> Result<(), EngineError> {
        self.reserve(number)?;
        let result = self.move_to(id, number);
        self.arrived(number);
        result
    }

    fn move_to(&self, id: RingId, number: u32) -> Result<(), EngineError> {
        answered(number, &*self.mailbox(number)?)?;
        let (home, mailbox) = self.home(id)?;
        answered(home, &mailbox)?;
        let (done, adopted) = channel();
        let claim = Claim::default();
        let release = RingMail::Release { to: number, done, claim: claim.clone() };
        self.ring_mail(id, release)?;
        match adopted.recv_timeout(ANSWER_TIMEOUT) {
            Ok(true) => Ok(()),
            Ok(false) => Err(EngineError::WorkerDead(number)),
            Err(RecvTimeoutError::Disconnected) => Err(EngineError::NoSuchRing),
            Err(RecvTimeoutError::Timeout) if claim.take() => Err(answered_late(home, &mailbox)),
            // It is on its way. Whoever is to have it and hangs from now on takes it in as soon as it goes on.
            Err(RecvTimeoutError::Timeout) => match adopted.recv_timeout(ANSWER_TIMEOUT) {
                Ok(false) => Err(EngineError::WorkerDead(number)),
                Err(RecvTimeoutError::Disconnected) => Err(EngineError::NoSuchRing),
                Ok(true) | Err(RecvTimeoutError::Timeout) => Ok(()),
            },
        }
    }

    /// Holds `number` against being freed while a ring is on its way to it. Returns a number for a new ring.
    fn reserve(&self, number: u32) -> Result<RingId, EngineError> {
        let mut state = self.shared.directory.lock();
        let id = RingId(state.next_ring);
        state.next_ring += 1;
        let worker = state.workers.get_mut(&number).ok_or(EngineError::NoSuchWorker(number))?;
        if !worker.alive {
            return Err(EngineError::WorkerDead(number));
        }
        worker.incoming += 1;
        Ok(id)
    }

    fn arrived(&self, number: u32) {
        if let Some(worker) = self.shared.directory.lock().workers.get_mut(&number) {
            worker.incoming -= 1;
        }
    }

    /// The worker that owns the ring now.
    pub fn worker_of(&self, id: RingId) -> Option<u32> {
        self.shared.directory.lock().rings.get(&id).map(|home| home.worker)
    }

    /// The page on which the engine counts what it sees of the ring. It outlives the ring, wherever that ends.
    pub fn stay_of(&self, id: RingId) -> Option<Arc<StayPage>> {
        self.shared.directory.lock().rings.get(&id).map(|home| home.stay.clone())
    }

    /// Takes the ring back: no more requests are taken, those in flight are finished and published first.
    ///
    /// # Errors
    /// No such ring.
    pub fn detach(&self, id: RingId) -> Result<R, EngineError> {
        let (done, drained) = channel();
        self.ring_mail(id, RingMail::Detach { done })?;
        drained.recv().map_err(|_| EngineError::NoSuchRing)
    }

    /// Runs `f` on the ring between two turns of its worker and returns what it says.
    ///
    /// # Errors
    /// No such ring.
    pub fn with_ring<T: Send + 'static>(
        &self,
        id: RingId,
        f: impl FnOnce(&mut R, &mut Io<'_>) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        let (done, answer): (Sender<T>, Receiver<T>) = channel();
        let run = Box::new(move |ring: &mut R, io: &mut Io<'_>| {
            let _ = done.send(f(ring, io));
        });
        self.ring_mail(id, RingMail::With(run))?;
        answer.recv().map_err(|_| EngineError::NoSuchRing)
    }

    fn home(&self, id: RingId) -> Result<(u32, Arc<Mailbox<R>>), EngineError> {
        let state = self.shared.directory.lock();
        let home = state.rings.get(&id).ok_or(EngineError::NoSuchRing)?.worker;
        Ok((home, state.workers.get(&home).ok_or(EngineError::NoSuchRing)?.mailbox.clone()))
    }

    fn ring_mail(&self, id: RingId, mail: RingMail<R>) -> Result<(), EngineError> {
        self.shared.directory.send(id, mail).map_err(|_| EngineError::NoSuchRing)
    }

    /// Makes workers let go of registered files that nobody else holds, so that their locks are free when this returns; a
    /// worker that does not answer within a second does so later.
    pub fn sweep_files(&self) {
        let mailboxes: Vec<_> = {
            let state = self.shared.directory.lock();
            let workers = state.workers.values().map(|worker| &worker.mailbox);
            workers.chain(state.ending.values()).cloned().collect()
        };
        let (sender, done) = channel();
        for mailbox in mailboxes {
            let _ = mailbox.send(Mail::SweepFiles(sender.clone()));
        }
        drop(sender);
        let end = Instant::now() + ANSWER_TIMEOUT;
        while done.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
    }
}

/// How long the end of the process waits for workers to finish what storage still owes them.
const END_TIMEOUT: Duration = Duration::from_secs(10);

impl<R: Ring> Drop for Shared<R> {
    fn drop(&mut self) {
        let mailboxes: Vec<_> = self.directory.lock().workers.values().map(|worker| worker.mailbox.clone()).collect();
        for mailbox in mailboxes {
            let _ = mailbox.send(Mail::Stop);
        }
        let deadline = std::time::Instant::now() + END_TIMEOUT;
        let running = || {
            let state = self.directory.lock();
            !state.ending.is_empty() || state.workers.values().any(|worker| worker.alive)
        };
        while running() && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        if running() {
            tracing::error!(seconds = END_TIMEOUT.as_secs(), "workers still wait for storage; leaving them behind");
        }
        // They may be closing a volume, which takes as long as its storage takes.
        self.directory.burials.wait();
    }
}

/// Tells everybody that a worker's thread has ended, also when it never began or ended by a panic: nobody may wait for an
/// answer from a mailbox that no one reads.
struct Farewell<R: Ring> {
    number: u32,
    mailbox: Arc<Mailbox<R>>,
    directory: Arc<Directory<R>>,
    said: bool,
}

impl<R: Ring> Farewell<R> {
    /// After a panic. Returns the mail that nobody has read.
    fn after_panic(&mut self) -> VecDeque<Mail<R>> {
        self.said = true;
        let mail = self.mailbox.close();
        self.directory.ended(self.number, true);
        mail
    }
}

impl<R: Ring> Drop for Farewell<R> {
    fn drop(&mut self) {
        if !self.said {
            drop(self.mailbox.close());
            self.directory.ended(self.number, std::thread::panicking());
        }
    }
}

/// Starts the thread and waits until it is where it should be. Returns its id.
fn spawn<R: Ring>(
    number: u32,
    mailbox: Arc<Mailbox<R>>,
    shared: &Arc<Shared<R>>,
    spec: WorkerSpec,
    poll: Poll,
) -> Result<i32, EngineError> {
    let (started, start) = channel();
    let directory = shared.directory.clone();
    let mut farewell = Farewell { number, mailbox: mailbox.clone(), directory: directory.clone(), said: false };
    // A worker does not keep its engine: its end is what ends the workers.
    let engine = Arc::downgrade(shared);
    // Out here: a worker may be bound to one processor.
    learn_sleep_price();
    let favour = shared.favour.clone();
    let poll = PollWindow::new(poll, favour.get(), sleep_price());
    let body = move || {
        // Sleeping with a deadline is precise to 50 microseconds by default; workers need better.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let worker = spec
            .apply()
            .map_err(EngineError::from)
            .and_then(|()| Worker::new(number, mailbox, directory, (poll, favour)).map_err(EngineError::Uring));
        let mut worker = match worker {
            Ok(worker) => worker,
            Err(error) => {
                drop(farewell);
                let _ = started.send(Err(error));
                return;
            }
        };
        let _ = started.send(Ok(rustix::thread::gettid().as_raw_nonzero().get()));
        if let Err(why) = catch(|| worker.run()) {
            tracing::error!(worker = number, reason = %why, "the worker died; its rings are lost");
            let mail = farewell.after_panic();
            worker.abandon(mail, &why);
            report(&engine, number, why);
        }
    };
    std::thread::Builder::new().name(format!("worker-{number}")).spawn(body).map_err(EngineError::Spawn)?;
    start.recv().unwrap_or(Err(EngineError::WorkerDead(number)))
}

/// Tells whoever wants to know that a worker has died, if the engine is still there.
fn report<R: Ring>(engine: &Weak<Shared<R>>, number: u32, why: Panic) {
    let Some(engine) = engine.upgrade().map(|shared| Engine { shared }) else {
        return;
    };
    let known = {
        let state = engine.shared.directory.lock();
        state.workers.get(&number).map(|worker| (worker.owner.clone(), worker.spec.clone(), worker.poll))
    };
    let (Some((owner, spec, poll)), Some(died)) = (known, engine.shared.died.get()) else {
        return;
    };
    let death = Death { worker: number, owner, spec, poll, why };
    if let Err(again) = catch(|| died(&engine, &death)) {
        tracing::error!(worker = number, reason = %again, "what follows the death of a worker failed");
    }
}
