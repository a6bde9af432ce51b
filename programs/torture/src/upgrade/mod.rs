//! `cargo xtask torture upgrade`: the server's program is replaced under load.

mod checked;
mod directory;
mod guest;

use std::fmt;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use super::common::Common;
use super::disk::{Kind, KindOptions};
use super::figures;
use super::frontend::Protocol;

/// Options of `cargo xtask torture upgrade`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Upgrades of each kind.
    #[arg(long, value_name = "N", default_value_t = 100)]
    rounds: u32,
    /// Upgrades under the checking frontend [default: as --rounds]
    #[arg(long, value_name = "N")]
    frontend_rounds: Option<u32>,
    /// Upgrades under the QEMU guest, which needs the lab [default: as --rounds; none with --protocol scsi]
    #[arg(long, value_name = "N")]
    guest_rounds: Option<u32>,
    /// Upgrades under a client of a directory [default: as --rounds; of raw images alone by --rounds]
    #[arg(long, value_name = "N")]
    directory_rounds: Option<u32>,
    /// Files that the client of a directory knows, and the next program has to know, too: held by descriptors in every other session
    /// unless half of RLIMIT_NOFILE is less, and by file handles where the file system of $TMPDIR has them
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(0..=4_000_000))]
    nodes: u32,
    #[command(flatten)]
    kind: KindOptions,
    /// What the checking frontend speaks.
    #[arg(long, value_enum, default_value_t = Protocol::Blk)]
    protocol: Protocol,
    #[command(flatten)]
    common: Common,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    seed: u64,
    frontend: Option<checked::Report>,
    guest: Option<guest::Report>,
    directory: Option<directory::Report>,
    /// What was lost first; nothing is tried after that.
    lost: Option<String>,
}

/// Upgrades as often as asked for.
pub(super) fn run(options: &Options) -> Result<()> {
    let under_frontend = options.frontend_rounds.unwrap_or(options.rounds);
    let kind = options.kind.kind();
    let (is_scsi, rounds) = (options.protocol == Protocol::Scsi, options.rounds);
    let in_guest = options.guest_rounds.unwrap_or(if is_scsi { 0 } else { rounds });
    let of_directory = options.directory_rounds.unwrap_or(if is_scsi || kind != Kind::Raw { 0 } else { rounds });
    ensure!(under_frontend > 0 || in_guest > 0 || of_directory > 0, "--rounds 0 upgrades nothing");
    let seed = options.common.seed("upgrade");
    let program = options.common.program.find()?;
    let mut report = Report { seed, frontend: None, guest: None, directory: None, lost: None };
    if under_frontend > 0 {
        let (part, result) = checked::run(&program, under_frontend, (options.protocol, kind), seed);
        report.frontend = Some(part);
        report.lost = figures::lost(result.context("under the checking frontend"));
    }
    if in_guest > 0 && report.lost.is_none() {
        let (part, result) = guest::run(&program, in_guest, kind, seed);
        report.guest = part;
        report.lost = figures::lost(result.context("under the QEMU guest"));
    }
    if of_directory > 0 && report.lost.is_none() {
        let (part, result) = directory::run(&program, of_directory, options.nodes, seed);
        report.directory = Some(part);
        report.lost = figures::lost(result.context("under the client of a directory"));
    }
    figures::finish(&report, options.common.json, report.lost.as_deref())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.lost.is_none() { "torture upgrade: nothing lost" } else { "torture upgrade: LOST" })?;
        if let Some(part) = &self.frontend {
            write!(f, "; checking frontend: {part}")?;
        }
        if let Some(part) = &self.guest {
            write!(f, "; QEMU guest: {part}")?;
        }
        if let Some(part) = &self.directory {
            write!(f, "; client of a directory: {part}")?;
        }
        write!(f, "; seed {}", self.seed)
    }
}
