//! Upgrades under a client of a directory, which checks every answer.
//!
//! What the next program has to know grows with what a guest knows, so the client looks up as many files as it is told before
//! its load begins. The load writes, reads, makes, renames, finds and removes; to it an upgrade is one answer that takes
//! longer. It never connects again, and in the end every file still has the node that it had.

use std::fmt;
use std::fs::{self, File};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ::tests::fuse::{Client, ROOT, Reply, create_body, name_body, op, read_body, release_body, write_body};
use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use tempfile::TempDir;

use crate::figures::{Spread, Times};
use crate::frontend::Protocol;
use crate::rng::{Rng, mix};
use crate::server::{POLL, Served, Server, Setup, WRITE_CACHE, went_on};

/// Stream of the seed, beside those of the other kinds.
const STREAM: u64 = 2 << 32;
const UPGRADES_A_SESSION: u32 = 10;
/// How long there is load before an upgrade, and after it.
const LIFE: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(50);
/// Of the file that is written and read all the time.
const BLOCKS: u64 = 64;
const BLOCK: usize = 4096;
/// What is held open, and has no name any more.
const UNLINKED: &[u8] = b"still here";
/// `struct fuse_entry_out`, behind which CREATE answers with the handle.
const ENTRY_BYTES: usize = 128;
/// Where `struct fuse_attr_out` has the file's size.
const SIZE_AT: usize = 24;

/// What came of it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    /// Times the program was replaced.
    upgrades: u32,
    /// Clients, each with a server of its own.
    sessions: u32,
    /// Files that each client knew besides those of its load.
    nodes: u32,
    /// Requests that were answered as they should.
    requests: u64,
    /// The longest time between two answers around an upgrade, as the client saw it.
    pause: Option<Spread>,
    /// From the first ring halted to the last one running again, as the server measured it.
    pause_told: Option<Spread>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { upgrades, nodes, requests, .. } = self;
        write!(f, "{upgrades} upgrades with {nodes} files known, {requests} requests answered right")?;
        self.pause.map_or(Ok(()), |pause| write!(f, ", pause {pause}"))?;
        self.pause_told.map_or(Ok(()), |told| write!(f, " (by the server's clock: {told})"))
    }
}

/// Times that become a report's spreads.
#[derive(Default)]
struct Pauses {
    seen: Times,
    told: Times,
}

/// Upgrades `rounds` times under clients that know `nodes` files. The report tells how far it came.
pub(super) fn run(program: &Path, rounds: u32, nodes: u32, seed: u64) -> (Report, Result<()>) {
    let mut report = Report { nodes, ..Report::default() };
    let mut pauses = Pauses::default();
    let result = sessions(program, rounds, seed, &mut report, &mut pauses);
    report.pause = pauses.seen.spread();
    report.pause_told = pauses.told.spread();
    (report, result)
}

fn sessions(program: &Path, rounds: u32, seed: u64, report: &mut Report, pauses: &mut Pauses) -> Result<()> {
    let place = TempDir::with_prefix("vringd-torture-")?;
    let shared = place.path().join("shared");
    fs::create_dir(&shared)?;
    make_files(&shared, report.nodes).context("making the files that are known")?;
    let by_descriptors = report.nodes < descriptors_max() / 2;
    while report.upgrades < rounds {
        let way = Way::draw(report.sessions, by_descriptors, seed);
        eprintln!("torture upgrade: from upgrade {} on: a directory, {way}", report.upgrades + 1);
        report.sessions += 1;
        let last = rounds.min(report.upgrades + UPGRADES_A_SESSION);
        // A client without a server gives up with a panic: here it is one more way to lose something.
        let ran = thread::scope(|scope| {
            let session = scope.spawn(|| session(program, place.path(), &way, last, report, pauses));
            session.join().unwrap_or_else(|panicked| Err(gave_up(panicked.as_ref())))
        });
        ran.with_context(|| format!("upgrade {}, a directory, {way}", report.upgrades))?;
    }
    Ok(())
}

fn gave_up(panicked: &(dyn std::any::Any + Send)) -> anyhow::Error {
    let said = panicked.downcast_ref::<String>().map(String::as_str);
    anyhow!("the client gave up: {}", said.or_else(|| panicked.downcast_ref().copied()).unwrap_or("it panicked"))
}

/// Files that are as long as their number, and take no room.
fn make_files(directory: &Path, count: u32) -> Result<()> {
    (0..count).try_for_each(|number| Ok(File::create_new(directory.join(name(number)))?.set_len(number.into())?))
}

/// How many descriptors the server may have.
fn descriptors_max() -> u32 {
    let limit = getrlimit(Resource::Nofile).maximum;
    limit.map_or(u32::MAX, |limit| limit.try_into().unwrap_or(u32::MAX))
}

