//! Every attack of `cargo xtask torture hostile` once, as a part of what every change has to pass.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tests::vringd;

#[test]
fn every_attack_harms_its_guest_alone() -> Result<()> {
    let mut command = Command::new(vringd::beside_the_test("torture")?);
    command.args(["hostile", "--rounds", "1", "--seed", "5", "--json", "--vringd"]).arg(vringd::program()?);
    let output = command.output().context("cannot start xtask")?;
    println!("{}", String::from_utf8_lossy(&output.stderr));
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).context("--json ends with a document")?;
    let rows = outcome["rows"].as_array().context("there are rows")?;
    for row in rows {
        ensure!(row["verdict"] == "survived", "{row}");
    }
    ensure!(output.status.success(), "the torture ended with {}", output.status);
    // What it says it did, it did: every kind of export, and the disk beside them.
    let devices: BTreeSet<_> = rows.iter().filter_map(|row| row["device"].as_str()).collect();
    ensure!(
        devices == BTreeSet::from(["9p", "directory", "disk", "scsi"]) && rows.len() > 150,
        "{} attacks on {devices:?}",
        rows.len()
    );
    let ours = &outcome["servers"][0];
    ensure!(ours["verified_requests"].as_u64() > Some(1000) && ours["verified_errors"] == 0, "{ours}");
    Ok(())
}
