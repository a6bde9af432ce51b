//! Images of a Ceph cluster that are opened again while their guests run: behind a live upgrade, where the cluster has come to refuse the daemon,
//! and in the hands of another daemon.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control::model::{Disk, Export, Job, LinkInfo, LinkState};
use http::Method;
use rbd::RbdStorage;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tests::ceph::{BLOCK, OK, Place, READ_AT, RING_SIZE, SECTORS_A_BLOCK, contents, eventually, read, write};
use tests::daemon::Daemon;
use tests::driver::writable;
use tests::frontend::{Frontend, kind, status};
use tests::vringd;

fn link(daemon: &Daemon) -> Result<LinkInfo> {
    daemon.client().get::<Disk>("/v1/disks/disk")?.storage.link.context("it is on other machines")
}

/// The address of the one client that has an image open.
fn watcher(place: &mut Place, image: &str) -> Result<String> {
    let status = place.cluster.run(&format!("rbd status {image}"))?;
    let address = status.split("watcher=").nth(1).and_then(|rest| rest.split(' ').next());
    Ok(address.with_context(|| format!("a watcher: {status}"))?.to_owned())
}

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
    for words in ["image=rbd/disk reason=\"its lock was taken away\"", "rbd/base@old reason=\"it was removed\""] {
        ensure!(said.contains(words), "{said}");
    }
    let refusal = daemon.upgrade().err().context("there is nothing to go on with")?.to_string();
    ensure!(refusal.contains("it is lost to its guest"), "{refusal}");
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

