//! Test programs from the crates registry, built with this machine's own toolchain.

use anyhow::Result;

use super::{Step, Workshop};
use crate::step::cargo;

/// Crate and version. Each has one program, called as the crate is.
const CRATES: &[(&str, &str)] = &[("fsx", "0.3.2"), ("pjdfstest", "0.2.2")];

pub(super) fn step() -> Step {
    Step {
        name: "fs-programs",
        about: "build pjdfstest and fsx, which test file systems",
        recipe: format!("2 {CRATES:?}"),
        rests_on: &[],
        make,
    }
}

fn make(workshop: &Workshop) -> Result<()> {
    let result = workshop.scratch().join("result");
    for (name, version) in CRATES {
        workshop.run(
            cargo(&["install", "--locked", "--no-track", "--version", version, name])
                .arg("--root")
                .arg(&result)
                // Not the workspace's own: two builds would wait for each other.
                .env("CARGO_TARGET_DIR", workshop.scratch().join("target"))
                // They mostly wait for what they test: they need not be fast, and are built sooner.
                .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
                .env("CARGO_PROFILE_RELEASE_LTO", "off"),
        )?;
    }
    workshop.install(&result.join("bin"), &workshop.lab().fs_programs())
}
