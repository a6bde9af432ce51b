//! A load that is checked: each request completed once, with success, with the right data.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Serialize;

use super::connection::{Driver, Farewell, Shape};
use super::contents::Contents;
use super::language::{Answered, Geometry, Verdict};
use super::pattern::SECTOR_BYTES;
use super::request::{Kind, Question, Request};
use super::ring::{DATA_BYTES_MAX, Used, Wanted};
use crate::rng::Rng;

/// How long nothing may complete while requests are in flight and a server is connected, if nobody says otherwise.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the load may overlook that it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How often a place for a request is looked for before others must come back first.
const ATTEMPTS: usize = 4;
/// Sectors of most requests.
const USUAL_SECTORS: u64 = 8;
const SECTORS_MAX: u64 = DATA_BYTES_MAX as u64 / SECTOR_BYTES as u64;
/// How often the key of a reservation is changed: once in so many requests of the rare kinds.
const RESERVATION_CHANGES: u64 = 4;
/// What is looked at of a question's answer, in bytes.
const QUESTION_BYTES: usize = 64;

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
    /// Ranges given up.
    pub(crate) discards: u64,
    /// Comparisons with writes.
    pub(crate) swaps: u64,
    /// Questions about the disk.
    pub(crate) questions: u64,
    /// Changes of the reservation's key.
    pub(crate) reservations: u64,
    /// Requests among these that were in flight when a server was lost and completed under a later one.
    pub(crate) resubmitted: u64,
    /// Requests that were not begun, since the device had something else to say first; they were made again.
    pub(crate) told: u64,
    /// Requests that an earlier server may have done, as a later one has said.
    pub(crate) uncertain: u64,
}

impl Tally {
    /// Requests of all kinds.
    pub(crate) fn requests(&self) -> u64 {
        let data = self.reads + self.writes + self.zeroes + self.discards + self.swaps + self.flushes;
        data + self.questions + self.reservations
    }

    /// Adds another load's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.zeroes += other.zeroes;
        self.discards += other.discards;
        self.swaps += other.swaps;
        self.flushes += other.flushes;
        self.questions += other.questions;
        self.reservations += other.reservations;
        self.resubmitted += other.resubmitted;
        self.told += other.told;
        self.uncertain += other.uncertain;
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
    /// See [`Contents`].
    forgets: bool,
    /// By ring and slot.
    requests: Vec<Vec<Option<Request>>>,
    /// What has come back undone, to be made again.
    again: VecDeque<Request>,
    /// What is asked before all that is drawn.
    questions: VecDeque<Question>,
    scratch: Vec<u8>,
    tally: Tally,
    lost: u64,
    /// Servers that had been lost when it connected last.
    lost_then: u64,
    first_fresh: Option<Instant>,
    patience: Duration,
    progress: Instant,
    longest_gap: Duration,
}

impl Load {
    /// A load that keeps up to `depth` requests in flight on each ring, repeatable from `seed`. The disk must be all
    /// zeroes, and whoever else writes to it is taken for an error.
    pub(crate) fn new(shape: Shape, checks: Checks, depth: u16, seed: u64) -> Result<Self> {
        let driver = Driver::new(shape, seed)?;
        ensure!(depth > 0, "a load needs a depth of at least 1");
        let slots = driver.rings.iter().map(|ring| vec![None; usize::from(ring.slots())]);
        Ok(Self {
            requests: slots.collect(),
            again: VecDeque::new(),
            questions: VecDeque::new(),
            driver,
            checks,
            depth,
            run: seed,
            rng: Rng::new(seed, 0x10ad),
            plan: Plan::Mix,
            contents: None,
            forgets: false,
            scratch: vec![0; DATA_BYTES_MAX as usize],
            tally: Tally::default(),
            lost: 0,
            lost_then: 0,
            first_fresh: None,
            patience: PATIENCE,
            progress: Instant::now(),
            longest_gap: Duration::ZERO,
        })
    }

