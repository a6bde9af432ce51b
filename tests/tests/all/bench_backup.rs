//! The command that compares backups and mirrors with QEMU's, `vringd bench backup`.
//!
//! Asserted is that both servers do their jobs while the load runs, not how fast.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use guest::lab::Lab;
use serde_json::Value;
use tempfile::TempDir;
use tests::vringd;

#[test]
fn both_servers_copy_a_disk_that_is_written() -> Result<()> {
    let directory = TempDir::new()?;
    let mut command = Command::new("timeout");
    // The other side is qemu-storage-daemon, and qemu-img checks the copies.
    command.env("PATH", Lab::locate()?.search_path()?);
    command.arg("300").arg(vringd::program()?).args(["bench", "backup", "--rounds", "1", "--size", "16M"]);
    command.args(["--source", "raw,qcow2", "--target", "raw,qcow2", "--depth", "1", "--mix", "50"]);
    // A mirror may never be ready: that is a figure.
    command
        .args(["--before", "100ms", "--ramp", "50ms", "--give-up", "3s", "--json", "-", "--dir"])
        .arg(directory.path());
    let output = command.output().context("timeout(1) runs vringd")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}\n{said}", output.status);
    ensure!(said.lines().any(|line| line.starts_with("1/1 backup raw-qcow2 1, qemu")), "no word of each run:\n{said}");

    let document: Value = serde_json::from_slice(&output.stdout).context("JSON")?;
    let rows = document["rows"].as_array().context("rows")?;
    assert_eq!(rows.len(), 10);
    for row in rows {
        let runs = row["runs"].as_array().context("runs")?;
        let sides: Vec<&str> = runs.iter().filter_map(|run| run["contender"].as_str()).collect();
        assert_eq!(sides, ["vringd", "qemu"]);
        for run in runs {
            ensure!(run["before"]["ops"].as_u64() > Some(0) && run["errors"] == 0, "{run:#}");
            ensure!(row["row"] != "backup" || run["durable_s"].as_f64() >= run["job_s"].as_f64(), "{run:#}");
            // A commit of QEMU's may never catch up either.
            let may_be_given_up = row["row"] == "mirror" || row["row"] == "commit" && run["contender"] == "qemu";
            ensure!(may_be_given_up || run["job_s"].as_f64() > Some(0.0), "{run:#}");
        }
        ensure!(row["ratios"][0]["iops_before"]["value"].as_f64() > Some(0.0), "{row:#}");
    }
    assert_eq!(directory.path().read_dir()?.count(), 0, "nothing is left");
    Ok(())
}
