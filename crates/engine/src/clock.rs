//! The clock that times are compared by, here and in whoever drives or is driven by a worker.

/// CLOCK_MONOTONIC in nanoseconds: not set by anybody, and the same for all programs until the machine starts again. No system call
/// where the kernel has a vDSO.
#[must_use]
#[inline]
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// CPU time of the calling thread, in nanoseconds: a system call.
pub(crate) fn thread_cpu_now_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// CPU time of a thread of this process, in nanoseconds. `None`: there is no such thread any more.
pub(crate) fn thread_cpu_ns(tid: i32) -> Option<u64> {
    // A thread's clock is known by its number: bits 0 and 1 say what is counted (CPUCLOCK_SCHED, 2), bit 2 that it is one
    // thread's (linux/posix-timers_types.h). pthread_getcpuclockid(3) makes the same number.
    clock_ns(!tid << 3 | 6)
}

/// `None`: the kernel has no such clock. By the C library, which does without what a vDSO lacks: rustix panics in the first thread that
/// asks for the time under a kernel whose vDSO has no getcpu (User Mode Linux).
#[inline]
fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
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
            while thread_cpu_now_ns() < 20_000_000 {}
            tell.send((rustix::thread::gettid().as_raw_nonzero().get(), thread_cpu_now_ns())).unwrap();
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
