//! I/O that a killed process has left behind.
//!
//! What io_uring has given to a device goes on when its process dies, until the device answers: nothing waits for it. A server
//! that starts meanwhile and does the dead one's requests once more must not get ahead of it. A write that arrives late would
//! undo what the guest has written since, and a read would land in memory that the guest has put to another use.
//!
//! The kernel keeps an open file description until the last I/O on it has ended, and with it the description's locks. So whoever
//! opens an image for writing locks one byte of its own through the descriptor that does the I/O, and waits before until nobody
//! else has that lock. Living writers exclude each other by the image's locks: only the dead can be in the way.
//!
//! Images that are opened for reading alone are not guarded: many may read one image, and the lock would not tell those who live.
//! Nor is one that this process has served before: its exports end when their I/O has, while workers keep descriptors registered.

use crate::OpenError;
use crate::lock::{held_by_other, lock};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Far from the bytes that QEMU's programs lock (100 and 200 and some more). It need not be inside the file.
const BYTE: i64 = 300;
/// How long a device may take to answer before it is a person's turn. Linux gives a disk's command 30 seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks. The kernel takes some tens of milliseconds to clean up after a process that used io_uring, even if it
/// had nothing under way (9 to 44 on Linux 6.18), and no time after others.
const PAUSE: Duration = Duration::from_millis(2);

/// File system and inode of all images that this process has opened for writing.
static SERVED: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// Waits until no process that is gone has I/O under way on the image that is open as `data`, and marks it as in use. The
/// caller holds the image's locks as a writer.
pub(crate) fn wait(path: &Path, data: &OwnedFd) -> Result<(), OpenError> {
    let failed = |source| OpenError::Lock { path: path.to_owned(), source };
    let about = rustix::fs::fstat(data).map_err(|errno| failed(errno.into()))?;
    let image = (about.st_dev, about.st_ino);
    if SERVED.lock().unwrap_or_else(PoisonError::into_inner).contains(&image) {
        return lock(data, BYTE).map_err(failed);
    }
    wait_at_most(path, data, PATIENCE)?;
    SERVED.lock().unwrap_or_else(PoisonError::into_inner).insert(image);
    Ok(())
}

fn wait_at_most(path: &Path, data: &OwnedFd, patience: Duration) -> Result<(), OpenError> {
    let failed = |source| OpenError::Lock { path: path.to_owned(), source };
    let end = Instant::now() + patience;
    while held_by_other(data, BYTE).map_err(failed)? {
        if Instant::now() >= end {
            return Err(OpenError::Late { path: path.to_owned(), seconds: patience.as_secs() });
        }
        sleep(PAUSE);
    }
    lock(data, BYTE).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn open(path: &Path) -> OwnedFd {
        File::options().read(true).write(true).open(path).unwrap().into()
    }

    #[test]
    fn whoever_comes_waits_for_the_last_holder_of_the_description() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let dead = open(image.path());
        wait_at_most(image.path(), &dead, Duration::ZERO).unwrap();
        // As an I/O that is under way: it keeps the description when the process has closed its descriptor.
        let under_way = dead.try_clone().unwrap();
        drop(dead);
        let next = open(image.path());
        let error = wait_at_most(image.path(), &next, Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains(image.path().to_str().unwrap()), "{error}");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(image.path(), &next));
            drop(under_way);
            waiting.join().unwrap().unwrap();
        });
        // The next one is in nobody's way but its successor's.
        wait_at_most(image.path(), &next, Duration::ZERO).unwrap();
        wait_at_most(image.path(), &open(image.path()), Duration::ZERO).unwrap_err();
        // And in nobody's of this process, which knows when its own I/O has ended.
        wait(image.path(), &open(image.path())).unwrap();
    }
}
