//! Disks that are images of a Ceph cluster, which each test makes for itself: what a guest writes, who else may, and what happens when a
//! part of it is gone for a while.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control::model::{Disk, Export, Info};
use guest::ceph::{Cluster, Store};
use http::Method;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use rbd::{RbdOptions, RbdStorage};
use serde_json::json;
use storage::{Execution, Storage};
use tempfile::TempDir;
use testkit::storage::{moves, play};
use tests::daemon::{Daemon, refusal};
use tests::driver::{Ring, readable, writable};
use tests::frontend::{DATA, Frontend, RO, kind, status};
use tests::lab::{Lab, Turn};
use tests::vringd::{self, said};

const BLOCK: u32 = 4096;
const SECTORS_A_BLOCK: u64 = 8;
const RING_SIZE: u16 = 64;
/// Where reads go, behind the buffers of writes.
const READ_AT: u64 = DATA + (32 << 20);
const OK: u8 = status::OK;
/// How long something may take that happens by itself.
const PATIENCE: Duration = Duration::from_secs(20);

/// A cluster, and a directory for daemons.
struct Place {
    cluster: Cluster,
    directory: TempDir,
    _turn: Turn,
}

impl Place {
    /// With an image `disk` of 64 MiB.
    fn new() -> Result<Self> {
        Place::on(Store::Memory)
    }

    fn on(store: Store) -> Result<Self> {
        let turn = Lab::locate()?.wait_for_place()?;
        let directory = tests::daemon::directory()?;
        let place = directory.path().join("ceph");
        fs::create_dir(&place)?;
        let mut cluster = Cluster::start(&turn, &place, store)?;
        cluster.run("rbd create --size 64M disk")?;
        Ok(Self { cluster, directory, _turn: turn })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn conf(&self) -> String {
        self.cluster.conf().display().to_string()
    }

    fn options(&self, image: &str) -> Result<RbdOptions> {
        Ok(RbdOptions { conf: self.cluster.conf(), ..RbdOptions::new(image.parse()?) })
    }

    /// An export `disk` of the image.
    fn config(&self, more: &str) -> String {
        let (socket, conf) = (self.path("disk.sock"), self.conf());
        format!(
            "workers = 1\n[[export]]\nname = 'disk'\nsocket = '{}'\nqueues = 2\n\
             storage = {{ kind = 'rbd', image = 'disk', conf = '{conf}'{more} }}\n",
            socket.display()
        )
    }

    fn serve(&self, more: &str) -> Result<Daemon> {
        Daemon::serve(&self.config(more))
    }

    fn connect(&self) -> Result<(Frontend, Ring)> {
        let mut frontend = Frontend::connect(&self.path("disk.sock"), 0)?;
        let ring = frontend.ring(0, RING_SIZE)?;
        Ok((frontend, ring))
    }

    /// Runs the program, which has to refuse what it is asked for: in one line, with status 2, or with 1 where a cluster that does not answer
    /// may do so later.
    fn refused(&self, words: &[&str]) -> Result<String> {
        let output = vringd::run(self.directory.path(), words)?;
        let complaint = String::from_utf8(output.stderr.clone())?;
        // Of the sandbox it has told before.
        let complaints: Vec<_> = complaint.lines().filter(|line| !line.contains(" INFO ")).collect();
        let status = if complaint.contains("answered within") { 1 } else { 2 };
        ensure!(output.status.code() == Some(status) && complaints.len() == 1, "{words:?}: {}", said(&output));
        Ok(complaints[0].to_owned())
    }

    /// The same for `vringd disk` with this image.
    fn refused_disk(&self, conf: &str, more: &[&str], image: &str) -> Result<String> {
        let socket = self.path("refused.sock").display().to_string();
        let words = [&["disk", "--socket", &socket, "--rbd-conf", conf], more, &[image]].concat();
        self.refused(&words)
    }

    /// As an operator does who wants somebody else to have the image.
    fn take_lock_away(&mut self) -> Result<()> {
        self.cluster.run(
            "rbd lock ls --format json disk >locks; python3 -c \"\nimport json, subprocess\n\
             for lock in json.load(open('locks')):\n  \
             subprocess.check_call(['rbd', 'lock', 'rm', 'disk', lock['id'], lock['locker']])\"",
        )?;
        Ok(())
    }

    /// Sends a signal to what stores the cluster's data.
    fn signal_osd(&mut self, signal: &str) -> Result<()> {
        self.signal("ceph-osd", signal)
    }

    fn signal(&mut self, program: &str, signal: &str) -> Result<()> {
        self.cluster.run(&format!(
            "for process in /proc/[0-9]*; do case $(cat $process/comm) in {program}) kill -{signal} ${{process#/proc/}};; esac; done"
        ))?;
        Ok(())
    }

    /// A program for upgrades which goes on only when the file `go` is there.
    fn hesitant(&self) -> Result<PathBuf> {
        let (path, program, go) = (self.path("hesitant"), vringd::program()?, self.path("go"));
        let waits = format!(
            "case \"$*\" in *--check*) ;; *) while ! test -e '{}'; do sleep 0.05; done ;; esac\nexec '{}' \"$@\"\n",
            go.display(),
            program.display()
        );
        fs::write(&path, format!("#!/bin/sh\n{waits}"))?;
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
        Ok(path)
    }

    /// The image as another program reads it.
    fn exported(&mut self, image: &str) -> Result<Vec<u8>> {
        self.cluster.run(&format!("rm -f exported; rbd export --no-progress {image} exported"))?;
        Ok(fs::read(self.cluster.place().join("exported"))?)
    }
}

fn contents(block: u64, version: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (block as u8).wrapping_mul(31).wrapping_add(version).wrapping_add(at as u8)).collect()
}

fn write(ring: &mut Ring, block: u64, version: u8) -> u8 {
    ring.queue.memory().clone().write(DATA, &contents(block, version));
    ring.run(kind::OUT, block * SECTORS_A_BLOCK, &[readable(DATA, BLOCK)]).0
}

fn read(ring: &mut Ring, block: u64) -> Vec<u8> {
    let request = ring.run(kind::IN, block * SECTORS_A_BLOCK, &[writable(READ_AT, BLOCK)]);
    assert_eq!(request, (OK, BLOCK + 1));
    ring.queue.memory().read(READ_AT, BLOCK as usize)
}

/// Discards, or zeroes, some blocks.
fn clear(ring: &mut Ring, kind: u32, block: u64, blocks: u32, flags: u32) -> u8 {
    let mut range = (block * SECTORS_A_BLOCK).to_le_bytes().to_vec();
    range.extend((blocks * SECTORS_A_BLOCK as u32).to_le_bytes());
    range.extend(flags.to_le_bytes());
    ring.queue.memory().clone().write(DATA, &range);
    ring.run(kind, 0, &[readable(DATA, 16)]).0
}

