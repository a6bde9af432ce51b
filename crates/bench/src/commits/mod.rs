//! `bench commits`: what synchronous writes come to with an intent log, and without.
//!
//! A synchronous write is a write and, once it has completed, a flush; so many in flight are so many writers. Each row is a
//! storage; its sides take turns, round after round, and the volume's figures are divided by those of each other side.

mod case;
mod figures;
mod lay_out;
mod measure;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::ValueHint;
use serde::Serialize;

use crate::args::Json;
use crate::contest::{Results, hold};
use crate::environment::Environment;
use crate::parse;
use crate::programs::require;
use crate::progress::Progress;
pub use case::Row;
use case::{Case, Shape, Side, cases};
pub(crate) use figures::Figures;
use lay_out::Files;
use measure::Bench;

/// Synchronous writes with an intent log against peers, the host itself, and the same storage without the log
///
/// Lays out an image and a volume in --dir, fills both with data, and measures 4 KiB writes at random places. Exits with 1
/// when a request failed; a ratio below the expected one is marked and is no failure.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Measure this row only; may be repeated
    #[arg(long, value_name = "ROW", value_enum)]
    pub only: Vec<Row>,

    /// Synchronous writes in flight, as a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 8, 32], value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: Vec<u16>,

    /// How often each side runs
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// How long a run counts
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse::positive_duration)]
    pub time: Duration,

    /// How long to run before counting; rows without flushes go on until write-back has begun
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse::duration)]
    pub ramp: Duration,

    /// Directory on the disk to measure: images and a volume are laid out there, and deleted afterwards
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value_os_t = std::env::temp_dir())]
    pub dir: PathBuf,

    /// Capacity of the disks in --dir
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = parse::capacity)]
    pub size: u64,

    /// Size of the intent logs
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse::capacity)]
    pub log_size: u64,

    /// Memory of a volume for what is not written back yet
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse::capacity)]
    pub dirty_memory: u64,

    /// The qemu-storage-daemon to compare with
    #[arg(long, value_name = "PATH", default_value = "qemu-storage-daemon", value_hint = ValueHint::ExecutablePath)]
    pub qemu_storage_daemon: PathBuf,

    #[command(flatten)]
    json: Json,
}

const EXAMPLES: &str = "\
Examples:
  Everything, on the disk that holds /srv:
    vringd bench commits --dir /srv

  One row, quickly:
    vringd bench commits --only sim --rounds 1 --time 1s";

/// What a run leaves for a program.
#[derive(Debug, Serialize)]
struct Document<'a> {
    environment: &'a Environment,
    rounds: u32,
    time_s: f64,
    size_bytes: u64,
    log_bytes: u64,
    dirty_memory_bytes: u64,
    rows: &'a [Outcome],
}

/// How a case ended.
#[derive(Debug, Serialize)]
struct Outcome {
    row: &'static str,
    #[serde(skip)]
    title: &'static str,
    depth: u16,
    #[serde(flatten)]
    results: Results,
}

/// Runs the benchmark; `vringd` is our own executable.
///
/// # Errors
/// A side is not installed or cannot be run, files cannot be laid out, or a result cannot be written.
pub fn run(args: &Args, vringd: &Path) -> Result<ExitCode> {
    let rows = chosen(&args.only);
    if rows.iter().any(|row| row.needs_peers()) {
        require(&args.qemu_storage_daemon, "--qemu-storage-daemon PATH, or leave its row out with --only")?;
    }
    if rows.contains(&Row::Disk) {
        require(Path::new("fio"), "a PATH that has it, or leave its row out with --only")?;
    }
    let shape = Shape {
        depths: &args.depth,
        log_bytes: args.log_size,
        dirty_bytes: args.dirty_memory,
        storage_daemon: &args.qemu_storage_daemon,
    };
    let cases: Vec<Case> = rows.iter().flat_map(|row| cases(*row, &shape)).collect();
    let runs: usize = cases.iter().map(|case| case.sides.len()).sum();
    let progress = Progress::new(runs as u64 * u64::from(args.rounds), 0);
    let files = if rows.iter().any(|row| row.needs_files()) {
        let order = lay_out::Order { dir: &args.dir, size_bytes: args.size, log_bytes: args.log_size, vringd };
        let files = Files::lay_out(&order, |bytes| progress.lay_out(bytes))?;
        if rows.iter().any(|row| row.needs_qcow2()) {
            files.lay_out_qcow2(&order)?;
        }
        Some(files)
    } else {
        None
    };
    let bench = Bench::new(vringd, files.as_ref(), args.time, args.ramp, (args.size, args.dirty_memory))?;
    let hold_case = |case: &Case| {
        let what = format!("{} {},", case.row.name(), case.depth);
        let run = |side: &Side| bench.run(case, side, &progress).map(Some);
        let results = hold(&case.sides, (&what, args.rounds), &progress, run)?;
        Ok(Outcome { row: case.row.name(), title: case.row.title(), depth: case.depth, results })
    };
    let rows = cases.iter().map(hold_case).collect::<Result<Vec<Outcome>>>()?;
    drop(progress);
    let environment = Environment::of(&args.dir);
    let document = Document {
        environment: &environment,
        rounds: args.rounds,
        time_s: args.time.as_secs_f64(),
        size_bytes: args.size,
        log_bytes: args.log_size,
        dirty_memory_bytes: args.dirty_memory,
        rows: &rows,
    };
    args.json.show(|| table::render(&rows, &environment, args.rounds), &document)?;
    let is_clean = rows.iter().all(|row| row.results.is_clean());
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chosen(only: &[Row]) -> Vec<Row> {
    Row::ALL.into_iter().filter(|row| only.is_empty() || only.contains(row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::tests::{debug_assert, typed};

    fn args(line: &str) -> Result<Args, String> {
        typed(line)
    }

    #[test]
    fn the_definition_is_sound() {
        debug_assert::<Args>();
    }

    #[test]
    fn everything_is_measured_unless_told() {
        let all = args("").unwrap();
        assert_eq!((all.depth.as_slice(), all.rounds, all.size), (&[1, 8, 32][..], 5, 2 << 30));
        assert_eq!(chosen(&all.only), Row::ALL);
        let some = args("--only sim --only disk --depth 4,16").unwrap();
        assert_eq!(some.depth, [4, 16]);
        assert_eq!(chosen(&some.only), [Row::Disk, Row::Sim], "in the order of the table");
    }

    #[test]
    fn bad_values_name_the_option() {
        let cases = [
            ("--only nvme", "--only"),
            ("--depth 0", "--depth"),
            ("--depth 1,x", "--depth"),
            ("--size 4095", "--size"),
            ("--log-size 1K", "--log-size"),
            ("--rounds 0", "--rounds"),
            ("--time 0", "--time"),
        ];
        for (line, option) in cases {
            let message = args(line).unwrap_err();
            assert!(message.contains(option), "{line}: {message}");
        }
    }
}
