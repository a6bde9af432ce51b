//! A load that is checked: each request completed once, with success, with the right data.

use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use frontkit::blk::kind;
use serde::Serialize;

use super::connection::{Driver, Farewell, Geometry, Shape};
use super::contents::Contents;
use super::pattern::SECTOR_BYTES;
use super::ring::{DATA_BYTES_MAX, Used, Wanted};
use crate::rng::Rng;

/// How long nothing may complete while requests are in flight and a server is connected.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the load may overlook that it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How often a place for a request is looked for before others must come back first.
const ATTEMPTS: usize = 4;
/// Sectors of most requests.
const USUAL_SECTORS: u64 = 8;
const SECTORS_MAX: u64 = DATA_BYTES_MAX as u64 / SECTOR_BYTES as u64;
/// A serial number (virtio 1.3, 5.2.6) and a segment of WRITE_ZEROES, in bytes.
const ID_BYTES: u32 = 20;
const SEGMENT_BYTES: u32 = 16;

/// What is looked at in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checks {
    /// Everything. Requests of every kind and size.
    Data,
    /// Only the status, so that the frontend costs little. Reads and writes of 4 KiB; what is read means nothing.
    Status,
}

/// What completed.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Tally {
    /// Reads.
    pub(crate) reads: u64,
    /// Writes.
    pub(crate) writes: u64,
    /// Ranges of zeroes written.
    pub(crate) zeroes: u64,
    /// Flushes.
    pub(crate) flushes: u64,
    /// Questions for the serial number.
    pub(crate) ids: u64,
    /// Requests among these that were in flight when a server was lost and completed under a later one.
    pub(crate) resubmitted: u64,
}

impl Tally {
    /// Requests of all kinds.
    pub(crate) fn requests(&self) -> u64 {
        self.reads + self.writes + self.zeroes + self.flushes + self.ids
    }

    /// Adds another load's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.zeroes += other.zeroes;
        self.flushes += other.flushes;
        self.ids += other.ids;
        self.resubmitted += other.resubmitted;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Zeroes,
    Flush,
    Id,
}

impl Kind {
    /// Its number.
    fn number(self) -> u32 {
        match self {
            Self::Read => kind::IN,
            Self::Write => kind::OUT,
            Self::Flush => kind::FLUSH,
            Self::Id => kind::GET_ID,
            Self::Zeroes => kind::WRITE_ZEROES,
        }
    }
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct Request {
    kind: Kind,
    first: u64,
    count: u64,
    /// How many servers had been lost when it was made.
    lost_before: u64,
}

impl Request {
    fn bytes(&self) -> u32 {
        match self.kind {
            Kind::Read | Kind::Write => self.count as u32 * SECTOR_BYTES as u32,
            Kind::Zeroes => SEGMENT_BYTES,
            Kind::Flush => 0,
            Kind::Id => ID_BYTES,
        }
    }

    fn reads(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::Id)
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, count) = (self.first, self.count);
        match self.kind {
            Kind::Read => write!(f, "read of {count} sectors from {first} on"),
            Kind::Write => write!(f, "write of {count} sectors from {first} on"),
            Kind::Zeroes => write!(f, "zeroing of {count} sectors from {first} on"),
            Kind::Flush => f.write_str("flush"),
            Kind::Id => f.write_str("question for the serial number"),
        }
    }
}

/// Where requests come from.
#[derive(Clone, Copy, Debug)]
enum Plan {
    /// Drawn at random.
    Mix,
    /// Reads of the whole disk, once, from this sector on.
    Sweep(u64),
    /// None.
    Rest,
}

/// A load on one disk, over any number of servers, one after the other.
pub(crate) struct Load {
    driver: Driver,
    checks: Checks,
    depth: u16,
    run: u64,
    rng: Rng,
    plan: Plan,
    contents: Option<Contents>,
    /// By ring and slot.
    requests: Vec<Vec<Option<Request>>>,
    scratch: Vec<u8>,
    tally: Tally,
    lost: u64,
    /// Completions of each ring that a lost server had published and nobody has looked at.
    backlog: Vec<u16>,
    first_fresh: Option<Instant>,
    progress: Instant,
    longest_gap: Duration,
}

