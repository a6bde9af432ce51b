//! QEMU's own tests of its block layer, from Debian's source package, to be run against other servers.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use super::apt::Suite;
use super::{Step, Workshop};

/// That of the root file system, whose QEMU the tests are for.
const SUITE: &str = "trixie";
const PACKAGE: &str = "qemu";
/// The tests, and what they call of their source tree.
const PARTS: &[&str] = &["*/tests/qemu-iotests", "*/python", "*/scripts"];

pub(super) fn step() -> Step {
    Step {
        name: "iotests",
        about: "fetch QEMU's tests of its block layer",
        recipe: format!("1 {SUITE} {PACKAGE} {PARTS:?}"),
        rests_on: &[],
        make,
    }
}

fn make(workshop: &Workshop) -> Result<()> {
    let archive = Suite::of_sources(workshop, SUITE)?.source(PACKAGE)?;
    let result = workshop.scratch().join("iotests");
    fs::create_dir(&result)?;
    let mut tar = Command::new("tar");
    tar.args([
        "--extract",
        "--xz",
        "--strip-components=1",
        "--no-same-owner",
        "--wildcards",
        "--no-wildcards-match-slash",
        "--file",
    ])
    .arg(&archive);
    workshop.run(tar.arg("--directory").arg(&result).args(PARTS))?;
    let place = workshop.lab().iotests();
    // The tests lie two directories below the root of their tree.
    let root = place.ancestors().nth(2).context("the tests lie in a tree")?;
    workshop.install(&result, root)
}
