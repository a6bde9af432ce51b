//! Two guests on one directory, each with a server of its own, and the host: their locks are the
//! same locks.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use tempfile::TempDir;
use tests::directory_server::{Cache, Directory, DirectoryServer};
use tests::fs_guest;
use tests::fuse::{Client, op};
use tests::lab::Lab;
use tests::uml::{Guest, Kernel};

const LIMIT: Duration = Duration::from_secs(120);

/// Without caches, so that what one guest wrote under a lock is what the other reads under it.
fn serve(lab: &Lab, shared: &Path) -> Result<DirectoryServer> {
    DirectoryServer::start(lab, &Directory::new(shared).cache(Cache::Never))
}

fn finish(guests: [Guest; 2]) -> Result<()> {
    for guest in guests {
        let ended = guest.wait(LIMIT)?;
        ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    }
    Ok(())
}

/// Both guests add to one number under an exclusive lock: nothing that either adds is lost.
fn counted(kind: &str) -> Result<()> {
    const ROUNDS: u64 = 1500;
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("number"), 0_u64.to_le_bytes())?;
    let mut servers = [serve(&lab, shared.path())?, serve(&lab, shared.path())?];
    let body = format!(
        "touch $job/ready
         until [ -e $job/go ]; do sleep 0.02; done
         $tool count {kind} number {ROUNDS}"
    );
    let boot = |server| fs_guest::boot(&lab, Kernel::Debian, server, &body);
    let mut guests = [boot(&servers[0])?, boot(&servers[1])?];
    for guest in &mut guests {
        guest.wait_for("ready", LIMIT)?;
    }
    for guest in &guests {
        guest.tell("go")?;
    }
    finish(guests)?;
    let number = fs::read(shared.path().join("number"))?;
    let number = u64::from_le_bytes(number.try_into().ok().context("the number is there")?);
    ensure!(number == 2 * ROUNDS, "{} of {} additions were lost", 2 * ROUNDS - number, 2 * ROUNDS);
    servers.iter_mut().try_for_each(DirectoryServer::check_alive)
}

#[test]
fn posix_locks_keep_guests_apart() -> Result<()> {
    counted("posix")
}

#[test]
fn flocks_keep_guests_apart() -> Result<()> {
    counted("flock")
}

/// One guest holds a lock; the other finds it taken, and waits for it while it does other things.
fn held(kind: &str, while_held: &str, after: &str) -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("file"), vec![0; 4096])?;
    let mut servers = [serve(&lab, shared.path())?, serve(&lab, shared.path())?];
    let holder = format!("$tool hold {kind} file exclusive $job/held $job/over");
    // Linux does not tell a virtio-fs server of a signal (there is no INTERRUPT), so a guest cannot
    // give up waiting; what INTERRUPT does is tried without a kernel, below.
    let waiter = format!(
        "touch $job/ready
         until [ -e $job/go ]; do sleep 0.02; done
         status=0; $tool try {kind} file exclusive || status=$?; test $status = 3
         status=0; $tool try {kind} file shared || status=$?; test $status = 3
         {while_held}
         $tool wait {kind} file exclusive & waiting=$!
         sleep 0.5
         kill -0 $waiting
         ls -l file
         touch $job/waits
         wait $waiting
         {after}
         $tool try {kind} file exclusive"
    );
    let mut first = fs_guest::boot(&lab, Kernel::Debian, &servers[0], &holder)?;
    let mut second = fs_guest::boot(&lab, Kernel::Debian, &servers[1], &waiter)?;
    first.wait_for("held", LIMIT)?;
    second.wait_for("ready", LIMIT)?;
    second.tell("go")?;
    second.wait_for("waits", LIMIT)?;
    first.tell("over")?;
    finish([first, second])?;
    servers.iter_mut().try_for_each(DirectoryServer::check_alive)
}

#[test]
fn posix_lock_is_waited_for() -> Result<()> {
    held("posix", "test \"$($tool holder file)\" = 'exclusive 100 50'", "test \"$($tool holder file)\" = none")
}

#[test]
fn flock_is_waited_for() -> Result<()> {
    held("flock", "", "")
}

/// A waiting lock holds nobody up: other requests of the same guest go on, and a guest that is
/// killed while it holds a lock, or waits for one, leaves none behind.
#[test]
fn killed_guest_leaves_no_lock() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let path = shared.path().join("file");
    fs::write(&path, vec![0; 4096])?;
    let mut servers = [serve(&lab, shared.path())?, serve(&lab, shared.path())?];
    let holder = "$tool hold flock file exclusive $job/flocked $job/never & $tool hold posix file exclusive $job/held $job/never";
    let waiter = "touch $job/ready
         until [ -e $job/go ]; do sleep 0.02; done
         for kind in flock posix; do status=0; $tool try $kind file shared || status=$?; test $status = 3; done
         for number in 1 2 3 4 5 6 7 8; do $tool wait flock file shared & $tool wait posix file shared & done
         sleep 0.5
         find . >/dev/null; echo alive >alive
         touch $job/waits
         wait
         $tool try posix file exclusive";
    let mut first = fs_guest::boot(&lab, Kernel::Debian, &servers[0], holder)?;
    let mut second = fs_guest::boot(&lab, Kernel::Debian, &servers[1], waiter)?;
    first.wait_for("flocked", LIMIT)?;
    first.wait_for("held", LIMIT)?;
    second.wait_for("ready", LIMIT)?;
    second.tell("go")?;
    second.wait_for("waits", LIMIT)?;
    first.kill();
    let ended = second.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    servers.iter_mut().try_for_each(DirectoryServer::check_alive)
}

