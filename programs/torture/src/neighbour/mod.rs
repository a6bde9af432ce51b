//! `cargo xtask torture neighbour`: how long others wait while one guest has its directory do what takes long.
//!
//! One daemon with one worker serves a disk and a directory, whose guest sends one request after the other, and beside
//! them a directory over FUSE and one over 9P, whose guest does all day what frees many extents, waits for leases, holds
//! thousands of locks, copies and syncs. It is a measurement: what fails is an attack that did not happen.

mod attack;
pub(super) mod case;
pub(super) mod files;
pub(super) mod guest;
mod server;
mod watch;

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tempfile::TempDir;

use self::attack::{Deeds, Scene};
use self::case::{Case, Protocol};
use self::guest::Guest;
use self::server::Server;
use self::watch::{Figures, Neighbour};
use super::figures;
use super::server::ProgramOptions;

/// What the 99.9th percentile is to stay below, in microseconds.
const BAR_US: f64 = 5000.0;

/// Options of `cargo xtask torture neighbour`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Seconds for which each case is measured; one that has begun comes to its end.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    time: f64,
    /// Extents of each file that is unlinked, truncated, replaced or released: 4 KiB each, with holes between.
    #[arg(long, value_name = "N", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1..))]
    extents: u32,
    /// Ranges that are locked in one file.
    #[arg(long, value_name = "N", default_value_t = 60_000, value_parser = clap::value_parser!(u32).range(1..))]
    locks: u32,
    /// Size of what is copied, and of what is written before each sync.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=4096))]
    mebibytes: u64,
    /// Where the files are: a directory on the file system to measure, with room for them [default: $TMPDIR, else /tmp]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,
    /// Only these cases.
    #[arg(long = "case", value_enum, value_name = "CASE")]
    cases: Vec<Case>,
    /// Only this protocol.
    #[arg(long, value_enum)]
    protocol: Option<Protocol>,
    /// End with one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    program: ProgramOptions,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("it takes seconds, from 0.1 to 86400".into()),
    }
}

/// What one case came to.
#[derive(Debug, Serialize)]
struct Row {
    case: Case,
    /// Nothing for the baseline.
    protocol: Option<Protocol>,
    /// For how long it was measured.
    seconds: f64,
    deeds: Deeds,
    /// What the disk's guest saw.
    disk: Figures,
    /// What the directory's guest saw.
    directory: Figures,
}

/// All that came out.
#[derive(Debug, Serialize)]
struct Report {
    extents: u32,
    locks: u32,
    mebibytes: u64,
    rows: Vec<Row>,
    /// What could not be measured; nothing is tried after that.
    failed: Option<String>,
}

/// Measures all that the options ask for.
pub(crate) fn run(options: &Options) -> Result<()> {
    let place = options.dir.clone().unwrap_or_else(env::temp_dir);
    let files = TempDir::with_prefix_in("vringd-neighbour-", &place)
        .with_context(|| format!("--dir {}: no files can be made there", place.display()))?;
    let vringd = options.program.find()?;
    let mut report = Report {
        extents: options.extents,
        locks: options.locks,
        mebibytes: options.mebibytes,
        rows: Vec::new(),
        failed: None,
    };
    let measured = measure(options, &vringd, &files, &mut report.rows);
    report.failed = figures::lost(measured);
    figures::finish(&report, options.json, report.failed.as_deref())
}

fn measure(options: &Options, vringd: &std::path::Path, files: &TempDir, rows: &mut Vec<Row>) -> Result<()> {
    let server = Server::start(vringd, files.path())?;
    let measured = each_case(options, &server, rows);
    measured.with_context(|| format!("the server said:\n{}", server.output()))?;
    server.stop()
}

fn each_case(options: &Options, server: &Server, rows: &mut Vec<Row>) -> Result<()> {
    let mut neighbour = Neighbour::connect(server)?;
    let wanted = |case: &Case| options.cases.is_empty() || options.cases.contains(case);
    let time = Duration::from_secs_f64(options.time);
    if wanted(&Case::Baseline) {
        eprintln!("torture neighbour: nobody else");
        let (saw, ()) = neighbour.beside(|watch| {
            watch.during(|| std::thread::sleep(time));
            Ok(())
        })?;
        rows.push(Row::new(Case::Baseline, None, saw, Deeds::default()));
    }
    for protocol in [Protocol::Fuse, Protocol::P9] {
        if options.protocol.is_some_and(|only| only != protocol) {
            continue;
        }
        let mut guest = Guest::connect(&server.socket(protocol.name()), protocol)?;
        for case in Case::value_variants().iter().copied().filter(wanted).filter(|case| *case != Case::Baseline) {
            if case == Case::Copy && protocol == Protocol::P9 {
                continue;
            }
            eprintln!("torture neighbour: {case:?} over {}", protocol.name());
            let scene = Scene {
                directory: server.attacked(),
                time,
                extents: options.extents,
                locks: options.locks,
                bytes: options.mebibytes << 20,
            };
            let made = neighbour.beside(|watch| attack::make(case, &mut guest, &scene, watch));
            let (saw, deeds) = made.with_context(|| format!("{case:?} over {}", protocol.name()))?;
            ensure!(deeds.done > 0, "{case:?} over {}: nothing was done", protocol.name());
            let row = Row::new(case, Some(protocol), saw, deeds);
            eprintln!("{row}");
            rows.push(row);
        }
    }
    Ok(())
}

impl Row {
    fn new(case: Case, protocol: Option<Protocol>, saw: watch::Saw, deeds: Deeds) -> Self {
        let watch::Saw { seconds, disk, directory } = saw;
        Self { case, protocol, seconds, deeds, disk, directory }
    }
}

impl fmt::Display for Row {
    /// Two lines of the table.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let case = self.case.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let protocol = self.protocol.map_or("-", Protocol::name);
        for (at, (neighbour, saw)) in [("disk", &self.disk), ("directory", &self.directory)].into_iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            write!(f, "{case:9} {protocol:8} {:5.1} {:6} {neighbour:9}", self.seconds, self.deeds.done)?;
            for us in [saw.p50_us, saw.p99_us, saw.p999_us, saw.p999_of_time_us, saw.max_us] {
                write!(f, " {:10.3}", us / 1000.0)?;
            }
            if saw.p999_us > BAR_US {
                f.write_str("  over 5 ms")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "case      protocol  secs  deeds neighbour     p50 ms     p99 ms   p99.9 ms    of time     max ms")?;
        for row in &self.rows {
            write!(f, "\n{row}")?;
        }
        let (extents, locks, mebibytes) = (self.extents, self.locks, self.mebibytes);
        write!(f, "\ntorture neighbour: files of {extents} extents, {locks} ranges, {mebibytes} MiB")
    }
}
