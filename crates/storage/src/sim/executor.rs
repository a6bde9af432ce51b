//! Who waits for the device: the worker, its deadlines, or the threads of a pool.

use crate::{Execution, StorageError};
use engine::{Io, Pool, Token};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{PoisonError, RwLock};

const INLINE: u8 = 0;
const URING: u8 = 1;
const POOL: u8 = 2;

/// Who waits for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    /// The thread that starts it, there and then.
    Caller,
    /// Nobody: it is one of the worker's deadlines.
    Deadline,
    /// A thread of the pool.
    Pool,
}

/// Chooses who waits; changeable while operations run, as that of a file is.
pub(super) struct Executor {
    /// Read by every operation.
    mode: AtomicU8,
    setting: RwLock<Setting>,
}

struct Setting {
    asked: Execution,
    pool: Option<Pool>,
}

impl Executor {
    pub(super) fn new(asked: Execution) -> Result<Executor, StorageError> {
        let setting = RwLock::new(Setting { asked: Execution::Auto, pool: None });
        let executor = Executor { mode: AtomicU8::new(URING), setting };
        executor.set(asked)?;
        Ok(executor)
    }

    /// What was asked for, and what it means.
    pub(super) fn get(&self) -> (Execution, Execution) {
        let asked = self.setting.read().unwrap_or_else(PoisonError::into_inner).asked;
        (asked, if asked == Execution::Auto { Execution::Uring } else { asked })
    }

    /// Operations in flight end where they are; those of a pool have ended when this returns.
    pub(super) fn set(&self, asked: Execution) -> Result<(), StorageError> {
        let (mode, pool) = match asked {
            Execution::Inline => (INLINE, None),
            Execution::Uring | Execution::Auto => (URING, None),
            Execution::Pool(threads) => {
                let failed = |source| StorageError::Pool { execution: asked, source };
                (POOL, Some(Pool::new("sim", threads).map_err(failed)?))
            }
        };
        let mut setting = self.setting.write().unwrap_or_else(PoisonError::into_inner);
        setting.asked = asked;
        let old = std::mem::replace(&mut setting.pool, pool);
        self.mode.store(mode, Ordering::Relaxed);
        drop(setting);
        // Joins the old threads once their work is done: here, where waiting delays no ring.
        drop(old);
        Ok(())
    }

    pub(super) fn waiter(&self) -> Waiter {
        match self.mode.load(Ordering::Relaxed) {
            INLINE => Waiter::Caller,
            POOL => Waiter::Pool,
            _ => Waiter::Deadline,
        }
    }

    /// Gives a job to the pool, if there is one: it may have gone since the mode was read.
    pub(super) fn hand_over(&self, job: impl FnOnce() -> i32 + Send + 'static, token: Token, io: &mut Io<'_>) -> bool {
        let setting = self.setting.read().unwrap_or_else(PoisonError::into_inner);
        let Some(pool) = &setting.pool else { return false };
        pool.run(io.reply(token), job);
        true
    }
}
