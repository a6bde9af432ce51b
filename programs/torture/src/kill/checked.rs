//! Kills under the frontend that checks every request.
//!
//! A session is one disk, one frontend and one way to serve it, over several kills. By signal, the server dies while it
//! serves, while the frontend introduces itself or what was in flight is being taken up again, or together with the
//! connection; and the connection alone is lost, too. By store, a server that was built for it dies right behind one of
//! the stores by which requests are taken, answered and shown, so that every place between two of them has its turn.
//!
//! Servers that come back have other options than the last one had, as an operator may give them: workers, execution, poll
//! windows, more queues, a write cache. Some drivers have turned that off and never flush: no later server may have one again,
//! and what it has answered is on the device. Some drivers of a SCSI disk say so with each write.
//!
//! A SCSI disk is reserved by its driver, for good, before the first server dies. What is shown of that afterwards is exact, and what a
//! unit has to say first it says once on each connection; see `frontend::scsi`.
//!
//! While the server is dead a raw image is compared with what was acknowledged; at the end all that is in flight must come
//! back, and the disk is read through the server and beside it.

use std::fmt;
use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use rustix::fs::OFlags;
use rustix::process::{Signal, kill_process};
use serde::Serialize;
use tempfile::TempDir;

use super::durable;
use crate::disk::{Disk, Kind};
use crate::figures::{Spread, Times};
use crate::frontend::{Checks, Durability, Farewell, Load, Protocol, RING_SIZE_MAX, RingShape, Shape, Tally};
use crate::rng::Rng;
use crate::server::{POLL, Served, Server, Setup, WRITE_CACHE};
use crate::session;

const KILLS_A_SESSION: u32 = 10;
const IMAGE_BYTES: u64 = 16 << 20;
/// When a server that serves is killed, from its first completion on.
const LIFE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(50);
/// When a server that was just connected to is killed, from the frontend's first message on.
const EARLY: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_millis(6);
/// How long a connection lasts after one was lost.
const BETWEEN: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_millis(5);
/// Each of these once in so many rounds.
const EARLY_KILLS: u64 = 5;
const KILLS_OF_BOTH: u64 = 5;
const HANG_UPS: u64 = 4;
const IMAGE_CHECKS: u64 = 3;
const CHANGES: u64 = 2;
/// Queues that a later server may have beyond those that are used.
const QUEUES_SPARE_MAX: u64 = 3;

/// What servers are told, in turns or at random.
const EXECUTIONS: [&str; 4] = ["uring", "inline", "pool=2", "auto"];
const WORKERS: [&str; 3] = ["one", "2", "per-queue"];
const POLLS: [&str; 3] = ["off", "fixed=50", "adaptive"];
const WRITE_CACHES: [&str; 3] = ["on", "off", "guest"];
/// Those of them with which a SCSI disk begins without one.
const NO_WRITE_CACHES: [&str; 2] = ["off", "guest"];

/// Tells a server how many stores of its rings to make before it dies (`vring`, feature `crash-points`).
const STORES_VARIABLE: &str = "VRING_CRASH_AFTER_STORES";
/// A server that dies by a store makes up to this power of two of them. A request takes about five.
const STORES_POWER_MAX: u64 = 12;

/// What ends a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// SIGKILL, at a random moment.
    Signal,
    /// Itself, behind a store.
    Store,
}

