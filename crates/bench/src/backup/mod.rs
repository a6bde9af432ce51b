//! `bench backup`: what jobs on a disk cost its guest.
//!
//! A guest writes; after a while a job begins that copies its disk, or shortens the chain of its images. Our server and qemu-storage-daemon take turns, round after round,
//! with the same load on the same data, and our figures are divided by QEMU's.

mod case;
mod figures;
mod lay_out;
mod measure;
mod qmp;
mod server;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::ValueHint;
use serde::Serialize;

use crate::args::{Json, split};
use crate::contest::turns;
use crate::environment::Environment;
use crate::parse;
use crate::programs::require;
use crate::progress::Progress;
use case::{Case, Side, cases};
pub use case::{Format, Row};
use figures::{Results, Run};
use lay_out::{Files, Order};
use measure::{Bench, Terms};
use server::Programs;

/// What a backup, mirror, stream or commit of a disk costs the guest that uses it, against QEMU
///
/// Serves a disk full of data, writes 4 KiB at random places of it, and begins a job: a backup, a stream or a commit, until it is done, or a
/// mirror, until it is ready. Ours against blockdev-backup, blockdev-mirror, block-stream and block-commit of qemu-storage-daemon, with the
/// same load and formats, in turns. Says how long the job takes, and how the guest fares before it and meanwhile. What is done is checked
/// with qemu-img. Exits with 1 when a request failed or an image is unsound; a job that is given up is no failure.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Measure this job only; may be repeated
    #[arg(long, value_name = "JOB", value_enum)]
    pub only: Vec<Row>,

    /// Formats of the disk that is copied, as a list; those of chains are qcow2
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', default_values = ["raw"])]
    pub source: Vec<Format>,

    /// Formats of the copy, as a list
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', default_values = ["qcow2"])]
    pub target: Vec<Format>,

    /// Requests of the guest in flight, as a list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [1, 16], value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: Vec<u16>,

    /// Share of reads in the guest's requests, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub mix: u8,

    /// How often each side runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: u32,

    /// How long the guest is measured before the job begins
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse::positive_duration)]
    pub before: Duration,

    /// How long the guest runs before it is measured
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse::duration)]
    pub ramp: Duration,

    /// Give a job up after so long: a mirror may never catch up with its guest
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = parse::positive_duration)]
    pub give_up: Duration,

    /// Directory on the disk to measure: everything is laid out there, up to four times --size, and deleted afterwards
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value_os_t = std::env::temp_dir())]
    pub dir: PathBuf,

    /// Capacity of the disk; a job should take seconds
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse::capacity)]
    pub size: u64,

    /// Have both servers go around the page cache for the disk, and QEMU for its copy too (ours writes copies through it)
    #[arg(long)]
    pub direct: bool,

    /// More arguments of our `vringd disk`
    #[arg(long, value_name = "ARGS", default_value = "--workers 1", allow_hyphen_values = true)]
    pub ours: String,

    /// The qemu-storage-daemon to compare with
    #[arg(long, value_name = "PATH", default_value = "qemu-storage-daemon", value_hint = ValueHint::ExecutablePath)]
    pub qemu_storage_daemon: PathBuf,

    /// The qemu-img that makes images and checks copies
    #[arg(long, value_name = "PATH", default_value = "qemu-img", value_hint = ValueHint::ExecutablePath)]
    pub qemu_img: PathBuf,

    #[command(flatten)]
    json: Json,
}

const EXAMPLES: &str = "\
Examples:
  Backups and mirrors to qcow2, on the disk that holds /srv:
    vringd bench backup --dir /srv --size 8G --direct

  Two images of a chain become one:
    vringd bench backup --only stream --only commit --dir /srv

  Backups in all formats, without a disk behind them:
    vringd bench backup --only backup --source raw,qcow2 --target raw,qcow2 --dir /dev/shm

  A guest that mostly reads, quickly:
    vringd bench backup --mix 70 --depth 16 --rounds 1 --size 256M --before 1s";

/// What a run leaves for a program.
#[derive(Debug, Serialize)]
struct Document<'a> {
    environment: &'a Environment,
    rounds: u32,
    before_s: f64,
    give_up_s: f64,
    size_bytes: u64,
    mix: u8,
    direct: bool,
    ours: &'a str,
    rows: &'a [Outcome],
}

