//! qcow2 images with an intent log in front of them: killed, upgraded, snapshotted and copied while they are written, and what other
//! programs make of them meanwhile and afterwards.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Result, ensure};
use control::model::{Disk, Job, JobState};
use http::Method;
use serde_json::json;
use tempfile::TempDir;
use tests::daemon::{Daemon, refusal};
use tests::driver::{Ring, readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::lab::Lab;
use tests::qemu_img::{self, img};
use tests::vringd::{run, said};

use super::live::{contents, go_on, moment, post, qcow2, under_load, wait_job};

/// Byte of an image's incompatible features, and the one that marks it as corrupt (QEMU's docs/interop/qcow2.rst).
const INCOMPATIBLE: u64 = 72;
const CORRUPT: u64 = 1 << 1;

fn done(directory: &Path, words: &[&str]) -> Result<String> {
    let output = run(directory, words)?;
    ensure!(output.status.success(), "{words:?}: {}", said(&output));
    Ok(said(&output))
}

/// The storage of an image of QEMU's with a new log of ours.
fn logged(lab: &Lab, directory: &TempDir, name: &str, options: &str) -> Result<String> {
    let image = qcow2(lab, directory, &format!("{name}.qcow2"), options)?;
    done(directory.path(), &["image", "log", "create", "--size", "1M", &format!("{name}.log")])?;
    Ok(format!(
        "{image}, log = {{ path = '@AT@/{name}.log', dirty_memory = '4M', memory_file = '@AT@/{name}.memory' }}"
    ))
}

/// On tmpfs, where memory files may be.
fn place() -> Result<TempDir> {
    Ok(TempDir::new_in("/dev/shm")?)
}

fn refused_by_qemu(lab: &Lab, directory: &TempDir, image: &str) -> Result<()> {
    for words in [&["check"][..], &["info"], &["convert", "-f", "qcow2", "-O", "raw"]] {
        let image = directory.path().join(image).display().to_string();
        let mut words: Vec<&str> = words.to_vec();
        words.push(&image);
        let out = format!("{image}.out");
        if words[0] == "convert" {
            words.push(&out);
        }
        let outcome: qemu_img::Outcome = img(lab, &words)?;
        let text = format!("{outcome:?}");
        ensure!(!outcome.success && text.contains("intent log of vringd"), "{words:?}: {text}");
    }
    Ok(())
}

#[test]
fn snapshots_of_disks_with_logs_are_of_one_moment_and_backups_and_mirrors_too() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = place()?;
    let at = |name: &str| directory.path().join(name);
    let a = logged(&lab, &directory, "a", "cluster_size=4096")?;
    let b = logged(&lab, &directory, "b", "extended_l2=on")?;
    let (daemon, written, ()) = under_load([&a, &b], &directory, |client, last| {
        for number in 0..3 {
            let to = |disk: &str| json!({ "disk": disk, "to": at(&format!("{disk}-{number}.qcow2")) });
            let body = json!({ "disks": [to("a"), to("b")] });
            let shown: Vec<Disk> = post(client, "/v1/snapshots", &body)?;
            ensure!(shown.iter().all(|disk| disk.storage.volume.is_some()), "a log is gone: {shown:?}");
            // Once more is refused, and the logs come back.
            let (code, http) = refusal(post::<Vec<Disk>>(client, "/v1/snapshots", &body));
            ensure!((code.as_str(), http) == ("unsupported", 409), "{code} {http}");
            go_on(last)?;
        }
        let copy =
            |disk: &str, format: &str| json!({ "disk": disk, "target": at(&format!("{disk}-copy")), "format": format });
        let body = json!({ "kind": "backup", "disks": [copy("a", "raw"), copy("b", "qcow2")] });
        let job: Job = post(client, "/v1/jobs", &body)?;
        wait_job(client, job.id, JobState::Done)?;
        go_on(last)?;
        // What needs the image alone says so.
        for body in [json!({ "kind": "stream", "disk": "a" }), json!({ "kind": "commit", "disk": "a" })] {
            let error = post::<Job>(client, "/v1/jobs", &body).expect_err("it has a log").to_string();
            ensure!(error.contains("intent log in front of it"), "{error}");
        }
        let body = json!({ "name": "daily" });
        let error =
            post::<serde_json::Value>(client, "/v1/disks/a/bitmaps", &body).expect_err("it has a log").to_string();
        ensure!(error.contains("intent log in front of them"), "{error}");
        // A mirror's target has no log.
        let body = json!({ "kind": "mirror", "disk": "b", "target": at("b-new.qcow2"), "format": "qcow2" });
        let job: Job = post(client, "/v1/jobs", &body)?;
        wait_job(client, job.id, JobState::Ready)?;
        go_on(last)?;
        let _: Job = client.post(&format!("/v1/jobs/{}/complete", job.id))?;
        wait_job(client, job.id, JobState::Done)?;
        let shown: Disk = client.get("/v1/disks/b")?;
        ensure!(shown.storage.volume.is_none(), "{shown:?}");
        go_on(last)?;
        Ok(())
    })?;
    let mut moments = Vec::new();
    for number in 0..3 {
        let read = |disk: &str| contents(&lab, "qcow2", &at(&format!("{disk}-{number}.qcow2")));
        moments.push(moment(&[read("a")?, read("b")?], &written)?);
    }
    moments.push(moment(&[contents(&lab, "raw", &at("a-copy"))?, contents(&lab, "qcow2", &at("b-copy"))?], &written)?);
    ensure!(moments.is_sorted_by(|one, next| one < next), "{moments:?}");
    daemon.upgrade()?;
    let _: Disk = daemon.client().get("/v1/disks/a")?;
    daemon.stop()?;
    let now = [contents(&lab, "qcow2", &at("a.qcow2"))?, contents(&lab, "qcow2", &at("b-new.qcow2"))?];
    let last = written.values().flatten().copied().max();
    ensure!(Some(moment(&now, &written)?) == last, "the disks are as of the last write");
    contents(&lab, "qcow2", &at("b.qcow2"))?;
    Ok(())
}

