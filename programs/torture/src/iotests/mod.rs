//! `cargo xtask torture iotests`: QEMU's own tests of qcow2, with the image served by another program.
//!
//! A test calls `qemu-io` and `qemu-img`. In the place of `qemu-io` stands [`client`], which has a server serve the image over
//! vhost-user, and the real program speak to its socket. What only QEMU can do it leaves to QEMU. A test counts if it passes with
//! QEMU alone and something of it was served.

pub(super) mod client;
mod suite;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use guest::lab::Lab;
use serde::Serialize;
use tempfile::TempDir;

use self::suite::{Outcome, Suite};
use super::figures;
use super::server::ProgramOptions;

/// Options of `cargo xtask torture iotests`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Tests by name, as in `012` or `tests/write-zeroes-unmap` [default: all that use qemu-io on qcow2 images, and no virtual machine]
    tests: Vec<String>,
    /// What serves the images
    #[arg(
        long,
        value_name = "SERVER",
        value_enum,
        value_delimiter = ',',
        default_value = "vringd,qemu-storage-daemon"
    )]
    servers: Vec<Server>,
    /// Keep what tests that failed have said, in this directory
    #[arg(long, value_name = "DIRECTORY")]
    keep: Option<PathBuf>,
    /// End with one JSON document instead of words.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    program: ProgramOptions,
}

/// Who serves an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Server {
    /// `vringd disk`
    Vringd,
    /// QEMU's, of the lab
    QemuStorageDaemon,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Server::Vringd => "vringd",
            Server::QemuStorageDaemon => "qemu-storage-daemon",
        })
    }
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Tests that pass with QEMU alone.
    with_qemu: usize,
    /// Of those in which it had something to serve, by server.
    servers: BTreeMap<Server, Results>,
}

/// The tests of one server.
#[derive(Debug, Default, Serialize)]
struct Results {
    passed: Vec<String>,
    failed: Vec<String>,
    /// Images that were served, once each time that a test opened one.
    served: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iotests: {} pass with QEMU alone", self.with_qemu)?;
        for (server, Results { passed, failed, served }) in &self.servers {
            let all = passed.len() + failed.len();
            write!(f, "\n{server}: {} of {all} pass, images served {served} times", passed.len())?;
            if !failed.is_empty() {
                write!(f, "; not {}", failed.join(" "))?;
            }
        }
        Ok(())
    }
}

/// Runs each test with QEMU alone, and with each server.
pub(super) fn run(options: &Options) -> Result<()> {
    let lab = Lab::locate()?;
    ensure!(lab.iotests().exists(), "the tests are not there: `cargo xtask lab --with-iotests` fetches them");
    let program = options.program.find()?;
    let scratch = TempDir::new_in(scratch()).context("cannot make a directory for images")?;
    let suite = Suite::new(&lab, &program, scratch.path())?;
    let names = if options.tests.is_empty() { suite.all()? } else { options.tests.clone() };
    let mut report = Report::default();
    for name in &names {
        let alone = suite.run(name, None)?;
        eprint!("{name}: {}", alone.word());
        report.with_qemu += usize::from(alone == Outcome::Passed);
        for server in options.servers.iter().filter(|_| alone == Outcome::Passed) {
            let outcome = suite.run(name, Some(*server))?;
            let served = suite.served()?;
            eprint!(", {server} {}", if served == 0 { "has nothing to serve" } else { outcome.word() });
            if served == 0 {
                continue;
            }
            let results = report.servers.entry(*server).or_default();
            results.served += served;
            match outcome {
                Outcome::Passed => results.passed.push(name.clone()),
                Outcome::Failed(said) => {
                    results.failed.push(name.clone());
                    keep(options.keep.as_deref(), *server, name, &said)?;
                }
            }
        }
        eprintln!();
    }
    figures::finish(&report, options.json, None)
}

/// In memory, if there is a file system of that.
fn scratch() -> &'static Path {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory } else { Path::new("/tmp") }
}

fn keep(directory: Option<&Path>, server: Server, test: &str, said: &str) -> Result<()> {
    let Some(directory) = directory else { return Ok(()) };
    let file = directory.join(server.to_string()).join(test.replace('/', "-"));
    let failed = || format!("cannot write {}", file.display());
    fs::create_dir_all(file.parent().unwrap_or(directory)).with_context(failed)?;
    fs::write(&file, said).with_context(failed)
}
