//! How many system calls an operation is, counted by strace, which must be in the path (`cargo xtask lab` installs it).

use crate::common::{Fixture, SELF, c};
use passthrough::{FileHandles, OpenFile, Options, ROOT};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Which way of holding nodes the counted run uses.
const WAY: &str = "TREE_TEST_FILE_HANDLES";

/// How often each operation is made.
const TIMES: usize = 50;

/// Marks the beginning of an operation in the record, as nothing else in here would.
fn mark(operation: &str) {
    // Fails, and the record has the name.
    let _ = rustix::fs::access(format!("/{operation}/"), rustix::fs::Access::EXISTS);
}

/// Reads 4 KiB, by a call where it takes one.
fn read_small(file: &OpenFile, offset: u64) {
    let mut bytes = [0; 4096];
    let piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the piece is an array that nobody else uses.
    let read = unsafe { file.read_mapped(&[piece], offset, 1 << 40) };
    let read = read.unwrap_or_else(|| rustix::io::pread(file, &mut bytes[..], offset).unwrap());
    assert_eq!((read, bytes), (4096, [b'x'; 4096]));
}

/// The operations to count, each `TIMES` times. Run by [`the_counts_are_those_that_were_promised`] under strace.
#[test]
#[ignore = "run by the other test, under strace"]
fn operations_to_count() {
    let way = std::env::var(WAY).unwrap();
    let file_handles = if way == "never" { FileHandles::Never } else { FileHandles::Prefer };
    let at = Fixture::within(Path::new(&std::env::temp_dir()), Options { file_handles, ..Options::default() });
    let tree = &at.tree;
    let names: Vec<_> = (0..TIMES).map(|number| c(&format!("name-{number}"))).collect();
    let others: Vec<_> = (0..TIMES).map(|number| c(&format!("other-{number}"))).collect();
    for name in &names {
        at.write(name.to_str().unwrap(), "");
    }
    // The thread gets its umask, and its buffers, before anything is counted.
    let (_, opened) = tree.create(SELF, ROOT, c"first", libc::O_RDWR, 0o600, 0, false, None).unwrap();
    tree.release(opened.handle, None);
    let known = at.node("name-0");
    tree.attributes(known, None).unwrap();

    // tmpfs is mapped everywhere.
    let in_memory = Fixture::within(Path::new("/dev/shm"), Options::default());
    in_memory.write("file", &"x".repeat(1 << 20));
    let opened = in_memory.tree.open(in_memory.node("file"), libc::O_RDONLY, false).unwrap();
    let file = in_memory.tree.file(opened.handle).unwrap();
    for _ in 0..200 {
        read_small(&file, 0);
    }

    let mut nodes = Vec::with_capacity(TIMES);
    mark("lookup-new");
    nodes.extend(names.iter().skip(1).map(|name| tree.lookup(ROOT, name).unwrap().node));
    mark("attributes");
    for _ in 0..TIMES {
        tree.attributes(known, None).unwrap();
    }
    mark("lookup-known");
    for _ in 0..TIMES {
        tree.lookup(ROOT, &names[0]).unwrap();
    }
    mark("lookup-again");
    for name in names.iter().skip(1) {
        tree.lookup(ROOT, name).unwrap();
    }
    mark("lookup-missing");
    for other in &others {
        tree.lookup(ROOT, other).unwrap_err();
    }
    let mut open = Vec::with_capacity(TIMES);
    mark("create");
    for other in &others {
        open.push(tree.create(SELF, ROOT, other, libc::O_RDWR, 0o600, 0, false, None).unwrap().1.handle);
    }
    mark("release");
    for handle in open {
        tree.release(handle, None);
    }
    mark("rename");
    for (name, other) in names.iter().zip(&others) {
        tree.rename(ROOT, other, ROOT, name, 0).unwrap();
    }
    mark("unlink");
    for name in &names {
        tree.unlink(ROOT, name).unwrap();
    }
    mark("mkdir");
    for name in &names {
        tree.mkdir(SELF, ROOT, name, 0o700, 0, None).unwrap();
    }
    mark("read");
    for number in 0..TIMES as u64 {
        read_small(&file, number * 4096);
    }
    mark("end");
}

/// System calls between two marks, by name.
fn count(way: &str, record: &Path) -> BTreeMap<String, BTreeMap<String, usize>> {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o"]).arg(record).arg(std::env::current_exe().unwrap());
    strace.args(["--exact", "system_calls::operations_to_count", "--ignored", "--test-threads=1"]).env(WAY, way);
    let output = strace.output().expect("strace counts: apt-get install strace");
    assert!(output.status.success(), "{output:?}");
    let mut counts: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
    let mut operation = None;
    for line in std::fs::read_to_string(record).unwrap().lines() {
        // "PID name(arguments) = answer"
        let Some((call, rest)) = line.split_once(' ').and_then(|(_, call)| call.trim_start().split_once('(')) else {
            continue;
        };
        let marked = rest.split('"').nth(1).and_then(|path| path.strip_prefix('/')?.strip_suffix('/'));
        match marked {
            Some(name) if call.contains("access") => operation = Some(name.to_owned()).filter(|name| name != "end"),
            // A development build looks whether a descriptor is open before it closes it.
            _ if cfg!(debug_assertions) && call == "fcntl" => {}
            _ => {
                if let Some(operation) = &operation {
                    *counts.entry(operation.clone()).or_default().entry(call.to_owned()).or_default() += 1;
                }
            }
        }
    }
    counts
}

#[test]
fn the_counts_are_those_that_were_promised() {
    let promised = [
        ("attributes", 1.0, 1.0),
        ("lookup-known", 1.0, 1.0),
        // Where only a file handle can tell whether it is the same inode.
        ("lookup-again", 1.0, 2.0),
        ("lookup-new", 3.0, 2.0),
        ("lookup-missing", 1.0, 1.0),
        ("create", 3.0, 3.0),
        ("release", 1.0, 1.0),
        ("rename", 1.0, 1.0),
        ("unlink", 1.0, 1.0),
        ("mkdir", 3.0, 3.0),
        ("read", 0.0, 0.0),
    ];
    let directory = tempfile::tempdir().unwrap();
    let at = Fixture::new(Options::default());
    for way in ["never", "prefer"] {
        let counts = count(way, &directory.path().join(way));
        for (operation, never, prefer) in promised {
            let calls = counts.get(operation).cloned().unwrap_or_default();
            let all: usize = calls.values().sum();
            let by_handle = way == "prefer" && at.tree.describe().by_file_handles;
            let most = if by_handle { prefer } else { never };
            // Memory for the tables comes from the kernel now and then.
            let each = all as f64 / TIMES as f64;
            assert!(each > most - 0.1 && each < most + 0.2, "{way} {operation}: {each} each, {calls:?}");
        }
    }
}
