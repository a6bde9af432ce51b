//! What one client asks for and must wait for, while the other clients of its worker are answered.

use super::client::{
    Client, Like, Server, TCLUNK, TFSYNC, TGETATTR, TLOPEN, TRENAMEAT, TSETATTR, TUNLINKAT, TWRITE, fields, message,
    write_of,
};
use engine::Execution;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;

/// `unlinkat(2)`.
const AT_REMOVEDIR: u32 = 0x200;

/// Threads for long calls of one export.
const ASIDE: usize = 2;

/// fcntl(2): which signal tells of a break.
const F_SETSIG: i32 = 10;

/// Holds a write lease on a new file, and gives it back with this value alone.
fn lease(server: &Server, name: &str) -> File {
    let file = File::create_new(server.file(name)).unwrap();
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

fn look(client: &mut Client) {
    client.ask(TGETATTR, fields().u32(0).u64(0x7ff));
}

/// Opens so many leased files as fids from 100 on, which does not end; the leases.
fn hold_up(server: &Server, client: &mut Client, files: usize) -> Vec<File> {
    let mut leases = Vec::new();
    for (fid, tag) in (100..).zip(100..).take(files) {
        let name = format!("leased-{fid}");
        leases.push(lease(server, &name));
        client.walk(fid, &name);
        client.send(&message(TLOPEN, tag, fields().u32(fid).u32(0)));
    }
    leases
}

#[test]
fn a_lease_keeps_who_opens_the_file_waiting_and_nobody_else() {
    for execution in [Execution::Auto, Execution::Uring] {
        let server = Server::new(&Like { execution, ..Like::default() });
        let (mut opener, mut other) = (server.client(), server.client());
        let leases = hold_up(&server, &mut opener, 1);
        look(&mut other);
        look(&mut opener);
        drop(leases);
        assert_eq!(opener.answer().kind, TLOPEN + 1, "{execution}");
        assert_eq!(server.export.failure(), None);
    }
}

#[test]
fn what_frees_much_is_not_done_on_the_worker() {
    let server = Server::new(&Like { execution: Execution::Auto, ..Like::default() });
    let much = vec![1; 1 << 20];
    let names = ["unlinked", "replaced", "cut", "emptied", "released"];
    for name in names {
        std::fs::write(server.file(name), &much).unwrap();
    }
    ["once-large", "elsewhere"].iter().for_each(|name| std::fs::create_dir(server.file(name)).unwrap());
    std::fs::write(server.file("elsewhere/little"), "content").unwrap();
    std::fs::write(server.file("new"), "content").unwrap();
    let mut client = server.client();
    client.walk(1, "cut");
    client.walk(2, "emptied");
    client.open(3, "released", libc::O_RDWR);
    client.walk(4, "elsewhere");
    // While these wait there is no thread for long calls.
    let leases = hold_up(&server, &mut client, ASIDE);
    const SIZE: u32 = 8;
    let size = fields().u32(1).u32(SIZE).u32(0).u32(0).u32(0).u64(0).u64(0).u64(0).u64(0).u64(0);
    let long = [
        (TUNLINKAT, fields().u32(0).text("unlinked").u32(0)),
        (TUNLINKAT, fields().u32(0).text("once-large").u32(AT_REMOVEDIR)),
        (TRENAMEAT, fields().u32(0).text("new").u32(0).text("replaced")),
        (TSETATTR, size),
        (TLOPEN, fields().u32(2).u32((libc::O_RDWR | libc::O_TRUNC) as u32)),
        (TCLUNK, fields().u32(3)),
    ];
    let asked: Vec<_> = long.iter().map(|(kind, _)| kind + 1).collect();
    for (tag, (kind, fields)) in (200..).zip(long) {
        client.send(&message(kind, tag, fields));
    }
    // What frees little is, and overtakes all of them.
    client.ask(TUNLINKAT, fields().u32(4).text("little").u32(0));
    assert!(!server.file("elsewhere/little").exists() && server.file("once-large").exists());
    assert!(names[..2].iter().all(|name| server.file(name).metadata().unwrap().len() == 1 << 20));
    drop(leases);
    let mut answered: Vec<_> = (0..ASIDE + asked.len()).map(|_| client.answer()).collect();
    answered.sort_by_key(|answer| answer.tag);
    let kinds: Vec<_> = answered[ASIDE..].iter().map(|answer| answer.kind).collect();
    assert_eq!(kinds, asked, "answered without an error");
    assert!(!server.file("unlinked").exists() && !server.file("once-large").exists());
    assert_eq!(server.file("replaced").metadata().unwrap().len(), 7);
    assert_eq!(server.file("cut").metadata().unwrap().len(), 0);
    assert_eq!(server.file("emptied").metadata().unwrap().len(), 0);
}

/// The kernel holds the file's lock meanwhile, and the worker would wait for it with all that it serves.
#[test]
fn what_needs_a_file_that_is_being_changed_is_not_done_on_the_worker() {
    let server = Server::new(&Like { execution: Execution::Auto, ..Like::default() });
    for name in ["cut", "beside"] {
        std::fs::write(server.file(name), vec![1; 1 << 20]).unwrap();
    }
    let mut client = server.client();
    client.open(1, "cut", libc::O_RDWR);
    client.walk(2, "beside");
    let leases = hold_up(&server, &mut client, ASIDE);
    const MODE: u32 = 1;
    const SIZE: u32 = 8;
    let set =
        |fid: u32, what: u32| fields().u32(fid).u32(what).u32(0o600).u32(0).u32(0).u64(0).u64(0).u64(0).u64(0).u64(0);
    let behind = [
        (TSETATTR, set(1, SIZE)),
        (TSETATTR, set(1, MODE)),
        (TWRITE, write_of(1, 0, b"new")),
        (TRENAMEAT, fields().u32(0).text("cut").u32(0).text("moved")),
    ];
    for (tag, (kind, fields)) in (200..).zip(behind) {
        client.send(&message(kind, tag, fields));
    }
    // Another file is nobody's business: the first answer is this one's.
    client.ask(TSETATTR, set(2, MODE));
    assert!(server.file("cut").exists());
    drop(leases);
    let mut kinds: Vec<_> = (0..ASIDE + 4).map(|_| client.answer().kind).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, [13, 13, TSETATTR + 1, TSETATTR + 1, TRENAMEAT + 1, TWRITE + 1]);
    assert!(server.file("moved").exists());
}

