//! Chains of images that get shorter while somebody writes all the time.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Result, ensure};
use control::client::Client;
use control::model::{Disk, Job, JobState};
use http::Method;
use serde_json::json;
use tempfile::TempDir;
use tests::daemon::{DIRECTORY, Daemon, refusal};
use tests::driver::{Ring, readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::lab::Lab;
use tests::qemu_img::{img, io_file};

use super::live::{BLOCK, BYTES, contents, go_on, moment, post, qcow2, under_load, wait_job};

/// The images of which a disk is made, as a program of QEMU's finds them.
fn chain(lab: &Lab, image: &Path) -> Result<usize> {
    let told = img(lab, &["info", "-U", "--backing-chain", "--output=json", &image.display().to_string()])?;
    let images: Vec<serde_json::Value> = serde_json::from_str(&told.expect_success()?)?;
    Ok(images.len())
}

fn begin(client: &Client, kind: &str, disk: &str, limit: Option<u64>) -> Result<Job> {
    Ok(post(client, "/v1/jobs", &json!({ "kind": kind, "disk": disk, "limit": limit }))?)
}

/// A guest that knows what it has written.
struct Guest {
    frontend: Frontend,
    ring: Ring,
    oracle: Vec<u8>,
    rng: testkit::Rng,
}

impl Guest {
    fn connect(daemon: &Daemon, export: &str, oracle: Vec<u8>, rng: testkit::Rng) -> Result<Guest> {
        let mut frontend = Frontend::connect(&daemon.socket(export), 0)?;
        let ring = frontend.ring(0, 16)?;
        Ok(Guest { frontend, ring, oracle, rng })
    }

    /// Writes so many blocks, each full of a byte.
    fn write(&mut self, bytes: impl Iterator<Item = u8>) -> Result<()> {
        for byte in bytes {
            let block = self.rng.below(BYTES / BLOCK);
            let bytes = vec![byte; BLOCK as usize];
            self.frontend.memory().write(DATA, &bytes);
            let (said, _) = self.ring.run(kind::OUT, block * BLOCK / 512, &[readable(DATA, BLOCK as u32)]);
            ensure!(said == status::OK, "block {block} is not written");
            self.oracle[(block * BLOCK) as usize..][..BLOCK as usize].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn compare(&mut self, when: &str) -> Result<()> {
        for block in 0..BYTES / BLOCK {
            let (said, _) = self.ring.run(kind::IN, block * BLOCK / 512, &[writable(DATA, BLOCK as u32)]);
            let there = self.frontend.memory().read(DATA, BLOCK as usize);
            let wanted = &self.oracle[(block * BLOCK) as usize..][..BLOCK as usize];
            ensure!(said == status::OK && there == wanted, "{when}: block {block} reads otherwise");
        }
        Ok(())
    }
}

#[test]
fn chains_get_shorter_under_their_guests() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: &str| directory.path().join(name);
    let a = qcow2(&lab, &directory, "a.qcow2", "cluster_size=4096")?;
    let b = qcow2(&lab, &directory, "b.qcow2", "extended_l2=on")?;
    let (daemon, written, ()) = under_load([&a, &b], &directory, |client, last| {
        let snapshot = |number: usize| {
            let to = |disk: &str| json!({ "disk": disk, "to": at(&format!("{disk}-{number}.qcow2")) });
            post::<Vec<Disk>>(client, "/v1/snapshots", &json!({ "disks": [to("a"), to("b")] })).and(Ok(()))
        };
        for number in 0..3 {
            snapshot(number)?;
            go_on(last)?;
        }
        // Into what was set aside last, and into that before; each has the image's name then.
        for (left, gone) in [(3, "a-2.qcow2"), (2, "a-1.qcow2")] {
            // One that is cancelled changes nothing.
            let job = begin(client, "commit", "a", Some(64 << 10))?;
            ensure!(job.disks[0].target == at(gone), "{job:?}");
            go_on(last)?;
            let (code, http) = refusal(post::<Job>(client, "/v1/jobs", &json!({ "kind": "stream", "disk": "a" })));
            ensure!((code.as_str(), http) == ("unsupported", 409), "{code} {http}");
            client.order(Method::DELETE, &format!("/v1/jobs/{}", job.id))?;
            wait_job(client, job.id, JobState::Cancelled)?;
            ensure!(chain(&lab, &at("a.qcow2"))? == left + 1, "it is a shorter chain");
            go_on(last)?;
            let inode = fs::metadata(at(gone))?.ino();
            let job = begin(client, "commit", "a", None)?;
            let job = wait_job(client, job.id, JobState::Done)?;
            ensure!(job.done_bytes > 0 && job.done_bytes == job.total_bytes, "{job:?}");
            ensure!(!at(gone).exists() && fs::metadata(at("a.qcow2"))?.ino() == inode, "{gone} has not the name");
            ensure!(chain(&lab, &at("a.qcow2"))? == left, "it is no shorter chain");
            let shown: Disk = client.get("/v1/disks/a")?;
            ensure!(shown.storage.target == at("a.qcow2").display().to_string(), "{shown:?}");
            go_on(last)?;
        }
        for disk in ["a", "b"] {
            let image = at(&format!("{disk}.qcow2"));
            let before = chain(&lab, &image)?;
            let job = begin(client, "stream", disk, Some(64 << 10))?;
            go_on(last)?;
            client.order(Method::DELETE, &format!("/v1/jobs/{}", job.id))?;
            wait_job(client, job.id, JobState::Cancelled)?;
            ensure!(chain(&lab, &image)? == before, "it stands alone already");
            let job = begin(client, "stream", disk, None)?;
            wait_job(client, job.id, JobState::Done)?;
            ensure!(chain(&lab, &image)? == 1, "it has something behind it");
            go_on(last)?;
        }
        let (code, http) = refusal(post::<Job>(client, "/v1/jobs", &json!({ "kind": "stream", "disk": "a" })));
        ensure!((code.as_str(), http) == ("unsupported", 409), "{code} {http}");
        // All of it once more, over what was streamed.
        snapshot(3)?;
        go_on(last)?;
        let job = begin(client, "commit", "b", None)?;
        wait_job(client, job.id, JobState::Done)?;
        go_on(last)?;
        Ok(())
    })?;
    let bitmap = json!({ "name": "daily" });
    let _: control::model::Bitmap = post(daemon.client(), "/v1/disks/b/bitmaps", &bitmap)?;
    daemon.upgrade()?;
    daemon.stop()?;
    let now = [contents(&lab, "qcow2", &at("a.qcow2"))?, contents(&lab, "qcow2", &at("b.qcow2"))?];
    let last = written.values().flatten().copied().max();
    ensure!(Some(moment(&now, &written)?) == last, "the disks are as of the last write");
    // What was set aside first was only read.
    contents(&lab, "qcow2", &at("a-0.qcow2"))?;
    let hidden = fs::read_dir(directory.path())?.filter_map(|it| it.ok()?.file_name().into_string().ok());
    ensure!(hidden.into_iter().all(|name| !name.starts_with('.')), "something was left over");
    Ok(())
}

/// Compressed clusters are freed where something is written over them, and an internal snapshot keeps what it has.
#[test]
fn what_is_behind_an_image_keeps_its_snapshots_and_reads_what_is_compressed() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: &str| directory.path().join(name);
    let text = |name: &str| at(name).display().to_string();
    let size = BYTES.to_string();
    img(&lab, &["create", "-q", "-f", "qcow2", &text("plain.qcow2"), &size])?.expect_success()?;
    let half = BYTES / 2;
    let base = format!("write -P 3 {half} {half}");
    io_file(&lab, "qcow2", &at("plain.qcow2"), &[&base, &format!("write -z 0 {half}")])?.expect_success()?;
    img(&lab, &["convert", "-c", "-f", "qcow2", "-O", "qcow2", &text("plain.qcow2"), &text("a.qcow2")])?
        .expect_success()?;
    img(&lab, &["snapshot", "-c", "before", &text("a.qcow2")])?.expect_success()?;
    let config = format!(
        "[[disk]]\nname = 'a'\nstorage = {{ kind = 'qcow2', path = '{}' }}\n[[export]]\nname = 'e'\nsocket = \
         '{DIRECTORY}/e.sock'\nqueues = 1\ndisk = 'a'\n",
        text("a.qcow2")
    );
    let daemon = Daemon::serve(&config)?;
    let to = json!({ "disks": [{ "disk": "a", "to": at("base.qcow2") }] });
    let _: Vec<Disk> = post(daemon.client(), "/v1/snapshots", &to)?;
    let mut oracle = vec![0u8; BYTES as usize];
    oracle[half as usize..].fill(3);
    let mut guest = Guest::connect(&daemon, "e", oracle, testkit::Rng(7))?;
    // Minutes to copy, until the limit is lifted.
    guest.write(0..100)?;
    let job = begin(daemon.client(), "commit", "a", Some(64 << 10))?;
    guest.write((0..=250).cycle().skip(100).take(500))?;
    let _: Job = daemon.client().send(Method::PATCH, &format!("/v1/jobs/{}", job.id), &json!({ "limit": null }))?;
    wait_job(daemon.client(), job.id, JobState::Done)?;
    guest.compare("after the commit")?;
    let oracle = guest.oracle;
    drop((guest.ring, guest.frontend));
    daemon.stop()?;
    ensure!(contents(&lab, "qcow2", &at("a.qcow2"))? == oracle, "QEMU reads otherwise");
    img(&lab, &["snapshot", "-a", "before", &text("a.qcow2")])?.expect_success()?;
    ensure!(
        contents(&lab, "qcow2", &at("a.qcow2"))? == contents(&lab, "qcow2", &at("plain.qcow2"))?,
        "a snapshot has changed"
    );
    Ok(())
}

#[test]
fn neighbours_of_a_chain_are_left_alone() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: &str| directory.path().join(name);
    qcow2(&lab, &directory, "base.qcow2", "cluster_size=65536")?;
    io_file(&lab, "qcow2", &at("base.qcow2"), &["write -P 5 0 8M"])?.expect_success()?;
    let config = ["a", "b"].map(|name| {
        let image = at(name).display().to_string();
        let base = at("base.qcow2").display().to_string();
        img(&lab, &["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", &base, &image])?.expect_success()?;
        io_file(&lab, "qcow2", &at(name), &["write -P 6 4M 8M"])?.expect_success()?;
        Ok(format!("[[disk]]\nname = '{name}'\nstorage = {{ kind = 'qcow2', path = '{image}', lock = false }}\n"))
    });
    let config = config.into_iter().collect::<Result<String>>()?;
    fs::set_permissions(at("base.qcow2"), fs::Permissions::from_mode(0o444))?;
    fs::set_permissions(at("a"), fs::Permissions::from_mode(0o600))?;
    let mode = |name: &str| Ok::<_, anyhow::Error>(fs::metadata(at(name))?.mode() & 0o777);
    let daemon = Daemon::serve(&config)?;
    // Another disk reads it, whatever locks say.
    let refused = post::<Job>(daemon.client(), "/v1/jobs", &json!({ "kind": "commit", "disk": "a" }));
    let text = format!("{refused:?}");
    ensure!(refusal(refused).1 == 409 && text.contains("belongs to disk `b`"), "{text}");
    // A disk that is streamed gets its users as ever.
    let job = begin(daemon.client(), "stream", "b", Some(64 << 10))?;
    let export = json!({ "name": "e", "socket": daemon.socket("e"), "queues": 1, "disk": "b" });
    for _ in 0..2 {
        let _: serde_json::Value = post(daemon.client(), "/v1/exports", &export)?;
        daemon.remove("e", false)?;
    }
    let _: Job = daemon.client().send(Method::PATCH, &format!("/v1/jobs/{}", job.id), &json!({ "limit": null }))?;
    wait_job(daemon.client(), job.id, JobState::Done)?;
    // It needs nothing else now. Whoever may not read the image may not read what takes its place, from the beginning.
    let job = begin(daemon.client(), "commit", "a", Some(4096))?;
    ensure!(mode("base.qcow2")? == 0o600, "somebody else may read the guest's data");
    client_cancels(&daemon, &job)?;
    ensure!(mode("base.qcow2")? == 0o444, "it is not what it was");
    let job = begin(daemon.client(), "commit", "a", None)?;
    wait_job(daemon.client(), job.id, JobState::Done)?;
    ensure!(mode("a")? == 0o600 && !at("base.qcow2").exists(), "it is another's");
    daemon.upgrade()?;
    daemon.stop()?;
    ensure!(contents(&lab, "qcow2", &at("a"))? == contents(&lab, "qcow2", &at("b"))?, "they were the same");
    Ok(())
}

