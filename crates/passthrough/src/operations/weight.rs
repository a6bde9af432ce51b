//! What a call may cost: whether it frees so much that whoever else waits for this thread would notice.
//!
//! A file system gives space back extent by extent, some of them under locks that a transaction's end waits for: seconds for a
//! large file in small pieces, whether its name goes, its size, or the last descriptor; so are pages of memory. One look at the file
//! beforehand tells, by its size and by how much is allocated: how many pieces that is no call tells, and the worst is one a block.
//! What is told may be outdated when the call is made. Then it takes its time where it is made, which is as bad as it would be
//! without this.

use crate::stat::{Key, Kind, bytes, is_heavy, stat};
use crate::{Handle, Node, Tree};
use rustix::fs::{RenameFlags, Statx};
use std::ffi::CStr;
use std::os::fd::AsFd;

/// How large a directory may be, in bytes, to be looked through in no time when hardly anything is left in it: ext4 keeps what it once
/// had, and reads all of that for one answer.
const LISTED_BYTES: u64 = 1 << 20;

fn is_removed_slowly(stat: &Statx) -> bool {
    Kind::of(stat).is_directory() || is_heavy(stat)
}

impl Tree {
    /// Whether it may take long until what is called `name` in `parent` is gone. One system call. What is not there, or cannot be
    /// looked at, is an error soon. How much the kernel has to look at before it removes a directory nobody can tell: what was once in
    /// it, and names that somebody has looked for there.
    #[must_use]
    pub fn removal_is_long(&self, parent: Node, name: &CStr) -> bool {
        self.names_are_changing(parent)
            || self.look(parent, name).is_ok_and(|stat| is_removed_slowly(&stat) || self.is_found_changing(&stat))
    }

