//! `bench fs` without the daemon around it: `cargo run --release -p bench --example bench_fs -- --help`.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

/// The same options as `vringd bench fs`; our own server is the `vringd` on the path.
#[derive(Debug, Parser)]
#[command(name = "bench_fs")]
struct Cli {
    #[command(flatten)]
    args: bench::fs::Args,
}

fn main() -> ExitCode {
    bench::fs::run(&Cli::parse().args, Path::new("vringd")).unwrap_or_else(|error| {
        eprintln!("bench_fs: {error:#}");
        ExitCode::FAILURE
    })
}
