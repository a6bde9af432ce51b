//! `cargo xtask lab`: guests and peers from Debian's packages, in a cache outside the clone.

mod apt;
mod boot_disk;
mod cargo_programs;
mod ceph;
mod cpio;
mod host;
mod iotests;
mod libvirt;
mod machine;
mod modules;
mod programs;
mod qemu;
mod root;
mod uml;

pub(crate) use apt::Mirror;

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use guest::ceph::{Cluster, Store};
use guest::lab::Lab;
use guest::process::shown;

/// How many lines of a failed step's log are shown.
const LOG_TAIL_LINES: usize = 30;

/// Options of `cargo xtask lab`.
#[derive(Args, Debug, Default)]
pub(crate) struct Options {
    /// Make these steps again even if their result is current: root, programs, uml,
    /// qemu, machine, libvirt, ceph, fs-programs, uml-smp, iotests, or all.
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    again: Vec<String>,
    /// Leave out the kernel that has to be built (five to eight minutes on two processors).
    /// The tests of two queues cannot run without it.
    #[arg(long)]
    without_uml_smp: bool,
    /// Also fetch QEMU's own tests, for `cargo xtask torture iotests`.
    #[arg(long)]
    with_iotests: bool,
    #[command(subcommand)]
    only: Option<Only>,
}

/// One thing of the lab, made alone and run.
#[derive(Debug, Subcommand)]
enum Only {
    /// Run a Ceph cluster of one monitor and one OSD, whose data is in memory, until it is interrupted.
    Ceph {
        /// An empty directory for its configuration and keys [default: `cluster` in the lab, whose last one is removed]
        directory: Option<PathBuf>,
    },
}

/// One thing in the lab. Its result is current if its recipe is the one that made it.
struct Step {
    name: &'static str,
    about: &'static str,
    recipe: String,
    /// Steps whose result this one uses: when they are made again, so is this one.
    rests_on: &'static [&'static str],
    make: fn(&Workshop) -> Result<()>,
}

/// Makes what is not there or not current, and runs what is to be run.
pub(crate) fn run(options: &Options) -> Result<()> {
    make(options)?;
    match &options.only {
        Some(Only::Ceph { directory }) => run_ceph(directory.as_deref()),
        None => Ok(()),
    }
}

/// Runs a cluster in the foreground.
fn run_ceph(directory: Option<&Path>) -> Result<()> {
    let lab = Lab::locate()?;
    let place = match directory {
        Some(directory) => directory.to_owned(),
        None => {
            let own = lab.directory().join("cluster");
            remove(&own)?;
            own
        }
    };
    fs::create_dir_all(&place).with_context(|| format!("cannot create {}", place.display()))?;
    ensure!(fs::read_dir(&place)?.next().is_none(), "{} is not empty", place.display());
    let begin = Instant::now();
    let mut cluster = Cluster::start(&lab, &place, Store::Memory)?;
    cluster.run("rbd create --size 1G disk")?;
    let conf = cluster.conf();
    println!(
        "ceph: up in {:.1} s, until it is interrupted, with a pool `rbd` and an image `disk` of 1 GiB",
        begin.elapsed().as_secs_f64()
    );
    println!("  vringd disk --socket /tmp/disk.sock --rbd-conf {} rbd:rbd/disk", conf.display());
    cluster.stay()
}

