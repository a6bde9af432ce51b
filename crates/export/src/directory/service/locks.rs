//! Locks. Those that have to be waited for wait on threads of the tree's, and a ring goes on.

use super::{Answer, Outcome, Service};
use device::fs::{InHeader, LkRequest};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use tree::{Lock, LockKind, Wait};

impl Service {
    pub(super) fn get_lock(&self, header: &InHeader, request: &LkRequest, reply: &mut Vec<u8>) -> Outcome {
        let lock = lock_in(request)?;
        let found = self.tree.get_lock(header.nodeid, request.fh, request.owner, lock)?;
        device::fs::lk_out(reply, found.start, found.end, kind_out(found.kind), found.pid);
        Ok(Answer::Reply)
    }

    /// SETLK: at once or not at all.
    pub(super) fn set_lock(&self, header: &InHeader, request: &LkRequest) -> Outcome {
        let lock = lock_in(request)?;
        if request.flock() {
            self.tree.flock(request.fh, request.owner, lock.kind)?;
        } else {
            self.tree.set_lock(header.nodeid, request.fh, request.owner, lock)?;
        }
        Ok(Answer::Reply)
    }

    /// SETLKW: `done` is told once, perhaps before this returns.
    pub(crate) fn wait_lock(
        &self,
        header: &InHeader,
        request: &LkRequest,
        done: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) -> Option<Arc<Wait>> {
        let lock = match lock_in(request) {
            Ok(lock) => lock,
            Err(error) => {
                done(Err(error));
                return None;
            }
        };
        let wait = Arc::new(if request.flock() {
            self.tree.wait_flock(request.fh, request.owner, lock.kind, done)
        } else {
            self.tree.wait_lock(header.nodeid, request.fh, request.owner, lock, done)
        });
        self.waits().insert(header.unique, wait.clone());
        Some(wait)
    }

    /// The request that waited has its answer.
    pub(crate) fn lock_wait_ended(&self, unique: u64) {
        self.waits().remove(&unique);
    }

    /// How many requests wait for locks.
    pub(crate) fn locks_waiting(&self) -> usize {
        self.waits().len()
    }

    /// INTERRUPT: a lock that is waited for is given up. Other requests end soon by themselves.
    ///
    /// A guest that interrupts what has not arrived yet is asked to try again (EAGAIN, as Linux' fuse.rst has it).
    pub(super) fn interrupt(&self, unique: u64) -> Outcome {
        match self.waits().get(&unique) {
            Some(wait) => {
                wait.cancel();
                Ok(Answer::Silence)
            }
            None => Err(Errno::AGAIN),
        }
    }

    pub(super) fn cancel_lock_waits(&self) {
        for wait in self.waits().values() {
            wait.cancel();
        }
    }

    fn waits(&self) -> MutexGuard<'_, HashMap<u64, Arc<Wait>>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// F_RDLCK, F_WRLCK and F_UNLCK of asm-generic/fcntl.h, which the protocol uses.
fn lock_in(request: &LkRequest) -> Result<Lock, Errno> {
    let kind = match request.kind as i32 {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return Err(Errno::INVAL),
    };
    Ok(Lock { kind, start: request.start, end: request.end, pid: request.pid })
}

fn kind_out(kind: LockKind) -> u32 {
    let kind = match kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    kind as u32
}
