//! Runs a program as a visible step.

use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use guest::process::shown;

/// The root of the workspace.
pub(crate) fn workspace() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map(PathBuf::from).unwrap_or(manifest)
}

/// `cargo` as it was called for this task, in the root of the workspace.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace());
    command
}

/// Says what is run, runs it with its output shown, says how long it took.
pub(crate) fn run(task: &str, command: &mut Command) -> Result<()> {
    let line = shown(command);
    // The path of cargo is of no interest to a reader.
    let line = line.rsplit_once("/cargo ").map_or(line.clone(), |(_, rest)| format!("cargo {rest}"));
    println!("{task}: {line}");
    let start = Instant::now();
    let status = command.status().with_context(|| format!("cannot start {line}"))?;
    if !status.success() {
        bail!("`{line}` failed with {status}");
    }
    println!("{task}: {line}: done in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// What a program says, which has to succeed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = shown(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {line}"))?;
    ensure!(
        output.status.success(),
        "`{line}` failed with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Whether a program does what it is asked.
pub(crate) fn has(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs the program `torture`, which shares no dependency of this one's that takes long to build.
pub(crate) fn torture(arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<()> {
    let mut command = cargo(&["run", "--quiet", "--locked", "--package", "torture", "--"]);
    command.args(arguments);
    let status = command.status().context("cannot start cargo")?;
    // What went wrong it has said itself.
    ensure!(status.success(), "torture has failed");
    Ok(())
}

/// Runs the program `torture` that a build of the workspace has put beside this one: by itself cargo would build it anew, with what
/// its dependencies need for it alone. Shows what it says when it has ended, since others speak meanwhile.
pub(crate) fn built_torture(task: &str, arguments: &[&str]) -> Result<()> {
    let beside = env::current_exe().context("a program has a path")?;
    let (program, vringd) = (beside.with_file_name("torture"), beside.with_file_name("vringd"));
    let (line, start) = (format!("torture {}", arguments.join(" ")), Instant::now());
    let mut command = Command::new(program);
    // It would build the daemon anew as well, in the place of the one that tests run.
    command.args(arguments).env("VRINGD_BIN", vringd).current_dir(workspace()).stdin(Stdio::null());
    let output = command.output();
    let output = output.with_context(|| format!("cannot start {line}"))?;
    for said in [&output.stdout, &output.stderr] {
        print!("{}", String::from_utf8_lossy(said));
    }
    ensure!(output.status.success(), "`{line}` failed with {}", output.status);
    println!("{task}: {line}: done in {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}
