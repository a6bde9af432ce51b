//! What a call may cost: whether it frees so much that whoever else waits for this thread would notice.
//!
//! A file system gives space back extent by extent, some of them under locks that a transaction's end waits for: seconds for a
//! large file in small pieces, whether its name goes, its size, or the last descriptor. One look at the file beforehand tells,
//! by how much is allocated: how many pieces that is no call tells, and the worst is one a block. What is told may be outdated
//! when the call is made. Then it takes its time where it is made, which is as bad as it would be without this.

use crate::file::Handle;
use crate::stat::stat;
use crate::tree::{Node, Tree};
use rustix::fs::Statx;
use std::ffi::CStr;
use std::os::fd::AsFd;

/// Allocated space, in blocks of 512 bytes, that is given back in no time even when each block of the file system is a piece of
/// its own: 64 KiB, 16 pieces.
const LIGHT_BLOCKS: u64 = 128;

/// Owners whose locks are dropped in no time, however many others there are of the same file.
pub const FEW_OWNERS: usize = 16;

pub(crate) fn is_heavy(stat: &Statx) -> bool {
    stat.stx_blocks > LIGHT_BLOCKS
}

impl Tree {
    /// Whether it may take long until what is called `name` in `parent` is gone. One system call. What is not there, or cannot be
    /// looked at, is an error soon.
    #[must_use]
    pub fn removal_is_long(&self, parent: Node, name: &CStr) -> bool {
        let look = self.directory(parent, name).and_then(|(_, dir)| stat(dir.as_fd(), name));
        look.is_ok_and(|stat| is_heavy(&stat) || self.is_found_changing(&stat))
    }

    /// Whether it may take long until a file has another size. One system call. One that keeps its size may have space allocated
    /// behind its end, which goes.
    #[must_use]
    pub fn truncation_is_long(&self, node: Node, handle: Option<Handle>, size: u64) -> bool {
        if self.is_changing(node) {
            return true;
        }
        let pin = self.pin_of(node, handle);
        let look = pin.and_then(|pin| stat(pin.as_fd(), c""));
        look.is_ok_and(|stat| size <= stat.stx_size && is_heavy(&stat))
    }

    /// Whether it may take long to close a file that was open for writing, where the file system may write back what was written
    /// to it (ext4's `auto_da_alloc`), or one with which many owners' locks go. One system call. What is left of a file without a
    /// name goes elsewhere; see `crate::closing`.
    #[must_use]
    pub fn release_is_long(&self, handle: Handle) -> bool {
        let Ok(file) = self.files.get(handle) else { return false };
        if self.has_many_owners(file.node(), handle) {
            return true;
        }
        if !file.is_writable() {
            return false;
        }
        let long = stat(file.as_fd(), c"").is_ok_and(|stat| is_heavy(&stat));
        if !long {
            file.is_light();
        }
        long
    }

    /// Whether it takes long to drop the locks that came by an open file. No system call.
    pub(crate) fn has_many_owners(&self, node: Node, handle: Handle) -> bool {
        self.locks.owners_by(node, handle).len() > FEW_OWNERS
    }

    /// Whether it may take long to tell what became of earlier writes: where file systems tell at a close, that writes back all
    /// that was written. No system call.
    #[must_use]
    pub fn flush_is_long(&self, handle: Handle) -> bool {
        self.files.get(handle).is_ok_and(|file| file.is_writable() && file.mount.reports_at_close())
    }

    /// Whether it may take long to find where data or a hole begins: file systems look at one piece after the other, under the
    /// lock of the inode. One system call.
    #[must_use]
    pub fn seek_is_long(&self, handle: Handle) -> bool {
        let Ok(file) = self.files.get(handle) else { return false };
        self.is_changing(file.node()) || stat(file.as_fd(), c"").is_ok_and(|stat| is_heavy(&stat))
    }
}
