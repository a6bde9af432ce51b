use super::form::{FoundBy, HeadState, NodeState, Way};
use super::*;
use crate::lock::{Lock, LockKind};
use crate::options::{FileHandles, Migration, MigrationMode, MigrationOnError};
use crate::security::Security;
use crate::{Caller, Node, Options, ROOT, Source, Tree};
use proptest::prelude::*;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;

#[path = "close_tests.rs"]
mod closes;

const EVERYTHING: Lock = Lock { kind: LockKind::Write, start: 0, end: Lock::END, pid: 77 };

fn options() -> Options {
    Options::default()
}

fn by_handles() -> Options {
    Options { migration: Migration { mode: MigrationMode::FileHandles, ..Migration::default() }, ..options() }
}

fn going_on(options: Options) -> Options {
    let migration = Migration { on_error: MigrationOnError::GuestError, ..options.migration };
    Options { migration, ..options }
}

fn tree(path: &Path, options: &Options) -> Tree {
    Tree::new(Source::Path(path.to_owned()), options.clone()).unwrap()
}

fn saved(tree: &Tree) -> Vec<u8> {
    tree.save(&|| true).unwrap().bytes.concat()
}

/// What goes on with it, and what came of that.
fn moved(from: &Tree, path: &Path, options: &Options) -> (Tree, Result<Loaded, LoadError>) {
    let there = tree(path, options);
    let loaded = there.load(&saved(from), &|| true);
    (there, loaded)
}

fn walk(tree: &Tree, path: &str) -> Node {
    path.split('/').fold(ROOT, |dir, name| tree.lookup(dir, &CString::new(name).unwrap()).unwrap().node)
}

fn open(tree: &Tree, path: &str, flags: i32) -> (Node, u64) {
    let node = walk(tree, path);
    (node, tree.open(node, flags, false).unwrap().handle)
}

fn read(tree: &Tree, handle: u64) -> Vec<u8> {
    let mut bytes = [0; 64];
    let read = rustix::io::pread(&*tree.file(handle).unwrap(), &mut bytes[..], 0).unwrap();
    bytes[..read].to_vec()
}

fn write(tree: &Tree, handle: u64, bytes: &[u8]) {
    rustix::io::write(&*tree.file(handle).unwrap(), bytes).unwrap();
}

/// A directory, with one beside it that is as like it as a copy is.
fn two() -> (TempDir, TempDir) {
    let places = (TempDir::new().unwrap(), TempDir::new().unwrap());
    for place in [&places.0, &places.1] {
        let path = place.path();
        fs::create_dir_all(path.join("dir/below/deep")).unwrap();
        fs::create_dir(path.join("dir-beside")).unwrap();
        fs::write(path.join("open"), "open").unwrap();
        fs::write(path.join("dir/below/inner"), "inner").unwrap();
        fs::write(path.join("dir/below/deep/log"), "").unwrap();
        fs::write(path.join("dir-beside/a name (deleted)"), "odd").unwrap();
        std::os::unix::fs::symlink("dir", path.join("link")).unwrap();
    }
    places
}

