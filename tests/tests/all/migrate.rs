//! Guests of QEMU that are moved while they use our disks: into a file and out of it, and from one QEMU to another.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tests::image;
use tests::lab::Lab;
use tests::long;
use tests::qemu::{BootFrom, Guest};
use tests::qemu_img;
use tests::server::{Disk, Server};
use tests::vringd;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(240);

/// Reads known contents into the page cache, where the device puts them, and looks at them there: another one each time, since a
/// guest's kernel has the same pages again for the same blocks. Writes blocks that it looks at eight rounds later. A page that was
/// written and not moved has what was there before. It goes on for ever, however long a move takes, and ends where something is wrong.
const LOAD: &str = "dd if=/dev/urandom of=/dev/vda bs=1M count=40
     dd if=/dev/urandom of=/chunk bs=32k count=1
     sync
     part() { dd if=/dev/vda bs=1M count=20 skip=$((20 * ($1 % 2))); }
     block() { (echo $1; cat /chunk) | head -c 32768; }
     part 0 | sha256sum >/sum.0
     part 1 | sha256sum >/sum.1
     round=0
     while true; do
         echo 3 >/proc/sys/vm/drop_caches
         part $round >/dev/null
         test \"$(part $round | sha256sum)\" = \"$(cat /sum.$((round % 2)))\"
         block $round | dd of=/dev/vda bs=32k seek=$((1600 + round % 64)) conv=fsync
         if [ $round -ge 8 ]; then
             block $((round - 8)) >/expected
             dd if=/dev/vda bs=32k skip=$((1600 + (round - 8) % 64)) count=1 | cmp - /expected
         fi
         round=$((round + 1))
         echo \"round $round ends\"
     done";

/// Rounds behind which all is looked at that was written before a move, and rounds that end while it is moved.
const ROUNDS: usize = 10;
const ROUNDS_OF_A_MOVE: usize = 3;

/// The image of a test, and where its guest is kept.
struct Place(TempDir);

impl Place {
    fn new() -> Result<Self> {
        let directory = TempDir::with_prefix("vringd-test-")?;
        image::sparse(directory.path(), "disk.raw", 64 * MIB)?;
        Ok(Self(directory))
    }

    fn image(&self) -> PathBuf {
        self.0.path().join("disk.raw")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn file(path: &Path) -> String {
    format!("file:{}", path.display())
}

/// Rounds that ended by a console, or a part of it.
fn rounds(console: &str) -> usize {
    console.matches(" ends").count()
}

/// The load goes on for some rounds more, by this console.
fn goes_on(guest: &mut Guest) -> Result<()> {
    guest.wait_until(LIMIT, |console| rounds(console) >= ROUNDS).context("the load goes on in the guest")
}

/// Moves it while its load goes on.
fn migrate(guest: &mut Guest, uri: &str) -> Result<()> {
    guest.migrate(uri, LIMIT, |since| rounds(since) >= ROUNDS_OF_A_MOVE)
}

/// As `virsh save` and `virsh restore` do it: once with another daemon, which opens the image when the one that wrote has ended, and
/// once with the same.
#[test]
fn a_guest_is_saved_under_load_and_goes_on_with_another_daemon() -> Result<()> {
    let lab = Lab::take_turn();
    let place = Place::new()?;
    let mut server = Server::start(&lab, &Disk::new(place.image()))?;
    let mut guest = Guest::boot(&lab, BootFrom::HostToMove, &[server.device()], 1, LOAD)?;
    for (name, another) in [("first", true), ("second", false)] {
        goes_on(&mut guest)?;
        migrate(&mut guest, &file(&place.path(name)))?;
        guest.kill();
        server.check_alive()?;
        if another {
            server.stop()?;
            server = Server::start(&lab, &Disk::new(place.image()))?;
        }
        guest = Guest::incoming(&lab, &[server.device()], 1, LOAD, &file(&place.path(name)))?;
    }
    goes_on(&mut guest)?;
    guest.kill();
    server.check_alive()
}

/// The image is one daemon's while its guest runs, and nobody's else.
fn is_only_of(here: &Server, there: &Server) -> Result<()> {
    let held = (here.holds()?, there.holds()?);
    ensure!(held == (true, false), "who has the image: {held:?}");
    Ok(())
}

/// From one QEMU to another, each with a daemon of its own, which have one image one after the other.
fn moves(place: &Place, disk: &Disk) -> Result<()> {
    let lab = Lab::take_turn();
    let here = Server::start(&lab, disk)?;
    let mut there = Server::start(&lab, disk)?;
    ensure!(!here.holds()? && !there.holds()?, "no guest runs");
    let mut guest = Guest::boot(&lab, BootFrom::HostToMove, &[here.device()], 1, LOAD)?;
    goes_on(&mut guest)?;
    let incoming = |server: &Server, name: &str| {
        let uri = format!("unix:{}", place.path(name).display());
        Guest::incoming(&lab, &[server.device()], 1, LOAD, &uri).map(|guest| (guest, uri))
    };
    for _ in 0..long::more() {
        is_only_of(&here, &there)?;
        let (left, uri) = incoming(&there, "left")?;
        guest.migrate_and_cancel(&uri, LIMIT, |since| rounds(since) >= 1)?;
        left.kill();
        is_only_of(&here, &there)?;
        // The one that is to take it over dies, and so does its daemon.
        let (lost, uri) = incoming(&there, "lost")?;
        guest.migrate_and_lose(lost, &uri, LIMIT, |since| rounds(since) >= 1)?;
        drop(there);
        there = Server::start(&lab, disk)?;
        is_only_of(&here, &there)?;
        let (mut moved, uri) = incoming(&there, "moved")?;
        migrate(&mut guest, &uri)?;
        goes_on(&mut moved)?;
        is_only_of(&there, &here)?;
        guest.kill();
        is_only_of(&there, &here)?;
        // And back, to the daemon that had it first.
        let (back, uri) = incoming(&here, "back")?;
        migrate(&mut moved, &uri)?;
        moved.kill();
        guest = back;
        goes_on(&mut guest)?;
    }
    is_only_of(&here, &there)?;
    guest.kill();
    for server in [here, there] {
        ensure!(server.stop()?.success(), "a daemon does not end well");
    }
    Ok(())
}

#[test]
fn a_guest_moves_to_another_qemu_while_it_runs() -> Result<()> {
    let place = Place::new()?;
    moves(&place, &Disk { options: &["--migratable"], ..Disk::new(place.image()) })
}

/// Whose tables are read by each daemon as the other one has left them.
#[test]
fn a_guest_on_a_thin_disk_moves_to_another_qemu() -> Result<()> {
    let place = Place::new()?;
    let image = place.path("disk.qcow2");
    let path = image.to_str().context("a path in words")?;
    qemu_img::img(&Lab::take_turn(), &["create", "-f", "qcow2", path, "64M"])?.expect_success()?;
    moves(&place, &Disk { options: &["--migratable", "--storage", "qcow2"], ..Disk::new(&image) })?;
    qemu_img::img(&Lab::take_turn(), &["check", path])?.expect_success()?;
    Ok(())
}

/// Whose log is written back before the other daemon opens it.
#[test]
fn a_guest_on_a_volume_moves_to_another_qemu() -> Result<()> {
    let place = Place::new()?;
    let volume = place.path("disk.vol");
    let mut create = Command::new(vringd::program()?);
    let made = create.args(["volume", "create", "--size", "64M"]).arg(&volume).output()?;
    ensure!(made.status.success(), "{made:?}");
    moves(&place, &Disk { options: &["--migratable", "--storage", "volume"], ..Disk::new(&volume) })
}