fn eventually(what: &str, mut happens: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !happens()? {
        ensure!(Instant::now() < end, "{what} does not happen");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Random operations, across objects and through the library that the daemon uses, against a vector.
#[test]
fn an_image_holds_what_a_vector_holds() -> Result<()> {
    let mut place = Place::new()?;
    let mut runner = TestRunner::deterministic();
    let histories = moves(vec![Execution::Auto, Execution::Inline], 1024);
    for number in 0..12 {
        let name = format!("history-{number}");
        place.cluster.run(&format!("rbd create --size 1M --object-size 64K {name}"))?;
        let history = histories.new_tree(&mut runner).map_err(|error| anyhow::anyhow!("{error}"))?.current();
        let storage = RbdStorage::open(&place.options(&name)?)?;
        ensure!(storage.describe().optimal_io_bytes == 64 << 10, "{:?}", storage.describe());
        let last = play(&storage, &history);
        drop(storage);
        ensure!(place.exported(&name)? == last, "{name}: another program reads something else");
    }
    Ok(())
}

#[test]
fn what_a_guest_writes_is_in_the_image() -> Result<()> {
    let mut place = Place::new()?;
    let daemon = place.serve("")?;
    let (mut frontend, mut ring) = place.connect()?;
    ensure!(frontend.features() & RO == 0);
    ensure!(frontend.config(0, 8)? == (64u64 << 20 >> 9).to_le_bytes(), "the size in sectors");
    // More requests at once than a queue of librbd's takes at a time.
    for block in 0..300 {
        ensure!(write(&mut ring, block, 1) == OK);
    }
    ensure!(ring.run(kind::FLUSH, 0, &[]).0 == OK);
    for block in 0..300 {
        ensure!(read(&mut ring, block) == contents(block, 1), "block {block}");
    }
    // A whole object, a part of one, and zeroes that give space back and that do not.
    ensure!(clear(&mut ring, kind::DISCARD, 0, 1024, 0) == OK);
    ensure!(clear(&mut ring, kind::WRITE_ZEROES, 1030, 10, 1) == OK);
    for block in 2000..2020 {
        ensure!(write(&mut ring, block, 2) == OK);
    }
    ensure!(clear(&mut ring, kind::WRITE_ZEROES, 2005, 5, 0) == OK);
    ensure!(clear(&mut ring, kind::WRITE_ZEROES, 2010, 5, 1) == OK);
    let zeroes = vec![0; BLOCK as usize];
    for block in 2000..2020 {
        let expected = if (2005..2015).contains(&block) { zeroes.clone() } else { contents(block, 2) };
        ensure!(read(&mut ring, block) == expected, "block {block}");
    }
    let shown: Disk = daemon.client().get("/v1/disks/disk")?;
    ensure!((shown.storage.kind.as_str(), shown.storage.target.as_str()) == ("rbd", "rbd/disk"), "{shown:?}");
    drop((ring, frontend));
    daemon.stop()?;
    let image = place.exported("disk")?;
    for block in 0..300 {
        let at = block * BLOCK as usize;
        let (is, was) = (&image[at..at + BLOCK as usize], contents(block as u64, 1));
        ensure!(is == was || is == zeroes, "block {block}");
    }
    ensure!(image[2000 * BLOCK as usize..][..BLOCK as usize] == contents(2000, 2));
    // Nothing of it stays with the image.
    ensure!(!place.cluster.run("rbd image-meta list disk")?.contains("vringd"));
    Ok(())
}

#[test]
fn many_requests_at_once_end_each_with_its_own_data() -> Result<()> {
    let mut place = Place::new()?;
    // Behind Landlock, too, and with a cache in librbd, which is flushed behind durable writes: without a write cache all are.
    place.cluster.run("rbd config image set disk rbd_cache true")?;
    let sandbox = format!("[sandbox]\nlandlock = 'on'\nallow = ['{}']\n", place.path("ceph").display());
    let config = place.config("").replace("queues = 2", "queues = 2\nwrite_cache = 'off'");
    let daemon = Daemon::serve(&format!("{config}{sandbox}"))?;
    let info: Info = daemon.client().get("/v1/info")?;
    ensure!(info.sandbox.landlock.is_some(), "{info:?}");
    let (frontend, mut ring) = place.connect()?;
    let memory = ring.queue.memory().clone();
    const DEPTH: u64 = 16;
    for round in 0..20u8 {
        let at = |slot: u64| DATA + slot * u64::from(BLOCK);
        let block = |slot: u64| (slot * 97 + u64::from(round) * 5) % 16_000;
        let mut requests = Vec::new();
        for slot in 0..DEPTH {
            memory.write(at(slot), &contents(block(slot), round));
            requests.push(ring.request(kind::OUT, block(slot) * SECTORS_A_BLOCK, &[readable(at(slot), BLOCK)]));
        }
        ring.kick_if_wanted();
        for _ in &requests {
            ring.wait_used();
        }
        ensure!(requests.drain(..).all(|request| ring.status(request) == OK), "round {round}");
        for slot in 0..DEPTH {
            let sector = block(slot) * SECTORS_A_BLOCK;
            requests.push(ring.request(kind::IN, sector, &[writable(READ_AT + slot * u64::from(BLOCK), BLOCK)]));
        }
        ring.kick_if_wanted();
        for _ in &requests {
            ring.wait_used();
        }
        for (slot, request) in (0..DEPTH).zip(requests) {
            let is = memory.read(READ_AT + slot * u64::from(BLOCK), BLOCK as usize);
            ensure!(ring.status(request) == OK && is == contents(block(slot), round), "round {round}, slot {slot}");
        }
    }
    drop((ring, frontend));
    daemon.stop()?;
    place
        .cluster
        .run("rbd config image rm disk rbd_cache; rbd config image set disk rbd_disable_zero_copy_writes false")?;
    let line = place.refused_disk(&place.conf(), &[], "rbd:rbd/disk")?;
    ensure!(line.contains("image: rbd/disk is set up for zero-copy writes"), "{line}");
    Ok(())
}

#[test]
fn a_second_writer_is_refused_and_told_of_the_first() -> Result<()> {
    let mut place = Place::new()?;
    let daemon = place.serve("")?;
    let line = place.refused_disk(&place.conf(), &[], "rbd:rbd/disk")?;
    let process = format!("process {} of this machine serves it", daemon.id());
    ensure!(line.contains("image: rbd/disk is in use, locked by the client at 127.0.0.1:0/"), "{line}");
    ensure!(line.contains(&process), "{line}");
    // Neither does it disturb the first one,
    let (frontend, mut ring) = place.connect()?;
    ensure!(write(&mut ring, 1, 1) == OK);
    // nor do readers.
    let reader = RbdStorage::open(&RbdOptions { read_only: Some(true), ..place.options("rbd/disk")? })?;
    ensure!(reader.describe().read_only && reader.capacity_bytes() == 64 << 20);
    drop((reader, ring, frontend));
    daemon.stop()?;
    // Somebody else's client, which lets nobody have its lock, and one that would.
    let holds = |how: &str| {
        format!(
            "cat >holds.py <<'END'\nimport os, rados, rbd, time\ncluster = rados.Rados(conffile='/ceph/server.conf')\n\
             cluster.connect()\nimage = rbd.Image(cluster.open_ioctx('rbd'), 'disk')\n{how}\nopen('held', 'w')\n\
             while not os.path.exists('go'):\n  time.sleep(0.02)\nimage.close()\nopen('gone', 'w')\nEND\n\
             rm -f held go\nsetsid python3 holds.py </dev/null >holds.log 2>&1 &\necho $! >holds.pid\n\
             while [ ! -e held ]; do sleep 0.05; done"
        )
    };
    for (how, end) in [
        ("image.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)", "touch go; while [ ! -e gone ]; do sleep 0.05; done"),
        ("image.write(b'x' * 512, 0)", "kill -KILL $(cat holds.pid)"),
    ] {
        place.cluster.run(&holds(how))?;
        let line = place.refused_disk(&place.conf(), &[], "rbd:rbd/disk")?;
        ensure!(line.contains("locked by the client at") && line.contains("stop that client first"), "{line}");
        place.cluster.run(end)?;
        let (begin, options) = (Instant::now(), place.options("rbd/disk")?);
        while RbdStorage::open(&options).is_err() {
            ensure!(begin.elapsed() < Duration::from_secs(60), "the lock of a client that is gone stays");
            thread::sleep(Duration::from_millis(200));
        }
        // Whether a killed one lives the cluster knows half a minute later.
        let waits = begin.elapsed() > Duration::from_secs(5);
        ensure!(waits == end.starts_with("kill"), "{how}: {:?}", begin.elapsed());
    }
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(read(&mut ring, 1) == contents(1, 1));
    drop((ring, frontend));
    daemon.stop()
}

#[test]
fn a_snapshot_stays_as_it_was_and_is_not_written() -> Result<()> {
    let mut place = Place::new()?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(write(&mut ring, 7, 1) == OK);
    place.cluster.run("rbd snap create disk@then")?;
    ensure!(write(&mut ring, 7, 2) == OK);
    drop((ring, frontend));
    // While the image is served by the same daemon, too.
    let conf = place.conf();
    let _: Export = daemon.client().send(
        Method::POST,
        "/v1/exports",
        &json!({
            "name": "then", "socket": place.path("then.sock"), "queues": 1,
            "storage": { "kind": "rbd", "image": "disk", "snapshot": "then", "conf": conf },
        }),
    )?;
    let mut frontend = Frontend::connect(&place.path("then.sock"), 0)?;
    ensure!(frontend.features() & RO != 0, "a guest knows that it cannot write");
    let mut ring = frontend.ring(0, RING_SIZE)?;
    ensure!(read(&mut ring, 7) == contents(7, 1));
    ensure!(write(&mut ring, 7, 3) != OK && read(&mut ring, 7) == contents(7, 1));
    drop((ring, frontend));
    daemon.stop()?;
    let line = {
        fs::write(place.path("asked.toml"), place.config(", snapshot = 'then', read_only = false"))?;
        place.refused(&["serve", "asked.toml"])?
    };
    ensure!(line.contains("storage.snapshot: is read and never written: "), "{line}");
    Ok(())
}

#[test]
fn what_is_removed_or_made_smaller_under_a_reader_is_an_error_and_never_zeroes() -> Result<()> {
    let mut place = Place::new()?;
    place.cluster.run(
        "rbd create --size 16M small; rbd create --size 16M gone\n\
         ceph auth get-or-create client.reader mon 'profile rbd' osd 'profile rbd-read-only' >>keyring",
    )?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    let last = (8 << 20) / u64::from(BLOCK);
    ensure!(write(&mut ring, 1, 1) == OK && write(&mut ring, last, 1) == OK);
    place.cluster.run("rbd snap create --no-progress disk@then; rbd snap create --no-progress disk@kept")?;
    // Whom the cluster tells of changes, and who has no right to be told.
    let reader = |name: &str, image: &str, snapshot: Option<&str>, user: &str| -> Result<(Frontend, Ring)> {
        let socket = place.path(&format!("{name}.sock"));
        let mut storage =
            json!({ "kind": "rbd", "image": image, "user": user, "conf": place.conf(), "read_only": true });
        if let Some(snapshot) = snapshot {
            storage["snapshot"] = snapshot.into();
        }
        let export = json!({ "name": name, "socket": socket, "queues": 1, "storage": storage });
        let _: Export = daemon.client().send(Method::POST, "/v1/exports", &export)?;
        let mut frontend = Frontend::connect(&socket, 0)?;
        let ring = frontend.ring(0, RING_SIZE)?;
        Ok((frontend, ring))
    };
    let mut readers = Vec::new();
    for (name, image, snapshot) in [("then", "disk", Some("then")), ("small", "small", None), ("gone", "gone", None)] {
        readers.push((
            reader(name, image, snapshot, "admin")?,
            reader(&format!("{name}-untold"), image, snapshot, "reader")?,
        ));
    }
    let (_kept_frontend, mut kept) = reader("kept", "disk", Some("kept"), "admin")?;
    let asked =
        |ring: &mut Ring, block: u64| ring.run(kind::IN, block * SECTORS_A_BLOCK, &[writable(READ_AT, BLOCK)]).0;
    let block = |at: usize| if at == 0 { 1 } else { last };
    for (at, (told, untold)) in readers.iter_mut().enumerate() {
        ensure!(asked(&mut told.1, block(at)) == OK && asked(&mut untold.1, block(at)) == OK);
    }
    // What is served to somebody who is told cannot be removed,
    let refused = place.cluster.run("rbd rm --no-progress gone 2>&1 || true")?;
    ensure!(refused.contains("still has watchers"), "{refused}");
    daemon.remove("gone", true)?;
    place.cluster.run(
        "rbd rm --no-progress gone; rbd snap rm --no-progress disk@then; rbd snap rename disk@kept disk@then\n\
         rbd resize --no-progress --allow-shrink --size 1M small",
    )?;
    ensure!(write(&mut ring, 1, 2) == OK && write(&mut ring, last, 2) == OK);
    // and what is removed is an error from then on: whoever is told knows before the one who has removed it.
    let begin = Instant::now();
    for (at, (told, _)) in readers.iter_mut().enumerate().take(2) {
        ensure!(asked(&mut told.1, block(at)) != OK, "reader {at} reads what is not there");
    }
    for (at, (_, untold)) in readers.iter_mut().enumerate() {
        eventually("an error", || Ok(asked(&mut untold.1, block(at)) != OK))?;
    }
    println!("who is not told has seen it after {:?}", begin.elapsed());
    // A part that is still there is still read, and a snapshot of another name is the same.
    ensure!(asked(&mut readers[1].0.1, 0) == OK && asked(&mut readers[1].1.1, 0) == OK);
    ensure!(read(&mut kept, 1) == contents(1, 1) && read(&mut kept, last) == contents(last, 1));
    let said = daemon.output();
    for (image, what, times) in
        [("disk@then", "a snapshot that is served was removed", 2), ("gone", "an image that is served was removed", 1)]
    {
        let lines = said.lines().filter(|line| line.contains(what) && line.contains(image)).count();
        ensure!(lines == times, "{image}: {said}");
    }
    drop((ring, frontend));
    daemon.stop()
}

#[test]
fn a_killed_daemon_is_followed_at_once() -> Result<()> {
    let mut place = Place::new()?;
    for round in 0..3u8 {
        let begin = Instant::now();
        let daemon = place.serve("")?;
        ensure!(begin.elapsed() < Duration::from_secs(10), "the lock was waited for: {:?}", begin.elapsed());
        ensure!(
            daemon.output().contains("is broken, and its client blocklisted") == (round > 0),
            "{}",
            daemon.output()
        );
        let (frontend, mut ring) = place.connect()?;
        for block in 0..50 {
            if round > 0 {
                ensure!(read(&mut ring, block) == contents(block, round - 1), "round {round}, block {block}");
            }
            ensure!(write(&mut ring, block, round) == OK);
        }
        drop((ring, frontend));
        // SIGKILL.
        drop(daemon);
    }
    let blocklist = place.cluster.run("ceph osd blocklist ls 2>/dev/null")?;
    ensure!(blocklist.lines().count() == 2, "{blocklist}");
    Ok(())
}

#[test]
fn a_lock_that_is_taken_away_ends_writes_and_the_next_opening_has_it() -> Result<()> {
    let mut place = Place::new()?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(write(&mut ring, 1, 1) == OK);
    place.take_lock_away()?;
    eventually("a refusal", || Ok(write(&mut ring, 1, 2) != OK))?;
    ensure!(write(&mut ring, 1, 2) != OK, "for good");
    let said = daemon.output();
    ensure!(said.matches("another client has taken the lock of an image away").count() == 1, "{said}");
    let refusal = daemon.upgrade().err().context("there is nothing to go on with")?.to_string();
    ensure!(refusal.contains("rbd/disk: another client has taken its lock away"), "{refusal}");
    drop((ring, frontend));
    daemon.remove("disk", true)?;
    daemon.stop()?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(read(&mut ring, 1) == contents(1, 1) && write(&mut ring, 1, 3) == OK);
    drop((ring, frontend));
    daemon.stop()
}

#[test]
fn an_osd_that_is_gone_for_a_while_is_waited_for() -> Result<()> {
    // What only memory has would be gone with it.
    let mut place = Place::on(Store::File)?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    let end = Instant::now() + Duration::from_secs(8);
    let (mut writes, mut longest) = (0u64, Duration::ZERO);
    let cluster = &mut place.cluster;
    thread::scope(|scope| {
        let trouble = scope.spawn(move || {
            thread::sleep(Duration::from_millis(500));
            cluster.kill_osd()?;
            thread::sleep(Duration::from_secs(2));
            cluster.start_osd()
        });
        while Instant::now() < end {
            let (block, version) = (writes % 500, (writes / 500) as u8);
            let begin = Instant::now();
            ensure!(write(&mut ring, block, version) == OK, "write {writes}");
            ensure!(read(&mut ring, block) == contents(block, version), "write {writes}");
            longest = longest.max(begin.elapsed());
            writes += 1;
        }
        trouble.join().expect("no panic")
    })?;
    ensure!(longest > Duration::from_secs(1), "nothing waited: {longest:?}");
    println!("{writes} writes, the longest took {longest:?}");
    drop((ring, frontend));
    daemon.stop()
}

#[test]
fn an_image_whose_cluster_is_away_is_opened_once_however_often_it_is_asked_for() -> Result<()> {
    let mut place = Place::new()?;
    let daemon = Daemon::serve("[sandbox]\nallow_rbd = true\n")?;
    let disk =
        |name: &str| json!({ "name": name, "storage": { "kind": "rbd", "image": "disk", "conf": place.conf() } });
    let (first, again) = (disk("first"), disk("again"));
    let threads = || -> Result<usize> { Ok(fs::read_dir(format!("/proc/{}/task", daemon.id()))?.count()) };
    let mut osd = |signal: &str| place.signal_osd(signal);
    osd("STOP")?;
    thread::scope(|scope| {
        let opening = scope.spawn(|| daemon.client().send::<Disk>(Method::POST, "/v1/disks", &first));
        let before = threads()?;
        eventually("a connection", || Ok(threads()? > before + 10))?;
        let (begin, with_one) = (Instant::now(), threads()?);
        for _ in 0..20 {
            let error =
                daemon.client().send::<Disk>(Method::POST, "/v1/disks", &again).expect_err("it waits").to_string();
            ensure!(error.contains("rbd/disk: an opening of this image still waits for its cluster"), "{error}");
        }
        ensure!(begin.elapsed() < Duration::from_secs(10) && threads()? < with_one + 10, "{} threads", threads()?);
        osd("CONT")?;
        opening.join().expect("no panic")?;
        Ok::<_, anyhow::Error>(())
    })?;
    // Others do not wait for one that is being closed.
    osd("STOP")?;
    thread::scope(|scope| {
        let closing = scope.spawn(|| daemon.client().order(Method::DELETE, "/v1/disks/first"));
        eventually("it is on its way", || Ok(daemon.client().get::<Vec<Disk>>("/v1/disks")?.is_empty()))?;
        let other = json!({ "name": "other", "storage": { "kind": "null", "size": "1M" } });
        daemon.client().send::<Disk>(Method::POST, "/v1/disks", &other)?;
        daemon.client().order(Method::DELETE, "/v1/disks/other")?;
        ensure!(!closing.is_finished(), "it did not wait for its cluster");
        osd("CONT")?;
        Ok::<_, anyhow::Error>(closing.join().expect("no panic")?)
    })?;
    daemon.stop()
}

#[test]
fn a_lock_of_the_program_before_this_one_is_broken_and_that_of_another_clock_is_not() -> Result<()> {
    let mut place = Place::new()?;
    let link = |path: &str| -> Result<String> { Ok(fs::read_link(path)?.display().to_string()) };
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let stat = fs::read_to_string("/proc/self/stat")?;
    let begun = stat.rsplit_once(')').context("a name")?.1.split_whitespace().nth(19).context("a time")?.to_owned();
    let record = |time_space: &str| -> Result<String> {
        Ok(format!("2 {} {} {time_space} {} {begun}", boot.trim(), link("/proc/self/ns/pid")?, std::process::id()))
    };
    let (ours, other) = (record(&link("/proc/self/ns/time")?)?, record("time:[1]")?);
    place.cluster.run(&format!(
        "cat >holds.py <<'END'\nimport rados, rbd, time\ncluster = rados.Rados(conffile='/ceph/server.conf')\n\
         cluster.connect()\nimage = rbd.Image(cluster.open_ioctx('rbd'), 'disk')\n\
         image.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)\nowner = list(image.lock_get_owners())[0]['owner']\n\
         image.metadata_set('vringd.owner', '{other} ' + owner)\nopen('held', 'w').write(owner)\ntime.sleep(600)\nEND\n\
         setsid python3 holds.py </dev/null >holds.log 2>&1 &\nwhile [ ! -s held ]; do sleep 0.05; done"
    ))?;
    let options = place.options("rbd/disk")?;
    let refusal = RbdStorage::open(&options).err().context("it is locked")?.to_string();
    ensure!(refusal.contains("stop that client first"), "{refusal}");
    // As an upgrade leaves it that came while the image was being opened.
    place.cluster.run(&format!("rbd image-meta set disk vringd.owner \"{ours} $(cat held)\""))?;
    let begin = Instant::now();
    let storage = RbdStorage::open(&options)?;
    ensure!(begin.elapsed() < Duration::from_secs(10), "the lock was waited for: {:?}", begin.elapsed());
    let refusal = RbdStorage::open(&options).err().context("it is locked")?.to_string();
    ensure!(refusal.contains("this daemon serves it already"), "{refusal}");
    drop(storage);
    Ok(())
}

/// What Ceph's library answers with words of its own, or not at all.
#[test]
fn what_is_wrong_with_files_monitors_and_mirrors_is_named() -> Result<()> {
    let mut place = Place::new()?;
    let conf = place.conf();
    let good = fs::read_to_string(&conf)?;
    let keyring = place.cluster.place().join("keyring").display().to_string();
    let monitors = good.lines().find(|line| line.starts_with("mon_host")).context("it names a monitor")?;
    fs::copy(&keyring, place.path("key ring"))?;
    let fifo = place.path("fifo").display().to_string();
    ensure!(Command::new("mkfifo").arg(&fifo).status()?.success());
    let open = |name: &str, from: &str, to: &str| -> Result<Result<RbdStorage, rbd::RbdError>> {
        let path = place.path(&format!("{name}.conf"));
        fs::write(&path, good.replace(from, to))?;
        Ok(RbdStorage::open(&RbdOptions { conf: path, ..place.options("rbd/disk")? }))
    };
    // Words that would end the program, and a blank in a path.
    let odd = format!("{monitors}\nms_type = none\nrbd_op_threads = 0");
    drop(open("odd", monitors, &odd)??);
    drop(open("blank", &keyring, &place.path("key ring").display().to_string())??);
    for (name, from, to, words) in [
        ("fifo-keyring", &*keyring, &*fifo, "no keyring that can be read: "),
        ("zero-keyring", &keyring, "/dev/zero", "/dev/zero: it is no regular file"),
        ("fifo-key", monitors, &format!("{monitors}\nkeyfile = {fifo}"), "the key of `keyfile` in "),
        ("no-key", monitors, &format!("{monitors}\nkeyfile = /nonexistent/key"), "(/nonexistent/key: No such file"),
        ("name", monitors, "mon_host = none.invalid", "name monitors by address"),
        ("words", monitors, "mon_host = [v9:127.0.0.1:1]", "(`[v9:127.0.0.1:1]`)"),
    ] {
        let refusal = open(name, from, to)?.err().context("it is refused")?.to_string();
        ensure!(refusal.contains(words), "{name}: {refusal}");
    }
    let options = RbdOptions { conf: fifo.into(), ..place.options("rbd/disk")? };
    let refusal = RbdStorage::open(&options).err().context("it is refused")?.to_string();
    ensure!(refusal.contains("it is no regular file; give the path"), "{refusal}");
    place.cluster.run(
        "rbd mirror pool enable rbd image; rbd create --size 1M --image-feature exclusive-lock,journaling copy\n\
         rbd mirror image enable copy journal; rbd mirror image demote copy; ceph osd blocklist add 127.0.0.1:0/0 60",
    )?;
    let refusal = RbdStorage::open(&place.options("rbd/disk")?).err().context("it is refused")?.to_string();
    ensure!(refusal.contains("`ceph osd blocklist ls`"), "{refusal}");
    place.cluster.run("ceph osd blocklist rm 127.0.0.1:0/0")?;
    let refusal = RbdStorage::open(&place.options("rbd/copy")?).err().context("it is refused")?.to_string();
    ensure!(refusal.contains("`rbd mirror image promote rbd/copy`"), "{refusal}");
    drop(RbdStorage::open(&RbdOptions { read_only: Some(true), ..place.options("rbd/copy")? })?);
    Ok(())
}

#[test]
fn what_is_wrong_is_said_in_one_line() -> Result<()> {
    let mut place = Place::new()?;
    place.cluster.run(
        "rbd create --size 1M --image-feature layering plain\n\
         rbd snap create disk@s\n\
         ceph auth get-or-create client.blind mon 'profile rbd' osd 'profile rbd pool=other' >>keyring\n\
         ceph auth get-or-create client.deaf mon 'profile rbd' >>keyring\n\
         ceph-authtool wrong.keyring --create-keyring --gen-key -n client.admin\n\
         ceph-authtool keyring -n client.admin --print-key >key",
    )?;
    let conf = place.conf();
    let good = fs::read_to_string(&conf)?;
    let keyring = place.cluster.place().join("keyring").display().to_string();
    let changed = |name: &str, from: &str, to: &str| -> Result<String> {
        ensure!(good.contains(from), "{from} is not in {good}");
        let path = place.path(name);
        fs::write(&path, good.replace(from, to))?;
        Ok(path.display().to_string())
    };
    let monitors = good.lines().find(|line| line.starts_with("mon_host")).context("it names a monitor")?;
    let silent = changed("silent.conf", monitors, "mon_host = [v2:127.0.0.1:1]")?;
    let none = changed("none.conf", monitors, "")?;
    let no_keyring = changed("no-keyring.conf", &keyring, "/nonexistent/keyring")?;
    let wrong = changed("wrong.conf", &keyring, &keyring.replace("keyring", "wrong.keyring"))?;
    for (conf, more, image, words) in [
        (&*conf, &[][..], "rbd:nowhere/disk", "pool: there is no pool `nowhere`: `ceph osd pool ls`"),
        (&conf, &[], "rbd:rbd/other", "image: rbd/other is not there: `rbd ls`"),
        (&conf, &[], "rbd:rbd/space/disk", "namespace: pool `rbd` has no namespace `space`: `rbd namespace ls rbd`"),
        (&conf, &[], "rbd:rbd/disk@t", "snapshot: rbd/disk@t is not there: `rbd snap ls`"),
        (&conf, &[], "rbd:rbd/plain", "image: rbd/plain has no exclusive lock"),
        (&conf, &[], "rbd:rbd//disk", "IMAGE: `rbd//disk` is no image: write POOL/IMAGE"),
        (&conf, &["--rbd-user", "nobody"], "rbd:rbd/disk", "user: client.nobody is refused by the cluster"),
        (&conf, &["--rbd-user", "blind"], "rbd:rbd/disk", "user: client.blind may not use rbd/disk: give it rights"),
        (
            &conf,
            &["--rbd-user", "deaf"],
            "rbd:rbd/disk",
            "the cluster has not answered within 30 s: look at `ceph health`",
        ),
        (&conf, &["--direct"], "rbd:rbd/disk", "--direct: has no meaning for --storage rbd"),
        ("/nonexistent/ceph.conf", &[], "rbd:rbd/disk", "conf: /nonexistent/ceph.conf cannot be read: No such file"),
        (&silent, &[], "rbd:rbd/disk", "conf: no monitor has answered within 10 s"),
        (&none, &[], "rbd:rbd/disk", "names no monitor: write `mon_host` into it"),
        (&no_keyring, &[], "rbd:rbd/disk", "no keyring that can be read: /nonexistent/keyring: No such file"),
        (&wrong, &[], "rbd:rbd/disk", "user: client.admin is refused by the cluster"),
    ] {
        let line = place.refused_disk(conf, more, image)?;
        ensure!(line.contains(words), "{image} {more:?}: {line}");
    }
    Ok(())
}

#[test]
fn a_machine_without_the_library_is_told_of_the_package() -> Result<()> {
    let place = Place::new()?;
    let library = ["/usr/lib/x86_64-linux-gnu/librbd.so.1", "/usr/lib64/librbd.so.1"];
    let library = library.into_iter().find(|path| Path::new(path).exists()).context("librbd1 is installed")?;
    let hide = format!("mount --bind /dev/null {library} && exec \"$@\"");
    let by = |words: &[&str]| -> Result<std::process::Output> {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &hide, "sh"]).arg(vringd::program()?);
        Ok(command.args(words).env_remove("VRINGD_LOG").current_dir(place.directory.path()).output()?)
    };
    let socket = place.path("refused.sock").display().to_string();
    let output = by(&["disk", "--socket", &socket, "--rbd-conf", &place.conf(), "rbd:rbd/disk"])?;
    ensure!(output.status.code() == Some(2), "{}", said(&output));
    ensure!(
        said(&output).lines().count() == 1 && said(&output).contains("`apt-get install librbd1`"),
        "{}",
        said(&output)
    );
    // All else goes without.
    fs::write(
        place.path("other.toml"),
        "[[export]]\nname = 'n'\nsocket = 'n.sock'\nstorage = { kind = 'null', size = '1M' }\n",
    )?;
    ensure!(by(&["serve", "--check", "other.toml"])?.status.success());
    Ok(())
}

