//! Synchronous writes through the frontend without a guest, and the command that compares them.
//!
//! Asserted is that everybody does the work and that writers share commits, not how fast.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bench::frontend::{Load, Rw, Spec};
use guest::lab::Lab;
use serde_json::Value;
use tempfile::TempDir;
use tests::daemon::{DIRECTORY, Daemon};
use tests::vringd;

const WRITES: u64 = 600;

fn synchronous(depth: u16) -> Spec {
    Spec { rw: Rw::RandWrite, depth, sync: true, ops: Some(WRITES), ..Spec::default() }
}

fn daemon(storage: &str) -> Result<Daemon> {
    let export =
        format!("[[export]]\nname = 'disk'\nsocket = '{DIRECTORY}/disk.sock'\nqueues = 1\nstorage = {storage}\n");
    Daemon::serve(&format!("workers = 1\n{export}"))
}

#[test]
fn every_synchronous_write_has_its_flush() -> Result<()> {
    let daemon = daemon("{ kind = 'memory', size = '64M' }")?;
    for depth in [1, 8] {
        for verify in [false, true] {
            let load = Load::start(&daemon.socket("disk"), &Spec { verify, ..synchronous(depth) })?;
            load.wait(|_| ());
            let report = load.finish()?;
            ensure!(report.is_clean(), "{:?}", report.faults);
            assert_eq!((report.writes, report.flushes), (WRITES, WRITES), "depth {depth}");
            assert_eq!((report.latency.count, report.flush_latency.count), (WRITES, WRITES));
        }
    }
    Ok(())
}

#[test]
fn a_write_whose_flush_fails_has_failed() -> Result<()> {
    let daemon = daemon("{ kind = 'sim', size = '64M', error_rate = 0.3, write_latency = '10us' }")?;
    let load = Load::start(&daemon.socket("disk"), &synchronous(4))?;
    load.wait(|_| ());
    let report = load.finish()?;
    assert_eq!(report.writes, WRITES);
    // A write that failed is not flushed.
    ensure!(report.flushes < WRITES && report.flushes > 0, "{} flushes", report.flushes);
    ensure!(report.errors > WRITES - report.flushes, "{} errors, {} flushes", report.errors, report.flushes);
    ensure!(report.faults.iter().any(|fault| fault.starts_with("write at offset ")), "{:?}", report.faults);
    ensure!(report.faults.iter().any(|fault| fault.starts_with("flush behind the write at ")), "{:?}", report.faults);
    Ok(())
}

/// Runs `bench commits` in its shortest form and gives what it wrote.
fn commits(rows: &[&str], directory: &Path) -> Result<Value> {
    let mut command = Command::new(vringd::program()?);
    // One side of the rows on files is fio.
    command.env("PATH", Lab::locate()?.search_path()?);
    command.args(["bench", "commits", "--rounds", "2", "--time", "300ms", "--ramp", "100ms", "--depth", "1,8"]);
    command.args(["--size", "32M", "--log-size", "8M", "--dirty-memory", "4M", "--json", "-", "--dir"]).arg(directory);
    for row in rows {
        command.args(["--only", row]);
    }
    let output = command.output().context("vringd starts")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}\n{said}", output.status);
    ensure!(said.lines().any(|line| line.starts_with("2/2 ")), "no word of each run:\n{said}");
    serde_json::from_slice(&output.stdout).context("JSON")
}

/// Every side of every row wrote, and those with a log committed.
fn assert_measured(document: &Value, rows: usize, sides: usize) -> Result<()> {
    let rows_measured = document["rows"].as_array().context("rows")?;
    assert_eq!(rows_measured.len(), rows);
    for row in rows_measured {
        let standings = row["medians"].as_array().context("medians")?;
        assert_eq!(standings.len(), sides, "{row:#}");
        assert_eq!(row["ratios"].as_array().context("ratios")?.len(), sides - 1, "{row:#}");
        for standing in standings {
            ensure!(standing["iops"]["median"].as_f64() > Some(0.0), "{standing:#}");
        }
        for run in row["runs"].as_array().context("runs")? {
            ensure!(run["ops"].as_u64() > Some(0) && run["errors"] == 0, "{run:#}");
            let has_log = run["contender"] == "volume";
            ensure!(run["volume"].is_object() == has_log, "{run:#}");
        }
    }
    Ok(())
}

#[test]
fn a_log_on_a_device_with_a_costly_flush_is_measured() -> Result<()> {
    let directory = TempDir::new()?;
    let document = commits(&["sim"], directory.path())?;
    assert_measured(&document, 2, 2)?;
    let shared = |row: usize| document["rows"][row]["medians"][0]["requests_a_commit"]["median"].as_f64();
    let (alone, many) = (shared(0).context("commits")?, shared(1).context("commits")?);
    // One writer shares with nobody; eight behind a flush of 5 ms cannot help sharing.
    ensure!((alone - 1.0).abs() < 1e-9 && many > 1.5, "{alone} and {many} requests a commit");
    Ok(())
}

#[test]
fn rows_on_files_are_laid_out_measured_and_removed() -> Result<()> {
    let directory = TempDir::new()?;
    let document = commits(&["disk"], directory.path())?;
    assert_measured(&document, 2, 5)?;
    let document = commits(&["plain"], directory.path())?;
    assert_measured(&document, 1, 2)?;
    for run in document["rows"][0]["runs"].as_array().context("runs")?.iter().filter(|run| run["contender"] == "volume")
    {
        ensure!(run["volume"]["written_back_bytes"].as_u64() >= Some(4 << 20), "began too early: {run:#}");
    }
    assert_eq!(directory.path().read_dir()?.count(), 0, "nothing is left");
    Ok(())
}
