//! A host with libvirt and a QEMU of its own, for guests that libvirt defines, saves and moves.

use anyhow::Result;

use super::{Step, Workshop, root};

const SUITE: &str = "trixie";
const PACKAGES: &[&str] =
    &["iproute2", "libvirt-clients", "libvirt-daemon", "libvirt-daemon-driver-qemu", "qemu-system-x86", "qemu-utils"];

pub(super) fn step() -> Step {
    Step {
        name: "libvirt",
        about: "make a root file system with libvirt",
        recipe: format!("1 {SUITE} {PACKAGES:?}"),
        rests_on: &[],
        make,
    }
}

fn make(workshop: &Workshop) -> Result<()> {
    root::debian(workshop, SUITE, PACKAGES, &workshop.lab().libvirt_root())
}
