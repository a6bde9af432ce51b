//! Trees over fresh directories, on the file system of the temp directory and on tmpfs.

use passthrough::{Caller, Entry, FileHandles, Node, Options, ROOT, Source, Tree};
use std::ffi::CString;
use std::path::{Path, PathBuf};

/// A directory, gone with this value, and a tree over it.
pub(crate) struct Fixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) tree: Tree,
}

impl Fixture {
    pub(crate) fn new(options: Options) -> Fixture {
        Fixture::within(&std::env::temp_dir(), options)
    }

    pub(crate) fn within(place: &Path, options: Options) -> Fixture {
        let dir = tempfile::tempdir_in(place).unwrap();
        let tree = Tree::new(Source::Path(dir.path().to_owned()), options).unwrap();
        Fixture { dir, tree }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        std::fs::write(self.path(name), content).unwrap();
    }

    pub(crate) fn lookup(&self, name: &str) -> Entry {
        self.tree.lookup(ROOT, &c(name)).unwrap()
    }

    pub(crate) fn node(&self, name: &str) -> Node {
        self.lookup(name).node
    }

    /// Names in a directory, sorted, without "." and "..".
    pub(crate) fn names(&self, node: Node) -> Vec<String> {
        let dir = self.tree.open_dir(node).unwrap().handle;
        let mut names = Vec::new();
        self.tree
            .read_dir(dir, 0, &mut |entry| {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
                true
            })
            .unwrap();
        self.tree.release_dir(dir);
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }
}

/// Every way of holding nodes, on every file system at hand. Where file handles cannot be opened, `Prefer` shows what is
/// done without.
pub(crate) fn everywhere(options: &Options, test: impl Fn(&Fixture)) {
    for place in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        for file_handles in [FileHandles::Never, FileHandles::Prefer] {
            let fixture = Fixture::within(&place, Options { file_handles, ..options.clone() });
            println!("{place:?} {file_handles:?}");
            test(&fixture);
        }
    }
}

pub(crate) fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

/// The daemon itself.
pub(crate) const SELF: Caller<'static> = Caller { uid: 0, gid: 0, groups: &[] };

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Descriptors that this process has open under `path`.
pub(crate) fn descriptors_under(path: &Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).filter(|link| link.starts_with(path)).count()
}