/// A guest that stops and goes on is the same guest: it knows what the disk was like.
#[test]
fn a_lost_image_that_was_given_up_waits_for_a_word() -> Result<()> {
    let mut place = Place::new()?;
    let daemon = place.serve(", migratable = true")?;
    let (mut frontend, mut ring) = place.connect()?;
    ensure!(write(&mut ring, 1, 1) == OK);
    let refusal = daemon.client().send::<Disk>(Method::POST, "/v1/disks/disk/reopen", &());
    ensure!(refusal.expect_err("it is open").to_string().contains("it is open"));
    place.take_lock_away()?;
    eventually("a refusal", || Ok(write(&mut ring, 1, 2) != OK))?;
    frontend.stop(&ring)?;
    drop((ring, frontend));
    daemon.wait_disconnected("disk")?;
    let lost = link(&daemon)?;
    ensure!(lost.state == LinkState::Lost && lost.reason.as_deref() == Some("its lock was taken away"), "{lost:?}");
    ensure!(place.cluster.run("rbd lock ls disk")?.trim().is_empty(), "it is kept");
    {
        let mut again = Frontend::connect(&place.path("disk.sock"), 0)?;
        let served = again.ring(0, RING_SIZE).map(|mut ring| write(&mut ring, 1, 3) == OK);
        ensure!(!served.unwrap_or(false), "somebody may have written it");
    }
    ensure!(daemon.output().contains("may have been another's since"), "{}", daemon.output());
    daemon.wait_disconnected("disk")?;
    let refusal = daemon.upgrade().err().context("it would be forgotten")?.to_string();
    ensure!(refusal.contains("was lost to its guest"), "{refusal}");
    daemon.client().send::<Disk>(Method::POST, "/v1/disks/disk/reopen", &())?;
    daemon.upgrade()?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(read(&mut ring, 1) == contents(1, 1) && write(&mut ring, 1, 3) == OK);
    ensure!(link(&daemon)?.state == LinkState::Open);
    drop((ring, frontend));
    daemon.stop()
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
                let address = watcher(&mut place, image)?;
                place.cluster.run(&format!("ceph osd blocklist add {address} 2>&1"))?;
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
fn what_is_lost_is_opened_again_when_somebody_says_so() -> Result<()> {
    let mut place = Place::new()?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(write(&mut ring, 1, 1) == OK);
    let ctl = |word: &str| -> Result<String> {
        let mut ctl = Command::new(vringd::program()?);
        ctl.arg("ctl").arg("--control").arg(daemon.path().join("control.sock")).args(["disk", word, "disk"]);
        let output = ctl.output()?;
        Ok(format!("{}{}", String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
    };
    let reopen = || ctl("reopen");
    let refusal = reopen()?;
    ensure!(refusal.contains("it is open") && refusal.lines().count() == 1, "{refusal}");
    place.take_lock_away()?;
    eventually("a refusal", || Ok(write(&mut ring, 1, 2) != OK))?;
    let lost = link(&daemon)?;
    ensure!(lost.state == LinkState::Lost && lost.reason.as_deref() == Some("its lock was taken away"), "{lost:?}");
    let shown = ctl("show")?;
    ensure!(shown.contains("lost, requests fail for ") && shown.contains(" s: its lock was taken away"), "{shown}");
    // Whoever has it may write it.
    let other = RbdStorage::open(&place.options("rbd/disk")?)?;
    reopen()?;
    eventually("an answer", || Ok(link(&daemon)?.state == LinkState::Lost))?;
    let lost = link(&daemon)?;
    ensure!(lost.reason.as_deref().is_some_and(|why| why.contains("of this machine serves it")), "{lost:?}");
    drop(other);
    reopen()?;
    eventually("an image", || Ok(link(&daemon)?.state == LinkState::Open))?;
    ensure!(read(&mut ring, 1) == contents(1, 1) && write(&mut ring, 1, 3) == OK);
    let local = json!({ "name": "local", "storage": { "kind": "null", "size": "1M" } });
    daemon.client().send::<Disk>(Method::POST, "/v1/disks", &local)?;
    let refusal = daemon.client().send::<Disk>(Method::POST, "/v1/disks/local/reopen", &());
    ensure!(refusal.expect_err("it is here").to_string().contains("is on this machine"));
    drop((ring, frontend));
    // Killed, it is followed at once: what was opened again is signed.
    drop(daemon);
    let begin = Instant::now();
    let daemon = place.serve("")?;
    ensure!(begin.elapsed() < Duration::from_secs(10), "the lock was waited for: {:?}", begin.elapsed());
    daemon.stop()
}

/// A guest whose requests wait hears nothing of it; nor does one whose disk goes meanwhile hear more than an error.
#[test]
fn requests_of_what_is_lost_wait_for_a_word_where_they_are_to() -> Result<()> {
    let mut place = Place::new()?;
    let refusal = place.refused(&["serve", &place.written(", migratable = true, on_lost = 'wait'")?])?;
    ensure!(refusal.contains("storage.migratable") && refusal.contains("`on_lost = \"wait\"`"), "{refusal}");
    let daemon = place.serve(", on_lost = 'wait'")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(write(&mut ring, 1, 1) == OK);
    let wait_until_lost = || eventually("a loss", || Ok(link(&daemon)?.state == LinkState::LostWaiting));
    place.take_lock_away()?;
    thread::scope(|scope| {
        // Many, so that some meet the loss and some come behind it.
        let waiting = scope.spawn(|| {
            let written = (2..40).all(|block| write(&mut ring, block, 2) == OK);
            written && (2..40).all(|block| read(&mut ring, block) == contents(block, 2))
        });
        wait_until_lost()?;
        eventually("a request", || Ok(daemon.ring("disk", 0)?.figures.in_flight > 0))?;
        let lost = link(&daemon)?;
        ensure!(lost.reason.as_deref() == Some("its lock was taken away"), "{lost:?}");
        let said = daemon.output();
        ensure!(said.contains("an image is lost to its guest, whose requests wait"), "{said}");
        let metrics = daemon.client().text("/metrics")?;
        ensure!(metrics.contains("vringd_disk_lost{disk=\"disk\"} 1"), "{metrics}");
        // Somebody else has it: the word was spoken too early.
        let other = RbdStorage::open(&place.options("rbd/disk")?)?;
        daemon.client().send::<Disk>(Method::POST, "/v1/disks/disk/reopen", &())?;
        wait_until_lost()?;
        ensure!(!waiting.is_finished(), "nobody has answered it");
        drop(other);
        daemon.client().send::<Disk>(Method::POST, "/v1/disks/disk/reopen", &())?;
        ensure!(waiting.join().expect("no panic"), "all are done, each with its own data");
        Ok::<_, anyhow::Error>(())
    })?;
    ensure!(read(&mut ring, 1) == contents(1, 1) && link(&daemon)?.state == LinkState::Open);
    place.take_lock_away()?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let end = Instant::now() + Duration::from_secs(60);
            // The first that meets a lost image is done again, and waits.
            while Instant::now() < end {
                if write(&mut ring, 3, 3) != OK {
                    return true;
                }
            }
            false
        });
        wait_until_lost()?;
        eventually("a request", || Ok(daemon.ring("disk", 0)?.figures.in_flight > 0))?;
        daemon.remove("disk", true)?;
        ensure!(waiting.join().expect("no panic"), "it fails");
        Ok::<_, anyhow::Error>(())
    })?;
    drop((ring, frontend));
    daemon.stop()
}

