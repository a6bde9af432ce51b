//! Starts a server of vhost-user disks and waits until its socket is there.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Result, bail};
use tempfile::TempDir;

use crate::device::Device;
use crate::lab::Lab;
use crate::process::{Group, run};
use crate::vringd;

/// Set to anything, it puts qemu-storage-daemon in vringd's place: a test of the tests. What only
/// vringd can do then fails.
pub const STAND_IN_VARIABLE: &str = "VRINGD_STAND_IN";

const START_LIMIT: Duration = Duration::from_secs(20);
const END_LIMIT: Duration = Duration::from_secs(20);

/// A disk to serve.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The image behind it.
    pub image: PathBuf,
    /// Virtqueues offered.
    pub queues: u16,
    /// What `--workers` says, if it is to say something.
    pub workers: Option<String>,
    /// Whether the frontend may only read.
    pub readonly: bool,
    /// Whether the host's page cache is passed by.
    pub direct: bool,
    /// More options.
    pub options: &'static [&'static str],
}

impl Disk {
    /// A writable disk with one queue.
    pub fn new(image: impl Into<PathBuf>) -> Self {
        Self { image: image.into(), queues: 1, workers: None, readonly: false, direct: false, options: &[] }
    }
}

/// A running server. It is killed when dropped.
#[derive(Debug)]
pub struct Server {
    process: Group,
    directory: TempDir,
    is_vringd: bool,
}

impl Server {
    /// Serves `disk` with the program under test.
    pub fn start(lab: &Lab, disk: &Disk) -> Result<Self> {
        Self::start_as(lab, disk, env::var_os(STAND_IN_VARIABLE).is_none())
    }

    /// Serves `disk` with qemu-storage-daemon.
    pub fn start_peer(lab: &Lab, disk: &Disk) -> Result<Self> {
        Self::start_as(lab, disk, false)
    }

    fn start_as(lab: &Lab, disk: &Disk, is_vringd: bool) -> Result<Self> {
        let directory = TempDir::with_prefix("vringd-test-")?;
        let command = if is_vringd {
            vringd::serve_disk(disk, &directory.path().join("disk.sock"), &directory.path().join("control.sock"))?
        } else {
            storage_daemon(lab, disk, &directory.path().join("disk.sock"))
        };
        let process = Group::start(&command, &directory.path().join("server.log"))?;
        let mut server = Self { process, directory, is_vringd };
        let socket = server.socket();
        server.process.wait_for_sockets(START_LIMIT, &[socket])?;
        Ok(server)
    }

    /// Where a frontend connects.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("disk.sock")
    }

    /// The disk, for a guest.
    pub fn device(&self) -> Device {
        Device::Disk { socket: self.socket(), queues: 1 }
    }

    /// The process id of the server.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What the server has said so far.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Whether a migratable disk is this server's now.
    pub fn holds(&self) -> Result<bool> {
        let output = run(&mut vringd::export(&self.control()?)?)?;
        vringd::is_held(&String::from_utf8_lossy(&output.stdout))
    }

    /// Gives the disk another capacity while it is served.
    pub fn resize(&self, capacity_bytes: u64) -> Result<()> {
        run(&mut vringd::resize(&self.control()?, capacity_bytes)?)?;
        Ok(())
    }

    /// The identifiers of the disk's own workers.
    pub fn workers(&self) -> Result<Vec<u64>> {
        let output = run(&mut vringd::workers(&self.control()?)?)?;
        vringd::worker_ids(&String::from_utf8_lossy(&output.stdout))
    }

    /// Starts another worker for the disk and says its identifier.
    pub fn new_worker(&self) -> Result<u64> {
        let output = run(&mut vringd::new_worker(&self.control()?)?)?;
        vringd::worker_id(&String::from_utf8_lossy(&output.stdout))
    }

    /// Ends a worker.
    pub fn free_worker(&self, worker: u64) -> Result<()> {
        run(&mut vringd::free_worker(&self.control()?, worker)?)?;
        Ok(())
    }

    /// Moves a ring to a worker while it is served.
    pub fn attach(&self, ring: u16, worker: u64) -> Result<()> {
        run(&mut vringd::attach(&self.control()?, ring, worker)?)?;
        Ok(())
    }

    /// Fails if the server has ended, with its last words.
    pub fn check_alive(&mut self) -> Result<()> {
        self.process.check_alive("the server")
    }

    /// Ends the server as an operator does (SIGTERM) and says how it ended.
    pub fn stop(mut self) -> Result<ExitStatus> {
        self.process.terminate(END_LIMIT)
    }

    fn control(&self) -> Result<PathBuf> {
        if !self.is_vringd {
            bail!("only vringd has a control socket, and {STAND_IN_VARIABLE} is set");
        }
        Ok(self.directory.path().join("control.sock"))
    }
}

impl Drop for Server {
    /// Leaves the server's last words in the test's output, which is shown if the test fails.
    fn drop(&mut self) {
        println!("server {}, said:\n{}", self.process.state(), self.output());
    }
}

fn storage_daemon(lab: &Lab, disk: &Disk, socket: &Path) -> Command {
    let mut blockdev = OsString::from("driver=file,node-name=disk,aio=io_uring,discard=unmap,");
    if disk.direct {
        blockdev.push("cache.direct=on,");
    }
    if disk.readonly {
        blockdev.push("read-only=on,");
    }
    blockdev.push("filename=");
    blockdev.push(&disk.image);

    let mut export = OsString::from(format!(
        "type=vhost-user-blk,id=export,node-name=disk,num-queues={},writable={},addr.type=unix,addr.path=",
        disk.queues,
        if disk.readonly { "off" } else { "on" },
    ));
    export.push(socket);

    let mut command = Command::new(lab.program("qemu-storage-daemon"));
    command.arg("--blockdev").arg(blockdev).arg("--export").arg(export);
    command
}
