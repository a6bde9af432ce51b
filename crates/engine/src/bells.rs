//! The io_urings by which one worker signals eventfds.
//!
//! An io_uring signals the one eventfd that is registered with it, so that a worker has some of them. It has as many as
//! eventfds are signalled by it, up to a bound and to what the kernel lets the user have (RLIMIT_MEMLOCK); from then on an
//! eventfd takes the place of another, which costs two system calls more. A ring holds none of them: ten thousand rings
//! cost nothing of that limit, and a ring can always start.

use crate::bell::{self, Bell, Message, Seat};
use io_uring::IoUring;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Completions that one has room for. A worker posts a few a turn, and makes room before each.
const COMPLETIONS: u32 = 64;
/// io_urings of one worker, at most. Two pages each.
const EACH_MAX: usize = 64;
/// io_urings that all workers have beyond the first of each: two MiB, a quarter of the usual limit.
const MORE_MAX: usize = 256;
/// How long none is set up after the kernel has refused one, in nanoseconds.
const REFUSED_NS: u64 = 1_000_000_000;

/// Those of all workers beyond the first of each.
static MORE: AtomicUsize = AtomicUsize::new(0);

/// One io_uring, and the bell whose eventfd is registered with it; 0 is nobody's.
struct One {
    uring: IoUring,
    key: u64,
    bell: Weak<()>,
}

impl One {
    fn new(uring: IoUring) -> One {
        One { uring, key: 0, bell: Weak::new() }
    }

    /// Whether its place can be had: its bell is gone.
    fn is_free(&self) -> bool {
        self.bell.strong_count() == 0
    }
}

/// The io_urings of a worker.
#[derive(Default)]
pub(crate) struct Bells {
    all: Vec<One>,
    /// The kernel refused one; none is tried before this time of CLOCK_MONOTONIC.
    not_before_ns: u64,
    /// Chooses whose place is taken: rings that have their turns one after the other would find the oldest gone each time.
    dice: u32,
}

impl Bells {
    /// Sets the first one up: whoever has it can signal any eventfd.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        if self.all.is_empty() {
            self.all.push(One::new(crate::uring::patiently(build)?));
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn holds(&self, seat: &Seat) -> bool {
        self.all.get(seat.index).is_some_and(|one| one.key == seat.key)
    }

    /// Registers an eventfd, in the place of another if there is no room. Nothing that names one of these io_urings may
    /// wait for its submission. False when the kernel refuses.
    pub(crate) fn take_in(&mut self, eventfd: BorrowedFd<'_>, seat: &mut Seat, now_ns: u64) -> bool {
        seat.index = match self.all.iter().position(One::is_free).or_else(|| self.grow(now_ns)) {
            Some(free) => free,
            None if self.all.is_empty() => return false,
            None => {
                // Numerical Recipes' generator: its upper bits are good enough for a die.
                self.dice = self.dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (self.dice >> 16) as usize % self.all.len()
            }
        };
        let one = &mut self.all[seat.index];
        one.bell = Weak::new();
        if std::mem::take(&mut one.key) != 0 {
            let _ = one.uring.submitter().unregister_eventfd();
        }
        if bell::register(&one.uring, eventfd).is_err() {
            return false;
        }
        (one.key, one.bell) = (seat.key, seat.watch());
        true
    }

    /// Sets one more up.
    fn grow(&mut self, now_ns: u64) -> Option<usize> {
        if self.all.len() >= EACH_MAX || now_ns < self.not_before_ns {
            return None;
        }
        let beyond_first = !self.all.is_empty();
        if beyond_first && MORE.fetch_add(1, Ordering::Relaxed) >= MORE_MAX {
            MORE.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        match build() {
            Ok(uring) => {
                self.all.push(One::new(uring));
                Some(self.all.len() - 1)
            }
            Err(_) => {
                self.not_before_ns = now_ns + REFUSED_NS;
                MORE.fetch_sub(usize::from(beyond_first), Ordering::Relaxed);
                None
            }
        }
    }

    /// What signals a bell that is [held](Self::holds) when it is sent. `None` when [`ring`](Self::ring) has to do.
    #[inline]
    pub(crate) fn message(&mut self, seat: &Seat) -> Option<Message> {
        let uring = &mut self.all[seat.index].uring;
        bell::let_go(uring);
        // Completions beyond the queue's end stay in the kernel until somebody enters it.
        let overflown = uring.submission().cq_overflow();
        (!overflown).then(|| Message(uring.as_raw_fd()))
    }

    /// Signals by a system call of its own, whether or not the bell is held.
    pub(crate) fn ring(&mut self, bell: &mut Bell) {
        match bell.seat() {
            Some((_, seat)) if self.holds(seat) => bell::post(&mut self.all[seat.index].uring),
            _ => bell.ring(),
        }
    }
}

#[cfg(test)]
impl Bells {
    /// How many io_urings there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

impl Drop for Bells {
    fn drop(&mut self) {
        MORE.fetch_sub(self.all.len().saturating_sub(1), Ordering::Relaxed);
    }
}

fn build() -> io::Result<IoUring> {
    IoUring::builder().setup_cqsize(COMPLETIONS).build(1)
}
