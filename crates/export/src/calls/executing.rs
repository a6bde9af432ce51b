//! Where the calls behind an export run, changed while they do.

use super::Executor;
use crate::ExportError;
use crate::ring_set::RingSet;
use engine::Execution;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    pub(crate) fn set(&self, rings: &RingSet, execution: Execution) -> Result<(), ExportError> {
        let _one_at_a_time = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Executor::new(execution, self.threads, self.aside)?;
        let old = std::mem::replace(&mut *self.lock(), new.clone());
        rings.tell(&rings.running(), move |ring, _| ring.attachment_mut().set_executor(new.clone()));
        // The last handle joins the old pools' threads: here, where waiting delays no ring.
        drop(old);
        Ok(())
    }

    /// The executor may have changed while ring `index` was built.
    pub(crate) fn started(&self, rings: &RingSet, index: u16) {
        let executor = self.executor();
        rings.with(index, move |ring| ring.attachment_mut().set_executor(executor));
    }
}
