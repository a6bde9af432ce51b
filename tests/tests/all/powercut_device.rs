//! Power cuts of volumes on a real kernel's block layer, and of files that keep reservations on its file system, as a part of what every
//! change has to pass: `cargo xtask torture powercut --device` in short, and with `--reservations`.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tests::vringd;

/// Whether the torture was content, and what it says.
fn torture(words: &[&str]) -> Result<(bool, Value)> {
    let mut command = Command::new(vringd::beside_the_test("torture")?);
    command.args(["powercut", "--device", "--json", "--vringd"]).arg(vringd::program()?).args(words);
    let output = command.output().context("cannot start xtask")?;
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    let report =
        serde_json::from_slice(&output.stdout).with_context(|| format!("--json ends with a document: {said}"))?;
    Ok((output.status.success(), report))
}

#[test]
fn nothing_is_lost_at_any_entry_of_a_kernels_log() -> Result<()> {
    let (content, report) = torture(&["--cuts", "3000", "--seed", "1"])?;
    ensure!(content && report["violation"].is_null(), "{report}");
    // What it says it did, it did: on a kernel, with records to replay and data that was written back.
    let number = |name: &str| report[name].as_u64().unwrap_or_default();
    ensure!(report["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()), "{report}");
    ensure!(number("cuts") >= 3000 && number("events") > 500, "{report}");
    ensure!(number("records_replayed") > 1000 && number("commits") > 10 && number("sweeps") > 0, "{report}");
    Ok(())
}

#[test]
fn log_writes_that_are_not_durable_are_noticed() -> Result<()> {
    // It ends with the first that is noticed: after some thousand cuts, as a rule.
    let (content, report) = torture(&["--cuts", "200000", "--seed", "1", "--without-barrier", "commit"])?;
    ensure!(!content, "nobody noticed: {report}");
    // A sector that holds something else, or a log with a hole in it: both are the cut's work, and no trouble of the stand.
    let violation = report["violation"].as_str().unwrap_or_default();
    ensure!(violation.contains("cut behind event"), "{report}");
    Ok(())
}

#[test]
fn reservations_are_not_lost_and_do_not_come_back_on_a_kernels_file_system() -> Result<()> {
    let (content, report) = torture(&["--reservations", "--cuts", "300", "--seed", "1"])?;
    ensure!(content && report["violation"].is_null(), "{report}");
    let number = |name: &str| report[name].as_u64().unwrap_or_default();
    ensure!(report["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()), "{report}");
    ensure!(number("cuts") >= 300 && number("changes") > 20, "{report}");
    Ok(())
}

#[test]
fn reservations_that_are_not_synced_are_noticed_on_a_kernels_file_system() -> Result<()> {
    let words = ["--reservations", "--cuts", "10000", "--seed", "1", "--without-step", "store-sync"];
    let (content, report) = torture(&words)?;
    ensure!(!content, "nobody noticed: {report}");
    let violation = report["violation"].as_str().unwrap_or_default();
    ensure!(violation.contains("cut behind entry"), "{report}");
    Ok(())
}
