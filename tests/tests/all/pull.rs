//! Pulls: what QEMU reads over NBD of disks that are written all the time is what they held at one moment.

use crate::live::{BLOCK, BYTES, Written, go_on, moment, post, qcow2, under_load, wait_job};
use anyhow::{Context, Result, ensure};
use control::client::Client;
use control::model::{Bitmap, Job, JobState};
use http::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tempfile::TempDir;
use tests::daemon::{DIRECTORY, Daemon, refusal};
use tests::driver::readable;
use tests::frontend::{DATA, Frontend, kind, status};
use tests::lab::Lab;
use tests::qemu_img::img;

/// What a bit of the bitmaps stands for.
const PIECE: u64 = 64 << 10;

/// What QEMU reads of the disk `name` that is served at `socket`.
fn read(lab: &Lab, socket: &Path, name: &str) -> Result<Vec<u8>> {
    let (from, to) = (format!("nbd+unix:///{name}?socket={}", socket.display()), socket.with_extension("flat"));
    img(lab, &["convert", "-f", "raw", "-O", "raw", &from, &to.display().to_string()])?.expect_success()?;
    Ok(fs::read(to)?)
}

/// Pieces that QEMU finds to be dirty. It takes a bitmap for a map of data, in which what is dirty is none.
fn dirty(lab: &Lab, socket: &Path, name: &str, bitmap: &str) -> Result<BTreeSet<u64>> {
    let socket = socket.display();
    let options = format!(
        "driver=nbd,server.type=unix,server.path={socket},export={name},x-dirty-bitmap=qemu:dirty-bitmap:{bitmap}"
    );
    // All of it, which may be long.
    let map =
        Command::new(lab.program("qemu-img")).args(["map", "--output=json", "--image-opts", &options]).output()?;
    let said = String::from_utf8(map.stdout)?;
    ensure!(map.status.success(), "{said}{}", String::from_utf8_lossy(&map.stderr));
    let extents: Vec<Value> = serde_json::from_str(&said).with_context(|| said.clone())?;
    let (mut pieces, mut end) = (BTreeSet::new(), 0);
    for extent in &extents {
        let number = |name: &str| extent[name].as_u64().with_context(|| said.clone());
        let (start, len) = (number("start")?, number("length")?);
        ensure!(start == end && start.is_multiple_of(PIECE) && len.is_multiple_of(PIECE), "{said}");
        end = start + len;
        if extent["data"] == false {
            pieces.extend(start / PIECE..end / PIECE);
        }
    }
    ensure!(end == BYTES, "{said}");
    Ok(pieces)
}

/// Pieces of a disk in which something was written behind one write, up to another.
fn written_between(written: &Written, disk: usize, after: u64, to: u64) -> BTreeSet<u64> {
    let blocks = written
        .iter()
        .filter(|((of, _), numbers)| *of == disk && numbers.iter().any(|number| (after + 1..=to).contains(number)));
    blocks.map(|((_, block), _)| block * BLOCK / PIECE).collect()
}

#[test]
fn pulled_disks_are_of_one_moment_and_say_what_was_written_since_the_last() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: &str| directory.path().join(name);
    let a = qcow2(&lab, &directory, "a.qcow2", "cluster_size=65536")?;
    fs::File::create(at("b.raw"))?.set_len(BYTES)?;
    let [one, other]: [PathBuf; 2] = [at("a.nbd"), at("b.nbd")];
    let listen = |path: &Path| format!("unix:{}", path.display());
    let pull = |bitmap: &str, more: &[Value]| {
        let a = json!({ "disk": "a", "listen": listen(&one), "bitmap": bitmap });
        let disks = [&[a], more].concat();
        json!({ "kind": "pull", "disks": disks, "scratch": directory.path() })
    };
    let complete = |client: &Client, id: u64| -> Result<Job> {
        let _: Job = client.post(&format!("/v1/jobs/{id}/complete"))?;
        wait_job(client, id, JobState::Done)
    };
    let bitmaps = |client: &Client| client.get::<Vec<Bitmap>>("/v1/disks/a/bitmaps");
    let (daemon, written, acted) =
        under_load([&a, "kind = 'file', path = '@AT@/b.raw'"], &directory, |client, last| {
            let before = last.load(Ordering::Acquire);
            let both = pull("daily", &[json!({ "disk": "b", "listen": listen(&other) })]);
            let job: Job = post(client, "/v1/jobs", &both)?;
            ensure!(!job.disks[0].incremental, "{job:?}");
            let job = wait_job(client, job.id, JobState::Ready)?;
            let after = go_on(last)?;
            // Nothing else comes in between.
            for (method, target) in [(Method::POST, "/v1/jobs"), (Method::DELETE, "/v1/exports/a?force=true")] {
                let said = client.call(
                    method.clone(),
                    target,
                    (method == Method::POST).then(|| both.to_string().into_bytes()),
                );
                ensure!(refusal(said).1 == 409, "{target}");
            }
            ensure!(client.send::<Value>(Method::POST, "/v1/upgrade", &json!({})).is_err(), "a job would be lost");
            let first = [read(&lab, &one, "a")?, read(&lab, &other, "b")?];
            ensure!(dirty(&lab, &one, "a", "daily")?.len() as u64 == BYTES / PIECE, "all is new to the bitmap");
            ensure!(read(&lab, &one, "other").is_err(), "there is no such export");
            go_on(last)?;
            ensure!(read(&lab, &one, "a")? == first[0], "it changes while it is read");
            let done = complete(client, job.id)?;
            ensure!(done.done_bytes > 0 && !one.exists() && !other.exists(), "{done:?}");
            go_on(last)?;
            // Since then; one that is cancelled takes nothing away.
            let mut later = Vec::new();
            for completes in [false, true, true] {
                let job: Job = post(client, "/v1/jobs", &pull("daily", &[]))?;
                ensure!(job.disks[0].incremental, "{job:?}");
                wait_job(client, job.id, JobState::Ready)?;
                go_on(last)?;
                later.push((read(&lab, &one, "a")?, dirty(&lab, &one, "a", "daily")?));
                if completes {
                    complete(client, job.id)?;
                } else {
                    client.order(Method::DELETE, &format!("/v1/jobs/{}", job.id))?;
                }
                ensure!(!one.exists() && bitmaps(client)?.iter().all(|bitmap| bitmap.consistent), "it is left");
            }
            // The same for a bitmap that a pull begins and that nobody wants.
            let job: Job = post(client, "/v1/jobs", &pull("weekly", &[]))?;
            client.order(Method::DELETE, &format!("/v1/jobs/{}", job.id))?;
            ensure!(bitmaps(client)?.len() == 1, "a bitmap is left");
            Ok(((before, after), first, later))
        })?;
    let ((before, after), first, later) = acted;
    let first = moment(&first, &written)?;
    ensure!((before..=after + 1).contains(&first), "of {first}, and it began in {before}..{after}");
    let mut since = first;
    for ((contents, dirty), completes) in later.into_iter().zip([false, true, true]) {
        let moment = moment(&[contents], &written)?;
        let wanted = written_between(&written, 0, since, moment);
        ensure!(moment > since && dirty == wanted, "{dirty:?} instead of {wanted:?}");
        since = if completes { moment } else { since };
    }
    let left = fs::read_dir(directory.path())?.filter_map(|it| it.ok()?.file_name().into_string().ok());
    ensure!(left.into_iter().all(|name| !name.starts_with('.')), "something was left over");
    daemon.stop()
}

