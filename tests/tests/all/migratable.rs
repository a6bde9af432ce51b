//! One image, two daemons: it is the one's whose frontend has rings that run, and the other one takes it over when they have stopped.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control::model::Disk;
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::daemon::{DIRECTORY, Daemon, directory};
use tests::driver::{Ring, readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::vringd;
use vhost::vhost_user::VhostUserFrontend as _;

const RING_SIZE: u16 = 64;
const BLOCK: u32 = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

/// The directory of an image that two daemons have.
fn place(format: &str) -> Result<TempDir> {
    let place = directory()?;
    let image = place.path().join("disk.img");
    let made = match format {
        "file" => return fs::File::create(image)?.set_len(16 << 20).map(|()| place).map_err(Into::into),
        "qcow2" => "image",
        other => other,
    };
    let mut create = Command::new(vringd::program()?);
    let made = create.args([made, "create", "--size", "16M"]).arg(image).output()?;
    ensure!(made.status.success(), "{made:?}");
    Ok(place)
}

fn serve(place: &Path, format: &str) -> Result<Daemon> {
    let image = place.join("disk.img");
    Daemon::serve(&format!(
        "workers = 2\n[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\nqueues = 2\n\
         storage = {{ kind = '{format}', path = '{}', migratable = true }}\n",
        image.display()
    ))
}

fn holds(daemon: &Daemon) -> Result<bool> {
    let [export, disk] = [
        daemon.export("disk")?.storage.and_then(|storage| storage.held),
        daemon.client().get::<Disk>("/v1/disks/disk")?.storage.held,
    ];
    ensure!(export == disk, "{export:?} and {disk:?}");
    export.context("it is held or not")
}

fn write(frontend: &Frontend, ring: &mut Ring, block: u64, value: u8) -> Result<()> {
    frontend.memory().write(DATA, &[value; BLOCK as usize]);
    let (answer, _) = ring.run(kind::OUT, block * 8, &[readable(DATA, BLOCK)]);
    ensure!(answer == status::OK, "the write of block {block} fails: {answer}");
    Ok(())
}

fn read(frontend: &Frontend, ring: &mut Ring, block: u64) -> Result<u8> {
    let (answer, _) = ring.run(kind::IN, block * 8, &[writable(DATA, BLOCK)]);
    ensure!(answer == status::OK, "the read of block {block} fails: {answer}");
    let mut bytes = [0; BLOCK as usize];
    frontend.memory().read_into(DATA, &mut bytes);
    ensure!(bytes.iter().all(|byte| *byte == bytes[0]), "block {block} is in parts");
    Ok(bytes[0])
}

/// Soon nobody has the image open: then it can have a write lease (fcntl(2)). The kernel takes its time with files of an io_uring.
fn becomes_nobodys(place: &TempDir) -> Result<()> {
    let image = fs::File::options().write(true).open(place.path().join("disk.img"))?;
    let end = Instant::now() + PATIENCE;
    // SAFETY: the descriptor is open, and goes with its lease.
    while unsafe { libc::fcntl(image.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } != 0 {
        ensure!(Instant::now() < end, "somebody has it open");
        sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Reset as QEMU resets a device that can be: no ring is asked for its base.
#[test]
fn a_device_that_is_reset_gives_its_image_up() -> Result<()> {
    let place = place("file")?;
    let daemon = serve(place.path(), "file")?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    frontend.ring(0, RING_SIZE)?;
    ensure!(holds(&daemon)?, "a ring runs");
    frontend.link().reset_device()?;
    frontend.features();
    frontend.config(0, 8)?;
    ensure!(!holds(&daemon)?, "no ring runs");
    daemon.stop()
}

#[test]
fn an_image_is_the_ones_whose_rings_run() -> Result<()> {
    for format in ["file", "qcow2", "volume"] {
        let place = place(format)?;
        let sides = [serve(place.path(), format)?, serve(place.path(), format)?];
        for round in 0..6_u8 {
            let (here, there) = (&sides[usize::from(round % 2)], &sides[usize::from(round % 2 == 0)]);
            let mut frontend = Frontend::connect(&here.socket("disk"), 0)?;
            ensure!(!holds(here)? && !holds(there)?, "{format}, round {round}: no ring runs");
            let mut rings = [frontend.ring(0, RING_SIZE)?, frontend.ring(1, RING_SIZE)?];
            ensure!(holds(here)? && !holds(there)?, "{format}, round {round}: a ring runs");
            for before in 0..round {
                let seen = read(&frontend, &mut rings[0], u64::from(before) * 100)?;
                ensure!(seen == before + 1, "{format}, round {round}: of round {before} there is {seen}");
            }
            write(&frontend, &mut rings[1], u64::from(round) * 100, round + 1)?;
            // The program changes, and the image is whose it was.
            if round >= 2 {
                here.upgrade()?;
                there.upgrade()?;
                ensure!(holds(here)? && !holds(there)?, "{format}, round {round}: behind an upgrade");
                let seen = read(&frontend, &mut rings[0], u64::from(round) * 100)?;
                ensure!(seen == round + 1, "{format}, round {round}: behind an upgrade there is {seen}");
            }
            // The last rounds end as a frontend that dies.
            if round < 4 {
                frontend.stop(&rings[0])?;
                ensure!(holds(here)?, "{format}, round {round}: one ring runs");
                frontend.stop(&rings[1])?;
                ensure!(!holds(here)?, "{format}, round {round}: given up with the answer");
                becomes_nobodys(&place)?;
            }
            drop(frontend);
            here.wait_disconnected("disk")?;
        }
        for side in sides {
            side.stop()?;
        }
    }
    Ok(())
}

/// And who may not have it says so, loses nothing by that, and has it when the other one is killed.
#[test]
fn an_image_that_is_another_ones_is_not_touched() -> Result<()> {
    for format in ["file", "qcow2", "volume"] {
        let place = place(format)?;
        let [here, there] = [serve(place.path(), format)?, serve(place.path(), format)?];
        let mut first = Frontend::connect(&here.socket("disk"), 0)?;
        let mut ring = first.ring(0, RING_SIZE)?;
        write(&first, &mut ring, 5, 55)?;

        let mut second = Frontend::connect(&there.socket("disk"), 0)?;
        // It is hung up on, so that it connects again, and comes in when the image is given up.
        ensure!(second.ring(0, RING_SIZE).is_err(), "it has a ring");
        there.wait_disconnected("disk")?;
        let why = there.export("disk")?.last_error.unwrap_or_default();
        ensure!(why.contains("disk.img: is still in use after 5 s") && why.contains("when its guest stops"), "{why}");
        ensure!(!holds(&there)? && holds(&here)?, "it is the first one's");
        write(&first, &mut ring, 6, 66)?;

        // Killed as it is dropped, with all that its guest was answered.
        drop(here);
        let mut second = Frontend::connect(&there.socket("disk"), 0)?;
        let mut ring = second.ring(0, RING_SIZE)?;
        let seen = [5, 6, 7].map(|block| read(&second, &mut ring, block));
        ensure!(matches!(seen, [Ok(55), Ok(66), Ok(0)]), "{seen:?}");
        there.stop()?;
    }
    Ok(())
}

/// The memory of a volume is made when that is taken, which a sandbox has to let through: in /run, where that is on tmpfs.
#[test]
fn a_confined_daemon_makes_the_memory_of_a_volume() -> Result<()> {
    makes_memory("", "/run/vringd")
}

/// That directory is root's, and who serves by then is another.
#[test]
fn a_user_makes_the_memory_of_a_volume_elsewhere() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    makes_memory("user = 'nobody'\n", "/dev/shm")
}

fn makes_memory(sandbox: &str, at: &str) -> Result<()> {
    let place = place("volume")?;
    if !sandbox.is_empty() {
        for path in [place.path(), &place.path().join("disk.img")] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534))?;
        }
    }
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--mount", "sh", "-c", "mount -t tmpfs tmpfs /run && exec \"$@\"", "sh"]).arg(vringd::program()?);
    let image = place.path().join("disk.img");
    let daemon = Daemon::serve_by(
        command,
        directory()?,
        &format!(
            "[sandbox]\n{sandbox}landlock = 'on'\nallow = ['{DIRECTORY}']\n[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\n\
             storage = {{ kind = 'volume', path = '{}', migratable = true }}\n",
            image.display()
        ),
    )?;
    ensure!(daemon.output().contains(at), "the memory is elsewhere: {}", daemon.output());
    for _ in 0..2 {
        let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
        let mut ring = frontend.ring(0, RING_SIZE)?;
        write(&frontend, &mut ring, 1, 1)?;
        frontend.stop(&ring)?;
        ensure!(!holds(&daemon)?, "it is given up");
        drop(frontend);
        daemon.wait_disconnected("disk")?;
    }
    daemon.stop()
}

