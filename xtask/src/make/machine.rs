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

/// What a script may load by itself, in the order of the names in `/spare`: a SCSI device that the kernel plays.
const SPARE: &[&str] = &["scsi_debug"];

/// Init of the initial file system and, linked to `/sbin/init`, of the bootable disk.
const INIT: &str = include_str!("machine-init.sh");

pub(super) fn step() -> Step {
    Step {
        name: "machine",
        about: "fetch Debian's kernel for QEMU and make a bootable disk",
        recipe: format!("5 {SUITE} {META_PACKAGE} {MODULES:?} {SPARE:?} {}\n{INIT}", boot_disk::RECIPE),
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
    let initial = result.join("initramfs");
    fs::write(&initial, initramfs(workshop, &modules)?)?;
    // The bootable disk's loader reads it under TCG, where reading takes longer than unpacking.
    workshop.run(Command::new(workshop.lab().root().join("usr/bin/busybox")).arg("gzip").arg(&initial))?;
    fs::rename(result.join("initramfs.gz"), &initial)?;

    let tree = workshop.scratch().join("tree");
    disk_tree(workshop, &result, &tree)?;
    boot_disk::make(workshop.lab(), &tree, workshop.scratch(), &result.join("boot.raw"))?;
    workshop.install(&result, &workshop.lab().directory().join("machine"))
}

fn initramfs(workshop: &Workshop, modules: &Path) -> Result<Vec<u8>> {
    let busybox = workshop.lab().root().join("usr/bin/busybox");
    let mut archive = Archive::default();
    for name in ["bin", "dev", "proc", "sys", "modules", "spare", "disk"] {
        archive.directory(name);
    }
    archive.console("dev/console").program("bin/busybox", &fs::read(&busybox)?).program("init", INIT.as_bytes());
    let modules = Modules::below(modules, busybox)?;
    let usual = modules.in_order(MODULES)?;
    let mut spare = modules.in_order(SPARE)?;
    spare.retain(|(name, _)| usual.iter().all(|(loaded, _)| loaded != name));
    for (place, modules) in [("modules", usual), ("spare", spare)] {
        for (index, (name, content)) in modules.into_iter().enumerate() {
            // Loaded in the order of their names, they keep this one.
            archive.program(&format!("{place}/{index:02}-{name}.ko"), &content);
        }
    }
    Ok(archive.finish())
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
