//! Servers of a Ceph cluster, and the library of its clients.

use std::fs;

use anyhow::Result;

use super::{Step, Workshop, root};

const SUITE: &str = "trixie";
const PACKAGES: &[&str] = &["ceph-common", "ceph-mon", "ceph-osd"];

pub(super) fn step() -> Step {
    Step {
        name: "ceph",
        about: "make a root file system with Ceph's servers",
        recipe: format!("1 {SUITE} {PACKAGES:?}"),
        rests_on: &[],
        make,
    }
}

fn make(workshop: &Workshop) -> Result<()> {
    let place = workshop.lab().ceph_root();
    root::debian(workshop, SUITE, PACKAGES, &place)?;
    // Where a cluster's own directory is mounted.
    fs::create_dir(place.join("ceph"))?;
    Ok(())
}