fn write(ring: &mut Ring, block: u64, byte: u8) {
    ring.queue.memory().clone().write(DATA, &[byte; 4096]);
    assert_eq!(ring.run(kind::OUT, block * 8, &[readable(DATA, 4096)]).0, status::OK);
}

fn read(ring: &mut Ring, block: u64) -> Vec<u8> {
    assert_eq!(ring.run(kind::IN, block * 8, &[writable(DATA, 4096)]).0, status::OK);
    ring.queue.memory().read(DATA, 4096)
}

#[test]
fn a_killed_daemon_leaves_an_image_that_others_refuse_and_the_next_one_completes() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = place()?;
    let storage = logged(&lab, &directory, "a", "cluster_size=65536")?;
    let storage = storage.replace("@AT@", &directory.path().display().to_string());
    let socket = directory.path().join("a.sock");
    let serve = || {
        let socket = socket.display();
        Daemon::serve(&format!("[[export]]\nname = 'a'\nsocket = '{socket}'\nqueues = 1\nstorage = {{ {storage} }}\n"))
    };
    for round in 1..4u8 {
        let daemon = serve()?;
        {
            let mut frontend = Frontend::connect(&socket, 0)?;
            let mut ring = frontend.ring(0, 16)?;
            for block in 0..400 {
                if round > 1 {
                    ensure!(read(&mut ring, block * 3) == [round - 1; 4096], "round {round}, block {block}");
                }
                write(&mut ring, block * 3, round);
                if block % 7 == 0 {
                    ensure!(ring.run(kind::FLUSH, 0, &[]).0 == status::OK, "a flush fails");
                }
            }
        }
        // SIGKILL.
        drop(daemon);
        refused_by_qemu(&lab, &directory, "a.qcow2")?;
        for words in [
            &["image", "check", "a.qcow2"][..],
            &["image", "resize", "a.qcow2", "+1M"],
            &["image", "snapshot", "create", "a.qcow2", "s"],
            &["disk", "--socket", "s", "--storage", "qcow2", "a.qcow2"],
        ] {
            let output = run(directory.path(), words)?;
            let text = said(&output);
            ensure!(!output.status.success() && text.contains("vringd image log replay"), "{words:?}: {text}");
        }
        let info = done(directory.path(), &["image", "info", "a.qcow2"])?;
        ensure!(info.contains("intent log"), "{info}");
    }
    // Without a daemon.
    let words = ["image", "log", "replay", "a.qcow2", "--log", "a.log", "--memory-file"];
    let memory = directory.path().join("a.memory").display().to_string();
    let text = done(directory.path(), &[&words[..], &[&memory]].concat())?;
    ensure!(text.contains("closed in order"), "{text}");
    // What was ready to be allocated is leaked by a kill.
    done(directory.path(), &["image", "check", "--repair", "a.qcow2"])?;
    let disk = contents(&lab, "qcow2", &directory.path().join("a.qcow2"))?;
    for block in 0..400 {
        ensure!(disk[block * 3 * 4096..][..4096] == [3; 4096], "block {block}");
    }
    // What QEMU writes then is there, with the same log.
    let image = directory.path().join("a.qcow2");
    qemu_img::io_file(&lab, "qcow2", &image, &["write -P 9 0 4096"])?.expect_success()?;
    img(&lab, &["resize", "-q", "-f", "qcow2", &image.display().to_string(), "+512"])?.expect_success()?;
    let daemon = serve()?;
    {
        let mut frontend = Frontend::connect(&socket, 0)?;
        let mut ring = frontend.ring(0, 16)?;
        ensure!(read(&mut ring, 0) == [9; 4096], "what QEMU wrote is lost");
        write(&mut ring, 1, 10);
    }
    let grown: Disk = daemon.client().send(
        Method::PUT,
        "/v1/disks/a/capacity",
        &json!({ "capacity_bytes": super::live::BYTES + (1 << 20) }),
    )?;
    ensure!(grown.storage.capacity_bytes == super::live::BYTES + (1 << 20), "{grown:?}");
    daemon.stop()?;
    let disk = contents(&lab, "qcow2", &image)?;
    ensure!(disk.len() as u64 == super::live::BYTES + (1 << 20) && disk[4096..8192] == [10; 4096], "it did not grow");
    ensure!(!fs::exists(directory.path().join("a.memory"))?, "a memory file is left");
    Ok(())
}

