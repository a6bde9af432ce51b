//! `cargo xtask torture powercut --reservations`: reservations that are to survive a loss of power do, and those that have ended do not
//! come back.
//!
//! Two guests have one disk by two SCSI devices, by the code that the daemon runs (`guests`), and reserve it from each other (`load`,
//! `driver`), while a file keeps that (`storage::RecordFile`). A witness writes down what is done to the file and to its name, has some
//! of it fail, and kills processes between two steps (`watch`). Others open the file or take it over (`life`). Behind each event the
//! power goes (`cut`): of what no sync has made certain, any sectors, any length and the name may be lost (`medium`). The daemon's
//! own code opens what is left, and has to find reservations that may be there (`state`): those that guests found last, or those of
//! the one command that was under way. Some files live on with what a cut has left.
//!
//! With `--device` the file is on ext4, in a guest whose kernel writes down what reaches the device below (`device`).
//!
//! The seed fixes all of it, but for what a kernel does.

mod cut;
pub(crate) mod device;
mod driver;
mod guests;
mod life;
mod load;
mod medium;
mod state;
mod watch;

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use clap::ValueEnum;
use serde::Serialize;
use tempfile::TempDir;

use self::cut::Tally;
use self::guests::Guests;
use self::life::{Deeds, Ends, Left, Scene};
use self::load::{Manner, Names};
pub(in crate::powercut) use self::watch::Missing;
use self::watch::Tape;
use super::cut::Budget;
use super::is_noticed;
use crate::rng::{Rng, fresh_seed};

/// How many power cuts a file lives through.
const GENERATIONS: u32 = 3;
/// Cuts of one try to find a missing step, in the tests of every change...
const CUTS_WITHOUT_STEP: u64 = 200_000;
/// ...and tries, each with a seed of its own.
const TRIES_WITHOUT_STEP: u32 = 5;

/// What came of it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    seed: u64,
    without_step: Option<Missing>,
    /// The kernel on whose file system the files were; none, if what is lost was made up.
    kernel: Option<String>,
    #[serde(flatten)]
    tally: Tally,
    #[serde(flatten)]
    deeds: Deeds,
    /// Files.
    files: u32,
    /// Lives of files that began with what a cut had left.
    lives_after_cut: u32,
    seconds: f64,
    /// The first promise that was not kept; nothing is tried after that.
    pub(super) violation: Option<String>,
}

/// What a run is to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) cuts: u64,
    pub(super) without: Option<Missing>,
    /// Whether a guest's kernel has the files.
    pub(super) on_device: bool,
}

/// Takes each step away, and sees that it is missed.
pub(super) fn each_step() -> Result<()> {
    for missing in Missing::value_variants() {
        let tries = || {
            let (seed, without) = (fresh_seed(), Some(*missing));
            let report = torture(Plan { seed, cuts: CUTS_WITHOUT_STEP, without, on_device: false })?;
            Ok((report.to_string(), report.violation))
        };
        ensure!(
            is_noticed(TRIES_WITHOUT_STEP, tries)?,
            "torture powercut --reservations does not notice that the step {missing:?} is missing"
        );
    }
    Ok(())
}

