//! What is done to the neighbour's cost.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::io::Errno;
use serde::Serialize;

use super::case::Case;
use super::files::{dirty, fragmented, leased};
use super::guest::{Act, Answer, Guest};
use super::watch::Watch;

/// Leased files that are opened at once: more than there are threads for what waits.
const LEASES: usize = 8;
/// How long leases are kept: less than the kernel lets anybody wait for one (`/proc/sys/fs/lease-break-time`).
const KEPT: Duration = Duration::from_secs(20);
/// How long a release is measured: a large file is given back behind its answer.
const BEHIND: Duration = Duration::from_secs(3);
/// What a 9P lock is answered with where it is granted.
const P9_GRANTED: u8 = 0;

/// What an attack is made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'a> {
    /// The directory, as this process sees it.
    pub(super) directory: &'a Path,
    /// How long to go on.
    pub(super) time: Duration,
    pub(super) extents: u32,
    pub(super) locks: u32,
    pub(super) bytes: u64,
}

/// What was really done.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Deeds {
    /// Files freed, opens that waited, ranges locked, copies, syncs.
    pub(super) done: u64,
    /// Ranges that the server would not lock.
    pub(super) refused: u64,
    /// Extents of the files that were freed, all together.
    pub(super) extents: u64,
}

/// Preparing takes at most so many times what is measured: where a deed takes no time, as a sync on tmpfs, it would never end.
const PREPARED_MAX: u32 = 4;

/// Makes one attack for as long as the scene says, at least once. The neighbour's requests count while it lasts, not while
/// it is prepared.
pub(super) fn make(case: Case, guest: &mut Guest, scene: &Scene<'_>, watch: &Watch) -> Result<Deeds> {
    let mut deeds = Deeds::default();
    if case == Case::Locks {
        hold_locks(guest, scene, watch, &mut deeds)?;
        return Ok(deeds);
    }
    let begun = Instant::now();
    while watch.counted() < scene.time && (deeds.done == 0 || begun.elapsed() < scene.time * PREPARED_MAX) {
        watch.check()?;
        match case {
            Case::Unlink | Case::Truncate | Case::Rename | Case::Release => {
                free(case, guest, scene, watch, &mut deeds)?;
            }
            Case::Leases => open_leased(guest, scene, watch, &mut deeds)?,
            Case::Copy => copy(guest, scene, watch, &mut deeds)?,
            Case::Sync => sync(guest, scene, watch, &mut deeds)?,
            Case::Baseline | Case::Locks => bail!("{case:?} is no attack that is repeated"),
        }
    }
    Ok(deeds)
}

/// Has a file of many extents freed.
fn free(case: Case, guest: &mut Guest, scene: &Scene<'_>, watch: &Watch, deeds: &mut Deeds) -> Result<()> {
    let path = scene.directory.join("many");
    let extents = fragmented(&path, scene.extents)?;
    match case {
        Case::Unlink => {
            watch.during(|| guest.ask(Act::Unlink("many")))?.ok()?;
            ensure!(!path.exists(), "the file is still there");
        }
        Case::Truncate => {
            let file = guest.find("many")?;
            watch.during(|| guest.ask(Act::Empty(file)))?.ok()?;
            ensure!(fs::metadata(&path)?.len() == 0, "the file has kept its size");
            guest.forget(file)?;
            fs::remove_file(&path)?;
        }
        Case::Rename => {
            fs::write(scene.directory.join("few"), "few")?;
            watch.during(|| guest.ask(Act::Rename("few", "many")))?.ok()?;
            ensure!(fs::read(&path)? == b"few", "the file was not replaced");
            fs::remove_file(&path)?;
        }
        _ => {
            let opened = guest.open("many")?;
            fs::remove_file(&path)?;
            guest.forget_behind(opened);
            watch
                .during(|| -> Result<Answer> {
                    let answer = guest.ask(Act::Release(opened))?;
                    // The file goes behind the answer.
                    thread::sleep(BEHIND.min(scene.time));
                    Ok(answer)
                })?
                .ok()?;
        }
    }
    deeds.done += 1;
    deeds.extents += extents;
    Ok(())
}

