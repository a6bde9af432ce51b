//! Exclusive locks on files that nobody here may write to.
//!
//! The kernel gives a POSIX lock for writing to a descriptor that may write, and a read-only tree has none. But flock(2) on a
//! file of a read-only mount can be exclusive, and a client whose protocol has POSIX locks alone (9p) asks for it by one of
//! those. It gets two: one for reading on the file itself, which keeps writers of the host away, and one that keeps the tree's
//! other clients away, on a file of ours without a name, where a byte stands for each node.
//!
//! Locks for reading are taken in both places, too. The bytes of a file are one here: clients ask for parts of a file by
//! fcntl(2) alone, and their kernels grant no lock for writing there.

use crate::closing::{Closing, Sort};
use crate::lock::{Exclusive, Limits, Locks, Then};
use crate::patience::in_use;
use crate::share::Taken;
use crate::stat::open_anew;
use crate::sync::lock;
use crate::{Handle, Lock, LockKind, Node, Result, Tree, Wait};
use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

/// An owner waits in both places, until this is dropped. What it has got in the first is no less its own for that it has nothing in
/// the second yet, whatever else it gives back meanwhile.
struct Halves {
    tree: Arc<Tree>,
    key: (Node, u64),
}

impl Halves {
    fn begin(tree: &Arc<Tree>, exclusive: &Exclusive, key: (Node, u64)) -> Halves {
        *lock(&exclusive.waits).entry(key).or_default() += 1;
        Halves { tree: Arc::clone(tree), key }
    }

    /// The wait is over, with what became of it.
    fn end(self) {
        let (tree, (node, owner)) = (Arc::clone(&self.tree), self.key);
        drop(self);
        tree.settle_exclusion(node, owner);
    }
}

impl Drop for Halves {
    fn drop(&mut self) {
        let Some(exclusive) = self.tree.exclusive.get() else { return };
        let mut waits = lock(&exclusive.waits);
        if let Some(count) = waits.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                waits.remove(&self.key);
            }
        }
    }
}

/// The byte that stands for a node.
fn byte(node: Node, lock: Lock) -> Lock {
    Lock { start: node, end: node, ..lock }
}

/// The same bytes, shared.
fn shared(lock: Lock) -> Lock {
    Lock { kind: LockKind::Read, ..lock }
}

impl Tree {
    /// Lets clients of a read-only tree have exclusive locks, as flock(2) gives them on a read-only mount. Without this, as on a
    /// file that the daemon may not write to, they are `EBADF`. Nothing happens to a tree that is writable.
    ///
    /// # Errors
    /// The kernel's, for a file without a name.
    pub fn allow_exclusive_locks(&self) -> Result<()> {
        if self.options.read_only && self.exclusive.get().is_none() {
            let file = memfd_create("vringd-locks", MemfdFlags::CLOEXEC)?;
            // Somebody may have been faster, with one that is as good.
            let locks = Locks::new(Limits::on_one_file(), Arc::clone(&self.share));
            let _ = self.exclusive.set(Exclusive { file, locks, waits: Mutex::default() });
        }
        Ok(())
    }

    fn open_for_exclusion(&self, exclusive: &Exclusive) -> Result<Closing<Taken>> {
        let taken = self.share.take().ok_or(Errno::NOLCK)?;
        let fd = open_anew(self.proc_self_fd.as_fd(), exclusive.file.as_fd(), OFlags::RDWR)?;
        Ok(Closing::new(fd, taken, Sort::Light))
    }

    /// The exclusive lock of another client, if that is in the way.
    pub(crate) fn excluded_by(
        &self,
        exclusive: &Exclusive,
        node: Node,
        owner: u64,
        lock: Lock,
    ) -> Result<Option<Lock>> {
        let found = exclusive.locks.get(node, owner, byte(node, lock), |_| self.open_for_exclusion(exclusive))?;
        let whole = Lock { start: 0, end: Lock::END, ..found };
        Ok((found.kind == LockKind::Write).then_some(whole))
    }

    /// Takes or drops a lock in both places, or in none.
    pub(crate) fn set_lock_in_both(
        &self,
        exclusive: &Exclusive,
        (node, handle): (Node, Handle),
        owner: u64,
        lock: Lock,
    ) -> Result<()> {
        let open = |flags| self.open_for_locks(node, handle, flags);
        if lock.kind == LockKind::Unlock {
            let answer = self.locks.set(node, owner, lock, open);
            self.settle_exclusion(node, owner);
            return answer;
        }
        self.file_of(node, handle)?;
        exclusive.locks.set(node, owner, byte(node, lock), |_| self.open_for_exclusion(exclusive))?;
        let answer = self.locks.set(node, owner, shared(lock), open);
        self.settle_exclusion(node, owner);
        answer
    }