#[test]
fn the_size_may_change_by_us_and_by_others() -> Result<()> {
    let mut place = Place::new()?;
    let daemon = place.serve("")?;
    let (mut frontend, mut ring) = place.connect()?;
    let shown = || -> Result<u64> { Ok(daemon.client().get::<Disk>("/v1/disks/disk")?.storage.capacity_bytes) };
    let resize = |size: &str| -> Result<Export> {
        let body = json!({ "capacity_bytes": size });
        Ok(daemon.client().send(Method::PUT, "/v1/exports/disk/capacity", &body)?)
    };
    resize("128M")?;
    ensure!(shown()? == 128 << 20 && frontend.config(0, 8)? == (128u64 << 20 >> 9).to_le_bytes());
    ensure!(write(&mut ring, (128 << 20) / u64::from(BLOCK) - 1, 1) == OK);
    ensure!(place.cluster.run("rbd info disk")?.contains("size 128 MiB"));
    // Who does not have the lock asks whoever has it, and that is what the daemon's library does for him.
    place.cluster.run("rbd resize --no-progress --size 192M disk")?;
    eventually("the new size", || Ok(shown()? == 192 << 20))?;
    // The guest is told when somebody says so.
    resize("192M")?;
    ensure!(frontend.config(0, 8)? == (192u64 << 20 >> 9).to_le_bytes());
    ensure!(write(&mut ring, (192 << 20) / u64::from(BLOCK) - 1, 1) == OK);
    drop((ring, frontend));
    daemon.stop()
}

