//! Descriptors whose close takes long.
//!
//! The last descriptor of what has no name gives back all that it has: seconds for a large file, or for a directory that was large.
//! A file that was emptied and written anew is written out by whoever closes it next, also who has only read it (ext4's
//! `auto_da_alloc`, and others). Who drops a descriptor cannot be told beforehand: a request that is released while a read of it is
//! under way, a session that ends, a client that begins anew, a node that is forgotten, a lock that is given back. So a thread that
//! serves others looks at what it is about to close, and leaves the close to a thread of the tree where that may take long.

use crate::lock::{Crowds, Joined, Place};
use crate::share::Taken;
use crate::stat::{Kind, is_heavy, stat};
use rustix::fs::{OFlags, Statx};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

thread_local! {
    static SERVES: Cell<bool> = const { Cell::new(false) };
}

/// By how many open files of the process a file was emptied: it is written out when one of its descriptors is closed, and these are
/// the last that can be. Other trees have the same files.
static EMPTIED: LazyLock<Arc<Crowds>> = LazyLock::new(|| Crowds::new(usize::MAX));

/// Whether this thread serves others.
pub(crate) fn serves() -> bool {
    SERVES.get()
}

/// This thread serves others, from now on: nothing is closed on it that may take long.
#[inline]
pub fn serves_others() {
    SERVES.set(true);
}

/// What a descriptor is good for, and its close may have to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Of what cannot be large: neither a file nor a directory.
    Light,
    /// A file or directory by its path alone.
    Path,
    /// A file or directory, to be read.
    Read,
    /// A file, to be written.
    Write,
}

impl Sort {
    /// Of an inode's path.
    pub(crate) fn of_path(kind: Kind) -> Sort {
        if kind.is_file() || kind.is_directory() { Sort::Path } else { Sort::Light }
    }

    /// Of a file or directory that was opened like this.
    pub(crate) fn of(flags: OFlags) -> Sort {
        if is_writable(flags) { Sort::Write } else { Sort::Read }
    }
}

/// Whether a file that is opened like this can be written to.
pub(crate) fn is_writable(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR)
}

/// A descriptor, and its place among those that a tree may hold, which it has until it is closed.
#[derive(Debug)]
pub(crate) struct Closing<T: AsRef<Taken> + Send + 'static> {
    fd: ManuallyDrop<OwnedFd>,
    along: ManuallyDrop<T>,
    sort: Sort,
    /// The file was emptied by this descriptor.
    emptied: ManuallyDrop<OnceLock<Joined>>,
    /// It was looked at just now.
    light: AtomicBool,
}

impl<T: AsRef<Taken> + Send + 'static> Closing<T> {
    pub(crate) fn new(fd: OwnedFd, along: T, sort: Sort) -> Closing<T> {
        Closing {
            fd: ManuallyDrop::new(fd),
            along: ManuallyDrop::new(along),
            sort,
            emptied: ManuallyDrop::default(),
            light: AtomicBool::new(sort == Sort::Light),
        }
    }

    /// It is about to be closed, and that takes no time.
    pub(crate) fn is_light(&self) {
        self.light.store(true, Ordering::Relaxed);
    }

    /// What was in the file goes by this descriptor: file systems are to write out soon what comes in its place.
    pub(crate) fn empties(&self) {
        if self.emptied.get().is_none()
            && let Ok(place) = Place::of(self)
        {
            // Another thread may have been faster.
            let _ = self.emptied.set(EMPTIED.join_anyway(place));
        }
    }

    /// Whether a heavy file may be written out when this is closed.
    pub(crate) fn writes_out(&self, stat: &Statx) -> bool {
        match self.sort {
            Sort::Light | Sort::Path => false,
            Sort::Read => EMPTIED.of(Place::found(stat)) > 0,
            Sort::Write => true,
        }
    }

    fn is_long(&self) -> bool {
        let look = stat(self.as_fd(), c"");
        look.is_ok_and(|stat| is_heavy(&stat) && (stat.stx_nlink == 0 || self.writes_out(&stat)))
    }
}

