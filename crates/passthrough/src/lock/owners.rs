//! Who holds what: a description an owner and node, and what the kernel granted on it.

mod handover;
mod migration;

use super::crowd::{Crowds, Joined, Place};
use super::kernel::{self, Span};
use super::ranges::Ranges;
use super::wait::{Wait, Waiters};
use super::{Lock, LockKind};
use crate::closing::Closing;
use crate::error::Result;
use crate::ids::{Handle, Node};
use crate::share::{Share, Taken};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most locks of one kind on one file: a call on them takes less than a tenth of a millisecond then, and dropping all less
/// than one.
pub(crate) const FILE_MAX: usize = 4096;

/// What a tree's clients may hold at once: each of these is memory, descriptors or threads of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Owners with locks, one descriptor each.
    pub(crate) owners: usize,
    /// Of those, owners with locks on one file: dropping an owner's locks goes along all locks of the file.
    pub(crate) owners_of_file: usize,
    /// Ranges of bytes that are held, each a lock in the kernel.
    pub(crate) ranges: usize,
    /// Of those, ranges of one file: each call on its locks goes along them, some ten nanoseconds each.
    pub(crate) ranges_of_file: usize,
    /// Locks that are waited for, a thread each.
    pub(crate) waits: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { owners: 16 << 10, owners_of_file: 1 << 10, ranges: 256 << 10, ranges_of_file: FILE_MAX, waits: 64 }
    }
}

impl Limits {
    /// For a tree whose locks are all on one file of the host, whichever node they are of.
    pub(crate) fn on_one_file() -> Limits {
        Limits { owners: FILE_MAX, owners_of_file: FILE_MAX, ..Limits::default() }
    }
}

/// An owner's locks on one node.
struct Owner {
    /// Its description holds the locks.
    file: Closing<Taken>,
    place: Place,
    _joined: Joined,
    /// The open file by which the latest lock came.
    handle: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: Ranges,
    /// Threads that wait for a lock of this owner.
    waits: usize,
    /// No longer in the table: nobody may take a lock here.
    closed: bool,
    /// The process that took the latest lock.
    pid: u32,
}

impl Owner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Owner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

type Key = (Node, u64);

/// What one owner holds on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) node: Node,
    pub(crate) owner: u64,
    /// The process that took the latest lock, and the open file by which it came.
    pub(crate) pid: u32,
    pub(crate) handle: Handle,
    /// First byte, last byte, kind; in order, none meets another.
    pub(crate) ranges: Vec<(u64, u64, LockKind)>,
}

/// What the waiting threads share with the tree. A state's lock is taken before the table's, never after it.
struct Table {
    owners: Mutex<BTreeMap<Key, Arc<Owner>>>,
    /// How many owners there are: closing a file that nobody ever locked looks at nothing else.
    count: AtomicUsize,
    /// How many ranges all owners hold.
    ranges: AtomicUsize,
    owners_of_files: Arc<Crowds>,
    ranges_of_files: Arc<Crowds>,
    limits: Limits,
    share: Arc<Share>,
}

