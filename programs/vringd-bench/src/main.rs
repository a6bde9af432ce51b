//! `vringd-bench`: what measures servers of storage and shows ours at work. `vringd bench` and `vringd demo` are this program.
//!
//! Everything else on its command line is `vringd`'s: one build of it is all that a developer needs. What a distribution
//! installs for root to run is `vringd` alone.

mod cli;
mod demo;
mod moves;
mod shares;
mod stage;

use std::env;
use std::ffi::OsStr;
use std::process::ExitCode;

fn main() -> ExitCode {
    let ours = |word: &OsStr| vringd::TOOL_SUBCOMMANDS.iter().any(|subcommand| word == *subcommand);
    if env::args_os().nth(1).is_some_and(|word| ours(&word)) { cli::run() } else { vringd::main() }
}
