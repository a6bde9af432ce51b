//! User Mode Linux: Debian's build in seconds, and one with several processors in minutes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

use super::apt::Suite;
use super::{Step, Workshop};

/// The first suite whose build can trap system calls with seccomp, which a processor with AMX
/// needs: its register file does not fit through ptrace.
const DEBIAN_SUITE: &str = "sid";
const DEBIAN_MODULES: &[&str] = &["virtio_blk", "fuse", "virtiofs"];

const SOURCE_SUITE: &str = "trixie-backports";
const SOURCE_PACKAGE: &str = "linux-source-7.3";

/// What the tests ask of the kernel that `make defconfig` does not give.
const ENABLE: &[&str] = &[
    "SMP",
    "VIRTIO_UML",
    "VIRTIO_BLK",
    "SCSI",
    "BLK_DEV_SD",
    "SCSI_VIRTIO",
    "FUSE_FS",
    "VIRTIO_FS",
    "NET_9P",
    "NET_9P_VIRTIO",
    "NET_9P_FD",
    "9P_FS",
    "EXT4_FS",
    "TMPFS",
    "HOSTFS",
    "DEVTMPFS",
    "DEVTMPFS_MOUNT",
    "IO_URING",
    "AIO",
    "MD",
    "BLK_DEV_DM",
    "DM_LOG_WRITES",
    "DM_FLAKEY",
    "DEBUG_INFO_NONE",
];
const DISABLE: &[&str] = &["DEBUG_INFO", "DEBUG_KERNEL", "WERROR", "MODULES"];
/// Which of them are looked for in the result: a kernel that silently lacks one would fail later
/// and less clearly.
const REQUIRED: &[&str] = &[
    "SMP",
    "VIRTIO_UML",
    "VIRTIO_BLK",
    "VIRTIO_FS",
    "NET_9P_VIRTIO",
    "NET_9P_FD",
    "9P_FS",
    "EXT4_FS",
    "HOSTFS",
    "DEVTMPFS",
    "IO_URING",
    "BLK_DEV_LOOP",
    "DM_LOG_WRITES",
];

pub(super) fn debian_step() -> Step {
    Step {
        name: "uml",
        about: "fetch Debian's User Mode Linux",
        recipe: format!("2 {DEBIAN_SUITE} {DEBIAN_MODULES:?}"),
        rests_on: &["root"],
        make: make_debian,
    }
}

fn make_debian(workshop: &Workshop) -> Result<()> {
    let unpacked = workshop.scratch().join("package");
    Suite::open(workshop, DEBIAN_SUITE)?.unpack("user-mode-linux", &unpacked)?;

    let lab = workshop.lab();
    let result = workshop.scratch().join("uml");
    fs::create_dir(&result)?;
    copy_with_own_loader(&unpacked.join("usr/bin/linux.uml"), &result.join("linux"))?;
    symlink(lab.loader(), result.join(LOADER))?;

    let modules = unpacked.join("usr/lib/uml/modules");
    // Guests find their drivers beside the kernel.
    fs::create_dir(result.join("modules"))?;
    for name in DEBIAN_MODULES {
        let file = format!("{name}.ko");
        let source = find(&modules, &file)?.with_context(|| format!("there is no {file}"))?;
        fs::copy(source, result.join("modules").join(file))?;
    }
    workshop.install(&result, &lab.directory().join("uml"))
}

const LOADER: &str = "ld.so";

/// Copies the kernel and lets it look for its dynamic loader in its working directory.
///
/// It is linked for a newer C library than the machine may have. Called through the loader like
/// the other programs it would not run: it starts itself again, and takes the end of its own
/// program text for the start of its memory.
fn copy_with_own_loader(from: &Path, to: &Path) -> Result<()> {
    const BUILT_IN: &[u8] = b"/lib64/ld-linux-x86-64.so.2\0";
    let mut program = fs::read(from)?;
    let places: Vec<usize> = program
        .windows(BUILT_IN.len())
        .enumerate()
        .filter_map(|(place, window)| (window == BUILT_IN).then_some(place))
        .collect();
    ensure!(places.len() == 1, "{} names its loader {} times instead of once", from.display(), places.len());
    let field = &mut program[places[0]..places[0] + BUILT_IN.len()];
    field.fill(0);
    field[..LOADER.len()].copy_from_slice(LOADER.as_bytes());
    fs::write(to, program)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    Ok(())
}

fn find(directory: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            if let Some(found) = find(&entry.path(), name)? {
                return Ok(Some(found));
            }
        } else if entry.file_name() == name {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

pub(super) fn smp_step() -> Step {
    Step {
        name: "uml-smp",
        about: "build User Mode Linux for several processors (five to eight minutes on two)",
        recipe: format!("1 {SOURCE_SUITE} {SOURCE_PACKAGE} {ENABLE:?} {DISABLE:?}"),
        rests_on: &[],
        make: make_smp,
    }
}

fn make_smp(workshop: &Workshop) -> Result<()> {
    let unpacked = workshop.scratch().join("package");
    Suite::open(workshop, SOURCE_SUITE)?.unpack(SOURCE_PACKAGE, &unpacked)?;
    let source = workshop.scratch().join("source");
    fs::create_dir(&source)?;
    let archive = format!("usr/src/{SOURCE_PACKAGE}.tar.xz");
    workshop.run(
        Command::new("tar")
            .args(["--extract", "--strip-components=1", "--file"])
            .arg(unpacked.join(archive))
            .arg("--directory")
            .arg(&source),
    )?;

    configure(workshop, &source)?;
    workshop.run(make_command(&source).arg("linux"))?;

    let result = workshop.scratch().join("uml-smp");
    fs::create_dir(&result)?;
    let kernel = result.join("linux");
    fs::copy(source.join("linux"), &kernel)?;
    workshop.run(Command::new("strip").arg(&kernel))?;
    workshop.install(&result, &workshop.lab().directory().join("uml-smp"))
}

fn configure(workshop: &Workshop, source: &Path) -> Result<()> {
    workshop.run(make_command(source).arg("defconfig"))?;
    let mut config = Command::new(source.join("scripts/config"));
    config.current_dir(source).args(["--set-val", "NR_CPUS", "8"]);
    for option in ENABLE {
        config.args(["--enable", option]);
    }
    for option in DISABLE {
        config.args(["--disable", option]);
    }
    workshop.run(&mut config)?;
    workshop.run(make_command(source).arg("olddefconfig"))?;
    let result = fs::read_to_string(source.join(".config"))?;
    for option in REQUIRED {
        ensure!(
            result.lines().any(|line| line == format!("CONFIG_{option}=y")),
            "{SOURCE_PACKAGE} does not take CONFIG_{option}=y"
        );
    }
    Ok(())
}

/// `make` for User Mode Linux, last in line for the processors: others may be at work.
fn make_command(source: &Path) -> Command {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let mut command = Command::new("nice");
    command.args(["-n", "19", "make", "--silent", "ARCH=um"]).arg(format!("--jobs={jobs}")).arg("-C").arg(source);
    command
}