#[test]
fn what_a_client_knows_and_has_open_is_found_in_a_copy() {
    for file_handles in [FileHandles::Never, FileHandles::Prefer] {
        let (here, copy) = two();
        let options = Options { file_handles, ..options() };
        let from = tree(here.path(), &options);
        let (open_node, handle) = open(&from, "open", libc::O_RDWR);
        let (_, log) = open(&from, "dir/below/deep/log", libc::O_WRONLY | libc::O_APPEND);
        write(&from, log, b"before ");
        let inner = walk(&from, "dir/below/inner");
        assert_eq!(walk(&from, "dir/below/inner"), inner);
        let odd = walk(&from, "dir-beside/a name (deleted)");
        let link = walk(&from, "link");
        let dir = walk(&from, "dir");
        let listing = from.open_dir(dir).unwrap().handle;
        let saved = from.save(&|| true).unwrap();
        assert_eq!((saved.nodes, saved.files, saved.owners, saved.lost), (9, 3, 0, 0));
        let (to, loaded) = moved(&from, copy.path(), &options);
        assert_eq!(loaded.unwrap(), Loaded { nodes: 9, files: 3, ..Loaded::default() });
        assert_eq!(read(&to, handle), b"open");
        fs::write(copy.path().join("dir/below/deep/log"), "there").unwrap();
        write(&to, log, b" after");
        assert_eq!(fs::read(copy.path().join("dir/below/deep/log")).unwrap(), b"there after");
        assert_eq!(fs::read(here.path().join("dir/below/deep/log")).unwrap(), b"before ");
        for (node, path) in [(open_node, "open"), (inner, "dir/below/inner"), (odd, "dir-beside/a name (deleted)")] {
            let ino = fs::metadata(copy.path().join(path)).unwrap().ino();
            assert_eq!(to.attributes(node, None).unwrap().ino, ino, "{path}");
            assert_eq!(walk(&to, path), node, "it is known by its number");
        }
        let mut target = Vec::new();
        to.read_link(link, &mut target).unwrap();
        assert_eq!(target, b"dir");
        let mut names = Vec::new();
        to.read_dir(listing, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
        assert!(names.contains(&b"below".to_vec()));
        // What was told here once is told there once: three look-ups there, in the loop and twice before.
        to.forget(inner, 2);
        assert!(to.attributes(inner, None).is_ok());
        // Directories on the way were told of as well.
        to.forget(inner, 1);
        assert_eq!(to.attributes(inner, None), Err(Errno::STALE));
        let newer = to.lookup(dir, c"below").unwrap().node;
        assert_eq!(newer, walk(&from, "dir/below"));
        assert!(to.open(open_node, libc::O_RDONLY, false).unwrap().handle > listing, "numbers are not given twice");
        to.release(handle, None);
        to.clear();
        let described = to.describe();
        assert_eq!((described.nodes, described.descriptors, described.handles), (1, 1, 0));
    }
}

#[test]
fn what_was_moved_and_what_has_another_name_is_found() {
    let (here, _) = two();
    let from = tree(here.path(), &options());
    let inner = walk(&from, "dir/below/inner");
    let (twice, handle) = open(&from, "open", libc::O_RDONLY);
    walk(&from, "dir-beside");
    fs::rename(here.path().join("dir/below"), here.path().join("dir-beside/moved")).unwrap();
    // The name it was found by is gone, and the kernel tells of no other.
    fs::hard_link(here.path().join("open"), here.path().join("dir-beside/other")).unwrap();
    fs::remove_file(here.path().join("open")).unwrap();
    let (to, loaded) = moved(&from, here.path(), &options());
    loaded.unwrap();
    assert_eq!(to.attributes(inner, None).unwrap().size, 5);
    assert_eq!(walk(&to, "dir-beside/moved/inner"), inner);
    assert_eq!((walk(&to, "dir-beside/other"), read(&to, handle)), (twice, b"open".to_vec()));
}

/// Open, and without a name: by handles it goes along as long as somebody has it open, by paths it does not.
#[test]
fn a_file_without_a_name_goes_along_by_its_handle() {
    let (here, _) = two();
    for options in [options(), by_handles()] {
        fs::write(here.path().join("gone"), "gone").unwrap();
        fs::write(here.path().join("forgotten"), "").unwrap();
        let from = tree(here.path(), &options);
        let (node, handle) = open(&from, "gone", libc::O_RDWR);
        let known = walk(&from, "dir/below/inner");
        let forgotten = walk(&from, "forgotten");
        fs::remove_file(here.path().join("gone")).unwrap();
        fs::remove_file(here.path().join("forgotten")).unwrap();
        let (to, loaded) = moved(&from, here.path(), &options);
        if options.migration.mode == MigrationMode::FileHandles {
            assert_eq!(loaded.unwrap().lost, 0);
            assert_eq!((read(&to, handle), to.attributes(node, None).unwrap().links), (b"gone".to_vec(), 0));
        } else {
            let error = loaded.unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "inode {node}: No such file or directory (os error 2), and 1 others; migration_on_error = \"guest-error\" goes on \
                     without them"
                )
            );
            assert_eq!(to.describe().nodes, 1, "nothing is left of it");
            let (to, loaded) = moved(&from, here.path(), &going_on(options));
            assert_eq!(loaded.unwrap().lost, 2);
            assert_eq!(to.attributes(node, None), Err(Errno::STALE));
            assert!(matches!(to.file(handle), Err(Errno::BADF)));
            assert_eq!(to.attributes(known, None).unwrap().size, 5, "others are as they were");
            to.forget(node, 1);
            assert_eq!(to.attributes(forgotten, None), Err(Errno::STALE));
        }
    }
}

