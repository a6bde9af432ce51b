//! Threads for storage work that blocks whatever the execution: hole punching, device discards, zeroing of large ranges.

use engine::{Io, Pool, Token};
use std::sync::OnceLock;

/// Such work is rare and one device serialises much of it anyway.
const THREADS: usize = 2;

static POOL: OnceLock<Option<Pool>> = OnceLock::new();

/// Starts the threads, unless they run. Called when a storage is opened, so that they have the daemon's affinity and cgroup
/// and not those of the worker that happens to need them first.
pub(crate) fn prepare() {
    pool();
}

fn pool() -> Option<&'static Pool> {
    let start = || match Pool::new("storage", THREADS) {
        Ok(pool) => Some(pool),
        Err(error) => {
            tracing::warn!(%error, "discards and write zeroes run on the workers and may delay other requests");
            None
        }
    };
    POOL.get_or_init(start).as_ref()
}

/// Completes `token` with the result of `job`, which runs on one of the threads; without threads, and where nobody else would wait
/// for it, here.
pub fn run(io: &mut Io<'_>, token: Token, job: impl FnOnce() -> i32 + Send + 'static) {
    let reply = io.reply(token);
    match pool() {
        Some(pool) if !io.may_block() => pool.run(reply, job),
        _ => reply.complete(job()),
    }
}