/// A job is in front of the disk it copies, and knows nothing of a cluster.
#[test]
fn a_job_hides_no_loss_and_ends_with_its_daemon() -> Result<()> {
    let mut place = Place::new()?;
    let daemon = place.serve(", on_lost = 'wait'")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(write(&mut ring, 1, 1) == OK);
    let copy = json!({ "disk": "disk", "target": place.path("copy.raw"), "format": "raw" });
    let backup = json!({ "kind": "backup", "disks": [copy], "limit": 1 << 20 });
    daemon.client().send::<Job>(Method::POST, "/v1/jobs", &backup)?;
    for reopens in [true, false] {
        place.take_lock_away()?;
        thread::scope(|scope| {
            let waiting = scope.spawn(|| write(&mut ring, 2, 2));
            eventually("a loss", || Ok(link(&daemon)?.state == LinkState::LostWaiting))?;
            ensure!(daemon.client().text("/metrics")?.contains("vringd_disk_lost{disk=\"disk\"} 1"));
            eventually("a request", || Ok(daemon.ring("disk", 0)?.figures.in_flight > 0))?;
            if reopens {
                daemon.client().send::<Disk>(Method::POST, "/v1/disks/disk/reopen", &())?;
                ensure!(waiting.join().expect("no panic") == OK, "it is done");
                return Ok(());
            }
            let (begin, pid) = (Instant::now(), Pid::from_raw(daemon.id() as i32).context("a process")?);
            kill_process(pid, Signal::TERM)?;
            ensure!(waiting.join().expect("no panic") == status::IOERR, "it fails");
            ensure!(begin.elapsed() < Duration::from_secs(5), "the job was waited for: {:?}", begin.elapsed());
            Ok::<_, anyhow::Error>(())
        })?;
    }
    drop((ring, frontend));
    daemon.stop()
}

