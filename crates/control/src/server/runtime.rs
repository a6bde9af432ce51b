//! The server's runtime, and the threads on which it calls the daemon.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Calls under way together.
const CALLS_MAX: usize = 8;

/// How long a thread without calls stays: for good. A runtime that has one lets calls wait for it while no other can be started; one that has
/// none panics.
const KEEP: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// With one thread for calls.
///
/// # Errors
/// No such thread, or no descriptors.
pub(super) fn new() -> io::Result<Runtime> {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .thread_name("vringd-ctl-call")
        .max_blocking_threads(CALLS_MAX)
        .thread_keep_alive(KEEP)
        .build()?;
    let first = catch_unwind(AssertUnwindSafe(|| runtime.spawn_blocking(|| ())));
    first.map_err(|_| io::Error::other("it needs another thread, for calls (check RLIMIT_NPROC)"))?;
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn there_is_a_thread_for_calls_before_the_first() {
        let runtime = new().unwrap();
        let named = || {
            let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
            let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
            names.filter(|name| name.trim_end() == "vringd-ctl-call").count()
        };
        // It has its name a moment after it has begun.
        while named() == 0 {
            std::thread::yield_now();
        }
        let call = runtime.block_on(runtime.spawn_blocking(|| std::thread::current().name().map(str::to_owned)));
        assert_eq!(call.unwrap().as_deref(), Some("vringd-ctl-call"));
    }
}
