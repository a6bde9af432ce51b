//! The daemon's program is replaced under a volume: its log, what is not written back, and its lock go along.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bench::frontend::{Load, Rw, Spec};
use control::model::{Settings, SyncMode, VolumeInfo};
use tempfile::TempDir;
use tests::daemon::{Daemon, directory};
use tests::driver::{Ring, readable, writable};
use tests::frontend::{DATA, Frontend, kind, status};
use tests::vringd::{self, said};

const QUEUES: u16 = 2;
const BLOCK: u32 = 4096;
const SECTORS_A_BLOCK: u64 = 8;
/// Where reads go, behind the buffer of writes.
const READ_AT: u64 = DATA + (1 << 20);
const PATIENCE: Duration = Duration::from_secs(30);

/// What outlives daemons: a volume, its log, and its memory file.
struct Volume {
    place: TempDir,
    memory: TempDir,
}

impl Volume {
    /// Of 32 MiB, with a log that is filled again and again.
    fn create(more: &[&str]) -> Result<Self> {
        let volume = Self { place: directory()?, memory: TempDir::with_prefix_in("vringd-test-", "/dev/shm")? };
        let output = volume.run(&[&["create", "--size", "32M", "--log-size", "1M", "disk.vol"], more].concat())?;
        ensure!(output.status.success(), "{}", said(&output));
        Ok(volume)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Runs `vringd volume` beside it.
    fn run(&self, words: &[&str]) -> Result<Output> {
        vringd::run(self.place.path(), &[&["volume"], words].concat())
    }

    /// Serves it with so little memory that it is written back all the time; `more` are fields of its storage.
    fn serve(&self, more: &str) -> Result<Daemon> {
        let shown = |path: &Path| path.display().to_string();
        Daemon::serve(&format!(
            "workers = 2\n[[export]]\nname = 'disk'\nsocket = '{}'\nqueues = {QUEUES}\n\
             storage = {{ kind = 'volume', path = '{}', dirty_memory = '1M', memory_file = '{}'{more} }}\n",
            shown(&self.path("disk.sock")),
            shown(&self.path("disk.vol")),
            shown(&self.memory.path().join("memory"))
        ))
    }

    fn connect(&self) -> Result<(Frontend, Ring)> {
        let mut frontend = Frontend::connect(&self.path("disk.sock"), 0)?;
        let ring = frontend.ring(0, 64)?;
        Ok((frontend, ring))
    }
}

fn figures(daemon: &Daemon) -> Result<VolumeInfo> {
    let volume = daemon.export("disk")?.storage.and_then(|storage| storage.volume);
    volume.context("a volume has figures")
}

/// Waits until the volume's figures are as they should be.
fn wait(daemon: &Daemon, wanted: impl Fn(&VolumeInfo) -> bool) -> Result<()> {
    let start = Instant::now();
    loop {
        let volume = figures(daemon)?;
        if wanted(&volume) {
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "the volume stays {volume:?}");
        thread::sleep(Duration::from_millis(5));
    }
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

#[test]
fn frontends_see_nothing_but_a_pause() -> Result<()> {
    let logs: [&[&str]; 2] = [&[], &["--log", "disk.log"]];
    for log in logs {
        let volume = Volume::create(log)?;
        let log_path = volume.path("disk.log");
        let more = if log.is_empty() { String::new() } else { format!(", log = '{}'", log_path.display()) };
        let mut daemon = volume.serve(&more)?;
        let spec = Spec {
            rw: Rw::RandRw,
            mix: 50,
            depth: 16,
            queues: QUEUES,
            flush_every: 8,
            verify: true,
            ..Spec::default()
        };
        let load = Load::start(&volume.path("disk.sock"), &spec)?;
        // Figures begin anew with each program: this one has committed, and has written back.
        let busy = |volume: &VolumeInfo| volume.commits > 20 && volume.sweeps > 1;
        wait(&daemon, busy)?;
        for _ in 0..5 {
            let takeover = daemon.upgrade()?.takeover.context("it took over")?;
            assert_eq!((takeover.sessions, takeover.rings), (1, usize::from(QUEUES)));
            wait(&daemon, busy)?;
            daemon.check_alive()?;
        }
        let report = load.finish()?;
        assert!(report.is_clean() && report.reads > 0 && report.writes > 0, "{report:?}");
        let ended = daemon.terminate()?;
        assert!(ended.success(), "{ended}: {}", daemon.output());
        let checked = volume.run(&[&["check", "disk.vol"], log].concat())?;
        assert!(checked.status.success(), "{}", said(&checked));
    }
    Ok(())
}

#[test]
fn what_was_not_flushed_goes_along_and_outlives_a_kill_behind_it() -> Result<()> {
    let volume = Volume::create(&[])?;
    let daemon = volume.serve("")?;
    let (frontend, mut ring) = volume.connect()?;
    for block in 0..100 {
        write(&mut ring, block, 1);
    }
    daemon.upgrade()?;
    for block in 50..150 {
        write(&mut ring, block, 2);
    }
    daemon.upgrade()?;
    let expected = |block| contents(block, if block < 50 { 1 } else { 2 });
    for block in 0..150 {
        assert_eq!(read(&mut ring, block), expected(block), "block {block} behind an upgrade");
    }
    // SIGKILL: nothing but the memory file has what nobody has flushed.
    drop((daemon, frontend));
    let daemon = volume.serve("")?;
    let (frontend, mut ring) = volume.connect()?;
    for block in 0..150 {
        assert_eq!(read(&mut ring, block), expected(block), "block {block} behind a kill");
    }
    drop(frontend);
    daemon.stop()
}

#[test]
fn its_mode_and_its_lock_go_along() -> Result<()> {
    let volume = Volume::create(&[])?;
    let daemon = volume.serve("")?;
    daemon.change("disk", &Settings { sync: Some(SyncMode::Always), ..Settings::default() })?;
    daemon.upgrade()?;
    assert_eq!(figures(&daemon)?.sync, SyncMode::Always);
    let (frontend, mut ring) = volume.connect()?;
    let before = figures(&daemon)?.commits;
    write(&mut ring, 0, 1);
    wait(&daemon, |volume| volume.commits > before).context("a write without a flush, in the mode `always`")?;
    let output = volume.run(&["check", "disk.vol"])?;
    assert!(!output.status.success() && said(&output).contains("in use"), "{}", said(&output));
    drop(frontend);
    daemon.stop()
}
