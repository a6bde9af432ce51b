//! `bench disk` without the daemon around it: `cargo run --release -p bench --example bench_disk -- --help`.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

/// The same options as `vringd bench disk`; our own server is the `vringd` on the path.
#[derive(Debug, Parser)]
#[command(name = "bench_disk")]
struct Cli {
    #[command(flatten)]
    args: bench::disk::Args,
}

fn main() -> ExitCode {
    bench::disk::run(&Cli::parse().args, Path::new("vringd")).unwrap_or_else(|error| {
        eprintln!("bench_disk: {error:#}");
        ExitCode::FAILURE
    })
}