#[test]
fn a_running_daemon_gets_and_closes_images() -> Result<()> {
    let place = Place::new()?;
    let conf = place.conf();
    let disk = json!({ "name": "more", "storage": { "kind": "rbd", "image": "disk", "conf": conf } });
    // The network has been given up.
    let daemon = Daemon::serve("")?;
    let error =
        daemon.client().send::<Disk>(Method::POST, "/v1/disks", &disk).expect_err("it cannot connect").to_string();
    ensure!(error.contains("storage: rbd is reached by TCP") && error.contains("--allow-rbd"), "{error}");
    daemon.stop()?;
    let daemon = Daemon::serve("[sandbox]\nallow_rbd = true\n")?;
    for _ in 0..3 {
        let shown: Disk = daemon.client().send(Method::POST, "/v1/disks", &disk)?;
        ensure!(shown.storage.capacity_bytes == 64 << 20, "{shown:?}");
        let (code, http) = refusal(daemon.client().send::<Disk>(
            Method::POST,
            "/v1/disks",
            &json!({ "name": "again", "storage": disk["storage"] }),
        ));
        ensure!((code.as_str(), http) == ("invalid-field", 422), "{code} {http}");
        daemon.client().order(Method::DELETE, "/v1/disks/more")?;
    }
    // The lock is given up with the disk.
    let storage = RbdStorage::open(&place.options("rbd/disk")?)?;
    drop(storage);
    daemon.upgrade()?;
    // No secret is anywhere.
    let key = fs::read_to_string(place.cluster.place().join("keyring"))?;
    let keys: Vec<&str> = key.lines().filter_map(|line| line.split("key = ").nth(1)).collect();
    let shown = format!("{}{}", daemon.output(), daemon.client().text("/v1/disks")?);
    ensure!(!keys.is_empty() && keys.iter().all(|key| !shown.contains(key)));
    daemon.stop()
}