impl Table {
    fn owners(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<Owner>>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, key: Key) -> Option<Arc<Owner>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.owners().get(&key).cloned()
    }

    fn find_or_open(&self, key: Key, open: &mut impl FnMut(OFlags) -> Result<Closing<Taken>>) -> Result<Arc<Owner>> {
        if let Some(owner) = self.find(key) {
            return Ok(owner);
        }
        if self.count.load(Ordering::Acquire) >= self.limits.owners {
            return Err(Errno::NOLCK);
        }
        let file = open_for_locks(open)?;
        let place = Place::of(&file)?;
        let joined = self.owners_of_files.join(place).ok_or(Errno::NOLCK)?;
        let (handle, state) = (AtomicU64::new(0), Mutex::default());
        let mut owners = self.owners();
        let owner =
            owners.entry(key).or_insert_with(|| Arc::new(Owner { file, place, _joined: joined, handle, state }));
        let owner = Arc::clone(owner);
        self.count.store(owners.len(), Ordering::Release);
        Ok(owner)
    }

    /// Notes what the kernel granted.
    fn note(&self, place: Place, state: &mut State, span: Span, kind: LockKind) {
        let before = state.held.len();
        state.held.set(span.start, span.end, kind);
        self.count_ranges(place, before, state.held.len());
    }

    fn count_ranges(&self, place: Place, before: usize, after: usize) {
        self.ranges_of_files.change(place, before, after);
        if after >= before {
            self.ranges.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.ranges.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Drops all that the owner holds.
    fn drop_locks(&self, owner: &Owner, state: &mut State) {
        if !state.held.is_empty() {
            // The kernel drops locks without condition; only a broken network file system could refuse.
            let _ = kernel::set(owner.file.as_fd(), LockKind::Unlock, Span::ALL);
            self.count_ranges(owner.place, state.held.len(), 0);
            state.held.clear();
        }
    }

    fn close_if_idle(&self, key: Key, state: &mut State) {
        if state.held.is_empty() && state.waits == 0 {
            self.close(key, state);
        }
    }

    fn close(&self, key: Key, state: &mut State) {
        if !state.closed {
            state.closed = true;
            let mut owners = self.owners();
            owners.remove(&key);
            self.count.store(owners.len(), Ordering::Release);
        }
    }

    /// So many ranges more are too many, of the file or of all.
    fn is_full(&self, place: Place, more: usize) -> bool {
        self.ranges.load(Ordering::Relaxed).saturating_add(more) > self.limits.ranges
            || !self.ranges_of_files.has_room(place, more)
    }

    /// Takes a lock now, for an owner that is still in the table.
    fn take(&self, owner: &Owner, state: &mut State, lock: Lock, span: Span) -> Result<()> {
        // A lock in the middle of another makes three of one.
        let more = if state.held.is_split_by(span.start, span.end) { 2 } else { 1 };
        if self.is_full(owner.place, more) {
            return Err(Errno::NOLCK);
        }
        kernel::set(owner.file.as_fd(), lock.kind, span)?;
        self.note(owner.place, state, span, lock.kind);
        state.pid = lock.pid;
        Ok(())
    }

    /// What becomes of a wait's answer. An owner that was closed meanwhile has a description no longer than this wait.
    fn settle(&self, key: Key, owner: &Owner, lock: Lock, span: Span, answer: Result<()>) -> Result<()> {
        let mut state = owner.state();
        state.waits = state.waits.saturating_sub(1);
        if state.closed {
            return answer.and_then(|()| {
                kernel::set(owner.file.as_fd(), LockKind::Unlock, Span::ALL)?;
                Err(Errno::INTR)
            });
        }
        if answer.is_ok() {
            self.note(owner.place, &mut state, span, lock.kind);
            state.pid = lock.pid;
        }
        self.close_if_idle(key, &mut state);
        answer
    }
}

/// Opens a file for all locks that it can have. A description's locks cannot move to another one, so a later lock for
/// writing must find one that may write; what can only be read can only have locks for reading.
fn open_for_locks(open: &mut impl FnMut(OFlags) -> Result<Closing<Taken>>) -> Result<Closing<Taken>> {
    match open(OFlags::RDWR) {
        Err(Errno::ROFS | Errno::TXTBSY | Errno::ISDIR | Errno::ACCESS | Errno::PERM) => open(OFlags::RDONLY),
        answer => answer,
    }
}

/// The locks of one tree's clients.
pub(crate) struct Locks {
    table: Arc<Table>,
    waiters: Waiters,
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("owners", &self.owners()).finish_non_exhaustive()
    }
}

impl Locks {
    pub(crate) fn new(limits: Limits, share: Arc<Share>) -> Locks {
        let table = Table {
            owners: Mutex::default(),
            count: AtomicUsize::new(0),
            ranges: AtomicUsize::new(0),
            owners_of_files: Crowds::new(limits.owners_of_file),
            ranges_of_files: Crowds::new(limits.ranges_of_file),
            limits,
            share,
        };
        Locks { table: Arc::new(table), waiters: Waiters::default() }
    }

    /// How many owners hold locks or wait for some: as many descriptors.
    pub(crate) fn owners(&self) -> usize {
        self.table.count.load(Ordering::Acquire)
    }

    /// How many ranges they hold: as many locks in the kernel.
    pub(crate) fn ranges(&self) -> usize {
        self.table.ranges.load(Ordering::Relaxed)
    }

