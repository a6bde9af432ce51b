//! Subcommands that another program has: what measures is not linked into what root runs.

use crate::failure::Failure;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The program that has them.
pub(crate) const PROGRAM: &str = "vringd-bench";

/// What it has. Completions and man pages are of all commands, so that they are its own where it is installed.
pub const SUBCOMMANDS: [&str; 4] = ["demo", "bench", "completions", "man"];

/// Where it is: beside this program, or nowhere that is known.
pub(crate) fn beside() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    Some(own.with_file_name(PROGRAM)).filter(|path| path.is_file())
}

/// Becomes that program, for one of its subcommands. Returns only when there is none.
pub(crate) fn become_it(subcommand: &str, arguments: Vec<OsString>) -> Failure {
    // One that is installed elsewhere is found as a shell finds it.
    let program = beside().unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(&program).arg(subcommand).args(arguments).exec();
    Failure::Runtime(format!(
        "cannot execute {} ({error}), which has this command: it comes with vringd's sources and in a package of its own",
        program.display()
    ))
}
