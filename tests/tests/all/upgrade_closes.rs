//! The daemon's program is replaced over a file system that works each time a descriptor is closed, and hangs at it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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
fn hesitant(place: &TempDir) -> Result<PathBuf> {
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
    for (below, name) in [("base", "one"), ("one", "two"), ("two", "three"), ("three", "top")] {
        let below = format!("{below}.qcow2");
        made(
            &closes,
            &["image", "create", "--backing", &below, "--backing-format", "qcow2", &format!("{name}.qcow2")],
        )?;
    }
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
    for name in ["system", "data"] {
        image::sparse(closes.root(), &format!("{name}.img"), MIB)?;
        config += &format!("[[disk]]\nname = '{name}'\nstorage = {{ kind = 'file', path = '{}.img' }}\n", shown(name));
    }
    config += &format!(
        "[[export]]\nname = 'vm'\nkind = 'scsi'\nsocket = '{DIRECTORY}/vm.sock'\nqueues = 1\n\
         luns = [{{ lun = 0, disk = 'system' }}, {{ lun = '1:3', disk = 'data' }}]\n"
    );
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
        let _hangs = (version == 4).then(|| closes.hang());
        let takeover = daemon.upgrade()?.takeover.context("it took over")?;
        assert_eq!(takeover.sessions, names.len() + 1);
        assert_eq!(closes.closed(), Vec::<std::ffi::OsString>::new(), "upgrade {version}");
        all_work(version, &mut client)?;
    }
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
    // Also where this test fails: a daemon that is killed waits for what hangs.
    let hangs = closes.hang();
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
    daemon.change(
        "ram",
        &Settings { poll: Some("fixed=5".parse().map_err(anyhow::Error::msg)?), ..Settings::default() },
    )?;
    let line = refused()?;
    assert!(line.contains("thread `upgrade-ask`"), "{line}");
    drop(hangs);
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

#[test]
fn what_its_asker_gives_up_on_in_the_pause_does_not_go_on() -> Result<()> {
    let slow = "{ kind = 'sim', size = '1M', read_latency = '5s' }";
    let daemon = Daemon::serve_in(directory()?, &("workers = 1\n".to_owned() + &export("slow", slow)))?;
    let mut frontend = Frontend::connect(&daemon.socket("slow"), 0)?;
    let mut ring = frontend.ring(0, 64)?;
    let request = ring.request(kind::IN, 0, &[writable(DATA, 4096)]);
    ring.kick();
    daemon.wait_ring("slow", 0, |ring| ring.figures.oldest_in_flight_ms.is_some())?;
    let mut ctl = asked(&daemon, &vringd::program()?)?;
    wait_for("the pause", || Ok(daemon.output().contains("rings are drained")))?;
    ctl.kill()?;
    ctl.wait()?;
    wait_for("the end of it", || Ok(daemon.output().contains("not upgraded")))?;
    assert!(daemon.output().contains("whoever asked for it waits no more"), "{}", daemon.output());
    ring.wait_used();
    assert_eq!(ring.status(request), status::OK);
    assert_eq!(info(&daemon)?.upgrades, 0);
    let _ = daemon.upgrade()?;
    works(&mut ring, 1);
    drop((ring, frontend));
    daemon.stop()
}

/// The threads of an image, and what one has under way: an operation of the image, and those of the image that it is a file of.
/// For each, what it needs to wait for it (an io_uring and an eventfd) is made when it first comes to that, and stays with the
/// thread.
const LANES_MAX: isize = 4 * 2;

/// How many descriptors a daemon has of each kind, and whether its children have them. Rings that go on have other numbers.
#[derive(Clone, Debug, PartialEq)]
struct Descriptors {
    kinds: BTreeMap<(String, bool), isize>,
    urings: isize,
}

impl Descriptors {
    fn of(daemon: &Daemon) -> Result<Descriptors> {
        let process = Path::new("/proc").join(daemon.id().to_string());
        let mut kinds = BTreeMap::new();
        for entry in fs::read_dir(process.join("fd"))? {
            let name = entry?.file_name();
            // One of a call that has just ended.
            let Ok(target) = fs::read_link(process.join("fd").join(&name)) else { continue };
            let Ok(about) = fs::read_to_string(process.join("fdinfo").join(&name)) else { continue };
            let flags = about.lines().find_map(|line| line.strip_prefix("flags:")).context("it has flags")?;
            let inherited = i32::from_str_radix(flags.trim(), 8)? & libc::O_CLOEXEC == 0;
            let target = target.display().to_string();
            // Sockets and pipes are named by their inodes.
            let kind =
                target.split_once(":[").filter(|(kind, _)| *kind != "anon_inode").map_or(&*target, |(kind, _)| kind);
            *kinds.entry((kind.to_owned(), inherited)).or_default() += 1;
        }
        let urings =
            kinds.iter().filter(|((kind, _), _)| kind == "anon_inode:[io_uring]").map(|(_, count)| count).sum();
        Ok(Descriptors { kinds, urings })
    }

    /// Those of a daemon behind the end of a call, whose connection it closes a little later.
    fn settled(daemon: &Daemon) -> Result<Descriptors> {
        let mut last = Descriptors::of(daemon)?;
        let mut same = 0;
        while same < 20 {
            thread::sleep(Duration::from_millis(10));
            let now = Descriptors::of(daemon)?;
            same = if now == last { same + 1 } else { 0 };
            last = now;
        }
        Ok(last)
    }

