use super::form::Form;
use super::*;
use crate::attributes::Change;
use crate::creds::Caller;
use crate::lock::{Lock, LockKind};
use crate::options::FileHandles;
use crate::security::Security;
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const NAMES: usize = 2000;
const EVERYTHING: Lock = Lock { kind: LockKind::Write, start: 0, end: Lock::END, pid: 77 };

fn tree(path: &Path, file_handles: FileHandles) -> Tree {
    let options = Options { file_handles, ..Options::default() };
    Tree::new(Source::Path(path.to_owned()), options).unwrap()
}

/// What another process would do: the descriptors are duplicates here, and the old tree is neither used nor dropped, which
/// would let its locks go.
fn next(tree: Tree) -> Tree {
    let Handed { bytes, descriptors } = tree.hand_over().unwrap();
    let descriptors = descriptors.iter().map(|fd| fd.as_fd().try_clone_to_owned().unwrap()).collect();
    let (options, bytes) = (tree.options.clone(), bytes.concat());
    std::mem::forget(tree);
    Tree::handed_over(options, Adopted { bytes, descriptors }).unwrap()
}

fn read(tree: &Tree, handle: u64) -> Vec<u8> {
    let mut bytes = [0; 64];
    let read = rustix::io::pread(&*tree.file(handle).unwrap(), &mut bytes[..], 0).unwrap();
    bytes[..read].to_vec()
}

/// Reads names until there are `count` of them or no more; where to go on.
fn list(tree: &Tree, handle: u64, mut offset: u64, count: usize, names: &mut Vec<Vec<u8>>) -> u64 {
    let end = names.len() + count;
    tree.read_dir(handle, offset, &mut |entry| {
        if names.len() == end {
            return false;
        }
        names.push(entry.name.to_vec());
        offset = entry.offset;
        true
    })
    .unwrap();
    offset
}

#[test]
fn what_a_client_knows_and_has_open_is_there_again() {
    for file_handles in [FileHandles::Never, FileHandles::Prefer] {
        let place = TempDir::new().unwrap();
        let path = place.path();
        fs::write(path.join("open"), "open").unwrap();
        fs::write(path.join("known"), "known").unwrap();
        fs::create_dir(path.join("dir")).unwrap();
        fs::write(path.join("dir/inner"), "inner").unwrap();
        let mut tree = tree(path, file_handles);
        let open = tree.lookup(ROOT, c"open").unwrap().node;
        let handle = tree.open(open, libc::O_RDWR, false).unwrap().handle;
        let known = tree.lookup(ROOT, c"known").unwrap().node;
        assert_eq!(tree.lookup(ROOT, c"known").unwrap().node, known);
        let dir = tree.lookup(ROOT, c"dir").unwrap().node;
        fs::remove_file(path.join("open")).unwrap();
        fs::rename(path.join("dir"), path.join("moved")).unwrap();
        for _ in 0..3 {
            tree = next(tree);
            let described = tree.describe();
            assert_eq!((described.nodes, described.handles), (4, 1));
            assert_eq!(described.path, path);
            assert_eq!(read(&tree, handle), b"open");
            assert_eq!(tree.attributes(open, None).unwrap().links, 0);
            assert_eq!(tree.lookup(ROOT, c"known").unwrap().node, known);
            let inner = tree.lookup(dir, c"inner").unwrap().node;
            assert!(inner > dir, "numbers are not given twice");
            tree.forget(inner, 1);
            assert_eq!(tree.attributes(inner, None), Err(Errno::STALE));
        }
        // Two look-ups in the first program, and one in each after it.
        tree.forget(known, 4);
        assert!(tree.attributes(known, None).is_ok());
        tree.forget(known, 1);
        assert_eq!(tree.attributes(known, None), Err(Errno::STALE));
        let newer = tree.open(dir, libc::O_RDONLY, false);
        assert_eq!(newer, Err(Errno::ISDIR));
        let newer = tree.open_dir(dir).unwrap().handle;
        assert!(newer > handle);
        // The client may forget what it has open, and the file without a name is then gone with its last descriptor.
        tree.forget(open, 1);
        tree = next(tree);
        assert_eq!(read(&tree, handle), b"open");
        tree.release(handle, None);
        assert!(matches!(tree.file(handle), Err(Errno::BADF)));
        tree.clear();
        let described = tree.describe();
        assert_eq!((described.nodes, described.descriptors, described.handles), (1, 1, 0));
    }
}

