//! What one guest of a directory must wait for, while whoever else is on its worker is answered.

use std::fs::{self, File};
use std::os::fd::AsRawFd;

use anyhow::{Result, ensure};
use rustix::fs::OFlags;
use tempfile::TempDir;
use tests::directory_server::{Directory, DirectoryServer};
use tests::fuse::{Client, ROOT, Waiting, name_body, op, open_body, release_body, write_body};
use tests::lab::Lab;

/// fcntl(2): which signal tells of a break.
const F_SETSIG: i32 = 10;
/// Threads for long calls of one export.
const ASIDE: usize = 2;
/// Nodes that are not forgotten in no time.
const KNOWN_MUCH: usize = 2100;
/// More than is given back in no time.
const MUCH_BYTES: usize = 1 << 20;
/// FATTR_MODE and FATTR_SIZE of linux/fuse.h.
const FATTR_MODE: u32 = 1;
const FATTR_SIZE: u32 = 1 << 3;
/// FUSE_RELEASE_FLOCK_UNLOCK.
const FLOCK_UNLOCK: u32 = 1 << 1;

const RDONLY: i32 = OFlags::RDONLY.bits() as i32;
const RDWR: i32 = OFlags::RDWR.bits() as i32;
const TRUNC: i32 = OFlags::RDWR.union(OFlags::TRUNC).bits() as i32;

/// Holds a write lease on a new file, and gives it back with this value alone.
fn lease(shared: &TempDir, name: &str) -> Result<File> {
    let file = File::create_new(shared.path().join(name))?;
    // SAFETY: two calls on an open descriptor; the signal that tells of a break is one that is ignored.
    let answers = unsafe {
        [
            libc::fcntl(file.as_raw_fd(), F_SETSIG, libc::SIGURG),
            libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK),
        ]
    };
    ensure!(answers == [0, 0], "no lease: {}", std::io::Error::last_os_error());
    Ok(file)
}

/// Opens so many leased files, which does not end: the leases, and the requests.
fn hold_up(shared: &TempDir, client: &mut Client, files: usize) -> Result<(Vec<File>, Vec<Waiting>)> {
    let (mut leases, mut calls) = (Vec::new(), Vec::new());
    for file in 0..files {
        let name = format!("leased-{file}");
        leases.push(lease(shared, &name)?);
        let node = client.lookup(ROOT, &name)?;
        calls.push(client.begin_call(op::OPEN, node, &open_body(RDONLY)));
    }
    Ok((leases, calls))
}

fn set_size(size: u64) -> Vec<u8> {
    let mut body = vec![0; 88];
    body[..4].copy_from_slice(&FATTR_SIZE.to_le_bytes());
    body[16..24].copy_from_slice(&size.to_le_bytes());
    body
}

fn set_mode(mode: u32) -> Vec<u8> {
    let mut body = vec![0; 88];
    body[..4].copy_from_slice(&FATTR_MODE.to_le_bytes());
    body[68..72].copy_from_slice(&mode.to_le_bytes());
    body
}

/// `struct fuse_lk_in` for an exclusive lock of the whole file: flock(2)'s, or a range's.
fn lock_body(handle: u64, owner: u64, flock: bool) -> Vec<u8> {
    let range = [handle, owner, 0, i64::MAX as u64].map(u64::to_le_bytes).concat();
    let kind = [libc::F_WRLCK as u32, 0, u32::from(flock), 0].map(u32::to_le_bytes).concat();
    [range, kind].concat()
}

#[test]
fn a_lease_keeps_who_opens_the_file_waiting_and_nobody_else() -> Result<()> {
    let shared = TempDir::new()?;
    for execution in ["auto", "uring"] {
        let directory = Directory { execution: Some(execution), workers: Some("1"), ..Directory::new(shared.path()) };
        let server = DirectoryServer::start(&Lab::take_turn(), &directory)?;
        let mut client = Client::begin(&server.socket())?;
        let (leases, calls) = hold_up(&shared, &mut client, ASIDE)?;
        client.check()?;
        for call in &calls {
            ensure!(!client.came_first(*call), "{execution}: a leased file is open");
        }
        drop(leases);
        for call in calls {
            // There is no room for its body: what matters is that it comes.
            client.end_call(call)?;
        }
        for file in 0..ASIDE {
            fs::remove_file(shared.path().join(format!("leased-{file}")))?;
        }
        client.check()?;
    }
    Ok(())
}

