//! What may take a device's time, or seconds, and must not be done on a worker.

use super::Service;
use super::attributes::changes_flags;
use device::fs::{InHeader, Release, Request};
use passthrough::Changing;

/// `renameat2(2)`: what has the new name goes on by the old one, or nothing has it.
const KEEPS_BOTH: u32 = libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE;

impl Service {
    /// Whether a request may take long. What frees space does when there is much, see [`passthrough::Tree::removal_is_long`], and what
    /// needs a file that such a call is changing, see [`passthrough::Tree::is_changing`].
    pub(crate) fn is_long(&self, header: &InHeader, request: &Request<'_>) -> bool {
        let (tree, node) = (self.tree(), header.nodeid);
        match request {
            Request::CopyFileRange(_) | Request::Fallocate(_) | Request::SyncFs | Request::FsyncDir(_) => true,
            Request::Unlink { name } | Request::Rmdir { name } => tree.removal_is_long(node, name),
            Request::Rename(rename) => {
                let (parent, name) = (rename.new_nodeid, rename.new_name);
                tree.name_is_changing(node, rename.name)
                    || match rename.flags & KEEPS_BOTH {
                        0 => tree.removal_is_long(parent, name),
                        _ => tree.name_is_changing(parent, name),
                    }
            }
            Request::SetAttr(set) => match set.size {
                Some(size) => tree.truncation_is_long(node, set.fh, size),
                None => tree.is_changing(node),
            },
            Request::Open(open) if open.flags & libc::O_TRUNC != 0 => tree.truncation_is_long(node, None, 0),
            Request::Create(new) if new.flags & libc::O_TRUNC != 0 => tree.removal_is_long(node, new.name),
            Request::Release(release) => tree.release_is_long(release.fh),
            Request::Flush { fh, .. } => tree.flush_is_long(*fh),
            Request::Lseek(seek) => tree.seek_is_long(seek.fh),
            // Of some file systems it takes another form for all that the file has.
            Request::Ioctl(ioctl) => changes_flags(ioctl.command),
            Request::Link { nodeid, .. } => tree.is_changing(*nodeid),
            Request::Read(_) | Request::Write(_) | Request::SetXattr(_) | Request::RemoveXattr { .. } => {
                tree.is_changing(node)
            }
            _ => false,
        }
    }

    /// What a request that takes long is going to change.
    pub(crate) fn changes(&self, header: &InHeader, request: &Request<'_>) -> Option<Changing> {
        let (tree, node) = (self.tree(), header.nodeid);
        let nodes = match request {
            Request::CopyFileRange(copy) => vec![node, copy.nodeid_out],
            Request::Fallocate(_) | Request::Ioctl(_) => vec![node],
            Request::SetAttr(set) if set.size.is_some() => vec![node],
            Request::Open(open) if open.flags & libc::O_TRUNC != 0 => vec![node],
            Request::Create(new) if new.flags & libc::O_TRUNC != 0 => vec![tree.node_by_name(node, new.name)?],
            _ => return None,
        };
        Some(tree.change(nodes))
    }

    /// Before a release is left to another thread: its guest does not wait for it, and may ask for a lock that goes with it.
    pub(crate) fn unlock_for_release(&self, release: &Release) {
        self.tree().unlock_for_release(release.fh, release.flock_unlock.then_some(release.lock_owner));
    }
}