#[test]
fn a_listing_goes_on_where_it_was() {
    let place = TempDir::new().unwrap();
    for number in 0..NAMES {
        fs::write(place.path().join(format!("name-{number}")), "").unwrap();
    }
    let mut tree = tree(place.path(), FileHandles::Prefer);
    let handle = tree.open_dir(ROOT).unwrap().handle;
    let (mut names, mut offset) = (Vec::new(), 0);
    // Pieces end in the middle of what the kernel gave, with little left of it, and at its end.
    for count in [1, 700, 3, 0, 500] {
        offset = list(&tree, handle, offset, count, &mut names);
        tree = next(tree);
    }
    list(&tree, handle, offset, usize::MAX - names.len(), &mut names);
    assert_eq!(names.len(), NAMES + 2);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), NAMES + 2, "no name twice");
}

#[test]
fn locks_are_held_without_a_gap() {
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("file"), [0; 100]).unwrap();
    let mut tree = tree(place.path(), FileHandles::Prefer);
    let node = tree.lookup(ROOT, c"file").unwrap().node;
    let handle = tree.open(node, libc::O_RDWR, false).unwrap().handle;
    let held = Lock { start: 10, end: 19, ..EVERYTHING };
    tree.set_lock(node, handle, 1, held).unwrap();
    tree.set_lock(node, handle, 1, Lock { kind: LockKind::Read, start: 30, end: 39, ..EVERYTHING }).unwrap();
    tree.flock(handle, 1, LockKind::Write).unwrap();
    let other = self::tree(place.path(), FileHandles::Prefer);
    let theirs = other.lookup(ROOT, c"file").unwrap().node;
    let their_handle = other.open(theirs, libc::O_RDWR, false).unwrap().handle;
    for _ in 0..2 {
        tree = next(tree);
        assert_eq!(other.set_lock(theirs, their_handle, 1, held), Err(Errno::AGAIN));
        assert_eq!(other.flock(their_handle, 1, LockKind::Read), Err(Errno::AGAIN));
        // Another owner of the same client is told who holds what.
        let found = tree.get_lock(node, handle, 2, EVERYTHING).unwrap();
        assert_eq!(found, held);
        assert!(tree.has_locks(node, 1));
        // They are the owner's own: these are no obstacle to it.
        tree.set_lock(node, handle, 1, held).unwrap();
    }
    tree.set_lock(node, handle, 1, Lock { kind: LockKind::Unlock, ..EVERYTHING }).unwrap();
    tree.flock(handle, 1, LockKind::Unlock).unwrap();
    assert!(!tree.has_locks(node, 1));
    other.set_lock(theirs, their_handle, 1, EVERYTHING).unwrap();
    other.flock(their_handle, 1, LockKind::Write).unwrap();
}

#[test]
fn a_wait_can_begin_in_the_next_program() {
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("file"), "").unwrap();
    let tree = tree(place.path(), FileHandles::Prefer);
    let node = tree.lookup(ROOT, c"file").unwrap().node;
    let handle = tree.open(node, libc::O_RDWR, false).unwrap().handle;
    tree.set_lock(node, handle, 1, EVERYTHING).unwrap();
    let tree = Arc::new(next(tree));
    let (done, outcome) = std::sync::mpsc::channel();
    let _wait = tree.wait_lock(node, handle, 2, EVERYTHING, move |answer| {
        let _ = done.send(answer);
    });
    assert!(outcome.try_recv().is_err(), "somebody holds it");
    tree.set_lock(node, handle, 1, Lock { kind: LockKind::Unlock, ..EVERYTHING }).unwrap();
    assert_eq!(outcome.recv(), Ok(Ok(())));
}

#[test]
fn nodes_opened_for_reading_stay_so() {
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("file"), "content").unwrap();
    let tree = tree(place.path(), FileHandles::Prefer);
    let node = tree.lookup(ROOT, c"file").unwrap().node;
    tree.node_file(node).unwrap();
    fs::remove_file(place.path().join("file")).unwrap();
    let tree = next(tree);
    let mut bytes = [0; 7];
    assert_eq!(rustix::io::pread(&*tree.node_file(node).unwrap(), &mut bytes[..], 0), Ok(7));
    assert_eq!(&bytes, b"content");
}

