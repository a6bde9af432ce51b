//! Locks. Those that have to be waited for wait on threads of the tree's, and a ring goes on.
//!
//! Linux takes `flock` and POSIX locks alike by `Tlock`, in the name of a process. All fids of a session share what a process
//! holds, as they do on one machine; what was taken through a fid goes when that is clunked.

use super::fids::Fid;
use super::holdings::LockShare;
use super::place::lock;
use super::session::Session;
use crate::calls::{Answer, Outcome};
use device::p9::{GetLock, LockKind, LockRequest, lock_status};
use passthrough::{Lock, Tree, Wait};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The most locks that one session waits for at a time: half of what the tree has threads for.
const WAITS_MAX: usize = 32;

/// The locks that a session waits for.
#[derive(Default)]
pub(super) struct Waits(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    next: u64,
    waits: HashMap<u64, State>,
}

enum State {
    /// It may be over, or may wait: nobody knows yet.
    Starting,
    Started(Arc<Wait>),
    /// The session ended while it was being started.
    Cancelled,
}

impl Waits {
    fn begin(&self) -> u64 {
        let mut waiting = lock(&self.0);
        let number = waiting.next;
        waiting.next = number.wrapping_add(1);
        waiting.waits.insert(number, State::Starting);
        number
    }

    fn started(&self, number: u64, wait: &Arc<Wait>) {
        // What is over already has left.
        if let Some(state) = lock(&self.0).waits.get_mut(&number) {
            if let State::Cancelled = state {
                wait.cancel();
            }
            *state = State::Started(Arc::clone(wait));
        }
    }

    fn end(&self, number: u64) {
        lock(&self.0).waits.remove(&number);
    }

    /// Gives up all that is waited for.
    pub(super) fn cancel(&self) {
        for state in lock(&self.0).waits.values_mut() {
            match state {
                State::Started(wait) => wait.cancel(),
                State::Starting | State::Cancelled => *state = State::Cancelled,
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.0).waits.len()
    }
}

/// A request, in the tree's terms.
struct Asked {
    fid: Arc<Fid>,
    share: Arc<LockShare>,
    owner: u64,
    lock: Lock,
}

impl Asked {
    /// Takes the lock, or drops it.
    ///
    /// # Errors
    /// `EAGAIN` when another is in the way, and the tree's.
    fn try_now(&self, tree: &Tree) -> Result<(), Errno> {
        let handle = self.fid.open()?.handle;
        let answer = tree.set_lock(self.fid.place.node(), handle, self.owner, self.lock);
        self.settle(tree);
        answer
    }

    /// The fid remembers those alone who have something to lose.
    fn settle(&self, tree: &Tree) {
        self.share.settle(tree, self.fid.place.node(), self.owner);
        if let Ok(open) = self.fid.open()
            && !tree.has_locks(self.fid.place.node(), self.owner)
        {
            open.remove_owner(self.owner);
        }
    }
}

impl Session {
    fn asked(&self, request: &LockRequest<'_>) -> Result<Asked, Errno> {
        let fid = self.fids.get(request.fid)?;
        let open = fid.open()?;
        let owner = self.owner(request.client_id, request.proc_id);
        let lock = Lock { kind: kind_in(request.kind), start: request.start, end: request.end(), pid: request.proc_id };
        if request.kind != LockKind::Unlock {
            self.locks.admit(fid.place.node(), owner)?;
            open.add_owner(owner)?;
        }
        Ok(Asked { fid, share: Arc::clone(&self.locks), owner, lock })
    }

    /// At once or not at all.
    pub(super) fn set_lock(&self, request: &LockRequest<'_>, reply: &mut Vec<u8>) -> Outcome {
        let asked = self.asked(request)?;
        let status = match asked.try_now(self.tree()) {
            Ok(()) => lock_status::SUCCESS,
            Err(Errno::AGAIN) => lock_status::BLOCKED,
            Err(error) => return Err(error),
        };
        device::p9::lock_out(reply, status);
        Ok(Answer::Reply)
    }

    /// Waits for a lock. `done` is told once, perhaps before this returns: that it is granted, why it cannot be had, or, with
    /// `EINTR`, that the wait was given up or that too many wait already: a client that still wants it asks again.
    ///
    /// The file stays open until then, so that a lock that is granted when the client has given the fid back goes with it.
    pub(crate) fn wait_lock(
        &self,
        request: &LockRequest<'_>,
        done: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) -> Option<Arc<Wait>> {
        let again = |outcome| if outcome == Err(Errno::AGAIN) { Err(Errno::INTR) } else { outcome };
        let opened = self.asked(request).and_then(|asked| Ok((asked.fid.open()?.handle, asked)));
        let (handle, asked) = match opened {
            Ok((_, asked)) if self.waits.len() >= WAITS_MAX => {
                done(again(asked.try_now(self.tree())));
                return None;
            }
            Ok(opened) => opened,
            Err(error) => {
                done(Err(error));
                return None;
            }
        };
        let (owner, lock) = (asked.owner, asked.lock);
        let (node, born) = (asked.fid.place.node(), asked.fid.born);
        let (waits, tree) = (Arc::clone(&self.waits), Arc::clone(self.tree()));
        let number = waits.begin();
        let ended = move |outcome| {
            waits.end(number);
            // No thread to wait with: other clients have taken them all.
            let outcome = if outcome == Err(Errno::NOLCK) { again(asked.try_now(&tree)) } else { outcome };
            asked.settle(&tree);
            drop(asked);
            done(outcome);
        };
        let wait = Arc::new(self.tree().wait_lock(node, handle, owner, lock, ended));
        self.waits.started(number, &wait);
        if born != self.fids.generation() {
            // The client began anew, and gave up what was waited for until then.
            wait.cancel();
        }
        Some(wait)
    }

    /// The lock that stands in the way of one, or none. Linux does not say which it would like to have, and asks by "none": it
    /// is told what is in everybody's way.
    pub(super) fn get_lock(&self, request: &GetLock<'_>, reply: &mut Vec<u8>) -> Outcome {
        let fid = self.fids.get(request.fid)?;
        let handle = fid.open()?.handle;
        let owner = self.owner(request.client_id, request.proc_id);
        let kind = match request.kind {
            LockKind::Write => passthrough::LockKind::Write,
            LockKind::Read | LockKind::Unlock => passthrough::LockKind::Read,
        };
        let lock = Lock { kind, start: request.start, end: request.end(), pid: request.proc_id };
        let found = self.tree().get_lock(fid.place.node(), handle, owner, lock)?;
        let answer = match found.kind {
            passthrough::LockKind::Unlock => GetLock { kind: LockKind::Unlock, ..*request },
            held => GetLock {
                kind: if held == passthrough::LockKind::Read { LockKind::Read } else { LockKind::Write },
                start: found.start,
                length: if found.end >= Lock::END {
                    0
                } else {
                    found.end.saturating_sub(found.start).saturating_add(1)
                },
                proc_id: found.pid,
                ..*request
            },
        };
        device::p9::getlock_out(reply, &answer);
        Ok(Answer::Reply)
    }
}

fn kind_in(kind: LockKind) -> passthrough::LockKind {
    match kind {
        LockKind::Read => passthrough::LockKind::Read,
        LockKind::Write => passthrough::LockKind::Write,
        LockKind::Unlock => passthrough::LockKind::Unlock,
    }
}