/// The daemon's program is replaced under load, and each one opens the image again.
#[test]
fn guests_see_nothing_but_a_pause_of_an_upgrade() -> Result<()> {
    let mut place = Place::new()?;
    place.cluster.run("rbd snap create disk@old")?;
    let conf = place.conf();
    // What is not in reach stays so for each program.
    let programs = vringd::program()?.parent().context("it is somewhere")?.display().to_string();
    let sandbox = format!("[sandbox]\nallow = ['{}', '{programs}']\n", place.directory.path().display());
    let daemon = Daemon::serve(&(place.config("") + &sandbox))?;
    ensure!(
        daemon.output().contains("landlock=\"") && !daemon.output().contains("landlock=\"off"),
        "{}",
        daemon.output()
    );
    let reader = json!({ "name": "old", "socket": place.path("old.sock"),
        "storage": { "kind": "rbd", "image": "disk", "snapshot": "old", "conf": conf } });
    daemon.client().send::<Export>(Method::POST, "/v1/exports", &reader)?;
    let (frontend, mut ring) = place.connect()?;
    let mut other = Frontend::connect(&place.path("old.sock"), 0)?;
    let mut snapshot = other.ring(0, RING_SIZE)?;
    let descriptors = || -> Result<usize> { Ok(fs::read_dir(format!("/proc/{}/fd", daemon.id()))?.count()) };
    let (mut writes, mut longest, mut open) = (0u64, Duration::ZERO, Vec::new());
    for _ in 0..3 {
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let upgrading = scope.spawn(|| {
                let upgraded = daemon.upgrade();
                // What waits is answered before this ends.
                thread::sleep(Duration::from_millis(500));
                ended.store(true, Ordering::Release);
                upgraded
            });
            while !ended.load(Ordering::Acquire) {
                let (block, version) = (writes % 500, (writes / 500) as u8);
                let begin = Instant::now();
                ensure!(write(&mut ring, block, version) == OK, "write {writes}");
                ensure!(read(&mut ring, block) == contents(block, version), "write {writes}");
                longest = longest.max(begin.elapsed());
                ensure!(read(&mut snapshot, block) == vec![0; BLOCK as usize], "of the snapshot");
                writes += 1;
            }
            upgrading.join().expect("no panic")
        })?;
        let clear = || Ok(daemon.output().matches("an image is open again").count() == 2 * (open.len() + 1));
        eventually("both are open", clear)?;
        open.push(descriptors()?);
    }
    println!("{writes} writes, the longest took {longest:?}; descriptors: {open:?}");
    ensure!(longest < Duration::from_secs(5), "{longest:?}");
    ensure!(open.iter().max() <= open.iter().min().map(|least| least + 4).as_ref(), "they add up: {open:?}");
    for block in 0..500.min(writes) {
        let last = (writes - 1 - block) / 500;
        ensure!(read(&mut ring, block) == contents(block, last as u8), "block {block}");
    }
    // It may change as before.
    daemon.client().send::<Export>(Method::PUT, "/v1/exports/disk/capacity", &json!({ "capacity_bytes": "128M" }))?;
    drop((ring, frontend, snapshot, other));
    // Whoever was there before is kept from writing, and the last one gives its lock up.
    ensure!(place.cluster.run("ceph osd blocklist ls 2>/dev/null")?.lines().count() == 6);
    daemon.stop()?;
    ensure!(!place.cluster.run("rbd image-meta ls disk")?.contains("vringd.owner"));
    drop(RbdStorage::open(&place.options("rbd/disk")?)?);
    Ok(())
}

