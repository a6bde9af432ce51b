//! The life of a daemon and its exports: images that two want, frontends that die, descriptors that are inherited, the end.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use bench::frontend::{Load, Rw, Spec};
use control::model::SessionState;
use rustix::io::{FdFlags, fcntl_setfd};
use tests::daemon::{DIRECTORY, Daemon, directory, refusal};
use tests::driver::{Ring, readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::image;
use tests::process::Group;
use tests::vringd;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(30);

fn export(name: &str, image: &str, more: &str) -> String {
    format!(
        "[[export]]\nname = '{name}'\nsocket = '{DIRECTORY}/{name}.sock'\nqueues = 1\n\
         storage = {{ kind = 'file', path = '{image}'{more} }}\n"
    )
}

/// A daemon with one export named `disk` on an image of its own.
fn daemon() -> Result<Daemon> {
    let directory = directory()?;
    image::sparse(directory.path(), "disk.img", 16 * MIB)?;
    Daemon::serve_in(directory, &export("disk", &format!("{DIRECTORY}/disk.img"), ""))
}

/// Serves `image` a second time; how that ends, which it must.
fn second(image: &Path, more: &[&str]) -> Result<(Option<i32>, String)> {
    let directory = directory()?;
    let socket = directory.path().join("second.sock");
    let mut command = Command::new("timeout");
    command.arg("60").arg(vringd::program()?).args(["disk", "--log-level", "error", "--socket"]).arg(&socket);
    let output = command.args(more).arg(image).output()?;
    assert!(!socket.exists());
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

/// Serves `image` a second time and ends that daemon again, which must both succeed.
fn second_serves(image: &Path, more: &[&str]) -> Result<()> {
    let directory = directory()?;
    let mut command = Command::new(vringd::program()?);
    command.arg("disk").arg("--socket").arg(directory.path().join("second.sock")).args(more).arg(image);
    let mut second = Group::start(&command, &directory.path().join("log"))?;
    second.wait_until(LIMIT, |said| said.contains("listening"))?;
    second.stop("the daemon", LIMIT)
}

#[test]
fn two_writers_never_meet_on_one_image() -> Result<()> {
    let daemon = daemon()?;
    let image = daemon.path().join("disk.img");
    for more in [&[][..], &["--readonly"], &["--direct"]] {
        let (code, said) = second(&image, more)?;
        assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
        for word in ["disk.img", "in use", &format!("pid {}", daemon.id()), "--no-lock"] {
            assert!(said.contains(word), "`{word}` is not in: {said}");
        }
    }
    second_serves(&image, &["--no-lock"])?;
    daemon.stop()?;
    Ok(())
}

#[test]
fn readers_share_an_image() -> Result<()> {
    let directory = directory()?;
    let image = image::sparse(directory.path(), "disk.img", 16 * MIB)?;
    let daemon = Daemon::serve(&export("disk", &image.display().to_string(), ", read_only = true"))?;
    second_serves(&image, &["--readonly"])?;
    let (code, said) = second(&image, &[])?;
    assert_eq!(code, Some(2), "a writer does not join readers: {said}");
    daemon.stop()
}

/// An image is free as soon as its export is removed, although workers have had it open, and may be served elsewhere.
#[test]
fn a_removed_export_lets_go_of_its_image_at_once() -> Result<()> {
    let daemon = daemon()?;
    let image = daemon.path().join("disk.img");
    let load = Load::start(&daemon.socket("disk"), &Spec { ops: Some(1_000), ..Spec::default() })?;
    load.wait(|_| ());
    let (report, connection) = load.finish_connected()?;
    assert!(report.is_clean());

    assert_eq!(refusal(daemon.remove("disk", false)), ("connected".into(), 409));
    assert_eq!(daemon.export("disk")?.state, SessionState::Connected);
    daemon.remove("disk", true)?;
    assert_eq!(refusal(daemon.export("disk")), ("no-such-export".into(), 404));
    assert!(!daemon.socket("disk").exists());
    second_serves(&image, &[])?;
    let held = fs::read_dir(format!("/proc/{}/fd", daemon.id()))?
        .filter_map(|fd| fs::read_link(fd.ok()?.path()).ok())
        .filter(|target| *target == image)
        .count();
    assert_eq!(held, 0, "the daemon still has the image open");
    drop(connection);
    daemon.stop()
}

fn fill(frontend: &Frontend, ring: &mut Ring, first_sector: u64) -> Result<()> {
    for at in 0..64u64 {
        frontend.memory().write(DATA, &[at as u8 + 1; 4096]);
        assert_eq!(ring.run(kind::OUT, first_sector + at * 8, &[readable(DATA, 4096)]), (status::OK, 1));
    }
    assert_eq!(ring.run(kind::FLUSH, 0, &[]), (status::OK, 1));
    Ok(())
}

#[test]
fn a_frontend_that_is_killed_leaves_a_disk_for_the_next() -> Result<()> {
    const UPPER: u64 = 8 * MIB / 512;
    let mut daemon = daemon()?;
    let socket = daemon.socket("disk");
    let mut first = Frontend::connect(&socket, 0)?;
    let mut ring = first.ring(0, 64)?;
    fill(&first, &mut ring, UPPER)?;
    drop((first, ring));
    daemon.wait_disconnected("disk")?;

    for round in 0..3 {
        let mut command = Command::new(vringd::program()?);
        command.args(["bench", "disk", "--rw", "randrw", "--verify", "--size", "8M", "--time", "60"]);
        command.arg("--socket").arg(&socket);
        let mut victim = Group::start(&command, &daemon.path().join(format!("bench-{round}.log")))?;
        let before = daemon.ring("disk", 0)?.figures.requests();
        daemon.wait_ring("disk", 0, |ring| ring.figures.requests() > before + 2_000)?;
        assert!(victim.is_running()?, "{}", victim.output());
        victim.kill();

        daemon.wait_disconnected("disk")?;
        daemon.check_alive()?;
        let mut next = Frontend::connect(&socket, 0)?;
        let mut ring = next.ring(0, 64)?;
        for at in 0..64u64 {
            assert_eq!(ring.run(kind::IN, UPPER + at * 8, &[writable(DATA, 4096)]), (status::OK, 4097));
            assert_eq!(next.memory().read(DATA, 4096), [at as u8 + 1; 4096]);
        }
        drop((next, ring));
        daemon.wait_disconnected("disk")?;
        let verified =
            Spec { rw: Rw::RandRw, verify: true, size_bytes: Some(8 * MIB), ops: Some(2_000), ..Spec::default() };
        let load = Load::start(&socket, &verified)?;
        load.wait(|_| ());
        assert!(load.finish()?.is_clean());
        daemon.wait_disconnected("disk")?;
    }
    daemon.stop()
}

#[test]
fn an_inherited_socket_is_served_and_left_alone() -> Result<()> {
    let directory = directory()?;
    let image = image::sparse(directory.path(), "disk.img", 16 * MIB)?;
    let socket = directory.path().join("inherited.sock");
    let listener = UnixListener::bind(&socket)?;
    fcntl_setfd(&listener, FdFlags::empty())?;
    let mut command = Command::new(vringd::program()?);
    command.arg("disk").args(["--fd", &listener.as_raw_fd().to_string()]).arg(image);
    let mut daemon = Group::start(&command, &directory.path().join("log"))?;
    daemon.wait_until(LIMIT, |said| said.contains("listening"))?;
    drop(listener);
    for round in 1..=3 {
        let load = Load::start(&socket, &Spec { rw: Rw::RandRw, verify: true, ops: Some(500), ..Spec::default() })?;
        load.wait(|_| ());
        assert!(load.finish()?.is_clean());
        daemon.wait_until(LIMIT, |said| said.matches("session ended export").count() == round)?;
    }
    daemon.stop("the daemon", LIMIT)?;
    assert!(socket.exists(), "it belongs to whoever made it");
    Ok(())
}

#[test]
fn the_end_comes_in_order_under_load() -> Result<()> {
    let directory = directory()?;
    let image = image::sparse(directory.path(), "disk.img", 16 * MIB)?;
    let config = export("disk", &format!("{DIRECTORY}/disk.img"), "")
        + &format!(
            "[[export]]\nname = 'busy'\nsocket = '{DIRECTORY}/busy.sock'\nqueues = 2\n\
             storage = {{ kind = 'sim', size = '64M', read_latency = '20ms', write_latency = '20ms' }}\n"
        );
    let mut daemon = Daemon::serve_in(directory, &config)?;
    let mut frontend = Frontend::connect(&daemon.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    fill(&frontend, &mut ring, 0)?;
    let spec = Spec { rw: Rw::RandRw, depth: 32, queues: 2, server_pid: Some(daemon.id()), ..Spec::default() };
    let load = Load::start(&daemon.socket("busy"), &spec)?;
    daemon.wait_ring("busy", 0, |ring| ring.figures.in_flight > 0)?;

    let ended = daemon.terminate()?;
    assert!(ended.success(), "{ended}: {}", daemon.output());
    for name in ["disk.sock", "busy.sock", "control.sock"] {
        assert!(!daemon.path().join(name).exists(), "{name} is left behind");
    }
    let image = fs::File::open(image)?;
    for at in 0..64u64 {
        let mut block = [0; 4096];
        image.read_exact_at(&mut block, at * 4096)?;
        assert_eq!(block, [at as u8 + 1; 4096], "block {at} was flushed");
    }
    // The load lost its server, and says so.
    assert!(load.finish().is_err());
    Ok(())
}