#[test]
fn locks_are_let_go_and_taken_there_or_here_again() {
    let (here, _) = two();
    let from = tree(here.path(), &options());
    let (node, handle) = open(&from, "open", libc::O_RDWR);
    let (inner, other) = open(&from, "dir/below/inner", libc::O_RDWR);
    let held = Lock { start: 10, end: 19, ..EVERYTHING };
    let shared = Lock { kind: LockKind::Read, start: 30, end: 39, ..EVERYTHING };
    from.set_lock(node, handle, 1, held).unwrap();
    from.set_lock(node, handle, 1, shared).unwrap();
    from.flock(other, 1, LockKind::Write).unwrap();
    let state = saved(&from);
    let to = tree(here.path(), &options());
    // Somebody has them: here, that is where the guest comes from.
    assert!(matches!(to.load(&state, &|| true), Err(LoadError::Lost { others: 1, .. })));
    assert_eq!(to.describe().lock_owners, 0);
    let let_go = from.let_locks_go();
    assert_eq!(to.load(&state, &|| true).unwrap().owners, 1);
    let third = tree(here.path(), &options());
    let (theirs, their_handle) = open(&third, "open", libc::O_RDWR);
    let (_, their_other) = open(&third, "dir/below/inner", libc::O_RDWR);
    assert_eq!(third.set_lock(theirs, their_handle, 1, held), Err(Errno::AGAIN));
    assert_eq!(third.flock(their_other, 1, LockKind::Read), Err(Errno::AGAIN));
    assert_eq!(to.get_lock(node, handle, 2, EVERYTHING).unwrap(), held);
    // It comes to nothing: the other side lets go when its client is gone.
    to.clear();
    assert_eq!(from.take_locks_again(let_go, &|| true), []);
    assert_eq!(third.set_lock(theirs, their_handle, 1, shared), Ok(()));
    assert_eq!(third.set_lock(theirs, their_handle, 1, held), Err(Errno::AGAIN));
    assert_eq!(third.flock(their_other, 1, LockKind::Read), Err(Errno::AGAIN));
    // And where a third one was faster, nobody goes on in the belief that he has a lock.
    let let_go = from.let_locks_go();
    third.set_lock(theirs, their_handle, 1, held).unwrap();
    let lost = from.take_locks_again(let_go, &|| false);
    assert_eq!(lost, [NotTaken { node, handle, error: Errno::AGAIN }]);
    assert!(matches!(from.file(handle), Err(Errno::BADF)));
    assert!(!from.has_locks(node, 1) && from.file(other).is_ok());
    assert_eq!(third.flock(their_other, 1, LockKind::Read), Err(Errno::AGAIN));
    let _ = inner;
}

/// A lock that was asked for and not granted is not one, whatever was there before.
#[test]
fn a_flock_that_was_lost_is_not_moved() {
    let (here, _) = two();
    let (from, other) = (tree(here.path(), &options()), tree(here.path(), &options()));
    let (_, handle) = open(&from, "open", libc::O_RDWR);
    let (_, theirs) = open(&other, "open", libc::O_RDWR);
    from.flock(handle, 1, LockKind::Read).unwrap();
    other.flock(theirs, 1, LockKind::Read).unwrap();
    // The kernel drops the one before it looks whether there is room for the other.
    assert_eq!(from.flock(handle, 1, LockKind::Write), Err(Errno::AGAIN));
    let (to, loaded) = moved(&from, here.path(), &options());
    loaded.unwrap();
    other.flock(theirs, 1, LockKind::Write).unwrap();
    assert_eq!(to.flock(handle, 1, LockKind::Read), Err(Errno::AGAIN));
}