#[test]
fn what_frees_much_is_not_done_on_the_worker() -> Result<()> {
    let shared = TempDir::new()?;
    // Names in a directory in which a large file is replaced wait for that: the kernel has its lock meanwhile.
    fs::create_dir(shared.path().join("below"))?;
    for name in ["unlinked", "below/replaced", "cut", "emptied", "released"] {
        fs::write(shared.path().join(name), vec![1; MUCH_BYTES])?;
    }
    for name in ["little", "below/new", "below/little"] {
        fs::write(shared.path().join(name), "content")?;
    }
    let directory = Directory { workers: Some("1"), ..Directory::new(shared.path()) };
    let server = DirectoryServer::start(&Lab::take_turn(), &directory)?;
    let mut client = Client::begin(&server.socket())?;
    let (cut, emptied) = (client.lookup(ROOT, "cut")?, client.lookup(ROOT, "emptied")?);
    let (released, below) = (client.lookup(ROOT, "released")?, client.lookup(ROOT, "below")?);
    let handle = client.open(op::OPEN, released, RDWR)?;
    // While these wait there is no thread for long calls.
    let (leases, mut calls) = hold_up(&shared, &mut client, ASIDE)?;
    let rename = [&below.to_le_bytes()[..], b"new\0replaced\0"].concat();
    calls.extend([
        client.begin_call(op::UNLINK, ROOT, &name_body(b"unlinked")),
        client.begin_call(op::RENAME, below, &rename),
        client.begin_call(op::UNLINK, below, &name_body(b"little")),
        client.begin_call(op::SETATTR, cut, &set_size(0)),
        client.begin_call(op::OPEN, emptied, &open_body(TRUNC)),
        client.begin_call(op::RELEASE, released, &release_body(handle)),
    ]);
    // What frees little overtakes all of them.
    client.call(op::UNLINK, ROOT, &name_body(b"little"))?.ok()?;
    for (place, call) in calls.iter().enumerate() {
        ensure!(!client.came_first(*call), "request {place} was done on the worker");
    }
    let length = |name: &str| Ok::<_, std::io::Error>(fs::metadata(shared.path().join(name))?.len());
    for name in ["unlinked", "below/replaced", "cut", "emptied"] {
        ensure!(length(name)? == MUCH_BYTES as u64, "{name} is changed already");
    }
    drop(leases);
    for call in calls {
        client.end_call(call)?;
    }
    ensure!(!shared.path().join("unlinked").exists() && !shared.path().join("below/little").exists());
    ensure!((length("below/replaced")?, length("cut")?, length("emptied")?) == (7, 0, 0));
    client.check()
}

