//! Guests of QEMU that are moved while they use our directories: what they know, what they have open and what they have locked goes
//! along.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;
use tests::directory_server::{Directory, DirectoryServer};
use tests::lab::Lab;
use tests::long;
use tests::moving::{LIMIT, Load, Sides, file, unix};
use tests::vringd;

/// Directories of the tree, and files in each.
const TREE: usize = 100;

/// Bytes whose pages a device writes again and again.
const KNOWN_BYTES: usize = 4 << 20;

/// Knows a tree of many files, and has a log open to which it appends, a file without a name, and two locks. Each round looks at all of
/// it, and at pages that the device wrote: one that was not moved has what was there before. A program that is executed from the
/// directory would need pages that are zeroes behind its end, which kernels of [`BootFrom::HostToMove`] do not make.
const SCRIPT: &str = "mkdir -p /mnt /tmp
     mount -t tmpfs tmpfs /tmp
     mount -t virtiofs share /mnt
     cp -r /mnt/program /tmp
     cd /mnt
     test $(find tree -type f | wc -l) = 10000
     sum=$(sha256sum <known)
     exec 3>>log
     WITHOUT_A_NAME
     LOCK
     round=0
     while true; do
         echo 1 >/proc/sys/vm/drop_caches
         test \"$(sha256sum <known)\" = \"$sum\"
         echo \"line $round\" >&3
         test \"$(tail -n 1 log)\" = \"line $round\"
         LOOK_AT_IT
         LOOK_AT_LOCKS
         mkdir -p dir
         echo $round >dir/new
         mv dir/new dir/moved.$((round % 8))
         test $(cat dir/moved.$((round % 8))) = $round
         number=$((round * 37 % 100))
         test \"$(cat tree/$number/$((99 - number)))\" = \"$number $((99 - number))\"
         round=$((round + 1))
         echo \"round $round ends\"
     done";

/// A file that is open and has no name, by what the script calls it.
const WITHOUT_A_NAME: &str = "echo first >unlinked; exec 4<unlinked 5>>unlinked; rm unlinked";
const LOOK_AT_IT: &str = "echo \"more $round\" >&5
    test \"$(head -n 1 /proc/self/fd/4)\" = first
    test \"$(tail -n 1 /proc/self/fd/4)\" = \"more $round\"";

/// A lock of each kind.
const LOCK: &str = "hold() { /tmp/program/loader --library-path /tmp/program /tmp/program/fs_tool hold $1 locked.$1 exclusive held.$1 over; }
    hold flock & flock=$!
    hold posix & posix=$!
    until [ -e held.flock -a -e held.posix ]; do sleep 0.05; done";
const LOOK_AT_LOCKS: &str = "kill -0 $flock $posix";

/// What a guest has beside open files with names.
#[derive(Clone, Copy)]
struct Has {
    locks: bool,
    without_a_name: bool,
}

fn script(has: Has) -> String {
    let (make, look) = if has.without_a_name { (WITHOUT_A_NAME, LOOK_AT_IT) } else { ("true", "true") };
    let (lock, look_at_locks) = if has.locks { (LOCK, LOOK_AT_LOCKS) } else { ("true", "true") };
    let script = SCRIPT.replace("WITHOUT_A_NAME", make).replace("LOOK_AT_IT", look);
    script.replace("LOOK_AT_LOCKS", look_at_locks).replace("LOCK", lock)
}

fn shared() -> Result<TempDir> {
    let shared = TempDir::with_prefix("vringd-test-")?;
    let path = shared.path();
    for dir in 0..TREE {
        let below = path.join(format!("tree/{dir}"));
        fs::create_dir_all(&below)?;
        (0..TREE).try_for_each(|file| fs::write(below.join(file.to_string()), format!("{dir} {file}\n")))?;
    }
    let known: Vec<u8> =
        (0..KNOWN_BYTES / 4).flat_map(|at| (at as u32).wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
    fs::write(path.join("known"), known)?;
    fs::write(path.join("locked.flock"), vec![0; 4096])?;
    fs::write(path.join("locked.posix"), vec![0; 4096])?;
    copy_program(&vringd::beside_the_test("fs_tool")?, &path.join("program"))?;
    Ok(shared)
}

/// A program and all that it is linked with, for a guest that has no libraries.
fn copy_program(program: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    fs::copy(program, to.join("fs_tool"))?;
    let linked = Command::new("ldd").arg(program).output()?;
    for line in String::from_utf8(linked.stdout)?.lines() {
        let Some(path) = line.split_whitespace().find(|word| word.starts_with('/')).map(Path::new) else { continue };
        let name = path.file_name().context("a library has a name")?;
        // It is named by its path, and not looked for.
        let is_loader = !line.contains("=>");
        fs::copy(path, if is_loader { to.join("loader") } else { to.join(name) })?;
    }
    Ok(())
}

/// Confined, with the system calls that a sandbox leaves.
fn serve(lab: &Lab, shared: &Path, options: &[&str]) -> Result<DirectoryServer> {
    let mut directory = Directory { sandbox: "namespace", ..Directory::new(shared) };
    directory.options.extend(options.iter().map(|&option| option.to_owned()));
    DirectoryServer::start(lab, &directory)
}

fn load(script: &str) -> Load<'_> {
    Load { script, rounds: 5, rounds_of_a_move: 2 }
}