#[test]
fn a_tree_of_other_options_is_refused() {
    let (here, copy) = two();
    let from = tree(here.path(), &options());
    walk(&from, "open");
    let refused = |from: &Tree, path: &Path, options: Options| moved(from, path, &options).1.unwrap_err().to_string();
    let none = Options { security: Security::None, ..options() };
    assert_eq!(
        refused(&from, here.path(), none),
        "security_model is passthrough where the guest comes from, and none here"
    );
    let writeback = Options { writeback: true, ..options() };
    assert_eq!(refused(&from, here.path(), writeback), "writeback is false where the guest comes from, and true here");
    let from = tree(here.path(), &by_handles());
    walk(&from, "open");
    assert!(refused(&from, here.path(), options()).contains("migration_mode = \"file-handles\" here as well"));
    assert!(refused(&from, copy.path(), by_handles()).contains("its directory is another one"));
    let beside = Options { security: Security::MappedFile { fmode: 0o600, dmode: 0o700 }, ..by_handles() };
    assert!(matches!(tree(here.path(), &beside).save(&|| true), Err(SaveError::RecordsBesideNames)));
    let few = Options { nodes_max: 2, ..going_on(options()) };
    let from = tree(here.path(), &options());
    walk(&from, "dir/below/inner");
    let (_, loaded) = moved(&from, here.path(), &few);
    assert!(matches!(loaded, Err(LoadError::TooMany { what: "nodes", count: 3, most: 1 })));
    let from = tree(here.path(), &options());
    open(&from, "open", libc::O_RDWR);
    let read_only = Options { read_only: true, ..options() };
    assert!(refused(&from, here.path(), read_only).contains("Read-only file system"));
}

#[test]
fn handles_tell_another_file_from_the_same() {
    let (here, copy) = two();
    let migration = Migration { verify_handles: true, ..Migration::default() };
    let verifying = Options { migration, ..options() };
    let from = tree(here.path(), &verifying);
    let node = walk(&from, "open");
    assert!(matches!(moved(&from, copy.path(), &verifying).1, Err(LoadError::AnotherRoot)));
    moved(&from, here.path(), &options()).1.unwrap();
    let state = saved(&from);
    fs::remove_file(here.path().join("open")).unwrap();
    fs::write(here.path().join("open"), "another").unwrap();
    let to = tree(here.path(), &verifying);
    let error = to.load(&state, &|| true).unwrap_err().to_string();
    assert!(error.starts_with("\"open\": it is another file than where the guest comes from"), "{error}");
    fs::remove_file(here.path().join("open")).unwrap();
    fs::create_dir(here.path().join("open")).unwrap();
    let from = tree(copy.path(), &options());
    walk(&from, "open");
    let (to, loaded) = moved(&from, here.path(), &going_on(options()));
    assert_eq!(loaded.unwrap().first_lost.unwrap(), "\"open\": it is of another type than where the guest comes from");
    assert_eq!(to.attributes(node, None), Err(Errno::STALE));
}