fn make(options: &Options) -> Result<()> {
    let steps = [
        root::step(),
        programs::step(),
        uml::debian_step(),
        qemu::step(),
        machine::step(),
        libvirt::step(),
        ceph::step(),
        cargo_programs::step(),
        uml::smp_step(),
        iotests::step(),
    ];
    for name in &options.again {
        ensure!(
            name == "all" || steps.iter().any(|step| step.name == name),
            "--again {name}: there is no such step; take one of {} or all",
            steps.map(|step| step.name).join(", ")
        );
    }
    let lab = Lab::locate()?;
    println!("lab: {}", lab.directory().display());
    let lock = File::create(lab.directory().join("lock"))?;
    if lock.try_lock().is_err() {
        println!("lab: waiting for another `cargo xtask lab`");
        lock.lock()?;
    }
    let mut has_tools = false;
    for step in &steps {
        if options.only.is_some() && step.name != "ceph" {
            continue;
        }
        if step.name == "uml-smp" && options.without_uml_smp {
            println!("lab: {}: left out", step.name);
            continue;
        }
        let again = options.again.iter().any(|name| name == "all" || name == step.name);
        if step.name == "iotests" && !options.with_iotests && !again {
            continue;
        }
        if !again && step.is_current(&lab) {
            println!("lab: {}: current", step.name);
            continue;
        }
        if !has_tools {
            host::prepare(&Workshop::open(&lab, "tools")?)?;
            has_tools = true;
        }
        // Forgotten beforehand, so that an interruption cannot leave a new root file system
        // with old things that rest on it.
        for other in &steps {
            if other.name == step.name || other.rests_on.contains(&step.name) {
                other.forget(&lab)?;
            }
        }
        step.make(&lab)?;
    }
    Ok(())
}

impl Step {
    fn is_current(&self, lab: &Lab) -> bool {
        fs::read_to_string(lab.stamp(self.name)).is_ok_and(|recipe| recipe == self.recipe)
    }

    fn forget(&self, lab: &Lab) -> Result<()> {
        let stamp = lab.stamp(self.name);
        if stamp.exists() {
            fs::remove_file(&stamp).with_context(|| format!("cannot remove {}", stamp.display()))?;
        }
        Ok(())
    }

    fn make(&self, lab: &Lab) -> Result<()> {
        println!("lab: {}: {} ...", self.name, self.about);
        let start = Instant::now();
        let workshop = Workshop::open(lab, self.name)?;
        (self.make)(&workshop).with_context(|| format!("lab: {} cannot be made", self.name))?;
        workshop.close()?;
        let stamp = lab.stamp(self.name);
        fs::create_dir_all(stamp.parent().context("a stamp lies in a directory")?)?;
        fs::write(&stamp, &self.recipe)?;
        println!("lab: {}: done in {:.1} s", self.name, start.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Where one step works: a scratch directory that does not outlive it, and a log.
pub(crate) struct Workshop {
    lab: Lab,
    scratch: PathBuf,
    log: PathBuf,
}

impl Workshop {
    fn open(lab: &Lab, step: &str) -> Result<Self> {
        let scratch = lab.directory().join("scratch").join(step);
        remove(&scratch)?;
        fs::create_dir_all(&scratch)?;
        let logs = lab.directory().join("logs");
        fs::create_dir_all(&logs)?;
        let log = logs.join(step);
        File::create(&log)?;
        Ok(Self { lab: lab.clone(), scratch, log })
    }

    fn close(self) -> Result<()> {
        remove(&self.scratch)
    }

    /// The lab this step adds to.
    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// A directory for files in between, on the same file system as the lab.
    pub(crate) fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Says something in the step's log.
    pub(crate) fn note(&self, text: &str) -> Result<()> {
        let mut log = File::options().append(true).open(&self.log)?;
        writeln!(log, "{text}")?;
        Ok(())
    }

    /// Runs a command with its output in the step's log; a failure shows the log's end.
    pub(crate) fn run(&self, command: &mut Command) -> Result<()> {
        let line = shown(command);
        self.note(&format!("$ {line}"))?;
        let log = File::options().append(true).open(&self.log)?;
        let status = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .status()
            .with_context(|| format!("cannot start {line}"))?;
        if !status.success() {
            let text = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n");
            bail!("`{line}` failed with {status}\n{tail}\n(all of it is in {})", self.log.display());
        }
        Ok(())
    }

    /// Puts a finished directory in the place of the old one, if any.
    pub(crate) fn install(&self, finished: &Path, place: &Path) -> Result<()> {
        remove(place)?;
        fs::rename(finished, place)
            .with_context(|| format!("cannot move {} to {}", finished.display(), place.display()))
    }
}

/// Removes a directory with all it holds, if it is there.
fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}
