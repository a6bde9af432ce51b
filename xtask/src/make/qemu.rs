//! A newer QEMU beside that of the root file system: one that gives a guest any device that a
//! vhost-user server serves. 9p over vhost-user has no device of its own in QEMU.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use guest::lab::Lab;
use guest::process;

use super::apt::Suite;
use super::{Step, Workshop};

const SUITE: &str = "trixie-backports";
/// The program, its modules, and its firmware. Their libraries are those of the root file system.
const PACKAGES: &[&str] = &["qemu-system-x86", "qemu-system-common", "qemu-system-data"];
/// What the older one lacks.
const DEVICE: &str = "vhost-user-test-device-pci";

pub(super) fn step() -> Step {
    Step {
        name: "qemu",
        about: "fetch a QEMU that has a device for any vhost-user server",
        recipe: format!("1 {SUITE} {PACKAGES:?} {DEVICE}"),
        rests_on: &["root"],
        make,
    }
}

fn make(workshop: &Workshop) -> Result<()> {
    let result = workshop.scratch().join("qemu");
    let suite = Suite::open(workshop, SUITE)?;
    for package in PACKAGES {
        suite.unpack(package, &result)?;
    }
    let lab = workshop.lab();
    let program = lab.any_device_qemu();
    let name = program.file_name().context("a program has a name")?;
    fs::write(result.join(name), script(lab)?)?;
    fs::set_permissions(result.join(name), Permissions::from_mode(0o755))?;
    workshop.install(&result, program.parent().context("a program lies in a directory")?)?;
    let devices = process::run(Command::new(&program).args(["-device", "help"]))?;
    ensure!(
        String::from_utf8_lossy(&devices.stdout).contains(DEVICE),
        "the QEMU of {SUITE} has no device {DEVICE}: look into {}",
        program.display()
    );
    Ok(())
}

/// As for the programs of the root file system, whose loader and libraries it uses.
fn script(lab: &Lab) -> Result<String> {
    let place = lab.any_device_qemu();
    let place = place.parent().context("a program lies in a directory")?.display();
    Ok(format!(
        "#!/bin/sh\n\
         root='{}'\n\
         here='{place}'\n\
         export QEMU_MODULE_DIR=\"$here/usr/lib/x86_64-linux-gnu/qemu\"\n\
         exec '{}' --library-path \"$here/usr/lib/x86_64-linux-gnu:{}\" \"$here/usr/bin/qemu-system-x86_64\" \\\n\
         \t-L \"$here/usr/share/qemu\" -L \"$root/usr/share/qemu\" -L \"$root/usr/share/seabios\" \"$@\"\n",
        lab.root().display(),
        lab.loader().display(),
        lab.library_path(),
    ))
}
