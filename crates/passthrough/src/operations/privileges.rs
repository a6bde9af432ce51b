//! What a file loses when its data change: set-id bits and file capabilities.

use crate::creds::{without_fsetid, without_fsetid_in};
use crate::stat::{has_harmless_group_bit, stat};
use crate::xattr::strip;
use crate::{OpenFile, Result, Tree};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

impl Tree {
    /// A file is about to change its data: file capabilities that the kernel does not know for such go, as its own would,
    /// whoever writes. Costs nothing where no map renames them, one system call otherwise.
    ///
    /// # Errors
    /// The kernel's: the file must not change then.
    #[inline]
    pub fn before_write(&self, file: &OpenFile) -> Result<()> {
        self.strip_capability(file)
    }

    /// As [`Tree::before_write`], for any descriptor of the file.
    #[inline]
    pub(crate) fn strip_capability(&self, fd: impl AsFd) -> Result<()> {
        match &self.mapped_capability {
            None => Ok(()),
            Some(name) => strip(&self.place(fd), name),
        }
    }

    /// Runs a write to `file` so that set-id bits and file capabilities go as they do when an unprivileged user writes. Two
    /// system calls more. `call` must write on this thread: what it hands to io_uring may not run with the thread's power.
    ///
    /// # Errors
    /// What `call` answers, or what stood against the change of the thread's capabilities.
    pub fn killing_privileges<T>(&self, file: &OpenFile, call: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(mapped) = &self.mapped {
            self.drop_set_ids_of(mapped, file)?;
        }
        self.as_a_user(file.as_fd(), call)
    }

    /// Runs `call`, which changes the data of the file `fd`, so that the kernel drops set-id bits. A set-group-id bit without
    /// execution by the group stays, as FUSE has it: no power comes of it. The kernel would take it from a thread outside of
    /// the group, and does not know the client's.
    pub(crate) fn as_a_user<T>(&self, fd: BorrowedFd<'_>, call: impl FnOnce() -> Result<T>) -> Result<T> {
        // Most trees have no such file: its first look costs nothing.
        if self.group_bits.load(Ordering::Relaxed) {
            let stat = stat(fd, c"")?;
            if has_harmless_group_bit(stat.stx_mode.into()) {
                return without_fsetid_in(stat.stx_gid, call);
            }
        }
        without_fsetid(call)
    }
}