#[test]
fn records_beside_names_go_along() {
    const WHO: Caller<'static> = Caller { uid: 1000, gid: 100, groups: &[] };
    for file_handles in [FileHandles::Never, FileHandles::Prefer] {
        let place = TempDir::new().unwrap();
        let security = Security::MappedFile { fmode: Security::FMODE, dmode: Security::DMODE };
        let options = Options { security, file_handles, ..Options::default() };
        let tree = Tree::new(Source::Path(place.path().to_owned()), options).unwrap();
        let dir = tree.mkdir(WHO, ROOT, c"dir", 0o750, 0, None).unwrap().node;
        let file = tree.mknod(WHO, dir, c"file", libc::S_IFREG | 0o644, (0, 0), 0, None).unwrap().node;
        // A name needs its directory, also when the client has forgotten that.
        tree.forget(dir, 1);
        let tree = next(next(tree));
        assert_eq!(tree.describe().nodes, 2);
        let found = tree.attributes(file, None).unwrap();
        assert_eq!((found.uid, found.gid, found.mode), (1000, 100, libc::S_IFREG | 0o644));
        let change = Change { mode: Some(0o600), ..Change::default() };
        tree.set_attributes(file, None, &change).unwrap();
        tree.clear();
        let dir = tree.lookup(ROOT, c"dir").unwrap();
        assert_eq!((dir.attributes.uid, dir.attributes.mode), (1000, libc::S_IFDIR | 0o750));
        let found = tree.lookup(dir.node, c"file").unwrap().attributes;
        assert_eq!((found.uid, found.mode), (1000, libc::S_IFREG | 0o600), "the record beside the name was changed");
    }
}

#[test]
fn all_that_a_client_may_know_can_be_handed_over() {
    assert!(Options::default().nodes_max <= NODES_MAX, "a guest that forgets nothing stands in the way of an upgrade");
}

#[test]
fn how_much_is_too_much_is_said() {
    let line = NotHandedOver::Nodes { nodes: NODES_MAX + 1 }.to_string();
    assert!(line.contains(&NODES_MAX.to_string()) && !line.contains('\n'), "{line}");
}

#[test]
fn a_state_that_contradicts_itself_is_refused() {
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("file"), "").unwrap();
    let tree = tree(place.path(), FileHandles::Never);
    let node = tree.lookup(ROOT, c"file").unwrap().node;
    let Handed { bytes, descriptors } = tree.hand_over().unwrap();
    let bytes = bytes.concat();
    let good = Form::decode(&bytes).unwrap();
    assert_eq!(good.encode().unwrap(), bytes);
    let adopt = |change: &dyn Fn(&mut Form), count: usize| {
        let mut form = good.clone();
        change(&mut form);
        let bytes = form.encode().unwrap();
        let descriptors = descriptors.iter().take(count).map(|fd| fd.as_fd().try_clone_to_owned().unwrap()).collect();
        Tree::handed_over(tree.options.clone(), Adopted { bytes, descriptors }).map(drop)
    };
    let all = descriptors.len();
    assert!(adopt(&|_| (), all).is_ok());
    assert!(matches!(adopt(&|_| (), 0), Err(AdoptError::Descriptor(_))));
    assert!(matches!(adopt(&|form| form.nodes.clear(), all), Err(AdoptError::NoRoot)));
    // A program before this one had the root anywhere.
    assert!(adopt(&|form| form.nodes.reverse(), all).is_ok());
    let longer = Adopted { bytes: [&bytes[..], &[0]].concat(), ..Adopted::default() };
    assert!(matches!(Tree::handed_over(tree.options.clone(), longer), Err(AdoptError::Descriptor(_))));
    assert!(matches!(adopt(&|form| form.mounts.clear(), all), Err(AdoptError::Mount(0))));
    let twice = |form: &mut Form| {
        let mut again = form.nodes.iter().find(|form| form.node == node).unwrap().clone();
        again.path = None;
        form.nodes.push(again);
    };
    assert!(matches!(adopt(&twice, all), Err(AdoptError::Twice(found)) if found == node));
}

proptest! {
    #[test]
    fn any_bytes_are_refused_and_nothing_worse(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        // A state has a root, and a root a descriptor.
        let adopted = Adopted { bytes, descriptors: Vec::new() };
        prop_assert!(Tree::handed_over(Options::default(), adopted).is_err());
    }
}