/// An upgrade is refused, and a removal does not wait for the image with it.
#[test]
fn who_waits_for_an_image_holds_nobody_up() -> Result<()> {
    let place = place("file")?;
    let [here, there] = [serve(place.path(), "file")?, serve(place.path(), "file")?];
    let mut first = Frontend::connect(&here.socket("disk"), 0)?;
    let mut ring = first.ring(0, RING_SIZE)?;
    let waits = || -> Result<()> {
        let mut second = Frontend::connect(&there.socket("disk"), 0)?;
        ensure!(second.ring(0, RING_SIZE).is_err(), "it has a ring");
        Ok(())
    };
    let is_connected = || -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while there.export("disk")?.frontend.is_none() {
            ensure!(Instant::now() < end, "nobody connects");
            sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(waits);
        is_connected()?;
        let refused = there.upgrade().map(drop).unwrap_err().to_string();
        ensure!(refused.contains("its thread is held up"), "{refused}");
        waiting.join().expect("no panic")?;
        let waiting = scope.spawn(waits);
        is_connected()?;
        there.remove("disk", true)?;
        waiting.join().expect("no panic")?;
        ensure!(there.output().contains("was waited for until its export ended"), "{}", there.output());
        Ok::<_, anyhow::Error>(())
    })?;
    write(&first, &mut ring, 1, 1)?;
    here.stop()?;
    there.stop()
}