/// What to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    /// The program to serve with; for [`Death::Store`] one that was built for it.
    pub(super) program: &'a Path,
    /// What ends it.
    pub(super) death: Death,
    /// How often.
    pub(super) rounds: u32,
    /// Where all random numbers come from.
    pub(super) seed: u64,
    /// Whether requests in flight are tracked.
    pub(super) inflight: bool,
    /// What is served.
    pub(super) kind: Kind,
    /// What is spoken.
    pub(super) protocol: Protocol,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    /// Servers killed.
    kills: u32,
    /// Those among them that died while the next frontend introduced itself, or within milliseconds after.
    early_kills: u32,
    /// Those among them whose frontend had just hung up.
    kills_of_both: u32,
    /// Connections lost while the server lived on.
    hang_ups: u32,
    /// Frontends, each with a disk of its own.
    sessions: u32,
    /// Servers that began with other options than the one before them.
    changed_options: u32,
    /// Frontends whose driver had turned the write cache off, or passed it by.
    without_cache: u32,
    /// Times at which nothing of such a driver's disk was left that a power cut would take.
    durable_checks: u32,
    /// Times at which the image of a dead server was compared.
    images_checked: u32,
    /// What completed, each request once.
    completed: Tally,
    /// From a kill to the first completion under the next server.
    pause: Option<Spread>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} kills, {} requests completed once each, {} of them resubmitted, {} servers with other options, {} of {} \
             drivers without a write cache ({} looks at what is durable)",
            self.kills,
            self.completed.requests(),
            self.completed.resubmitted,
            self.changed_options,
            self.without_cache,
            self.sessions,
            self.durable_checks
        )?;
        let Tally { told, uncertain, reservations, .. } = self.completed;
        if told > 0 {
            write!(
                f,
                ", {told} unit attentions, {uncertain} requests that may have been done, {reservations} changes of keys"
            )?;
        }
        self.pause.map_or(Ok(()), |pause| write!(f, ", pause {pause}"))
    }
}

/// Ends as many servers as the plan says. The report tells how far it came.
pub(super) fn run(plan: &Plan<'_>) -> (Report, Result<()>) {
    let (mut report, mut pauses) = (Report::default(), Times::default());
    let mut result = Ok(());
    while result.is_ok() && report.kills < plan.rounds {
        let number = report.sessions;
        report.sessions += 1;
        let last = plan.rounds.min(report.kills + KILLS_A_SESSION);
        result = Way::draw(number, plan).and_then(|way| {
            eprintln!("torture kill: from {} {} on: {way}", plan.death.name(), report.kills + 1);
            session(plan, &way, last, &mut report, &mut pauses)
                .with_context(|| format!("{} {}, {way}", plan.death.name(), report.kills))
        });
    }
    report.pause = pauses.spread();
    (report, result)
}

fn session(plan: &Plan<'_>, way: &Way, last: u32, report: &mut Report, pauses: &mut Times) -> Result<()> {
    let mut session = Session::new(plan, way)?;
    report.without_cache += u32::from(way.durability != Durability::Flushes);
    let result = match plan.death {
        Death::Signal => session.rounds(last, report, pauses),
        Death::Store => session.rounds_of_stores(last, report),
    };
    let result =
        result.and_then(|()| session::finish(&mut session.load, &mut session.server, &mut session.disk, plan.program));
    report.completed.add(&session.load.tally());
    result.map_err(|error| session::with_last_words(error, session.server.as_ref()))
}

impl Death {
    fn name(self) -> &'static str {
        match self {
            Self::Signal => "kill",
            Self::Store => "crash point",
        }
    }
}

/// One way to serve a disk, and to use it.
#[derive(Clone, Debug)]
struct Way {
    seed: u64,
    execution: &'static str,
    workers: &'static str,
    direct: bool,
    queues: u16,
    ring: RingShape,
    depth: u16,
    indirect: bool,
    durability: Durability,
}