/// The bitmap has what it had, and whoever reads is hung up on.
#[test]
fn a_pull_ends_with_its_daemon() -> Result<()> {
    let lab = Lab::take_turn();
    let directory = TempDir::new_in(testkit::storage::disk())?;
    let at = |name: &str| directory.path().join(name);
    qcow2(&lab, &directory, "a.qcow2", "cluster_size=65536")?;
    let storage = format!("kind = 'qcow2', path = '{}'", at("a.qcow2").display());
    let config =
        format!("[[export]]\nname = 'a'\nsocket = '{DIRECTORY}/a.sock'\nqueues = 1\nstorage = {{ {storage} }}\n");
    let bitmaps = |daemon: &Daemon| daemon.client().get::<Vec<Bitmap>>("/v1/disks/a/bitmaps");
    let daemon = Daemon::serve(&config)?;
    let write = |daemon: &Daemon, sector: u64| -> Result<()> {
        let mut frontend = Frontend::connect(&daemon.socket("a"), 0)?;
        let mut ring = frontend.ring(0, 16)?;
        frontend.memory().write(DATA, &[7; BLOCK as usize]);
        ensure!(ring.run(kind::OUT, sector, &[readable(DATA, BLOCK as u32)]).0 == status::OK, "it is written");
        Ok(())
    };
    let _: Bitmap = post(daemon.client(), "/v1/disks/a/bitmaps", &json!({ "name": "daily" }))?;
    write(&daemon, 256)?;
    let pull = |scratch: &Path, listen: &str| json!({ "kind": "pull", "disks": [{ "disk": "a", "listen": listen, "bitmap": "daily" }], "scratch": scratch });
    let address = format!("unix:{}", at("a.nbd").display());
    for (scratch, listen) in [(at("none"), &*address), (at("a.qcow2"), &address), (at(""), "unix:/none/a.nbd")] {
        let (code, http) = refusal(post::<Job>(daemon.client(), "/v1/jobs", &pull(&scratch, listen)));
        ensure!((code.as_str(), http) == ("invalid-field", 422), "{listen}: {code} {http}");
    }
    ensure!(bitmaps(&daemon)?[0].dirty_bytes == PIECE, "what is refused has taken something");
    let job: Job = post(daemon.client(), "/v1/jobs", &pull(&at(""), &address))?;
    wait_job(daemon.client(), job.id, JobState::Ready)?;
    let mut client = UnixStream::connect(at("a.nbd"))?;
    client.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut greeting = [0; 18];
    client.read_exact(&mut greeting)?;
    ensure!(greeting.starts_with(b"NBDMAGIC"), "{greeting:?}");
    // What is written meanwhile counts as well.
    write(&daemon, 1024)?;
    daemon.stop()?;
    let said = client.read(&mut greeting);
    let is_over = said.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |bytes| *bytes == 0);
    ensure!(is_over && !at("a.nbd").exists(), "{said:?}");
    let daemon = Daemon::serve(&config)?;
    let all = bitmaps(&daemon)?;
    ensure!(all.len() == 1 && all[0].consistent && all[0].dirty_bytes == 2 * PIECE, "{all:?}");
    daemon.stop()
}
