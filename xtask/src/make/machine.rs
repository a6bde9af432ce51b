//! A PC for QEMU: Debian's kernel, an initial file system, a bootable disk.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::apt::Suite;
use super::cpio::Archive;
use super::modules::Modules;
use super::{Step, Workshop, boot_disk};

const SUITE: &str = "trixie";
/// Not the smaller one for clouds, which has no 9p.
const META_PACKAGE: &str = "linux-image-amd64";

/// What this kernel has as modules and guests need, each loaded behind what it needs itself: the disk, and commands to it;
/// QEMU's firmware files, which carry a test's script; 9p, which carries the root file system of the other
/// guests, and 9p over sockets; the bootable disk's file system and its checksum; what keeps files of 9p on a guest's own disk.
const MODULES: &[&str] = &[
    "virtio_blk",
    "virtio_scsi",
    "sd_mod",
    "sg",
    "qemu_fw_cfg",
    "9pnet_virtio",
    "9pnet_fd",
    "9p",
    "crc32c_generic",
    "ext4",
    "cachefiles",
];

/// What a test may have its guest load, by the name under which it asks for it: a SCSI device that the kernel plays, one disk on several
/// paths, a file system. They are not in the initial file system, which every guest unpacks.
const SPARE: &[(&str, &[&str])] = &[
    ("scsi_debug", &["scsi_debug"]),
    ("multipath", &["scsi_dh_alua", "dm_multipath", "dm_service_time"]),
    ("xfs", &["xfs"]),
];

/// Init of the initial file system and, linked to `/sbin/init`, of the bootable disk.
const INIT: &str = include_str!("machine-init.sh");

pub(super) fn step() -> Step {
    Step {
        name: "machine",
        about: "fetch Debian's kernel for QEMU and make a bootable disk",
        recipe: format!("6 {SUITE} {META_PACKAGE} {MODULES:?} {SPARE:?} {}\n{INIT}", boot_disk::RECIPE),
        rests_on: &["root"],
        make,
    }
}

fn make(workshop: &Workshop) -> Result<()> {
    let unpacked = workshop.scratch().join("package");
    let suite = Suite::open(workshop, SUITE)?;
    let package = suite.behind(META_PACKAGE, "linux-image-")?;
    suite.unpack(&package, &unpacked)?;
    let release = package.trim_start_matches("linux-image-");

    let result = workshop.scratch().join("machine");
    fs::create_dir(&result)?;
    fs::copy(unpacked.join(format!("boot/vmlinuz-{release}")), result.join("vmlinuz"))?;
    let modules = unpacked.join(format!("usr/lib/modules/{release}/kernel"));
    let modules = Modules::below(&modules, workshop.lab().root().join("usr/bin/busybox"))?;
    let initial = result.join("initramfs");
    fs::write(&initial, initramfs(workshop, &modules)?)?;
    add_spare(&modules, &result.join("spare"))?;
    // The bootable disk's loader reads it under TCG, where reading takes longer than unpacking.
    workshop.run(Command::new(workshop.lab().root().join("usr/bin/busybox")).arg("gzip").arg(&initial))?;
    fs::rename(result.join("initramfs.gz"), &initial)?;

    let tree = workshop.scratch().join("tree");
    disk_tree(workshop, &result, &tree)?;
    boot_disk::make(workshop.lab(), &tree, workshop.scratch(), &result.join("boot.raw"))?;
    workshop.install(&result, &workshop.lab().directory().join("machine"))
}

fn initramfs(workshop: &Workshop, modules: &Modules) -> Result<Vec<u8>> {
    let busybox = workshop.lab().root().join("usr/bin/busybox");
    let mut archive = Archive::default();
    for name in ["bin", "dev", "proc", "sys", "modules", "disk"] {
        archive.directory(name);
    }
    archive.console("dev/console").program("bin/busybox", &fs::read(&busybox)?).program("init", INIT.as_bytes());
    for (index, (name, content)) in modules.in_order(MODULES)?.into_iter().enumerate() {
        archive.program(&format!("modules/{}", file_name(index, &name)), &content);
    }
    Ok(archive.finish())
}

/// Each under its name, with what it needs beyond the usual modules.
fn add_spare(modules: &Modules, place: &Path) -> Result<()> {
    let usual = modules.in_order(MODULES)?;
    for (name, wanted) in SPARE {
        let directory = place.join(name);
        fs::create_dir_all(&directory)?;
        let mut spare = modules.in_order(wanted)?;
        spare.retain(|(name, _)| usual.iter().all(|(loaded, _)| loaded != name));
        for (index, (name, content)) in spare.into_iter().enumerate() {
            fs::write(directory.join(file_name(index, &name)), content)?;
        }
    }
    Ok(())
}

/// Modules are loaded in the order of their names.
fn file_name(index: usize, module: &str) -> String {
    format!("{index:02}-{module}.ko")
}

/// What the bootable disk holds.
fn disk_tree(workshop: &Workshop, machine: &Path, tree: &Path) -> Result<()> {
    for name in ["bin", "sbin", "boot", "dev", "proc", "sys", "tmp", "root"] {
        fs::create_dir_all(tree.join(name))?;
    }
    fs::copy(machine.join("vmlinuz"), tree.join("boot/vmlinuz"))?;
    fs::copy(machine.join("initramfs"), tree.join("boot/initramfs"))?;
    fs::copy(workshop.lab().root().join("usr/bin/busybox"), tree.join("bin/busybox"))?;
    symlink("busybox", tree.join("bin/sh"))?;
    fs::write(tree.join("sbin/init"), INIT)?;
    fs::set_permissions(tree.join("sbin/init"), Permissions::from_mode(0o755))?;
    Ok(())
}
