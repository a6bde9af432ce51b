//! The clock that times are compared by, here and in whoever drives or is driven by a worker.

/// CLOCK_MONOTONIC in nanoseconds: not set by anybody, and the same for all programs until the machine starts again. No system call.
#[must_use]
#[inline]
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
