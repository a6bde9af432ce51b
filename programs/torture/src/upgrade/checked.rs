//! Upgrades under the frontend that checks every request.
//!
//! A session is one disk, one frontend and one way to serve it, over several upgrades. While the frontend keeps requests
//! in flight and checks each of them, the server is told to go on in the same program anew. The connection, the memory and
//! the rings stay as they are: what the frontend sees of an upgrade is a gap between two completions. Now and then a
//! program is named that cannot go on, after which the old one must serve as before; and now and then the frontend comes
//! back on a new connection, to find the socket where it was.
//!
//! A SCSI disk is reserved by its driver before the first upgrade. What is shown of that stays exactly as it is, and no unit has anything
//! to say of an upgrade: to its guest nothing has happened.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tempfile::TempDir;

use crate::disk::{Disk, Kind};
use crate::figures::{Spread, Times};
use crate::frontend::{Checks, Durability, Farewell, Load, Protocol, RING_SIZE_MAX, RingShape, Shape, Tally};
use crate::rng::Rng;
use crate::server::{POLL, Server, Setup, WRITE_CACHE, said, went_on};
use crate::session;

const UPGRADES_A_SESSION: u32 = 10;
const IMAGE_BYTES: u64 = 16 << 20;
/// How long there is load before an upgrade, and after it.
const LIFE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(50);
/// Each of these once in so many upgrades.
const REFUSALS: u64 = 4;
const HANG_UPS: u64 = 4;
/// How many completions have to follow an upgrade before it counts as survived.
const COMPLETIONS_AFTER: u64 = 50;

/// What came of it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    /// Times the program was replaced.
    upgrades: u32,
    /// Times a program was named that could not go on, and was refused.
    refusals: u32,
    /// Connections that the frontend gave up and made anew.
    hang_ups: u32,
    /// Frontends, each with a disk of its own.
    sessions: u32,
    /// What completed, each request once.
    completed: Tally,
    /// The longest time between two completions around an upgrade, as the frontend saw it.
    pause: Option<Spread>,
    /// From the first ring halted to the last one running again, as the server measured it.
    pause_told: Option<Spread>,
    /// The longest time between two completions around a refusal.
    pause_refused: Option<Spread>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upgrades, refusals, completed, .. } = self;
        write!(f, "{upgrades} upgrades and {refusals} refusals, {} requests", completed.requests())?;
        f.write_str(" completed once each, no error")?;
        self.pause.map_or(Ok(()), |pause| write!(f, ", pause {pause}"))?;
        self.pause_told.map_or(Ok(()), |told| write!(f, " (by the server's clock: {told})"))
    }
}

/// Times that become a report's spreads.
#[derive(Default)]
struct Pauses {
    seen: Times,
    told: Times,
    refused: Times,
}

/// Upgrades `rounds` times. The report tells how far it came.
pub(super) fn run(program: &Path, rounds: u32, what: (Protocol, Kind), seed: u64) -> (Report, Result<()>) {
    let (mut report, mut pauses) = (Report::default(), Pauses::default());
    let mut result = Ok(());
    while result.is_ok() && report.upgrades < rounds {
        let number = report.sessions;
        report.sessions += 1;
        let last = rounds.min(report.upgrades + UPGRADES_A_SESSION);
        let way = Way::draw(number, what, seed);
        eprintln!("torture upgrade: from upgrade {} on: {way}", report.upgrades + 1);
        let ran = session(program, &way, last, &mut report, &mut pauses);
        result = ran.with_context(|| format!("upgrade {}, {way}", report.upgrades));
    }
    report.pause = pauses.seen.spread();
    report.pause_told = pauses.told.spread();
    report.pause_refused = pauses.refused.spread();
    (report, result)
}

fn session(program: &Path, way: &Way, last: u32, report: &mut Report, pauses: &mut Pauses) -> Result<()> {
    let mut session = Session::new(program, way)?;
    let result = session.rounds(last, report, pauses).and_then(|()| session.finish());
    report.completed.add(&session.load.tally());
    result.map_err(|error| session::with_last_words(error, session.server.as_ref()))
}

/// One way to serve a disk, and to use it.
#[derive(Clone, Debug)]
struct Way {
    seed: u64,
    protocol: Protocol,
    kind: Kind,
    execution: &'static str,
    workers: &'static str,
    queues: u16,
    ring: RingShape,
    depth: u16,
    indirect: bool,
    inflight: bool,
}

impl Way {
    /// Ways to execute take turns, a volume has one; the rest is drawn.
    fn draw(number: u32, (protocol, kind): (Protocol, Kind), seed: u64) -> Self {
        let mut rng = Rng::new(seed, u64::from(number));
        let execution = ["uring", "inline", "pool=2", "auto"][number as usize % 4];
        let ring = RingShape { size: rng.pick(&[8, 32, 128, RING_SIZE_MAX]), event_idx: rng.once_in(2) };
        Self {
            protocol,
            kind,
            execution,
            workers: rng.pick(&["shared", "one", "2", "per-queue"]),
            queues: rng.within(1..=4) as u16,
            ring,
            depth: rng.within(1..=u64::from(ring.size / 4)) as u16,
            indirect: rng.once_in(2),
            inflight: rng.once_in(2),
            seed: rng.next(),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workers, queues, depth, ring, .. } = self;
        let execution = self.kind.name(self.execution);
        write!(f, "{execution}, workers {workers}, {queues} queues of {} at depth {depth}", ring.size)?;
        let given = [("event_idx", ring.event_idx), ("indirect", self.indirect), ("inflight", self.inflight)];
        for (name, _) in given.iter().filter(|(_, given)| *given) {
            write!(f, ", {name}")?;
        }
        Ok(())
    }
}

