//! Guests of QEMU that are moved while they use our disks: into a file and out of it, and from one QEMU to another.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use guest::ceph::{Cluster, Store};
use tempfile::TempDir;
use tests::device::Device;
use tests::image;
use tests::lab::{Lab, Turn};
use tests::long;
use tests::moving::{Load, Sides, file};
use tests::qemu_img;
use tests::server::{Disk, Server};
use tests::vringd;

const MIB: u64 = 1 << 20;

/// Reads known contents into the page cache, where the device puts them, and looks at them there: another one each time, since a
/// guest's kernel has the same pages again for the same blocks. Writes blocks that it looks at eight rounds later. A page that was
/// written and not moved has what was there before. It goes on for ever, however long a move takes, and ends where something is wrong.
const SCRIPT: &str = "dd if=/dev/urandom of=/dev/vda bs=1M count=16
     dd if=/dev/urandom of=/chunk bs=32k count=1
     sync
     part() { dd if=/dev/vda bs=1M count=8 skip=$((8 * ($1 % 2))); }
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

const LOAD: Load<'_> = Load { script: SCRIPT, rounds: 10, rounds_of_a_move: 3 };

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

/// As `virsh save` and `virsh restore` do it: once with another daemon, which opens the image when the one that wrote has ended, and
/// once with the same.
#[test]
fn a_guest_is_saved_under_load_and_goes_on_with_another_daemon() -> Result<()> {
    let lab = Lab::take_turn();
    let place = Place::new()?;
    let mut server = Server::start(&lab, &Disk::new(place.image()))?;
    let mut guest = LOAD.boot(&lab, server.device())?;
    for (name, another) in [("first", true), ("second", false)] {
        LOAD.migrate(&mut guest, &file(&place.path(name)))?;
        guest.kill();
        server.check_alive()?;
        if another {
            server.stop()?;
            server = Server::start(&lab, &Disk::new(place.image()))?;
        }
        guest = LOAD.incoming(&lab, server.device(), &file(&place.path(name)))?;
        LOAD.goes_on(&mut guest)?;
    }
    guest.kill();
    server.check_alive()
}

/// As one leaves qemu-storage-daemon without a restart. Its guest was told that there is no write cache, and flushes nothing.
#[test]
fn a_guest_of_qemu_storage_daemon_is_saved_and_goes_on_here() -> Result<()> {
    let lab = Lab::take_turn();
    let place = Place::new()?;
    let disk = Disk { options: &["--write-cache", "guest"], ..Disk::new(place.image()) };
    let theirs = Server::start_peer(&lab, &disk)?;
    let mut guest = LOAD.boot(&lab, theirs.device())?;
    LOAD.migrate(&mut guest, &file(&place.path("saved")))?;
    guest.kill();
    theirs.stop()?;
    let ours = Server::start(&lab, &disk)?;
    let mut guest = LOAD.incoming(&lab, ours.device(), &file(&place.path("saved")))?;
    LOAD.goes_on(&mut guest)?;
    ensure!(ours.output().contains("every write is made durable"), "{}", ours.output());
    guest.kill();
    ensure!(ours.stop()?.success(), "it does not end well");
    Ok(())
}

/// While its guest writes, and QEMU looks for a server again.
#[test]
fn a_guest_of_qemu_storage_daemon_goes_on_here_when_that_ends() -> Result<()> {
    let lab = Lab::take_turn();
    let place = Place::new()?;
    let disk = Disk::new(place.image());
    let device = Device::ReconnectingDisk { socket: place.path("disk.sock"), queues: 1, again_after_ms: 100 };
    for _ in 0..long::more() {
        let theirs = Server::start_peer(&lab, &disk)?;
        symlink(theirs.socket(), place.path("disk.sock"))?;
        let mut guest = LOAD.boot(&lab, device.clone())?;
        theirs.stop()?;
        fs::remove_file(place.path("disk.sock"))?;
        let ours = Server::start(&lab, &disk)?;
        symlink(ours.socket(), place.path("disk.sock"))?;
        LOAD.goes_on(&mut guest)?;
        guest.kill();
        ensure!(ours.stop()?.success(), "it does not end well");
        fs::remove_file(place.path("disk.sock"))?;
    }
    Ok(())
}

/// The image is one daemon's while its guest runs, and nobody's else.
fn is_only_of(here: &Server, there: &Server) -> Result<()> {
    let held = (here.holds()?, there.holds()?);
    ensure!(held == (true, false), "who has the image: {held:?}");
    Ok(())
}

/// From one QEMU to another, each with a daemon of its own, which have one image one after the other.
fn moves(place: &Place, lab: &Turn, disk: &Disk) -> Result<()> {
    let sides = Sides {
        place: place.0.path(),
        start: &|| {
            let server = Server::start(lab, disk)?;
            ensure!(!server.holds()?, "no guest runs on it");
            Ok(server)
        },
        device: Server::device,
        check: &is_only_of,
    };
    let (here, there, guest) = sides.there_and_back(lab, LOAD)?;
    guest.kill();
    for server in [here, there] {
        ensure!(!server.output().contains("every write is made durable"), "the guest has flushed all the time");
        ensure!(server.stop()?.success(), "a daemon does not end well");
    }
    Ok(())
}

#[test]
fn a_guest_moves_to_another_qemu_while_it_runs() -> Result<()> {
    let place = Place::new()?;
    moves(&place, &Lab::take_turn(), &Disk { options: &["--migratable"], ..Disk::new(place.image()) })
}

/// Whose tables are read by each daemon as the other one has left them.
#[test]
fn a_guest_on_a_thin_disk_moves_to_another_qemu() -> Result<()> {
    let place = Place::new()?;
    let image = place.path("disk.qcow2");
    let path = image.to_str().context("a path in words")?;
    qemu_img::img(&Lab::take_turn(), &["create", "-f", "qcow2", path, "64M"])?.expect_success()?;
    moves(&place, &Lab::take_turn(), &Disk { options: &["--migratable", "--storage", "qcow2"], ..Disk::new(&image) })?;
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
    moves(&place, &Lab::take_turn(), &Disk { options: &["--migratable", "--storage", "volume"], ..Disk::new(&volume) })
}

/// Whose lock one daemon gives up, and the other one takes.
#[test]
fn a_guest_on_an_image_of_a_cluster_moves_to_another_qemu() -> Result<()> {
    let (place, lab) = (Place::new()?, Lab::take_turn());
    let ceph = place.path("ceph");
    fs::create_dir(&ceph)?;
    let mut cluster = Cluster::start(&lab, &ceph, Store::Memory)?;
    cluster.run("rbd create --size 64M disk")?;
    let conf: &str = cluster.conf().display().to_string().leak();
    let options = vec!["--migratable", "--rbd-conf", conf].leak();
    moves(&place, &lab, &Disk { options, ..Disk::new("rbd:rbd/disk") })?;
    ensure!(!cluster.run("rbd image-meta ls disk")?.contains("vringd.owner"), "both have given it up");
    Ok(())
}
