//! Files that another process holds a lease on, and what frees much.
#![allow(clippy::unwrap_used, reason = "a test")]

use crate::common::{Fixture, c};
use passthrough::{Change, Options, ROOT};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::AsRawFd;

/// fcntl(2): which signal tells of a break.
const F_SETSIG: i32 = 10;

/// Holds a write lease on a file, and gives it back with this value alone.
fn lease(path: &std::path::Path) -> File {
    let file = File::options().read(true).write(true).open(path).unwrap();
    // SAFETY: two calls on an open descriptor; the signal that tells of a break is one that is ignored.
    let answers = unsafe {
        [
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG),
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK),
        ]
    };
    assert_eq!(answers, [0, 0], "{}", std::io::Error::last_os_error());
    file
}

fn in_tmpfs() -> Fixture {
    Fixture::within(std::path::Path::new("/dev/shm"), Options::default())
}

#[test]
fn a_lease_is_not_waited_for_by_who_has_no_time() {
    let fixture = in_tmpfs();
    fixture.write("file", "content");
    let holder = lease(&fixture.path("file"));
    let node = fixture.node("file");
    let tree = &fixture.tree;
    assert_eq!(passthrough::without_waiting(|| tree.open(node, libc::O_RDONLY, false)), None);
    assert_eq!(passthrough::without_waiting(|| tree.open(node, libc::O_RDWR | libc::O_TRUNC, true)), None);
    let shorter = Change { size: Some(1), ..Change::default() };
    assert_eq!(passthrough::without_waiting(|| tree.set_attributes(node, None, &shorter)), None);
    assert_eq!(
        passthrough::without_waiting(|| tree.attributes(node, None)).unwrap().unwrap().size,
        7,
        "nothing was done"
    );
    // Who has time waits.
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| tree.open(node, libc::O_RDWR, false));
        drop(holder);
        opened.join().unwrap().unwrap();
    });
}

#[test]
fn what_was_opened_without_waiting_waits_like_any_other() {
    let fixture = in_tmpfs();
    fixture.write("file", "content");
    let (node, tree) = (fixture.node("file"), &fixture.tree);
    for flags in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR | libc::O_APPEND] {
        let opened = passthrough::without_waiting(|| tree.open(node, flags, false)).unwrap().unwrap();
        let file = tree.file(opened.handle).unwrap();
        let found = rustix::fs::fcntl_getfl(&*file).unwrap().bits().cast_signed();
        assert_eq!(found & (libc::O_NONBLOCK | libc::O_ACCMODE | libc::O_APPEND), flags);
    }
}

#[test]
fn an_error_of_its_own_is_no_lease() {
    let fixture = in_tmpfs();
    let missing = passthrough::without_waiting(|| fixture.tree.lookup(ROOT, &c("missing")).map(|entry| entry.node));
    assert_eq!(missing, Some(Err(Errno::NOENT)));
}

/// A file of so many bytes, all of which are allocated.
fn file_of(fixture: &Fixture, name: &str, bytes: usize) {
    fixture.write(name, &"x".repeat(bytes));
}

#[test]
fn freeing_much_is_long_and_freeing_little_is_not() {
    const LARGE: usize = 1 << 20;
    let fixture = in_tmpfs();
    let tree = &fixture.tree;
    for (name, bytes, long) in [("small", 5000, false), ("large", LARGE, true)] {
        file_of(&fixture, name, bytes);
        let node = fixture.node(name);
        assert_eq!(tree.removal_is_long(ROOT, &c(name)), long);
        assert_eq!(tree.truncation_is_long(node, None, 0), long);
        assert!(!tree.truncation_is_long(node, None, 2 * LARGE as u64), "it grows");
        let reading = tree.open(node, libc::O_RDONLY, false).unwrap().handle;
        assert!(!tree.release_is_long(reading), "nothing was written");
        let writing = tree.open(node, libc::O_RDWR, false).unwrap().handle;
        assert_eq!(tree.release_is_long(writing), long);
        assert_eq!(tree.seek_is_long(reading), long);
        assert!(!tree.flush_is_long(writing), "no close is told of anything here");
    }
    // What is allocated behind the end is given back by a truncation that leaves the size as it is.
    file_of(&fixture, "allocated", 0);
    let node = fixture.node("allocated");
    let handle = tree.open(node, libc::O_RDWR, false).unwrap().handle;
    tree.fallocate(handle, libc::FALLOC_FL_KEEP_SIZE as u32, 0, LARGE as u64).unwrap();
    assert!(tree.truncation_is_long(node, None, 0));
    // A name that is none is looked at by nobody.
    let outside = fixture.dir.path().file_name().unwrap().to_str().unwrap();
    file_of(&fixture, "inside", LARGE);
    assert!(!tree.removal_is_long(ROOT, &c(&format!("../{outside}/inside"))));
}
