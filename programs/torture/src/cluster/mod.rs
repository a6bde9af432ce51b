//! `cargo xtask torture cluster`: what a disk in a Ceph cluster depends on goes away and comes back, while a frontend checks every
//! request.
//!
//! A session is one cluster and one image, one frontend and one way to use it. Its OSD is killed and started, or its monitor, or the network
//! is cut and mended; of the requests that meet that each has to end once, with success, when all is back. Now and then the daemon dies
//! while something is away: what it had sent may reach the OSD when nobody waits for that any more, and must not land on what the next
//! daemon has written. (A daemon whose predecessors are not blocklisted has not been found so in some 40 such deaths: of what a dead one has left in
//! its sockets most is dropped by the kernel, or by the OSD, which knows that nobody waits.) At the end the disk is read through the daemon and, by `rbd export`, beside it.
//!
//! The OSD keeps its data in a file, as what is in its memory would go with it.

mod network;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use guest::ceph::{Cluster, Store};
use serde::Serialize;
use tempfile::TempDir;

use self::network::Network;
use crate::common::Common;
use crate::disk::Disk;
use crate::figures::{self, Spread, Times};
use crate::frontend::{Checks, Durability, Load, Protocol, RingShape, Shape, Tally};
use crate::rng::Rng;
use crate::server::{POLL, Server, Setup};
use crate::session::{self, with_last_words};

const BLOWS_A_SESSION: u32 = 10;
/// Small, so that what lands late lands on something.
const IMAGE_BYTES: u64 = 4 << 20;
/// How long all is well before something goes.
const LIFE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(500);
/// How long it is away.
const ABSENCE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_millis(2500);
/// How long what was under way may still arrive when something is away.
const SETTLED: Duration = Duration::from_millis(300);
/// The daemon dies, too, once in so many absences.
const DEATHS: u64 = 2;
/// How long the kernel may keep what a dead daemon has sent into a network that was cut: it tries again after 0.2 s, and each time after
/// twice as long.
const LATE: Duration = Duration::from_secs(5);
/// For what is back to be found, by a daemon that starts as by one that runs.
const PATIENCE: Duration = Duration::from_secs(120);
/// How many completions have to follow before all is well again.
const COMPLETIONS_AFTER: u64 = 50;
/// What a daemon says to which a cluster did not answer.
const TOO_LATE: &str = "answered within";
/// What is answered is durable: librbd has no cache unless it is told so.
const WRITE_CACHE: &str = "off";

/// Options of `cargo xtask torture cluster`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// How often the OSD is killed, and started again.
    #[arg(long, value_name = "N", default_value_t = 50)]
    osd_kills: u32,
    /// How often the monitor is killed, and started again.
    #[arg(long, value_name = "N", default_value_t = 20)]
    monitor_kills: u32,
    /// How often the network is cut, and mended.
    #[arg(long, value_name = "N", default_value_t = 50)]
    cuts: u32,
    #[command(flatten)]
    common: Common,
}

/// What goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Osd,
    Monitor,
    Network,
}

const PARTS: [Part; 3] = [Part::Osd, Part::Monitor, Part::Network];

/// How often one of them went, and what that cost.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Blows {
    /// Times.
    count: u32,
    /// Those among them in which the daemon died, too.
    with_the_daemon: u32,
    /// The longest time between two completions, the absence included, where the daemon lived.
    gap: Option<Spread>,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
struct Report {
    seed: u64,
    osd_kills: Blows,
    monitor_kills: Blows,
    cuts: Blows,
    /// Clusters, each with a frontend of its own.
    sessions: u32,
    /// What completed, each request once.
    completed: Tally,
    /// What was lost first; nothing is tried after that.
    lost: Option<String>,
}

impl Report {
    fn of(&mut self, part: Part) -> &mut Blows {
        match part {
            Part::Osd => &mut self.osd_kills,
            Part::Monitor => &mut self.monitor_kills,
            Part::Network => &mut self.cuts,
        }
    }
}

