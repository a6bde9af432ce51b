//! What the guests that mount a directory have in common.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::directory_server::{DirectoryServer, TAG};
use crate::lab::Lab;
use crate::uml::{self, Guest, Kernel, Machine};
use crate::vringd;

/// Wraps a script for a User Mode Linux guest: it runs in the mounted directory, `/mnt/share`. It
/// knows this package's tool as `$tool` and the programs that test file systems as
/// `$programs/NAME`. What it does is shown on the console. At its end the directory is unmounted, which fails if anything still uses it.
pub fn script(lab: &Lab, body: &str) -> Result<String> {
    let tool = vringd::beside_the_test("fs_tool")?;
    let tool_directory = tool.parent().context("a program lies in a directory")?.display();
    let programs = lab.fs_programs();
    let programs = programs.display();
    Ok(format!(
        "set -x
         mkdir /mnt/share /mnt/tool /mnt/programs
         mount -t hostfs none /mnt/tool -o hostfs={tool_directory}
         mount -t hostfs none /mnt/programs -o hostfs={programs}
         tool=/mnt/tool/fs_tool
         programs=/mnt/programs
         mount -t virtiofs {TAG} /mnt/share
         cd /mnt/share
         {body}
         cd /
         umount /mnt/share"
    ))
}

/// Boots a guest on a served directory and lets it run a script; see [`script`].
pub fn boot(lab: &Lab, machine: impl Into<Machine>, server: &DirectoryServer, body: &str) -> Result<Guest> {
    Guest::boot(lab, machine, &[server.device()], &script(lab, body)?)
}

/// As [`boot`], and the script must succeed. Returns the console's text.
pub fn run(lab: &Lab, kernel: Kernel, server: &DirectoryServer, body: &str, limit: Duration) -> Result<String> {
    uml::run(lab, kernel, &[server.device()], &script(lab, body)?, limit)
}
