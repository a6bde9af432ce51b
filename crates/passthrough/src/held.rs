//! What a long call removes is there until the call is over.
//!
//! The kernel frees a file whose last name goes when nobody has it open: behind an unlink(2), but while a rename(2) or an rmdir(2)
//! still has the locks of the directories. A thread that has time holds such a file itself, and lets go of it when the kernel has let
//! go of everything, and when nobody need keep away from what was changed.

use crate::changing::{Changes, Changing, Running, Subject};
use crate::error::Result;
use crate::stat::{Key, open_path, stat};
use crate::table::Table;
use rustix::fs::Statx;
use std::cell::RefCell;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

thread_local! {
    /// What the call that runs has removed. `None` on a thread that serves others.
    static REMOVED: RefCell<Option<Vec<OwnedFd>>> = const { RefCell::new(None) };
}

/// What was removed is freed when this goes, also by a panic.
struct Removed;

impl Drop for Removed {
    fn drop(&mut self) {
        // They are closed without the cell: nothing that a close does may come back to it.
        drop(REMOVED.take());
    }
}

/// Makes a call on a thread that has time, with what it changes, when no other call does. What the call removes is freed behind it, when
/// nothing is being changed any more. A call within another one waits for nobody: it could be for the other one.
pub fn with_time<T>(changing: Option<Changing>, call: impl FnOnce() -> T) -> T {
    if has_time() {
        let _changing = changing;
        return call();
    }
    REMOVED.set(Some(Vec::new()));
    let _removed = Removed;
    // They go in the other order.
    let changing = changing;
    let _running = changing.as_ref().map(Changing::run);
    call()
}

/// What is about to lose its name, held where there is time for that.
#[must_use]
pub(crate) struct Target {
    fd: Option<OwnedFd>,
    /// Others keep away from it meanwhile.
    _changing: Option<Changing>,
    /// Nobody changes it meanwhile.
    _running: Option<Running>,
}

fn has_time() -> bool {
    REMOVED.with_borrow(Option::is_some)
}

/// What is about to be changed, for a call that could not say so before; where there is time.
pub(crate) fn changes(changes: &Arc<Changes>, find: impl FnOnce() -> Result<Statx>) -> Option<Changing> {
    let found = if has_time() { find().ok()? } else { return None };
    Some(changes.begin(vec![Subject::found(&found)]))
}

impl Target {
    /// What is called `name` in `dir`. Without a descriptor for it the call takes its time where the kernel has it.
    pub(crate) fn hold(present: &Arc<Changes>, dir: impl AsFd, name: &CStr) -> Target {
        let fd = Target::open(dir, name);
        let _changing = fd.as_ref().and_then(|fd| changes(present, || stat(fd.as_fd(), c"")));
        Target { fd, _changing, _running: None }
    }

    /// As [`Target::hold`], for a call that keeps nobody away: the kernel has the lock of the directory while it waits for that of
    /// the file, so that is waited for before.
    pub(crate) fn hold_alone(present: &Arc<Changes>, dir: impl AsFd, name: &CStr) -> Target {
        let fd = Target::open(dir, name);
        let found = fd.as_ref().and_then(|fd| stat(fd.as_fd(), c"").ok());
        Target { fd, _changing: None, _running: found.map(|found| present.run_alone(&found)) }
    }

    fn open(dir: impl AsFd, name: &CStr) -> Option<OwnedFd> {
        if has_time() { open_path(dir.as_fd(), name).ok() } else { None }
    }

    /// The call has succeeded.
    pub(crate) fn removed(self, table: &Table) {
        let Some(fd) = self.fd else { return };
        if let Ok(stat) = stat(fd.as_fd(), c"")
            && stat.stx_nlink == 0
        {
            table.is_removed(&Key::of(&stat));
        }
        REMOVED.with_borrow_mut(|removed| removed.get_or_insert_default().push(fd));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Node, Options, ROOT, Source, Tree};
    use rustix::io::Errno;

    fn tree(names: &[&str]) -> (Tree, tempfile::TempDir) {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        names.iter().for_each(|name| std::fs::write(directory.path().join(name), "text").unwrap());
        std::fs::create_dir(directory.path().join("directory")).unwrap();
        (Tree::new(Source::Path(directory.path().to_owned()), Options::default()).unwrap(), directory)
    }

    fn removed() -> Option<usize> {
        REMOVED.with_borrow(|removed| removed.as_ref().map(Vec::len))
    }