#[test]
fn records_go_along_with_names() {
    let (here, _) = two();
    for security in
        [Security::MappedFile { fmode: 0o600, dmode: 0o700 }, Security::MappedXattr { fmode: 0o600, dmode: 0o700 }]
    {
        let options = Options { security, ..options() };
        let from = match Tree::new(Source::Path(here.path().to_owned()), options.clone()) {
            Ok(tree) => tree,
            Err(crate::OpenError::MappedXattr { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let dir = walk(&from, "dir");
        let caller = Caller { uid: 4711, gid: 4712, groups: &[] };
        let made = from.mkdir(caller, dir, c"made", 0o751, 0, None).unwrap().node;
        let below = walk(&from, "dir/below");
        // A guest that has forgotten the directory of what it knows.
        from.forget(dir, u64::MAX);
        let (to, loaded) = moved(&from, here.path(), &options);
        loaded.unwrap();
        for tree in [&from, &to] {
            let attributes = tree.attributes(made, None).unwrap();
            assert_eq!((attributes.uid, attributes.gid, attributes.mode & 0o777), (4711, 4712, 0o751));
        }
        assert!(to.attributes(below, None).is_ok());
        fs::remove_dir_all(here.path().join("dir/made")).unwrap();
    }
}

/// A name that the kernel tells of is none of the directory's by now: nothing else takes its place.
#[test]
fn what_has_left_the_directory_is_not_found_in_it() {
    let (here, elsewhere) = two();
    let from = tree(here.path(), &options());
    let (open_node, handle) = open(&from, "open", libc::O_RDWR);
    let known = walk(&from, "dir/below/inner");
    fs::rename(here.path().join("open"), elsewhere.path().join("taken")).unwrap();
    fs::rename(here.path().join("dir/below/inner"), elsewhere.path().join("inner")).unwrap();
    fs::write(here.path().join("open"), "another").unwrap();
    let (_, loaded) = moved(&from, here.path(), &options());
    let error = loaded.unwrap_err().to_string();
    assert!(error.contains(&format!("inode {open_node}: No such file")) && error.contains("and 1 others"), "{error}");
    from.release(handle, None);
    // What a client only remembers is looked up again.
    let (to, loaded) = moved(&from, here.path(), &options());
    assert_eq!(loaded.unwrap().lost, 0);
    assert_eq!(to.attributes(open_node, None), Err(Errno::STALE));
    assert_eq!(to.attributes(known, None), Err(Errno::STALE));
    assert_eq!(to.lookup(ROOT, c"open").unwrap().attributes.size, 7);
}

#[test]
fn all_files_of_a_lock_that_is_lost_are_closed() {
    let (here, _) = two();
    let from = tree(here.path(), &options());
    let (node, handle) = open(&from, "open", libc::O_RDWR);
    let second = from.open(node, libc::O_RDONLY, false).unwrap().handle;
    let (_, other) = open(&from, "dir/below/inner", libc::O_RDONLY);
    let part = |start| Lock { start, end: start, ..EVERYTHING };
    for owner in 1..4 {
        from.set_lock(node, handle, owner, part(owner)).unwrap();
    }
    let state = saved(&from);
    from.let_locks_go();
    let third = tree(here.path(), &options());
    let (theirs, their_handle) = open(&third, "open", libc::O_RDWR);
    third.set_lock(theirs, their_handle, 1, part(2)).unwrap();
    let to = tree(here.path(), &going_on(options()));
    assert_eq!(to.load(&state, &|| true).unwrap().lost, 1);
    // Nobody could unlock what others had.
    assert_eq!(to.describe().lock_owners, 0);
    third.set_lock(theirs, their_handle, 1, EVERYTHING).unwrap();
    for (handle, is_there) in [(handle, false), (second, false), (other, true)] {
        assert_eq!(to.file(handle).is_ok(), is_there);
    }
}

/// An open file that is not had takes the locks along that came by it.
#[test]
fn locks_of_a_file_that_is_lost_are_dropped() {
    let (here, _) = two();
    let from = tree(here.path(), &options());
    let (node, handle) = open(&from, "open", libc::O_RDWR);
    from.set_lock(node, handle, 1, EVERYTHING).unwrap();
    from.flock(handle, 1, LockKind::Write).unwrap();
    let state = saved(&from);
    from.let_locks_go();
    let third = tree(here.path(), &options());
    let (theirs, their_handle) = open(&third, "open", libc::O_RDWR);
    third.flock(their_handle, 1, LockKind::Read).unwrap();
    let to = tree(here.path(), &going_on(options()));
    assert!(to.load(&state, &|| true).unwrap().lost > 0);
    assert!(to.file(handle).is_err() && to.describe().lock_owners == 0);
    third.set_lock(theirs, their_handle, 1, EVERYTHING).unwrap();
}

/// Whoever has a lease on a file is not waited for.
#[test]
fn a_file_with_a_lease_is_not_waited_for() {
    let (here, _) = two();
    let from = tree(here.path(), &options());
    let (_, handle) = open(&from, "open", libc::O_RDWR);
    let state = saved(&from);
    from.release(handle, None);
    let leased = fs::File::open(here.path().join("open")).unwrap();
    // SAFETY: the kernel tells this process of the open, and nothing is to be done then.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    // SAFETY: a descriptor that is open, and a number.
    let answer = unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&leased), libc::F_SETLEASE, libc::F_RDLCK) };
    assert_eq!(answer, 0);
    let (began, to) = (std::time::Instant::now(), tree(here.path(), &options()));
    assert!(to.load(&state, &|| true).unwrap_err().to_string().contains("busy"));
    assert!(began.elapsed() < std::time::Duration::from_secs(20));
}