/// The kernel holds the file's lock meanwhile, and the worker would wait for it with all that it serves.
#[test]
fn what_needs_a_file_that_is_being_changed_is_not_done_on_the_worker() -> Result<()> {
    let shared = TempDir::new()?;
    for name in ["cut", "beside"] {
        fs::write(shared.path().join(name), vec![1; MUCH_BYTES])?;
    }
    fs::write(shared.path().join("little"), "content")?;
    let directory = Directory { workers: Some("1"), ..Directory::new(shared.path()) };
    let server = DirectoryServer::start(&Lab::take_turn(), &directory)?;
    let mut client = Client::begin(&server.socket())?;
    let (cut, beside, little) =
        (client.lookup(ROOT, "cut")?, client.lookup(ROOT, "beside")?, client.lookup(ROOT, "little")?);
    let handle = client.open(op::OPEN, little, RDWR)?;
    let (leases, mut calls) = hold_up(&shared, &mut client, ASIDE)?;
    let allocate = [handle, 0, 4096].map(u64::to_le_bytes).concat();
    calls.push(client.begin_call(op::SETATTR, cut, &set_size(0)));
    calls.push(client.begin_call(op::FALLOCATE, little, &[allocate, vec![0; 8]].concat()));
    let changes = calls.len();
    calls.extend([
        client.begin_call(op::SETATTR, cut, &set_mode(0o600)),
        client.begin_call(op::WRITE, little, &write_body(handle, 0, 3, b"new")),
        client.begin_call(op::UNLINK, ROOT, &name_body(b"little")),
        client.begin_call(op::RENAME, ROOT, &[&ROOT.to_le_bytes()[..], b"cut\0moved\0"].concat()),
    ]);
    // Another file is nobody's business.
    client.call(op::SETATTR, beside, &set_mode(0o600))?.ok()?;
    for (place, call) in calls.iter().enumerate().skip(changes) {
        ensure!(!client.came_first(*call), "request {place} was done on the worker");
    }
    drop(leases);
    for call in calls {
        client.end_call(call)?;
    }
    ensure!(fs::metadata(shared.path().join("moved"))?.len() == 0 && !shared.path().join("little").exists());
    client.check()
}

/// A guest does not wait for a release, and what its program asks for next comes behind it.
#[test]
fn a_release_that_waits_has_given_its_locks_back() -> Result<()> {
    let shared = TempDir::new()?;
    fs::write(shared.path().join("file"), vec![1; MUCH_BYTES])?;
    let directory = Directory { workers: Some("1"), ..Directory::new(shared.path()) };
    let server = DirectoryServer::start(&Lab::take_turn(), &directory)?;
    let mut client = Client::begin(&server.socket())?;
    let node = client.lookup(ROOT, "file")?;
    let first = client.open(op::OPEN, node, RDWR)?;
    let second = client.open(op::OPEN, node, RDWR)?;
    for flock in [true, false] {
        client.call(op::SETLK, node, &lock_body(first, 1, flock))?.ok()?;
        ensure!(client.call(op::SETLK, node, &lock_body(second, 2, flock))?.error == -libc::EAGAIN);
    }
    let (leases, mut calls) = hold_up(&shared, &mut client, ASIDE)?;
    let mut body = release_body(first);
    body[12..16].copy_from_slice(&FLOCK_UNLOCK.to_le_bytes());
    body[16..].copy_from_slice(&1_u64.to_le_bytes());
    calls.push(client.begin_call(op::RELEASE, node, &body));
    for flock in [true, false] {
        client.call(op::SETLK, node, &lock_body(second, 2, flock))?.ok()?;
    }
    ensure!(!client.came_first(calls[ASIDE]), "it was released on the worker");
    drop(leases);
    for call in calls {
        client.end_call(call)?;
    }
    client.check()
}

/// A guest that knows much unmounts: with a pool, its threads give that up.
#[test]
fn the_end_of_a_large_session_is_left_to_the_pool() -> Result<()> {
    let shared = TempDir::new()?;
    let directory = Directory { workers: Some("1"), execution: Some("pool=1"), ..Directory::new(shared.path()) };
    let server = DirectoryServer::start(&Lab::take_turn(), &directory)?;
    let mut client = Client::begin(&server.socket())?;
    for file in 0..KNOWN_MUCH {
        let name = format!("{file}");
        File::create_new(shared.path().join(&name))?;
        client.lookup(ROOT, &name)?;
    }
    let (leases, mut calls) = hold_up(&shared, &mut client, 1)?;
    calls.push(client.begin_call(op::DESTROY, 0, &[]));
    // A name without an end is refused by the worker itself.
    ensure!(client.call(op::LOOKUP, ROOT, b"x")?.error != 0);
    ensure!(!client.came_first(calls[1]), "the session was ended on the worker");
    drop(leases);
    for call in calls {
        client.end_call(call)?;
    }
    Ok(())
}
