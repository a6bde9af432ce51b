//! Waiting for a lock, on a thread that does nothing else, and no longer wanting it.
//!
//! The kernel has no way to wait for such a lock other than with a thread. A wait is cancelled by a signal, which ends the
//! system call and has no other effect. But a signal that comes just before the call is lost, so a timer sends it again
//! and again until the thread has noticed: arming the timer is one system call that never blocks, whoever cancels.

use crate::Result;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::{fmt, thread};

/// How often a cancelled thread is reminded, in nanoseconds. One is enough unless it was just about to wait.
const REMINDER_NS: libc::c_long = 2_000_000;

/// What such a thread needs: a few frames of ours and the caller's `done`.
const STACK_BYTES: usize = 256 << 10;

/// The signal that ends a wait: directed at the waiting thread alone, and without effect on any other.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 6
}

/// Lets the signal end system calls instead of the process.
fn install_handler() {
    extern "C" fn nothing(_signal: libc::c_int) {}

    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a structure of integers and pointers, for which zero is a value: no flags, so no restarting of system
        // calls, and an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler has the type that an action without flags calls, and does nothing that a signal forbids.
        unsafe { libc::sigaction(signal(), &raw const action, std::ptr::null_mut()) };
    });
}

/// A timer of the kernel that sends the signal to the thread that made it.
struct Reminder(libc::timer_t);

// SAFETY: the value names an object of the process in the kernel; every thread may arm and delete it.
unsafe impl Send for Reminder {}

impl Reminder {
    /// For the calling thread.
    fn new() -> Result<Reminder> {
        // SAFETY: a structure of integers and pointers, for which zero is a value.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal();
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer = MaybeUninit::uninit();
        // SAFETY: both pointers are to live values of the types that the call reads and writes.
        let answer = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, timer.as_mut_ptr()) };
        if answer != 0 {
            return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN));
        }
        // SAFETY: the call has succeeded, so it has written the timer.
        Ok(Reminder(unsafe { timer.assume_init() }))
    }

    /// Sends the signal now, and again until the timer is gone.
    fn arm(&self) {
        let often = libc::timespec { tv_sec: 0, tv_nsec: REMINDER_NS };
        let soon = libc::timespec { tv_sec: 0, tv_nsec: 1 };
        let times = libc::itimerspec { it_interval: often, it_value: soon };
        // SAFETY: the timer lives as long as this value does, and the call reads one structure. It cannot fail then.
        unsafe { libc::timer_settime(self.0, 0, &raw const times, std::ptr::null_mut()) };
    }
}

impl Drop for Reminder {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// One waiting thread, as seen from others.
#[derive(Default)]
struct Waiter {
    cancelled: AtomicBool,
    /// There while the thread waits.
    reminder: Mutex<Option<Reminder>>,
}

impl Waiter {
    fn reminder(&self) -> MutexGuard<'_, Option<Reminder>> {
        self.reminder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel(&self) {
        // Before the reminder is looked for: the thread looks in the other order.
        self.cancelled.store(true, Ordering::SeqCst);
        if let Some(reminder) = self.reminder().as_ref() {
            reminder.arm();
        }
    }

