//! `cargo xtask torture kill`: SIGKILL at random moments.

mod checked;
mod durable;
mod guest;

use std::fmt;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Serialize;

use self::checked::{Death, Plan};
use super::common::Common;
use super::disk::KindOptions;
use super::frontend::Protocol;
use super::{figures, server};

/// Kills if nobody says otherwise; the issue asks for 200.
const ROUNDS: u32 = 200;

/// Options of `cargo xtask torture kill`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Kills of each kind.
    #[arg(long, value_name = "N", default_value_t = ROUNDS)]
    rounds: u32,
    /// Kills under the checking frontend [default: as --rounds]
    #[arg(long, value_name = "N")]
    frontend_rounds: Option<u32>,
    /// Crash points under the checking frontend, which need a build of their own [default: as --rounds]
    #[arg(long, value_name = "N")]
    crash_rounds: Option<u32>,
    /// Kills under the QEMU guest, which needs the lab [default: as --rounds; none with a log, for whose guests there is `torture database`,
    /// or with --protocol scsi]
    #[arg(long, value_name = "N")]
    guest_rounds: Option<u32>,
    /// Do without the inflight region, to see what is lost then.
    #[arg(long)]
    no_inflight: bool,
    #[command(flatten)]
    kind: KindOptions,
    /// What the checking frontend speaks (the QEMU guest's part is virtio-blk's).
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
    crash_points: Option<checked::Report>,
    guest: Option<guest::Report>,
    /// What was lost first; nothing is tried after that.
    lost: Option<String>,
}

/// Runs all that the options ask for, until something is lost.
pub(super) fn run(options: &Options) -> Result<()> {
    let seed = options.common.seed("kill");
    let rounds = |own: Option<u32>| own.unwrap_or(options.rounds);
    let (signals, stores) = (rounds(options.frontend_rounds), rounds(options.crash_rounds));
    let kind = options.kind.kind();
    let protocol = options.protocol;
    let in_guest = if kind.has_log() || protocol == Protocol::Scsi { 0 } else { rounds(options.guest_rounds) };
    ensure!(
        protocol != Protocol::Scsi || options.guest_rounds.is_none_or(|rounds| rounds == 0),
        "--guest-rounds: the guest has a disk of virtio-blk: leave --protocol scsi out"
    );
    ensure!(
        !kind.has_log() || options.guest_rounds.is_none_or(|rounds| rounds == 0),
        "--guest-rounds: guests of what has a log are tortured by `torture database`"
    );
    ensure!(signals > 0 || stores > 0 || in_guest > 0, "--rounds 0 kills nothing");
    ensure!(
        in_guest == 0 || !options.no_inflight,
        "--no-inflight: QEMU tracks requests whenever the server can; add --guest-rounds 0"
    );
    let program = if signals > 0 || in_guest > 0 { Some(options.common.program.find()?) } else { None };
    let crashing = if stores > 0 { Some(server::build_crashing()?) } else { None };

    let mut report = Report { seed, frontend: None, crash_points: None, guest: None, lost: None };
    let inflight = !options.no_inflight;
    let plan = |program, death, rounds| Plan { program, death, rounds, seed, inflight, kind, protocol };
    if let (Some(program), true) = (&program, signals > 0) {
        let (part, result) = checked::run(&plan(program, Death::Signal, signals));
        report.frontend = Some(part);
        report.lost = figures::lost(result.context("under the checking frontend"));
    }
    if let (Some(crashing), None) = (&crashing, &report.lost) {
        let (part, result) = checked::run(&plan(crashing, Death::Store, stores));
        report.crash_points = Some(part);
        report.lost = figures::lost(result.context("at a crash point"));
    }
    if let (Some(program), true) = (&program, in_guest > 0 && report.lost.is_none()) {
        let (part, result) = guest::run(program, in_guest, kind, seed);
        report.guest = part;
        report.lost = figures::lost(result.context("under the QEMU guest"));
    }
    figures::finish(&report, options.common.json, report.lost.as_deref())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.lost.is_none() { "torture kill: nothing lost" } else { "torture kill: LOST" })?;
        if let Some(part) = &self.frontend {
            write!(f, "; checking frontend: {part}")?;
        }
        if let Some(part) = &self.crash_points {
            write!(f, "; crash points: {part}")?;
        }
        if let Some(part) = &self.guest {
            write!(f, "; QEMU guest: {part}")?;
        }
        write!(f, "; seed {}", self.seed)
    }
}