#[test]
fn what_io_uring_does_not_take_is_not_done_on_the_worker_either() {
    let server = Server::new(&Like { execution: Execution::Auto, ..Like::default() });
    ["synchronous", "appended", "beside"].iter().for_each(|name| std::fs::write(server.file(name), "").unwrap());
    let mut client = server.client();
    std::fs::create_dir(server.file("directory")).unwrap();
    client.open(1, "directory", libc::O_RDONLY);
    client.open(2, "synchronous", libc::O_RDWR | libc::O_SYNC);
    client.open(3, "appended", libc::O_RDWR | libc::O_SYNC | libc::O_APPEND);
    client.walk(4, "beside");
    let leases = hold_up(&server, &mut client, ASIDE);
    client.send(&message(TFSYNC, 200, fields().u32(1).u32(0)));
    client.send(&message(TWRITE, 201, write_of(2, 0, b"new")));
    // In the order in which they came, whichever threads take them.
    let pieces: Vec<String> = (0..9).map(|number| format!("{number} ")).collect();
    for (tag, piece) in (202..).zip(&pieces) {
        client.send(&message(TWRITE, tag, write_of(3, 0, piece.as_bytes())));
    }
    client.ask(TGETATTR, fields().u32(4).u64(0x7ff));
    assert!(["synchronous", "appended"].iter().all(|name| server.file(name).metadata().unwrap().len() == 0));
    drop(leases);
    let answers = (0..ASIDE + 2 + pieces.len()).map(|_| client.answer());
    let kinds: BTreeSet<_> = answers.map(|answer| answer.kind).collect();
    assert_eq!(kinds, [TLOPEN + 1, TFSYNC + 1, TWRITE + 1].into());
    assert_eq!(std::fs::read_to_string(server.file("synchronous")).unwrap(), "new");
    assert_eq!(std::fs::read_to_string(server.file("appended")).unwrap(), pieces.concat());
}