impl Way {
    /// Ways to execute take turns; the rest is drawn.
    fn draw(number: u32, plan: &Plan<'_>) -> Result<Self> {
        let half = if plan.death == Death::Signal { 0 } else { 1 << 16 };
        let mut rng = Rng::new(plan.seed, u64::from(number) + half);
        let execution = EXECUTIONS[number as usize % EXECUTIONS.len()];
        let ring = RingShape { size: rng.pick(&[8, 32, 128, RING_SIZE_MAX]), event_idx: rng.once_in(2) };
        let durability = match plan.protocol {
            _ if !rng.once_in(3) => Durability::Flushes,
            Protocol::Blk => Durability::Cacheless,
            Protocol::Scsi => rng.pick(&[Durability::Cacheless, Durability::Forced]),
        };
        Ok(Self {
            execution,
            workers: rng.pick(&WORKERS),
            // Only the page cache shows what is not on the device.
            direct: rng.once_in(3) && durability == Durability::Flushes && takes_direct_io()?,
            queues: rng.within(1..=4) as u16,
            ring,
            depth: rng.within(1..=u64::from(ring.size / 4)) as u16,
            indirect: rng.once_in(2),
            durability,
            seed: rng.next(),
        })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { execution, workers, queues, depth, ring, .. } = self;
        write!(f, "{execution}, workers {workers}, {queues} queues of {} at depth {depth}", ring.size)?;
        for (name, given) in [
            ("direct", self.direct),
            ("event_idx", ring.event_idx),
            ("indirect", self.indirect),
            ("write cache off", self.durability == Durability::Cacheless),
            ("every write forced", self.durability == Durability::Forced),
        ] {
            if given {
                write!(f, ", {name}")?;
            }
        }
        Ok(())
    }
}

/// Whether temporary files take O_DIRECT: older tmpfs does not.
fn takes_direct_io() -> Result<bool> {
    let directory = TempDir::with_prefix("vringd-torture-")?;
    let path = directory.path().join("probe");
    fs::write(&path, "")?;
    Ok(File::options().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(&path).is_ok())
}

struct Session {
    // Ends before its files do.
    server: Option<Server>,
    load: Load,
    rng: Rng,
    setup: Setup,
    used_queues: u16,
    disk: Disk,
    durability: Durability,
    /// Whether its driver never flushes, and the kernel tells what is not on the device.
    shows_what_is_durable: bool,
    _directory: TempDir,
}

impl Session {
    /// A session that has no server yet.
    fn new(plan: &Plan<'_>, way: &Way) -> Result<Self> {
        let directory = TempDir::with_prefix("vringd-torture-")?;
        let disk = match plan.kind {
            Kind::Raw => Disk::raw(directory.path(), IMAGE_BYTES, way.direct, way.execution)?,
            kind => Disk::new(kind, plan.program, directory.path(), IMAGE_BYTES, way.execution)?,
        };
        let setup = Setup {
            program: plan.program.to_owned(),
            directory: directory.path().to_owned(),
            served: disk.served(),
            queues: way.queues,
            workers: way.workers.into(),
            poll: POLL,
            // What a driver turns off has to be offered to it once.
            write_cache: if way.durability == Durability::Cacheless { "guest" } else { WRITE_CACHE },
            protocol: plan.protocol,
            environment: Vec::new(),
        };
        let shape = Shape {
            queues: way.queues,
            ring: way.ring,
            indirect: way.indirect,
            inflight: plan.inflight,
            durability: way.durability,
            protocol: plan.protocol,
        };
        let load = Load::new(shape, Checks::Data, way.depth, way.seed)?.forgetting(plan.kind.has_log());
        let rng = Rng::new(way.seed, 1);
        let shows_what_is_durable = way.durability != Durability::Flushes
            && disk.raw_image().is_some()
            && durable::can_be_told(directory.path())?;
        let (used_queues, durability) = (way.queues, way.durability);
        Ok(Self {
            server: None,
            load,
            rng,
            setup,
            used_queues,
            disk,
            durability,
            shows_what_is_durable,
            _directory: directory,
        })
    }

    /// Starts a server and connects.
    fn serve(&mut self) -> Result<()> {
        let stream = self.start_server()?.connect()?;
        self.load.connect(stream).context("connecting")
    }

    fn start_server(&mut self) -> Result<&mut Server> {
        Ok(self.server.insert(Server::start(&self.setup)?))
    }