fn client_cancels(daemon: &Daemon, job: &Job) -> Result<()> {
    daemon.client().order(Method::DELETE, &format!("/v1/jobs/{}", job.id))?;
    wait_job(daemon.client(), job.id, JobState::Cancelled).map(drop)
}

#[test]
fn a_killed_daemon_leaves_what_was_answered_whatever_was_under_way() -> Result<()> {
    let lab = Lab::take_turn();
    for what in ["stream", "commit"] {
        let directory = TempDir::new_in(testkit::storage::disk())?;
        let at = |name: &str| directory.path().join(name);
        qcow2(&lab, &directory, "a.qcow2", "cluster_size=65536")?;
        let config = format!(
            "[[export]]\nname = 'a'\nsocket = '{DIRECTORY}/a.sock'\nqueues = 1\nstorage = {{ kind = 'qcow2', path = '{}' }}\n",
            at("a.qcow2").display()
        );
        let (mut oracle, mut rng) = (vec![0u8; BYTES as usize], testkit::Rng(11));
        for round in 0..5 {
            let daemon = Daemon::serve(&config)?;
            let mut guest = Guest::connect(&daemon, "a", oracle, rng)?;
            guest.compare(&format!("{what}, after {round} kills"))?;
            guest.write((1..).skip(round).take(100))?;
            let to = json!({ "disks": [{ "disk": "a", "to": at(&format!("base-{round}.qcow2")) }] });
            let _: Vec<Disk> = post(daemon.client(), "/v1/snapshots", &to)?;
            guest.write((1..).skip(2 * round).take(100))?;
            let job = begin(daemon.client(), what, "a", Some(64 << 10))?;
            guest.write((1..).skip(3 * round).take(200))?;
            // It has written something, and takes minutes for the rest.
            let mut now = job;
            while now.state == JobState::Running && now.done_bytes == 0 {
                now = daemon.client().get(&format!("/v1/jobs/{}", now.id))?;
            }
            ensure!(now.state == JobState::Running, "{what}: it is not under way: {now:?}");
            (oracle, rng) = (guest.oracle, guest.rng);
            // Killed.
            drop(daemon);
        }
        let daemon = Daemon::serve(&config)?;
        let mut guest = Guest::connect(&daemon, "a", oracle, rng)?;
        guest.compare(&format!("{what}, in the end"))?;
    }
    Ok(())
}
