//! Calls that must not wait for another process.
//!
//! Whoever may read a file of his own can take a lease on it (fcntl(2), F_SETLEASE), and an open that breaks it waits until he
//! gives it back or `/proc/sys/fs/lease-break-time` is over: 45 seconds. A thread that serves others too opens without waiting,
//! and does the whole call again elsewhere when it would have had to.
//!
//! Opening is the only call here that breaks a lease: `truncate(2)`, which does, is an open and an `ftruncate(2)`, and names,
//! modes and owners change under one. The delegations of an NFS server are another matter, and nobody can ask not to wait for them.

use rustix::io::Errno;
use std::cell::Cell;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Long,
    Short,
    /// As `Short`, and a file was in use.
    InUse,
}

thread_local! {
    static PATIENCE: Cell<Patience> = const { Cell::new(Patience::Long) };
}

/// This thread gets its patience back when a call ends, also by a panic.
struct Restored(Patience);

impl Drop for Restored {
    fn drop(&mut self) {
        PATIENCE.set(self.0);
    }
}

/// Makes a call on a tree that must not wait for another process. `None` when it would have had to: it has done nothing then
/// that cannot be done again, and is to be made on a thread that has time.
pub fn without_waiting<T>(call: impl FnOnce() -> T) -> Option<T> {
    let _restored = Restored(PATIENCE.replace(Patience::Short));
    let outcome = call();
    (PATIENCE.get() != Patience::InUse).then_some(outcome)
}

#[inline]
pub(crate) fn is_short() -> bool {
    PATIENCE.get() != Patience::Long
}

/// An open that did not wait has failed.
pub(crate) fn found_in_use(error: Errno) {
    if error == Errno::WOULDBLOCK {
        PATIENCE.set(Patience::InUse);
    }
}

/// What a wait answers for a file that cannot be opened for its locks without waiting for another process. The caller cannot ask for
/// it once more: it has given `done` away.
pub(crate) fn in_use(error: Errno) -> Errno {
    if error == Errno::WOULDBLOCK { Errno::NOLCK } else { error }
}
