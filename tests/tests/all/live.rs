//! Snapshots, backups and mirrors of disks that are written all the time, and what they are worth: of which moment they are.
//!
//! One writer numbers its writes over all disks, and makes the next one when the last is answered. So what disks held at one moment are
//! the writes up to some number, and none behind it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use control::client::{Client, ClientError};
use control::model::{Bitmap, Disk, Job, JobState};
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::Rng;
use tests::daemon::{DIRECTORY, Daemon, refusal};
use tests::driver::{readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::lab::Lab;
use tests::qemu_img::{img, io_file};

const MIB: u64 = 1 << 20;
pub(crate) const BYTES: u64 = 24 * MIB;
/// What is written at once.
pub(crate) const BLOCK: u64 = 4096;
const LIMIT: Duration = Duration::from_secs(60);

/// The numbers of the last write of every block, by disk and block.
pub(crate) type Written = BTreeMap<(usize, u64), Vec<u64>>;

/// Writes numbers to disks in turn until it is told to stop; then all disks are read and compared. Says what was written when.
fn write_all(sockets: &[std::path::PathBuf], stop: &AtomicBool, last: &AtomicU64) -> Result<Written> {
    let mut frontends = sockets.iter().map(|path| Frontend::connect(path, 0)).collect::<Result<Vec<_>>>()?;
    let mut rings = frontends.iter_mut().map(|it| it.ring(0, 16)).collect::<Result<Vec<_>>>()?;
    let mut rng = Rng(0x5eed | 1);
    let mut written = Written::new();
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let disk = rng.below(rings.len() as u64) as usize;
        // Some of it again and again.
        let blocks = if rng.below(2) == 0 { 64 } else { BYTES / BLOCK };
        let block = rng.below(blocks);
        frontends[disk].memory().write(DATA, &number.to_le_bytes().repeat(BLOCK as usize / 8));
        let (said, _) = rings[disk].run(kind::OUT, block * BLOCK / 512, &[readable(DATA, BLOCK as u32)]);
        ensure!(said == status::OK, "write {number} has failed: {said}");
        written.entry((disk, block)).or_default().push(number);
        last.store(number, Ordering::Release);
    }
    for ((disk, block), numbers) in &written {
        let (said, _) = rings[*disk].run(kind::IN, block * BLOCK / 512, &[writable(DATA, BLOCK as u32)]);
        let bytes = frontends[*disk].memory().read(DATA, BLOCK as usize);
        let wanted = numbers.last().context("it was written")?.to_le_bytes().repeat(BLOCK as usize / 8);
        ensure!(said == status::OK && bytes == wanted, "block {block} of disk {disk} reads otherwise");
    }
    Ok(written)
}

/// Checks that these contents are those of one moment, and says of which.
pub(crate) fn moment(contents: &[Vec<u8>], written: &Written) -> Result<u64> {
    let at = |disk: usize, block: u64| {
        let bytes = &contents[disk][(block * BLOCK) as usize..][..BLOCK as usize];
        let number = u64::from_le_bytes(bytes[..8].try_into()?);
        ensure!(bytes == number.to_le_bytes().repeat(BLOCK as usize / 8), "block {block} of disk {disk} is torn");
        Ok(number)
    };
    let mut moment = 0;
    for (disk, bytes) in contents.iter().enumerate() {
        ensure!(bytes.len() as u64 == BYTES, "disk {disk} has {} bytes", bytes.len());
        for block in 0..BYTES / BLOCK {
            moment = moment.max(at(disk, block)?);
        }
    }
    for disk in 0..contents.len() {
        for block in 0..BYTES / BLOCK {
            let numbers = written.get(&(disk, block)).map_or(&[][..], Vec::as_slice);
            let wanted = numbers.iter().rev().find(|number| **number <= moment).copied().unwrap_or(0);
            let found = at(disk, block)?;
            ensure!(found == wanted, "block {block} of disk {disk}: {found}, and {wanted} as of write {moment}");
        }
    }
    Ok(moment)
}

