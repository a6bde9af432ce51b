//! A Ceph cluster of a test's own, and daemons that serve its images.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control::model::{Disk, Export, LinkInfo};
use guest::ceph::{Cluster, Store};
use http::Method;
use rbd::RbdOptions;
use serde_json::json;
use tempfile::TempDir;

use crate::daemon::Daemon;
use crate::driver::{Ring, readable, writable};
use crate::frontend::{DATA, Frontend, kind, status};
use crate::lab::{Lab, Turn};
use crate::vringd::{self, said};

/// Bytes that tests write at once.
pub const BLOCK: u32 = 4096;
/// The same, in sectors.
pub const SECTORS_A_BLOCK: u64 = 8;
/// Descriptors of a ring.
pub const RING_SIZE: u16 = 64;
/// Where reads go, behind the buffers of writes.
pub const READ_AT: u64 = DATA + (32 << 20);
/// What a request answers that has succeeded.
pub const OK: u8 = status::OK;
/// How long something may take that happens by itself.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A cluster, and a directory for daemons.
#[derive(Debug)]
pub struct Place {
    /// The cluster.
    pub cluster: Cluster,
    /// The directory.
    pub directory: TempDir,
    _turn: Turn,
}

impl Place {
    /// With an image `disk` of 64 MiB.
    pub fn new() -> Result<Self> {
        Place::on(Store::Memory)
    }

    /// The same, with the cluster's data in memory or in a file.
    pub fn on(store: Store) -> Result<Self> {
        let turn = Lab::locate()?.wait_for_place()?;
        let directory = crate::daemon::directory()?;
        let place = directory.path().join("ceph");
        fs::create_dir(&place)?;
        let mut cluster = Cluster::start(&turn, &place, store)?;
        cluster.run("rbd create --size 64M disk")?;
        Ok(Self { cluster, directory, _turn: turn })
    }

    /// A file of the test's.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The cluster's configuration.
    pub fn conf(&self) -> String {
        self.cluster.conf().display().to_string()
    }

    /// How an image is described.
    pub fn options(&self, image: &str) -> Result<RbdOptions> {
        Ok(RbdOptions { conf: self.cluster.conf(), ..RbdOptions::new(image.parse()?) })
    }

    /// An export `disk` of the image.
    pub fn config(&self, more: &str) -> String {
        let (socket, conf) = (self.path("disk.sock"), self.conf());
        format!(
            "workers = 1\n[[export]]\nname = 'disk'\nsocket = '{}'\nqueues = 2\n\
             storage = {{ kind = 'rbd', image = 'disk', conf = '{conf}'{more} }}\n",
            socket.display()
        )
    }

    /// The same in a file.
    pub fn written(&self, more: &str) -> Result<String> {
        let path = self.path("config.toml");
        fs::write(&path, self.config(more))?;
        Ok(path.display().to_string())
    }

    /// A daemon with that export, and `more` of its storage.
    pub fn serve(&self, more: &str) -> Result<Daemon> {
        Daemon::serve(&self.config(more))
    }

    /// A frontend of that export, with one ring.
    pub fn connect(&self) -> Result<(Frontend, Ring)> {
        let mut frontend = Frontend::connect(&self.path("disk.sock"), 0)?;
        let ring = frontend.ring(0, RING_SIZE)?;
        Ok((frontend, ring))
    }

    /// Runs the program, which has to refuse what it is asked for: in one line, with status 2, or with 1 where a cluster that does not answer
    /// may do so later.
    pub fn refused(&self, words: &[&str]) -> Result<String> {
        let output = vringd::run(self.directory.path(), words)?;
        let complaint = String::from_utf8(output.stderr.clone())?;
        // Of the sandbox it has told before.
        let complaints: Vec<_> = complaint.lines().filter(|line| !line.contains(" INFO ")).collect();
        let status = if complaint.contains("answered within") { 1 } else { 2 };
        ensure!(output.status.code() == Some(status) && complaints.len() == 1, "{words:?}: {}", said(&output));
        Ok(complaints[0].to_owned())
    }

    /// The same for `vringd disk` with this image.
    pub fn refused_disk(&self, conf: &str, more: &[&str], image: &str) -> Result<String> {
        let socket = self.path("refused.sock").display().to_string();
        let words = [&["disk", "--socket", &socket, "--rbd-conf", conf], more, &[image]].concat();
        self.refused(&words)
    }

