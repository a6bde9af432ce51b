//! The daemon's program is replaced while guests work in directories, and what they know, have open and have locked is
//! what it was.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use control::client::Client as Api;
use control::model::{DirectoryInfo, Export, Info, SessionState};
use http::Method;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;
use tests::daemon::{DIRECTORY, Daemon, directory, refusal};
use tests::directory_server::{Directory, DirectoryServer};
use tests::fs_guest;
use tests::fuse::{Client, ROOT, Waiting, create_body, name_body, op, read_body, release_body, write_body};
use tests::lab::Lab;
use tests::process::Group;
use tests::uml::Kernel;
use tests::vringd;

const UPGRADES: usize = 6;
const NODES: usize = 3000;
/// `struct fuse_entry_out`, behind which CREATE answers with the handle.
const ENTRY_BYTES: usize = 128;
const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
/// `FUSE_LK_FLOCK`.
const LK_FLOCK: u32 = 1;
const PATIENCE: Duration = Duration::from_secs(30);

/// An export of a directory of its name, with `more` lines about the directory.
fn export(name: &str, more: &str) -> String {
    format!(
        "[[export]]\nname = '{name}'\nkind = 'dir'\nsocket = '{DIRECTORY}/{name}.sock'\nqueues = 1\n\
         [export.directory]\npath = '{DIRECTORY}/{name}'\n{more}\n"
    )
}

/// A daemon with these exports, whose directories are made before.
fn daemon(exports: &[(&str, &str)], more: &str) -> Result<Daemon> {
    let place = directory()?;
    let mut config = "workers = 2\n".to_owned();
    for (name, about) in exports {
        fs::create_dir(place.path().join(name))?;
        config += &export(name, about);
    }
    Daemon::serve_in(place, &(config + more))
}

fn about(daemon: &Daemon, name: &str) -> Result<DirectoryInfo> {
    daemon.export(name)?.directory.context("it is a directory")
}

fn upgrade(control: &Path, binary: Option<&Path>) -> Result<Output> {
    let mut command = Command::new(vringd::program()?);
    command.arg("ctl").arg("--control").arg(control).arg("upgrade");
    if let Some(binary) = binary {
        command.arg("--binary").arg(binary);
    }
    Ok(command.output()?)
}

/// Tries to upgrade, and returns the one line that says why not.
fn refused(control: &Path, binary: Option<&Path>) -> Result<String> {
    let output = upgrade(control, binary)?;
    let line = String::from_utf8(output.stderr)?;
    ensure!((output.status.code(), line.lines().count()) == (Some(1), 1), "{}: {line}", output.status);
    Ok(line)
}

/// Makes a file that is open: its node and its handle.
fn create(client: &mut Client, name: &str) -> Result<(u64, u64)> {
    let made = client.call(op::CREATE, ROOT, &create_body(libc::O_RDWR, 0o644, name.as_bytes()))?.ok()?;
    Ok((made.u64_at(0), made.u64_at(ENTRY_BYTES)))
}

fn read(client: &mut Client, (node, handle): (u64, u64), offset: usize, len: usize) -> Result<Vec<u8>> {
    Ok(client.call(op::READ, node, &read_body(handle, offset as u64, len as u32))?.ok()?.body)
}

fn write(client: &mut Client, (node, handle): (u64, u64), offset: usize, data: &[u8]) -> Result<()> {
    let body = write_body(handle, offset as u64, data.len() as u32, data);
    let written = client.call(op::WRITE, node, &body)?.ok()?.u32_at(0);
    ensure!(written as usize == data.len(), "{written} bytes of {} were written", data.len());
    Ok(())
}