fn head(nodes: usize) -> HeadState {
    HeadState {
        security: "passthrough".to_owned(),
        writeback: false,
        root: None,
        next_node: 100,
        next_handle: 100,
        mounts: 0,
        files: 0,
        owners: 0,
        nodes,
    }
}

fn named(node: u64, kept: usize, names: &[u8]) -> NodeState {
    let way = Way { kept, names: names.to_vec() };
    NodeState { node, references: 1, kind: libc::S_IFREG, found: FoundBy::Path { way, handle: None } }
}

fn state(head: &HeadState, nodes: &[NodeState]) -> Vec<u8> {
    let mut bytes = Vec::new();
    crate::handover::bytes::write(head, &mut bytes).unwrap();
    nodes.iter().for_each(|node| crate::handover::bytes::write(node, &mut bytes).unwrap());
    bytes
}

#[test]
fn ways_that_are_none_are_refused() {
    let (here, _) = two();
    let to = tree(here.path(), &going_on(options()));
    let deep = [b"a".as_slice(); 2049].join(&b'/');
    let long = [b'a'; 256];
    for names in [&b".."[..], b"dir/../..", b"/etc", b"dir//below", b"dir/", b".", b"a\0b", &deep, &long] {
        let refused = to.load(&state(&head(1), &[named(2, 0, names)]), &|| true);
        assert!(matches!(refused, Err(LoadError::Way(2))), "{:?}", String::from_utf8_lossy(names));
    }
    assert!(matches!(to.load(&state(&head(1), &[named(2, 1, b"open")]), &|| true), Err(LoadError::Way(2))));
    let far = [b"dir".as_slice(), &[b'x'; 200]].join(&b'/');
    let loaded = to.load(&state(&head(1), &[named(2, 0, &far)]), &|| true).unwrap();
    let told = loaded.first_lost.unwrap();
    assert!(told.starts_with("\"…xxx") && told.len() < 200, "{told}");
}

#[test]
fn numbers_of_a_state_that_is_refused_are_nobody_s() {
    let (here, _) = two();
    let to = tree(here.path(), &options());
    let high = form::NUMBER_MAX - 1;
    for (next, number) in [(high, high - 1), (high, high), (high + 1, high), (100, 100)] {
        let nodes = [named(number, 0, b"open"), named(number, 0, b"dir")];
        let head = HeadState { next_node: next, ..head(2) };
        assert!(to.load(&state(&head, &nodes), &|| true).is_err());
        assert_eq!(to.lookup(ROOT, c"open").unwrap().node, ROOT + 1);
        to.begin_anew();
    }
    // And one that was referenced too often can be referenced once more.
    let often = NodeState { references: u64::MAX, ..named(2, 0, b"open") };
    to.load(&state(&head(1), &[often]), &|| true).unwrap();
    assert_eq!(to.lookup(ROOT, c"open").unwrap().node, 2);
    to.clear();
    assert_eq!(to.describe().nodes, 1);
}

