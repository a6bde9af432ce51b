//! How busy a worker is said to be.

use crate::common::{engine, eventually};
use engine::{Completion, Io, Poll, Ring, Token};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a limit holds a request up.
const HELD_UP: Duration = Duration::from_millis(20);

/// A ring with more requests than its limit lets through: each time it takes one, and has to be asked again for the next.
struct Throttled {
    kick: OwnedFd,
    is_open: bool,
    /// It still looks as if there were something to take.
    is_ready: bool,
    taken: Arc<AtomicU64>,
}

impl Ring for Throttled {
    fn kick(&self) -> Option<BorrowedFd<'_>> {
        Some(self.kick.as_fd())
    }

    fn ready(&self) -> bool {
        self.is_ready
    }

    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        if std::mem::take(&mut self.is_open) {
            self.taken.fetch_add(1, Ordering::SeqCst);
            return 1;
        }
        self.is_ready = false;
        io.timer(Token::request(0), io.now_ns() + HELD_UP.as_nanos() as u64);
        0
    }

    fn complete(&mut self, _completion: Completion, _io: &mut Io<'_>) {
        (self.is_open, self.is_ready) = (true, true);
    }

    fn publish(&mut self, _io: &mut Io<'_>) {}

    fn arm(&mut self) -> bool {
        self.ready()
    }

    fn disarm(&mut self) {}

    fn in_flight(&self) -> usize {
        0
    }
}

#[test]
fn a_worker_that_sleeps_is_not_busy_whatever_it_sleeps_for() {
    for poll in [Poll::Off, Poll::default()] {
        let engine = engine(1, poll);
        std::thread::sleep(HELD_UP);
        let taken = Arc::new(AtomicU64::new(0));
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let ring = Throttled { kick, is_open: true, is_ready: true, taken: taken.clone() };
        let began = Instant::now();
        engine.attach(ring, 0).map_err(|(error, _)| error).unwrap();
        eventually("taken", || taken.load(Ordering::SeqCst) >= 10);
        let slept = began.elapsed().max(9 * HELD_UP);
        let figures = engine.worker_figures(0).unwrap();
        // Turns of some microseconds; a processor that was taken away in the middle of some counts.
        let busy = Duration::from_nanos(figures.busy_ns);
        assert!(busy < slept / 2, "busy for {busy:?} of {slept:?}");
        assert!(Duration::from_nanos(figures.polled_ns) < slept / 2, "{figures:?}");
    }
}