#[test]
fn an_upgrade_while_the_cluster_is_away_keeps_requests_waiting_and_no_others() -> Result<()> {
    let mut place = Place::new()?;
    let ram = "[[export]]\nname = 'ram'\nsocket = '@DIR@/ram.sock'\nstorage = { kind = 'memory', size = '1M' }\n";
    let daemon = Daemon::serve(&(place.config("") + ram))?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(write(&mut ring, 1, 1) == OK);
    place.signal_osd("STOP")?;
    daemon.upgrade()?;
    let mut nearby = Frontend::connect(&daemon.socket("ram"), 0)?;
    let mut memory = nearby.ring(0, RING_SIZE)?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| (read(&mut ring, 1), write(&mut ring, 2, 2)));
        eventually("a request", || Ok(daemon.ring("disk", 0)?.figures.in_flight > 0))?;
        // Of what is being opened nothing can be handed over.
        let refusal = daemon.upgrade().err().context("it is not open")?.to_string();
        ensure!(
            refusal.contains("rbd/disk: the image is being opened again") || refusal.contains("in flight"),
            "{refusal}"
        );
        let size = json!({ "capacity_bytes": "128M" });
        let refusal = daemon.client().send::<Export>(Method::PUT, "/v1/exports/disk/capacity", &size);
        let refusal = refusal.expect_err("it is not open").to_string();
        ensure!(refusal.contains("is being opened again"), "{refusal}");
        ensure!(write(&mut memory, 1, 1) == OK && read(&mut memory, 1) == contents(1, 1));
        ensure!(!waiting.is_finished(), "nobody has answered it");
        place.signal_osd("CONT")?;
        ensure!(waiting.join().expect("no panic") == (contents(1, 1), OK));
        Ok::<_, anyhow::Error>(())
    })?;
    ensure!(read(&mut ring, 2) == contents(2, 2));
    // What has failed is tried again.
    place.signal("ceph-mon", "STOP")?;
    daemon.upgrade()?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| read(&mut ring, 2));
        eventually("the end of a try", || Ok(daemon.output().contains("cannot be opened again yet")))?;
        ensure!(daemon.output().contains("no monitor has answered within 10 s"), "{}", daemon.output());
        ensure!(!waiting.is_finished(), "nobody has answered it");
        place.signal("ceph-mon", "CONT")?;
        ensure!(waiting.join().expect("no panic") == contents(2, 2));
        Ok::<_, anyhow::Error>(())
    })?;
    // A daemon that is to end does not wait for what nobody has asked for.
    place.signal_osd("STOP")?;
    daemon.upgrade()?;
    drop((ring, memory, nearby));
    drop(frontend);
    daemon.stop()?;
    place.signal_osd("CONT")?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(read(&mut ring, 2) == contents(2, 2), "what a killed one leaves");
    drop((ring, frontend));
    daemon.stop()
}