    /// The next server is told something else, as far as the driver of a guest that lives on need not know.
    fn change_options(&mut self, report: &mut Report) {
        report.changed_options += 1;
        if let Served::File { execution, .. } = &mut self.setup.served {
            *execution = self.rng.pick(&EXECUTIONS).into();
        }
        self.setup.workers = self.rng.pick(&WORKERS).into();
        // A virtio-blk disk of one queue has other features.
        if self.used_queues > 1 || self.setup.protocol == Protocol::Scsi {
            self.setup.queues = self.used_queues + self.rng.within(0..=QUEUES_SPARE_MAX) as u16;
        }
        self.setup.poll = self.rng.pick(&POLLS);
        self.setup.write_cache = match (self.setup.protocol, self.durability) {
            // Its mode is what it was when it was made: a driver that wants no cache would have to say so again.
            (Protocol::Scsi, Durability::Cacheless) => self.rng.pick(&NO_WRITE_CACHES),
            _ => self.rng.pick(&WRITE_CACHES),
        };
    }

    fn server(&mut self) -> Result<&mut Server> {
        self.server.as_mut().context("there is no server")
    }

    fn rounds(&mut self, last: u32, report: &mut Report, pauses: &mut Times) -> Result<()> {
        self.serve()?;
        while report.kills < last {
            self.round(last, report, pauses)?;
        }
        Ok(())
    }

    /// Servers that die by a store, each one taking over from the last, and one that lives.
    fn rounds_of_stores(&mut self, last: u32, report: &mut Report) -> Result<()> {
        if self.setup.protocol == Protocol::Scsi {
            self.introduce().context("before the first crash point")?;
        }
        while report.kills < last {
            report.kills += 1;
            let power = self.rng.within(0..=STORES_POWER_MAX);
            let stores = self.rng.within(1..=1 << power);
            self.setup.environment = vec![(STORES_VARIABLE, stores.to_string())];
            self.crash().with_context(|| format!("after {stores} stores"))?;
            if self.rng.once_in(IMAGE_CHECKS) {
                self.check_image(report)?;
            }
            if self.rng.once_in(CHANGES) {
                self.change_options(report);
            }
        }
        self.setup.environment.clear();
        self.serve()?;
        self.check_durable(report)
    }

    /// A disk is asked what it is, and reserved, by a server that lives; it goes without being asked.
    fn introduce(&mut self) -> Result<()> {
        self.serve()?;
        let life = self.rng.time(LIFE);
        self.kill_after(life, None)?;
        self.bury().map(|_| ())
    }

    /// Has a server take over until it dies by itself.
    fn crash(&mut self) -> Result<()> {
        let stream = self.start_server()?.connect()?;
        // It may die before the frontend has introduced itself; if it does not die, that is found below.
        let introduced = self.load.connect(stream);
        if introduced.is_ok() {
            let server = self.server.as_mut().context("there is no server")?;
            self.load.run(|_| !matches!(server.is_running(), Ok(true)))?;
        }
        let buried = self.bury();
        match introduced {
            Err(error) if buried.is_err() => Err(error),
            _ => buried.map(|_| ()),
        }
    }

    /// Some load, a kill, the next server, and what was in flight.
    fn round(&mut self, last: u32, report: &mut Report, pauses: &mut Times) -> Result<()> {
        if self.rng.once_in(HANG_UPS) {
            report.hang_ups += 1;
            self.hang_up().context("after the connection was lost")?;
        }
        let life = self.rng.time(LIFE);
        report.kills += 1;
        let killed = if self.rng.once_in(KILLS_OF_BOTH) {
            report.kills_of_both += 1;
            self.kill_both(life)?
        } else {
            self.kill_after(life, None)?
        };
        let mut dead = self.bury()?;
        let mut time_dead = dead.duration_since(killed);
        let mut pause_is_whole = true;
        if self.rng.once_in(IMAGE_CHECKS) {
            self.check_image(report)?;
            dead = Instant::now();
        }
        if self.rng.once_in(CHANGES) {
            self.change_options(report);
        }
        while report.kills < last && self.rng.once_in(EARLY_KILLS) {
            report.kills += 1;
            report.early_kills += 1;
            pause_is_whole = false;
            let stream = self.start_server()?.connect()?;
            let life = self.rng.time(EARLY);
            self.kill_after(life, Some(stream))?;
            dead = self.bury()?;
        }
        self.serve()?;
        self.load.run(|load| load.first_fresh().is_some()).context("after the reconnection")?;
        if let (Some(first), true) = (self.load.first_fresh(), pause_is_whole) {
            time_dead += first.duration_since(dead);
            pauses.push(time_dead);
        }
        self.check_durable(report)
    }

