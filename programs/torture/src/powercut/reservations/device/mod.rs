//! The file on a real kernel's file system.
//!
//! A guest with User Mode Linux has an ext4 on a device on which dm-log-writes logs all that reaches it, in the order in which it becomes
//! certain. The file lives there (`life`), and where something else may be in it from then on, that is a mark in the log. Then each
//! beginning of the log is put on another device and mounted, as after a loss of power, and the file is opened there (`look`).

pub(crate) mod life;
pub(crate) mod look;

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use guest::lab::Lab;
use guest::{Machine, Shell, uml};
use serde::{Deserialize, Serialize};

use super::cut::Tally;
use super::life::Deeds;
use super::state::May;
use super::{Plan, Report};

const LIVES: &str = concat!(include_str!("../../device/log.sh"), include_str!("lives.sh"));
/// The program's name in the share.
const PROGRAM: &str = "torture";
const PROCESSORS: u32 = 2;
/// Devices and log are in the guest's memory: half of it may be files.
const MEMORY_MIB: u32 = 1024;
/// The lives of a file and the mounts behind them take a minute; what hangs takes for ever.
const LIMIT: Duration = Duration::from_secs(600);

/// What the lives of a file have left to look at.
#[derive(Serialize, Deserialize)]
struct Lived {
    /// What may be there from each mark on, by its number.
    may: Vec<(u32, May)>,
    deeds: Deeds,
    /// What guests or processes have found that may not be there.
    violation: Option<String>,
}

/// What was seen at them.
#[derive(Serialize, Deserialize)]
struct Looked {
    tally: Tally,
    violation: Option<String>,
}

/// Makes so many cuts, of one file after the other.
pub(super) fn torture(plan: Plan) -> Result<Report> {
    let start = Instant::now();
    let turn = Lab::locate()?.wait_for_place()?;
    turn.require_uml_smp()?;
    let machine = Machine { processors: PROCESSORS, memory_mib: MEMORY_MIB, ..Machine::default() };
    let mut guest = uml::boot(&turn.kit(), &machine, &[])?;
    // A copy: a build that goes on meanwhile may replace it.
    fs::copy("/proc/self/exe", guest.share().join(PROGRAM)).context("cannot copy this program for the guest")?;
    let kernel = Some(guest.kernel().to_owned());
    let mut report = Report { seed: plan.seed, without_step: plan.without, kernel, ..Report::default() };
    while report.tally.cuts < plan.cuts && report.violation.is_none() {
        let file = report.files;
        // A new name each time: the guest may remember what an old one held.
        let name = format!("file-{file}");
        let directory = guest.share().join(&name);
        fs::create_dir(&directory)?;
        let without = plan.without.and_then(|missing| missing.to_possible_value());
        let without = without.map_or_else(String::new, |missing| format!(" --without-step {}", missing.get_name()));
        let script = format!(
            "to=\"$job/{name}\" program=\"$job/{PROGRAM}\" options=\"--seed {} --file {file}{without}\"\n{LIVES}",
            plan.seed
        );
        let output = guest.run(&script, LIMIT)?;
        let said = format!("{}{}", output.stdout, output.stderr);
        ensure!(output.status == 0, "file {file}: status {}: {}", output.status, said.trim());
        let lived: Lived = serde_json::from_slice(&fs::read(directory.join("lived.json"))?)?;
        let looked: Looked = serde_json::from_slice(&fs::read(directory.join("looked.json"))?)?;
        report.files += 1;
        report.deeds.add(&lived.deeds);
        report.tally.add(&looked.tally);
        let violation = lived.violation.or(looked.violation);
        report.violation = violation.map(|what| format!("seed {}, file {file} in the guest: {what}", plan.seed));
        fs::remove_dir_all(&directory)?;
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}
