//! What this machine itself must have.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::Workshop;

/// A program and the Debian package it comes from.
struct Tool {
    program: &'static str,
    package: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool { program: "apt-get", package: "apt" },
    Tool { program: "dpkg", package: "dpkg" },
    Tool { program: "setpriv", package: "util-linux" },
    Tool { program: "mmdebstrap", package: "mmdebstrap" },
    Tool { program: "tar", package: "tar" },
    Tool { program: "xz", package: "xz-utils" },
    // For tests that count system calls.
    Tool { program: "strace", package: "strace" },
    // For building a kernel.
    Tool { program: "make", package: "make" },
    Tool { program: "gcc", package: "gcc" },
    Tool { program: "ld", package: "binutils" },
    Tool { program: "flex", package: "flex" },
    Tool { program: "bison", package: "bison" },
    Tool { program: "bc", package: "bc" },
    Tool { program: "perl", package: "perl" },
];

/// Files whose packages have no program of that name.
const FILES: &[Tool] = &[
    Tool { program: "/usr/include/stdio.h", package: "libc6-dev" },
    // For disks that are images of a Ceph cluster: loaded when the first one is asked for.
    Tool { program: "/usr/lib/x86_64-linux-gnu/librbd.so.1", package: "librbd1" },
    Tool { program: super::apt::KEYRING, package: "debian-archive-keyring" },
];

/// Looks for the tools that the steps call. As root it installs what is missing, from the
/// machine's own suite.
pub(super) fn prepare(workshop: &Workshop) -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "the lab's guests are for x86-64 machines");
    ensure!(
        Path::new("/etc/debian_version").exists(),
        "this machine is not a Debian, and the lab is made from Debian's packages by Debian's \
         tools: run it in a Debian 12 or later"
    );
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        bail!("this machine lacks programs. Run as root: apt-get install {}", missing.join(" "));
    }
    println!("lab: tools: this machine lacks packages: apt-get install {}", missing.join(" "));
    workshop.run(apt_get().arg("update"))?;
    workshop.run(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(&missing))?;
    let missing = self::missing();
    ensure!(missing.is_empty(), "still missing after their installation: {}", missing.join(" "));
    Ok(())
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command
}

fn missing() -> Vec<&'static str> {
    let programs = TOOLS.iter().filter(|tool| !on_path(tool.program));
    let files = FILES.iter().filter(|tool| !Path::new(tool.program).exists());
    programs.chain(files).map(|tool| tool.package).collect()
}

fn on_path(program: &str) -> bool {
    // System directories are looked into although a user's path may lack them.
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|directory| directory.join(program).is_file())
}

/// The machine's release by name, for example `bookworm`.
pub(super) fn codename() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("cannot read /etc/os-release")?;
    release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|name| name.trim_matches('"').to_owned())
        .context("/etc/os-release has no VERSION_CODENAME")
}
