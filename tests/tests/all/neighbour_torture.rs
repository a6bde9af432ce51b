//! `cargo xtask torture neighbour` with small files and for a short time: it does what it says it measures. How long
//! anybody waited is no business of a test.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tests::vringd;

const EXTENTS: u64 = 200;
const LOCKS: u64 = 300;

#[test]
fn every_case_is_made_and_the_neighbour_is_served_meanwhile() -> Result<()> {
    let mut command = Command::new(vringd::beside_the_test("torture")?);
    command.args(["neighbour", "--time", "0.3", "--mebibytes", "2", "--json"]);
    command.args(["--extents", &EXTENTS.to_string(), "--locks", &LOCKS.to_string()]);
    command.arg("--vringd").arg(vringd::program()?);
    let output = command.output().context("cannot start xtask")?;
    println!("{}", String::from_utf8_lossy(&output.stderr));
    let outcome: serde_json::Value = serde_json::from_slice(&output.stdout).context("--json ends with a document")?;
    ensure!(output.status.success(), "the torture ended with {}: {}", output.status, outcome["failed"]);
    let rows = outcome["rows"].as_array().context("there are rows")?;
    let mut made = BTreeSet::new();
    for row in rows {
        let case = row["case"].as_str().context("a case")?;
        made.insert((row["protocol"].as_str().unwrap_or("-"), case));
        for neighbour in ["disk", "directory"] {
            ensure!(row[neighbour]["count"].as_u64() > Some(0), "the {neighbour} saw nothing: {row}");
            let [p50, max] = ["p50_us", "max_us"].map(|figure| row[neighbour][figure].as_f64());
            ensure!(p50 > Some(0.0) && max >= p50, "{row}");
        }
        let [done, refused, extents] = ["done", "refused", "extents"].map(|deed| row["deeds"][deed].as_u64());
        ensure!(case == "baseline" || done > Some(0), "nothing was done: {row}");
        let frees = ["unlink", "truncate", "rename", "release"].contains(&case);
        ensure!(!frees || extents >= done.map(|files| files * EXTENTS / 2), "files of few extents: {row}");
        ensure!(case != "locks" || done == Some(LOCKS) || refused > Some(0), "locks are missing: {row}");
    }
    let cases = ["unlink", "truncate", "rename", "release", "leases", "locks", "sync"];
    let mut wanted: BTreeSet<_> = ["fuse", "9p"].into_iter().flat_map(|p| cases.map(|case| (p, case))).collect();
    wanted.extend([("-", "baseline"), ("fuse", "copy")]);
    ensure!(made == wanted, "{made:?}");
    Ok(())
}