/// As `docs/volumes.md` says it: the log lets go of the image, QEMU repairs that, and the log is brought into it.
#[test]
fn a_corrupt_image_is_repaired_by_qemu_and_gets_all_that_its_log_has() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = place()?;
    let storage = logged(&lab, &directory, "a", "cluster_size=65536")?;
    let storage = storage.replace("@AT@", &directory.path().display().to_string());
    let socket = directory.path().join("a.sock");
    let at = socket.display();
    let daemon =
        Daemon::serve(&format!("[[export]]\nname = 'a'\nsocket = '{at}'\nqueues = 1\nstorage = {{ {storage} }}\n"))?;
    {
        let mut frontend = Frontend::connect(&socket, 0)?;
        let mut ring = frontend.ring(0, 16)?;
        for block in 0..100 {
            write(&mut ring, block * 3, 7);
        }
        ensure!(ring.run(kind::FLUSH, 0, &[]).0 == status::OK, "a flush fails");
        write(&mut ring, 1, 8);
    }
    // SIGKILL, as an image that is marked as corrupt keeps the daemon from closing it.
    drop(daemon);
    let image = directory.path().join("a.qcow2");
    let file = fs::File::options().read(true).write(true).open(&image)?;
    let mut features = [0; 8];
    file.read_exact_at(&mut features, INCOMPATIBLE)?;
    file.write_all_at(&(u64::from_be_bytes(features) | CORRUPT).to_be_bytes(), INCOMPATIBLE)?;
    let name = image.display().to_string();
    let repair = || img(&lab, &["check", "-r", "all", "-f", "qcow2", &name]);
    let refused = repair()?;
    ensure!(!refused.success && refused.output.contains("intent log of vringd"), "{refused:?}");
    let memory = directory.path().join("a.memory").display().to_string();
    let words = ["image", "log", "replay", "a.qcow2", "--log", "a.log", "--memory-file", &memory, "--repaired"];
    let output = run(directory.path(), &words)?;
    ensure!(!output.status.success() && said(&output).contains("vringd image log forget"), "{}", said(&output));
    done(directory.path(), &["image", "log", "forget", "a.qcow2"])?;
    // Nothing is repaired as yet.
    let output = run(directory.path(), &words)?;
    ensure!(!output.status.success() && said(&output).contains("qemu-img check -r all"), "{}", said(&output));
    repair()?.expect_success()?;
    done(directory.path(), &words)?;
    done(directory.path(), &["image", "check", "--repair", "a.qcow2"])?;
    let disk = contents(&lab, "qcow2", &image)?;
    for block in 0..100 {
        ensure!(disk[block * 3 * 4096..][..4096] == [7; 4096], "block {block}");
    }
    ensure!(disk[4096..8192] == [8; 4096], "what was in memory is lost");
    Ok(())
}

