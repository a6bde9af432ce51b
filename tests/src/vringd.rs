//! vringd's command line as the tests use it: the one place that spells it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};

use crate::directory_server::{Directory, Protocol};
use crate::server::Disk;

/// Names the program to test; without it the one beside the tests is taken.
pub const PROGRAM_VARIABLE: &str = "VRINGD_BIN";

/// The name under which the tests export their disk.
pub const EXPORT: &str = "disk";

/// Finds the program under test: `$VRINGD_BIN`, else `vringd` in the target directory that holds
/// the running test.
pub fn program() -> Result<PathBuf> {
    if let Some(program) = env::var_os(PROGRAM_VARIABLE) {
        return Ok(PathBuf::from(program));
    }
    beside_the_test("vringd").with_context(|| format!("run `cargo build -p vringd` or set {PROGRAM_VARIABLE}"))
}

/// Runs the program in a directory, to its end, which has to come by itself.
pub fn run(directory: &Path, words: &[&str]) -> Result<Output> {
    let mut command = Command::new("timeout");
    command.arg("120").arg(program()?).args(words).current_dir(directory);
    command.env_remove("VRINGD_LOG").env_remove("VRINGD_CONTROL").output().context("timeout(1) runs vringd")
}

/// What it has printed, and then what it has complained of.
pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Finds a program in the target directory that holds the running program, which is a test or one
/// of this package's own.
pub fn beside_the_test(name: &str) -> Result<PathBuf> {
    // target/debug/deps/uml-0123456789abcdef, or target/debug/fs_tool
    let running = env::current_exe().context("a program has a path")?;
    let place = running
        .ancestors()
        .skip(1)
        .find(|directory| !directory.ends_with("deps"))
        .context("a program lies in a directory")?;
    let program = place.join(name);
    ensure!(program.exists(), "{} is not there", program.display());
    Ok(program)
}

/// `vringd disk` for `disk` on `socket`, with a control socket.
pub fn serve_disk(disk: &Disk, socket: &Path, control: &Path) -> Result<Command> {
    let mut command = Command::new(program()?);
    command
        .arg("disk")
        .arg("--socket")
        .arg(socket)
        .arg("--control")
        .arg(control)
        .args(["--name", EXPORT])
        .args(["--queues", &disk.queues.to_string()]);
    if let Some(workers) = &disk.workers {
        command.args(["--workers", workers]);
    }
    if disk.readonly {
        command.arg("--readonly");
    }
    if disk.direct {
        command.arg("--direct");
    }
    command.args(disk.options).arg(&disk.image);
    Ok(command)
}

/// `vringd dir` for `directory` on `socket`, with a control socket. The export is called as the tag.
pub fn serve_directory(directory: &Directory, socket: &Path, control: &Path) -> Result<Command> {
    let mut command = Command::new(program()?);
    command
        .arg("dir")
        .arg("--socket")
        .arg(socket)
        .arg("--control")
        .arg(control)
        .args(["--name", directory.tag.as_str(), "--tag", directory.tag.as_str()])
        .args(["--sandbox", directory.sandbox]);
    match directory.protocol {
        Protocol::VirtioFs => command.args(["--cache", directory.cache.name()]),
        Protocol::P9 => command.args(["--protocol", "9p"]),
    };
    if let Some(queues) = directory.queues {
        command.args(["--queues", &queues.to_string()]);
    }
    if let Some(workers) = directory.workers {
        command.args(["--workers", workers]);
    }
    if let Some(execution) = directory.execution {
        command.args(["--execution", execution]);
    }
    command.args(&directory.options).arg(&directory.path);
    Ok(command)
}

/// `vringd ctl` for the server whose control socket is `control`.
fn ctl(control: &Path) -> Result<Command> {
    let mut command = Command::new(program()?);
    command.arg("ctl").arg("--control").arg(control);
    Ok(command)
}

/// Gives the disk another capacity.
pub fn resize(control: &Path, capacity_bytes: u64) -> Result<Command> {
    let mut command = ctl(control)?;
    command.args(["export", "resize", EXPORT, &capacity_bytes.to_string()]);
    Ok(command)
}

/// Shows the disk's export, one JSON document.
pub fn export(control: &Path) -> Result<Command> {
    let mut command = ctl(control)?;
    command.args(["--json", "export", "show", EXPORT]);
    Ok(command)
}

/// Reads out of what [`export`] printed whether a migratable disk is held.
pub fn is_held(json: &str) -> Result<bool> {
    let export: serde_json::Value = serde_json::from_str(json).context("`ctl --json` prints JSON")?;
    export["storage"]["held"].as_bool().context("a migratable disk is held or not")
}

/// Moves a ring of the disk to a worker.
pub fn attach(control: &Path, ring: u16, worker: u64) -> Result<Command> {
    let mut command = ctl(control)?;
    command.args(["ring", "attach", EXPORT, &ring.to_string(), &worker.to_string()]);
    Ok(command)
}

/// Lists the private workers of the disk, one JSON document.
pub fn workers(control: &Path) -> Result<Command> {
    let mut command = ctl(control)?;
    command.args(["--json", "worker", "list", "--export", EXPORT]);
    Ok(command)
}

/// Starts another private worker of the disk; prints it as a JSON document.
pub fn new_worker(control: &Path) -> Result<Command> {
    let mut command = ctl(control)?;
    command.args(["--json", "worker", "new", "--export", EXPORT]);
    Ok(command)
}

/// Ends a worker.
pub fn free_worker(control: &Path, worker: u64) -> Result<Command> {
    let mut command = ctl(control)?;
    command.args(["worker", "free", &worker.to_string()]);
    Ok(command)
}

/// Reads the identifier out of what [`new_worker`] printed.
pub fn worker_id(json: &str) -> Result<u64> {
    let worker: serde_json::Value = serde_json::from_str(json).context("`ctl --json` prints JSON")?;
    worker["id"].as_u64().context("a worker has an identifier")
}

/// Reads the identifiers out of what [`workers`] printed.
pub fn worker_ids(json: &str) -> Result<Vec<u64>> {
    let list: serde_json::Value = serde_json::from_str(json).context("`ctl --json` prints JSON")?;
    let list = list.as_array().context("`worker list` prints an array")?;
    list.iter().map(|worker| worker["id"].as_u64().context("each worker has an identifier")).collect()
}
