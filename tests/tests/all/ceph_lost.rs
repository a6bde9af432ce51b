//! Images of a Ceph cluster that are lost to their guests: their locks were taken away, others have had them, or what a cache of them had is gone.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control::model::{Disk, Job, LinkState};
use engine::Solo;
use http::Method;
use rbd::{RbdOptions, RbdStorage};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use storage::{Operation, Storage, Task};
use testkit::storage::Arena;
use tests::ceph::{BLOCK, OK, Place, READ_AT, RING_SIZE, SECTORS_A_BLOCK, contents, eventually, link, read, write};
use tests::daemon::Daemon;
use tests::driver::writable;
use tests::frontend::{Frontend, kind, status};
use tests::vringd;
use values::OnLost;

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
    place.blocklist("base")?;
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
    place.blocklist("disk")?;
    place.cluster.run("rbd rm --no-progress disk; rbd create --size 32M disk")?;
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
    place.blocklist("disk")?;
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
    ensure!(write(&mut ring, 2, 2) == OK, "into the cache");
    place.blocklist("disk")?;
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

/// As COMPARE AND WRITE does: it writes over what it has read, and not over what is there by another's hand.
#[test]
fn what_rests_on_a_read_of_a_lost_image_is_not_written() -> Result<()> {
    let mut place = Place::new()?;
    let storage = RbdStorage::open(&RbdOptions { on_lost: OnLost::Wait, ..place.options("rbd/disk")? })?;
    let remote = storage.remote().context("it is on other machines")?;
    let state = || remote.link().map(|link| link.state);
    let was = vec![1; BLOCK as usize];
    let at = |block: u64| u64::from(BLOCK) * block;
    let mut solo = Solo::new()?;
    for block in 0..2 {
        testkit::storage::write(&mut solo, &storage, at(block), &was)?;
    }
    let (read, lost) = (Barrier::new(3), Barrier::new(3));
    let swap = |block: u64, follows: bool| {
        let (storage, was, read, lost) = (&storage, &was, &read, &lost);
        move || {
            let (mut solo, mut arena) = (Solo::new().expect("an io_uring"), Arena::new(BLOCK as usize));
            let mut task = Task::new();
            task.buffers = arena.buffers(0, BLOCK as usize, &[BLOCK as usize]);
            let offset = at(block);
            task.begin(Operation::Read { offset });
            testkit::storage::run(&mut solo, storage, &mut task).expect("it is there");
            assert_eq!(arena.bytes(0, BLOCK as usize), was);
            read.wait();
            lost.wait();
            arena.bytes(0, BLOCK as usize).fill(2);
            task.begin(Operation::Write { offset, durable: true });
            task.follows = follows;
            testkit::storage::run(&mut solo, storage, &mut task).is_ok()
        }
    };
    thread::scope(|scope| {
        let (rests, stands) = (scope.spawn(swap(0, true)), scope.spawn(swap(1, false)));
        read.wait();
        let taken = place.take_lock_away();
        lost.wait();
        taken?;
        eventually("a loss", || Ok(state() == Some(storage::LinkState::LostWaiting)))?;
        thread::sleep(Duration::from_millis(300));
        ensure!(!rests.is_finished() && !stands.is_finished(), "they wait");
        remote.open_again()?;
        ensure!(!rests.join().expect("no panic"), "somebody else may have written it");
        ensure!(stands.join().expect("no panic"), "it is to be done all the same");
        Ok::<_, anyhow::Error>(())
    })?;
    let mut block = |number: u64| testkit::storage::read(&mut solo, &storage, at(number), BLOCK as usize);
    ensure!(block(0) == was && block(1) == vec![2; BLOCK as usize]);
    Ok(())
}