/// Runs until everything has gone as often as it is to, or something is lost.
pub(super) fn run(options: &Options) -> Result<()> {
    ensure!(options.osd_kills + options.monitor_kills + options.cuts > 0, "nothing is to go away: all counts are 0");
    let program = options.common.program.find()?;
    let network = Network::enter()?;
    let seed = options.common.seed("cluster");
    let mut rng = Rng::new(seed, 0);
    let mut left = [options.osd_kills, options.monitor_kills, options.cuts];
    let (mut report, mut gaps) = (Report { seed, ..Report::default() }, [(); 3].map(|()| Times::default()));
    let mut result = Ok(());
    while result.is_ok() && left != [0; 3] {
        report.sessions += 1;
        let plan = draw(&mut rng, &mut left);
        result = Session::new(&program, &mut rng, &network).and_then(|mut session| {
            let ran = session.run(&plan, &mut report, &mut gaps);
            report.completed.add(&session.load.tally());
            ran.map_err(|error| with_last_words(error, session.server.as_ref()))
        });
    }
    for (part, gaps) in PARTS.into_iter().zip(&gaps) {
        report.of(part).gap = gaps.spread();
    }
    report.lost = figures::lost(result.with_context(|| format!("session {}", report.sessions)));
    figures::finish(&report, options.common.json, report.lost.as_deref())
}

/// What goes in a session, one after the other, in any order.
fn draw(rng: &mut Rng, left: &mut [u32; 3]) -> Vec<Part> {
    let mut plan = Vec::new();
    while plan.len() < BLOWS_A_SESSION as usize && *left != [0; 3] {
        let mut at = rng.within(0..=u64::from(left.iter().sum::<u32>()) - 1) as u32;
        for (part, left) in PARTS.into_iter().zip(left.iter_mut()) {
            if at < *left {
                *left -= 1;
                plan.push(part);
                break;
            }
            at -= *left;
        }
    }
    plan
}

struct Session<'a> {
    // Ends before its files do.
    server: Option<Server>,
    load: Load,
    rng: Rng,
    setup: Setup,
    disk: Disk,
    network: &'a Network,
    _directory: TempDir,
}

impl<'a> Session<'a> {
    fn new(program: &Path, rng: &mut Rng, network: &'a Network) -> Result<Self> {
        let directory = TempDir::with_prefix("vringd-torture-")?;
        let disk = Disk::rbd(directory.path(), IMAGE_BYTES, Store::File)?;
        let ring = RingShape { size: rng.pick(&[32, 128, 256]), event_idx: rng.once_in(2) };
        let (queues, most) = (rng.within(1..=4) as u16, u64::from(ring.size / 4));
        let depth = rng.within(most / 2..=most) as u16;
        let workers = rng.pick(&["shared", "one", "2", "per-queue"]);
        let setup = Setup {
            program: program.to_owned(),
            directory: directory.path().to_owned(),
            served: disk.served(),
            queues,
            workers: workers.into(),
            poll: POLL,
            write_cache: WRITE_CACHE,
            protocol: Protocol::Blk,
            environment: Vec::new(),
        };
        let shape = Shape {
            queues,
            ring,
            indirect: rng.once_in(2),
            inflight: true,
            durability: Durability::Flushes,
            protocol: Protocol::Blk,
        };
        eprintln!("torture cluster: {queues} queues of {} at depth {depth}, workers {workers}", ring.size);
        let load = Load::new(shape, Checks::Data, depth, rng.next())?.patient(PATIENCE);
        let rng = Rng::new(rng.next(), 1);
        Ok(Self { server: None, load, rng, setup, disk, network, _directory: directory })
    }

    fn run(&mut self, plan: &[Part], report: &mut Report, gaps: &mut [Times; 3]) -> Result<()> {
        self.serve()?;
        for &part in plan {
            let daemon_dies = self.rng.once_in(DEATHS);
            let gap = self.blow(part, daemon_dies).with_context(|| {
                format!(
                    "{part}, for the {}. time{}",
                    report.of(part).count + 1,
                    if daemon_dies { ", with the daemon" } else { "" }
                )
            })?;
            let blows = report.of(part);
            blows.count += 1;
            blows.with_the_daemon += u32::from(daemon_dies);
            if !daemon_dies {
                gaps[part as usize].push(gap);
            }
        }
        session::finish(&mut self.load, &mut self.server, &mut self.disk, &self.setup.program)
    }

