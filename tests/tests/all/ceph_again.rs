//! Images of a Ceph cluster that are opened again while their guests run: behind a live upgrade, where the cluster has come to refuse the daemon,
//! and in the hands of another daemon.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control::model::{Disk, Export, LinkInfo, LinkState};
use http::Method;
use rbd::RbdStorage;
use serde_json::json;
use tests::ceph::{BLOCK, OK, Place, READ_AT, RING_SIZE, SECTORS_A_BLOCK, contents, eventually, link, read, write};
use tests::daemon::Daemon;
use tests::driver::writable;
use tests::frontend::{Frontend, kind, status};
use tests::vringd;

/// The daemon's program is replaced under load, and each one opens the image again.
#[test]
fn guests_see_nothing_but_a_pause_of_an_upgrade() -> Result<()> {
    let mut place = Place::new()?;
    place.cluster.run("rbd snap create disk@old")?;
    // What is not in reach stays so for each program.
    let programs = vringd::program()?.parent().context("it is somewhere")?.display().to_string();
    let sandbox = format!("[sandbox]\nallow = ['{}', '{programs}']\n", place.directory.path().display());
    let daemon = Daemon::serve(&(place.config("") + &sandbox))?;
    ensure!(
        daemon.output().contains("landlock=\"") && !daemon.output().contains("landlock=\"off"),
        "{}",
        daemon.output()
    );
    let (other, mut snapshot) = place.connect_to_snapshot(&daemon, "disk")?;
    let (frontend, mut ring) = place.connect()?;
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
        ensure!(refusal.contains("rbd/disk: it is being opened again") || refusal.contains("in flight"), "{refusal}");
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

/// By an operator's mistake, or by whoever fences a machine and thinks better of it: nobody else has had the image meanwhile.
#[test]
fn a_client_that_the_cluster_refuses_opens_its_image_again() -> Result<()> {
    let mut place = Place::new()?;
    place.cluster.run("rbd create --size 64M base; rbd snap create base@old")?;
    let daemon = place.serve("")?;
    let (other, mut snapshot) = place.connect_to_snapshot(&daemon, "base")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(link(&daemon)? == LinkInfo { state: LinkState::Open, for_ms: None, reason: None });
    let (mut writes, mut longest) = (0u64, Duration::ZERO);
    for _ in 0..3 {
        let ended = AtomicBool::new(false);
        let mut refuse = || -> Result<()> {
            for image in ["disk", "base"] {
                place.blocklist(image)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let refuses = scope.spawn(|| {
                let refused = refuse();
                thread::sleep(Duration::from_millis(1500));
                ended.store(true, Ordering::Release);
                refused
            });
            while !ended.load(Ordering::Acquire) {
                let (block, version) = (writes % 500, (writes / 500) as u8);
                let begin = Instant::now();
                ensure!(write(&mut ring, block, version) == OK, "write {writes}: {}", daemon.output());
                ensure!(read(&mut ring, block) == contents(block, version), "write {writes}");
                ensure!(read(&mut snapshot, block) == vec![0; BLOCK as usize], "of the snapshot");
                longest = longest.max(begin.elapsed());
                writes += 1;
            }
            refuses.join().expect("no panic")
        })?;
    }
    println!("{writes} writes, the longest took {longest:?}");
    let said = daemon.output();
    ensure!(said.matches("an image is opened again, and its requests wait").count() == 6, "{said}");
    ensure!(said.matches("an image is open again").count() == 6, "{said}");
    for block in 0..500.min(writes) {
        let last = (writes - 1 - block) / 500;
        ensure!(read(&mut ring, block) == contents(block, last as u8), "block {block}");
    }
    // Nothing of those that were before is left.
    ensure!(place.cluster.run("rbd status disk")?.matches("watcher=").count() == 1);
    daemon.upgrade()?;
    ensure!(write(&mut ring, 1, 77) == OK && read(&mut ring, 1) == contents(1, 77));
    drop((ring, frontend, snapshot, other));
    daemon.stop()
}

#[test]
fn what_waits_for_a_cluster_ends_with_its_export() -> Result<()> {
    let mut place = Place::new()?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(write(&mut ring, 1, 1) == OK);
    place.signal_osd("STOP")?;
    daemon.upgrade()?;
    // It is this daemon's still, whoever asks for it there.
    let thief = json!({ "name": "thief", "storage": { "kind": "rbd", "image": "disk", "conf": place.conf() } });
    let refusal =
        daemon.client().send::<Disk>(Method::POST, "/v1/disks", &thief).expect_err("it is served").to_string();
    ensure!(refusal.contains("an opening of this image still waits"), "{refusal}");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ring.run(kind::IN, SECTORS_A_BLOCK, &[writable(READ_AT, BLOCK)]).0);
        eventually("a request", || Ok(daemon.ring("disk", 0)?.figures.in_flight > 0))?;
        ensure!(link(&daemon)?.state == LinkState::Opening);
        let begin = Instant::now();
        daemon.remove("disk", true)?;
        ensure!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        ensure!(waiting.join().expect("no panic") == status::IOERR, "it fails");
        Ok::<_, anyhow::Error>(())
    })?;
    drop((ring, frontend));
    daemon.stop()?;
    place.signal_osd("CONT")?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(read(&mut ring, 1) == contents(1, 1));
    // The same when the daemon is to end.
    place.signal_osd("STOP")?;
    daemon.upgrade()?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ring.run(kind::IN, SECTORS_A_BLOCK, &[writable(READ_AT, BLOCK)]).0);
        eventually("a request", || Ok(daemon.ring("disk", 0)?.figures.in_flight > 0))?;
        daemon.stop()?;
        ensure!(waiting.join().expect("no panic") == status::IOERR, "it fails");
        Ok::<_, anyhow::Error>(())
    })?;
    drop((ring, frontend));
    place.signal_osd("CONT")
}