/// Writes and reads what it wrote, makes, renames, finds and removes, until it is told to end.
fn load(socket: &Path, rounds: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    let mut client = Client::begin(socket)?;
    let file = create(&mut client, "data")?;
    let mut model = vec![0; BLOCKS * BLOCK];
    write(&mut client, file, 0, &model)?;
    while !stop.load(Ordering::SeqCst) {
        let round = rounds.fetch_add(1, Ordering::SeqCst) + 1;
        let at = (round as usize * 7919 % BLOCKS) * BLOCK;
        model[at..at + BLOCK].iter_mut().enumerate().for_each(|(i, byte)| *byte = (round as usize + i) as u8);
        write(&mut client, file, at, &model[at..at + BLOCK])?;
        let at = (round as usize * 104_729 % BLOCKS) * BLOCK;
        ensure!(read(&mut client, file, at, BLOCK)? == model[at..at + BLOCK], "round {round}: other data at {at}");
        let (old, new) = (format!("old-{round}"), format!("new-{round}"));
        let (node, handle) = create(&mut client, &old)?;
        client.call(op::RELEASE, node, &release_body(handle))?.ok()?;
        let names = [name_body(old.as_bytes()), name_body(new.as_bytes())].concat();
        client.call(op::RENAME, ROOT, &[&ROOT.to_le_bytes()[..], &names].concat())?.ok()?;
        ensure!(client.lookup(ROOT, &new)? == node, "round {round}: another node has the name");
        client.call(op::UNLINK, ROOT, &name_body(new.as_bytes()))?.ok()?;
        client.forget(node, 2);
    }
    ensure!(read(&mut client, file, 0, model.len())? == model, "the file has other data in the end");
    Ok(())
}

/// `struct fuse_lk_in` for an exclusive lock of all bytes.
fn lock_body(handle: u64, owner: u64, flags: u32) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(handle.to_le_bytes());
    body.extend(owner.to_le_bytes());
    body.extend(0_u64.to_le_bytes());
    body.extend((i64::MAX as u64).to_le_bytes());
    body.extend((libc::F_WRLCK as u32).to_le_bytes());
    body.extend(7_u32.to_le_bytes());
    body.extend(flags.to_le_bytes());
    body.extend([0; 4]);
    body
}

/// The host's POSIX lock of a whole file, or none.
fn host_lock(file: &File, kind: i32) -> nix::Result<i32> {
    let (l_type, l_whence) = (kind as i16, libc::SEEK_SET as i16);
    fcntl(file, FcntlArg::F_SETLK(&libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }))
}

/// The next names of an open directory, and where it goes on. `struct fuse_dirent` is ino, off, namelen, type, name.
fn list(client: &mut Client, handle: u64, offset: &mut u64, names: &mut Vec<String>) -> Result<usize> {
    let reply = client.call(op::READDIR, ROOT, &read_body(handle, *offset, BLOCK as u32))?.ok()?;
    let (mut at, mut count) = (0, 0);
    while at < reply.body.len() {
        let len = reply.u32_at(at + 16) as usize;
        names.push(String::from_utf8(reply.body[at + 24..at + 24 + len].to_vec())?);
        *offset = reply.u64_at(at + 8);
        at += (24 + len).next_multiple_of(8);
        count += 1;
    }
    Ok(count)
}

/// What a guest has that must not get lost.
struct Guest {
    client: Client,
    nodes: Vec<u64>,
    /// A file without a name, open and as a node alone.
    unlinked: (u64, u64),
    listing: u64,
    offset: u64,
    names: Vec<String>,
    mine: File,
    theirs: File,
    /// Wait for `theirs`, by each kind of lock; the third is given up in the end.
    waiting: [Waiting; 3],
}

impl Guest {
    fn begin(daemon: &Daemon, name: &str) -> Result<Guest> {
        let place = daemon.path().join(name);
        for number in 0..NODES {
            fs::write(place.join(format!("file-{number}")), number.to_string())?;
        }
        let mut client = Client::begin(&daemon.socket(name))?;
        let lookup = |number: usize| client.lookup(ROOT, &format!("file-{number}"));
        let nodes = (0..NODES).map(lookup).collect::<Result<_>>()?;
        let unlinked = create(&mut client, "unlinked")?;
        write(&mut client, unlinked, 0, b"still here")?;
        fs::remove_file(place.join("unlinked"))?;
        let listing = client.open(op::OPENDIR, ROOT, 0)?;

        let (node, handle) = create(&mut client, "mine")?;
        client.call(op::SETLK, node, &lock_body(handle, 1, 0))?.ok()?;
        let (node, handle) = create(&mut client, "theirs")?;
        let open = |name| File::options().read(true).write(true).open(place.join(name));
        let (mine, theirs) = (open("mine")?, open("theirs")?);
        host_lock(&theirs, libc::F_WRLCK)?;
        flock(&theirs, FlockOperation::LockExclusive)?;
        let waiting = [(2, 0), (3, LK_FLOCK), (4, 0)];
        let waiting =
            waiting.map(|(owner, flags)| client.begin_call(op::SETLKW, node, &lock_body(handle, owner, flags)));
        client.check()?;
        Ok(Guest { client, nodes, unlinked, listing, offset: 0, names: Vec::new(), mine, theirs, waiting })
    }

