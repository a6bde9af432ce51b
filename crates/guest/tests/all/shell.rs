//! Scripts on this machine, and behind a program that stands for ssh.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use guest::{Host, Output, Shell, Ssh};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const SHORT_LIMIT: Duration = Duration::from_millis(300);

fn said(stdout: &str) -> Output {
    Output { status: 0, stdout: stdout.to_owned(), stderr: String::new() }
}

/// What holds wherever scripts run.
fn runs_scripts(shell: &mut dyn Shell) -> Result<()> {
    ensure!(shell.run("echo one; cat", LIMIT)? == said("one\n"), "a script has nothing to read");
    let failed = shell.run("echo out; echo err >&2; exit 3", LIMIT)?;
    ensure!(failed == Output { status: 3, stdout: "out\n".to_owned(), stderr: "err\n".to_owned() }, "{failed:?}");
    ensure!(shell.run("false; echo never", LIMIT)? == Output { status: 1, ..said("") });
    ensure!(shell.run("echo $undefined", LIMIT)?.status != 0);
    ensure!(shell.run("", LIMIT)? == said(""));
    ensure!(shell.run("echo last # a comment", LIMIT)? == said("last\n"));
    ensure!(!shell.kernel().is_empty());
    Ok(())
}

/// A script that stays, and tells who it is.
fn staying(file: &Path) -> String {
    format!("sleep 1000 & echo $! >{0}.new; mv {0}.new {0}; wait", file.display())
}

fn is_there(file: &Path) -> Result<bool> {
    let pid = fs::read_to_string(file).context("the script has told its process")?;
    Ok(Path::new("/proc").join(pid.trim()).join("exe").exists())
}

fn wait_until_gone(file: &Path) -> Result<()> {
    for _ in 0..500 {
        if !is_there(file)? {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    anyhow::bail!("a process of the script is still there")
}

#[test]
fn host_runs_scripts() -> Result<()> {
    let mut host = Host::new();
    runs_scripts(&mut host)?;
    ensure!(host.run("kill -TERM $$", LIMIT)?.status == 128 + 15);
    ensure!(host.pid().is_none());
    Box::new(host).end()
}

#[test]
fn host_kills_what_stays_and_goes_on() -> Result<()> {
    let directory = TempDir::new()?;
    let file = directory.path().join("pid");
    let mut host = Host::new();
    let error = host.run(&staying(&file), SHORT_LIMIT).unwrap_err();
    ensure!(error.to_string().contains("did not end"), "{error:#}");
    wait_until_gone(&file)?;
    // What a script that ended has left behind goes too.
    host.run(&format!("sleep 1000 & echo $! >{}", file.display()), LIMIT)?;
    wait_until_gone(&file)?;
    ensure!(host.run("echo on", LIMIT)? == said("on\n"));
    Ok(())
}

#[test]
fn host_counts_the_time_of_children() -> Result<()> {
    let mut host = Host::new();
    ensure!(host.cpu_s()?.abs() < 1e-9);
    // dd has all the time of this script, as a child of its shell.
    let output = host.run("dd if=/dev/zero of=/dev/null bs=64k count=40000 2>/dev/null; times", LIMIT)?;
    let cpu_s = host.cpu_s()?;
    ensure!(cpu_s > 0.0, "no time in {output:?}");
    ensure!(host.run("true", LIMIT)?.status == 0 && host.cpu_s()? >= cpu_s);
    Ok(())
}

#[test]
fn output_without_end_is_an_error() -> Result<()> {
    let error = Host::new().run("cat /dev/zero", LIMIT).unwrap_err();
    ensure!(error.to_string().contains("says more than"), "{error:#}");
    Ok(())
}

/// A program in the place of ssh: it runs the command here, as ssh does there, and keeps its arguments.
fn stand_in(directory: &Path, body: &str) -> Result<PathBuf> {
    let program = directory.join("ssh");
    let text = format!("#!/bin/sh\nprintf '%s\\n' \"$@\" >{}/arguments\n{body}\n", directory.display());
    fs::write(&program, text)?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    Ok(program)
}

const TO_COMMAND: &str = "while [ \"$1\" != -- ]; do shift; done; shift 2; exec sh -c \"$*\"";

#[test]
fn ssh_runs_scripts() -> Result<()> {
    let directory = TempDir::new()?;
    let program = stand_in(directory.path(), TO_COMMAND)?;
    let mut ssh = Ssh::connect_by(program, "somebody@somewhere")?;
    runs_scripts(&mut ssh)?;
    let arguments = fs::read_to_string(directory.path().join("arguments"))?;
    ensure!(arguments.contains("BatchMode=yes\n") && arguments.contains("--\nsomebody@somewhere\n"), "{arguments}");
    ensure!(ssh.kernel() == Host::new().kernel());
    ensure!(ssh.cpu_s()? > 0.0);
    Box::new(ssh).end()
}

#[test]
fn ssh_that_cannot_connect_says_so_in_one_line() -> Result<()> {
    let directory = TempDir::new()?;
    let program = stand_in(directory.path(), "echo 'Warning: something' >&2; echo 'host unreachable' >&2; exit 255")?;
    let error = format!("{:#}", Ssh::connect_by(program, "somewhere").unwrap_err());
    ensure!(error == "ssh somewhere: host unreachable", "{error}");
    let error = format!("{:#}", Ssh::connect_by("/nowhere/ssh", "somewhere").unwrap_err());
    ensure!(error.contains("/nowhere/ssh") && error.lines().count() == 1, "{error}");
    Ok(())
}

#[test]
fn ssh_is_cut_after_its_limit() -> Result<()> {
    let directory = TempDir::new()?;
    let program = stand_in(directory.path(), TO_COMMAND)?;
    let file = directory.path().join("pid");
    let mut ssh = Ssh::connect_by(program, "somewhere")?;
    let error = format!("{:#}", ssh.run(&staying(&file), SHORT_LIMIT).unwrap_err());
    ensure!(error.contains("ssh somewhere: the script did not end"), "{error}");
    wait_until_gone(&file)
}
