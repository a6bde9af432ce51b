//! qemu-img and qemu-io on a vhost-user socket (block driver `virtio-blk-vhost-user`).

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use tempfile::TempDir;

use crate::lab::Lab;
use crate::process::Group;

const LIMIT: Duration = Duration::from_secs(60);

/// What a program wrote and how it ended.
#[derive(Debug)]
pub struct Outcome {
    /// Whether it ended with status 0.
    pub success: bool,
    /// All that it wrote.
    pub output: String,
}

impl Outcome {
    /// The output of a program that succeeded.
    pub fn expect_success(self) -> Result<String> {
        if !self.success {
            bail!("the program failed:\n{}", self.output);
        }
        Ok(self.output)
    }
}

/// The image option string for `socket`. The driver has no page cache of its own and insists on
/// hearing so.
fn over(socket: &Path, readonly: bool) -> String {
    format!(
        "driver=virtio-blk-vhost-user,path={},cache.direct=on{}",
        socket.display(),
        if readonly { ",read-only=on" } else { "" }
    )
}

/// Copies the raw file `image` onto the disk behind `socket`.
pub fn convert_to(lab: &Lab, image: &Path, socket: &Path) -> Result<Outcome> {
    let mut command = Command::new(lab.program("qemu-img"));
    command
        .args(["convert", "-n", "-f", "raw", "-t", "none", "--target-image-opts"])
        .arg(image)
        .arg(over(socket, false));
    finish(&command)
}

/// Copies the disk behind `socket` into the new raw file `image`.
pub fn convert_from(lab: &Lab, socket: &Path, image: &Path) -> Result<Outcome> {
    let mut command = Command::new(lab.program("qemu-img"));
    command.args(["convert", "-O", "raw", "-T", "none", "--image-opts"]).arg(over(socket, false)).arg(image);
    finish(&command)
}

/// Compares the disk behind `socket` with a raw file through a second server's socket or, as
/// qemu-img takes one format of option for both sides, the raw file spelled as options.
pub fn compare(lab: &Lab, socket: &Path, image: &Path) -> Result<Outcome> {
    let mut command = Command::new(lab.program("qemu-img"));
    command
        .args(["compare", "-T", "none", "--image-opts"])
        .arg(over(socket, false))
        .arg(format!("driver=raw,file.driver=file,file.filename={},cache.direct=off", image.display()));
    finish(&command)
}

/// Runs commands of qemu-io, one after the other, on the disk behind `socket`.
pub fn io(lab: &Lab, socket: &Path, commands: &[&str]) -> Result<Outcome> {
    io_opened(lab, socket, false, commands)
}

/// Like [`io`], opening the disk for reading only.
pub fn io_readonly(lab: &Lab, socket: &Path, commands: &[&str]) -> Result<Outcome> {
    io_opened(lab, socket, true, commands)
}

fn io_opened(lab: &Lab, socket: &Path, readonly: bool, commands: &[&str]) -> Result<Outcome> {
    let mut command = Command::new(lab.program("qemu-io"));
    command.args(["-n", "-d", "unmap"]);
    if readonly {
        command.arg("-r");
    }
    for line in commands {
        command.args(["-c", line]);
    }
    command.arg("--image-opts").arg(over(socket, readonly));
    finish(&command)
}

/// Runs qemu-img on files.
pub fn img(lab: &Lab, args: &[&str]) -> Result<Outcome> {
    let mut command = Command::new(lab.program("qemu-img"));
    command.args(args);
    finish(&command)
}

/// Runs commands of qemu-io on an image of a format.
pub fn io_file(lab: &Lab, format: &str, image: &Path, commands: &[&str]) -> Result<Outcome> {
    io_with(lab, &["-f", format], &image.display().to_string(), commands)
}

/// Runs commands of qemu-io, with these options, on an image, whatever QEMU calls one.
pub fn io_with(lab: &Lab, options: &[&str], image: &str, commands: &[&str]) -> Result<Outcome> {
    let mut command = Command::new(lab.program("qemu-io"));
    command.args(options);
    for line in commands {
        command.args(["-c", line]);
    }
    command.arg(image);
    finish(&command)
}

fn finish(command: &Command) -> Result<Outcome> {
    let directory = TempDir::with_prefix("vringd-qemu-img-")?;
    let mut process = Group::start(command, &directory.path().join("output"))?;
    let status = process.wait(LIMIT)?;
    Ok(Outcome { success: status.success(), output: process.output() })
}
