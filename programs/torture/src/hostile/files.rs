//! What a guest of a directory can ask for that takes long, while others are on its worker.

use std::fmt;
use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use rustix::io::Errno;

use super::attack::{Attack, Expect, On, Scene};
use super::session::settle;
use crate::neighbour::files::{fragmented, leased};
use crate::neighbour::guest::{Act, Call, Guest};

/// Extents of a file: what a disk frees in a second or so.
const EXTENTS: u32 = 1000;
/// Leased files: more than there are threads for what waits.
const LEASES: usize = 8;
/// Ranges in one file.
const RANGES: u64 = 5000;

pub(crate) const ATTACKS: &[Attack] = &[
    only("files-of-many-extents", "has files of many extents freed in four ways at once, and leaves", free),
    only("leased-files", "opens files on which a process of the host holds leases, and keeps", open_leased),
    only("lock-ranges", "locks thousands of ranges of one file, and leaves without a word", lock_ranges),
];

const fn only(name: &'static str, what: &'static str, run: fn(&mut Scene<'_>) -> Result<()>) -> Attack {
    Attack { name, what, on: On::Tree, expect: Expect::Anything, run }
}

/// What is kept until the server has been looked at; then the session ends first.
struct Kept {
    _guest: Guest,
    _leases: Vec<File>,
    files: Vec<PathBuf>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for file in &self.files {
            // The guest may have removed it.
            let _gone = fs::remove_file(file);
        }
    }
}

fn free(scene: &mut Scene<'_>) -> Result<()> {
    let mut guest = scene.guest()?;
    let shared = scene.place().join("shared");
    // The other protocol's may still be on their way when these are made.
    let device = scene.device.name();
    let [unlinked, emptied, replaced, released, few] =
        ["unlinked", "emptied", "replaced", "released", "few"].map(|name| format!("{name}-by-{device}"));
    for name in [&unlinked, &emptied, &replaced, &released] {
        fragmented(&shared.join(name), EXTENTS)?;
    }
    fs::write(shared.join(&few), "few")?;
    let node = guest.find(&emptied)?;
    let opened = guest.open(&released)?;
    fs::remove_file(shared.join(&released))?;
    guest.forget_behind(opened);
    for act in [Act::Unlink(&unlinked), Act::Empty(node), Act::Rename(&few, &replaced), Act::Release(opened)] {
        guest.begin(act)?;
    }
    let files = [unlinked, emptied, replaced, few].map(|name| shared.join(name)).into();
    scene.keep(Kept { _guest: guest, _leases: Vec::new(), files });
    Ok(())
}

fn open_leased(scene: &mut Scene<'_>) -> Result<()> {
    let mut guest = scene.guest()?;
    let name = |at: usize| format!("leased-{at}");
    let files: Vec<PathBuf> = (0..LEASES).map(|at| scene.place().join("shared").join(name(at))).collect();
    let leases = files.iter().map(|file| leased(file)).collect::<Result<Vec<_>>>()?;
    let mut calls: Vec<Call> = Vec::new();
    for at in 0..LEASES {
        let file = guest.find(&name(at))?;
        calls.push(guest.begin(Act::Open(file))?);
    }
    settle();
    let waiting = calls.into_iter().filter(|call| !guest.has_ended(*call)).count();
    scene.keep(Kept { _guest: guest, _leases: leases, files });
    ensure!(waiting > 0, "no open waits for a lease");
    Ok(())
}

fn lock_ranges(scene: &mut Scene<'_>) -> Result<()> {
    let mut guest = scene.guest()?;
    let path = scene.place().join("shared").join("locked");
    fs::write(&path, "locked")?;
    let file = guest.open("locked")?;
    for at in 0..RANGES {
        let answer = guest.ask(Act::Lock(file, 2 * at))?;
        if answer.error == Errno::NOLCK.raw_os_error() {
            ensure!(at > 0, "not one range may be locked");
            break;
        }
        answer.ok()?;
    }
    scene.keep(Kept { _guest: guest, _leases: Vec::new(), files: vec![path] });
    Ok(())
}