/// What a program of QEMU's reads from an image, which it finds to be sound.
pub(super) fn contents(lab: &Lab, format: &str, image: &Path) -> Result<Vec<u8>> {
    let (from, to) = (image.display().to_string(), image.with_extension("flat").display().to_string());
    if format == "qcow2" {
        img(lab, &["check", &from])?.expect_success()?;
    }
    img(lab, &["convert", "-f", format, "-O", "raw", &from, &to])?.expect_success()?;
    Ok(fs::read(&to)?)
}

pub(crate) fn post<T: serde::de::DeserializeOwned>(
    client: &Client,
    target: &str,
    body: &Value,
) -> Result<T, ClientError> {
    client.send(Method::POST, target, body)
}

/// Waits until a job has come so far.
pub(crate) fn wait_job(client: &Client, id: u64, wanted: JobState) -> Result<Job> {
    let end = Instant::now() + LIMIT;
    loop {
        let job: Job = client.get(&format!("/v1/jobs/{id}"))?;
        if job.state == wanted {
            return Ok(job);
        }
        ensure!(!job.state.has_ended() && Instant::now() < end, "{job:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Some further writes.
pub(crate) fn go_on(last: &AtomicU64) -> Result<u64> {
    let (begin, end) = (last.load(Ordering::Acquire), Instant::now() + LIMIT);
    while last.load(Ordering::Acquire) < begin + 200 {
        ensure!(Instant::now() < end, "the writer does not get on");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(begin)
}

/// A daemon of two disks, and a writer on both while `act` does something to them; then what `check` finds.
pub(crate) fn under_load<T: Send>(
    storages: [&str; 2],
    directory: &TempDir,
    act: impl FnOnce(&Client, &AtomicU64) -> Result<T>,
) -> Result<(Daemon, Written, T)> {
    let export = |name: &str, storage: &str| {
        let storage = storage.replace("@AT@", directory.path().to_str().unwrap_or_default());
        format!(
            "[[export]]\nname = '{name}'\nsocket = '{DIRECTORY}/{name}.sock'\nqueues = 1\nstorage = {{ {storage} }}\n"
        )
    };
    let config = "workers = 2\n".to_owned() + &export("a", storages[0]) + &export("b", storages[1]);
    let daemon = Daemon::serve(&config)?;
    let sockets = [daemon.socket("a"), daemon.socket("b")];
    let (stop, last) = (AtomicBool::new(false), AtomicU64::new(0));
    let (written, acted) = thread::scope(|scope| {
        let writer = scope.spawn(|| write_all(&sockets, &stop, &last));
        let acted = go_on(&last).and_then(|_| act(daemon.client(), &last));
        stop.store(true, Ordering::Relaxed);
        let written = writer.join().expect("the writer does not panic");
        (written, acted)
    });
    let (written, acted) = match (written, acted) {
        (Ok(written), Ok(acted)) => (written, acted),
        (Err(error), _) | (_, Err(error)) => bail!("{error:?}\n{}", daemon.output()),
    };
    Ok((daemon, written, acted))
}

pub(crate) fn qcow2(lab: &Lab, directory: &TempDir, name: &str, options: &str) -> Result<String> {
    let path = directory.path().join(name).display().to_string();
    img(lab, &["create", "-q", "-f", "qcow2", "-o", options, &path, &BYTES.to_string()])?.expect_success()?;
    Ok("kind = 'qcow2', path = '@AT@/".to_owned() + name + "'")
}

#[test]
fn snapshots_of_two_disks_are_of_one_moment() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: String| directory.path().join(name);
    let a = qcow2(&lab, &directory, "a.qcow2", "cluster_size=4096")?;
    let b = qcow2(&lab, &directory, "b.qcow2", "extended_l2=on")?;
    const TAKEN: usize = 4;
    let (daemon, written, ()) = under_load([&a, &b], &directory, |client, last| {
        for number in 0..TAKEN {
            let to = |disk: &str| json!({ "disk": disk, "to": at(format!("{disk}-{number}.qcow2")) });
            let body = json!({ "disks": [to("a"), to("b")] });
            let shown: Vec<Disk> = post(client, "/v1/snapshots", &body)?;
            ensure!(shown[0].storage.target == at("a.qcow2".into()).display().to_string(), "{shown:?}");
            // Once more is refused, and changes nothing.
            let inode = fs::metadata(at("a.qcow2".into()))?.ino();
            let (code, http) = refusal(post::<Vec<Disk>>(client, "/v1/snapshots", &body));
            ensure!((code.as_str(), http) == ("unsupported", 409), "{code} {http}");
            ensure!(fs::metadata(at("a.qcow2".into()))?.ino() == inode, "it was replaced");
            go_on(last)?;
        }
        Ok(())
    })?;
    let mut moments = Vec::new();
    for number in 0..TAKEN {
        let read = |disk: &str| contents(&lab, "qcow2", &at(format!("{disk}-{number}.qcow2")));
        moments.push(moment(&[read("a")?, read("b")?], &written)?);
    }
    ensure!(moments.is_sorted_by(|one, next| one < next), "{moments:?}");
    // They are read by others while the disks go on, through an upgrade and behind it.
    daemon.upgrade()?;
    daemon.stop()?;
    let now = [contents(&lab, "qcow2", &at("a.qcow2".into()))?, contents(&lab, "qcow2", &at("b.qcow2".into()))?];
    let last = written.values().flatten().copied().max();
    ensure!(Some(moment(&now, &written)?) == last, "the disks are as of the last write");
    let hidden = fs::read_dir(directory.path())?.filter_map(|it| it.ok()?.file_name().into_string().ok());
    ensure!(hidden.into_iter().all(|name| !name.starts_with('.')), "something was left over");
    Ok(())
}

#[test]
fn backups_are_of_one_moment_whatever_the_disks_are() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: &str| directory.path().join(name);
    let a = qcow2(&lab, &directory, "a.qcow2", "cluster_size=65536")?;
    fs::File::create(at("b.raw"))?.set_len(BYTES)?;
    let (daemon, written, begun) = under_load(
        [&a, "kind = 'file', path = '@AT@/b.raw'"],
        &directory,
        |client, last| {
            let copy =
                |disk: &str, name: &str, format: &str| json!({ "disk": disk, "target": at(name), "format": format });
            let body = json!({ "kind": "backup", "disks": [copy("a", "a-1", "raw"), copy("b", "b-1", "qcow2")], "limit": 8 << 20 });
            let before = last.load(Ordering::Acquire);
            let job: Job = post(client, "/v1/jobs", &body)?;
            let after = go_on(last)?;
            // One at a time, and nothing that would pull the disk away.
            for (method, target) in [(Method::POST, "/v1/jobs"), (Method::DELETE, "/v1/exports/a?force=true")] {
                let said = client.call(
                    method.clone(),
                    target,
                    (method == Method::POST).then(|| body.to_string().into_bytes()),
                );
                let (code, http) = refusal(said);
                ensure!(http == 409, "{target}: {code} {http}");
            }
            ensure!(client.send::<Value>(Method::POST, "/v1/upgrade", &json!({})).is_err(), "a job would be lost");
            let _: Job = client.send(Method::PATCH, &format!("/v1/jobs/{}", job.id), &json!({ "limit": null }))?;
            let done = wait_job(client, job.id, JobState::Done)?;
            ensure!(done.done_bytes == 2 * BYTES && done.total_bytes == 2 * BYTES, "{done:?}");
            // One that is cancelled leaves nothing, and the disks go on.
            let body = json!({ "kind": "backup", "disks": [copy("a", "a-2", "qcow2")], "limit": 1 << 20 });
            let job: Job = post(client, "/v1/jobs", &body)?;
            go_on(last)?;
            client.order(Method::DELETE, &format!("/v1/jobs/{}", job.id))?;
            wait_job(client, job.id, JobState::Cancelled)?;
            ensure!(!at("a-2").exists(), "an unfinished copy is left");
            go_on(last)?;
            Ok((before, after))
        },
    )?;
    let moment = moment(&[contents(&lab, "raw", &at("a-1"))?, contents(&lab, "qcow2", &at("b-1"))?], &written)?;
    ensure!((begun.0..=begun.1 + 1).contains(&moment), "of {moment}, and it began in {begun:?}");
    daemon.stop()
}

#[test]
fn mirrored_disks_live_on_in_their_targets() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: &str| directory.path().join(name);
    let a = qcow2(&lab, &directory, "a.qcow2", "cluster_size=65536")?;
    fs::File::create(at("b.raw"))?.set_len(BYTES)?;
    let (daemon, written, ()) = under_load([&a, "kind = 'file', path = '@AT@/b.raw'"], &directory, |client, last| {
        // There and back again, and to another format.
        for (disk, target, format) in
            [("a", "a-1.raw", "raw"), ("b", "b-1.qcow2", "qcow2"), ("a", "a-2.qcow2", "qcow2")]
        {
            let body = json!({ "kind": "mirror", "disk": disk, "target": at(target), "format": format });
            let job: Job = post(client, "/v1/jobs", &body)?;
            wait_job(client, job.id, JobState::Ready)?;
            go_on(last)?;
            let _: Job = client.post(&format!("/v1/jobs/{}/complete", job.id))?;
            wait_job(client, job.id, JobState::Done)?;
            let shown: Disk = client.get(&format!("/v1/disks/{disk}"))?;
            ensure!(shown.storage.target == at(target).display().to_string(), "{shown:?}");
            go_on(last)?;
        }
        // What was left behind is nobody's.
        io_file(&lab, "raw", &at("b.raw"), &["write -P 1 0 512"])?.expect_success()?;
        // One that is cancelled leaves nothing.
        let body = json!({ "kind": "mirror", "disk": "b", "target": at("b-2.qcow2") });
        let job: Job = post(client, "/v1/jobs", &body)?;
        wait_job(client, job.id, JobState::Ready)?;
        client.order(Method::DELETE, &format!("/v1/jobs/{}", job.id))?;
        ensure!(!at("b-2.qcow2").exists(), "a copy that nobody wants is left");
        go_on(last)?;
        Ok(())
    })?;
    daemon.upgrade()?;
    daemon.stop()?;
    let now = [contents(&lab, "qcow2", &at("a-2.qcow2"))?, contents(&lab, "qcow2", &at("b-1.qcow2"))?];
    let last = written.values().flatten().copied().max();
    ensure!(Some(moment(&now, &written)?) == last, "the disks are as of the last write");
    // What was left behind is sound.
    contents(&lab, "qcow2", &at("a.qcow2"))?;
    Ok(())
}

#[test]
fn incremental_backups_are_links_of_a_chain() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: &str| directory.path().join(name);
    let a = qcow2(&lab, &directory, "a.qcow2", "cluster_size=65536")?;
    let b = qcow2(&lab, &directory, "b.qcow2", "cluster_size=65536")?;
    // Links may lie anywhere.
    let places = ["a.0", "one/a.1", "two/a.2", "one/a.3"].map(&at);
    ["one", "two"].iter().try_for_each(|name| fs::create_dir(at(name)))?;
    let bitmaps = |client: &Client| client.get::<Vec<Bitmap>>("/v1/disks/a/bitmaps");
    let link = |number: usize, limit: Option<u64>| {
        let backing = number.checked_sub(1).map(|before| &places[before]);
        let copy = json!({ "disk": "a", "target": places[number], "bitmap": "daily", "backing": backing });
        json!({ "kind": "backup", "disks": [copy], "limit": limit })
    };
    let (daemon, written, ()) = under_load([&a, &b], &directory, |client, last| {
        let mut copied_bytes = Vec::new();
        for (number, place) in places.iter().take(3).enumerate() {
            // One that is cancelled takes nothing away, and begins nothing.
            let job: Job = post(client, "/v1/jobs", &link(number, Some(64 << 10)))?;
            ensure!(job.disks[0].incremental == (number > 0), "{job:?}");
            go_on(last)?;
            client.order(Method::DELETE, &format!("/v1/jobs/{}", job.id))?;
            ensure!(!place.exists(), "an unfinished copy is left");
            ensure!(bitmaps(client)?.len() == number.min(1), "a bitmap is left, or lost");
            let job: Job = post(client, "/v1/jobs", &link(number, None))?;
            ensure!(job.disks[0].incremental == (number > 0), "{job:?}");
            let done = wait_job(client, job.id, JobState::Done)?;
            copied_bytes.push(done.total_bytes);
            go_on(last)?;
        }
        // Where something keeps us, the guest may write all of it in between; not twice.
        let (first, later) = (copied_bytes[0], copied_bytes[1..].iter().min());
        ensure!(first == BYTES && later.is_some_and(|bytes| *bytes < BYTES), "{copied_bytes:?}");
        Ok(())
    })?;
    let moments = places.iter().take(3).map(|place| moment(&[contents(&lab, "qcow2", place)?], &written));
    let moments = moments.collect::<Result<Vec<_>>>()?;
    ensure!(moments.is_sorted_by(|one, next| one < next), "{moments:?}");
    // What was written since is known to the next program, and to the one after a restart.
    daemon.upgrade()?;
    daemon.stop()?;
    let a = a.replace("@AT@", directory.path().to_str().context("UTF-8")?);
    let daemon = Daemon::serve(&format!("[[disk]]\nname = 'a'\nstorage = {{ {a} }}\n"))?;
    let job: Job = post(daemon.client(), "/v1/jobs", &link(3, None))?;
    wait_job(daemon.client(), job.id, JobState::Done)?;
    // A disk is free when its job is over.
    daemon.client().order(Method::DELETE, "/v1/disks/a")?;
    let now = contents(&lab, "qcow2", &at("a.qcow2"))?;
    ensure!(contents(&lab, "qcow2", &places[3])? == now, "the last link is not the disk");
    ensure!(
        Some(moment(&[now], &written)?)
            == written.iter().filter(|((disk, _), _)| *disk == 0).flat_map(|(_, n)| n).copied().max(),
        "the disk is as of its last write"
    );
    daemon.stop()
}