    /// The same on a disk with a log in front, which may forget what it has of a sector that was given up, or on one without.
    pub(crate) fn forgetting(self, forgets: bool) -> Self {
        Self { forgets, ..self }
    }

    /// The same, of which nothing may complete for that long.
    pub(crate) fn patient(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Connects to a server, the first one or the next.
    ///
    /// # Errors
    /// As [`Driver::connect`].
    pub(crate) fn connect(&mut self, stream: UnixStream) -> Result<()> {
        self.first_fresh = None;
        self.driver.language.begin_life(self.lost > self.lost_then);
        self.lost_then = self.lost;
        self.driver.connect(stream)?;
        self.progress = Instant::now();
        if let (None, Some(geometry)) = (&self.contents, self.driver.geometry()) {
            self.contents = Some(Contents::new(self.run, geometry.sectors, self.forgets));
        }
        self.ask_everything();
        Ok(())
    }

    /// Asks all that the disk can be asked, before it makes other requests.
    pub(crate) fn ask_everything(&mut self) {
        if self.checks == Checks::Data {
            self.questions = self.driver.language.questions().iter().copied().collect();
        }
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

    /// Requests made and not seen completed, those included that are to be made again.
    pub(crate) fn in_flight(&self) -> u64 {
        self.driver.in_flight() + self.again.len() as u64
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

    /// As [`run`](Self::run), for a while.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn run_for(&mut self, time: Duration) -> Result<()> {
        let start = Instant::now();
        self.run(|_| start.elapsed() >= time)
    }

    /// As [`run`](Self::run), while something else is done on a thread of its own.
    ///
    /// # Errors
    /// As [`run`](Self::run), or what that says.
    pub(crate) fn run_while<T: Send>(&mut self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            let working = scope.spawn(work);
            let ran = self.run(|_| working.is_finished());
            let done = working.join().map_err(|_| anyhow!("a thread beside the load panicked"));
            ran?;
            done?
        })
    }

    /// Makes no more requests and waits until all have come back.
    ///
    /// # Errors
    /// As [`run`](Self::run); what does not come back in time is lost.
    pub(crate) fn drain(&mut self) -> Result<()> {
        self.plan = Plan::Rest;
        self.run(|load| load.in_flight() == 0)?;
        self.plan = Plan::Mix;
        self.driver.language.check_settled()
    }

