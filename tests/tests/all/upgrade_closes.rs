//! The daemon's program is replaced over a file system that works each time a descriptor is closed, and hangs at it.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control::client::ClientError;
use control::model::{Info, NewExport, NewUpgrade, Settings};
use http::Method;
use nix::libc;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::closes::Closes;
use tests::daemon::{DIRECTORY, Daemon, directory};
use tests::driver::{Ring, readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::fuse::{Client, ROOT, create_body, op, read_body, release_body, write_body};
use tests::image;
use tests::vringd::{self, said};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// `struct fuse_entry_out`, behind which CREATE answers with the handle.
const ENTRY_BYTES: usize = 128;

fn export(name: &str, storage: &str) -> String {
    format!("[[export]]\nname = '{name}'\nsocket = '{DIRECTORY}/{name}.sock'\nqueues = 1\nstorage = {storage}\n")
}

fn raw(closes: &Closes, name: &str) -> Result<String> {
    let file = format!("{name}.img");
    image::sparse(closes.root(), &file, MIB)?;
    Ok(export(name, &format!("{{ kind = 'file', path = '{}' }}", closes.path(&file).display())))
}

fn made(closes: &Closes, words: &[&str]) -> Result<()> {
    let output = vringd::run(closes.root(), words)?;
    ensure!(output.status.success(), "{}", said(&output));
    Ok(())
}

fn info(daemon: &Daemon) -> Result<Info> {
    Ok(daemon.client().get("/v1/info")?)
}

/// Writes a block, and reads it.
fn works(ring: &mut Ring, version: u8) {
    let memory = ring.queue.memory().clone();
    memory.write(DATA, &[version; 4096]);
    assert_eq!(ring.run(kind::OUT, 8, &[readable(DATA, 4096)]), (status::OK, 1));
    memory.write(DATA, &[0; 4096]);
    assert_eq!(ring.run(kind::IN, 8, &[writable(DATA, 4096)]), (status::OK, 4097));
    assert_eq!(memory.read(DATA, 4096), [version; 4096]);
}

/// What is asked of a daemon by `ctl upgrade`, and left to itself.
fn asked(daemon: &Daemon, binary: &Path) -> Result<std::process::Child> {
    let mut command = Command::new(vringd::program()?);
    command.arg("ctl").arg("--control").arg(daemon.path().join("control.sock"));
    command.arg("upgrade").arg("--binary").arg(binary);
    Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

/// A program that goes on when the file `go` is there.
fn hesitant(place: &TempDir) -> Result<std::path::PathBuf> {
    let (path, program) = (place.path().join("hesitant"), vringd::program()?);
    let (begun, go) = (place.path().join("begun"), place.path().join("go"));
    let wait = format!("touch '{}'\nwhile ! test -e '{}'; do sleep 0.05; done", begun.display(), go.display());
    fs::write(&path, format!("#!/bin/sh\n{wait}\nexec '{}' \"$@\"\n", program.display()))?;
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
    Ok(path)
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let by = Instant::now() + PATIENCE;
    while !is_so()? {
        ensure!(Instant::now() < by, "{what} does not come about");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Images of every storage, locked and not, and a directory with an open file and locks: a guest of each.
#[test]
fn no_file_is_closed_for_an_upgrade() -> Result<()> {
    let closes = Closes::mount()?;
    let shown = |name: &str| closes.path(name).display().to_string();
    made(&closes, &["image", "create", "--size", "1M", "base.qcow2"])?;
    made(&closes, &["image", "create", "--backing", "base.qcow2", "--backing-format", "qcow2", "top.qcow2"])?;
    made(&closes, &["volume", "create", "--size", "1M", "--log-size", "1M", "--log", "disk.log", "disk.vol"])?;
    made(&closes, &["volume", "create", "--size", "1M", "--log-size", "1M", "inside.vol"])?;
    let mut config = "workers = 2\n".to_owned() + &raw(&closes, "raw")?;
    image::sparse(closes.root(), "free.img", MIB)?;
    let free = format!("{{ kind = 'file', path = '{}', lock = false }}", shown("free.img"));
    let thin = format!("{{ kind = 'qcow2', path = '{}' }}", shown("top.qcow2"));
    let volume = format!("{{ kind = 'volume', path = '{}', log = '{}' }}", shown("disk.vol"), shown("disk.log"));
    let inside = format!("{{ kind = 'volume', path = '{}' }}", shown("inside.vol"));
    for (name, storage) in [("free", free), ("thin", thin), ("volume", volume), ("inside", inside)] {
        config += &export(name, &storage);
    }
    config += &format!(
        "[[export]]\nname = 'tree'\nkind = 'dir'\nsocket = '{DIRECTORY}/tree.sock'\nqueues = 1\n\
         [export.directory]\npath = '{}'\n",
        closes.root().display()
    );
    let daemon = Daemon::serve(&config)?;
    let names = ["raw", "free", "thin", "volume", "inside"];
    let connect = |name: &str| -> Result<(Frontend, Ring)> {
        let mut frontend = Frontend::connect(&daemon.socket(name), 0)?;
        let ring = frontend.ring(0, 64)?;
        Ok((frontend, ring))
    };
    let mut guests = names.iter().map(|name| connect(name)).collect::<Result<Vec<_>>>()?;
    let mut client = Client::begin(&daemon.socket("tree"))?;
    let made = client.call(op::CREATE, ROOT, &create_body(libc::O_RDWR, 0o600, b"open"))?.ok()?;
    let (node, handle) = (made.u64_at(0), made.u64_at(ENTRY_BYTES));
    let mut all_work = |version: u8, client: &mut Client| -> Result<()> {
        guests.iter_mut().for_each(|(_, ring)| works(ring, version));
        client.call(op::WRITE, node, &write_body(handle, 0, 8, &[version; 8]))?.ok()?;
        let read = client.call(op::READ, node, &read_body(handle, 0, 8))?.ok()?;
        ensure!(read.body == [version; 8], "{:?}", read.body);
        Ok(())
    };
    all_work(1, &mut client)?;
    closes.closed();
    for version in 2..5 {
        // Also when no close is ever answered.
        if version == 4 {
            closes.hang();
        }
        let takeover = daemon.upgrade()?.takeover.context("it took over")?;
        assert_eq!(takeover.sessions, names.len() + 1);
        assert_eq!(closes.closed(), Vec::<std::ffi::OsString>::new(), "upgrade {version}");
        all_work(version, &mut client)?;
    }
    closes.answer();
    client.call(op::RELEASE, node, &release_body(handle))?.ok()?;
    drop((client, guests));
    daemon.stop()?;
    assert!(closes.closed().len() > names.len(), "the end of the daemon closes all");
    Ok(())
}

/// A program that holds files in the places of low descriptors: one with few descriptors, or one that was begun by an earlier version.
#[test]
fn a_low_file_that_hangs_is_named_and_nobody_waits_for_it() -> Result<()> {
    let closes = Closes::mount()?;
    let mut command = Command::new("prlimit");
    command.arg("--nofile=512").arg(vringd::program()?);
    let config =
        "workers = 1\n".to_owned() + &raw(&closes, "raw")? + &export("ram", "{ kind = 'memory', size = '1M' }");
    let daemon = Daemon::serve_by(command, directory()?, &config)?;
    let mut frontend = Frontend::connect(&daemon.socket("ram"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    closes.hang();
    let refused = || -> Result<String> {
        match daemon.client().send::<Value>(Method::POST, "/v1/upgrade", &NewUpgrade::default()) {
            Err(ClientError::Refused { message, .. }) if !message.contains('\n') => Ok(message),
            other => anyhow::bail!("not refused: {other:?}"),
        }
    };
    let line = refused()?;
    assert!(line.contains("is not closed within") && line.contains("raw.img on fuse"), "{line}");
    // Nobody has paused, and what changes the daemon goes on.
    works(&mut ring, 1);
    let new: NewExport = serde_json::from_value(json!({
        "name": "more",
        "socket": daemon.socket("more"),
        "storage": { "kind": "null", "size": "1M" }
    }))?;
    daemon.client().send::<Value>(Method::POST, "/v1/exports", &new)?;
    daemon
        .change("ram", &Settings { poll: Some("5us".parse().map_err(anyhow::Error::msg)?), ..Settings::default() })?;
    let line = refused()?;
    assert!(line.contains("thread `upgrade-ask`"), "{line}");
    closes.answer();
    wait_for("the upgrade", || Ok(daemon.upgrade().is_ok()))?;
    works(&mut ring, 2);
    drop((ring, frontend));
    daemon.stop()
}

#[test]
fn what_its_asker_has_given_up_on_is_not_begun() -> Result<()> {
    let place = directory()?;
    let binary = hesitant(&place)?;
    let config = "workers = 1\n".to_owned()
        + &export("ram", "{ kind = 'memory', size = '1M' }")
        // A shell does more than a daemon.
        + "[sandbox]\nseccomp = 'none'\n";
    let daemon = Daemon::serve_in(directory()?, &config)?;
    let mut frontend = Frontend::connect(&daemon.socket("ram"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    let mut ctl = asked(&daemon, &binary)?;
    wait_for("the question", || Ok(place.path().join("begun").exists()))?;
    ctl.kill()?;
    ctl.wait()?;
    File::create(place.path().join("go"))?;
    wait_for("the end of it", || Ok(daemon.output().contains("not upgraded")))?;
    assert!(daemon.output().contains("whoever asked for it waits no more"), "{}", daemon.output());
    assert!(!daemon.output().contains("rings are drained"), "{}", daemon.output());
    assert_eq!(info(&daemon)?.upgrades, 0);
    works(&mut ring, 1);
    // Who waits gets it.
    let mut ctl = asked(&daemon, &binary)?;
    ensure!(ctl.wait()?.success(), "{}", daemon.output());
    assert_eq!(info(&daemon)?.upgrades, 1);
    works(&mut ring, 2);
    drop((ring, frontend));
    daemon.stop()
}