/// Lists are as long as they may be here, before anything is made of them.
#[test]
fn a_state_of_too_much_is_refused() {
    let (here, _) = two();
    let few = Options { open_files_max: 3, nodes_max: 10, ..going_on(options()) };
    let to = tree(here.path(), &few);
    let much = usize::MAX;
    for head in [
        HeadState { files: 4, ..head(0) },
        HeadState { owners: much, ..head(0) },
        HeadState { mounts: much, ..head(0) },
        head(10),
        head(much),
    ] {
        assert!(matches!(to.load(&state(&head, &[]), &|| true), Err(LoadError::TooMany { .. })), "{head:?}");
    }
    // Those that nobody finds count as well.
    let gone: Vec<_> = (2..11).map(|node| NodeState { found: FoundBy::Gone, ..named(node, 0, b"") }).collect();
    assert_eq!(to.load(&state(&head(9), &gone), &|| true).unwrap().nodes, 9);
}

#[test]
fn records_are_not_in_reach() {
    let (here, _) = two();
    let security = Security::MappedFile { fmode: 0o600, dmode: 0o700 };
    let to = tree(here.path(), &Options { security, ..going_on(options()) });
    fs::create_dir(here.path().join("dir/.virtfs_metadata")).unwrap();
    fs::write(here.path().join("dir/.virtfs_metadata/below"), "virtfs.uid=0\n").unwrap();
    let head = HeadState { security: "mapped-file".to_owned(), ..head(1) };
    let loaded = to.load(&state(&head, &[named(2, 0, b"dir/.virtfs_metadata/below")]), &|| true).unwrap();
    assert_eq!(loaded.lost, 1);
    assert_eq!(to.attributes(2, None), Err(Errno::STALE));
}

/// A state with something of everything.
fn sample(here: &Path) -> (Tree, Vec<u8>) {
    let migration = Migration { verify_handles: true, ..Migration::default() };
    let from = tree(here, &Options { migration, ..options() });
    let (node, handle) = open(&from, "open", libc::O_RDWR);
    from.set_lock(node, handle, 1, EVERYTHING).unwrap();
    from.flock(handle, 1, LockKind::Read).unwrap();
    walk(&from, "dir/below/inner");
    let (_, gone) = open(&from, "dir/below/deep/log", libc::O_WRONLY);
    assert!(gone > handle);
    let state = saved(&from);
    from.let_locks_go();
    (from, state)
}

#[test]
fn a_state_that_is_cut_off_is_refused() {
    let (here, _) = two();
    let (_from, state) = sample(here.path());
    let to = tree(here.path(), &going_on(options()));
    for length in 0..state.len() {
        assert!(to.load(&state[..length], &|| true).is_err(), "{length} of {} bytes", state.len());
        assert_eq!((to.describe().nodes, to.describe().handles, to.describe().lock_owners), (1, 0, 0));
    }
    assert!(to.load(&[state.as_slice(), &[0]].concat(), &|| true).is_err());
    assert!(matches!(to.load(&state, &|| false), Err(LoadError::Unwanted)));
    to.load(&state, &|| true).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn bytes_that_are_not_ours_do_no_harm(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let (here, _) = two();
        let (_from, mut state) = sample(here.path());
        for (at, byte) in changes {
            let at = at.index(state.len());
            state[at] = byte;
        }
        for options in [options(), going_on(by_handles())] {
            let to = tree(here.path(), &options);
            if to.load(&state, &|| true).is_ok() {
                // Whatever it knows now, it is still a tree.
                for node in 0..16 {
                    let _ = (to.attributes(node, None), to.lookup(node, c"below"), to.open(node, libc::O_RDONLY, false));
                }
                to.hand_over().unwrap();
                to.save(&|| true).unwrap();
            }
            to.clear();
            prop_assert_eq!(to.describe().nodes, 1);
        }
    }

    #[test]
    fn noise_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (here, _) = two();
        let to = tree(here.path(), &going_on(by_handles()));
        if let Ok(loaded) = to.load(&bytes, &|| true) {
            prop_assert_eq!(loaded.nodes, loaded.lost);
        }
    }
}