    /// The lock of somebody else that stands in the way of `lock`, or `lock` with [`LockKind::Unlock`].
    ///
    /// `open` opens the node's file anew, with the access mode it is told.
    ///
    /// # Errors
    /// `EINVAL` for a range that is none; what `open` and the kernel answer.
    pub(crate) fn get(
        &self,
        node: Node,
        owner: u64,
        lock: Lock,
        mut open: impl FnMut(OFlags) -> Result<Closing<Taken>>,
    ) -> Result<Lock> {
        let span = Span::new(lock.start, lock.end)?;
        if lock.kind == LockKind::Unlock {
            return Err(Errno::INVAL);
        }
        let found = match self.table.find((node, owner)) {
            // Its own description, or the owner's locks would be somebody else's.
            Some(own) => kernel::get(own.file.as_fd(), lock.kind, span)?,
            None => kernel::get(open(OFlags::RDONLY)?.as_fd(), lock.kind, span)?,
        };
        let Some((kind, held)) = found else { return Ok(Lock { kind: LockKind::Unlock, ..lock }) };
        Ok(Lock { kind, start: held.start, end: held.end, pid: self.holder(node, owner, held) })
    }

    /// The process that holds these bytes for another owner than `asking`; 0 when none of ours does.
    fn holder(&self, node: Node, asking: u64, span: Span) -> u32 {
        let owners = self.table.owners();
        let others: Vec<_> =
            owners.range((node, 0)..=(node, u64::MAX)).map(|(key, owner)| (key.1, owner.clone())).collect();
        drop(owners);
        let holds = |owner: &Owner| {
            let state = owner.state();
            state.held.meets(span.start, span.end).then_some(state.pid)
        };
        others.iter().filter(|(number, _)| *number != asking).find_map(|(_, owner)| holds(owner)).unwrap_or(0)
    }

    /// Takes or drops a lock without waiting. `open` as for [`Locks::get`].
    ///
    /// # Errors
    /// `EAGAIN` when another lock is in the way; `EINVAL` for a range that is none; `EBADF` for a lock for writing on a file
    /// that cannot be written; `ENOLCK` when the bounds are reached.
    pub(crate) fn set(
        &self,
        node: Node,
        owner: u64,
        lock: Lock,
        mut open: impl FnMut(OFlags) -> Result<Closing<Taken>>,
    ) -> Result<()> {
        let span = Span::new(lock.start, lock.end)?;
        let key = (node, owner);
        if lock.kind == LockKind::Unlock {
            return self.unlock(key, span);
        }
        loop {
            let owner = self.table.find_or_open(key, &mut open)?;
            let mut state = owner.state();
            // Closed between the two lines above: it has left the table, so the next look makes a new one.
            if state.closed {
                continue;
            }
            let answer = self.table.take(&owner, &mut state, lock, span);
            self.table.close_if_idle(key, &mut state);
            return answer;
        }
    }

    fn unlock(&self, key: Key, span: Span) -> Result<()> {
        let Some(owner) = self.table.find(key) else { return Ok(()) };
        let mut state = owner.state();
        if state.closed {
            return Ok(());
        }
        // Bytes given back from the middle make two locks of one, without end if nobody counted.
        if self.table.is_full(owner.place, 1) && state.held.is_split_by(span.start, span.end) {
            return Err(Errno::NOLCK);
        }
        kernel::set(owner.file.as_fd(), LockKind::Unlock, span)?;
        self.table.note(owner.place, &mut state, span, LockKind::Unlock);
        self.table.close_if_idle(key, &mut state);
        Ok(())
    }

