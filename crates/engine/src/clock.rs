//! The clock that times are compared by, here and in whoever drives or is driven by a worker.

/// CLOCK_MONOTONIC in nanoseconds: not set by anybody, and the same for all programs until the machine starts again. No system call.
#[must_use]
#[inline]
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CPU time of the calling thread, in nanoseconds: a system call.
pub(crate) fn thread_cpu_now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CPU time of a thread of this process, in nanoseconds. `None`: there is no such thread any more.
pub(crate) fn thread_cpu_ns(tid: i32) -> Option<u64> {
    // A thread's clock is known by its number: bits 0 and 1 say what is counted (CPUCLOCK_SCHED, 2), bit 2 that it is one
    // thread's (linux/posix-timers_types.h). pthread_getcpuclockid(3) makes the same number.
    let clock = !tid << 3 | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which is ours.
    let known = unsafe { libc::clock_gettime(clock, &raw mut time) } == 0;
    known.then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn the_cpu_time_of_another_thread_is_its_own() {
        let (tell, told) = channel();
        let (hold, held) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let own = || {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
            };
            while own() < 20_000_000 {}
            tell.send((rustix::thread::gettid().as_raw_nonzero().get(), own())).unwrap();
            let _ = held.recv();
        });
        let (tid, own_ns) = told.recv().unwrap();
        let seen_ns = thread_cpu_ns(tid).unwrap();
        // It does no more than go to sleep since.
        assert!((own_ns..own_ns + 1_000_000_000).contains(&seen_ns), "{seen_ns} ns for {own_ns} ns");
        drop(hold);
        thread.join().unwrap();
    }
}