fn name(number: u32) -> String {
    format!("known-{number}")
}

/// One way to serve a directory.
#[derive(Clone, Debug)]
struct Way {
    seed: u64,
    file_handles: &'static str,
    execution: &'static str,
    workers: &'static str,
}

impl Way {
    /// What nodes are held by and ways to execute take turns; the rest is drawn. So many nodes may be more than can be held
    /// `by_descriptors`.
    fn draw(number: u32, by_descriptors: bool, seed: u64) -> Self {
        let mut rng = Rng::new(seed, STREAM + u64::from(number));
        Self {
            file_handles: if by_descriptors && number.is_multiple_of(2) { "never" } else { "prefer" },
            execution: ["auto", "uring", "pool=2", "inline"][number as usize / 2 % 4],
            workers: rng.pick(&["shared", "one", "2", "per-queue"]),
            seed: rng.next(),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file_handles, execution, workers, .. } = self;
        write!(f, "{execution}, workers {workers}, file handles: {file_handles}")
    }
}

fn session(program: &Path, place: &Path, way: &Way, last: u32, report: &mut Report, pauses: &mut Pauses) -> Result<()> {
    let served =
        Served::Directory { path: place.join("shared"), file_handles: way.file_handles, execution: way.execution };
    let setup = Setup {
        program: program.to_owned(),
        directory: place.to_owned(),
        served,
        queues: 1,
        workers: way.workers.into(),
        poll: POLL,
        write_cache: WRITE_CACHE,
        protocol: Protocol::Blk,
        environment: Vec::new(),
    };
    let mut server = Server::start(&setup)?;
    drop(server.connect()?);
    let mut rng = Rng::new(way.seed, 1);
    let mut guest = Guest::begin(&setup.socket(), report.nodes)?;
    let mut upgrades = 0;
    let result = (|| {
        while report.upgrades < last {
            upgrades += 1;
            let (before, after, pid) = (rng.time(LIFE), rng.time(LIFE), server.pid()?);
            guest.work_for(&mut rng, before)?;
            let (seen, told) = guest.under_upgrade(&mut rng, || went_on(&setup.upgrade(&[])?, upgrades, pid))?;
            pauses.seen.push(seen);
            pauses.told.push(told);
            report.upgrades += 1;
            guest.work_for(&mut rng, after)?;
            server.check_alive()?;
        }
        guest.end()
    })();
    report.requests += guest.requests;
    // What the server said is of use if something went wrong.
    result.map_err(|error| match server.output() {
        said if said.trim().is_empty() => error,
        said => anyhow!("{error:#}; the server said:\n{said}"),
    })?;
    drop(guest);
    server.stop()
}

/// A client, and what it knows.
struct Guest {
    client: Client,
    /// The nodes of the files that it knows, by number.
    nodes: Vec<u64>,
    /// The file that is written and read: its node and handle, and what it holds.
    file: (u64, u64),
    model: Vec<u8>,
    unlinked: (u64, u64),
    rounds: u64,
    requests: u64,
    answered: Instant,
    gap: Duration,
}

impl Guest {
    fn begin(socket: &Path, nodes: u32) -> Result<Self> {
        let client = Client::begin(socket)?;
        let mut guest = Self {
            client,
            nodes: Vec::new(),
            file: (0, 0),
            model: vec![0; BLOCKS as usize * BLOCK],
            unlinked: (0, 0),
            rounds: 0,
            requests: 0,
            answered: Instant::now(),
            gap: Duration::ZERO,
        };
        guest.nodes = (0..nodes).map(|number| guest.lookup(&name(number))).collect::<Result<_>>()?;
        guest.unlinked = guest.create("unlinked")?;
        guest.write(guest.unlinked, 0, UNLINKED)?;
        guest.call(op::UNLINK, ROOT, &name_body(b"unlinked"))?;
        guest.file = guest.create("data")?;
        Ok(guest)
    }

    /// Asks; any error is a loss.
    fn call(&mut self, opcode: u32, node: u64, body: &[u8]) -> Result<Reply> {
        let reply = self.client.call(opcode, node, body)?.ok()?;
        self.requests += 1;
        let now = Instant::now();
        self.gap = self.gap.max(now - self.answered);
        self.answered = now;
        Ok(reply)
    }

    fn lookup(&mut self, name: &str) -> Result<u64> {
        let reply = self.call(op::LOOKUP, ROOT, &name_body(name.as_bytes()));
        Ok(reply.with_context(|| format!("looking up {name}"))?.u64_at(0))
    }

    fn create(&mut self, name: &str) -> Result<(u64, u64)> {
        let reply = self.call(op::CREATE, ROOT, &create_body(libc::O_RDWR, 0o644, name.as_bytes()));
        let made = reply.with_context(|| format!("making {name}"))?;
        Ok((made.u64_at(0), made.u64_at(ENTRY_BYTES)))
    }