    /// Drains, then reads all of the disk.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub(crate) fn read_back(&mut self) -> Result<()> {
        self.drain()?;
        self.ask_everything();
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
            Plan::Sweep(next) => {
                let is_read = |contents: &Contents| next >= contents.sectors();
                self.questions.is_empty() && self.contents.as_ref().is_none_or(is_read)
            }
            Plan::Rest => true,
        }
    }

    fn check_progress(&self) -> Result<()> {
        if self.in_flight() == 0 || self.progress.elapsed() < self.patience {
            return Ok(());
        }
        let seconds = self.patience.as_secs();
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
        let resubmitted = request.lost_before < self.lost;
        let answer = ring.answer(used.slot);
        let how = Answered { written: used.written, earlier: used.earlier, resubmitted };
        let verdict = self.driver.language.judge(&request, answer.bytes(), how);
        let verdict = verdict.with_context(|| format!("ring {at}: the {request}"))?;
        if let (Checks::Data, Verdict::Done) = (self.checks, verdict) {
            self.look_at_data(at, &used, &request).with_context(|| format!("ring {at}: the {request}"))?;
        }
        if self.driver.rings.iter().all(|ring| ring.backlog() == 0) {
            self.driver.language.earlier_is_over();
        }
        self.note_time(&used);
        match (verdict, request.kind) {
            (Verdict::Done, _) => self.count(&used, &request),
            (Verdict::NotBegun, kind) => {
                self.tally.told += 1;
                // The next change has another key.
                self.again.extend((kind != Kind::Reserve).then_some(request));
            }
            (Verdict::MayBeDone, kind) => {
                self.tally.uncertain += 1;
                // Whatever is there now is written over.
                self.again.extend((kind == Kind::Swap).then_some(Request { kind: Kind::Write, ..request }));
            }
        }
        Ok(())
    }

    fn look_at_data(&mut self, at: usize, used: &Used, request: &Request) -> Result<()> {
        let Some(contents) = &mut self.contents else { return Ok(()) };
        match request.kind {
            Kind::Read => {
                let data = &mut self.scratch[..request.sector_bytes() as usize];
                self.driver.rings[at].data(used.slot, data);
                contents.end_read(request.first, data)?;
            }
            Kind::Write | Kind::Zeroes | Kind::Swap => contents.end_write(request.first, request.count),
            Kind::Discard => contents.end_discard(request.first, request.count),
            Kind::Ask(question) => {
                let data = &mut self.scratch[..QUESTION_BYTES];
                self.driver.rings[at].data(used.slot, data);
                self.driver.language.judge_data(question, data, request.moment, used.earlier)?;
            }
            Kind::Flush | Kind::Reserve => {}
        }
        Ok(())
    }

    fn note_time(&mut self, used: &Used) {
        let now = Instant::now();
        self.longest_gap = self.longest_gap.max(now.duration_since(self.progress));
        self.progress = now;
        if !used.earlier {
            self.first_fresh.get_or_insert(now);
        }
    }

    fn count(&mut self, used: &Used, request: &Request) {
        let counter = match request.kind {
            Kind::Read => &mut self.tally.reads,
            Kind::Write => &mut self.tally.writes,
            Kind::Zeroes => &mut self.tally.zeroes,
            Kind::Discard => &mut self.tally.discards,
            Kind::Swap => &mut self.tally.swaps,
            Kind::Flush => &mut self.tally.flushes,
            Kind::Ask(_) => &mut self.tally.questions,
            Kind::Reserve => &mut self.tally.reservations,
        };
        *counter += 1;
        self.tally.resubmitted += u64::from(!used.earlier && request.lost_before < self.lost);
    }

    /// Makes requests as far as the depth allows.
    fn offer(&mut self, at: usize) -> Result<()> {
        while self.driver.rings[at].queue.in_flight() < self.depth {
            let Some(slot) = self.driver.rings[at].free_slot() else { break };
            let lost_before = self.lost;
            let moment = self.driver.language.moment();
            let again = self.again.pop_front().map(|request| Request { lost_before, moment, ..request });
            let Some(request) = again.or_else(|| self.draw()) else { break };
            let wanted = self.prepare(at, slot, &request);
            self.requests[at][usize::from(slot)] = Some(request);
            self.driver.rings[at].make(&wanted);
        }
        self.driver.rings[at].show()
    }

    /// The next request.
    fn draw(&mut self) -> Option<Request> {
        let geometry = self.driver.geometry()?;
        let contents = self.contents.as_mut()?;
        let lost_before = self.lost;
        let moment = self.driver.language.moment();
        let of = |kind, first, count, generation| Request { kind, first, count, generation, lost_before, moment };
        match &mut self.plan {
            Plan::Rest => None,
            Plan::Mix | Plan::Sweep(_) if !self.questions.is_empty() => {
                self.questions.pop_front().map(|question| of(Kind::Ask(question), 0, 0, 0))
            }
            Plan::Sweep(next) => {
                let (first, count) = (*next, SECTORS_MAX.min(geometry.sectors.saturating_sub(*next)));
                if count == 0 || !contents.begin_read(first, count) {
                    return None;
                }
                *next += count;
                Some(of(Kind::Read, first, count, 0))
            }
            Plan::Mix if self.checks == Checks::Status => {
                let kind = self.rng.pick(&[Kind::Read, Kind::Write]);
                let (first, count) = place(&mut self.rng, geometry, false);
                Some(of(kind, first, count, 0))
            }
            Plan::Mix => {
                let (rng, language) = (&mut self.rng, &self.driver.language);
                (0..ATTEMPTS).find_map(|_| {
                    let kind = kind(rng, geometry, language.questions(), language.may_reserve());
                    let (first, count) = place(rng, geometry, true);
                    let count = if kind == Kind::Swap { count.min(geometry.swap_sectors) } else { count };
                    let generation = match kind {
                        Kind::Read => contents.begin_read(first, count).then_some(0),
                        Kind::Write => contents.begin_write(first, count, false),
                        Kind::Swap => contents.begin_swap(first, count),
                        Kind::Zeroes | Kind::Discard => contents.begin_write(first, count, true),
                        Kind::Flush | Kind::Ask(_) | Kind::Reserve => Some(0),
                    };
                    Some(of(kind, first, count, generation?))
                })
            }
        }
    }

    /// Puts the data of a request into its slot and says how its chain is to look.
    fn prepare(&mut self, at: usize, slot: u16, request: &Request) -> Wanted {
        let mut wanted = self.driver.language.encode(request, &mut self.rng, &mut self.scratch);
        let (ring, bytes) = (&self.driver.rings[at], wanted.bytes);
        let (Checks::Data, Some(contents)) = (self.checks, &self.contents) else { return wanted };
        let data = &mut self.scratch[..bytes as usize];
        match request.kind {
            Kind::Write => contents.fill(data, request.first, request.generation),
            Kind::Swap => {
                let (expected, new) = data.split_at_mut(request.sector_bytes() as usize);
                contents.fill_known(expected, request.first);
                contents.fill(new, request.first, request.generation);
            }
            // What is encoded with the request.
            Kind::Zeroes | Kind::Discard | Kind::Reserve | Kind::Flush | Kind::Read | Kind::Ask(_) => {}
        }
        if request.reads() {
            ring.spoil_data(slot, bytes);
        } else {
            ring.put_data(slot, data);
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

fn kind(rng: &mut Rng, geometry: Geometry, questions: &[Question], may_reserve: bool) -> Kind {
    match rng.within(1..=20) {
        1 if geometry.discard && rng.once_in(2) => Kind::Discard,
        1 if geometry.write_zeroes => Kind::Zeroes,
        2 if geometry.flush => Kind::Flush,
        3 if may_reserve && rng.once_in(RESERVATION_CHANGES) => Kind::Reserve,
        3 => Kind::Ask(rng.pick(questions)),
        4..=11 => Kind::Read,
        12 if geometry.swap_sectors > 0 => Kind::Swap,
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
    use crate::frontend::{Durability, Protocol};

    const GEOMETRY: Geometry =
        Geometry { sectors: 1000, block_sectors: 8, write_zeroes: true, discard: true, swap_sectors: 8, flush: true };

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
        let serial = Kind::Ask(Question::Serial);
        let mut draw = |geometry, may_reserve| {
            (0..1000).map(|_| kind(&mut rng, geometry, &[Question::Serial], may_reserve)).collect::<Vec<_>>()
        };
        let some = [Kind::Zeroes, Kind::Discard, Kind::Swap, Kind::Flush, Kind::Reserve];
        let plain = Geometry { write_zeroes: false, discard: false, swap_sectors: 0, flush: false, ..GEOMETRY };
        let (few, all) = (draw(plain, false), draw(GEOMETRY, true));
        assert!(some.iter().all(|kind| !few.contains(kind) && all.contains(kind)));
        for kinds in [few, all] {
            assert!([Kind::Read, Kind::Write, serial].iter().all(|kind| kinds.contains(kind)));
        }
    }

    #[test]
    fn a_load_without_a_server_waits() {
        let shape = Shape {
            queues: 2,
            ring: crate::frontend::RingShape { size: 16, event_idx: true },
            indirect: false,
            inflight: true,
            durability: Durability::Flushes,
            protocol: Protocol::Scsi,
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
