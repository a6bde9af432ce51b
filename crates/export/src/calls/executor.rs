//! Where the calls of one ring run.

use super::Syncs;
use crate::ExportError;
use engine::{Execution, Pool};
use std::sync::Arc;

/// Threads beside the workers, for calls of one export that may take a device's time, or seconds.
const ASIDE_THREADS: usize = 2;

/// Where the calls of one ring run.
#[derive(Clone, Default)]
pub(crate) struct Executor {
    pub(crate) execution: Execution,
    /// What `execution` asks for.
    pub(crate) pool: Option<Arc<Pool>>,
    /// For long calls, unless `execution` leaves none of them to us. An export's own: a file system that hangs holds nobody else up.
    pub(crate) aside: Option<Arc<Pool>>,
    /// Those of all rings.
    pub(crate) syncs: Syncs,
}

impl Executor {
    /// Starts the threads that `execution` asks for, named after `threads`.
    pub(super) fn new(execution: Execution, threads: &str, aside: &str) -> Result<Executor, ExportError> {
        let start = |name: &str, count| Pool::new(name, count).map(Arc::new);
        let (pool, aside) = match execution {
            Execution::Pool(count) => (Some(start(threads, count)?), None),
            Execution::Inline => (None, None),
            Execution::Auto | Execution::Uring => (None, Some(start(aside, ASIDE_THREADS)?)),
        };
        Ok(Executor { execution, pool, aside, syncs: Syncs::default() })
    }
}