/// How a case ended.
#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(flatten)]
    case: Case,
    #[serde(skip)]
    title: String,
    #[serde(flatten)]
    results: Results,
}

/// Runs the benchmark; `vringd` is our own executable.
///
/// # Errors
/// A side is not installed or cannot be run, a job fails, files cannot be laid out, or a result cannot be written.
pub fn run(args: &Args, vringd: &Path) -> Result<ExitCode> {
    require(&args.qemu_storage_daemon, "--qemu-storage-daemon PATH")?;
    require(&args.qemu_img, "--qemu-img PATH")?;
    let ours = split("--ours", &args.ours)?;
    let cases = cases(&args.only, &args.source, &args.target, &args.depth);
    let progress = Progress::new((cases.len() * Side::ALL.len()) as u64 * u64::from(args.rounds), 0);
    let sources: Vec<Format> = cases.iter().map(|case| case.source).collect();
    let order = Order { dir: &args.dir, size_bytes: args.size, sources: &sources, qemu_img: &args.qemu_img };
    let files = Files::lay_out(&order, |bytes| progress.lay_out(bytes))?;
    let programs = Programs { vringd, ours: &ours, storage_daemon: &args.qemu_storage_daemon, direct: args.direct };
    let Args { mix, ramp, before, give_up, .. } = *args;
    let bench = Bench::new(programs, files, Terms { size_bytes: args.size, mix, ramp, before, give_up })?;
    let hold = |case: &Case| -> Result<Outcome> {
        Ok(Outcome { case: *case, title: case.title(), results: hold(&bench, case, args.rounds, &progress)? })
    };
    let rows = cases.iter().map(hold).collect::<Result<Vec<Outcome>>>()?;
    drop(progress);
    drop(bench);
    let environment = Environment::of(&args.dir);
    let document = Document {
        environment: &environment,
        rounds: args.rounds,
        before_s: before.as_secs_f64(),
        give_up_s: give_up.as_secs_f64(),
        size_bytes: args.size,
        mix,
        direct: args.direct,
        ours: &args.ours,
        rows: &rows,
    };
    args.json.show(|| table::render(&rows, &environment, args.rounds), &document)?;
    let is_clean = rows.iter().all(|row| row.results.is_clean());
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has both sides do the job of a case, in turns.
fn hold(bench: &Bench<'_>, case: &Case, rounds: u32, progress: &Progress) -> Result<Results> {
    let mut runs = Vec::new();
    for round in 1..=rounds {
        for side in turns(Side::ALL.len(), round as usize - 1).filter_map(|index| Side::ALL.get(index)) {
            let name = format!("{case}, {}", side.name());
            let measured = bench.run(case, *side, progress).with_context(|| format!("{name}, round {round}"))?;
            progress.end(&format!("{round}/{rounds} {name:28} {}", measured.line()));
            runs.push(Run { contender: side.name(), round, measured });
        }
    }
    ensure!(!runs.is_empty(), "nothing was measured");
    Ok(Results::of(runs))
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
    fn a_raw_disk_is_copied_to_qcow2_unless_told() {
        let all = args("").unwrap();
        assert_eq!((&all.source[..], &all.target[..]), (&[Format::Raw][..], &[Format::Qcow2][..]));
        assert_eq!((&all.depth[..], all.rounds, all.size, all.mix), (&[1, 16][..], 3, 1 << 30, 0));
        assert_eq!((all.before, all.ours.as_str()), (Duration::from_secs(3), "--workers 1"));
        let some = args("--only mirror --source raw,qcow2 --target raw --depth 4 --ours '--workers 2'").unwrap();
        assert_eq!((&some.only[..], some.source.len(), &some.target[..]), (&[Row::Mirror][..], 2, &[Format::Raw][..]));
    }

    #[test]
    fn bad_values_name_the_option() {
        let cases = [
            ("--only copy", "--only"),
            ("--source vmdk", "--source"),
            ("--target raw,vmdk", "--target"),
            ("--depth 0", "--depth"),
            ("--mix 101", "--mix"),
            ("--size 4095", "--size"),
            ("--rounds 0", "--rounds"),
            ("--before 0", "--before"),
            ("--give-up 0", "--give-up"),
        ];
        for (line, option) in cases {
            let message = args(line).unwrap_err();
            assert!(message.contains(option), "{line}: {message}");
        }
    }
}