/// What is served to two, and lost to both, is let go of by both.
#[test]
fn what_two_wait_for_ends_with_the_second() -> Result<()> {
    let mut place = Place::new()?;
    let export = |name: &str| {
        let socket = place.path(&format!("{name}.sock"));
        format!("[[export]]\nname = '{name}'\nsocket = '{}'\ndisk = 'disk'\n", socket.display())
    };
    let (first, second) = (export("first"), export("second"));
    let storage =
        format!("{{ kind = 'rbd', image = 'disk', conf = '{}', read_only = true, on_lost = 'wait' }}", place.conf());
    let daemon = Daemon::serve(&format!("[[disk]]\nname = 'disk'\nstorage = {storage}\n{first}{second}"))?;
    let mut frontends =
        [Frontend::connect(&place.path("first.sock"), 0)?, Frontend::connect(&place.path("second.sock"), 0)?];
    let [first, second] = &mut frontends;
    let mut rings = [first.ring(0, RING_SIZE)?, second.ring(0, RING_SIZE)?];
    for ring in &mut rings {
        ensure!(read(ring, 1) == vec![0; BLOCK as usize]);
    }
    // While the daemon sees nothing, its client is refused, and another image takes the name of its own.
    let pid = Pid::from_raw(daemon.id() as i32).context("a process")?;
    kill_process(pid, Signal::STOP)?;
    let address = watcher(&mut place, "disk")?;
    place.cluster.run(&format!(
        "ceph osd blocklist add {address} 2>&1; rbd rm --no-progress disk; rbd create --size 32M disk"
    ))?;
    kill_process(pid, Signal::CONT)?;
    let ask = |ring: &mut tests::driver::Ring| ring.run(kind::IN, SECTORS_A_BLOCK, &[writable(READ_AT, BLOCK)]).0;
    thread::scope(|scope| {
        let waiting: Vec<_> = rings.iter_mut().map(|ring| scope.spawn(move || ask(ring))).collect();
        eventually("a loss", || Ok(link(&daemon)?.state == LinkState::LostWaiting))?;
        for export in ["first", "second"] {
            eventually("a request", || Ok(daemon.ring(export, 0)?.figures.in_flight > 0))?;
        }
        // What is there by the name is not what its guests know.
        daemon.client().send::<Disk>(Method::POST, "/v1/disks/disk/reopen", &())?;
        eventually("an answer", || Ok(link(&daemon)?.state == LinkState::LostWaiting))?;
        let lost = link(&daemon)?;
        ensure!(lost.reason.as_deref().is_some_and(|why| why.contains("was removed")), "{lost:?}");
        ensure!(waiting.iter().all(|waiting| !waiting.is_finished()), "nobody has answered");
        ensure!(daemon.remove("first", true).is_err(), "the other one's requests wait there, too");
        daemon.remove("second", true)?;
        ensure!(waiting.into_iter().all(|waiting| waiting.join().expect("no panic") == status::IOERR), "they fail");
        Ok::<_, anyhow::Error>(())
    })?;
    daemon.remove("first", true)?;
    drop((rings, frontends));
    daemon.client().order(Method::DELETE, "/v1/disks/disk")?;
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

/// What it had answered is gone, which no opening brings back.
#[test]
fn a_cache_that_is_lost_is_told() -> Result<()> {
    let mut place = Place::new()?;
    place
        .cluster
        .run("rbd config image set disk rbd_cache true; rbd config image set disk rbd_cache_policy writeback")?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(write(&mut ring, 1, 1) == OK && ring.run(kind::FLUSH, 0, &[]).0 == OK);
    let address = watcher(&mut place, "disk")?;
    place.cluster.run(&format!("ceph osd blocklist add {address} 2>&1"))?;
    eventually("an error", || {
        write(&mut ring, 2, 2);
        Ok(ring.run(kind::FLUSH, 0, &[]).0 == status::IOERR)
    })?;
    let lost = link(&daemon)?;
    ensure!(lost.state == LinkState::Lost && lost.reason.is_some_and(|why| why.contains("in its cache is gone")));
    ensure!(write(&mut ring, 2, 2) == status::IOERR, "for good");
    daemon.client().send::<Disk>(Method::POST, "/v1/disks/disk/reopen", &())?;
    eventually("an image", || Ok(link(&daemon)?.state == LinkState::Open))?;
    ensure!(read(&mut ring, 1) == contents(1, 1) && write(&mut ring, 2, 3) == OK);
    ensure!(ring.run(kind::FLUSH, 0, &[]).0 == OK);
    drop((ring, frontend));
    daemon.stop()
}

/// To a guest that only reads until all seems well again; nor does it help to want requests to wait.
#[test]
fn a_cache_that_is_lost_is_told_by_the_next_flush() -> Result<()> {
    let mut place = Place::new()?;
    place.cluster.run(
        "rbd config image set disk rbd_cache true; rbd config image set disk rbd_cache_policy writeback
         rbd config image set disk rbd_cache_writethrough_until_flush false; rbd config image set disk rbd_cache_max_dirty_age 600
         rbd bench --io-type write --io-size 4K --io-threads 1 --io-total 4M disk",
    )?;
    let daemon = place.serve(", on_lost = 'wait'")?;
    let (frontend, mut ring) = place.connect()?;
    ensure!(write(&mut ring, 1, 1) == OK && ring.run(kind::FLUSH, 0, &[]).0 == OK);
    let address = watcher(&mut place, "disk")?;
    ensure!(write(&mut ring, 2, 2) == OK, "into the cache");
    place.cluster.run(&format!("ceph osd blocklist add {address} 2>&1"))?;
    let mut reads = 0;
    eventually("a loss", || {
        // Another one each time, which no cache has.
        reads += 1;
        ring.run(kind::IN, (100 + 37 * reads % 900) * SECTORS_A_BLOCK, &[writable(READ_AT, BLOCK)]);
        Ok(link(&daemon)?.state == LinkState::Lost)
    })?;
    // Somebody has it, so that it stays lost; and its requests fail as before.
    let other = RbdStorage::open(&place.options("rbd/disk")?)?;
    daemon.client().send::<Disk>(Method::POST, "/v1/disks/disk/reopen", &())?;
    let is_locked = || Ok(link(&daemon)?.reason.is_some_and(|why| why.contains("of this machine serves it")));
    eventually("an answer", is_locked)?;
    ensure!(link(&daemon)?.state == LinkState::Lost, "{:?}", link(&daemon)?);
    drop(other);
    daemon.client().send::<Disk>(Method::POST, "/v1/disks/disk/reopen", &())?;
    eventually("an image", || Ok(link(&daemon)?.state == LinkState::Open))?;
    ensure!(read(&mut ring, 2) != contents(2, 2), "it is gone");
    ensure!(ring.run(kind::FLUSH, 0, &[]).0 == status::IOERR, "which is told");
    ensure!(ring.run(kind::FLUSH, 0, &[]).0 == OK, "once");
    drop((ring, frontend));
    daemon.stop()
}