    /// Takes a lock, waiting for it on a thread of its own when it is not free. `done` is called once, perhaps before this
    /// returns: with what [`Locks::set`] answers except for `EAGAIN`, or `EINTR` when the wait was cancelled. `ENOLCK` when
    /// too many wait.
    pub(crate) fn wait(
        &self,
        node: Node,
        owner: u64,
        lock: Lock,
        mut open: impl FnMut(OFlags) -> Result<Closing<Taken>>,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Wait {
        let key = (node, owner);
        let (owner, span) = match self.try_or_queue(key, lock, &mut open) {
            Ok(Some(queued)) => queued,
            Ok(None) => {
                done(Ok(()));
                return Wait::over();
            }
            Err(error) => {
                done(Err(error));
                return Wait::over();
            }
        };
        let table = Arc::clone(&self.table);
        let waiting = Arc::clone(&owner);
        self.waiters.start(
            self.table.limits.waits,
            move || kernel::set_waiting(waiting.file.as_fd(), lock.kind, span),
            move |answer| table.settle(key, &owner, lock, span, answer),
            done,
        )
    }

    /// Takes the lock at once, or counts a wait on its owner, who then stays open.
    fn try_or_queue(
        &self,
        key: Key,
        lock: Lock,
        open: &mut impl FnMut(OFlags) -> Result<Closing<Taken>>,
    ) -> Result<Option<(Arc<Owner>, Span)>> {
        let span = Span::new(lock.start, lock.end)?;
        if lock.kind == LockKind::Unlock {
            return self.unlock(key, span).map(|()| None);
        }
        loop {
            let owner = self.table.find_or_open(key, open)?;
            let mut state = owner.state();
            if state.closed {
                continue;
            }
            match self.table.take(&owner, &mut state, lock, span) {
                Ok(()) => return Ok(None),
                Err(Errno::AGAIN) => {}
                Err(error) => {
                    self.table.close_if_idle(key, &mut state);
                    return Err(error);
                }
            }
            state.waits = state.waits.saturating_add(1);
            drop(state);
            return Ok(Some((owner, span)));
        }
    }

    /// Whether `owner` holds something on `node`, or waits for it.
    pub(crate) fn knows(&self, node: Node, owner: u64) -> bool {
        self.table.find((node, owner)).is_some()
    }

    /// How many ranges `owner` holds on `node`.
    pub(crate) fn ranges_of(&self, node: Node, owner: u64) -> usize {
        self.table.find((node, owner)).map_or(0, |owner| owner.state().held.len())
    }

    /// Drops all that `owner` holds on `node`: a file of the owner was closed. Waits go on, as they do in a process that
    /// closes another descriptor of the file. Costs no system call when there is nothing.
    pub(crate) fn drop_owner(&self, node: Node, owner: u64) {
        let key = (node, owner);
        let Some(owner) = self.table.find(key) else { return };
        let mut state = owner.state();
        if !state.closed {
            self.table.drop_locks(&owner, &mut state);
            self.table.close_if_idle(key, &mut state);
        }
    }

    /// A lock of `owner` has come by `handle`, or is waited for.
    pub(crate) fn came_by(&self, node: Node, owner: u64, handle: Handle) {
        if let Some(owner) = self.table.find((node, owner)) {
            owner.handle.store(handle, Ordering::Relaxed);
        }
    }

    /// Whose latest lock on `node` came by `handle`. No system call, and no lock where nobody has locks.
    pub(crate) fn owners_by(&self, node: Node, handle: Handle) -> Vec<u64> {
        if self.owners() == 0 {
            return Vec::new();
        }
        let owners = self.table.owners();
        let all = owners.range((node, 0)..=(node, u64::MAX));
        all.filter(|(_, owner)| owner.handle.load(Ordering::Relaxed) == handle).map(|(key, _)| key.1).collect()
    }

    /// All who hold something, and what.
    fn holders(&self) -> Vec<(Arc<Owner>, Holding)> {
        let owners: Vec<(Key, Arc<Owner>)> =
            self.table.owners().iter().map(|(&key, owner)| (key, Arc::clone(owner))).collect();
        let holding = |((node, number), owner): (Key, Arc<Owner>)| {
            let (ranges, pid) = {
                let state = owner.state();
                (state.held.pieces().collect::<Vec<_>>(), state.pid)
            };
            let handle = owner.handle.load(Ordering::Relaxed);
            (!ranges.is_empty()).then_some((owner, Holding { node, owner: number, pid, handle, ranges }))
        };
        owners.into_iter().filter_map(holding).collect()
    }

    /// Drops every lock and cancels every wait: the client is gone.
    pub(crate) fn clear(&self) {
        self.waiters.cancel_all();
        let owners: Vec<_> = self.table.owners().iter().map(|(&key, owner)| (key, Arc::clone(owner))).collect();
        for (key, owner) in owners {
            let mut state = owner.state();
            if !state.closed {
                self.table.drop_locks(&owner, &mut state);
                self.table.close(key, &mut state);
            }
        }
    }

    /// `flock` on an open file, waiting on a thread of its own as [`Locks::wait`] does. The thread keeps `file` open. A lock
    /// that changes its kind is dropped first, and stays dropped when the wait is cancelled: so does the kernel.
    pub(crate) fn wait_flock<F: AsFd + Send + Sync + 'static>(
        &self,
        file: &Arc<F>,
        kind: LockKind,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Wait {
        match kernel::flock(file.as_fd(), kind) {
            Err(Errno::AGAIN) => {}
            answer => {
                done(answer);
                return Wait::over();
            }
        }
        let file = Arc::clone(file);
        let attempt = move || kernel::flock_waiting(file.as_fd(), kind);
        self.waiters.start(self.table.limits.waits, attempt, |answer| answer, done)
    }
}

impl Drop for Locks {
    /// A thread that waits would keep its file open for as long as somebody else likes.
    fn drop(&mut self) {
        self.clear();
    }
}
