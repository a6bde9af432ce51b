//! Locks of the client on its nodes and open files.

use crate::file::Flock;
use crate::lock::{Joined, Place};
use crate::patience::in_use;
use crate::{Handle, Lock, LockKind, Node, OpenFile, Result, Tree, Wait, lock, sync};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Owners whose locks are dropped in no time, however many others there are of the same file.
pub const FEW_OWNERS: usize = 16;

impl Tree {
    /// The POSIX lock of somebody else that stands in the way of `lock`, or `lock` with [`LockKind::Unlock`].
    ///
    /// # Errors
    /// `EINVAL` for a range that is none, `EBADF` for a handle that is unknown or another node's, and the kernel's.
    pub fn get_lock(&self, node: Node, handle: Handle, owner: u64, lock: Lock) -> Result<Lock> {
        self.pause();
        if let Some(exclusive) = self.exclusive.get()
            && let Some(held) = self.excluded_by(exclusive, node, owner, lock)?
        {
            return Ok(held);
        }
        self.locks.get(node, owner, lock, |flags| self.open_for_locks(node, handle, flags))
    }

    /// Takes or drops a POSIX lock on a range of bytes without waiting.
    ///
    /// # Errors
    /// `EAGAIN` when another lock is in the way, `ENOLCK` when the client has too many, `EBADF` for a lock for writing on a
    /// file that cannot be written (but see [`Tree::allow_exclusive_locks`]), and as [`Tree::get_lock`].
    pub fn set_lock(&self, node: Node, handle: Handle, owner: u64, lock: Lock) -> Result<()> {
        self.pause();
        let answer = match self.exclusive.get() {
            Some(exclusive) => self.set_lock_in_both(exclusive, (node, handle), owner, lock),
            None => self.locks.set(node, owner, lock, |flags| self.open_for_locks(node, handle, flags)),
        };
        if lock.kind != LockKind::Unlock && answer.is_ok() {
            self.locks.came_by(node, owner, handle);
        }
        answer
    }

    /// Whether an owner has POSIX locks on a node, or waits for some. No system call.
    #[must_use]
    pub fn has_locks(&self, node: Node, owner: u64) -> bool {
        self.locks.knows(node, owner) || self.exclusive.get().is_some_and(|exclusive| exclusive.knows(node, owner))
    }

    /// How many ranges of a node an owner holds. No system call.
    #[must_use]
    pub fn lock_ranges(&self, node: Node, owner: u64) -> usize {
        self.locks.ranges_of(node, owner)
    }

    /// Takes a POSIX lock, and waits for it on a thread of its own when it is not free. `done` is called once, perhaps
    /// before this returns: with what [`Tree::set_lock`] answers but for `EAGAIN`, with `EINTR` when the wait was cancelled.
    pub fn wait_lock(
        self: &Arc<Self>,
        node: Node,
        handle: Handle,
        owner: u64,
        lock: Lock,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Wait {
        self.pause();
        if let Some(exclusive) = self.exclusive.get() {
            return self.wait_lock_in_both(exclusive, (node, handle), owner, lock, done);
        }
        let open = |flags| self.open_for_locks(node, handle, flags).map_err(in_use);
        let wait = self.locks.wait(node, owner, lock, open, done);
        if lock.kind != LockKind::Unlock {
            self.locks.came_by(node, owner, handle);
        }
        wait
    }

    /// An open file is released. Those who locked by it and have not locked by another since have nothing to unlock with any
    /// more: a client does not tell of the end of open file description locks (`F_OFD_SETLK`) in another way.
    pub(crate) fn unlock_released(&self, node: Node, handle: Handle) {
        for owner in self.locks.owners_by(node, handle) {
            self.locks.drop_owner(node, owner);
            self.settle_exclusion(node, owner);
        }
    }

    /// Whether it takes long to drop the locks that came by an open file. No system call.
    pub(crate) fn has_many_owners(&self, node: Node, handle: Handle) -> bool {
        self.locks.owners_by(node, handle).len() > FEW_OWNERS
    }

    /// `flock` on an open file without waiting. The lock is the open file's, whoever the `owner` is.
    ///
    /// # Errors
    /// `EAGAIN` when another open file holds a lock that is in the way, `ENOLCK` when as many open files of the same file have one
    /// as may, `EBADF` for a handle that is unknown, and the kernel's.
    pub fn flock(&self, handle: Handle, owner: u64, kind: LockKind) -> Result<()> {
        self.pause();
        let _ = owner;
        let file = self.files.get(handle)?;
        // Held during the call, which does not wait: what is counted is what the kernel has.
        let mut flock = sync::lock(&file.flock);
        if kind == LockKind::Unlock {
            lock::flock(file.as_fd(), kind)?;
            *flock = Flock::default();
            return Ok(());
        }
        let new = match &flock.joined {
            Some(_) => None,
            None => Some(self.join_flocks(&file)?),
        };
        flock.changes_to(kind);
        lock::flock(file.as_fd(), kind)?;
        flock.kind = Some(kind);
        if new.is_some() {
            flock.joined = new;
        }
        Ok(())
    }

    /// Counts an open file among those of the same file that have a `flock`.
    pub(crate) fn join_flocks(&self, file: &OpenFile) -> Result<Joined> {
        self.flocks.join(Place::of(file)?).ok_or(Errno::NOLCK)
    }

    /// `flock` on an open file, with a wait as in [`Tree::wait_lock`].
    pub fn wait_flock(
        self: &Arc<Self>,
        handle: Handle,
        owner: u64,
        kind: LockKind,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Wait {
        self.pause();
        // Whether it is granted or given up: it counts until the file is unlocked or closed.
        let file = self.files.get(handle).and_then(|file| {
            let mut flock = sync::lock(&file.flock);
            if kind != LockKind::Unlock {
                if flock.joined.is_none() {
                    flock.joined = Some(self.join_flocks(&file)?);
                }
                flock.changes_to(kind);
            }
            drop(flock);
            Ok(file)
        });
        match file {
            Ok(_) if kind == LockKind::Unlock => {
                done(self.flock(handle, owner, kind));
                Wait::over()
            }
            Ok(file) => {
                let locked = Arc::clone(&file);
                self.locks.wait_flock(&file, kind, move |answer| {
                    let mut flock = sync::lock(&locked.flock);
                    // Unless somebody else has unlocked it by now.
                    if answer.is_ok() && flock.joined.is_some() {
                        flock.kind = Some(kind);
                    }
                    drop(flock);
                    drop(locked);
                    done(answer);
                })
            }
            Err(error) => {
                // A lock on no node, which cannot be opened: over with this error before it begins.
                let nothing = Lock { kind: LockKind::Read, start: 0, end: 0, pid: 0 };
                self.locks.wait(0, owner, nothing, |_| Err(error), done)
            }
        }
    }

    /// Drops the `flock` of a file whose descriptor may live on.
    pub(crate) fn unlock_file(&self, file: &OpenFile) {
        if let Err(error) = lock::flock(file.as_fd(), LockKind::Unlock)
            && error != Errno::OPNOTSUPP
        {
            tracing::debug!(%error, node = file.node(), "the lock of a released file stays until it is closed");
        }
    }
}
