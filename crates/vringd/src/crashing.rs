//! The daemon: command line, configuration, wiring. Nothing clever lives here.

mod cli;
mod clients;
mod config;
mod confine;
mod convert;
mod daemon;
mod demo;
mod dir;
mod directory;
mod disk;
mod failure;
mod generate;
mod isolation;
mod limit;
mod log;
mod moves;
mod p9;
mod prepared;
mod run;
mod service;
mod shares;
mod stage;
mod upgrade;
mod users;
mod virtiofsd;
mod volume;
mod watch;

use clap::Parser;
use std::process::ExitCode;

/// However it was built: what is shipped does not kill itself.
const _: () = assert!(
    !export::CRASH_POINTS || matches!(env!("CARGO_BIN_NAME").as_bytes(), b"vringd-crashing"),
    "the feature `crash-points` is for the program `vringd-crashing` alone"
);

fn main() -> ExitCode {
    let (name, result) = if virtiofsd::is_called() {
        ("virtiofsd", cli::serve_as_virtiofsd(virtiofsd::Program::parse().options))
    } else {
        ("vringd", cli::dispatch(cli::Arguments::parse()))
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("{name}: {failure}");
            failure.code()
        }
    }
}