    /// As [`Tree::set_lock_in_both`], waiting for one after the other.
    pub(crate) fn wait_lock_in_both(
        self: &Arc<Self>,
        exclusive: &Exclusive,
        (node, handle): (Node, Handle),
        owner: u64,
        lock: Lock,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Wait {
        let known = self.file_of(node, handle).map(drop);
        if lock.kind == LockKind::Unlock || known.is_err() {
            done(known.and_then(|()| self.set_lock_in_both(exclusive, (node, handle), owner, lock)));
            return Wait::over();
        }
        let (tree, then) = (Arc::clone(self), Then::default());
        let (second, halves) = (then.clone(), Halves::begin(self, exclusive, (node, owner)));
        let among_clients = move |outcome: Result<()>| match outcome {
            Ok(()) => second.start(|| tree.wait_lock_on_host((node, handle), halves, lock, done)),
            Err(error) => {
                halves.end();
                done(Err(error));
            }
        };
        let open = |_| self.open_for_exclusion(exclusive);
        exclusive.locks.wait(node, owner, byte(node, lock), open, among_clients).and(then)
    }

    /// The second half of a wait: no other client is in the way, but somebody on the host may be.
    fn wait_lock_on_host(
        self: &Arc<Self>,
        (node, handle): (Node, Handle),
        halves: Halves,
        lock: Lock,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Wait {
        let (_, owner) = halves.key;
        let ended = move |outcome| {
            halves.end();
            done(outcome);
        };
        let open = |flags| self.open_for_locks(node, handle, flags).map_err(in_use);
        self.locks.wait(node, owner, shared(lock), open, ended)
    }

    /// Who has nothing on the file itself, and does not wait for it, excludes nobody.
    pub(crate) fn settle_exclusion(&self, node: Node, owner: u64) {
        let Some(exclusive) = self.exclusive.get() else { return };
        let waits = lock(&exclusive.waits).contains_key(&(node, owner));
        if !waits && !self.locks.knows(node, owner) {
            exclusive.locks.drop_owner(node, owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, ROOT, Source};
    use std::sync::mpsc::{Receiver, channel};

    const ALL: Lock = Lock { kind: LockKind::Write, start: 0, end: Lock::END, pid: 7 };
    const SHARED: Lock = Lock { kind: LockKind::Read, ..ALL };
    const NONE: Lock = Lock { kind: LockKind::Unlock, ..ALL };

    struct Fixture {
        tree: Arc<Tree>,
        /// Another daemon on the same directory, which may write.
        host: Tree,
        _directory: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Fixture {
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join("file"), "content").unwrap();
            let tree =
                |options| Tree::new(Source::Path(directory.path().to_owned()), options).expect("it can be opened");
            let (read_only, host) = (tree(Options { read_only: true, ..Options::default() }), tree(Options::default()));
            read_only.allow_exclusive_locks().unwrap();
            Fixture { tree: Arc::new(read_only), host, _directory: directory }
        }

        fn open(tree: &Tree, flags: i32) -> (Node, Handle) {
            let node = tree.lookup(ROOT, c"file").unwrap().node;
            (node, tree.open(node, flags, false).unwrap().handle)
        }

        fn set(&self, owner: u64, lock: Lock) -> Result<()> {
            let (node, handle) = Fixture::open(&self.tree, libc::O_RDONLY);
            // It stays open: the lock would go with it.
            self.tree.set_lock(node, handle, owner, lock)
        }

        fn set_by_host(&self, lock: Lock) -> Result<()> {
            let (node, handle) = Fixture::open(&self.host, libc::O_RDWR);
            self.host.set_lock(node, handle, 1, lock)
        }

        fn wait(&self, owner: u64, lock: Lock) -> (Wait, Receiver<Result<()>>) {
            let (node, handle) = Fixture::open(&self.tree, libc::O_RDONLY);
            let (sender, receiver) = channel();
            let wait = self.tree.wait_lock(node, handle, owner, lock, move |answer| sender.send(answer).unwrap());
            (wait, receiver)
        }
    }

    #[test]
    fn a_lock_for_writing_excludes_clients_and_the_host() {
        let at = Fixture::new();
        at.set(1, ALL).unwrap();
        assert_eq!(at.set(2, ALL), Err(Errno::AGAIN));
        assert_eq!(at.set(2, SHARED), Err(Errno::AGAIN));
        assert_eq!(at.set_by_host(ALL), Err(Errno::AGAIN));
        let (node, handle) = Fixture::open(&at.tree, libc::O_RDONLY);
        assert_eq!(at.tree.get_lock(node, handle, 2, SHARED), Ok(ALL));
        assert_eq!(at.tree.get_lock(node, handle, 1, SHARED).unwrap().kind, LockKind::Unlock);
        // It becomes a shared one.
        at.set(1, SHARED).unwrap();
        at.set(2, SHARED).unwrap();
        assert_eq!(at.set(1, ALL), Err(Errno::AGAIN));
        at.set(2, NONE).unwrap();
        at.set(1, ALL).unwrap();
        at.tree.flush(node, handle, 1).unwrap();
        at.set(2, ALL).unwrap();
        at.set(2, NONE).unwrap();
        assert!(!at.tree.has_locks(node, 1) && !at.tree.has_locks(node, 2));
        assert_eq!(at.tree.describe().lock_owners, 0);
    }

    #[test]
    fn a_lock_that_the_host_refuses_keeps_no_client_away() {
        let at = Fixture::new();
        at.set_by_host(ALL).unwrap();
        assert_eq!(at.set(1, ALL), Err(Errno::AGAIN));
        assert_eq!(at.tree.describe().lock_owners, 0);
        at.set_by_host(NONE).unwrap();
        at.set(2, SHARED).unwrap();
    }

    #[test]
    fn both_are_waited_for_and_both_waits_can_be_given_up() {
        let at = Fixture::new();
        at.set(1, ALL).unwrap();
        let (wait, given_up) = at.wait(2, ALL);
        wait.cancel();
        assert_eq!(given_up.recv(), Ok(Err(Errno::INTR)));
        let (_wait, granted) = at.wait(2, ALL);
        at.set(1, NONE).unwrap();
        assert_eq!(granted.recv(), Ok(Ok(())));
        assert_eq!(at.set(1, SHARED), Err(Errno::AGAIN));
        at.set(2, NONE).unwrap();

        at.set_by_host(ALL).unwrap();
        let (wait, given_up) = at.wait(1, ALL);
        wait.cancel();
        assert_eq!(given_up.recv(), Ok(Err(Errno::INTR)));
        assert_eq!(at.tree.describe().lock_owners, 0, "nothing is left of it");
        let (_wait, granted) = at.wait(1, ALL);
        at.set_by_host(NONE).unwrap();
        assert_eq!(granted.recv(), Ok(Ok(())));
        at.tree.clear();
        assert_eq!(at.tree.describe().lock_owners, 0);
    }

    #[test]
    fn what_a_wait_has_got_in_one_place_it_keeps_until_it_is_over() {
        let at = Fixture::new();
        let (node, handle) = Fixture::open(&at.tree, libc::O_RDONLY);
        let gives_back: [fn(&Fixture, Node, Handle); 2] =
            [|at, _, _| at.set(2, NONE).unwrap(), |at, node, handle| at.tree.flush(node, handle, 2).unwrap()];
        for give_back in gives_back {
            at.set_by_host(ALL).unwrap();
            let (_wait, granted) = at.wait(2, ALL);
            give_back(&at, node, handle);
            at.set_by_host(NONE).unwrap();
            assert_eq!(granted.recv(), Ok(Ok(())));
            assert_eq!(at.set(3, SHARED), Err(Errno::AGAIN), "it is an exclusive one");
            at.set(2, NONE).unwrap();
            at.set(3, SHARED).unwrap();
            at.set(3, NONE).unwrap();
        }
        // As between the two.
        let exclusive = at.tree.exclusive.get().unwrap();
        let halves = Halves::begin(&at.tree, exclusive, (node, 4));
        exclusive.locks.set(node, 4, byte(node, ALL), |_| at.tree.open_for_exclusion(exclusive)).unwrap();
        at.set(4, NONE).unwrap();
        assert_eq!(at.set(3, SHARED), Err(Errno::AGAIN));
        halves.end();
        at.set(3, SHARED).unwrap();
        at.set(3, NONE).unwrap();
        assert_eq!((at.tree.describe().lock_owners, lock(&exclusive.waits).len()), (0, 0));
    }

    #[test]
    fn a_handle_that_is_unknown_gets_nothing() {
        let at = Fixture::new();
        let (node, handle) = Fixture::open(&at.tree, libc::O_RDONLY);
        at.tree.release(handle, None);
        assert_eq!(at.tree.set_lock(node, handle, 1, ALL), Err(Errno::BADF));
        let (sender, refused) = channel();
        at.tree.wait_lock(node, handle, 1, ALL, move |answer| sender.send(answer).unwrap());
        assert_eq!(refused.recv(), Ok(Err(Errno::BADF)));
        assert_eq!(at.tree.describe().lock_owners, 0);
    }
}
