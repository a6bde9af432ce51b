//! The daemon: command line, configuration, wiring. Nothing clever lives here.

mod cli;
mod config;
mod convert;
mod daemon;
mod demo;
mod disk;
mod failure;
mod generate;
mod moves;
mod run;
mod stage;
mod users;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = cli::Arguments::parse();
    match cli::dispatch(arguments) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("vringd: {failure}");
            failure.code()
        }
    }
}
