//! Where the lab is and what lies in it. `cargo xtask lab` fills what this module names.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::iter;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::interrupt;
use crate::kit::Kit;

/// Names the directory of the lab; without it the user's cache directory is taken.
pub const DIRECTORY_VARIABLE: &str = "VRINGD_LAB";

/// Where Debian for amd64 keeps its libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The paths of the lab.
#[derive(Clone, Debug)]
pub struct Lab {
    directory: PathBuf,
}

impl Lab {
    /// The lab in `directory`, complete or not.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Chooses the directory: `$VRINGD_LAB`, else the user's cache directory if it can be
    /// written, else `target/lab` of this workspace. Creates it.
    pub fn locate() -> Result<Self> {
        if let Some(directory) = env::var_os(DIRECTORY_VARIABLE) {
            let directory = PathBuf::from(directory);
            fs::create_dir_all(&directory).with_context(|| {
                format!("{DIRECTORY_VARIABLE} names {}, which cannot be created", directory.display())
            })?;
            return Ok(Self::at(fs::canonicalize(directory)?));
        }
        if let Some(directory) = Self::of_user()
            && fs::create_dir_all(&directory).is_ok()
            && File::create(directory.join("lock")).is_ok()
        {
            return Ok(Self::at(fs::canonicalize(directory)?));
        }
        let directory = Self::of_workspace();
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Self::at(fs::canonicalize(directory)?))
    }

    /// A lab that was made, in one of the places where [`Lab::locate`] may have put it. Creates nothing:
    /// the user of an installed program need not have one.
    pub fn find() -> Option<Self> {
        let named = env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from);
        let places = match named {
            Some(named) => vec![named],
            None => Self::of_user().into_iter().chain([Self::of_workspace()]).collect(),
        };
        places
            .into_iter()
            .find(|place| place.join("stamps").is_dir())
            .and_then(|place| fs::canonicalize(place).ok())
            .map(Self::at)
    }

    fn of_user() -> Option<PathBuf> {
        let cache = env::var_os("XDG_CACHE_HOME")
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
            .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?;
        Some(cache.join("vringd-lab"))
    }

    fn of_workspace() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/lab")
    }

    /// Finds a complete lab and waits for a place in it, as [`Lab::wait_for_place`] does. Every test that starts a
    /// guest holds the returned value while it runs.
    ///
    /// # Panics
    /// If the lab is not there. A test without its guest has failed; it is not to be skipped.
    pub fn take_turn() -> Turn {
        let lab = Self::locate().expect("the lab has a directory");
        for step in ["root", "programs", "uml", "machine", "libvirt", "fs-programs"] {
            assert!(
                lab.stamp(step).exists(),
                "the lab in {} lacks `{step}`: run `cargo xtask lab`",
                lab.directory.display()
            );
        }
        let start = Instant::now();
        let turn = lab.wait_for_place().expect("the lab's locks can be taken");
        // Part of the test's time, so that a slow test can be told from one that stood in line.
        println!("waited {:.1} s for a turn on the lab", start.elapsed().as_secs_f64());
        turn
    }

    /// Waits until fewer guests run than there are processors, and nobody measures. Says on standard error if it must wait. Who
    /// has guests that need not be quick holds the returned value meanwhile.
    pub fn wait_for_place(self) -> Result<Turn> {
        let mut line = Line { lab: &self, said: false };
        let gate = line.wait("gate", File::try_lock)?;
        let turn = line.wait("turn", File::try_lock_shared)?;
        drop(gate);
        let places = thread::available_parallelism().map_or(1, NonZero::get);
        let files = (0..places).map(|place| line.open(&format!("place-{place}"))).collect::<Result<Vec<File>>>()?;
        let place = line.wait_for_one(files, File::try_lock)?;
        Ok(Turn { lab: self, _locks: vec![turn, place] })
    }

    /// Waits until nobody else uses the lab: no test and no measurement. Says on standard error if it must
    /// wait. Whoever measures holds the returned value meanwhile.
    pub fn wait_alone(self) -> Result<Turn> {
        let mut line = Line { lab: &self, said: false };
        // Held until those inside have gone, so that nobody else goes in: there would always be somebody.
        let gate = line.wait("gate", File::try_lock)?;
        let turn = line.wait("turn", File::try_lock)?;
        drop(gate);
        Ok(Turn { lab: self, _locks: vec![turn] })
    }

    /// The files that guests are made of, as far as they are there.
    pub fn kit(&self) -> Kit {
        let there = |path: PathBuf| path.exists().then_some(path);
        Kit {
            uml: there(self.uml_smp()).or_else(|| there(self.uml())),
            qemu: there(self.any_device_qemu()).or_else(|| there(self.program("qemu-system-x86_64"))),
            kernel: there(self.kernel()),
            initramfs: there(self.initramfs()),
            root: there(self.root()),
        }
    }

    /// The directory that holds all of it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A Debian root file system: the guests' root and the home of the peers.
    pub fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    /// Another one, of a host that libvirt runs on.
    pub fn libvirt_root(&self) -> PathBuf {
        self.directory.join("libvirt")
    }

    /// Another one, with the servers of a Ceph cluster.
    pub fn ceph_root(&self) -> PathBuf {
        self.directory.join("ceph")
    }

    /// Programs of [`Lab::root`], ready to be run on this machine.
    pub fn programs(&self) -> PathBuf {
        self.directory.join("bin")
    }

    /// A program of the lab by name, for example `qemu-img`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs().join(name)
    }

    /// The caller's `PATH` with those programs in front, for whoever looks for a program by its name.
    ///
    /// # Errors
    /// The lab's directory has a colon in its path.
    pub fn search_path(&self) -> Result<OsString> {
        let path = env::var_os("PATH").unwrap_or_default();
        let directories = iter::once(self.programs()).chain(env::split_paths(&path));
        env::join_paths(directories).with_context(|| format!("{} cannot be in a PATH", self.programs().display()))
    }

    /// Debian's own User Mode Linux: one processor, drivers as modules.
    pub fn uml(&self) -> PathBuf {
        self.directory.join("uml/linux")
    }

    /// A QEMU that is newer than that of the root file system: it can give a guest any device that a
    /// vhost-user server serves, 9p among them.
    pub fn any_device_qemu(&self) -> PathBuf {
        self.directory.join("qemu/qemu-system-x86_64")
    }

    /// User Mode Linux with several processors, built by the lab.
    pub fn uml_smp(&self) -> PathBuf {
        self.directory.join("uml-smp/linux")
    }

    /// Programs that test file systems, `fsx` and `pjdfstest`, built for this machine. Guests whose
    /// root is [`Lab::root`] can run them too.
    pub fn fs_programs(&self) -> PathBuf {
        self.directory.join("fs-programs")
    }

    /// QEMU's own tests of its block layer, and their program `check`; not there unless they were asked for.
    pub fn iotests(&self) -> PathBuf {
        self.directory.join("iotests/tests/qemu-iotests")
    }

    /// Debian's kernel for virtual machines.
    pub fn kernel(&self) -> PathBuf {
        self.directory.join("machine/vmlinuz")
    }

    /// The initial file system that goes with [`Lab::kernel`].
    pub fn initramfs(&self) -> PathBuf {
        self.directory.join("machine/initramfs")
    }

    /// Modules of [`Lab::kernel`] that are loaded by tests which need them, in a directory each with what they need, in the order of their
    /// file names.
    pub fn spare_modules(&self) -> PathBuf {
        self.directory.join("machine/spare")
    }

    /// An image of a disk that a PC's BIOS can boot, for [`Lab::kernel`].
    pub fn boot_disk(&self) -> PathBuf {
        self.directory.join("machine/boot.raw")
    }

    /// The file that says which recipe made a step's result.
    pub fn stamp(&self, step: &str) -> PathBuf {
        self.directory.join("stamps").join(step)
    }

    /// The dynamic loader of the root file system.
    pub fn loader(&self) -> PathBuf {
        self.root().join(LIBRARIES).join("ld-linux-x86-64.so.2")
    }

    /// What that loader must be told to search, colon-separated.
    pub fn library_path(&self) -> String {
        let libraries = self.root().join(LIBRARIES);
        format!("{0}:{0}/ceph", libraries.display())
    }

    /// A command that runs `program` (a path inside the root file system) on this machine: with
    /// the loader and the libraries it was built for, and without changing the machine's own.
    pub fn command_in_root(&self, program: &str) -> Command {
        let mut command = Command::new(self.loader());
        command
            .arg("--library-path")
            .arg(self.library_path())
            .arg(self.root().join(program))
            .env("QEMU_MODULE_DIR", self.root().join(LIBRARIES).join("qemu"));
        command
    }

    /// Fails unless the kernel with several processors was built.
    pub fn require_uml_smp(&self) -> Result<()> {
        self.require("uml-smp")
    }

    /// Fails unless [`Lab::any_device_qemu`] is there.
    pub fn require_any_device_qemu(&self) -> Result<()> {
        self.require("qemu")
    }

    /// Fails unless [`Lab::ceph_root`] is there.
    pub fn require_ceph(&self) -> Result<()> {
        self.require("ceph")
    }

    fn require(&self, step: &str) -> Result<()> {
        if !self.stamp(step).exists() {
            bail!("the lab in {} lacks `{step}`: run `cargo xtask lab`", self.directory.display());
        }
        Ok(())
    }
}

