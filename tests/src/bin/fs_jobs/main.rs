//! The thirty fio jobs of virtiofs-tests in User Mode Linux guests, one guest on vringd and one on
//! virtiofsd, job by job in turns. `cargo xtask fs-jobs` builds and runs it.

mod contest;
mod jobs;
mod report;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tests::directory_server::Cache;

/// Compare vringd with virtiofsd by the thirty fio jobs of virtiofs-tests, each in a guest of its own.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask fs-jobs", bin_name = "cargo xtask fs-jobs")]
struct Arguments {
    /// Longest time of one run of one job; it ends earlier when it has been through its files
    #[arg(long, value_name = "N", default_value_t = 3)]
    seconds: u32,
    /// How often each job runs on each server
    #[arg(long, value_name = "R", default_value_t = 5)]
    rounds: u32,
    /// Size of each of the four files, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    size: u32,
    /// Run only jobs whose name contains this; may be given more than once
    #[arg(long, value_name = "TEXT")]
    job: Vec<String>,
    /// Cache policy of both servers: never, metadata, auto or always
    #[arg(long, value_name = "POLICY", default_value = "auto", value_parser = cache)]
    cache: Cache,
    /// Processors of each guest; with two, vringd has two request queues
    #[arg(long, value_name = "N", default_value_t = 1)]
    processors: u32,
    /// Where the files are made [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// One more argument for vringd, as in --ours=--execution=uring; may be given more than once
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    ours: Vec<String>,
    /// One more argument for virtiofsd; may be given more than once
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    theirs: Vec<String>,
    /// Have virtiofsd on both sides, to see how far the ratios of equals are from one
    #[arg(long)]
    equals: bool,
    /// Write every figure to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn cache(text: &str) -> Result<Cache, String> {
    Cache::ALL
        .into_iter()
        .find(|cache| cache.name() == text)
        .ok_or_else(|| "use never, metadata, auto or always".into())
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(
        arguments.rounds > 0 && arguments.seconds > 0 && arguments.size > 0,
        "rounds, seconds and size are positive"
    );
    let jobs: Vec<jobs::Job> = jobs::all()
        .into_iter()
        .filter(|job| arguments.job.is_empty() || arguments.job.iter().any(|text| job.name().contains(text)))
        .collect();
    ensure!(!jobs.is_empty(), "no job has such a name; the jobs are {}", names(&jobs::all()));
    let results = contest::run(&arguments, &jobs)?;
    print!("{}", report::table(&results));
    if let Some(path) = &arguments.json {
        fs::write(path, serde_json::to_string_pretty(&results)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn names(jobs: &[jobs::Job]) -> String {
    jobs.iter().map(jobs::Job::name).collect::<Vec<_>>().join(", ")
}