impl<T: AsRef<Taken> + Send + 'static> AsFd for Closing<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T: AsRef<Taken> + Send + 'static> Drop for Closing<T> {
    fn drop(&mut self) {
        let long = SERVES.get() && !*self.light.get_mut() && self.is_long();
        // SAFETY: this is the only place that takes them, and they are not used any more.
        let held = unsafe {
            let fd = ManuallyDrop::take(&mut self.fd);
            (fd, ManuallyDrop::take(&mut self.along), ManuallyDrop::take(&mut self.emptied))
        };
        if long {
            let writes_back = (self.sort == Sort::Write).then(|| held.1.as_ref().writes_back());
            // Whatever comes of it, that is over then.
            let share = held.1.as_ref().share();
            share.closer.leave(Box::new(move || drop((held, writes_back))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closer::LEFT;
    use crate::{Options, ROOT, Source, Tree};
    use std::ffi::CString;

    const LARGE: usize = 1 << 20;

    fn tree(directory: &tempfile::TempDir) -> Tree {
        Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap()
    }

    /// How much is left to another thread by one that serves others and runs `end`.
    fn left_by(end: impl FnOnce() + Send) -> usize {
        let run = || {
            serves_others();
            end();
            LEFT.get()
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    }

    /// Runs `end` on a thread that serves others and has files open that have lost their names: so many closes are left to
    /// another thread.
    fn left(bytes: usize, serves: bool, end: impl FnOnce(&Tree, u64, u64) + Send) -> usize {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; bytes]).unwrap();
        let tree = Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap();
        std::thread::scope(|scope| {
            let run = scope.spawn(|| {
                if serves {
                    serves_others();
                }
                let node = tree.lookup(ROOT, &CString::new("file").unwrap()).unwrap().node;
                let handle = tree.open(node, libc::O_RDWR, false).unwrap().handle;
                std::fs::remove_file(&path).unwrap();
                end(&tree, node, handle);
                LEFT.get()
            });
            run.join().unwrap()
        })
    }

    #[test]
    fn a_thread_that_serves_others_gives_no_large_file_back() {
        let clear = |tree: &Tree, _, _| tree.clear();
        // The session ends: the open file, and the descriptor of the node.
        assert_eq!(left(LARGE, true, clear), 2);
        assert_eq!(left(LARGE, false, clear), 0, "who serves nobody else closes what it has");
        assert_eq!(left(5000, true, clear), 0, "that takes no time");
        // It is released, and forgotten, in either order.
        assert_eq!(left(LARGE, true, |tree, node, handle| (tree.release(handle, None), tree.forget(node, 1)).1), 2);
        assert_eq!(left(LARGE, true, |tree, node, handle| (tree.forget(node, 1), tree.release(handle, None)).1), 2);
        // Somebody still reads when it is released.
        let reading = |tree: &Tree, node, handle| {
            let file = tree.file(handle).unwrap();
            std::thread::scope(|scope| scope.spawn(|| (tree.release(handle, None), tree.forget(node, 1))).join())
                .unwrap();
            drop(file);
        };
        assert_eq!(left(LARGE, true, reading), 1);
    }

    #[test]
    fn a_directory_without_a_name_is_given_back_by_another_thread() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("directory");
        std::fs::create_dir(&path).unwrap();
        // What tmpfs says of a directory's size is what its names take.
        let names: Vec<_> = (0..4000).map(|name| path.join(name.to_string())).collect();
        names.iter().for_each(|name| std::fs::write(name, "").unwrap());
        let tree = tree(&directory);
        let node = tree.lookup(ROOT, c"directory").unwrap().node;
        let fd = rustix::fs::open(&path, OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        let look = || stat(fd.as_fd(), c"").unwrap();
        assert!(is_heavy(&look()), "{}", look().stx_size);
        let share = crate::share::Share::of_process();
        for sort in [Sort::of(OFlags::RDONLY), Sort::of_path(Kind::of(&look()))] {
            assert!(matches!(sort, Sort::Read | Sort::Path));
            let close = || drop(Closing::new(fd.try_clone().unwrap(), share.take_anyway(), sort));
            assert_eq!(left_by(close), 0, "it has a name");
        }
        let handle = tree.open_dir(node).unwrap().handle;
        names.iter().for_each(|name| std::fs::remove_file(name).unwrap());
        std::fs::remove_dir(&path).unwrap();
        // This file system keeps nothing of what was in it.
        assert_eq!(left_by(|| tree.release_dir(handle)), 0);
        assert_eq!(Sort::of_path(Kind::from_mode(libc::S_IFLNK)), Sort::Light);
    }

    #[test]
    fn who_closes_a_file_that_was_emptied_may_have_to_write_it_out() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        std::fs::write(directory.path().join("file"), vec![1; LARGE]).unwrap();
        let tree = tree(&directory);
        let node = tree.lookup(ROOT, c"file").unwrap().node;
        let open = |flags| tree.open(node, flags, false).unwrap().handle;
        let lock = |kind| crate::Lock { kind, start: 0, end: 9, pid: 1 };
        let (shared, none) = (lock(crate::LockKind::Read), lock(crate::LockKind::Unlock));
        let reader = open(libc::O_RDONLY);
        let closes = || {
            let (handle, locked) = (open(libc::O_RDONLY), open(libc::O_RDONLY));
            assert_eq!(tree.release_is_long(handle), left_by(|| tree.release(handle, None)) == 1);
            let look = left_by(|| assert!(tree.get_lock(node, locked, 1, shared).is_ok()));
            let unlock = left_by(|| {
                tree.set_lock(node, locked, 1, shared).unwrap();
                tree.set_lock(node, locked, 1, none).unwrap();
            });
            tree.release(locked, None);
            (look, unlock)
        };
        assert_eq!(closes(), (0, 0));
        let resize = |handle, size| {
            let change = crate::Change { size: Some(size), ..crate::Change::default() };
            tree.set_attributes(node, handle, &change).unwrap();
        };
        // By O_TRUNC, and by a descriptor that is open.
        for emptied in [libc::O_RDWR | libc::O_TRUNC, libc::O_RDWR] {
            let writer = open(emptied);
            if emptied & libc::O_TRUNC == 0 {
                resize(Some(writer), 0);
            }
            resize(Some(writer), LARGE as u64);
            assert_eq!(closes(), (1, 1));
            assert!(tree.release_is_long(reader) && tree.release_is_long(writer));
            // A descriptor for the one call.
            assert_eq!(left_by(|| resize(None, 2 * LARGE as u64)), 1);
            tree.release(writer, None);
            assert_eq!(closes(), (0, 0), "the file system has nothing in mind any more");
            assert!(!tree.release_is_long(reader));
        }
    }

    #[test]
    fn a_session_that_ends_leaves_what_was_written_to_another_thread() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        std::fs::write(directory.path().join("file"), vec![1; LARGE]).unwrap();
        let tree = tree(&directory);
        let node = tree.lookup(ROOT, c"file").unwrap().node;
        for (flags, closes) in [(libc::O_RDWR, 1), (libc::O_WRONLY, 1), (libc::O_RDONLY, 0)] {
            tree.open(node, flags, false).unwrap();
            assert_eq!(left_by(|| tree.files.clear()), closes);
        }
    }
}
