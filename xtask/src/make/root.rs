//! A Debian root file system: root of the User Mode Linux guests and home of the peers.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::apt::Mirror;
use super::{Step, Workshop};

const SUITE: &str = "trixie";

/// What guests and tests call for. What a guest builds is C, for a compiler that is small.
const PACKAGES: &[&str] = &[
    "acl",
    "attr",
    "busybox-static",
    "diod",
    "e2fsprogs",
    "fio",
    "git",
    "grub-common",
    "grub-pc-bin",
    "libc6-dev",
    "make",
    "multipath-tools",
    "qemu-block-extra",
    "qemu-system-x86",
    "qemu-utils",
    "sg3-utils",
    "strace",
    "tcc",
    "util-linux",
    "virtiofsd",
    "xfsprogs",
];

pub(super) fn step() -> Step {
    Step {
        name: "root",
        about: "make a root file system with mmdebstrap",
        recipe: format!("2 {SUITE} {PACKAGES:?}"),
        rests_on: &[],
        make,
    }
}

fn make(workshop: &Workshop) -> Result<()> {
    debian(workshop, SUITE, PACKAGES, &workshop.lab().root())
}

/// Makes a root file system of packages and what they need, and puts it where it belongs.
pub(super) fn debian(workshop: &Workshop, suite: &str, packages: &[&str], place: &Path) -> Result<()> {
    let mirror = Mirror::of_this_machine()?;
    let root = workshop.scratch().join("root");
    let archive = workshop.scratch().join("root.tar");
    let is_root = rustix::process::geteuid().is_root();

    let mut mmdebstrap = Command::new("mmdebstrap");
    mmdebstrap
        .arg("--variant=minbase")
        .arg(format!("--include={}", packages.join(",")))
        .arg(format!("--keyring={}", mirror.keyring));
    if is_root {
        mmdebstrap.arg("--mode=root").arg(suite).arg(&root);
    } else {
        mmdebstrap.arg("--mode=unshare").arg(suite).arg(&archive);
    }
    workshop.run(mmdebstrap.arg(mirror.line(suite)))?;
    if !is_root {
        // Unpacked by the user, all of it belongs to the user; device nodes are left out, as the
        // guest brings its own.
        fs::create_dir(&root)?;
        workshop.run(
            Command::new("tar")
                .args(["--extract", "--no-same-owner", "--exclude=./dev/*", "--file"])
                .arg(&archive)
                .arg("--directory")
                .arg(&root),
        )?;
    }

    workshop.install(&root, place)
}
