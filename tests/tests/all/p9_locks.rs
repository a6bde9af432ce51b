//! Locks by 9p: between two mounts of one directory, with the host, under signals, and after a guest was killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use tempfile::TempDir;
use tests::device::Device;
use tests::directory_server::{Directory, DirectoryServer};
use tests::lab::Lab;
use tests::p9_guest::{self, KERNEL};
use tests::uml;

const LIMIT: Duration = Duration::from_secs(120);

fn serve(lab: &Lab, shared: &Path) -> Result<DirectoryServer> {
    DirectoryServer::start(lab, &Directory::p9(shared))
}

/// A guest that mounts a directory twice, each mount by a server of its own: the second is `/mnt/other`.
fn two_mounts(lab: &Lab, body: &str) -> Result<String> {
    let options = p9_guest::options("cache=none");
    // Both have one tag; a device that is mounted is not looked at again.
    let body = format!(
        "mkdir /mnt/other
         mount -t 9p -o {options} share /mnt/other
         {body}
         umount /mnt/other"
    );
    p9_guest::script(lab, "cache=none", &body)
}

/// A POSIX lock of the host on all of a file, of one kind.
fn of_the_host(kind: i32) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Fails unless nobody else has a lock on `file`.
fn ensure_free(file: &File) -> Result<()> {
    let mut wanted = of_the_host(libc::F_WRLCK);
    fcntl(file, FcntlArg::F_GETLK(&mut wanted))?;
    ensure!(i32::from(wanted.l_type) == libc::F_UNLCK, "somebody has a lock: {wanted:?}");
    Ok(())
}

/// Both mounts add to one number under an exclusive lock, nothing of which is lost; and a lock of one is
/// found taken, seen and waited for through the other. By 9p flock(2) is a POSIX lock of the whole file.
#[test]
fn locks_keep_mounts_apart() -> Result<()> {
    const ROUNDS: u64 = 1000;
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    for kind in ["posix", "flock"] {
        fs::write(shared.path().join(kind), 0_u64.to_le_bytes())?;
    }
    fs::write(shared.path().join("file"), vec![0; 4096])?;
    let mut servers = [serve(&lab, shared.path())?, serve(&lab, shared.path())?];
    let body = format!(
        "for kind in posix flock; do
             $tool count $kind /mnt/other/$kind {ROUNDS} & other=$!
             $tool count $kind $kind {ROUNDS}
             wait $other
         done
         for kind in posix flock; do
             $tool hold $kind file exclusive $job/held-$kind $job/over-$kind & holder=$!
             until [ -e $job/held-$kind ]; do sleep 0.02; done
             status=0; $tool try $kind /mnt/other/file exclusive || status=$?; test $status = 3
             status=0; $tool try $kind /mnt/other/file shared || status=$?; test $status = 3
             case $kind in posix) seen='exclusive 100 50' ;; flock) seen='exclusive 0 0' ;; esac
             test \"$($tool holder /mnt/other/file)\" = \"$seen\"
             $tool wait $kind /mnt/other/file exclusive & waiting=$!
             sleep 0.5
             kill -0 $waiting
             ls -l /mnt/other/file
             touch $job/over-$kind
             wait $waiting
             wait $holder
             $tool try $kind file exclusive
             test \"$($tool holder /mnt/other/file)\" = none
         done"
    );
    let devices: Vec<Device> = servers.iter().map(DirectoryServer::device).collect();
    uml::run(&lab, KERNEL, &devices, &two_mounts(&lab, &body)?, LIMIT)?;
    for kind in ["posix", "flock"] {
        let number = fs::read(shared.path().join(kind))?;
        let number = u64::from_le_bytes(number.try_into().ok().context("the number is there")?);
        ensure!(number == 2 * ROUNDS, "{kind}: {} of {} additions were lost", 2 * ROUNDS - number, 2 * ROUNDS);
    }
    servers.iter_mut().try_for_each(DirectoryServer::check_alive)
}