    /// What is there now and was not, and the other way round: but for as many lanes as there may be.
    fn others(&self, now: &Descriptors) -> Vec<((String, bool), isize, isize)> {
        let lanes = (now.urings - self.urings).clamp(-LANES_MAX, LANES_MAX);
        let kinds: BTreeSet<_> = self.kinds.keys().chain(now.kinds.keys()).collect();
        let count = |of: &Descriptors, kind| of.kinds.get(kind).copied().unwrap_or(0);
        let counts = kinds.into_iter().map(|kind| (kind.clone(), count(self, kind), count(now, kind)));
        counts
            .filter(|((kind, _), before, now)| {
                let is_lanes = matches!(&**kind, "anon_inode:[io_uring]" | "anon_inode:[eventfd]");
                *now != before + if is_lanes { lanes } else { 0 }
            })
            .collect()
    }

    /// Waits until a daemon has the descriptors that it had before.
    fn wait_for(&self, daemon: &Daemon) -> Result<()> {
        wait_for("the same descriptors", || Ok(self.others(&Descriptors::of(daemon)?).is_empty())).with_context(|| {
            format!("there were and are others: {:?}", Descriptors::of(daemon).map(|now| self.others(&now)))
        })
    }
}

/// A program that is gone when it comes to that.
fn fickle(place: &Path) -> Result<PathBuf> {
    let (path, program) = (place.join("fickle"), vringd::program()?);
    fs::write(&path, format!("#!/bin/sh\nrm '{}'\nexec '{}' \"$@\"\n", path.display(), program.display()))?;
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
    Ok(path)
}

#[test]
fn no_descriptor_is_lost_or_left_over() -> Result<()> {
    let place = directory()?;
    let at = |name: &str| place.path().join(name).display().to_string();
    let make = |words: &[&str]| -> Result<()> {
        let output = vringd::run(place.path(), words)?;
        ensure!(output.status.success(), "{}", said(&output));
        Ok(())
    };
    make(&["image", "create", "--size", "1M", "base.qcow2"])?;
    make(&["image", "create", "--backing", "base.qcow2", "--backing-format", "qcow2", "top.qcow2"])?;
    make(&["volume", "create", "--size", "1M", "--log-size", "1M", "disk.vol"])?;
    fs::create_dir(place.path().join("tree"))?;
    let mut config = "workers = 2\n[sandbox]\nseccomp = 'none'\n".to_owned();
    for (name, storage) in [
        ("thin", format!("{{ kind = 'qcow2', path = '{}' }}", at("top.qcow2"))),
        ("volume", format!("{{ kind = 'volume', path = '{}' }}", at("disk.vol"))),
        ("ram", "{ kind = 'memory', size = '1M' }".to_owned()),
    ] {
        config += &export(name, &storage);
    }
    config += &format!(
        "[[export]]\nname = 'tree'\nkind = 'dir'\nsocket = '{DIRECTORY}/tree.sock'\nqueues = 1\n\
         [export.directory]\npath = '{}'\n",
        at("tree")
    );
    let daemon = Daemon::serve_in(place, &config)?;
    let mut guests = ["thin", "volume", "ram"]
        .iter()
        .map(|name| {
            let mut frontend = Frontend::connect(&daemon.socket(name), 0)?;
            let ring = frontend.ring(0, 64)?;
            Ok((frontend, ring))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut client = Client::begin(&daemon.socket("tree"))?;
    for number in 0..100 {
        client.call(op::CREATE, ROOT, &create_body(libc::O_RDWR, 0o600, format!("{number}").as_bytes()))?.ok()?;
    }
    let mut all_work = |version: u8| guests.iter_mut().for_each(|(_, ring)| works(ring, version));
    all_work(1);
    let fail = |binary: &Path, words: &str| -> Result<()> {
        let new = NewUpgrade { binary: Some(binary.to_owned()) };
        match daemon.client().send::<Value>(Method::POST, "/v1/upgrade", &new) {
            Err(ClientError::Refused { message, .. }) if message.contains(words) => Ok(()),
            other => anyhow::bail!("not refused: {other:?}"),
        }
    };
    // Rings have what they are to have once they have gone on, and a worker has turned.
    fail(&fickle(daemon.path())?, "cannot be executed: ENOENT")?;
    all_work(1);
    let before = Descriptors::settled(&daemon)?;
    for version in 2..7 {
        fail(&fickle(daemon.path())?, "cannot be executed: ENOENT")?;
        fail(Path::new("/bin/false"), "exit status: 1")?;
        all_work(version);
        before.wait_for(&daemon)?;
    }
    let _ = daemon.upgrade()?;
    fail(&fickle(daemon.path())?, "cannot be executed: ENOENT")?;
    all_work(7);
    let before = Descriptors::settled(&daemon)?;
    for version in 8..18 {
        let _ = daemon.upgrade()?;
        fail(&fickle(daemon.path())?, "cannot be executed: ENOENT")?;
        all_work(version);
    }
    before.wait_for(&daemon)?;
    drop((client, guests));
    daemon.stop()
}
