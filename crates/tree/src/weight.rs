//! What a call may cost: whether it frees so much that whoever else waits for this thread would notice.
//!
//! A file system gives space back extent by extent, some of them under locks that a transaction's end waits for: seconds for a
//! large file in small pieces, whether its name goes, its size, or the last descriptor. One look at the file beforehand tells,
//! by how much is allocated: how many pieces that is no call tells, and the worst is one a block. What is told may be outdated
//! when the call is made. Then it takes its time where it is made, which is as bad as it would be without this.

use crate::file::Handle;
use crate::stat::stat;
use crate::tree::{Node, ROOT, Tree};
use rustix::fs::{OFlags, Statx};
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

/// Allocated space, in blocks of 512 bytes, that is given back in no time even when each block of the file system is a piece of
/// its own: 64 KiB, 16 pieces.
const LIGHT_BLOCKS: u64 = 128;

/// Owners whose locks are dropped in no time, however many others there are of the same file.
pub const FEW_OWNERS: usize = 16;

fn is_heavy(stat: &Statx) -> bool {
    stat.stx_blocks > LIGHT_BLOCKS
}

/// What is not there, or cannot be looked at, is an error soon.
fn heavy(dir: BorrowedFd<'_>, name: &CStr) -> bool {
    stat(dir, name).is_ok_and(|stat| is_heavy(&stat))
}

impl Tree {
    /// Whether it may take long until what is called `name` in `parent` is gone. One system call.
    #[must_use]
    pub fn removal_is_long(&self, parent: Node, name: &CStr) -> bool {
        self.directory(parent, name).is_ok_and(|(_, dir)| heavy(dir.as_fd(), name))
    }

    /// Whether it may take long until a file has another size. One system call.
    #[must_use]
    pub fn truncation_is_long(&self, node: Node, handle: Option<Handle>, size: u64) -> bool {
        let pin = self.pin_of(node, handle);
        let look = pin.and_then(|pin| stat(pin.as_fd(), c""));
        look.is_ok_and(|stat| size < stat.stx_size && is_heavy(&stat))
    }

    /// Whether it may take long to close a file: nothing else is left of it, the file system writes back what was written
    /// to it (ext4's `auto_da_alloc`), or many owners' locks go with it. One system call.
    #[must_use]
    pub fn release_is_long(&self, handle: Handle) -> bool {
        let Ok(file) = self.files.get(handle) else { return false };
        if self.locks.owners_by(file.node(), handle).len() > FEW_OWNERS {
            return true;
        }
        let written = OFlags::from_bits_retain(file.flags().cast_unsigned()).intersects(OFlags::WRONLY | OFlags::RDWR);
        stat(file.as_fd(), c"").is_ok_and(|stat| (stat.stx_nlink == 0 || written) && is_heavy(&stat))
    }

    /// Whether it may take long to forget a node: it goes with so many references, and the last descriptor of a file without a
    /// name with it. One system call where a node goes that holds a descriptor.
    #[must_use]
    pub fn forgetting_is_long(&self, node: Node, count: u64) -> bool {
        if node == ROOT {
            return false;
        }
        let Ok(inode) = self.table.get(node) else { return false };
        if !inode.kind.is_file() || !inode.goes_with(count) {
            return false;
        }
        let look = inode.pin().map(|pin| stat(pin.as_fd(), c""));
        look.is_some_and(|look| look.is_ok_and(|stat| stat.stx_nlink == 0 && is_heavy(&stat)))
    }
}