    /// Everything is as it was.
    fn check(&mut self) -> Result<()> {
        ensure!(read(&mut self.client, self.unlinked, 0, 100)? == b"still here");
        let attributes = self.client.call(op::GETATTR, self.unlinked.0, &[0; 16])?.ok()?;
        // Behind the 16 bytes of a time: ino, size, blocks, three times, three times' nanoseconds, mode, nlink.
        ensure!((attributes.u64_at(24), attributes.u32_at(80)) == (10, 0), "{attributes:?}");
        for number in (0..NODES).step_by(97) {
            let (name, node) = (format!("file-{number}"), self.nodes[number]);
            ensure!(self.client.lookup(ROOT, &name)? == node, "{name} has another node");
            self.client.forget(node, 1);
            let handle = self.client.open(op::OPEN, node, libc::O_RDONLY)?;
            ensure!(read(&mut self.client, (node, handle), 0, 100)? == number.to_string().as_bytes(), "{name}");
            self.client.call(op::RELEASE, node, &release_body(handle))?.ok()?;
        }
        ensure!(host_lock(&self.mine, libc::F_RDLCK) == Err(nix::Error::EAGAIN), "the guest's lock is lost");
        for waiting in self.waiting {
            ensure!(!self.client.has_ended(waiting), "a lock was given that the host has");
        }
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        while list(&mut self.client, self.listing, &mut self.offset, &mut self.names)? > 0 {}
        // "mine" and "theirs" were made when the directory was open already, and may be there or not.
        let numbered = self.names.iter().filter(|name| name.starts_with("file-"));
        ensure!(numbered.count() == NODES, "{} names were listed", self.names.len());
        ensure!(self.names.iter().collect::<BTreeSet<_>>().len() == self.names.len(), "a name was listed twice");
        let [posix, whole, given_up] = self.waiting;
        self.client.interrupt(given_up.unique);
        let ended = self.client.end_call(given_up)?;
        ensure!(ended.error == -libc::EINTR, "a wait that was interrupted ended with {ended:?}");
        host_lock(&self.theirs, libc::F_UNLCK)?;
        self.client.end_call(posix)?.ok().context("the POSIX lock that was waited for")?;
        flock(&self.theirs, FlockOperation::Unlock)?;
        self.client.end_call(whole)?.ok().context("the flock that was waited for")?;
        ensure!(host_lock(&self.theirs, libc::F_RDLCK) == Err(nix::Error::EAGAIN), "the guest has it now");
        self.client.check()
    }
}

