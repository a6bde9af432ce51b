//! Room on the disk: a full one fails tests that say so in many words, or in none.

use std::env;
use std::fs;
use std::path::Path;

use rustix::fs::statvfs;

use crate::step;

/// What a build and its tests take of a disk, from a fresh clone.
const NEEDED_GIB: u64 = 10;

/// Says where there is less room than a build and its tests need, if that is so.
pub(crate) fn warn(task: &str) {
    let (target, temporary) = (step::workspace().join("target"), env::temp_dir());
    // Before the first build it is not there.
    let target = if fs::exists(&target).unwrap_or(false) { target } else { step::workspace() };
    let mut told = None;
    for place in [target, temporary] {
        let Some(free_gib) = free_gib(&place).filter(|free| *free < NEEDED_GIB) else { continue };
        // Most often both are on the same disk.
        if told.replace(free_gib) != Some(free_gib) {
            println!(
                "{task}: {free_gib} GiB are free in {}, and a build with its tests takes up to {NEEDED_GIB}: tests that fail may want room",
                place.display()
            );
        }
    }
}

fn free_gib(place: &Path) -> Option<u64> {
    let disk = statvfs(place).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize) >> 30)
}