/// Between two programs nobody watches over the image.
#[test]
fn an_image_that_somebody_else_had_meanwhile_is_lost_to_its_guest() -> Result<()> {
    let mut place = Place::new()?;
    place.cluster.run("rbd create --size 64M base; rbd snap create base@old")?;
    let config = place.config("") + "[sandbox]\nseccomp = 'none'\n";
    let reader = format!(
        "[[export]]\nname = 'old'\nsocket = '{}'\nstorage = {{ kind = 'rbd', image = 'base', snapshot = 'old', conf = '{}' }}\n",
        place.path("old.sock").display(),
        place.conf()
    );
    let daemon = Daemon::serve(&(config + &reader))?;
    let (frontend, mut ring) = place.connect()?;
    let mut other = Frontend::connect(&place.path("old.sock"), 0)?;
    let mut snapshot = other.ring(0, RING_SIZE)?;
    ensure!(write(&mut ring, 1, 1) == OK && read(&mut snapshot, 1) == vec![0; BLOCK as usize]);
    let binary = place.hesitant()?;
    let mut command = Command::new(vringd::program()?);
    command.arg("ctl").arg("--control").arg(daemon.path().join("control.sock"));
    let mut asked = command.arg("upgrade").arg("--binary").arg(&binary).stdout(Stdio::null()).spawn()?;
    eventually("the last act", || Ok(daemon.output().contains("rings are drained")))?;
    let comm = || -> Result<String> { Ok(fs::read_to_string(format!("/proc/{}/comm", daemon.id()))?) };
    eventually("the other program", || Ok(comm()?.trim() == "hesitant"))?;
    place.take_lock_away()?;
    place.cluster.run("rbd bench --io-type write --io-size 4K --io-threads 1 --io-total 64K disk")?;
    // Whoever changes an image waits until all watches have answered, or have lapsed.
    place.cluster.run("ceph osd blocklist add $(rbd status base | sed -n 's/.*watcher=\\([^ ]*\\).*/\\1/p') 2>&1")?;
    place.cluster.run("rbd snap rm base@old; rbd snap create base@old")?;
    fs::write(place.path("go"), "")?;
    ensure!(asked.wait()?.success(), "{}", daemon.output());
    ensure!(write(&mut ring, 1, 2) == status::IOERR, "it is somebody else's");
    let request = snapshot.run(kind::IN, SECTORS_A_BLOCK, &[writable(READ_AT, BLOCK)]);
    ensure!(request.0 == status::IOERR, "{request:?}");
    let said = daemon.output();
    for words in [
        "rbd/disk is not what it was to its guest: its lock was taken away",
        "rbd/base@old is not what it was to its guest: another snapshot has its name",
    ] {
        ensure!(said.contains(words), "{said}");
    }
    let refusal = daemon.upgrade().err().context("there is nothing to go on with")?.to_string();
    ensure!(refusal.contains("the image is lost to its guest"), "{refusal}");
    drop((ring, frontend, snapshot, other));
    daemon.remove("disk", true)?;
    daemon.remove("old", true)?;
    daemon.stop()?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    let there = read(&mut ring, 1);
    ensure!(there != contents(1, 1) && there != contents(1, 2), "what the other one wrote");
    ensure!(write(&mut ring, 1, 3) == OK);
    drop((ring, frontend));
    daemon.stop()
}