#[test]
fn flock_of_the_host_and_of_a_guest_are_one() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let path = shared.path().join("file");
    let file = File::create(&path)?;
    let server = serve(&lab, shared.path())?;
    flock(&file, FlockOperation::LockExclusive)?;
    let body = "status=0; $tool try flock file shared || status=$?; test $status = 3
         touch $job/tried
         $tool hold flock file shared $job/held $job/over";
    let mut guest = fs_guest::boot(&lab, Kernel::Debian, &server, body)?;
    guest.wait_for("tried", LIMIT)?;
    flock(&file, FlockOperation::Unlock)?;
    guest.wait_for("held", LIMIT)?;
    let taken = flock(&file, FlockOperation::NonBlockingLockExclusive);
    ensure!(taken == Err(Errno::WOULDBLOCK), "the guest's lock is none on the host: {taken:?}");
    guest.tell("over")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    flock(&file, FlockOperation::NonBlockingLockExclusive).context("the guest has gone and its lock has not")
}

/// `struct fuse_lk_in` for an exclusive POSIX lock of bytes 10 to 19.
fn lock_body(handle: u64, owner: u64) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(handle.to_le_bytes());
    body.extend(owner.to_le_bytes());
    body.extend(10_u64.to_le_bytes());
    body.extend(19_u64.to_le_bytes());
    body.extend((libc::F_WRLCK as u32).to_le_bytes());
    body.extend([0; 12]);
    body
}

/// A wait for a lock holds no other request up, INTERRUPT ends it, and so does the lock.
#[test]
fn wait_for_a_lock_is_interrupted() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let file = File::create_new(shared.path().join("file"))?;
    let of_the_host = |kind: i32| libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 15,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_SETLK(&of_the_host(libc::F_WRLCK)))?;
    let server = serve(&lab, shared.path())?;
    let mut client = Client::begin(&server.socket())?;
    let node = client.walk("file")?;
    let handle = client.open(op::OPEN, node, OFlags::RDWR.bits() as i32)?;
    let taken = client.call(op::SETLK, node, &lock_body(handle, 1))?;
    ensure!(taken.error == -Errno::AGAIN.raw_os_error(), "the host's lock is not seen: {taken:?}");

    let waiting = client.begin_call(op::SETLKW, node, &lock_body(handle, 1));
    client.check().context("while a lock is waited for")?;
    ensure!(!client.has_ended(waiting), "a lock was given that the host has");
    // One for a request that there is not, first.
    client.interrupt(waiting.unique + 1000);
    client.interrupt(waiting.unique);
    let ended = client.end_call(waiting)?;
    ensure!(ended.error == -Errno::INTR.raw_os_error(), "the wait ended with {ended:?}");

    let waiting = client.begin_call(op::SETLKW, node, &lock_body(handle, 1));
    client.check()?;
    fcntl(&file, FcntlArg::F_SETLK(&of_the_host(libc::F_UNLCK)))?;
    client.end_call(waiting)?.ok()?;
    let mut wanted = of_the_host(libc::F_WRLCK);
    fcntl(&file, FcntlArg::F_GETLK(&mut wanted))?;
    ensure!((wanted.l_start, wanted.l_len) == (10, 10), "the host sees {wanted:?}");
    // Closing the file gives the lock back (FLUSH with the owner).
    let flush = [&handle.to_le_bytes()[..], &[0; 8], &1_u64.to_le_bytes()].concat();
    client.call(op::FLUSH, node, &flush)?.ok()?;
    fcntl(&file, FcntlArg::F_SETLK(&of_the_host(libc::F_WRLCK))).context("the lock is still there")?;
    client.check()
}

/// A client that goes while it waits leaves neither a lock nor a waiter.
#[test]
fn wait_for_a_lock_ends_with_its_session() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let file = File::create_new(shared.path().join("file"))?;
    flock(&file, FlockOperation::LockExclusive)?;
    let mut server = serve(&lab, shared.path())?;
    for _ in 0..3 {
        let mut client = Client::begin(&server.socket())?;
        let node = client.walk("file")?;
        let handle = client.open(op::OPEN, node, OFlags::RDWR.bits() as i32)?;
        let mut body = lock_body(handle, 1);
        // FUSE_LK_FLOCK: a lock of the whole file, by flock(2).
        body[40..44].copy_from_slice(&1_u32.to_le_bytes());
        for _ in 0..20 {
            client.begin_call(op::SETLKW, node, &body);
        }
        client.check()?;
        drop(client);
    }
    let client = Client::begin(&server.socket())?;
    drop(client);
    flock(&file, FlockOperation::Unlock)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).context("a client that has gone has the lock")?;
    server.check_alive()?;
    server.stop()
}