    /// Another export of the daemon, `old`, of the image's snapshot `old`, and a frontend of that with one ring.
    pub fn connect_to_snapshot(&self, daemon: &Daemon, image: &str) -> Result<(Frontend, Ring)> {
        let socket = self.path("old.sock");
        let export = json!({ "name": "old", "socket": socket,
            "storage": { "kind": "rbd", "image": image, "snapshot": "old", "conf": self.conf() } });
        daemon.client().send::<Export>(Method::POST, "/v1/exports", &export)?;
        let mut frontend = Frontend::connect(&socket, 0)?;
        let ring = frontend.ring(0, RING_SIZE)?;
        Ok((frontend, ring))
    }

    /// As an operator does who wants somebody else to have the image.
    pub fn take_lock_away(&mut self) -> Result<()> {
        self.cluster.run(
            "rbd lock ls --format json disk >locks; python3 -c \"\nimport json, subprocess\n\
             for lock in json.load(open('locks')):\n  \
             subprocess.check_call(['rbd', 'lock', 'rm', 'disk', lock['id'], lock['locker']])\"",
        )?;
        Ok(())
    }

    /// Has the cluster refuse the one client that has an image open.
    pub fn blocklist(&mut self, image: &str) -> Result<()> {
        let status = self.cluster.run(&format!("rbd status {image}"))?;
        let address = status.split("watcher=").nth(1).and_then(|rest| rest.split(' ').next());
        let address = address.with_context(|| format!("a watcher: {status}"))?;
        self.cluster.run(&format!("ceph osd blocklist add {address} 2>&1"))?;
        Ok(())
    }

    /// Sends a signal to what stores the cluster's data.
    pub fn signal_osd(&mut self, signal: &str) -> Result<()> {
        self.signal("ceph-osd", signal)
    }

    /// Sends a signal to a program of the cluster.
    pub fn signal(&mut self, program: &str, signal: &str) -> Result<()> {
        self.cluster.run(&format!(
            "for process in /proc/[0-9]*; do case $(cat $process/comm) in {program}) kill -{signal} ${{process#/proc/}};; esac; done"
        ))?;
        Ok(())
    }

    /// A program for upgrades which goes on only when the file `go` is there.
    pub fn hesitant(&self) -> Result<PathBuf> {
        let (path, program, go) = (self.path("hesitant"), vringd::program()?, self.path("go"));
        let waits = format!(
            "case \"$*\" in *--check*) ;; *) while ! test -e '{}'; do sleep 0.05; done ;; esac\nexec '{}' \"$@\"\n",
            go.display(),
            program.display()
        );
        fs::write(&path, format!("#!/bin/sh\n{waits}"))?;
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
        Ok(path)
    }

    /// The image as another program reads it.
    pub fn exported(&mut self, image: &str) -> Result<Vec<u8>> {
        self.cluster.run(&format!("rm -f exported; rbd export --no-progress {image} exported"))?;
        Ok(fs::read(self.cluster.place().join("exported"))?)
    }
}

/// How things stand with the image of the export `disk`.
pub fn link(daemon: &Daemon) -> Result<LinkInfo> {
    daemon.client().get::<Disk>("/v1/disks/disk")?.storage.link.context("it is on other machines")
}

/// What a block has, in which version.
pub fn contents(block: u64, version: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (block as u8).wrapping_mul(31).wrapping_add(version).wrapping_add(at as u8)).collect()
}

/// Writes a block; what the request answers.
pub fn write(ring: &mut Ring, block: u64, version: u8) -> u8 {
    ring.queue.memory().clone().write(DATA, &contents(block, version));
    ring.run(kind::OUT, block * SECTORS_A_BLOCK, &[readable(DATA, BLOCK)]).0
}

/// Reads a block.
pub fn read(ring: &mut Ring, block: u64) -> Vec<u8> {
    let request = ring.run(kind::IN, block * SECTORS_A_BLOCK, &[writable(READ_AT, BLOCK)]);
    assert_eq!(request, (OK, BLOCK + 1));
    ring.queue.memory().read(READ_AT, BLOCK as usize)
}

/// Discards, or zeroes, some blocks.
pub fn clear(ring: &mut Ring, kind: u32, block: u64, blocks: u32, flags: u32) -> u8 {
    let mut range = (block * SECTORS_A_BLOCK).to_le_bytes().to_vec();
    range.extend((blocks * SECTORS_A_BLOCK as u32).to_le_bytes());
    range.extend(flags.to_le_bytes());
    ring.queue.memory().clone().write(DATA, &range);
    ring.run(kind, 0, &[readable(DATA, 16)]).0
}

/// Waits for it.
pub fn eventually(what: &str, mut happens: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !happens()? {
        ensure!(Instant::now() < end, "{what} does not happen");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