/// Two daemons serve the image, and it is the one's whose rings run.
#[test]
fn an_image_is_the_one_s_whose_rings_run() -> Result<()> {
    let mut place = Place::new()?;
    let conf = place.conf();
    let serve = || {
        Daemon::serve(&format!(
            "workers = 1\n[[export]]\nname = 'disk'\nsocket = '@DIR@/disk.sock'\nqueues = 2\n\
             storage = {{ kind = 'rbd', image = 'disk', conf = '{conf}', migratable = true }}\n"
        ))
    };
    let holds = |daemon: &Daemon| -> Result<bool> {
        daemon.client().get::<Disk>("/v1/disks/disk")?.storage.held.context("it is held or not")
    };
    let mut sides = vec![serve()?, serve()?];
    for round in 0..6_u8 {
        let (here, there) = (&sides[usize::from(round % 2)], &sides[usize::from(round % 2 == 0)]);
        let mut frontend = Frontend::connect(&here.socket("disk"), 0)?;
        let mut other = Frontend::connect(&there.socket("disk"), 0)?;
        ensure!(!holds(here)? && !holds(there)?, "round {round}: no ring runs");
        let mut ring = frontend.ring(0, RING_SIZE)?;
        ensure!(holds(here)? && !holds(there)?, "round {round}: a ring runs");
        for before in 0..round {
            ensure!(read(&mut ring, u64::from(before)) == contents(u64::from(before), before), "round {round}");
        }
        ensure!(write(&mut ring, u64::from(round), round) == OK);
        if round >= 2 {
            // The program changes, and the image is whose it was.
            here.upgrade()?;
            there.upgrade()?;
            ensure!(read(&mut ring, u64::from(round)) == contents(u64::from(round), round), "behind an upgrade");
            ensure!(holds(here)? && !holds(there)?, "round {round}: behind an upgrade");
        }
        if round == 4 {
            // Who comes too early is told who has it.
            ensure!(other.ring(0, RING_SIZE).is_err() || !holds(there)?, "it is the other one's");
            let said = there.output();
            ensure!(said.contains("of this machine serves it"), "{said}");
        }
        frontend.stop(&ring)?;
        ensure!(!holds(here)?, "round {round}: given up with the answer");
        ensure!(place.cluster.run("rbd lock ls disk")?.trim().is_empty(), "round {round}: it is locked");
        drop((frontend, other));
        here.wait_disconnected("disk")?;
        there.wait_disconnected("disk")?;
    }
    // One that is killed while it has the image is followed at once.
    let killed = sides.remove(0);
    let mut frontend = Frontend::connect(&killed.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, RING_SIZE)?;
    ensure!(write(&mut ring, 9, 9) == OK);
    drop((ring, frontend));
    drop(killed);
    let left = sides.remove(0);
    let mut frontend = Frontend::connect(&left.socket("disk"), 0)?;
    let mut ring = frontend.ring(0, RING_SIZE)?;
    ensure!(read(&mut ring, 9) == contents(9, 9) && write(&mut ring, 9, 8) == OK);
    drop((ring, frontend));
    left.stop()
}
