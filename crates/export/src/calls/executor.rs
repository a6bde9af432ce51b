//! Where the calls behind an export run.

use crate::export::Shared;
use crate::{ExportError, Ring};
use engine::{Execution, Pool};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where the calls of one ring run.
#[derive(Clone, Default)]
pub(crate) struct Executor {
    pub(crate) execution: Execution,
    pub(crate) pool: Option<Arc<Pool>>,
}

impl Executor {
    /// Starts the threads that `execution` asks for, named after `threads`.
    fn new(execution: Execution, threads: &str) -> Result<Executor, ExportError> {
        let pool = match execution {
            Execution::Pool(count) => Some(Arc::new(Pool::new(threads, count)?)),
            Execution::Auto | Execution::Inline | Execution::Uring => None,
        };
        Ok(Executor { execution, pool })
    }
}

/// Where the calls of all rings of an export run.
pub(crate) struct Executing {
    /// What threads of a pool are named after.
    threads: &'static str,
    executor: Mutex<Executor>,
    /// Held while the executor changes, so that rings hear of changes in their order.
    changing: Mutex<()>,
}

impl Executing {
    /// # Errors
    /// A pool that cannot be started.
    pub(crate) fn new(execution: Execution, threads: &'static str) -> Result<Executing, ExportError> {
        let executor = Mutex::new(Executor::new(execution, threads)?);
        Ok(Executing { threads, executor, changing: Mutex::new(()) })
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
        let new = Executor::new(execution, self.threads)?;
        let old = std::mem::replace(&mut *self.lock(), new.clone());
        shared.tell_rings(&shared.all_running(), move |ring, _| ring.set_executor(new.clone()));
        // The last handle joins the old pool's threads: here, where waiting delays no ring.
        drop(old);
        Ok(())
    }

    /// The executor may have changed while ring `index` was built.
    pub(crate) fn started(&self, shared: &Shared, index: u16) {
        let executor = self.executor();
        shared.with_ring(index, move |ring: &mut Ring| ring.set_executor(executor));
    }
}
