//! The daemon: command line, configuration, wiring. Nothing clever lives here.
//!
//! It is a library for `vringd-bench` alone, which is what `cargo run` runs, so that one build does all. Nothing that measures, no
//! guest and no load may enter here: root runs this.

mod bar;
mod choices;
mod cli;
mod clients;
mod config;
mod confine;
mod confinement;
mod convert;
mod daemon;
mod dir;
mod directory;
mod disk;
mod disks;
mod doctor;
mod failure;
mod generate;
mod health;
mod image;
mod isolation;
mod launch;
mod limit;
mod live;
mod log;
mod lookout;
mod out;
mod p9;
mod placer;
mod policy;
mod prepared;
mod run;
mod scsi;
mod service;
mod space;
mod tools;
mod traces;
mod units;
mod upgrade;
mod users;
mod virtiofsd;
mod volume;
mod watch;
mod workers;

use clap::{CommandFactory, Parser};
use std::io::Write;
use std::process::ExitCode;

pub use export::CRASH_POINTS;
pub use generate::Generate;
pub use tools::SUBCOMMANDS as TOOL_SUBCOMMANDS;

/// The command line, for whoever adds to it.
pub fn command() -> clap::Command {
    cli::Arguments::command()
}

/// Runs the program on its command line.
pub fn main() -> ExitCode {
    let mut words: Vec<_> = std::env::args_os().collect();
    let (name, result) = if virtiofsd::is_called(words.first()) {
        ("virtiofsd", cli::serve_as_virtiofsd(virtiofsd::Program::parse().options, log::Format::default()))
    } else {
        if virtiofsd::is_meant(words.get(1..).unwrap_or_default(), &command()) {
            words.insert(1, "virtiofsd".into());
        }
        ("vringd", cli::dispatch(cli::Arguments::parse_from(words)))
    };
    let code = result.unwrap_or_else(|failure| {
        // Whoever has closed standard error still gets the exit status.
        let _ = writeln!(std::io::stderr(), "{name}: {failure}");
        failure.code()
    });
    // Where threads are left that wait for a cluster.
    ::disk::end_process_if_busy(code);
    code
}
