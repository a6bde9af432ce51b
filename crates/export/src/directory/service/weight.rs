//! What may take a device's time, or seconds, and must not be done on a worker.

use super::Service;
use super::attributes::changes_flags;
use device::fs::{InHeader, Release, Request};
use passthrough::Changing;

impl Service {
    /// Whether a request may take long. What frees space does when there is much, see [`passthrough::Tree::removal_is_long`], and what
    /// needs a file that such a call is changing, see [`passthrough::Tree::is_changing`].
    pub(crate) fn is_long(&self, header: &InHeader, request: &Request<'_>) -> bool {
        let (tree, node) = (self.tree(), header.nodeid);
        match request {
            Request::CopyFileRange(_) | Request::Fallocate(_) | Request::SyncFs | Request::FsyncDir(_) => true,
            // It may once have been large: all of that is looked at.
            Request::Rmdir { .. } => true,
            Request::Unlink { name } => tree.removal_is_long(node, name),
            Request::Rename(rename) => {
                tree.rename_is_long((node, rename.name), (rename.new_nodeid, rename.new_name), rename.flags)
            }
            Request::Lookup { .. } | Request::Mknod(_) | Request::Mkdir(_) | Request::Symlink(_) => {
                tree.names_are_changing(node)
            }
            Request::SetAttr(set) => match set.size {
                Some(size) => tree.truncation_is_long(node, set.fh, size),
                None => tree.is_changing(node) || tree.records_are_changing(),
            },
            Request::Open(open) if open.flags & libc::O_TRUNC != 0 => tree.truncation_is_long(node, None, 0),
            Request::Create(new) if new.flags & libc::O_TRUNC != 0 => tree.removal_is_long(node, new.name),
            Request::Create(_) => tree.names_are_changing(node),
            Request::ReadDir(read) | Request::ReadDirPlus(read) => tree.listing_is_long(read.fh),
            Request::Release(release) => tree.release_is_long(release.fh),
            Request::Flush { fh, .. } => tree.flush_is_long(*fh),
            Request::Lseek(seek) => tree.seek_is_long(seek.fh),
            // Of some file systems it takes another form for all that the file has.
            Request::Ioctl(ioctl) => changes_flags(ioctl.command),
            Request::Link { nodeid, .. } => tree.names_are_changing(node) || tree.is_changing(*nodeid),
            Request::Read(read) => self.file_is_changing(node, read.fh),
            Request::Write(write) => self.file_is_changing(node, write.fh) || self.write_is_long(write),
            Request::SetXattr(_) | Request::RemoveXattr { .. } => tree.is_changing(node) || tree.records_are_changing(),
            _ => tree.records_are_changing(),
        }
    }

    /// What a request that takes long is going to change.
    pub(crate) fn changes(&self, header: &InHeader, request: &Request<'_>) -> Option<Changing> {
        let (tree, node) = (self.tree(), header.nodeid);
        let by_name = |dir, name| tree.subject_by_name(dir, name);
        let subjects = match request {
            Request::CopyFileRange(copy) => [copy.fh_in, copy.fh_out].map(|fh| tree.subject_opened(fh)).to_vec(),
            Request::Fallocate(space) => vec![tree.subject_opened(space.fh)],
            Request::Ioctl(ioctl) => vec![tree.subject_opened(ioctl.fh)],
            Request::SetAttr(set) if set.size.is_some() => vec![tree.subject(node)],
            Request::Open(open) if open.flags & libc::O_TRUNC != 0 => vec![tree.subject(node)],
            Request::Create(new) if new.flags & libc::O_TRUNC != 0 => vec![by_name(node, new.name)],
            Request::Link { nodeid, .. } => vec![tree.subject(*nodeid)],
            // The locks of the directories are held while the kernel looks at what is there.
            Request::Rmdir { name } => vec![tree.subject(node), by_name(node, name)],
            Request::Rename(rename) => {
                let (to, new_name) = (rename.new_nodeid, rename.new_name);
                vec![tree.subject(node), tree.subject(to), by_name(node, rename.name), by_name(to, new_name)]
            }
            _ => return None,
        };
        Some(tree.change(subjects.into_iter().flatten().collect()))
    }

    /// Whether a transfer would wait for who is changing the file.
    fn file_is_changing(&self, node: u64, handle: u64) -> bool {
        // Who need not open files names the node.
        self.tree().is_changing(node) || self.tree().file_is_changing(handle)
    }

    /// Before a release is left to another thread: its guest does not wait for it, and may ask for a lock that goes with it.
    pub(crate) fn unlock_for_release(&self, release: &Release) {
        self.tree().unlock_for_release(release.fh, release.flock_unlock.then_some(release.lock_owner));
    }
}
