//! Sleep on the clock of the model, which is that of the workers.
//!
//! What a sleep takes, measured on Linux 6.18 in a virtual machine with two processors (AMD EPYC), at a load of about
//! one; median and 99th percentile in microseconds, with the slack that is set here and with the kernel's default of 50 microseconds:
//!
//! | asked for | threads | slack 1 ns | slack 50 us |
//! |---|---|---|---|
//! | 20 us | 1 | 41, 57 | 92, 104 |
//! | 20 us | 4 | 43, 71 | 94, 119 |
//! | 20 us | 64 | 87, 1560 | 108, 654 |
//! | 100 us | 1 | 128, 164 | 187, 291 |
//! | 100 us | 4 | 130, 174 | 188, 266 |
//! | 100 us | 64 | 188, 831 | 187, 325 |
//! | 1000 us | 1 | 1026, 1075 | 1084, 1145 |
//! | 1000 us | 64 | 1043, 1194 | 1105, 1229 |
//!
//! So whoever sleeps is some 25 microseconds late, which is what waking up costs there; a thread that waits for real hardware
//! pays for waking as well. With 64 threads that wake every 20 microseconds the processors, and no device, are what is measured.

use engine::monotonic_ns;
use rustix::io::Errno;
use rustix::thread::{ClockId, clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::Timespec;
use std::cell::Cell;
use std::num::NonZeroU64;

const SECOND_NS: u64 = 1_000_000_000;

thread_local! {
    /// Whether this thread wakes as near to a deadline as the kernel can.
    static PRECISE: Cell<bool> = const { Cell::new(false) };
}

/// Blocks the calling thread until CLOCK_MONOTONIC has reached `deadline_ns`: never shorter, and longer by what the kernel needs
/// to wake a thread. The deadline is absolute, so that what happened before the call does not add to it.
pub(super) fn sleep_until(deadline_ns: u64) {
    if monotonic_ns() >= deadline_ns {
        return;
    }
    if !PRECISE.replace(true) {
        // By default the kernel may wake a thread 50 microseconds late to save a wake-up (PR_SET_TIMERSLACK): as long as a
        // read from flash takes. Refused, it only costs precision.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
    }
    let (seconds, rest) = (deadline_ns / SECOND_NS, deadline_ns % SECOND_NS);
    let deadline = Timespec { tv_sec: seconds as i64, tv_nsec: rest as _ };
    while clock_nanosleep_absolute(ClockId::Monotonic, &deadline) == Err(Errno::INTR) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_ends_at_its_deadline_and_not_before() {
        for wait_ns in [0, 1, 20_000, 3_000_000] {
            let deadline_ns = monotonic_ns() + wait_ns;
            sleep_until(deadline_ns);
            assert!(monotonic_ns() >= deadline_ns);
        }
        sleep_until(0);
    }
}
