//! How long a worker looks before it sleeps: the poll window.
//!
//! Pure arithmetic over observed waits, so that it can be tested without a clock.

use values::Poll;

/// Where an adaptive window starts to grow, in nanoseconds.
const GROW_FROM_NS: u64 = 4_000;

/// The window of one worker.
#[derive(Debug)]
pub struct PollWindow {
    mode: Poll,
    window_ns: u64,
}

impl PollWindow {
    /// A window as wide as it may be.
    pub fn new(mode: Poll) -> Self {
        let window_ns = match mode {
            Poll::Off => 0,
            Poll::Fixed(us) | Poll::Adaptive(us) => u64::from(us) * 1000,
        };
        PollWindow { mode, window_ns }
    }

    /// What decides about it.
    pub fn mode(&self) -> Poll {
        self.mode
    }

    /// How long to look now, in nanoseconds; 0 means not at all.
    pub fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// Work arrived `wait_ns` after the worker ran out of it. A wait that the largest window would have covered lets the
    /// window grow, any other lets it shrink, to nothing in the end: an idle guest costs no CPU.
    pub fn observe(&mut self, wait_ns: u64) {
        let Poll::Adaptive(max_us) = self.mode else {
            return;
        };
        let max_ns = u64::from(max_us) * 1000;
        if wait_ns <= self.window_ns {
            return;
        }
        self.window_ns = if wait_ns <= max_ns {
            (self.window_ns * 2).max(GROW_FROM_NS).min(max_ns)
        } else if self.window_ns < GROW_FROM_NS {
            0
        } else {
            self.window_ns / 2
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_grow_the_window_and_long_ones_close_it() {
        let mut poll = PollWindow::new(Poll::Adaptive(50));
        for _ in 0..20 {
            poll.observe(1_000_000);
        }
        assert_eq!(poll.window_ns(), 0);
        for _ in 0..20 {
            poll.observe(30_000);
        }
        // A window that covers the wait has no reason to grow further.
        assert_eq!(poll.window_ns(), 32_000);
        poll.observe(60_000);
        assert_eq!(poll.window_ns(), 16_000);
    }

    #[test]
    fn a_fixed_window_never_changes() {
        let mut poll = PollWindow::new(Poll::Fixed(10));
        poll.observe(5_000_000);
        poll.observe(1);
        assert_eq!(poll.window_ns(), 10_000);
    }
}