#[test]
fn guests_see_nothing_but_a_pause() -> Result<()> {
    let loads = ["load-a", "load-b"];
    for handles in ["never", "prefer"] {
        let handles = format!("inode_file_handles = '{handles}'");
        let exports = [("state", handles.as_str()), (loads[0], "execution = 'pool=2'"), (loads[1], &handles)];
        let mut daemon = daemon(&exports, "")?;
        let mut guest = Guest::begin(&daemon, "state")?;
        let (stop, rounds) = (AtomicBool::new(false), loads.map(|_| AtomicU64::new(0)));
        let sockets = loads.map(|name| daemon.socket(name));
        thread::scope(|scope| -> Result<()> {
            let mut started = Vec::new();
            for (socket, rounds) in sockets.iter().zip(&rounds) {
                started.push(scope.spawn(|| load(socket, rounds, &stop)));
            }
            let upgrades = (0..UPGRADES).try_for_each(|_| {
                // The load is at work before, and goes on behind it.
                for rounds in &rounds {
                    let before = rounds.load(Ordering::SeqCst);
                    while rounds.load(Ordering::SeqCst) < before + 20
                        && !started.iter().any(std::thread::ScopedJoinHandle::is_finished)
                    {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
                list(&mut guest.client, guest.listing, &mut guest.offset, &mut guest.names)?;
                let before = about(&daemon, "state")?;
                let takeover = daemon.upgrade()?.takeover.context("it took over")?;
                ensure!((takeover.sessions, takeover.rings) == (3, 6), "{takeover:?}");
                let after = about(&daemon, "state")?;
                ensure!((after.nodes, after.open_files) == (before.nodes, before.open_files), "{after:?}");
                ensure!(after.protocol == before.protocol, "{after:?}");
                println!("pause of {} µs with {} nodes", takeover.pause_us, after.nodes);
                guest.check()
            });
            stop.store(true, Ordering::SeqCst);
            for load in started {
                load.join().map_err(|_| anyhow!("a load panicked"))??;
            }
            upgrades
        })?;
        daemon.check_alive()?;
        guest.end()?;
        for name in ["state", loads[0]] {
            daemon.wait_disconnected(name)?;
            ensure!(about(&daemon, name)?.nodes == 1, "a guest that has gone is forgotten");
            ensure!(daemon.export(name)?.sessions.connects == 1);
        }
        daemon.stop()?;
    }
    Ok(())
}

/// A program that says that it can go on, and is gone when it comes to that.
fn fickle(directory: &Path) -> Result<PathBuf> {
    let path = directory.join("fickle");
    let program = vringd::program()?;
    fs::write(&path, format!("#!/bin/sh\nrm '{}'\nexec '{}' \"$@\"\n", path.display(), program.display()))?;
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
    Ok(path)
}

#[test]
fn a_program_that_cannot_go_on_leaves_the_old_one_serving() -> Result<()> {
    // A shell does more than a daemon may.
    let daemon = daemon(&[("state", "")], "[sandbox]\nseccomp = 'none'\n")?;
    let mut guest = Guest::begin(&daemon, "state")?;
    let control = daemon.path().join("control.sock");
    for binary in [PathBuf::from("/bin/false"), fickle(daemon.path())?] {
        let line = refused(&control, Some(&binary))?;
        ensure!(line.contains(binary.to_str().context("test paths are UTF-8")?), "{line}");
        guest.check()?;
    }
    // Nothing is left open for the children of a program that stayed.
    daemon.upgrade()?;
    guest.check()?;
    guest.end()?;
    daemon.stop()
}

#[test]
fn a_session_that_has_not_begun_goes_along() -> Result<()> {
    let daemon = daemon(&[("state", "")], "")?;
    let mut client = Client::connect(&daemon.socket("state"))?;
    let early = client.call(op::GETATTR, ROOT, &[0; 16])?;
    daemon.upgrade()?;
    ensure!(early.error != 0 && client.call(op::GETATTR, ROOT, &[0; 16])?.error == early.error);
    drop(client);
    daemon.wait_disconnected("state")?;
    Client::begin(&daemon.socket("state"))?.check()?;
    daemon.stop()
}

#[test]
fn what_cannot_be_handed_over_is_named() -> Result<()> {
    let daemon = daemon(&[("p9", "protocol = '9p'"), ("fuse", "")], "")?;
    let control = daemon.path().join("control.sock");
    let mut client = Client::begin(&daemon.socket("fuse"))?;
    let frontend = UnixStream::connect(daemon.socket("p9"))?;
    while daemon.export("p9")?.state != SessionState::Connected {
        thread::yield_now();
    }
    let line = refused(&control, None)?;
    ensure!(line.contains("`p9`") && line.contains("9P"), "{line}");
    client.check()?;
    drop(frontend);
    daemon.wait_disconnected("p9")?;
    daemon.upgrade()?;
    client.check()?;
    drop(UnixStream::connect(daemon.socket("p9"))?);
    daemon.stop()
}

/// `vringd dir` with a control socket, which answers.
fn one_directory(place: &Path, sandbox: &str) -> Result<(Group, Api)> {
    fs::create_dir(place.join("shared"))?;
    let control = place.join("control.sock");
    let mut command = Command::new(vringd::program()?);
    command.args(["dir", "--sandbox", sandbox, "--socket"]).arg(place.join("fs.sock"));
    command.arg("--control").arg(&control).arg(place.join("shared"));
    let mut process = Group::start(&command, &place.join("log"))?;
    let api = Api::new(&control)?;
    process.wait_until(PATIENCE, |_| api.text("/v1/info").is_ok())?;
    Ok((process, api))
}

#[test]
fn a_daemon_of_one_directory_is_upgraded_where_it_sees_programs() -> Result<()> {
    let place = directory()?;
    let (mut process, api) = one_directory(place.path(), "none")?;
    let control = place.path().join("control.sock");
    let mut client = Client::begin(&place.path().join("fs.sock"))?;
    let file = create(&mut client, "file")?;
    write(&mut client, file, 0, b"content")?;
    for upgrades in 1..=2 {
        let output = upgrade(&control, None)?;
        ensure!(output.status.success(), "{output:?}: {}", process.output());
        ensure!(api.get::<Info>("/v1/info")?.upgrades == upgrades);
        ensure!(read(&mut client, file, 0, 100)? == b"content");
    }
    let more = serde_json::json!({
        "name": "more", "socket": place.path().join("more.sock"), "storage": { "kind": "null", "size": "1M" }
    });
    let answer = api.send::<Export>(Method::POST, "/v1/exports", &more);
    ensure!(refusal(answer).0 == "unsupported", "it serves one directory, as before");
    drop(client);
    ensure!(process.terminate(PATIENCE)?.success(), "{}", process.output());
    for name in ["fs.sock", "control.sock"] {
        ensure!(!place.path().join(name).exists(), "{name} is left behind");
    }
    Ok(())
}

#[test]
fn an_isolated_daemon_says_that_it_cannot() -> Result<()> {
    let place = directory()?;
    let (_process, _) = one_directory(place.path(), "namespace")?;
    let line = refused(&place.path().join("control.sock"), None)?;
    ensure!(line.contains("isolated") && line.contains("--sandbox none"), "{line}");
    Ok(())
}

/// A guest's kernel, with files open, locked and without a name, under a load that it verifies.
#[test]
fn a_mounted_directory_outlives_three_programs() -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(240);
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("locked"), "")?;
    let mut server = DirectoryServer::start(&lab, &Directory::new(shared.path()))?;
    let body = "mkdir many; cd many; number=0; while [ $number -lt 300 ]; do : >file$number; number=$((number + 1)); done; cd ..
         exec 9>mine; flock -x 9
         echo unlinked >gone; exec 8<gone; rm gone
         flock locked true & waiting=$!
         touch $job/ready
         rounds=0
         until [ -e $job/over ]; do
             fio --eta=never --name=verify --directory=. --size=4m --rw=randwrite --bsrange=4k-64k --blockalign=4k \\
                 --verify=crc32c --verify_fatal=1 --do_verify=1 --ioengine=libaio --iodepth=8
             find many | wc -l
             rounds=$((rounds + 1)); echo $rounds >$job/rounds.new; mv $job/rounds.new $job/rounds
         done
         test $(find many -name 'file*' | wc -l) = 300
         kill -0 $waiting
         touch $job/waits
         wait $waiting
         test \"$(cat <&8)\" = unlinked
         exec 8<&- 9>&-
         rm -r many verify* mine";
    let theirs = File::open(shared.path().join("locked"))?;
    flock(&theirs, FlockOperation::LockExclusive)?;
    let mut guest = fs_guest::boot(&lab, Kernel::Debian, &server, body)?;
    guest.wait_for("ready", LIMIT)?;
    let control = server.socket().with_file_name("control.sock");
    let rounds = |guest: &tests::uml::Guest| -> u64 {
        fs::read_to_string(guest.shared().join("rounds")).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    };
    for _ in 0..3 {
        // In the middle of a round, wherever that is.
        thread::sleep(Duration::from_millis(700));
        let before = rounds(&guest);
        let output = upgrade(&control, None)?;
        ensure!(output.status.success(), "{output:?}: {}", server.output());
        while rounds(&guest) <= before {
            guest.said("ready").context("the load ended")?;
            thread::sleep(Duration::from_millis(20));
        }
        let mine = File::open(shared.path().join("mine"))?;
        ensure!(flock(&mine, FlockOperation::NonBlockingLockShared).is_err(), "the guest's lock is lost");
    }
    guest.tell("over")?;
    guest.wait_for("waits", LIMIT)?;
    flock(&theirs, FlockOperation::Unlock)?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    server.check_alive()?;
    server.stop()
}
