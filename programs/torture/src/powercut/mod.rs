//! `cargo xtask torture powercut`: the power goes at every point, and nothing that was promised is missing afterwards.
//!
//! A small volume with a small log lives on storage that writes down all that it is asked (`record`), under a load of two queues
//! (`load`); that is a trace. Behind each of its events the power goes (`cut`): of what was not yet certain any part may be
//! lost (`medium`). Each time the volume is recovered, and every sector of its disk compared with what it may hold (`oracle`).
//! Some recoveries are cut themselves (`recovery`), and some volumes live on with what a cut has left.
//!
//! With `--device` the storage is a real kernel's block layer, which writes down itself what reaches it (`device`).
//!
//! The seed fixes the load, and the cuts that are made in a given trace. The trace itself depends on how threads run: that of
//! a violation is stored, and `--replay` makes the same cuts again.

mod cut;
pub(super) mod device;
mod image;
mod live;
mod load;
mod medium;
mod oracle;
mod record;
mod recovery;
pub(crate) mod reservations;
mod stamp;
mod trace;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use clap::Args;
use serde::Serialize;

use self::cut::{Budget, Tally, Violation};
use self::live::{Before, Life};
use self::trace::{Barrier, Scene, Trace};
use super::figures;
use super::rng::{Rng, fresh_seed};
use super::server::{ProgramOptions, workspace};

const CUTS: u64 = 100_000;
/// How many power cuts a volume lives through.
const GENERATIONS: u32 = 3;
/// Lives of volumes among which the cuts are shared out, about, and the least that each gets: what differs from life to life
/// finds more than the tenth cut behind the same event.
const LIVES: u64 = 48;
const SHARE_MIN: u64 = 300;
/// Cuts of one try to find a missing barrier, in the tests of every change...
const CUTS_WITHOUT_BARRIER: u64 = 200_000;
/// ...and tries, each with a seed of its own: a missing order shows in one of some ten thousand cuts.
const TRIES_WITHOUT_BARRIER: u32 = 5;

/// Options of `cargo xtask torture powercut`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Power cuts.
    #[arg(long, value_name = "N", default_value_t = CUTS)]
    cuts: u64,
    /// Repeat the load of the run that was told this seed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Take a guarantee away: data is lost then, and the run has to find that.
    #[arg(long, value_name = "NAME")]
    without_barrier: Option<Barrier>,
    /// Have the volumes live on a device of a User Mode Linux guest whose kernel logs every write (dm-log-writes), and cut
    /// behind every entry of that log. Needs the lab.
    #[arg(long)]
    device: bool,
    /// Cut the power of files that keep SCSI reservations instead: what was reserved is not lost, what has ended does not come back.
    #[arg(long, conflicts_with_all = ["without_barrier", "replay"])]
    reservations: bool,
    /// Leave a step out by which these files are kept: the run has to find that.
    #[arg(long, value_name = "NAME", requires = "reservations")]
    without_step: Option<reservations::Missing>,
    /// After that, take each guarantee away in turn, and see that data is lost then.
    #[arg(long, conflicts_with_all = ["seed", "without_barrier", "without_step", "device"])]
    each_barrier: bool,
    /// Make the cuts of a stored trace again.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "without_barrier", "device", "each_barrier"])]
    replay: Option<PathBuf>,
    /// End with one JSON document instead of one line.
    #[arg(long)]
    json: bool,
    /// What looks at volumes too, with `--device`.
    #[command(flatten)]
    program: ProgramOptions,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
struct Report {
    seed: u64,
    without_barrier: Option<Barrier>,
    /// The kernel whose block layer was below the volumes; none, if it was storage of ours.
    kernel: Option<String>,
    #[serde(flatten)]
    tally: Tally,
    /// Lives of volumes, each with a load of its own.
    workloads: u32,
    /// Those among them that began with what a cut had left.
    workloads_after_cut: u32,
    /// Batches that the volumes committed.
    commits: u64,
    /// How often they wrote back.
    sweeps: u64,
    /// How often their logs were filled from end to end.
    log_laps: u64,
    /// How often their disks grew.
    resizes: u64,
    seconds: f64,
    /// The first promise that was not kept; nothing is tried after that.
    violation: Option<String>,
    /// Where its trace is.
    trace: Option<PathBuf>,
}