#[test]
fn bitmaps_that_do_not_know_are_refused() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: &str| directory.path().join(name);
    qcow2(&lab, &directory, "a.qcow2", "cluster_size=65536")?;
    let storage = format!("kind = 'qcow2', path = '{}'", at("a.qcow2").display());
    let config =
        format!("[[export]]\nname = 'a'\nsocket = '{DIRECTORY}/a.sock'\nqueues = 1\nstorage = {{ {storage} }}\n");
    let bitmaps = |daemon: &Daemon| daemon.client().get::<Vec<Bitmap>>("/v1/disks/a/bitmaps");
    let write = |daemon: &Daemon| -> Result<()> {
        let mut frontend = Frontend::connect(&daemon.socket("a"), 0)?;
        let mut ring = frontend.ring(0, 16)?;
        frontend.memory().write(DATA, &[7; BLOCK as usize]);
        ensure!(ring.run(kind::OUT, 256, &[readable(DATA, BLOCK as u32)]).0 == status::OK, "it is written");
        Ok(())
    };
    let backup = |daemon: &Daemon, target: &str, bitmap: Option<&str>, force: bool| {
        let copy = json!({ "disk": "a", "target": at(target), "bitmap": bitmap, "force": force });
        post::<Job>(daemon.client(), "/v1/jobs", &json!({ "kind": "backup", "disks": [copy] }))
    };
    let daemon = Daemon::serve(&config)?;
    ensure!(bitmaps(&daemon)?.is_empty(), "there is none yet");
    let added: Bitmap = post(daemon.client(), "/v1/disks/a/bitmaps", &json!({ "name": "a/b" }))?;
    ensure!((added.granularity_bytes, added.dirty_bytes, added.consistent) == (64 << 10, 0, true), "{added:?}");
    let (code, http) = refusal(post::<Bitmap>(daemon.client(), "/v1/disks/a/bitmaps", &json!({ "name": "a/b" })));
    ensure!((code.as_str(), http) == ("unsupported", 409), "{code} {http}");
    write(&daemon)?;
    ensure!(bitmaps(&daemon)?[0].dirty_bytes == 64 << 10, "a write is not seen");
    daemon.stop()?;

    // It goes on, and does not know of what a daemon did that was killed.
    let daemon = Daemon::serve(&config)?;
    ensure!(bitmaps(&daemon)?[0].dirty_bytes == 64 << 10, "it does not go on");
    write(&daemon)?;
    drop(daemon);
    let daemon = Daemon::serve(&config)?;
    let all = bitmaps(&daemon)?;
    ensure!(all.len() == 1 && !all[0].consistent, "{all:?}");
    // What is refused has overwritten nothing.
    fs::write(at("old"), "precious")?;
    let (code, http) = refusal(backup(&daemon, "old", Some("a/b"), true));
    ensure!((code.as_str(), http) == ("invalid-field", 422), "{code} {http}");
    let copies =
        [json!({ "disk": "a", "target": at("old"), "force": true }), json!({ "disk": "o", "target": at("o") })];
    let both = post::<Job>(daemon.client(), "/v1/jobs", &json!({ "kind": "backup", "disks": copies }));
    ensure!(refusal(both).1 == 404, "there is no such disk");
    ensure!(fs::read(at("old"))? == b"precious", "it was overwritten");

    daemon.client().order(Method::DELETE, "/v1/disks/a/bitmaps/a%2Fb")?;
    ensure!(bitmaps(&daemon)?.is_empty(), "it is left");
    let (code, http) = refusal(daemon.client().order(Method::DELETE, "/v1/disks/a/bitmaps/a%2Fb"));
    ensure!((code.as_str(), http) == ("no-such-bitmap", 404), "{code} {http}");
    let job = backup(&daemon, "old", Some("a/b"), true)?;
    ensure!(!job.disks[0].incremental, "{job:?}");
    wait_job(daemon.client(), job.id, JobState::Done)?;
    daemon.stop()?;
    ensure!(contents(&lab, "qcow2", &at("old"))? == contents(&lab, "qcow2", &at("a.qcow2"))?, "the backup is the disk");
    Ok(())
}