/// Many waits for a lock that the host has, and reads, all ended by signals that come at any time: each becomes a
/// Tflush. Nothing stays behind, and no wait that was given up gets the lock afterwards.
#[test]
fn storm_of_signals_leaves_nothing() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    let path = shared.path().join("file");
    fs::write(&path, vec![0; 4096])?;
    fs::write(shared.path().join("large"), vec![1; 32 << 20])?;
    let file = File::options().read(true).write(true).open(&path)?;
    fcntl(&file, FcntlArg::F_SETLK(&of_the_host(libc::F_WRLCK)))?;
    let directory = Directory { execution: Some("pool=4"), ..Directory::p9(shared.path()) };
    let mut server = DirectoryServer::start(&lab, &directory)?;
    let body = "status=0; $tool try posix file exclusive || status=$?; test $status = 3
         round=0
         while [ $round -lt 12 ]; do
             all=
             for number in 1 2 3 4 5 6; do
                 $tool wait posix file exclusive 2>/dev/null & all=\"$all $!\"
                 $tool wait flock file shared 2>/dev/null & all=\"$all $!\"
                 dd if=large of=/dev/null bs=500k 2>/dev/null & all=\"$all $!\"
                 dd if=/dev/zero of=own$number bs=500k count=20 2>/dev/null & all=\"$all $!\"
             done
             sleep 0.$((round % 4))5
             kill -KILL $all 2>/dev/null || true
             round=$((round + 1))
         done
         touch $job/stormed
         until [ -e $job/unlocked ]; do sleep 0.02; done
         wait || true
         $tool wait posix file exclusive
         test \"$($tool holder file)\" = none
         cmp large large
         rm own*
         touch $job/settled
         until [ -e $job/over ]; do sleep 0.02; done";
    let mut guest = p9_guest::boot(&lab, KERNEL, &server, "cache=none", body)?;
    guest.wait_for("stormed", LIMIT)?;
    // Linux flushes no request that a process begins when it has been killed already: such a wait ends with the lock.
    fcntl(&file, FcntlArg::F_SETLK(&of_the_host(libc::F_UNLCK)))?;
    guest.tell("unlocked")?;
    guest.wait_for("settled", LIMIT)?;
    let export = server.export()?;
    let ring = export.rings.first().context("a ring")?;
    ensure!(ring.broken.is_none() && ring.figures.in_flight == 0, "{ring:?}");
    let flushes = ring.figures.requests.get("Tflush").copied().unwrap_or_default();
    ensure!(flushes > 0, "no Tflush came: {:?}", ring.figures.requests);
    println!("{flushes} requests were flushed");
    let directory = export.directory.as_ref().context("a directory")?;
    ensure!(directory.locks_waiting == 0, "somebody waits for a lock still: {directory:?}");
    // Nobody who has given up has it now.
    ensure_free(&file)?;
    guest.tell("over")?;
    let ended = guest.wait(LIMIT)?;
    ensure!(ended.status == 0, "the script failed:\n{}", ended.console);
    server.check_alive()
}

/// A guest that is killed while it holds locks, waits for others and moves data leaves nothing: another gets the locks,
/// and the server has no file open any more.
#[test]
fn killed_guest_leaves_nothing() -> Result<()> {
    let lab = Lab::take_turn();
    let shared = TempDir::new()?;
    fs::write(shared.path().join("file"), vec![0; 4096])?;
    fs::write(shared.path().join("taken"), vec![0; 4096])?;
    let taken = File::options().read(true).write(true).open(shared.path().join("taken"))?;
    fcntl(&taken, FcntlArg::F_SETLK(&of_the_host(libc::F_WRLCK)))?;
    let mut server = serve(&lab, shared.path())?;
    let body = "$tool hold posix file exclusive $job/held $job/never &
         until [ -e $job/held ]; do sleep 0.02; done
         for number in 1 2 3 4; do $tool wait posix taken exclusive & done
         sleep 0.3
         touch $job/busy
         while :; do dd if=/dev/zero of=filler bs=64k count=64 2>/dev/null; find . >/dev/null; rm filler; done";
    let mut guest = p9_guest::boot(&lab, KERNEL, &server, "cache=loose", body)?;
    guest.wait_for("busy", LIMIT)?;
    // Long enough for the load to be in full swing; no outcome depends on it.
    thread::sleep(Duration::from_millis(300));
    guest.kill();
    server.check_alive()?;
    let script = p9_guest::script(&lab, "cache=none", "$tool try posix file exclusive; rm -f filler; echo kept >kept")?;
    uml::run(&lab, KERNEL, &[server.device()], &script, LIMIT)?;
    ensure!(fs::read_to_string(shared.path().join("kept"))? == "kept\n");
    fcntl(&taken, FcntlArg::F_SETLK(&of_the_host(libc::F_UNLCK)))?;
    ensure_free(&taken)?;
    ensure_free(&File::options().read(true).write(true).open(shared.path().join("file"))?)?;
    // The guest has ended a moment ago, and nobody has waited for the server to notice.
    let mut open = open_below(server.id(), shared.path())?;
    for _ in 0..100 {
        if open.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(50));
        open = open_below(server.id(), shared.path())?;
    }
    ensure!(open.is_empty(), "these are open still: {open:?}");
    server.stop()
}

/// What a process, or one that it has started, has open below `directory`, but for the directory itself.
fn open_below(process: u32, directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        // A descriptor may be closed meanwhile.
        let Ok(target) = fs::read_link(entry?.path()) else { continue };
        if target.starts_with(directory) && target != directory {
            found.push(target);
        }
    }
    Ok(found)
}