impl Load {
    /// A load that keeps up to `depth` requests in flight on each ring, repeatable from `seed`. The disk must be all
    /// zeroes, and whoever else writes to it is taken for an error.
    pub(crate) fn new(shape: Shape, checks: Checks, depth: u16, seed: u64) -> Result<Self> {
        let driver = Driver::new(shape)?;
        ensure!(depth > 0, "a load needs a depth of at least 1");
        let slots = driver.rings.iter().map(|ring| vec![None; usize::from(ring.slots())]);
        Ok(Self {
            requests: slots.collect(),
            backlog: vec![0; driver.rings.len()],
            driver,
            checks,
            depth,
            run: seed,
            rng: Rng::new(seed, 0x10ad),
            plan: Plan::Mix,
            contents: None,
            scratch: vec![0; DATA_BYTES_MAX as usize],
            tally: Tally::default(),
            lost: 0,
            first_fresh: None,
            progress: Instant::now(),
            longest_gap: Duration::ZERO,
        })
    }

    /// Connects to a server, the first one or the next.
    ///
    /// # Errors
    /// As [`Driver::connect`].
    pub(crate) fn connect(&mut self, stream: UnixStream) -> Result<()> {
        for (backlog, ring) in self.backlog.iter_mut().zip(&self.driver.rings) {
            *backlog = ring.queue.unseen();
        }
        self.first_fresh = None;
        self.driver.connect(stream)?;
        self.progress = Instant::now();
        if let (None, Some(geometry)) = (&self.contents, self.driver.geometry()) {
            self.contents = Some(Contents::new(self.run, geometry.sectors));
        }
        Ok(())
    }

    /// Ends the connection to a server that lives on, which completes what is in flight; see [`Driver::disconnect`].
    pub(crate) fn disconnect(&mut self, farewell: Farewell) -> Result<()> {
        self.driver.disconnect(farewell)
    }

    /// Takes note that the server is dead. Requests stay in flight.
    pub(crate) fn lose_server(&mut self) -> Result<()> {
        self.lost += 1;
        self.driver.disconnect(Farewell::Silent)
    }

    /// What completed so far.
    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// Requests made and not seen completed.
    pub(crate) fn in_flight(&self) -> u64 {
        self.driver.in_flight()
    }

    /// When the server that is connected now completed its first request, if that was seen already. What its
    /// predecessor had published does not count.
    pub(crate) fn first_fresh(&self) -> Option<Instant> {
        self.first_fresh
    }

    /// The longest time between two completions since this was asked last.
    pub(crate) fn take_gap(&mut self) -> Duration {
        std::mem::take(&mut self.longest_gap)
    }

    /// Keeps requests in flight until `until` says so, which is asked about every millisecond.
    ///
    /// # Errors
    /// A request failed, came twice, delivered something else than what was written, or nothing completes any more.
    pub(crate) fn run(&mut self, mut until: impl FnMut(&Self) -> bool) -> Result<()> {
        while !until(self) {
            let mut called = false;
            for at in 0..self.requests.len() {
                called |= self.collect(at)?;
                self.offer(at)?;
            }
            if !called {
                self.check_progress()?;
                self.driver.wait(LOOK_EVERY)?;
            }
        }
        Ok(())
    }

    /// Makes no more requests and waits until all have come back.
    ///
    /// # Errors
    /// As [`run`](Self::run); what does not come back within 20 s is lost.
    pub(crate) fn drain(&mut self) -> Result<()> {
        self.plan = Plan::Rest;
        self.run(|load| load.in_flight() == 0)?;
        self.plan = Plan::Mix;
        Ok(())
    }

