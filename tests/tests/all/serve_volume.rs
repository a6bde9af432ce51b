//! Volumes that are served: what a frontend wrote is there after a kill, modes change live, figures say what happened.

use std::path::{Path, PathBuf};
use std::process::Output;

use anyhow::{Context, Result, ensure};
use control::model::{Export, Settings, SyncMode, VolumeInfo};
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::daemon::{Daemon, refusal};
use tests::driver::{Ring, readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::vringd::{self, said};

const BLOCK: u32 = 4096;
const SECTORS_A_BLOCK: u64 = 8;
const RING_SIZE: u16 = 64;
/// Of the field `writeback` in the configuration space (linux/virtio_blk.h).
const WRITEBACK: u32 = 32;
/// Where reads go, behind the buffers of writes.
const READ_AT: u64 = DATA + (32 << 20);

/// A place that outlives its daemons: the socket, the volume, its log.
struct Place(TempDir);

impl Place {
    /// With a volume of 64 MiB.
    fn new(more: &[&str]) -> Result<Self> {
        let place = Self(tests::daemon::directory()?);
        let output = place.volume(&[&["create", "--size", "64M", "--log-size", "4M", "disk.vol"], more].concat())?;
        ensure!(output.status.success(), "{}", said(&output));
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `vringd volume` beside the files.
    fn volume(&self, words: &[&str]) -> Result<Output> {
        vringd::run(self.0.path(), &[&["volume"], words].concat())
    }

    fn serve(&self, more: &str) -> Result<Daemon> {
        let (socket, volume) = (self.path("disk.sock"), self.path("disk.vol"));
        Daemon::serve(&format!(
            "workers = 2\n[[export]]\nname = 'disk'\nsocket = '{}'\nqueues = 2\n\
             storage = {{ kind = 'volume', path = '{}'{more} }}\n",
            socket.display(),
            volume.display()
        ))
    }

    fn connect(&self) -> Result<(Frontend, Ring)> {
        connect(&self.path("disk.sock"))
    }
}

fn connect(socket: &Path) -> Result<(Frontend, Ring)> {
    let mut frontend = Frontend::connect(socket, 0)?;
    let ring = frontend.ring(0, RING_SIZE)?;
    Ok((frontend, ring))
}

fn contents(block: u64, version: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (block as u8).wrapping_mul(31).wrapping_add(version).wrapping_add(at as u8)).collect()
}

fn write(ring: &mut Ring, block: u64, version: u8) {
    let memory = ring.queue.memory().clone();
    memory.write(DATA, &contents(block, version));
    assert_eq!(ring.run(kind::OUT, block * SECTORS_A_BLOCK, &[readable(DATA, BLOCK)]).0, status::OK);
}

fn read(ring: &mut Ring, block: u64) -> Vec<u8> {
    let request = ring.run(kind::IN, block * SECTORS_A_BLOCK, &[writable(READ_AT, BLOCK)]);
    assert_eq!(request, (status::OK, BLOCK + 1));
    ring.queue.memory().read(READ_AT, BLOCK as usize)
}

fn flush(ring: &mut Ring) {
    assert_eq!(ring.run(kind::FLUSH, 0, &[]).0, status::OK);
}

fn volume_of(export: Export) -> VolumeInfo {
    export.storage.and_then(|storage| storage.volume).expect("a volume has figures")
}

#[test]
fn what_was_flushed_is_there_after_a_kill() -> Result<()> {
    let place = Place::new(&[])?;
    // Longer than the log, so that it wraps.
    for round in 0..3u8 {
        let daemon = place.serve("")?;
        let (_frontend, mut ring) = place.connect()?;
        for block in 0..600 {
            if round > 0 {
                assert_eq!(read(&mut ring, block), contents(block, round - 1), "round {round}, block {block}");
            }
            write(&mut ring, block, round);
            if block % 10 == 9 {
                flush(&mut ring);
            }
        }
        let figures = volume_of(daemon.export("disk")?);
        // The first flush after a kill may take more than one record: what the memory file held goes with it.
        assert!(figures.commits >= 60 && figures.committed_requests >= 60, "{figures:?}");
        // What a sweep has made stable while the log was empty need not be in a record: at most what came since the last flush.
        let spared = (figures.sweeps + 1) * 10;
        assert!(figures.committed_blocks + spared >= 600, "{figures:?}");
        assert_eq!(figures.commit_latency.count, figures.commits);
        // SIGKILL.
        drop(daemon);
    }
    let checked = place.volume(&["check", "disk.vol", "--json"])?;
    assert!(checked.status.success(), "{}", said(&checked));
    // Closed in order, it leaves no memory file behind on the machine.
    let replayed = place.volume(&["replay", "disk.vol"])?;
    assert!(replayed.status.success(), "{}", said(&replayed));
    Ok(())
}

/// Guests that live on count on what a page cache would have kept.
#[test]
fn what_was_not_flushed_is_there_after_a_kill_too() -> Result<()> {
    let place = Place::new(&[])?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    for block in 0..200 {
        write(&mut ring, block, 7);
    }
    drop((daemon, frontend));
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    for block in 0..200 {
        assert_eq!(read(&mut ring, block), contents(block, 7), "block {block}");
    }
    drop(frontend);
    daemon.stop()?;
    let checked = place.volume(&["check", "disk.vol", "--json"])?;
    assert!(checked.status.success(), "{}", said(&checked));
    let report: Value = serde_json::from_slice(&checked.stdout)?;
    assert_eq!(report["superblock"]["clean"], true, "{report}");
    Ok(())
}

#[test]
fn an_orderly_end_leaves_a_clean_volume() -> Result<()> {
    let place = Place::new(&[])?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    for block in 0..100 {
        write(&mut ring, block, 1);
    }
    // A volume that is served is nobody else's.
    for words in
        [&["info", "disk.vol"][..], &["check", "disk.vol"], &["replay", "disk.vol"], &["resize", "disk.vol", "1G"]]
    {
        let output = place.volume(words)?;
        let line = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert!(line.contains("disk.vol") && line.contains("in use") && line.lines().count() == 1, "{words:?}: {line}");
    }
    drop(frontend);
    daemon.stop()?;
    let raw = place.volume(&["convert", "--to", "raw", "disk.vol", "disk.img"])?;
    assert!(raw.status.success(), "{}", said(&raw));
    let image = std::fs::read(place.path("disk.img"))?;
    assert_eq!(image.len(), 64 << 20);
    for block in 0..100 {
        assert!(image.chunks(BLOCK as usize).nth(block).expect("in the image") == contents(block as u64, 1), "{block}");
    }
    Ok(())
}

#[test]
fn modes_change_while_it_is_served() -> Result<()> {
    let place = Place::new(&[])?;
    let daemon = place.serve(", sync = 'always'")?;
    let (frontend, mut ring) = place.connect()?;
    let commits = || Ok::<_, anyhow::Error>(volume_of(daemon.export("disk")?).commits);
    let set = |mode| daemon.change("disk", &Settings { sync: Some(mode), ..Settings::default() });

    for block in 0..10 {
        write(&mut ring, block, 1);
    }
    assert_eq!(commits()?, 10, "each write is one: nobody else writes");
    flush(&mut ring);
    assert_eq!(commits()?, 10, "all is safe already");

    assert_eq!(volume_of(set(SyncMode::Disabled)?).sync, SyncMode::Disabled);
    write(&mut ring, 20, 1);
    flush(&mut ring);
    assert_eq!(commits()?, 10, "nobody is waited for");

    assert_eq!(volume_of(set(SyncMode::Standard)?).sync, SyncMode::Standard);
    write(&mut ring, 21, 1);
    assert_eq!(commits()?, 10);
    flush(&mut ring);
    assert_eq!(commits()?, 11);

    let synced: Export = daemon.client().post("/v1/exports/disk/sync")?;
    let volume = volume_of(synced);
    assert_eq!((volume.log_used_bytes, volume.dirty_bytes), (0, 0), "{volume:?}");
    assert!(volume.written_back_bytes >= 12 * u64::from(BLOCK) && volume.sweeps > 0, "{volume:?}");

    let metrics = daemon.client().text("/metrics")?;
    for line in ["vringd_volume_commits_total{export=\"disk\"} 11", "vringd_volume_dirty_bytes{export=\"disk\"} 0"] {
        assert!(metrics.lines().any(|is| is == line), "{line}:\n{metrics}");
    }
    drop(frontend);
    daemon.stop()
}

/// One round trip for a synchronous write: no flush follows.
#[test]
fn a_disk_without_a_write_cache_commits_each_write() -> Result<()> {
    let place = Place::new(&[])?;
    let daemon = Daemon::serve(&format!(
        "[[export]]\nname = 'disk'\nsocket = '{}'\nqueues = 1\nwrite_cache = 'off'\n\
         storage = {{ kind = 'volume', path = '{}' }}\n",
        place.path("disk.sock").display(),
        place.path("disk.vol").display()
    ))?;
    let (mut frontend, mut ring) = place.connect()?;
    let commits = || Ok::<_, anyhow::Error>(volume_of(daemon.export("disk")?).commits);
    assert_eq!(frontend.config(WRITEBACK, 1)?, [0], "a guest finds no write cache");
    for block in 0..10 {
        write(&mut ring, block, 1);
    }
    assert_eq!(commits()?, 10);
    // A guest may have one all the same.
    frontend.set_config(WRITEBACK, &[1])?;
    write(&mut ring, 10, 1);
    assert_eq!(commits()?, 10);
    flush(&mut ring);
    assert_eq!(commits()?, 11);
    drop(frontend);
    daemon.stop()
}

#[test]
fn a_volume_grows_while_it_is_served() -> Result<()> {
    let place = Place::new(&[])?;
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    write(&mut ring, 3, 1);
    let grown: Export =
        daemon.client().send(Method::PUT, "/v1/exports/disk/capacity", &json!({"capacity_bytes": "128M"}))?;
    assert_eq!(grown.storage.map(|storage| storage.capacity_bytes), Some(128 << 20));
    let last = (128 << 20) / u64::from(BLOCK) - 1;
    write(&mut ring, last, 2);
    flush(&mut ring);
    drop((daemon, frontend));
    let daemon = place.serve("")?;
    let (frontend, mut ring) = place.connect()?;
    assert_eq!(read(&mut ring, 3), contents(3, 1));
    assert_eq!(read(&mut ring, last), contents(last, 2));
    drop(frontend);
    daemon.stop()
}

#[test]
fn a_log_of_its_own_is_asked_for_and_missed() -> Result<()> {
    let place = Place::new(&["--log", "disk.log"])?;
    let log = format!(", log = '{}'", place.path("disk.log").display());
    let daemon = place.serve(&log)?;
    let (frontend, mut ring) = place.connect()?;
    write(&mut ring, 5, 1);
    flush(&mut ring);
    let shown = volume_of(daemon.export("disk")?);
    assert_eq!((shown.log.as_deref(), shown.log_bytes > 0), (place.path("disk.log").to_str(), true));
    drop((daemon, frontend));

    let words = format!("{:#}", place.serve("").err().context("a volume without its log is refused")?);
    assert!(words.contains("storage: ") && words.contains("log remove --lost"), "{words}");
    let lost = place.volume(&["info", "disk.vol", "--json"])?;
    assert!(lost.status.success(), "{}", said(&lost));

    let daemon = place.serve(&log)?;
    let (frontend, mut ring) = place.connect()?;
    assert_eq!(read(&mut ring, 5), contents(5, 1));
    drop(frontend);
    daemon.stop()
}

#[test]
fn a_model_has_a_log_as_long_as_it_lives() -> Result<()> {
    for (storage, keeps) in [
        ("{ kind = 'sim', size = '16M', flush_cost = '2ms', intent_log = { size = '4M' } }", true),
        ("{ kind = 'memory', size = '16M', intent_log = { size = '4M', sync = 'always', dirty_memory = '1M' } }", true),
        ("{ kind = 'null', size = '16M', intent_log = { size = '4M' } }", false),
    ] {
        let place = tests::daemon::directory()?;
        let socket = place.path().join("disk.sock");
        let config =
            format!("[[export]]\nname = 'disk'\nsocket = '{}'\nqueues = 1\nstorage = {storage}\n", socket.display());
        let daemon = Daemon::serve(&config)?;
        let (frontend, mut ring) = connect(&socket)?;
        for block in 0..64 {
            write(&mut ring, block, 3);
        }
        flush(&mut ring);
        if keeps {
            for block in 0..64 {
                assert_eq!(read(&mut ring, block), contents(block, 3), "{storage}");
            }
        }
        let export = daemon.export("disk")?;
        assert_eq!(export.storage.as_ref().map(|storage| storage.capacity_bytes), Some(16 << 20), "{storage}");
        assert!(volume_of(export).commits > 0, "{storage}");
        drop(frontend);
        daemon.stop()?;
    }
    Ok(())
}

#[test]
fn what_has_no_log_cannot_be_synced() -> Result<()> {
    let place = tests::daemon::directory()?;
    let socket = place.path().join("disk.sock");
    let storage = "{ kind = 'null', size = '16M' }";
    let config =
        format!("[[export]]\nname = 'disk'\nsocket = '{}'\nqueues = 1\nstorage = {storage}\n", socket.display());
    let daemon = Daemon::serve(&config)?;
    let unsupported = ("unsupported".to_owned(), 409);
    assert_eq!(refusal(daemon.client().post::<Export>("/v1/exports/disk/sync")), unsupported);
    let settings = Settings { sync: Some(SyncMode::Always), ..Settings::default() };
    assert_eq!(refusal(daemon.change("disk", &settings)), unsupported);
    daemon.stop()
}

/// A guest may write what it likes to the begin of its own disk: that must not keep a daemon from starting.
#[test]
fn a_raw_image_that_begins_like_a_volume_is_served_with_a_warning() -> Result<()> {
    let place = Place::new(&[])?;
    let (socket, image) = (place.path("disk.sock"), place.path("disk.vol"));
    let daemon = Daemon::serve(&format!(
        "[[export]]\nname = 'disk'\nsocket = '{}'\nqueues = 1\nstorage = {{ kind = 'file', path = '{}' }}\n",
        socket.display(),
        image.display()
    ))?;
    assert!(daemon.output().contains("begins like a volume"), "{}", daemon.output());
    let (frontend, mut ring) = place.connect()?;
    assert!(read(&mut ring, 0).starts_with(b"VRINGVOL"));
    drop(frontend);
    daemon.stop()
}