struct Session {
    // Ends before its files do.
    server: Option<Server>,
    load: Load,
    rng: Rng,
    setup: Setup,
    disk: Disk,
    directory: TempDir,
}

impl Session {
    fn new(program: &Path, way: &Way) -> Result<Self> {
        let directory = TempDir::with_prefix("vringd-torture-")?;
        let disk = Disk::new(way.kind, program, directory.path(), IMAGE_BYTES, way.execution)?;
        let setup = Setup {
            program: program.to_owned(),
            directory: directory.path().to_owned(),
            served: disk.served(),
            queues: way.queues,
            workers: way.workers.into(),
            poll: POLL,
            write_cache: WRITE_CACHE,
            protocol: way.protocol,
            environment: Vec::new(),
        };
        let shape = Shape {
            queues: way.queues,
            ring: way.ring,
            indirect: way.indirect,
            inflight: way.inflight,
            durability: Durability::Flushes,
            protocol: way.protocol,
        };
        let load = Load::new(shape, Checks::Data, way.depth, way.seed)?.forgetting(way.kind.has_log());
        Ok(Self { server: None, load, rng: Rng::new(way.seed, 1), setup, disk, directory })
    }

    fn rounds(&mut self, last: u32, report: &mut Report, pauses: &mut Pauses) -> Result<()> {
        let stream = self.server.insert(Server::start(&self.setup)?).connect()?;
        self.load.connect(stream).context("connecting")?;
        let mut upgrades = 0;
        while report.upgrades < last {
            if self.rng.once_in(REFUSALS) {
                self.refusal(pauses).context("a program that cannot go on")?;
                report.refusals += 1;
            }
            upgrades += 1;
            self.upgrade(upgrades, pauses)?;
            report.upgrades += 1;
            if self.rng.once_in(HANG_UPS) {
                self.hang_up().context("a new connection after an upgrade")?;
                report.hang_ups += 1;
            }
        }
        Ok(())
    }

    /// Replaces the program under load.
    fn upgrade(&mut self, number: u64, pauses: &mut Pauses) -> Result<()> {
        let pid = self.server()?.pid()?;
        let output = self.under_load(&[])?;
        pauses.seen.push(self.load.take_gap());
        pauses.told.push(went_on(&output, number, pid)?);
        self.server()?.check_alive()
    }

    /// Names a program that cannot go on: the old one must.
    fn refusal(&mut self, pauses: &mut Pauses) -> Result<()> {
        let text = self.directory.path().join("text");
        std::fs::write(&text, "not a program\n")?;
        let missing = self.directory.path().join("missing");
        let program = match self.rng.within(0..=3) {
            0 => missing,
            1 => text,
            2 => PathBuf::from("/bin/true"),
            _ => PathBuf::from("/bin/false"),
        };
        let shown = program.to_str().context("temporary directories are UTF-8")?.to_owned();
        let output = self.under_load(&["--binary", &shown])?;
        pauses.refused.push(self.load.take_gap());
        let complaint = said(&output);
        ensure!(output.status.code() == Some(1), "{shown}: `ctl upgrade` ended with {}: {complaint}", output.status);
        ensure!(complaint.contains(&shown), "the refusal does not name {shown}: {complaint}");
        self.server()?.check_alive()
    }

    /// Asks for an upgrade while the load runs, and has the load go on for a while.
    fn under_load(&mut self, more: &[&str]) -> Result<Output> {
        let (before, after) = (self.rng.time(LIFE), self.rng.time(LIFE));
        self.load.run_for(before)?;
        self.load.take_gap();
        let setup = &self.setup;
        let output = self.load.run_while(|| setup.upgrade(more)).context("during the upgrade")?;
        self.load.ask_everything();
        let (start, completed) = (Instant::now(), self.load.tally().requests());
        let enough = |load: &Load| start.elapsed() >= after && load.tally().requests() >= completed + COMPLETIONS_AFTER;
        self.load.run(enough).context("after the upgrade")?;
        Ok(output)
    }

    /// Loses the connection to a server that lives on, and comes back with what is in flight.
    fn hang_up(&mut self) -> Result<()> {
        self.load.disconnect(Farewell::Stopped)?;
        let stream = self.server()?.connect()?;
        self.load.connect(stream)?;
        let life = self.rng.time(LIFE);
        self.load.run_for(life)
    }

    fn server(&mut self) -> Result<&mut Server> {
        self.server.as_mut().context("there is no server")
    }

    /// All that is in flight comes back, and the disk holds what it must, as the server shows it and beside the server.
    fn finish(&mut self) -> Result<()> {
        session::finish(&mut self.load, &mut self.server, &mut self.disk, &self.setup.program)?;
        for socket in [self.setup.socket(), self.setup.control()] {
            ensure!(!socket.exists(), "{} is left behind", socket.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_differ_and_repeat() {
        let ways = |seed| {
            (0..8).map(|number| Way::draw(number, (Protocol::Blk, Kind::Raw), seed).to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ways(1), ways(1));
        assert_ne!(ways(1), ways(2));
        assert_eq!(ways(1).iter().filter(|way| way.starts_with("pool=2")).count(), 2);
    }
}
