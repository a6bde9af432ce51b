//! Programs of the root file system as commands of this machine.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use anyhow::Result;
use guest::lab::Lab;

use super::{Step, Workshop, remove};

/// Name, path in the root file system, and arguments that come before the caller's.
const PROGRAMS: &[(&str, &str, &str)] = &[
    ("fio", "usr/bin/fio", ""),
    ("qemu-img", "usr/bin/qemu-img", ""),
    ("qemu-io", "usr/bin/qemu-io", ""),
    ("qemu-nbd", "usr/bin/qemu-nbd", ""),
    ("qemu-storage-daemon", "usr/bin/qemu-storage-daemon", ""),
    ("qemu-system-x86_64", "usr/bin/qemu-system-x86_64", " -L \"$root/usr/share/qemu\" -L \"$root/usr/share/seabios\""),
    ("virtiofsd", "usr/libexec/virtiofsd", ""),
];

pub(super) fn step() -> Step {
    Step {
        name: "programs",
        about: "make its programs runnable on this machine",
        recipe: format!("1 {PROGRAMS:?}"),
        rests_on: &["root"],
        make,
    }
}

fn make(workshop: &Workshop) -> Result<()> {
    let lab = workshop.lab();
    remove(&lab.programs())?;
    fs::create_dir_all(lab.programs())?;
    for (name, path, arguments) in PROGRAMS {
        let file = lab.program(name);
        fs::write(&file, script(lab, path, arguments)?)?;
        fs::set_permissions(&file, Permissions::from_mode(0o755))?;
        workshop.run(Command::new(&file).arg("--version"))?;
    }
    Ok(())
}

/// The loader is called by name because the program's own libraries are newer than the machine's.
fn script(lab: &Lab, path: &str, arguments: &str) -> Result<String> {
    let command = lab.command_in_root(path);
    let mut script = String::from("#!/bin/sh\n");
    writeln!(script, "root='{}'", lab.root().display())?;
    for (name, value) in command.get_envs() {
        let value = value.unwrap_or_default().to_string_lossy();
        writeln!(script, "export {}='{value}'", name.to_string_lossy())?;
    }
    write!(script, "exec '{}'", command.get_program().to_string_lossy())?;
    for argument in command.get_args() {
        write!(script, " '{}'", argument.to_string_lossy())?;
    }
    writeln!(script, "{arguments} \"$@\"")?;
    Ok(script)
}