    /// Makes `attempt`, which waits, until it is answered with something else than a signal, or the wait is cancelled.
    fn run(&self, mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
        unblock_signal();
        let reminder = Reminder::new().map_err(|_| Errno::NOLCK)?;
        *self.reminder() = Some(reminder);
        let answer = loop {
            if self.cancelled.load(Ordering::SeqCst) {
                break Err(Errno::INTR);
            }
            match attempt() {
                // Perhaps not our signal: a debugger's, or one that was sent to the whole process.
                Err(Errno::INTR) => {}
                answer => break answer,
            }
        };
        *self.reminder() = None;
        answer
    }
}

/// A thread begins with the mask of the one that started it, which may have blocked everything.
fn unblock_signal() {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call writes the set that the others use; all three get pointers to live values.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// A lock that may still be waited for. Dropping this does not cancel the wait.
pub struct Wait {
    waiter: Option<Arc<Waiter>>,
    then: Option<Then>,
}

impl Wait {
    /// A wait that is over, for who has called `done` already.
    pub(crate) fn over() -> Wait {
        Wait { waiter: None, then: None }
    }

    /// A wait with another behind it.
    pub(crate) fn and(self, then: Then) -> Wait {
        Wait { then: Some(then), ..self }
    }

    /// Ends the wait: its `done` is called soon with `EINTR`, unless the lock was granted before. Never blocks.
    pub fn cancel(&self) {
        if let Some(waiter) = &self.waiter {
            waiter.cancel();
        }
        if let Some(then) = &self.then {
            then.cancel();
        }
    }
}

/// What is waited for when another wait is over.
#[derive(Clone, Default)]
pub(crate) struct Then(Arc<Mutex<Next>>);

#[derive(Default)]
struct Next {
    cancelled: bool,
    wait: Option<Wait>,
}

impl Then {
    fn next(&self) -> MutexGuard<'_, Next> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wait. Who has cancelled before has cancelled this.
    pub(crate) fn start(&self, wait: impl FnOnce() -> Wait) {
        let wait = wait();
        let mut next = self.next();
        if next.cancelled {
            wait.cancel();
        }
        next.wait = Some(wait);
    }

    fn cancel(&self) {
        let mut next = self.next();
        next.cancelled = true;
        if let Some(wait) = &next.wait {
            wait.cancel();
        }
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.waiter {
            Some(waiter) if waiter.cancelled.load(Ordering::SeqCst) => "cancelled",
            Some(_) => "started",
            None => "over",
        };
        f.debug_tuple("Wait").field(&state).finish()
    }
}

/// The waiting threads of one tree.
#[derive(Default)]
pub(super) struct Waiters {
    threads: Arc<Mutex<Threads>>,
}

#[derive(Default)]
struct Threads {
    next: u64,
    waiting: BTreeMap<u64, Arc<Waiter>>,
}

fn lock(threads: &Mutex<Threads>) -> MutexGuard<'_, Threads> {
    threads.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiters {
    /// Starts a thread that makes `attempt` until it does not answer `EINTR`, hands the answer to `settle`, and then what
    /// that makes of it to `done`. With `max` threads already, or when the system has none to give, the thread that asks
    /// does the last two itself, with `ENOLCK`.
    pub(super) fn start(
        &self,
        max: usize,
        attempt: impl FnMut() -> Result<()> + Send + 'static,
        settle: impl FnOnce(Result<()>) -> Result<()> + Send + 'static,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Wait {
        install_handler();
        let waiter = Arc::new(Waiter::default());
        let number = {
            let mut threads = lock(&self.threads);
            if threads.waiting.len() >= max {
                drop(threads);
                done(settle(Err(Errno::NOLCK)));
                return Wait::over();
            }
            let number = threads.next;
            threads.next = number.wrapping_add(1);
            threads.waiting.insert(number, Arc::clone(&waiter));
            number
        };
        // In a box that both sides reach: a thread that cannot be started drops what it was given.
        let ends = Arc::new(Mutex::new(Some((settle, done))));
        let thread = {
            let (waiter, threads, ends) = (Arc::clone(&waiter), Arc::clone(&self.threads), Arc::clone(&ends));
            let work = move || {
                let answer = waiter.run(attempt);
                finish(&threads, number, &ends, answer);
            };
            thread::Builder::new().name(format!("lock-{number}")).stack_size(STACK_BYTES).spawn(work)
        };
        if thread.is_err() {
            finish(&self.threads, number, &ends, Err(Errno::NOLCK));
            return Wait::over();
        }
        Wait { waiter: Some(waiter), then: None }
    }

    /// Cancels every wait.
    pub(super) fn cancel_all(&self) {
        for waiter in lock(&self.threads).waiting.values() {
            waiter.cancel();
        }
    }
}

/// Leaves the table before `done` is called: who hears of the end may wait again at once.
fn finish<S, D>(threads: &Mutex<Threads>, number: u64, ends: &Mutex<Option<(S, D)>>, answer: Result<()>)
where
    S: FnOnce(Result<()>) -> Result<()>,
    D: FnOnce(Result<()>),
{
    let taken = ends.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((settle, done)) = taken {
        let answer = settle(answer);
        lock(threads).waiting.remove(&number);
        done(answer);
    }
}
