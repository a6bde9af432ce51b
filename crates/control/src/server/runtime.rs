//! The server's runtime, and the threads on which it calls the daemon.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Calls under way together.
const CALLS_MAX: usize = 8;

/// How long a thread without calls is to stay: for good. A runtime that has one lets calls wait for it while no other can be started; one
/// that has none panics.
pub(super) const KEEP: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// With one thread for calls, which stays for `keep` without any.
///
/// # Errors
/// No such thread, or no descriptors.
pub(super) fn new(keep: Duration) -> io::Result<Runtime> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .thread_name("vringd-ctl-call")
        .max_blocking_threads(CALLS_MAX)
        .thread_keep_alive(keep)
        .build()?;
    let first = catch_unwind(AssertUnwindSafe(|| runtime.spawn_blocking(|| ())));
    first.map_err(|_| io::Error::other("it needs another thread, for calls (check RLIMIT_NPROC)"))?;
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::Instant;
    use std::{fs, thread};

    /// More than a thread needs to begin or to end, and less than tokio keeps one that is told nothing: ten seconds.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// Whether it comes to this in time.
    fn comes(mut is_so: impl FnMut() -> bool) -> bool {
        let by = Instant::now() + PATIENCE;
        while !is_so() {
            if Instant::now() > by {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    #[test]
    fn there_is_a_thread_for_calls_before_the_first() {
        let runtime = new(KEEP).unwrap();
        let named = || {
            let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
            let mut names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
            names.any(|name| name.trim_end() == "vringd-ctl-call")
        };
        // It has its name a moment after it has begun.
        assert!(comes(named));
        let call = runtime.block_on(runtime.spawn_blocking(|| thread::current().name().map(str::to_owned)));
        assert_eq!(call.unwrap().as_deref(), Some("vringd-ctl-call"));
    }

    #[test]
    fn a_thread_for_calls_stays_for_as_long_as_it_is_told() {
        let called = |keep| {
            let runtime = new(keep).unwrap();
            let thread = runtime.block_on(runtime.spawn_blocking(rustix::thread::gettid)).unwrap();
            (runtime, format!("/proc/self/task/{}", thread.as_raw_nonzero()))
        };
        let (_stays, for_good) = called(KEEP);
        let (_goes, for_a_moment) = called(Duration::from_millis(10));
        assert!(comes(|| !Path::new(&for_a_moment).exists()));
        assert!(Path::new(&for_good).exists());
    }
}