/// The log is overwritten behind the daemon's back: the snapshot is taken, and the disk goes on as an image alone.
#[test]
fn a_disk_whose_log_fails_at_a_snapshot_goes_on_without_and_through_an_upgrade() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = place()?;
    let storage = logged(&lab, &directory, "a", "cluster_size=65536")?;
    let at = |name: &str| directory.path().join(name);
    let storage = storage.replace("@AT@", &directory.path().display().to_string());
    let (socket, shown) = (at("a.sock"), at("a.sock").display().to_string());
    let daemon =
        Daemon::serve(&format!("[[export]]\nname = 'a'\nsocket = '{shown}'\nqueues = 1\nstorage = {{ {storage} }}\n"))?;
    {
        let mut frontend = Frontend::connect(&socket, 0)?;
        let mut ring = frontend.ring(0, 16)?;
        write(&mut ring, 1, 7);
        // Nothing is written to the log from here on: a snapshot writes back, and the log's superblock with it.
        let to = |name: &str| json!({ "disks": [{ "disk": "a", "to": at(name) }] });
        let _: Vec<Disk> = post(daemon.client(), "/v1/snapshots", &to("a-0.qcow2"))?;
        let log = fs::OpenOptions::new().write(true).open(at("a.log"))?;
        std::os::unix::fs::FileExt::write_all_at(&log, &[9; 64 << 10], 0)?;
        let shown: Vec<Disk> = post(daemon.client(), "/v1/snapshots", &to("a-1.qcow2"))?;
        ensure!(shown.iter().all(|disk| disk.storage.volume.is_none()), "its log goes on: {shown:?}");
        write(&mut ring, 2, 8);
    }
    ensure!(!fs::exists(at("a.memory"))?, "a memory file is left");
    ensure!(daemon.output().contains("goes on without its intent log"), "{}", daemon.output());
    daemon.upgrade()?;
    {
        let mut frontend = Frontend::connect(&socket, 0)?;
        let mut ring = frontend.ring(0, 16)?;
        ensure!(read(&mut ring, 1) == [7; 4096] && read(&mut ring, 2) == [8; 4096], "the upgrade lost something");
        write(&mut ring, 3, 9);
    }
    daemon.stop()?;
    let disk = contents(&lab, "qcow2", &at("a.qcow2"))?;
    ensure!((1..4).all(|block| disk[block * 4096..][..4096] == [block as u8 + 6; 4096]), "the image lacks something");
    Ok(())
}