/// Opens files on which this process holds leases that it does not give back for long.
fn open_leased(guest: &mut Guest, scene: &Scene<'_>, watch: &Watch, deeds: &mut Deeds) -> Result<()> {
    let name = |at: usize| format!("leased-{at}");
    let leases = (0..LEASES).map(|at| leased(&scene.directory.join(name(at)))).collect::<Result<Vec<_>>>()?;
    let files = (0..LEASES).map(|at| guest.find(&name(at))).collect::<Result<Vec<_>>>()?;
    let (waited, answers) = watch.during(|| -> Result<_> {
        let calls = files.iter().map(|file| guest.begin(Act::Open(*file))).collect::<Result<Vec<_>>>()?;
        thread::sleep(KEPT.min(scene.time));
        let waited = calls.iter().filter(|call| !guest.has_ended(**call)).count();
        drop(leases);
        let answers = calls.into_iter().map(|call| guest.end(call)).collect::<Result<Vec<_>>>()?;
        Ok((waited as u64, answers))
    })?;
    ensure!(waited > 0, "no open waited for a lease");
    deeds.done += waited;
    for (at, (file, answer)) in files.into_iter().zip(answers).enumerate() {
        fs::remove_file(scene.directory.join(name(at)))?;
        guest.close_asked(file, answer)?;
    }
    Ok(())
}

/// Locks as many ranges as it may, then asks on among them.
fn hold_locks(guest: &mut Guest, scene: &Scene<'_>, watch: &Watch, deeds: &mut Deeds) -> Result<()> {
    let path = scene.directory.join("locked");
    fs::write(&path, "locked")?;
    let file = guest.open("locked")?;
    let is_over = |start: Instant| start.elapsed() >= scene.time;
    watch.during(|| -> Result<()> {
        let start = Instant::now();
        // Every other byte, so that no two ranges become one.
        for at in 0..u64::from(scene.locks) {
            let answer = guest.ask(Act::Lock(file, 2 * at))?;
            if is_granted(guest, &answer)? {
                deeds.done += 1;
            } else {
                deeds.refused += 1;
                break;
            }
            if is_over(start) {
                break;
            }
        }
        let held = 2 * deeds.done;
        while !is_over(start) {
            watch.check()?;
            guest.ask(Act::Test(file, held + 2))?.ok()?;
            // At the bound even this is refused: what a lock adds is known only when it is made.
            let again = guest.ask(Act::Lock(file, held.saturating_sub(2)))?;
            deeds.refused += u64::from(!is_granted(guest, &again)?);
        }
        guest.ask(Act::Unlock(file))?.ok().map(drop)
    })?;
    guest.close(file)?;
    Ok(fs::remove_file(&path)?)
}

/// Whether a range was locked; an answer that is neither yes nor no is an error.
fn is_granted(guest: &Guest, answer: &Answer) -> Result<bool> {
    match (answer.error, guest) {
        (0, Guest::Fuse(_)) => Ok(true),
        (0, Guest::P9(_)) => Ok(answer.body == [P9_GRANTED]),
        (error, _) if error == Errno::NOLCK.raw_os_error() => Ok(false),
        (error, _) => bail!("a lock is answered with error {error}"),
    }
}

fn copy(guest: &mut Guest, scene: &Scene<'_>, watch: &Watch, deeds: &mut Deeds) -> Result<()> {
    let [source, target] = ["source", "target"].map(|name| scene.directory.join(name));
    if !source.exists() {
        dirty(&source, scene.bytes)?;
    }
    fs::write(&target, "")?;
    let (from, to) = (guest.open("source")?, guest.open("target")?);
    watch.during(|| -> Result<()> {
        let mut at = 0;
        while at < scene.bytes {
            let written = guest.ask(Act::Copy(from, to, at, scene.bytes - at))?.ok()?;
            // struct fuse_write_out
            let written = written.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            ensure!(written > 0, "nothing is copied at {at}");
            at += u64::from(written);
        }
        Ok(())
    })?;
    ensure!(fs::metadata(&target)?.len() == scene.bytes, "the copy has another size");
    guest.close(from)?;
    guest.close(to)?;
    deeds.done += 1;
    Ok(())
}

fn sync(guest: &mut Guest, scene: &Scene<'_>, watch: &Watch, deeds: &mut Deeds) -> Result<()> {
    let path = scene.directory.join("dirty");
    dirty(&path, scene.bytes)?;
    let file = guest.open("dirty")?;
    watch.during(|| guest.ask(Act::Sync(file)))?.ok()?;
    guest.close(file)?;
    fs::remove_file(&path)?;
    deeds.done += 1;
    Ok(())
}
