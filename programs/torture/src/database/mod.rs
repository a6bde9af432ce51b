//! `cargo xtask torture database`: a database that checks itself, on a volume whose server is killed.
//!
//! A QEMU guest runs SQLite on a file system on a volume: one database with a write-ahead log, one with a rollback journal. Each
//! transaction moves money between two accounts and writes down that it did; once it is committed, the guest tells the host
//! its number. There are two ways to die:
//!
//! - the server alone, with SIGKILL, while the guest lives on and connects again. To the guest this is a pause: nothing may be
//!   lost, not even writes that nobody has flushed;
//! - server and guest at once, which is what a power cut is to them: the volume's memory file is removed too, as it would be
//!   gone, and the volume is told of another boot. The next server replays the log, the next guest its file system and its databases, and every transaction of which
//!   the host was told must be there.

mod boot;
mod guest;

use anyhow::{Result, ensure};
use clap::Args;

use self::guest::Report;
use super::common::Common;
use super::figures;

/// Options of `cargo xtask torture database`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Kills of the server under a guest that lives on.
    #[arg(long, value_name = "N", default_value_t = 40)]
    rounds: u32,
    /// Kills of server and guest at once [default: a quarter of --rounds]
    #[arg(long, value_name = "N")]
    power_rounds: Option<u32>,
    #[command(flatten)]
    common: Common,
}

/// Runs all that the options ask for, until something is lost.
pub(super) fn run(options: &Options) -> Result<()> {
    let seed = options.common.seed("database");
    let power_rounds = options.power_rounds.unwrap_or(options.rounds.div_ceil(4));
    ensure!(options.rounds > 0 || power_rounds > 0, "--rounds 0 kills nothing");
    let program = options.common.program.find()?;
    let mut report = Report { seed, ..Report::default() };
    let result = guest::run(&program, options.rounds, power_rounds, &mut report);
    report.lost = figures::lost(result);
    figures::finish(&report, options.common.json, report.lost.as_deref())
}