    fn write(&mut self, (node, handle): (u64, u64), offset: u64, data: &[u8]) -> Result<()> {
        let body = write_body(handle, offset, data.len() as u32, data);
        let written = self.call(op::WRITE, node, &body)?.u32_at(0);
        ensure!(written as usize == data.len(), "{written} bytes of {} were written", data.len());
        Ok(())
    }

    fn read(&mut self, (node, handle): (u64, u64), offset: u64, len: usize) -> Result<Vec<u8>> {
        Ok(self.call(op::READ, node, &read_body(handle, offset, len as u32))?.body)
    }

    /// Loads for a time.
    fn work_for(&mut self, rng: &mut Rng, time: Duration) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < time {
            self.work(rng)?;
        }
        Ok(())
    }

    /// Loads while `upgrade` runs: the longest time between two answers, and what `upgrade` says of it.
    fn under_upgrade(
        &mut self,
        rng: &mut Rng,
        upgrade: impl FnOnce() -> Result<Duration> + Send,
    ) -> Result<(Duration, Duration)> {
        let upgraded = AtomicBool::new(false);
        self.work(rng)?;
        self.gap = Duration::ZERO;
        let told = thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let result = upgrade();
                upgraded.store(true, Ordering::Release);
                result
            });
            while !upgraded.load(Ordering::Acquire) {
                self.work(rng).context("during the upgrade")?;
            }
            asking.join().map_err(|_| anyhow!("the thread that asks panicked"))?
        })?;
        // The first answer of the next program may come behind the word that it runs.
        self.work(rng).context("after the upgrade")?;
        Ok((self.gap, told))
    }

    /// A round: data, names, and a file that it knows.
    fn work(&mut self, rng: &mut Rng) -> Result<()> {
        self.rounds += 1;
        let (round, file) = (self.rounds, self.file);
        let at = rng.within(0..=BLOCKS - 1) as usize * BLOCK;
        for (word, place) in self.model[at..at + BLOCK].chunks_exact_mut(8).enumerate() {
            place.copy_from_slice(&mix(round << 16 | word as u64).to_le_bytes());
        }
        let data = self.model[at..at + BLOCK].to_vec();
        self.write(file, at as u64, &data).with_context(|| format!("round {round}"))?;
        let at = rng.within(0..=BLOCKS - 1) as usize * BLOCK;
        let read = self.read(file, at as u64, BLOCK).with_context(|| format!("round {round}"))?;
        // What was not written yet lies behind the end, or is a hole.
        let expected = &self.model[at..at + BLOCK];
        let same = expected.starts_with(&read) && expected[read.len()..].iter().all(|&byte| byte == 0);
        ensure!(same, "round {round}: other data at {at}");

        let (old, new) = (format!("old-{round}"), format!("new-{round}"));
        let (node, handle) = self.create(&old)?;
        self.call(op::RELEASE, node, &release_body(handle))?;
        let names = [name_body(old.as_bytes()), name_body(new.as_bytes())].concat();
        self.call(op::RENAME, ROOT, &[&ROOT.to_le_bytes()[..], &names].concat())?;
        ensure!(self.lookup(&new)? == node, "round {round}: another node has the name");
        self.call(op::UNLINK, ROOT, &name_body(new.as_bytes()))?;
        self.client.forget(node, 2);

        if let Some(last) = (self.nodes.len() as u64).checked_sub(1) {
            let number = rng.within(0..=last) as usize;
            let size = self.call(op::GETATTR, self.nodes[number], &[0; 16])?.u64_at(SIZE_AT);
            ensure!(size == number as u64, "round {round}: {} has {size} bytes", name(number as u32));
        }
        let kept = self.read(self.unlinked, 0, BLOCK)?;
        ensure!(kept == UNLINKED, "round {round}: the file without a name holds {kept:?}");
        Ok(())
    }

    /// All data, and every file that it knows.
    fn end(&mut self) -> Result<()> {
        let mut held = self.read(self.file, 0, self.model.len())?;
        held.resize(self.model.len(), 0);
        ensure!(held == self.model, "the file has other data in the end");
        for number in 0..self.nodes.len() {
            let (name, node) = (name(number as u32), self.nodes[number]);
            ensure!(self.lookup(&name)? == node, "{name} has another node");
        }
        self.call(op::UNLINK, ROOT, &name_body(b"data"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pair_of_ways_comes_up_in_eight_sessions() {
        let pairs = (0..8).map(|number| Way::draw(number, true, 3)).map(|way| (way.file_handles, way.execution));
        assert_eq!(pairs.collect::<BTreeSet<_>>().len(), 8);
        assert!((0..8).all(|number| Way::draw(number, false, 3).file_handles == "prefer"));
    }
}
