//! Where the calls behind an export run.

use super::Syncs;
use crate::export::Shared;
use crate::{ExportError, Ring};
use engine::{Execution, Pool};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    fn new(execution: Execution, threads: &str, aside: &str) -> Result<Executor, ExportError> {
        let start = |name: &str, count| Pool::new(name, count).map(Arc::new);
        let (pool, aside) = match execution {
            Execution::Pool(count) => (Some(start(threads, count)?), None),
            Execution::Inline => (None, None),
            Execution::Auto | Execution::Uring => (None, Some(start(aside, ASIDE_THREADS)?)),
        };
        Ok(Executor { execution, pool, aside, syncs: Syncs::default() })
    }
}

/// Where the calls of all rings of an export run.
pub(crate) struct Executing {
    /// What threads of a pool are named after.
    threads: &'static str,
    /// What those for long calls are.
    aside: &'static str,
    executor: Mutex<Executor>,
    /// Held while the executor changes, so that rings hear of changes in their order.
    changing: Mutex<()>,
}

impl Executing {
    /// # Errors
    /// A pool that cannot be started.
    pub(crate) fn new(
        execution: Execution,
        threads: &'static str,
        aside: &'static str,
    ) -> Result<Executing, ExportError> {
        let executor = Mutex::new(Executor::new(execution, threads, aside)?);
        Ok(Executing { threads, aside, executor, changing: Mutex::new(()) })
    }

    fn lock(&self) -> MutexGuard<'_, Executor> {
        self.executor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a new ring.
    pub(crate) fn executor(&self) -> Executor {
        self.lock().clone()
    }

    pub(crate) fn execution(&self) -> Execution {
        self.lock().execution
    }

    /// Changes where calls run; requests that have begun end where they are.
    ///
    /// # Errors
    /// A pool that cannot be started; nothing has changed.
    pub(crate) fn set(&self, shared: &Shared, execution: Execution) -> Result<(), ExportError> {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Executor::new(execution, self.threads, self.aside)?;
        let old = std::mem::replace(&mut *self.lock(), new.clone());
        shared.tell_rings(&shared.all_running(), move |ring, _| ring.attachment_mut().set_executor(new.clone()));
        // The last handle joins the old pools' threads: here, where waiting delays no ring.
        drop(old);
        Ok(())
    }

    /// The executor may have changed while ring `index` was built.
    pub(crate) fn started(&self, shared: &Shared, index: u16) {
        let executor = self.executor();
        shared.with_ring(index, move |ring: &mut Ring| ring.attachment_mut().set_executor(executor));
    }
}