#[test]
fn what_needs_an_image_that_stays_is_refused() -> Result<()> {
    let place = place("qcow2")?;
    let daemon = serve(place.path(), "qcow2")?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let to = place.path().join("to");
    for held in [false, true] {
        if held {
            frontend.ring(0, RING_SIZE)?;
        }
        let backup = json!({ "kind": "backup", "disks": [{ "disk": "disk", "target": to }] });
        let bitmap = json!({ "name": "since" });
        let snapshot = json!({ "disks": [{ "disk": "disk", "to": to }] });
        for (target, asked) in [("/v1/jobs", backup), ("/v1/disks/disk/bitmaps", bitmap), ("/v1/snapshots", snapshot)] {
            let refused = daemon.client().send::<Value>(Method::POST, target, &asked).unwrap_err().to_string();
            ensure!(refused.contains("is migratable"), "{target}: {refused}");
        }
        let larger = json!({ "capacity_bytes": 32 << 20 });
        let resized = daemon.client().send::<Value>(Method::PUT, "/v1/exports/disk/capacity", &larger);
        ensure!(resized.is_ok() == held, "{resized:?}");
        ensure!(!to.exists(), "nothing is made");
    }
    let storage = json!({ "kind": "file", "path": place.path().join("raw"), "migratable": true });
    fs::File::create(place.path().join("raw"))?.set_len(1 << 20)?;
    let nbd =
        json!({ "name": "nbd", "listen": format!("unix:{}", place.path().join("nbd").display()), "storage": storage });
    let refused = daemon.client().send::<Value>(Method::POST, "/v1/exports", &nbd).unwrap_err().to_string();
    ensure!(refused.contains("listen") && refused.contains("migratable"), "{refused}");
    daemon.stop()
}
