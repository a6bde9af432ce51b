//! Disks that are images of a Ceph cluster, which each test makes for itself: what a guest writes, who else may, and what happens when a
//! part of it is gone for a while.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control::model::{Disk, Export, Info};
use guest::ceph::Store;
use http::Method;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use rbd::{RbdOptions, RbdStorage};
use serde_json::json;
use storage::{Execution, Storage};
use testkit::storage::{moves, play};
use tests::ceph::{BLOCK, OK, Place, READ_AT, RING_SIZE, SECTORS_A_BLOCK, clear, contents, eventually, read, write};
use tests::daemon::{Daemon, refusal};
use tests::driver::{Ring, readable, writable};
use tests::frontend::{DATA, Frontend, RO, kind};
use tests::vringd::{self, said};

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
    ensure!(said.matches("an image is lost to its guest").count() == 1, "{said}");
    let refusal = daemon.upgrade().err().context("there is nothing to go on with")?.to_string();
    ensure!(refusal.contains("rbd/disk: it is lost to its guest (its lock was taken away)"), "{refusal}");
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
