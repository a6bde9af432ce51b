//! What may take a device's time, or seconds, and must not be done on a worker.

use super::Service;
use device::fs::{InHeader, Request};

/// `renameat2(2)`: what has the new name goes on by the old one, or nothing has it.
const KEEPS_BOTH: u32 = libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE;

impl Service {
    /// Whether a request may take long. What frees space does when there is much; see [`tree::Tree::removal_is_long`].
    pub(crate) fn is_long(&self, header: &InHeader, request: &Request<'_>) -> bool {
        let (tree, node) = (self.tree(), header.nodeid);
        match request {
            Request::CopyFileRange(_) | Request::Fallocate(_) | Request::SyncFs | Request::FsyncDir(_) => true,
            Request::Unlink { name } | Request::Rmdir { name } => tree.removal_is_long(node, name),
            Request::Rename(rename) if rename.flags & KEEPS_BOTH == 0 => {
                tree.removal_is_long(rename.new_nodeid, rename.new_name)
            }
            Request::SetAttr(set) => set.size.is_some_and(|size| tree.truncation_is_long(node, set.fh, size)),
            Request::Open(open) if open.flags & libc::O_TRUNC != 0 => tree.truncation_is_long(node, None, 0),
            Request::Create(new) if new.flags & libc::O_TRUNC != 0 => tree.removal_is_long(node, new.name),
            Request::Release(release) => tree.release_is_long(release.fh),
            // The order of what is forgotten and found again does not matter: references are counted.
            Request::Forget { nlookup } => tree.forgetting_is_long(node, *nlookup),
            Request::BatchForget(forgets) => forgets.iter().any(|(node, count)| tree.forgetting_is_long(node, count)),
            _ => false,
        }
    }
}
