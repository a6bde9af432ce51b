//! A Ceph cluster of one monitor and one OSD: made in a second or two, gone when it is dropped.
//!
//! Its programs are those of the lab's root file system, in namespaces of their own, and need no rights. Its ports are the machine's, on
//! 127.0.0.1, so that any program here reaches it.

use std::fs;
use std::io::{PipeWriter, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::lab::Lab;
use crate::process::Group;

/// Until a pool is there.
const START_LIMIT: Duration = Duration::from_secs(120);
/// For anything that it is told to do.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Its first process.
const INIT: &str = include_str!("cluster.sh");
/// The configuration of its own programs.
const SERVER: &str = include_str!("server.conf");

/// Where the OSD keeps its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// In memory, which is gone with it.
    Memory,
    /// In a sparse file of the cluster's directory. The cluster takes seconds to make.
    File,
}

impl Store {
    /// What it is called in `osd_objectstore`.
    fn word(self) -> &'static str {
        match self {
            Store::Memory => "memstore",
            Store::File => "bluestore",
        }
    }
}

/// A cluster. All of its processes end when it is dropped; its directory stays.
#[derive(Debug)]
pub struct Cluster {
    orders: PipeWriter,
    given: u32,
    place: PathBuf,
    process: Group,
}

impl Cluster {
    /// Makes one in the directory `place`, which is empty, with a pool `rbd` for images.
    ///
    /// # Errors
    /// The lab lacks Ceph, or a program of it fails; with what it has said.
    pub fn start(lab: &Lab, place: &Path, store: Store) -> Result<Cluster> {
        lab.require_ceph()?;
        let place = fs::canonicalize(place).with_context(|| format!("{} is no directory", place.display()))?;
        let shown = place.to_str().context("the cluster's directory has a name in UTF-8")?;
        let (fsid, osd, port) = (uuid()?, uuid()?, free_port()?);
        let with = |text: &str| {
            text.replace("@FSID@", &fsid).replace("@PORT@", &port.to_string()).replace("@STORE@", store.word())
        };
        fs::write(place.join("server.conf"), with(SERVER))?;
        let client = format!("[global]\nfsid = @FSID@\nmon_host = [v2:127.0.0.1:@PORT@]\nkeyring = {shown}/keyring\n");
        fs::write(place.join("ceph.conf"), with(&client))?;
        let init = place.join("init");
        fs::write(&init, INIT)?;
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"])
            .arg("bash")
            .arg(&init)
            // Which the tests' runner sets, for its own libraries.
            .env_remove("LD_LIBRARY_PATH")
            .env("root", lab.ceph_root())
            .env("place", &place)
            .env("fsid", &fsid)
            .env("osd", &osd)
            .env("port", port.to_string());
        let (input, orders) = std::io::pipe()?;
        let mut process = Group::start_with(&command, input, &place.join("console"))?;
        process.wait_until(START_LIMIT, |_| place.join("ready").exists()).with_context(|| {
            let log = |program| fs::read_to_string(place.join(format!("{program}.log"))).unwrap_or_default();
            format!(
                "the cluster does not start; its monitor said:\n{}\nits OSD said:\n{}",
                log("ceph-mon"),
                log("ceph-osd")
            )
        })?;
        Ok(Cluster { orders, given: 0, place, process })
    }

    /// The configuration of its clients.
    pub fn conf(&self) -> PathBuf {
        self.place.join("ceph.conf")
    }

    /// Its directory.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Has a script run beside its programs that has to end well, and returns what it says.
    ///
    /// # Errors
    /// It fails; with what it has said.
    pub fn run(&mut self, script: &str) -> Result<String> {
        self.given += 1;
        let order = format!("order-{}", self.given);
        fs::write(self.place.join(&order), script)?;
        writeln!(self.orders, "{order}")?;
        let status = self.place.join(format!("{order}.status"));
        self.process.wait_until(ANSWER_LIMIT, |_| status.exists())?;
        let said = fs::read_to_string(self.place.join(format!("{order}.said")))?;
        let status = fs::read_to_string(status)?;
        ensure!(status.trim() == "0", "`{script}` ends with {}: {said}", status.trim());
        Ok(said)
    }

    /// Kills the OSD: what is asked of the cluster waits from now on.
    ///
    /// # Errors
    /// It is not there.
    pub fn kill_osd(&mut self) -> Result<()> {
        self.run("stop ceph-osd").map(drop)
    }

    /// Starts it again.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_osd(&mut self) -> Result<()> {
        self.run("start_osd").map(drop)
    }

    /// Kills the monitor: who has a connection to the OSD keeps it, and nobody gets one.
    ///
    /// # Errors
    /// It is not there.
    pub fn kill_monitor(&mut self) -> Result<()> {
        self.run("stop ceph-mon").map(drop)
    }

    /// Starts it again.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_monitor(&mut self) -> Result<()> {
        self.run("start_monitor").map(drop)
    }

    /// Stays until it ends by itself, or this program is told to.
    ///
    /// # Errors
    /// Always one.
    pub fn stay(&mut self) -> Result<()> {
        self.process.wait_until(Duration::MAX, |_| false)
    }
}

fn uuid() -> Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

/// A port that nobody listens at now. Between this and the monitor's start somebody else may take it, and the monitor fails.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