/// The image and the snapshot, not their names.
#[test]
fn an_upgrade_finds_what_was_renamed_and_leaves_no_cache_behind() -> Result<()> {
    let mut place = Place::new()?;
    place.cluster.run("rbd create --size 64M base; rbd snap create base@old; rbd create --size 64M cached")?;
    place.cluster.run("rbd config image set cached rbd_cache true")?;
    let daemon = place.serve("")?;
    let (other, mut snapshot) = place.connect_to_snapshot(&daemon, "base")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(write(&mut ring, 1, 1) == OK && read(&mut snapshot, 1) == vec![0; BLOCK as usize]);
    place.cluster.run("rbd mv disk renamed; rbd create --size 64M disk; rbd snap rename base@old base@older; rbd snap create base@old")?;
    daemon.upgrade()?;
    ensure!(read(&mut ring, 1) == contents(1, 1) && write(&mut ring, 1, 2) == OK);
    ensure!(read(&mut snapshot, 1) == vec![0; BLOCK as usize]);
    drop((ring, frontend, snapshot, other));
    daemon.remove("old", true)?;
    let cached = json!({ "name": "cached", "storage": { "kind": "rbd", "image": "cached", "conf": place.conf() } });
    daemon.client().send::<Disk>(Method::POST, "/v1/disks", &cached)?;
    let refusal = daemon.upgrade().err().context("it has a cache")?.to_string();
    ensure!(refusal.contains("rbd/cached: what librbd has in its cache"), "{refusal}");
    daemon.client().order(Method::DELETE, "/v1/disks/cached")?;
    let storage = json!({ "kind": "rbd", "image": "cached", "conf": place.conf(), "migratable": true });
    let moves = json!({ "name": "cached", "storage": storage });
    let refusal =
        daemon.client().send::<Disk>(Method::POST, "/v1/disks", &moves).expect_err("it has a cache").to_string();
    ensure!(refusal.contains("rbd/cached has a cache of librbd's turned on by rbd_cache,"), "{refusal}");
    daemon.stop()
}
