//! A directory's state as it comes from another host, taken in by a directory of its own that cannot be changed.

use super::directory::filled;
use crate::directory::Directory;
use crate::{DirectoryOptions, Policy};
use engine::Execution;
use passthrough::{Migration, MigrationMode, MigrationOnError, Options, ROOT, Source, Tree};
use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use values::CachePolicy;

/// Numbers of nodes and open files that are looked at.
const NUMBERS: u64 = 32;

thread_local! {
    /// Made once for all inputs.
    static SERVED: Option<Served> = served();
}

struct Served {
    /// By whether it goes on without what is not found, and whether it takes file handles.
    directories: [(Directory, Arc<Tree>); 4],
    /// The inodes that there are in it.
    inodes: HashSet<u64>,
    _place: tempfile::TempDir,
}

fn directory(path: &Path, choice: usize) -> Option<(Directory, Arc<Tree>)> {
    let on_error = if choice & 1 == 0 { MigrationOnError::Abort } else { MigrationOnError::GuestError };
    let mode = if choice & 2 == 0 { MigrationMode::FindPaths } else { MigrationMode::FileHandles };
    let migration = Migration { mode, on_error, ..Migration::default() };
    let options = Options { read_only: true, migration, ..Options::default() };
    let tree = Arc::new(Tree::new(Source::Path(path.to_owned()), options).ok()?);
    let options = DirectoryOptions {
        tag: None,
        request_queues: 1,
        policy: Policy::new(CachePolicy::Auto),
        execution: Execution::Inline,
    };
    Some((Directory::new(options, Arc::clone(&tree)).ok()?, tree))
}

fn served() -> Option<Served> {
    let place = filled()?;
    let path = place.path();
    let names = ["", "file", "directory", "directory/inner", "link"];
    let inode = |name: &&str| std::fs::symlink_metadata(path.join(name)).map(|metadata| metadata.ino());
    let inodes = names.iter().map(inode).collect::<Result<_, _>>().ok()?;
    let [one, two, three, four] = [0, 1, 2, 3].map(|choice| directory(path, choice));
    Some(Served { directories: [one?, two?, three?, four?], inodes, _place: place })
}

/// Takes one state in, and returns how many nodes and open files there are then. Layout of `data`: options (1), the state; bit 0 of the
/// options goes on without what is not found, bit 1 takes file handles.
///
/// # Panics
/// When something outside the directory is in reach by names; that is what the fuzzer looks for.
pub fn device_state(data: &[u8]) -> usize {
    let Some((options, state)) = data.split_first() else { return 0 };
    SERVED.with(|served| {
        let Some(Served { directories, inodes, .. }) = served else { return 0 };
        let choice = usize::from(options & 3);
        let Some((directory, tree)) = directories.get(choice) else { return 0 };
        let taken = directory.load_state(state, &|| true).is_ok();
        let there = tree.describe();
        if taken {
            for number in ROOT..ROOT + NUMBERS {
                let known = tree.attributes(number, None).is_ok_and(|found| inodes.contains(&found.ino));
                let stale = tree.attributes(number, None).is_err();
                // A handle can name any file of the file system, and is only taken where an operator wants it.
                assert!(known || stale || choice & 2 != 0, "node {number} is outside the directory");
                let _ = (tree.lookup(number, c"inner"), tree.open(number, libc::O_RDONLY, false));
            }
            directory.save_state(&|| true).expect("what was taken can go on");
        } else {
            assert_eq!((there.nodes, there.handles, there.lock_owners), (1, 0, 0), "what is refused leaves nothing");
        }
        directory.end();
        if taken { there.nodes + there.handles } else { 0 }
    })
}

/// What states are seeds: those of a guest that knows everything and has some of it open, before and behind INIT.
#[cfg(test)]
pub(super) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    use crate::FuseSession;
    use passthrough::{Lock, LockKind};

    let place = filled().unwrap();
    let (directory, tree) = directory(place.path(), 0).unwrap();
    let state = || directory.save_state(&|| true).unwrap().concat();
    let with = |options: u8, state: Vec<u8>| [vec![options], state].concat();
    let empty = with(0, state());
    let file = tree.lookup(ROOT, c"file").unwrap().node;
    let inner = tree.lookup(tree.lookup(ROOT, c"directory").unwrap().node, c"inner").unwrap().node;
    tree.lookup(ROOT, c"link").unwrap();
    let handle = tree.open(file, libc::O_RDONLY, false).unwrap().handle;
    directory.adopt(&FuseSession { agreed: Some((38, 0)), interrupted: vec![9] });
    let known = with(0, state());
    tree.flock(handle, 1, LockKind::Read).unwrap();
    tree.set_lock(file, handle, 1, Lock { kind: LockKind::Read, start: 3, end: 9, pid: 7 }).unwrap();
    let locked = with(0, state());
    tree.open(inner, libc::O_RDONLY, false).unwrap();
    std::fs::remove_file(place.path().join("directory/inner")).unwrap();
    let lost = with(1, state());
    vec![("empty", empty), ("known", known), ("locked", locked), ("lost", lost)]
}