    /// Drains, then reads all of the disk.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn read_back(&mut self) -> Result<()> {
        self.drain()?;
        self.plan = Plan::Sweep(0);
        self.run(|load| load.in_flight() == 0 && load.draws_nothing())?;
        self.plan = Plan::Mix;
        Ok(())
    }

    /// Compares the image behind the disk with what was acknowledged; see [`Contents::check_image`].
    pub(crate) fn check_image(&self, image: &Path) -> Result<()> {
        self.contents.as_ref().map_or(Ok(()), |contents| contents.check_image(image))
    }

    fn draws_nothing(&self) -> bool {
        match self.plan {
            Plan::Mix => false,
            Plan::Sweep(next) => self.contents.as_ref().is_none_or(|contents| next >= contents.sectors()),
            Plan::Rest => true,
        }
    }

    fn check_progress(&self) -> Result<()> {
        if self.in_flight() == 0 || self.progress.elapsed() < PATIENCE {
            return Ok(());
        }
        let seconds = PATIENCE.as_secs();
        for ring in &self.driver.rings {
            let (index, unseen) = (ring.index(), ring.queue.unseen());
            ensure!(
                unseen == 0,
                "ring {index}: {unseen} completions wait for {seconds} s and no call came: it was lost"
            );
        }
        let first = self.requests.iter().flatten().flatten().next();
        let first = first.map_or_else(String::new, |request| format!(", a {request} among them"));
        bail!("{} requests did not complete within {seconds} s{first}: they are lost", self.in_flight())
    }

    /// Looks at what came back on a ring that was called. Whether it was.
    fn collect(&mut self, at: usize) -> Result<bool> {
        if !self.driver.rings[at].eventfds.take_call() {
            return Ok(false);
        }
        loop {
            self.driver.rings[at].queue.disarm();
            while let Some(used) = self.driver.rings[at].take_used()? {
                self.finish(at, used)?;
            }
            if self.driver.rings[at].queue.arm() {
                return Ok(true);
            }
        }
    }

    fn finish(&mut self, at: usize, used: Used) -> Result<()> {
        let ring = &self.driver.rings[at];
        let request = self.requests[at].get_mut(usize::from(used.slot)).and_then(Option::take);
        let request = request.with_context(|| format!("ring {at}: slot {} came back and had no request", used.slot))?;
        match ring.status(used.slot) {
            Some(0) => {}
            Some(status) => bail!("ring {at}: the {request} failed with status {status}"),
            None => bail!("ring {at}: the {request} was completed without a status: it came before it was served"),
        }
        let delivered = if request.reads() { request.bytes() } else { 0 };
        ensure!(
            used.written == delivered + 1,
            "ring {at}: the {request} wrote {} bytes, not {}",
            used.written,
            delivered + 1
        );
        if let (Checks::Data, Some(contents)) = (self.checks, &mut self.contents) {
            match request.kind {
                Kind::Read => {
                    let data = &mut self.scratch[..request.bytes() as usize];
                    ring.data(used.slot, data);
                    contents.end_read(request.first, data).with_context(|| format!("ring {at}: the {request}"))?;
                }
                Kind::Write | Kind::Zeroes => contents.end_write(request.first, request.count),
                Kind::Flush | Kind::Id => {}
            }
        }
        self.count(at, &request);
        Ok(())
    }

    fn count(&mut self, at: usize, request: &Request) {
        let counter = match request.kind {
            Kind::Read => &mut self.tally.reads,
            Kind::Write => &mut self.tally.writes,
            Kind::Zeroes => &mut self.tally.zeroes,
            Kind::Flush => &mut self.tally.flushes,
            Kind::Id => &mut self.tally.ids,
        };
        *counter += 1;
        let now = Instant::now();
        self.longest_gap = self.longest_gap.max(now.duration_since(self.progress));
        self.progress = now;
        if self.backlog[at] > 0 {
            self.backlog[at] -= 1;
        } else {
            self.first_fresh.get_or_insert(now);
            self.tally.resubmitted += u64::from(request.lost_before < self.lost);
        }
    }

    /// Makes requests as far as the depth allows.
    fn offer(&mut self, at: usize) -> Result<()> {
        while self.driver.rings[at].queue.in_flight() < self.depth {
            let Some(slot) = self.driver.rings[at].free_slot() else { break };
            let Some((request, generation)) = self.draw() else { break };
            let wanted = self.prepare(at, slot, &request, generation);
            self.requests[at][usize::from(slot)] = Some(request);
            self.driver.rings[at].make(&wanted);
        }
        self.driver.rings[at].show()
    }

    /// The next request, and the generation of what it writes.
    fn draw(&mut self) -> Option<(Request, u64)> {
        let geometry = self.driver.geometry()?;
        let contents = self.contents.as_mut()?;
        let lost_before = self.lost;
        match &mut self.plan {
            Plan::Rest => None,
            Plan::Sweep(next) => {
                let (first, count) = (*next, SECTORS_MAX.min(geometry.sectors.saturating_sub(*next)));
                if count == 0 || !contents.begin_read(first, count) {
                    return None;
                }
                *next += count;
                Some((Request { kind: Kind::Read, first, count, lost_before }, 0))
            }
            Plan::Mix => {
                let (data, rng) = (self.checks == Checks::Data, &mut self.rng);
                (0..ATTEMPTS).find_map(|_| {
                    let kind = if data { kind(rng, geometry) } else { rng.pick(&[Kind::Read, Kind::Write]) };
                    let (first, count) = place(rng, geometry, data);
                    let request = Request { kind, first, count, lost_before };
                    let generation = match kind {
                        _ if !data => Some(0),
                        Kind::Read => contents.begin_read(first, count).then_some(0),
                        Kind::Write => contents.begin_write(first, count, false),
                        Kind::Zeroes => contents.begin_write(first, count, true),
                        Kind::Flush | Kind::Id => Some(0),
                    };
                    Some((request, generation?))
                })
            }
        }
    }

    /// Puts the data of a request into its slot and says how its chain is to look.
    fn prepare(&mut self, at: usize, slot: u16, request: &Request, generation: u64) -> Wanted {
        let (ring, bytes) = (&self.driver.rings[at], request.bytes());
        let mut wanted = Wanted {
            kind: request.kind.number(),
            sector: if matches!(request.kind, Kind::Read | Kind::Write) { request.first } else { 0 },
            bytes,
            from_device: request.reads(),
            torn_at: 0,
            indirect: false,
            turn: 0,
        };
        let (Checks::Data, Some(contents)) = (self.checks, &self.contents) else { return wanted };
        match request.kind {
            Kind::Write => {
                let data = &mut self.scratch[..bytes as usize];
                contents.fill(data, request.first, generation);
                ring.put_data(slot, data);
            }
            Kind::Zeroes => {
                let mut segment = [0; SEGMENT_BYTES as usize];
                segment[..8].copy_from_slice(&request.first.to_le_bytes());
                segment[8..12].copy_from_slice(&(request.count as u32).to_le_bytes());
                ring.put_data(slot, &segment);
            }
            Kind::Read | Kind::Id => ring.spoil_data(slot, bytes),
            Kind::Flush => {}
        }
        wanted.indirect = self.driver.shape().indirect && self.rng.once_in(2);
        wanted.turn = self.rng.within(0..=3) as u16;
        if self.rng.once_in(3) {
            wanted.torn_at = match request.kind {
                Kind::Read | Kind::Write => SECTOR_BYTES as u32 * self.rng.within(0..=request.count) as u32,
                _ => self.rng.within(0..=u64::from(bytes)) as u32,
            };
        }
        wanted
    }
}

