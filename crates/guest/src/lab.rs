//! Where the lab is and what lies in it. `cargo xtask lab` fills what this module names.

use std::env;
use std::fs::{self, File};
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

    /// Finds a complete lab and waits for its turn on it.
    ///
    /// Guests are heavy: two of them on two processors make each other late. Every test that
    /// starts one holds the returned value while it runs.
    ///
    /// # Panics
    /// If the lab is not there. A test without its guest has failed; it is not to be skipped.
    pub fn take_turn() -> Turn {
        let lab = Self::locate().expect("the lab has a directory");
        for step in ["root", "programs", "uml", "machine", "fs-programs"] {
            assert!(
                lab.stamp(step).exists(),
                "the lab in {} lacks `{step}`: run `cargo xtask lab`",
                lab.directory.display()
            );
        }
        let start = Instant::now();
        let turn = lab.wait_for_turn().expect("the lab's turn can be locked");
        // Part of the test's time, so that a slow test can be told from one that stood in line.
        println!("waited {:.1} s for a turn on the lab", start.elapsed().as_secs_f64());
        turn
    }

    /// Waits until nobody else uses the lab: no test and no measurement. Says on standard error if it must
    /// wait. Whoever measures holds the returned value meanwhile.
    pub fn wait_for_turn(self) -> Result<Turn> {
        let path = self.directory.join("turn");
        let lock = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        if lock.try_lock().is_err() {
            eprintln!("waiting for the lab's turn: a test or a measurement is using it");
            while lock.try_lock().is_err() {
                interrupt::check()?;
                thread::sleep(interrupt::LOOK_EVERY);
            }
        }
        Ok(Turn { lab: self, _lock: lock })
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

    /// Programs of that root file system, ready to be run on this machine.
    pub fn programs(&self) -> PathBuf {
        self.directory.join("bin")
    }

    /// A program of the lab by name, for example `qemu-img`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.programs().join(name)
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

    /// Debian's kernel for virtual machines.
    pub fn kernel(&self) -> PathBuf {
        self.directory.join("machine/vmlinuz")
    }

    /// The initial file system that goes with [`Lab::kernel`].
    pub fn initramfs(&self) -> PathBuf {
        self.directory.join("machine/initramfs")
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

    fn require(&self, step: &str) -> Result<()> {
        if !self.stamp(step).exists() {
            bail!("the lab in {} lacks `{step}`: run `cargo xtask lab`", self.directory.display());
        }
        Ok(())
    }
}

/// The lab, held by one test or one measurement at a time.
#[derive(Debug)]
pub struct Turn {
    lab: Lab,
    _lock: File,
}

impl std::ops::Deref for Turn {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}