/// The guest's locks keep others out, wherever it runs.
fn are_locked(shared: &Path) -> Result<()> {
    let file = File::options().read(true).write(true).open(shared.join("locked.flock"))?;
    ensure!(flock(&file, FlockOperation::NonBlockingLockShared).is_err(), "the guest's flock does not hold");
    let file = File::options().read(true).write(true).open(shared.join("locked.posix"))?;
    // SAFETY: a structure of integers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    let taken = fcntl(&file, FcntlArg::F_OFD_SETLK(&lock));
    ensure!(taken.is_err(), "the guest's POSIX lock does not hold");
    Ok(())
}

/// There and back, cancelled, and with a target that dies.
fn moves(options: &[&str], without_a_name: bool) -> Result<()> {
    let lab = Lab::take_turn();
    let (shared, places) = (shared()?, TempDir::with_prefix("vringd-test-")?);
    let shared = shared.path();
    let sides = Sides {
        place: places.path(),
        start: &|| serve(&lab, shared, options),
        device: DirectoryServer::device,
        check: &|_, _| are_locked(shared),
    };
    let script = script(Has { locks: true, without_a_name });
    let (here, there, guest) = sides.there_and_back(&lab, load(&script))?;
    let known = here.export()?.directory.context("a directory")?.nodes;
    ensure!(known >= 10_000, "it knows {known:?} files");
    guest.kill();
    here.stop()?;
    there.stop()
}

#[test]
fn a_guest_moves_with_directories_by_their_paths() -> Result<()> {
    moves(&["--migration-verify-handles"], false)
}

#[test]
fn a_guest_moves_with_a_file_that_has_no_name() -> Result<()> {
    moves(&["--migration-mode=file-handles"], true)
}

/// What is not found there ends the migration, and the guest goes on where it was, with its locks.
#[test]
fn a_guest_whose_files_are_not_found_goes_on_where_it_was() -> Result<()> {
    let lab = Lab::take_turn();
    let (shared, places) = (shared()?, TempDir::with_prefix("vringd-test-")?);
    let script = script(Has { locks: true, without_a_name: true });
    let here = serve(&lab, shared.path(), &[])?;
    let there = serve(&lab, shared.path(), &[])?;
    let load = load(&script);
    let mut guest = load.boot(&lab, here.device())?;
    let uri = unix(&places.path().join("refused"));
    let refusing = load.incoming(&lab, there.device(), &uri)?;
    guest.migrate_and_be_refused(&uri, LIMIT)?;
    refusing.kill();
    let why = there.export()?.last_error.context("the reason is told")?;
    ensure!(why.contains("No such file or directory") && why.contains("guest-error"), "{why}");
    load.goes_on(&mut guest)?;
    are_locked(shared.path())?;
    guest.kill();
    here.stop()?;
    there.stop()
}

/// Into a file and out of it, by another daemon.
#[test]
fn a_guest_with_directories_is_saved_and_restored() -> Result<()> {
    let lab = Lab::take_turn();
    let (shared, places) = (shared()?, TempDir::with_prefix("vringd-test-")?);
    let script = script(Has { locks: true, without_a_name: false });
    let load = load(&script);
    let uri = file(&places.path().join("state"));
    let server = serve(&lab, shared.path(), &[])?;
    let mut guest = load.boot(&lab, server.device())?;
    load.migrate(&mut guest, &uri)?;
    guest.kill();
    server.stop()?;
    let server = serve(&lab, shared.path(), &[])?;
    let mut guest = load.incoming(&lab, server.device(), &uri)?;
    load.goes_on(&mut guest)?;
    are_locked(shared.path())?;
    guest.kill();
    server.stop()
}

/// What virtiofsd can do, too: run with [`tests::directory_server::PEER_VARIABLE`] and [`long::MORE_VARIABLE`] it tells its downtimes.
#[test]
fn a_guest_with_a_tree_moves_from_server_to_server() -> Result<()> {
    let lab = Lab::take_turn();
    let (shared, places) = (shared()?, TempDir::with_prefix("vringd-test-")?);
    let script = script(Has { locks: false, without_a_name: false });
    let load = load(&script);
    let mut server = serve(&lab, shared.path(), &[])?;
    let mut guest = load.boot(&lab, server.device())?;
    for _ in 0..long::more() {
        let next = serve(&lab, shared.path(), &[])?;
        let uri = unix(&places.path().join("moved"));
        let mut moved = load.incoming(&lab, next.device(), &uri)?;
        load.migrate(&mut guest, &uri)?;
        load.goes_on(&mut moved)?;
        guest.kill();
        (guest, server) = (moved, next);
    }
    guest.kill();
    server.check_alive()
}