    /// Lets what is in flight come back, and looks whether all of it is on the device, if the guest takes it for that.
    fn check_durable(&mut self, report: &mut Report) -> Result<()> {
        let (Some(image), true) = (self.disk.raw_image(), self.shows_what_is_durable) else { return Ok(()) };
        self.load.drain()?;
        durable::check(image)?;
        report.durable_checks += 1;
        Ok(())
    }

    /// Runs the load until the server is killed `life` from now, and says when that was. With a `stream`, the frontend
    /// first introduces itself on it, and it may well not come to an end with that.
    fn kill_after(&mut self, life: Duration, stream: Option<UnixStream>) -> Result<Instant> {
        let pid = self.server()?.pid()?;
        let killed = AtomicBool::new(false);
        let load = &mut self.load;
        let (ran, at) = thread::scope(|scope| {
            let killer = scope.spawn(|| {
                thread::sleep(life);
                let at = Instant::now();
                let sent = kill_process(pid, Signal::KILL);
                killed.store(true, Ordering::Release);
                sent.map(|()| at)
            });
            let introduced = match stream {
                // Whatever fails here failed because the server died, or fails again at the next one.
                Some(stream) => load.connect(stream).is_ok(),
                None => true,
            };
            let ran = if introduced { load.run(|_| killed.load(Ordering::Acquire)) } else { Ok(()) };
            (ran, killer.join())
        });
        ran?;
        at.map_err(|_| anyhow!("the thread that kills panicked"))?.context("cannot kill the server")
    }

    /// Hangs up after `life` and kills the server while it still drains, or right after.
    fn kill_both(&mut self, life: Duration) -> Result<Instant> {
        self.load.run_for(life)?;
        self.load.disconnect(Farewell::Silent)?;
        thread::sleep(self.rng.time(Duration::ZERO..=Duration::from_millis(1)));
        let at = Instant::now();
        self.server()?.kill()?;
        Ok(at)
    }

    /// Waits until the killed server is gone, and says when it was.
    fn bury(&mut self) -> Result<Instant> {
        self.server()?.wait_killed()?;
        let dead = Instant::now();
        self.load.lose_server()?;
        Ok(dead)
    }

    /// Loses the connection to a server that lives on, and comes back with what is in flight.
    fn hang_up(&mut self) -> Result<()> {
        let farewell = self.rng.pick(&[Farewell::Stopped, Farewell::Silent]);
        self.load.disconnect(farewell)?;
        let stream = self.server()?.connect()?;
        self.load.connect(stream)?;
        let between = self.rng.time(BETWEEN);
        self.load.run_for(between)
    }

    /// Compares the image of a server that has died, if it can be looked at: what a volume's server had acknowledged is partly
    /// in its memory file, for the next one.
    fn check_image(&self, report: &mut Report) -> Result<()> {
        let Some(image) = self.disk.raw_image() else { return Ok(()) };
        report.images_checked += 1;
        self.load.check_image(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_differ_and_repeat() {
        let ways = |seed| {
            let plan = Plan {
                program: Path::new("/"),
                death: Death::Signal,
                rounds: 1,
                seed,
                inflight: true,
                kind: Kind::Raw,
                protocol: Protocol::Scsi,
            };
            (0..8).map(|number| Way::draw(number, &plan).unwrap().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ways(1), ways(1));
        assert_ne!(ways(1), ways(2));
        for execution in EXECUTIONS {
            assert_eq!(ways(1).iter().filter(|way| way.starts_with(execution)).count(), 2);
        }
    }
}
