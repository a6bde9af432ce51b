//! `bench commits` without the daemon around it: `cargo run --release -p bench --example bench_commits -- --help`.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

/// The same options as `vringd bench commits`; our own server is the `vringd` on the path.
#[derive(Debug, Parser)]
#[command(name = "bench_commits")]
struct Cli {
    #[command(flatten)]
    args: bench::commits::Args,
}

fn main() -> ExitCode {
    bench::commits::run(&Cli::parse().args, Path::new("vringd")).unwrap_or_else(|error| {
        eprintln!("bench_commits: {error:#}");
        ExitCode::FAILURE
    })
}
