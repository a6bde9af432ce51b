//! Threads for storage work that blocks whatever the execution: hole punching, device discards, zeroing of large ranges; and for
//! questions of where there is data, which keep no such work waiting.

use engine::{Io, Pool, Token};
use std::sync::OnceLock;

/// Such work is rare and one device serialises much of it anyway.
const THREADS: usize = 2;

static WORK: OnceLock<Option<Pool>> = OnceLock::new();
static LOOKS: OnceLock<Option<Pool>> = OnceLock::new();

/// Starts the threads for work, unless they run. Called when a storage is opened, so that they have the daemon's affinity and cgroup
/// and not those of the worker that happens to need them first.
pub(crate) fn prepare() {
    work();
}

/// As above, of the threads for questions: called before somebody can ask.
pub fn prepare_looks() {
    looks();
}

fn work() -> Option<&'static Pool> {
    start(&WORK, "storage", "discards and write zeroes run on the workers and may delay other requests")
}

fn looks() -> Option<&'static Pool> {
    start(
        &LOOKS,
        "extents",
        "clients that ask where a disk has data are answered on the workers and may delay other requests",
    )
}

fn start(pool: &'static OnceLock<Option<Pool>>, name: &str, otherwise: &str) -> Option<&'static Pool> {
    let start = || match Pool::new(name, THREADS) {
        Ok(pool) => Some(pool),
        Err(error) => {
            tracing::warn!(%error, "{otherwise}");
            None
        }
    };
    pool.get_or_init(start).as_ref()
}

/// Completes `token` with the result of `job`, which runs on one of the threads; without threads, and where nobody else would wait
/// for it, here.
pub fn run(io: &mut Io<'_>, token: Token, job: impl FnOnce() -> i32 + Send + 'static) {
    run_on(work(), io, token, job);
}

/// As above, of a question where there is data.
pub fn look(io: &mut Io<'_>, token: Token, job: impl FnOnce() -> i32 + Send + 'static) {
    run_on(looks(), io, token, job);
}

fn run_on(pool: Option<&'static Pool>, io: &mut Io<'_>, token: Token, job: impl FnOnce() -> i32 + Send + 'static) {
    let reply = io.reply(token);
    match pool {
        Some(pool) if !io.may_block() => pool.run(reply, job),
        _ => reply.complete(job()),
    }
}
