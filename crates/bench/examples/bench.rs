//! The benchmarks without the daemon around them: `cargo run --release -p bench --example bench -- disk --help`.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

/// The same options as `vringd bench`; our own server is the `vringd` on the path.
#[derive(Debug, Parser)]
#[command(name = "bench")]
enum Cli {
    Disk(Box<bench::disk::Args>),
    Fs(Box<bench::fs::Args>),
    Commits(bench::commits::Args),
    Backup(bench::backup::Args),
}

fn main() -> ExitCode {
    let vringd = Path::new("vringd");
    let result = match Cli::parse() {
        Cli::Disk(args) => bench::disk::run(&args, vringd),
        Cli::Fs(args) => bench::fs::run(&args, vringd),
        Cli::Commits(args) => bench::commits::run(&args, vringd),
        Cli::Backup(args) => bench::backup::run(&args, vringd),
    };
    result.unwrap_or_else(|error| {
        eprintln!("bench: {error:#}");
        ExitCode::FAILURE
    })
}