/// Runs all that the options ask for, until something is lost.
pub(super) fn run(options: &Options) -> Result<()> {
    ensure!(options.cuts > 0, "--cuts 0 cuts nothing");
    if options.reservations {
        return keep_reservations(options);
    }
    let report = match &options.replay {
        Some(file) => replay(file, options.cuts)?,
        None => {
            let seed = options.seed.unwrap_or_else(fresh_seed);
            eprintln!("torture powercut: --seed {seed}");
            let device = if options.device { Some(options.program.find()?) } else { None };
            torture(&Plan { seed, cuts: options.cuts, without: options.without_barrier, device, store: true })?
        }
    };
    figures::finish(&report, options.json, report.violation.as_deref())?;
    if options.each_barrier { each_barrier() } else { Ok(()) }
}

/// The same for files that keep reservations.
fn keep_reservations(options: &Options) -> Result<()> {
    let seed = options.seed.unwrap_or_else(fresh_seed);
    if let Some(missing) = options.without_step.filter(|missing| options.device && !missing.shows_on_device()) {
        bail!(
            "--without-step {missing:?}: with --device no sync fails and names are stored with their files: leave --device out"
        );
    }
    eprintln!("torture powercut --reservations: --seed {seed}");
    let plan =
        reservations::Plan { seed, cuts: options.cuts, without: options.without_step, on_device: options.device };
    let report = reservations::torture(plan)?;
    figures::finish(&report, options.json, report.violation.as_deref())?;
    if options.each_barrier { reservations::each_step() } else { Ok(()) }
}

/// Takes each barrier away, and sees that it is missed.
fn each_barrier() -> Result<()> {
    for barrier in [Barrier::Commit, Barrier::WriteBack, Barrier::Checkpoint, Barrier::Order] {
        let tries =
            || torture(&Plan::without(barrier, fresh_seed())).map(|report| (report.to_string(), report.violation));
        ensure!(
            is_noticed(TRIES_WITHOUT_BARRIER, tries)?,
            "torture powercut does not notice that the barrier `{barrier}` is missing"
        );
    }
    Ok(())
}

