//! Descriptors whose close takes long.
//!
//! The last descriptor of a file without a name gives back all that the file has: seconds for a large one. Who drops it cannot be
//! told beforehand: a request that is released while a read of it is under way, a session that ends, a client that begins anew,
//! a node that is forgotten. So a thread that serves others looks at what it is about to close, and leaves the close to a thread
//! of the process where that may take long.

use crate::node::Place;
use crate::stat::stat;
use crate::weight::is_heavy;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

thread_local! {
    static SERVES: Cell<bool> = const { Cell::new(false) };
    /// How many this thread has left to the other one.
    #[cfg(test)]
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// This thread serves others, from now on: nothing is closed on it that may take long.
#[inline]
pub fn serves_others() {
    SERVES.set(true);
}

/// A descriptor and its place among those that a tree may hold.
#[derive(Debug)]
pub(crate) struct Closing {
    fd: ManuallyDrop<OwnedFd>,
    place: ManuallyDrop<Place>,
    /// The close takes no time: of a directory, or of what was looked at just now.
    light: AtomicBool,
}

impl Closing {
    /// `light` for what cannot take long.
    pub(crate) fn new(fd: OwnedFd, place: Place, light: bool) -> Closing {
        Closing { fd: ManuallyDrop::new(fd), place: ManuallyDrop::new(place), light: AtomicBool::new(light) }
    }

    /// It is about to be closed, and that takes no time.
    pub(crate) fn is_light(&self) {
        self.light.store(true, Ordering::Relaxed);
    }
}

impl AsFd for Closing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let looks = SERVES.get() && !*self.light.get_mut();
        let long = looks && stat(self.as_fd(), c"").is_ok_and(|stat| stat.stx_nlink == 0 && is_heavy(&stat));
        // SAFETY: this is the only place that takes them, and they are not used any more.
        let held = unsafe { (ManuallyDrop::take(&mut self.fd), ManuallyDrop::take(&mut self.place)) };
        if long {
            close_elsewhere(held);
        }
    }
}

/// Has a thread close a descriptor; it counts among those of its tree until then. Without a thread it is closed here.
fn close_elsewhere(held: (OwnedFd, Place)) {
    #[cfg(test)]
    LEFT.set(LEFT.get() + 1);
    static CLOSER: Mutex<Option<Sender<(OwnedFd, Place)>>> = Mutex::new(None);
    let mut closer = CLOSER.lock().unwrap_or_else(PoisonError::into_inner);
    if closer.is_none() {
        let (sender, receiver) = channel::<(OwnedFd, Place)>();
        let run = move || receiver.into_iter().for_each(drop);
        *closer = std::thread::Builder::new().name("close".into()).spawn(run).ok().map(|_| sender);
    }
    let sender = closer.clone();
    drop(closer);
    // What comes back, when there is no thread, is dropped.
    let _ = sender.map(|sender| sender.send(held));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, ROOT, Source, Tree};
    use std::ffi::CString;

    const LARGE: usize = 1 << 20;

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
    fn what_is_left_to_the_thread_is_closed() {
        let (mut reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let count = std::sync::Arc::default();
        let share = crate::share::Share::of_process();
        close_elsewhere((writer.into(), (crate::sync::Counted::new(&count), share.take().unwrap())));
        assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0, "the other end is closed");
    }
}