type TryLock = fn(&File) -> Result<(), TryLockError>;

/// Somebody who waits for locks of the lab.
struct Line<'a> {
    lab: &'a Lab,
    said: bool,
}

impl Line<'_> {
    fn open(&self, name: &str) -> Result<File> {
        let path = self.lab.directory.join(name);
        File::create(&path).with_context(|| format!("cannot create {}", path.display()))
    }

    fn wait(&mut self, name: &str, lock: TryLock) -> Result<File> {
        let file = self.open(name)?;
        self.wait_for_one(vec![file], lock)
    }

    /// The first of these files whose lock can be had.
    fn wait_for_one(&mut self, mut files: Vec<File>, lock: TryLock) -> Result<File> {
        loop {
            for at in 0..files.len() {
                match lock(&files[at]) {
                    Ok(()) => return Ok(files.swap_remove(at)),
                    Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the lab"),
                }
            }
            if !self.said {
                eprintln!("waiting for the lab's turn: a test or a measurement is using it");
                self.said = true;
            }
            interrupt::check()?;
            thread::sleep(interrupt::LOOK_EVERY);
        }
    }
}

/// The lab, held by one measurement or by a few tests at a time.
#[derive(Debug)]
pub struct Turn {
    lab: Lab,
    _locks: Vec<File>,
}