fn kind(rng: &mut Rng, geometry: Geometry) -> Kind {
    match rng.within(1..=20) {
        1 if geometry.write_zeroes => Kind::Zeroes,
        2 if geometry.flush => Kind::Flush,
        3 => Kind::Id,
        4..=11 => Kind::Read,
        _ => Kind::Write,
    }
}

/// A run of whole blocks inside the disk: first sector and number.
fn place(rng: &mut Rng, geometry: Geometry, any_size: bool) -> (u64, u64) {
    let block = geometry.block_sectors;
    let blocks = geometry.sectors / block;
    let usual = (USUAL_SECTORS / block).max(1);
    let most = (SECTORS_MAX / block).clamp(1, blocks);
    let count = match rng.within(1..=4) {
        1 if any_size => rng.within(1..=most),
        2 if any_size => rng.within(1..=(2 * usual).min(most)),
        _ => usual.min(most),
    };
    let first = rng.within(0..=blocks - count);
    (first * block, count * block)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { sectors: 1000, block_sectors: 8, write_zeroes: true, flush: true };

    #[test]
    fn requests_are_whole_blocks_inside_the_disk() {
        let mut rng = Rng::new(3, 0);
        let mut sizes = std::collections::BTreeSet::new();
        for _ in 0..2000 {
            let (first, count) = place(&mut rng, GEOMETRY, true);
            assert!(first % 8 == 0 && count % 8 == 0 && count > 0 && first + count <= GEOMETRY.sectors);
            assert!(count <= SECTORS_MAX);
            sizes.insert(count);
        }
        assert!(sizes.len() > 10, "{sizes:?}");
        let tiny = Geometry { sectors: 1, block_sectors: 1, ..GEOMETRY };
        assert_eq!(place(&mut rng, tiny, true), (0, 1));
    }

    #[test]
    fn only_what_the_disk_takes_is_asked_for() {
        let mut rng = Rng::new(3, 0);
        let plain = Geometry { write_zeroes: false, flush: false, ..GEOMETRY };
        let kinds: Vec<Kind> = (0..500).map(|_| kind(&mut rng, plain)).collect();
        assert!(!kinds.contains(&Kind::Zeroes) && !kinds.contains(&Kind::Flush));
        assert!(kinds.contains(&Kind::Read) && kinds.contains(&Kind::Write) && kinds.contains(&Kind::Id));
    }

    #[test]
    fn a_load_without_a_server_waits() {
        let shape = Shape {
            queues: 2,
            ring: crate::frontend::RingShape { size: 16, event_idx: true },
            indirect: false,
            inflight: true,
            write_cache_off: false,
        };
        let mut load = Load::new(shape, Checks::Data, 4, 1).unwrap();
        let mut turns = 0;
        load.run(|load| {
            turns += 1;
            assert_eq!(load.in_flight(), 0, "the disk's size is not known yet");
            turns > 3
        })
        .unwrap();
    }
}