#[test]
fn a_refused_job_overwrites_nothing_and_begins_no_bitmap() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: &str| directory.path().join(name);
    qcow2(&lab, &directory, "old.qcow2", "compat=0.10")?;
    qcow2(&lab, &directory, "a.qcow2", "cluster_size=65536")?;
    qcow2(&lab, &directory, "b.qcow2", "cluster_size=65536")?;
    let disk = |name: &str| {
        let path = at(&format!("{name}.qcow2")).display().to_string();
        format!("[[disk]]\nname = '{name}'\nstorage = {{ kind = 'qcow2', path = '{path}' }}\n")
    };
    let daemon = Daemon::serve(&["old", "a", "b"].map(disk).concat())?;
    let backup = |disks: &[(&str, &str)]| {
        let copy = |(disk, target): &(&str, &str)| json!({ "disk": disk, "target": at(target), "bitmap": "daily", "force": true });
        let disks: Vec<Value> = disks.iter().map(copy).collect();
        post::<Job>(daemon.client(), "/v1/jobs", &json!({ "kind": "backup", "disks": disks }))
    };
    fs::write(at("precious"), "precious")?;
    fs::create_dir(at("directory"))?;
    // A bitmap that cannot be, and a second target that cannot.
    for disks in [&[("old", "precious")][..], &[("a", "precious"), ("b", "directory")]] {
        let (code, http) = refusal(backup(disks));
        ensure!((code.as_str(), http) == ("invalid-field", 422), "{disks:?}: {code} {http}");
        ensure!(fs::read(at("precious"))? == b"precious", "{disks:?}: it was overwritten");
    }
    let bitmaps = |disk: &str| daemon.client().get::<Vec<Bitmap>>(&format!("/v1/disks/{disk}/bitmaps"));
    ensure!(bitmaps("a")?.is_empty() && bitmaps("b")?.is_empty(), "a bitmap is left");
    // Two at once: one begins the bitmap, with a full copy, and the other one is refused.
    for round in 0..8 {
        let names = [format!("one.{round}"), format!("two.{round}"), format!("three.{round}")];
        let (one, two) = thread::scope(|scope| {
            let one = scope.spawn(|| backup(&[("a", &names[0]), ("b", &names[1])]));
            let two = backup(&[("a", &names[2])]);
            (one.join().expect("it does not panic"), two)
        });
        for job in [&one, &two].into_iter().flatten() {
            wait_job(daemon.client(), job.id, JobState::Done)?;
        }
        let full = [&one, &two].into_iter().flatten().filter(|job| !job.disks[0].incremental).count();
        ensure!(full == 1 && bitmaps("a")?.len() == 1, "round {round}: {one:?}, {two:?}");
        for disk in ["a", "b"] {
            let _ = daemon.client().order(Method::DELETE, &format!("/v1/disks/{disk}/bitmaps/daily"));
        }
    }
    daemon.stop()
}