impl std::ops::Deref for Turn {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};
    use std::time::Duration;

    use super::*;

    const A_WHILE: Duration = Duration::from_millis(400);
    const LIMIT: Duration = Duration::from_secs(60);

    /// Somebody else, who waits and says when that was over.
    fn another(lab: &Lab, wait: fn(Lab) -> Result<Turn>) -> Receiver<Turn> {
        let (say, heard) = mpsc::channel();
        let lab = lab.clone();
        thread::spawn(move || say.send(wait(lab).unwrap()));
        heard
    }

    #[test]
    fn as_many_guests_as_processors_run_side_by_side() {
        let directory = tempfile::tempdir().unwrap();
        let lab = Lab::at(directory.path());
        let places = thread::available_parallelism().unwrap().get();
        let mut inside: Vec<Turn> = (0..places).map(|_| lab.clone().wait_for_place().unwrap()).collect();
        let next = another(&lab, Lab::wait_for_place);
        assert!(next.recv_timeout(A_WHILE).is_err(), "one guest too many");
        inside.pop();
        next.recv_timeout(LIMIT).unwrap();
    }

    #[test]
    fn who_measures_is_alone_and_lets_nobody_pass() {
        let directory = tempfile::tempdir().unwrap();
        let lab = Lab::at(directory.path());
        let guest = lab.clone().wait_for_place().unwrap();
        let measures = another(&lab, Lab::wait_alone);
        assert!(measures.recv_timeout(A_WHILE).is_err(), "beside a guest");
        let late = another(&lab, Lab::wait_for_place);
        assert!(late.recv_timeout(A_WHILE).is_err(), "before who waits already");
        drop(guest);
        let alone = measures.recv_timeout(LIMIT).unwrap();
        assert!(late.recv_timeout(A_WHILE).is_err(), "beside a measurement");
        drop(alone);
        late.recv_timeout(LIMIT).unwrap();
    }
}