    #[test]
    fn what_a_long_call_removes_is_held_until_it_is_over() {
        type Call = fn(&Tree) -> crate::Result<()>;
        let calls: [(&str, Call); 4] = [
            ("unlink", |tree| tree.unlink(ROOT, c"file")),
            ("rename", |tree| tree.rename(ROOT, c"other", ROOT, c"file", 0)),
            ("rmdir", |tree| tree.rmdir(ROOT, c"directory")),
            ("nothing", |tree| tree.unlink(ROOT, c"missing").or(Ok(()))),
        ];
        for (name, call) in calls {
            let held = usize::from(name != "nothing");
            let (tree, _directory) = tree(&["file", "other"]);
            let changing = tree.change(tree.subject(ROOT).into_iter().collect());
            with_time(Some(changing), || {
                call(&tree).unwrap();
                assert_eq!((removed(), tree.changes_any()), (Some(held), true), "{name}");
            });
            assert_eq!((removed(), tree.changes_any()), (None, false), "{name}");
        }
        let (tree, _directory) = tree(&["file", "other"]);
        tree.unlink(ROOT, c"file").unwrap();
        assert_eq!(removed(), None, "a thread that serves others holds nothing");
        let change = || tree.change(tree.subject(ROOT).into_iter().collect());
        with_time(Some(change()), || {
            with_time(Some(change()), || tree.unlink(ROOT, c"other").unwrap());
            assert_eq!((removed(), tree.is_changing(ROOT)), (Some(1), true), "the outer call goes on");
        });
    }

    /// A name that could not be looked at before is one by now.
    #[test]
    fn what_a_long_call_finds_is_changing_while_it_is_changed() {
        let (tree, directory) = tree(&["file"]);
        let find = || tree.look(ROOT, c"file");
        assert!(changes(&tree.changes, find).is_none(), "a thread that serves others has said so before");
        let node = tree.lookup(ROOT, c"file").unwrap().node;
        with_time(None, || {
            let changing = changes(&tree.changes, find);
            assert!(changing.is_some() && tree.is_changing(node));
            drop(changing);
            let root = std::fs::File::open(directory.path()).unwrap();
            let target = Target::hold(&tree.changes, &root, c"file");
            assert!(tree.is_changing(node));
            drop(target);
            assert!(changes(&tree.changes, || tree.look(ROOT, c"missing")).is_none() && !tree.changes_any());
        });
    }

    /// It has lost its name while it was open, and small: nobody has held it.
    #[test]
    fn nobody_waits_for_a_node_that_goes_with_its_last_descriptor() {
        let (tree, directory) = tree(&[]);
        if !tree.describe().by_file_handles {
            return;
        }
        let who = crate::Caller { uid: 0, gid: 0, groups: &[] };
        let mut open = Vec::new();
        // The node has no descriptor but that of the file; the host has one.
        let mut grown = |name: &CStr| {
            let (entry, opened) = tree.create(who, ROOT, name, libc::O_RDWR, 0o600, 0, false, None).unwrap();
            open.push(std::fs::File::open(directory.path().join(name.to_str().unwrap())).unwrap());
            tree.unlink(ROOT, name).unwrap();
            rustix::fs::ftruncate(&*tree.file(opened.handle).unwrap(), 1 << 20).unwrap();
            (entry.node, opened.handle)
        };
        let (node, handle) = grown(c"closed");
        assert!(tree.attributes(node, None).is_ok());
        assert!(tree.release_is_long(handle));
        assert!(tree.attributes(node, None).is_ok(), "it is open still");
        tree.release(handle, None);
        assert_eq!(tree.attributes(node, None), Err(Errno::STALE));
        // The tree has no room for the descriptor any more.
        let (node, handle) = grown(c"kept");
        tree.release(handle, None);
        assert!(tree.attributes(node, None).is_ok());
        while tree.table.close_any() {}
        assert_eq!(tree.attributes(node, None), Err(Errno::STALE));
        // What never had a name gets one.
        let (entry, opened) = tree.tmpfile(who, ROOT, libc::O_RDWR, 0o600, 0, None).unwrap();
        rustix::fs::ftruncate(&*tree.file(opened.handle).unwrap(), 1 << 20).unwrap();
        assert!(tree.release_is_long(opened.handle));
        tree.link(entry.node, ROOT, c"new").unwrap();
        tree.release(opened.handle, None);
        assert_eq!(tree.attributes(entry.node, None).map(|attributes| attributes.links), Ok(1));
    }

    #[test]
    fn nobody_waits_for_a_node_that_is_being_freed() {
        let (tree, directory) = tree(&["linked", "file", "replaced"]);
        if !tree.describe().by_file_handles {
            return;
        }
        std::fs::hard_link(directory.path().join("linked"), directory.path().join("link")).unwrap();
        let nodes = [c"linked", c"file", c"replaced"].map(|name| tree.lookup(ROOT, name).unwrap().node);
        // The host has them open: by their handles they could be had for as long as it likes.
        let open = ["linked", "file", "replaced"].map(|name| std::fs::File::open(directory.path().join(name)).unwrap());
        with_time(None, || {
            tree.unlink(ROOT, c"linked").unwrap();
            tree.unlink(ROOT, c"file").unwrap();
            tree.rename(ROOT, c"link", ROOT, c"replaced", 0).unwrap();
        });
        let looked = |node: Node| tree.attributes(node, None).map(|attributes| attributes.links);
        assert_eq!(nodes.map(looked), [Ok(1), Err(Errno::STALE), Err(Errno::STALE)]);
        drop(open);
    }
}