/// Makes so many cuts, of as many files as that takes, on all processors.
pub(super) fn torture(plan: Plan) -> Result<Report> {
    if plan.on_device {
        return device::torture(plan);
    }
    let start = Instant::now();
    let names = Guests::names()?;
    let budget = Budget::new(plan.cuts, u64::MAX);
    let next = AtomicU32::new(0);
    let report = Mutex::new(Report { seed: plan.seed, without_step: plan.without, ..Report::default() });
    let work = || -> Result<()> {
        while !budget.is_over() {
            let file = next.fetch_add(1, Ordering::Relaxed);
            match lives(plan, file, &names, &budget, &report) {
                Ok(()) => {}
                Err(Ends::Violation(what)) => {
                    budget.end();
                    lock(&report).violation.get_or_insert(what);
                }
                Err(Ends::Error(error)) => {
                    budget.end();
                    return Err(error);
                }
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        // Guests wait for their devices most of the time.
        let threads = 2 * thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread that cuts has panicked"))?)
    })?;
    let mut report = report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

fn lock(report: &Mutex<Report>) -> std::sync::MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The lives of one file, those behind the first cut beginning with what it has left.
fn lives(plan: Plan, file: u32, names: &Names, budget: &Budget, report: &Mutex<Report>) -> Result<(), Ends> {
    let directory = TempDir::with_prefix("vringd-torture-")?;
    let mut rng = Rng::new(plan.seed, u64::from(file));
    let mut scene = draw(plan, file, &mut rng);
    let mut left = Left::nothing();
    lock(report).files += 1;
    for generation in 0..GENERATIONS {
        if budget.is_over() {
            return Ok(());
        }
        scene.generation = generation;
        let named = |ends| match ends {
            Ends::Violation(what) => Ends::Violation(format!("{scene}: {what}")),
            Ends::Error(error) => Ends::Error(error.context(scene.to_string())),
        };
        let story = life::live(&scene, names, &directory.path().join("kept"), &left, Tape::default(), &mut rng)
            .map_err(named)?;
        let keep = rng.within(0..=story.events.len() as u64 - 1) as usize;
        let (tally, kept) = cut::run(&scene, &left, &story.events, &directory.path().join("cut"), budget, keep);
        {
            let mut report = lock(report);
            report.tally.add(&tally);
            report.deeds.add(&story.deeds);
            report.lives_after_cut += u32::from(generation > 0);
        }
        match kept.map_err(named)? {
            Some(kept) => left = kept,
            // The budget is used up.
            None => return Ok(()),
        }
    }
    Ok(())
}

/// Draws what the lives of a file are like.
fn draw(plan: Plan, file: u32, rng: &mut Rng) -> Scene {
    let many = rng.once_in(2);
    // Some steps matter behind a failure only.
    let fails = rng.once_in(3) || matches!(plan.without, Some(Missing::Undo | Missing::OpenWrite | Missing::MakeSync));
    // The largest record has thirteen sectors.
    let exhaustive = if rng.once_in(8) { 1 << 13 } else { rng.pick(&[64, 256, 1024]) };
    Scene {
        seed: plan.seed,
        file,
        generation: 0,
        processes: rng.within(2..=8),
        commands: rng.pick(&[4, 12, 30]),
        manner: Manner { forgets: rng.pick(&[2, 8, 1000]), many },
        fails: if fails { Some(rng.pick(&[3, 8, 20])) } else { None },
        exhaustive,
        without: plan.without,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.violation.is_some() { "VIOLATION" } else { "nothing lost, nothing back" };
        write!(f, "torture powercut --reservations: {verdict}")?;
        if let Some(missing) = self.without_step {
            write!(f, " without the step {missing:?}")?;
        }
        if let Some(kernel) = &self.kernel {
            write!(f, " on ext4 of Linux {kernel}")?;
        }
        let Tally { cuts, events, exhausted, ways_max } = self.tally;
        let Deeds { changes, failures, kills, upgrades, registrations_max } = self.deeds;
        write!(f, "; {cuts} cuts behind {events} events")?;
        if exhausted > 0 {
            write!(f, ", behind {exhausted} of them all that may be left, up to {ways_max} ways")?;
        }
        write!(
            f,
            "; {} files, {} lives on what a cut had left, {changes} changes of up to {registrations_max} registrations, \
             {failures} that could not be stored, {kills} kills, {upgrades} upgrades; {:.0} s; seed {}",
            self.files, self.lives_after_cut, self.seconds, self.seed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenes_repeat_and_differ() {
        let plan = |seed| Plan { seed, cuts: 1, without: None, on_device: false };
        let scene = |seed, file| format!("{:?}", draw(plan(seed), file, &mut Rng::new(seed, u64::from(file))));
        assert_eq!(scene(1, 2), scene(1, 2));
        assert_ne!(scene(1, 2), scene(2, 2));
    }

    #[test]
    fn nothing_is_lost_or_comes_back_and_a_missing_sync_is_noticed() {
        let whole = torture(Plan { seed: 1, cuts: 3000, without: None, on_device: false }).unwrap();
        assert_eq!(whole.violation, None);
        assert!(whole.tally.cuts >= 3000 && whole.deeds.changes > 50 && whole.deeds.kills > 5, "{whole}");
        let without = Some(Missing::StoreSync);
        let broken = torture(Plan { seed: 1, cuts: CUTS_WITHOUT_STEP, without, on_device: false }).unwrap();
        assert!(broken.violation.is_some(), "{broken}");
    }
}