#[test]
fn disks_are_as_before_when_their_jobs_are_over() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: &str| directory.path().join(name);
    fs::File::create(at("d.raw"))?.set_len(BYTES)?;
    let disk = format!("[[disk]]\nname = 'd'\nstorage = {{ kind = 'file', path = '{}' }}\n", at("d.raw").display());
    let export = format!("[[export]]\nname = 'e'\nsocket = '{DIRECTORY}/e.sock'\nqueues = 1\ndisk = 'd'\n");
    let daemon = Daemon::serve(&(disk + &export))?;
    for number in 0..3 {
        let copy = json!({ "disk": "d", "target": at(&format!("copy.{number}")) });
        let job: Job = post(daemon.client(), "/v1/jobs", &json!({ "kind": "backup", "disks": [copy] }))?;
        wait_job(daemon.client(), job.id, JobState::Done)?;
    }
    daemon.upgrade()?;
    daemon.remove("e", false)?;
    let socket = daemon.socket("e");
    let again = json!({ "name": "e", "socket": socket, "queues": 1, "disk": "d" });
    let _: Value = post(daemon.client(), "/v1/exports", &again)?;
    // Its own image is no target, whatever locks there are.
    for target in ["d.raw", "linked"] {
        let _ = std::os::unix::fs::symlink(at("d.raw"), at("linked"));
        let copy = json!({ "disk": "d", "target": at(target), "force": true });
        let (code, http) =
            refusal(post::<Job>(daemon.client(), "/v1/jobs", &json!({ "kind": "backup", "disks": [copy] })));
        ensure!((code.as_str(), http) == ("invalid-field", 422), "{code} {http}");
    }
    daemon.remove("e", false)?;
    daemon.client().order(Method::DELETE, "/v1/disks/d")?;
    io_file(&lab, "raw", &at("d.raw"), &["write -P 1 0 512"])?.expect_success()?;
    daemon.stop()
}