/// Whether one of so many tries, each with what it says and the violation that it has found, finds one.
fn is_noticed(tries: u32, torture: impl Fn() -> Result<(String, Option<String>)>) -> Result<bool> {
    for _ in 0..tries {
        let (report, violation) = torture()?;
        println!("{report}");
        if violation.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a run is to do.
struct Plan {
    seed: u64,
    cuts: u64,
    without: Option<Barrier>,
    /// If volumes live on a kernel's device: the program that looks at what some cuts leave.
    device: Option<PathBuf>,
    /// Whether the trace of a violation is stored, because somebody will want to look at it.
    store: bool,
}

impl Plan {
    /// Looks for the absence of a barrier.
    fn without(barrier: Barrier, seed: u64) -> Self {
        Self { seed, cuts: CUTS_WITHOUT_BARRIER, without: Some(barrier), device: None, store: false }
    }

    /// Cuts that each life gets, about. A kernel's entries are all cut behind: they are few, and cost more than the cuts.
    fn share(&self) -> u64 {
        if self.device.is_some() { u64::MAX >> 32 } else { (self.cuts / LIVES).max(SHARE_MIN) }
    }
}

/// Where volumes live.
enum Ground {
    /// On storage that writes down what it is asked.
    Model,
    /// On a device of a guest's.
    Device(Box<device::Stand>),
}

impl Ground {
    fn new(plan: &Plan) -> Result<Self> {
        match &plan.device {
            None => Ok(Self::Model),
            Some(program) => Ok(Self::Device(Box::new(device::Stand::boot(program)?))),
        }
    }

    /// The release of the kernel whose device it is.
    fn kernel(&self) -> Option<&str> {
        match self {
            Self::Model => None,
            Self::Device(stand) => Some(stand.kernel()),
        }
    }

    /// What of a scene there can be here.
    fn scene(&self, scene: Scene) -> Scene {
        match self {
            Self::Model => scene,
            Self::Device(_) => device::Stand::scene(scene),
        }
    }

    fn live(&mut self, scene: &Scene, before: &Before, rng: &mut Rng) -> Result<Life> {
        match self {
            Self::Model => live::live(scene, before, rng),
            Self::Device(stand) => stand.live(scene, before, rng),
        }
    }

    /// Looks at what a cut has left in a scene, for another life.
    fn look(&self, scene: &Scene, left: &Before) -> Result<()> {
        match self {
            // Recovered by the same code, it was looked at already.
            Self::Model => Ok(()),
            Self::Device(stand) => stand.look(scene, left),
        }
    }
}

/// Makes so many cuts, in as many volumes as that takes, on all processors.
fn torture(plan: &Plan) -> Result<Report> {
    let start = Instant::now();
    let budget = Budget::new(plan.cuts, plan.share());
    let next = AtomicU32::new(0);
    // One guest at a time has as many processors as there are queues.
    let threads = if plan.device.is_some() { 1 } else { thread::available_parallelism().map_or(1, usize::from) };
    let grounds = (0..threads).map(|_| Ground::new(plan)).collect::<Result<Vec<_>>>()?;
    let kernel = grounds.iter().find_map(Ground::kernel).map(str::to_owned);
    let report = Mutex::new(Report { seed: plan.seed, without_barrier: plan.without, kernel, ..Report::default() });
    let fail = |error: anyhow::Error| {
        budget.end();
        lock(&report).violation.get_or_insert(format!("{error:#}"));
    };
    let work = |mut ground: Ground| {
        while !budget.is_over() {
            let volume = next.fetch_add(1, Ordering::Relaxed);
            match lives(plan, volume, &mut ground, &budget, &report) {
                Ok(None) => {}
                Ok(Some((life, violation))) => {
                    budget.end();
                    let file = if plan.store { keep(&life.trace, &report) } else { None };
                    let mut report = lock(&report);
                    if report.violation.is_none() {
                        report.violation = Some(violation.to_string());
                        report.trace = file;
                    }
                }
                Err(error) => fail(error),
            }
        }
    };
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = grounds.into_iter().map(|ground| scope.spawn(move || work(ground))).collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a thread that cuts has panicked"))?;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    let mut report = report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

fn lock(report: &Mutex<Report>) -> std::sync::MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Stores the trace of the first violation, and says where it is.
fn keep(trace: &Trace, report: &Mutex<Report>) -> Option<PathBuf> {
    if lock(report).violation.is_some() {
        return None;
    }
    let Scene { seed, volume, generation, .. } = &trace.scene;
    let file = workspace().join(format!("target/torture/powercut-{seed}-{volume}-{generation}.trace"));
    match trace.store(&file) {
        Ok(()) => Some(file),
        Err(error) => {
            eprintln!("torture powercut: cannot store {}: {error:#}", file.display());
            None
        }
    }
}

/// The lives of one volume, each but the first beginning with what a cut in the one before has left. What is returned is the
/// life in which a promise was not kept, and which.
fn lives(
    plan: &Plan,
    volume: u32,
    ground: &mut Ground,
    budget: &Budget,
    report: &Mutex<Report>,
) -> Result<Option<(Life, Violation)>> {
    let mut rng = Rng::new(plan.seed, u64::from(volume));
    let mut scene = ground.scene(draw(plan.seed, volume, plan.without, &mut rng));
    let mut before = Before::new(&scene)?;
    for generation in 0..GENERATIONS {
        if budget.is_over() {
            return Ok(None);
        }
        scene.generation = generation;
        let life = ground.live(&scene, &before, &mut rng)?;
        let events = life.trace.events.len() as u64;
        // Not in the middle of what the opening does alone, or of what the end does.
        let keep = rng.within(events / 4..=events * 7 / 8) as u32;
        let (tally, result) = cut::run(&life.trace, budget, Some(keep));
        {
            let mut report = lock(report);
            report.tally.add(&tally);
            report.workloads += 1;
            report.workloads_after_cut += u32::from(generation > 0);
            report.commits += life.commits;
            report.sweeps += life.sweeps;
            report.log_laps += laps(&life.trace);
            report.resizes += scene.growth_bytes.len() as u64;
            if report.workloads.is_multiple_of(20) {
                eprintln!("torture powercut: {} cuts in {} workloads", report.tally.cuts, report.workloads);
            }
        }
        match result {
            Ok(Some(kept)) => {
                ground.look(&scene, &kept)?;
                before = kept;
            }
            // The budget is used up.
            Ok(None) => return Ok(None),
            Err(violation) => return Ok(Some((life, violation))),
        }
    }
    Ok(None)
}

/// Draws what a volume and its load are like.
fn draw(seed: u64, volume: u32, without: Option<Barrier>, rng: &mut Rng) -> Scene {
    const KIB: u64 = 1 << 10;
    let growths = if rng.once_in(2) { rng.within(1..=3) } else { 0 };
    let scene = Scene {
        seed,
        volume,
        generation: 0,
        disk_bytes: rng.pick(&[1024 * KIB, 1536 * KIB, 2048 * KIB]),
        growth_bytes: (0..growths).map(|_| rng.pick(&[512, 4 * KIB, 64 * KIB, 256 * KIB])).collect(),
        log_bytes: rng.pick(&[64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB]),
        external_log: rng.once_in(3),
        dirty_bytes: 1024 * KIB,
        always: rng.once_in(8),
        operations: rng.within(100..=400) as u32,
        depth: rng.within(1..=8) as u32,
        sectors_max: load::SECTORS_MAX,
        flushes: rng.pick(&[2, 4, 8, 16]),
        durables: 8,
        delay_max_us: rng.pick(&[200, 1000, 4000]),
        without,
    };
    if rng.once_in(3) {
        // So many small durable writes at once that batches begin beside others in flight.
        let depth = rng.within(24..=64) as u32;
        return Scene { depth, operations: 20 * depth, sectors_max: 8, flushes: 16, durables: 2, ..scene };
    }
    scene
}

/// How often the log was filled from end to end: what was written to where it lies, over its length.
fn laps(trace: &Trace) -> u64 {
    let internal = volume::format::INTERNAL_LOG_OFFSET..volume::format::INTERNAL_LOG_OFFSET + trace.scene.log_bytes;
    let logged = trace.writes.iter().filter(|write| match write.device {
        0 => !trace.scene.external_log && internal.contains(&write.offset),
        _ => write.offset >= volume::format::EXTERNAL_LOG_OFFSET,
    });
    logged.map(|write| u64::from(write.bytes)).sum::<u64>() / trace.scene.log_bytes
}

/// Makes the cuts of a stored trace again.
fn replay(file: &Path, cuts: u64) -> Result<Report> {
    let start = Instant::now();
    let trace = Trace::load(file)?;
    eprintln!("torture powercut: {}: {} events", trace.scene, trace.events.len());
    let (tally, result) = cut::run(&trace, &Budget::new(cuts, u64::MAX >> 32), None);
    Ok(Report {
        seed: trace.scene.seed,
        without_barrier: trace.scene.without,
        tally,
        workloads: 1,
        workloads_after_cut: u32::from(trace.scene.generation > 0),
        log_laps: laps(&trace),
        resizes: trace.scene.growth_bytes.len() as u64,
        seconds: start.elapsed().as_secs_f64(),
        violation: result.err().map(|violation| violation.to_string()),
        ..Report::default()
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.violation.is_some() { "VIOLATION" } else { "nothing lost" };
        write!(f, "torture powercut: {verdict}")?;
        if let Some(barrier) = self.without_barrier {
            write!(f, " without the barrier `{barrier}`")?;
        }
        if let Some(kernel) = &self.kernel {
            write!(f, " on a device of Linux {kernel}")?;
        }
        let Tally { cuts, cuts_in_recovery, records_replayed, reads, events, .. } = self.tally;
        write!(
            f,
            "; {cuts} cuts behind {events} events, {cuts_in_recovery} of them inside a recovery, {records_replayed} records \
             replayed; {} workloads, {} of them on what a cut had left, {} commits, {} sweeps, {} laps of the log, {} \
             resizes, {reads} reads compared; {:.0} s; seed {}",
            self.workloads,
            self.workloads_after_cut,
            self.commits,
            self.sweeps,
            self.log_laps,
            self.resizes,
            self.seconds,
            self.seed
        )?;
        match &self.trace {
            Some(file) => write!(f, "; again: cargo xtask torture powercut --replay {}", file.display()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenes_repeat_and_differ() {
        let scene = |seed, volume| format!("{:?}", draw(seed, volume, None, &mut Rng::new(seed, u64::from(volume))));
        assert_eq!(scene(1, 2), scene(1, 2));
        assert_ne!(scene(1, 2), scene(1, 3));
        assert_ne!(scene(1, 2), scene(2, 2));
    }

    #[test]
    fn nothing_is_lost_and_a_missing_barrier_is_noticed() {
        let plan = Plan { seed: 1, cuts: 600, without: None, device: None, store: false };
        let whole = torture(&plan).unwrap();
        assert_eq!(whole.violation, None);
        assert!(whole.tally.cuts >= 600 && whole.tally.records_replayed > 0 && whole.sweeps > 0, "{whole}");
        let broken = torture(&Plan::without(Barrier::Commit, 1)).unwrap();
        assert!(broken.violation.is_some(), "{broken}");
    }
}