    /// Whether it may take long until a name is another one, or two names have changed places. Two system calls at most. `flags` are
    /// `RENAME_*`.
    #[must_use]
    pub fn rename_is_long(&self, (parent, name): (Node, &CStr), to: (Node, &CStr), flags: u32) -> bool {
        let (new_parent, new_name) = to;
        // The kernel has one lock for all renames between directories of a file system, whoever asks for them.
        if parent != new_parent || self.names_are_changing(parent) {
            return true;
        }
        let Ok(old) = self.look(parent, new_name) else {
            // Nothing goes.
            return self.changes_any() && self.look(parent, name).is_ok_and(|stat| self.is_found_changing(&stat));
        };
        // What has the name goes on by the old one, or stays what it is.
        let stays = flags & (RenameFlags::EXCHANGE | RenameFlags::NOREPLACE).bits() != 0;
        // Before a file takes the place of another, file systems write it out (ext4's `auto_da_alloc`).
        let long = |new: &Statx| self.is_found_changing(new) || !stays && is_heavy(new);
        self.is_found_changing(&old)
            || !stays && is_removed_slowly(&old)
            || self.look(parent, name).is_ok_and(|new| long(&new))
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

    /// Whether it may take long to close a file where the file system may write out what was written to it (ext4's `auto_da_alloc`), or
    /// one with which many owners' locks go. One system call. What is left of a file without a name goes elsewhere; see
    /// `crate::closing`.
    #[must_use]
    pub fn release_is_long(&self, handle: Handle) -> bool {
        let Ok(file) = self.files.get(handle) else { return false };
        // Who could write gives back what was set aside for that, with a lock that a truncation has.
        if self.has_many_owners(file.node(), handle) || file.is_writable() && self.file_is_changing(handle) {
            return true;
        }
        match stat(file.as_fd(), c"") {
            Ok(stat) if is_heavy(&stat) => {
                if stat.stx_nlink == 0 {
                    self.table.is_removed(&Key::of(&stat));
                }
                file.writes_out(&stat)
            }
            _ => {
                file.is_light();
                false
            }
        }
    }

    /// Whether it may take long to tell what became of earlier writes: where file systems tell at a close, that writes back all
    /// that was written. No system call.
    #[must_use]
    pub fn flush_is_long(&self, handle: Handle) -> bool {
        self.files.get(handle).is_ok_and(|file| file.is_writable() && file.mount.reports_at_close())
    }

    /// Whether it may take long to list an open directory. One system call.
    #[must_use]
    pub fn listing_is_long(&self, handle: Handle) -> bool {
        let Ok(file) = self.files.get(handle) else { return false };
        self.records_are_changing()
            || self.file_is_changing(handle)
            || stat(file.as_fd(), c"").is_ok_and(|stat| bytes(&stat) > LISTED_BYTES)
    }

    /// Whether it may take long to find where data or a hole begins: file systems look at one piece after the other, under the
    /// lock of the inode. One system call.
    #[must_use]
    pub fn seek_is_long(&self, handle: Handle) -> bool {
        let Ok(file) = self.files.get(handle) else { return false };
        self.file_is_changing(handle) || stat(file.as_fd(), c"").is_ok_and(|stat| is_heavy(&stat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, ROOT, Source};

    const NOTHING: u32 = 0;

    #[test]
    fn a_rename_is_long_by_what_goes_what_comes_and_where() {
        let directory = tempfile::tempdir().unwrap();
        for (name, bytes) in [("small", 1), ("tiny", 1), ("large", 1 << 20)] {
            std::fs::write(directory.path().join(name), vec![1; bytes]).unwrap();
        }
        for name in ["directory", "empty"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        let tree = Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap();
        let other = tree.lookup(ROOT, c"directory").unwrap().node;
        let long = |name, new_name, flags| tree.rename_is_long((ROOT, name), (ROOT, new_name), flags);
        assert!(!long(c"small", c"tiny", NOTHING) && !long(c"large", c"new", NOTHING) && !long(c"no", c"new", NOTHING));
        assert!(long(c"small", c"large", NOTHING), "it frees the large one");
        assert!(long(c"large", c"small", NOTHING), "it may be written out before");
        assert!(long(c"empty", c"directory", NOTHING), "it may have been large");
        for flags in [libc::RENAME_EXCHANGE, libc::RENAME_NOREPLACE] {
            assert!(!long(c"small", c"large", flags) && !long(c"large", c"small", flags));
            assert!(!long(c"empty", c"directory", flags));
        }
        assert!(tree.rename_is_long((ROOT, c"small"), (other, c"new"), NOTHING), "other renames may hold it up");
        for changed in [c"small", c"tiny", c"directory"] {
            let changing = tree.change(tree.subject_by_name(ROOT, changed).into_iter().collect());
            for flags in [NOTHING, libc::RENAME_EXCHANGE] {
                assert!(long(changed, c"new", flags) && long(c"large", changed, flags), "{changed:?}");
            }
            drop(changing);
        }
        let _changing = tree.change(tree.subject(ROOT).into_iter().collect());
        assert!(long(c"small", c"new", NOTHING));
    }

    /// As sparse as files can be: its holes may have been read, and then there are pages of memory for them.
    #[test]
    fn a_file_weighs_what_memory_may_have_of_it() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::File::create(directory.path().join("sparse")).unwrap().set_len(1 << 30).unwrap();
        let tree = Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap();
        let node = tree.lookup(ROOT, c"sparse").unwrap().node;
        assert!(tree.removal_is_long(ROOT, c"sparse") && tree.truncation_is_long(node, None, 0));
        assert!(!tree.truncation_is_long(node, None, 2 << 30), "it grows");
    }

    #[test]
    fn a_directory_that_is_or_was_large_is_listed_where_there_is_time() {
        // A directory has the size that its names take here.
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let tree = Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap();
        let handle = tree.open_dir(ROOT).unwrap().handle;
        assert!(!tree.listing_is_long(handle));
        let look = || stat(tree.file(handle).unwrap().as_fd(), c"").unwrap().stx_size;
        let names = (0..).map(|name| directory.path().join(name.to_string()));
        names.take_while(|_| look() <= LISTED_BYTES).for_each(|name| std::fs::write(name, "").unwrap());
        assert!(tree.listing_is_long(handle));
    }

    #[test]
    fn every_directory_is_removed_where_there_is_time() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("directory")).unwrap();
        let tree = Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap();
        assert!(tree.removal_is_long(ROOT, c"directory") && !tree.removal_is_long(ROOT, c"missing"));
    }
}
