//! Locks. Those that have to be waited for wait on threads of the tree's, and a ring goes on.

use super::{Answer, Outcome, Service};
use device::fs::{InHeader, LkRequest};
use passthrough::{Lock, LockKind, Wait};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, MutexGuard, PoisonError};

/// Interrupted requests that are remembered until they come. Beyond it the oldest is forgotten: it has most likely come and
/// ended.
const EARLY_MAX: usize = 64;

/// What is waited for, and what shall not be.
#[derive(Default)]
pub(super) struct Waits {
    /// Locks that are waited for, by the request's number.
    waiting: HashMap<u64, Waiting>,
    /// Numbers of requests that were interrupted while they were not waiting: they have ended, will do so by themselves, or
    /// are still to come on another ring.
    early: VecDeque<u64>,
}

struct Waiting {
    wait: Arc<Wait>,
    interrupted: bool,
}

impl Waits {
    /// Somebody begins to wait. What was interrupted before it came does not.
    fn begin(&mut self, unique: u64, wait: &Arc<Wait>) {
        let early = self.early.iter().position(|&early| early == unique);
        if let Some(place) = early {
            self.early.remove(place);
            wait.cancel();
        }
        self.waiting.insert(unique, Waiting { wait: Arc::clone(wait), interrupted: early.is_some() });
    }

    fn interrupt(&mut self, unique: u64) {
        if let Some(waiting) = self.waiting.get_mut(&unique) {
            waiting.interrupted = true;
            waiting.wait.cancel();
        } else if !self.early.contains(&unique) {
            self.early.truncate(EARLY_MAX - 1);
            self.early.push_front(unique);
        }
    }
}

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
        self.waits().begin(header.unique, &wait);
        Some(wait)
    }

    /// The request that waited has its answer.
    pub(crate) fn lock_wait_ended(&self, unique: u64) {
        self.waits().waiting.remove(&unique);
    }

    /// The request has given up its wait for a while, unless its guest wanted so for ever. False then.
    pub(crate) fn put_lock_wait_off(&self, unique: u64) -> bool {
        let mut waits = self.waits();
        let for_ever = waits.waiting.get(&unique).is_some_and(|waiting| waiting.interrupted);
        if !for_ever {
            waits.waiting.remove(&unique);
        }
        !for_ever
    }

    /// Interrupted requests that have not come, the latest first.
    pub(super) fn interrupted(&self) -> Vec<u64> {
        self.waits().early.iter().copied().collect()
    }

    /// Requests that were interrupted in another program and have not come.
    pub(super) fn set_interrupted(&self, numbers: &[u64]) {
        self.waits().early = numbers.iter().copied().take(EARLY_MAX).collect();
    }

    /// How many requests wait for locks.
    pub(crate) fn locks_waiting(&self) -> usize {
        self.waits().waiting.len()
    }

    /// INTERRUPT: a lock that is waited for, or will be, is given up. Other requests end soon by themselves.
    ///
    /// There is never an answer. EAGAIN, which fuse.rst has for what is not there yet, makes a client send the same again at
    /// once, and again; what comes on another ring is remembered instead. Linux' virtio-fs, whose `send_interrupt` is empty,
    /// sends none at all.
    pub(super) fn interrupt(&self, unique: u64) {
        self.waits().interrupt(unique);
    }

    /// The session ends, and with it the numbers of its requests.
    pub(super) fn cancel_lock_waits(&self) {
        let mut waits = self.waits();
        waits.waiting.values().for_each(|waiting| waiting.wait.cancel());
        waits.early.clear();
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
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
