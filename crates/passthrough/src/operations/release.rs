//! What a client gives back: open files, and the locks that go with them.

use crate::handle::last_error;
use crate::{Handle, Node, Result, Tree};

impl Tree {
    /// Releases an open file. Locks that came by it go, if their owner has taken none by another since. With
    /// `flock_unlock_owner` its `flock` goes even if an operation still uses the file. A handle that is unknown is nothing to
    /// release.
    pub fn release(&self, handle: Handle, flock_unlock_owner: Option<u64>) {
        if let Some(file) = self.files.remove(handle) {
            self.unlock_released(file.node(), handle);
            if flock_unlock_owner.is_some() {
                self.unlock_file(&file);
            }
        }
    }

    /// Drops the locks that go with a release, for a caller that leaves the rest of [`Tree::release`] to another thread: who asks
    /// for one next must not find it taken.
    pub fn unlock_for_release(&self, handle: Handle, flock_unlock_owner: Option<u64>) {
        if let Ok(file) = self.files.get(handle) {
            // Those of many owners take long themselves, and go with the release.
            if !self.has_many_owners(file.node(), handle) {
                self.unlock_released(file.node(), handle);
            }
            if flock_unlock_owner.is_some() {
                self.unlock_file(&file);
            }
        }
    }

    /// Releases an open directory.
    pub fn release_dir(&self, handle: Handle) {
        self.files.remove(handle);
    }

    /// A process of the client has closed a file: drops the POSIX locks that it, the `owner`, has on it, and tells of
    /// earlier writes that failed where file systems tell at a close.
    ///
    /// # Errors
    /// `EBADF` for a handle that is unknown or another node's, and the kernel's for the close.
    pub fn flush(&self, node: Node, handle: Handle, owner: u64) -> Result<()> {
        self.pause();
        let file = self.file_of(node, handle)?;
        self.locks.drop_owner(node, owner);
        self.settle_exclusion(node, owner);
        if file.mount.reports_at_close() && !self.options.read_only {
            let copy = rustix::io::fcntl_dupfd_cloexec(&*file, 0)?;
            close(copy)?;
        }
        Ok(())
    }
}

/// Closes a descriptor, and tells what the file system says to it.
fn close(fd: std::os::fd::OwnedFd) -> Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: the descriptor is ours alone, and nobody has it any more after this.
    if unsafe { libc::close(fd.into_raw_fd()) } == 0 { Ok(()) } else { Err(last_error()) }
}