    /// Something goes under load and comes back, and so does what was asked meanwhile. The longest time in which nothing completed.
    fn blow(&mut self, part: Part, daemon_dies: bool) -> Result<Duration> {
        let (life, absence) = (self.rng.time(LIFE), self.rng.time(ABSENCE));
        self.load.run_for(life)?;
        if daemon_dies && part == Part::Network {
            // What is under way has arrived, nearly all of it. All that comes behind the cut is left to arrive late.
            self.load.drain()?;
        }
        self.load.take_gap();
        let (network, cluster) = (self.network, self.disk.cluster().context("the disk is in a cluster")?);
        self.load.run_while(|| part.goes(cluster, network))?;
        self.load.run_for(absence.min(SETTLED))?;
        let written = self.load.tally().writes;
        self.load.run_for(absence.saturating_sub(SETTLED))?;
        // Reads of what was never written are answered without the cluster.
        ensure!(
            part == Part::Monitor || self.load.tally().writes == written,
            "writes are answered: it is not away, and this proves nothing"
        );
        if daemon_dies {
            let server = self.server.as_mut().context("there is no server")?;
            server.kill()?;
            server.wait_killed()?;
            self.load.lose_server()?;
        }
        let cluster = self.disk.cluster().context("the disk is in a cluster")?;
        self.load.run_while(|| part.returns(cluster, network))?;
        if daemon_dies {
            self.serve().context("the next daemon")?;
        }
        if daemon_dies && part == Part::Network {
            self.load.run_for(LATE).context("what the dead daemon has sent may arrive")?;
        }
        let enough = self.load.tally().requests() + self.load.in_flight() + COMPLETIONS_AFTER;
        self.load.run(|load| load.tally().requests() >= enough).context("after it was back")?;
        Ok(self.load.take_gap())
    }

    /// Starts a daemon and connects. One that the cluster lets wait too long ends, and is started again, as service managers do.
    fn serve(&mut self) -> Result<()> {
        let start = Instant::now();
        let stream = loop {
            let server = self.server.insert(Server::start(&self.setup)?);
            match server.connect() {
                Err(_) if start.elapsed() < PATIENCE && server.output().contains(TOO_LATE) => {}
                connected => break connected?,
            }
        };
        self.load.connect(stream).context("connecting")
    }
}

impl Part {
    fn goes(self, cluster: &mut Cluster, network: &Network) -> Result<()> {
        match self {
            Self::Osd => cluster.kill_osd(),
            Self::Monitor => cluster.kill_monitor(),
            Self::Network => network.cut(),
        }
    }

    fn returns(self, cluster: &mut Cluster, network: &Network) -> Result<()> {
        match self {
            Self::Osd => cluster.start_osd(),
            Self::Monitor => cluster.start_monitor(),
            Self::Network => network.mend(),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Osd => "the OSD was killed",
            Self::Monitor => "the monitor was killed",
            Self::Network => "the network was cut",
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.lost.is_none() { "torture cluster: nothing lost" } else { "torture cluster: LOST" })?;
        let parts = [("kills of the OSD", self.osd_kills), ("of the monitor", self.monitor_kills), ("cuts", self.cuts)];
        for (name, Blows { count, with_the_daemon, gap }) in parts {
            write!(f, "; {count} {name}, {with_the_daemon} of them with the daemon")?;
            gap.map_or(Ok(()), |gap| write!(f, " (nothing completed for {gap})"))?;
        }
        let Tally { resubmitted, .. } = self.completed;
        write!(f, "; {} requests completed once each, {resubmitted} of them resubmitted", self.completed.requests())?;
        write!(f, "; seed {}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_goes_as_often_as_it_is_to() {
        let (mut left, mut went, mut rng) = ([7, 0, 30], [0; 3], Rng::new(1, 0));
        while left != [0; 3] {
            let plan = draw(&mut rng, &mut left);
            assert!(!plan.is_empty() && plan.len() <= BLOWS_A_SESSION as usize);
            plan.into_iter().for_each(|part| went[part as usize] += 1);
        }
        assert_eq!(went, [7, 0, 30]);
    }
}
