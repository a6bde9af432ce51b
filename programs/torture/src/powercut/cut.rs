//! Cuts: behind each event of a trace the power goes, the volume is recovered from what that may leave, and all of its disk is
//! compared with what it may hold.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use volume::Blocks;
use volume::format::Superblock;
use volume::log::End;

use super::image::Image;
use super::live::Before;
use super::medium::{Loss, Medium};
use super::oracle::Oracle;
use super::recovery;
use super::stamp::{self, Content, SECTOR_BYTES};
use super::trace::{Event, Time, Trace};
use crate::rng::Rng;

/// Most cuts behind one event.
const SAMPLES_MAX: u64 = 3;
/// One recovery in so many is cut as well, this often.
const CUTS_INSIDE: u64 = 6;
const INSIDE_SAMPLES: u64 = 3;
/// One recovery in so many is made twice.
const TWICE: u64 = 4;

/// How many cuts remain to be made, shared by all who make them.
pub(super) struct Budget {
    cuts: AtomicU64,
    limit: u64,
    /// Cuts a life, about.
    share: u64,
    over: AtomicBool,
}

impl Budget {
    /// So many cuts, of which a life gets its `share`, about.
    pub(super) fn new(limit: u64, share: u64) -> Self {
        Self { cuts: AtomicU64::new(0), limit, share, over: AtomicBool::new(false) }
    }

    /// Ends it early.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Whether nothing remains.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.cuts.load(Ordering::Relaxed) >= self.limit
    }

    pub(super) fn take(&self) -> bool {
        !self.over.load(Ordering::Relaxed) && self.cuts.fetch_add(1, Ordering::Relaxed) < self.limit
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(super) struct Tally {
    /// Power cuts, each followed by a recovery and a look at every sector.
    pub(super) cuts: u64,
    /// Those among them in the middle of a recovery.
    pub(super) cuts_in_recovery: u64,
    /// Log records that recoveries have replayed.
    pub(super) records_replayed: u64,
    /// Recoveries that were made a second time.
    pub(super) recovered_twice: u64,
    /// Reads under load whose data was compared.
    pub(super) reads: u64,
    /// Events behind which the power went.
    pub(super) events: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.cuts_in_recovery += other.cuts_in_recovery;
        self.records_replayed += other.records_replayed;
        self.recovered_twice += other.recovered_twice;
        self.reads += other.reads;
        self.events += other.events;
    }
}

/// A promise that was not kept.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Violation {
    /// The workload.
    pub(super) scene: String,
    /// The number of the last event before the cut.
    pub(super) event: Time,
    /// What the cut has done, and what followed.
    pub(super) cut: String,
    /// What was found instead of what.
    pub(super) what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scene, event, cut, what } = self;
        write!(f, "{scene}: cut behind event {event} ({cut}): {what}")
    }
}

/// Makes cuts behind each event of `trace` while the `budget` lasts. What one of them leaves, behind event `keep`, is
/// returned: another life can begin with it.
pub(super) fn run(trace: &Trace, budget: &Budget, keep: Option<Time>) -> (Tally, Result<Option<Before>, Violation>) {
    let mut tally = Tally::default();
    let result = Cutter::new(trace, &mut tally).and_then(|mut cutter| cutter.run(budget, keep));
    (tally, result)
}

struct Cutter<'a> {
    trace: &'a Trace,
    tally: &'a mut Tally,
    media: Vec<Medium>,
    oracle: Oracle,
    /// When each flush of each device began.
    flushes: HashMap<(u8, u32), Time>,
    /// Where the disk begins in the first device, in bytes.
    data_from: u64,
    /// What the floor of the first device holds of the disk, sector by sector.
    floor: Vec<Content>,
    now: Time,
}

impl<'a> Cutter<'a> {
    fn new(trace: &'a Trace, tally: &'a mut Tally) -> Result<Self, Violation> {
        let images: Vec<_> = trace.before.iter().map(|bytes| Image::new(bytes, bytes.len() as u64)).collect();
        let superblock = superblock(images).map_err(|what| violation(trace, 0, "none".to_owned(), what))?;
        let data_from = superblock.data_offset;
        let medium = |(device, before): (usize, &Vec<u8>)| {
            let data_from = if device == 0 { data_from } else { u64::MAX };
            Medium::new(before, trace.device_bytes_max(device), data_from)
        };
        let media: Vec<_> = trace.before.iter().enumerate().map(medium).collect();
        let disk = media.first().and_then(|medium| medium.floor().get(data_from as usize..)).unwrap_or_default();
        let floor: Vec<_> =
            (0..).zip(disk.chunks(SECTOR_BYTES)).map(|(sector, bytes)| stamp::read(sector, bytes)).collect();
        let oracle = Oracle::new(&trace.known, floor.len(), trace.operations_before, trace.scene.always);
        Ok(Self { trace, tally, media, oracle, flushes: HashMap::new(), data_from, floor, now: 0 })
    }

    fn run(&mut self, budget: &Budget, keep: Option<Time>) -> Result<Option<Before>, Violation> {
        let mut kept = None;
        let rate = self.rate(budget.share);
        for (now, event) in (1..).zip(&self.trace.events) {
            self.now = now;
            self.happen(event)?;
            self.refresh();
            let samples = if changes(event) { self.samples(rate) } else { 0 };
            self.tally.events += u64::from(samples > 0);
            for sample in 0..samples {
                if !budget.take() {
                    return Ok(kept);
                }
                self.cut(sample, budget)?;
            }
            if keep == Some(now) {
                kept = Some(self.keep());
            }
        }
        Ok(kept)
    }

    /// Cuts behind each event, in 2^-16, for so many in all.
    fn rate(&self, cuts: u64) -> u64 {
        let events = self.trace.events.iter().filter(|event| changes(event)).count() as u64;
        // One in CUTS_INSIDE brings more.
        let each = CUTS_INSIDE.saturating_mul(cuts) / (CUTS_INSIDE + INSIDE_SAMPLES);
        (each << 16) / events.max(1)
    }

    /// Cuts behind this event.
    fn samples(&self, rate: u64) -> u64 {
        let fraction = self.rng(u64::from(u8::MAX) - 1).within(1..=1 << 16);
        let samples = (rate >> 16) + u64::from(rate & 0xffff >= fraction);
        let certain = self.media.iter().all(Medium::is_certain);
        samples.min(if certain { 1 } else { SAMPLES_MAX })
    }

    /// Follows one event.
    fn happen(&mut self, event: &Event) -> Result<(), Violation> {
        let (trace, now) = (self.trace, self.now);
        match *event {
            Event::Written { write } => {
                let device = trace.writes[write as usize].device;
                self.media[usize::from(device)].written(write);
            }
            Event::WriteDone { write } => {
                let device = trace.writes[write as usize].device;
                self.media[usize::from(device)].write_done(write, now, trace);
            }
            Event::Flushing { device, flush } => {
                self.flushes.insert((device, flush), now);
            }
            Event::FlushDone { device, flush } => {
                if let Some(begun) = self.flushes.remove(&(device, flush)) {
                    self.media[usize::from(device)].flush_done(begun, trace);
                }
            }
            Event::Resized { device, bytes } => self.media[usize::from(device)].resized(now, bytes),
            Event::Opened { found, disk_bytes } => {
                let contents = &trace.found[found as usize].contents;
                self.check_contents(contents, disk_bytes)
                    .map_err(|what| self.violation("none: it was opened", what))?;
                self.oracle.fix(contents, disk_bytes, now);
            }
            Event::Asked { operation } => self.oracle.asked(operation, &trace.operations[operation as usize], now),
            Event::Answered { operation } => self.oracle.answered(operation, &trace.operations, now),
            Event::Read { operation, found } => {
                self.check_read(operation, &trace.found[found as usize].contents)?;
                self.oracle.looked(operation);
                self.tally.reads += 1;
            }
            Event::Growing { disk_bytes } => self.oracle.growing(disk_bytes),
            Event::Grown { disk_bytes } => self.oracle.grown(disk_bytes),
            Event::Closed => self.oracle.closed(&trace.operations),
        }
        Ok(())
    }

    /// Reads again what has changed in the floor.
    fn refresh(&mut self) {
        let Some(medium) = self.media.first_mut() else { return };
        let changed = medium.take_changed();
        let floor = medium.floor();
        for (offset, len) in changed {
            let end = (offset + len).saturating_sub(self.data_from) / SECTOR_BYTES as u64;
            let first = offset.saturating_sub(self.data_from) / SECTOR_BYTES as u64;
            for sector in first..end {
                let at = (self.data_from + sector * SECTOR_BYTES as u64) as usize;
                let content = floor.get(at..at + SECTOR_BYTES).map(|bytes| stamp::read(sector as u32, bytes));
                if let (Some(known), Some(content)) = (self.floor.get_mut(sector as usize), content) {
                    *known = content;
                }
            }
        }
    }

    /// One cut, and what follows.
    fn cut(&mut self, sample: u64, budget: &Budget) -> Result<(), Violation> {
        let mut rng = self.rng(sample);
        let loss = Loss::draw(&mut rng);
        let crashed: Vec<_> = self.media.iter().map(|medium| medium.cut(loss, self.trace, &mut rng)).collect();
        let inside = rng.once_in(CUTS_INSIDE);
        let twice = rng.once_in(TWICE);
        let mut images = crashed.clone();
        let name = format!("sample {sample}, lost: {loss:?}");
        let fail = |what| violation(self.trace, self.now, name.clone(), what);
        let (recovered, notes) = recovery::recover_noting(&mut images).map_err(fail)?;
        self.tally.cuts += 1;
        self.tally.records_replayed += recovered.records;
        if let End::Damaged { stranded } = recovered.end {
            return Err(fail(format!("the cut is taken for damage: {stranded} whole records follow the log's end")));
        }
        let contents = self.examine(&mut images).map_err(fail)?;
        if twice {
            recovery::recover(&mut images).map_err(fail)?;
            self.tally.recovered_twice += 1;
            let again = self.examine(&mut images).map_err(fail)?;
            same(&contents, &again, "a second recovery").map_err(fail)?;
        }
        if !inside {
            return Ok(());
        }
        for inner in 0..INSIDE_SAMPLES {
            if !budget.take() {
                return Ok(());
            }
            let mut images = crashed.clone();
            let steps = recovery::cut(&mut images, &notes, &mut rng);
            let fail = |what| {
                let cut = format!("{name}; cut {inner} inside recovery behind {steps} of {} steps", notes.len());
                violation(self.trace, self.now, cut, what)
            };
            let recovered = recovery::recover(&mut images).map_err(fail)?;
            self.tally.cuts += 1;
            self.tally.cuts_in_recovery += 1;
            self.tally.records_replayed += recovered.records;
            let again = self.examine(&mut images).map_err(fail)?;
            same(&contents, &again, "recovery after a cut in its middle").map_err(fail)?;
        }
        Ok(())
    }

    /// Draws for one cut only: a cut is the same whatever was cut before it.
    fn rng(&self, sample: u64) -> Rng {
        let scene = &self.trace.scene;
        let life = u64::from(scene.volume) << 8 | u64::from(scene.generation);
        Rng::new(scene.seed ^ life << 32, u64::from(self.now) << 8 | sample)
    }

    /// What a recovered disk holds, if that is permitted.
    fn examine(&self, images: &mut [Image<'_>]) -> Result<Vec<Content>, String> {
        let superblock = recovery::superblock(images)?;
        if superblock.data_offset != self.data_from {
            return Err(format!("data began at {} and begins at {}", self.data_from, superblock.data_offset));
        }
        let data = images.first().ok_or("there is no device")?;
        let end = superblock.data_offset.saturating_add(superblock.capacity_bytes);
        if end > data.len() {
            return Err(format!("the disk ends at {end}, its storage at {}", data.len()));
        }
        let content = |sector: u32| {
            let offset = self.data_from + u64::from(sector) * SECTOR_BYTES as u64;
            match data.changed(offset) {
                Some(bytes) => stamp::read(sector, bytes),
                None => self.floor.get(sector as usize).copied().unwrap_or(Content::Foreign),
            }
        };
        let sectors = (superblock.capacity_bytes / SECTOR_BYTES as u64) as u32;
        let contents: Vec<_> = (0..sectors).map(content).collect();
        self.check_contents(&contents, superblock.capacity_bytes).map_err(|what| {
            match self.foreign(&contents, data) {
                Some(looks_like) => format!("{what}: it holds {looks_like}"),
                None => what,
            }
        })?;
        Ok(contents)
    }

    /// What the first foreign sector looks like.
    fn foreign(&self, contents: &[Content], data: &Image<'_>) -> Option<String> {
        let sector = contents.iter().position(|content| *content == Content::Foreign)?;
        let mut bytes = [0; SECTOR_BYTES];
        data.get(self.data_from + (sector * SECTOR_BYTES) as u64, &mut bytes);
        Some(stamp::describe(sector as u32, &bytes))
    }

    fn check_contents(&self, contents: &[Content], disk_bytes: u64) -> Result<(), String> {
        let (least, most) = self.oracle.disk_bytes();
        if !(least..=most).contains(&disk_bytes) {
            return Err(format!("the disk has {disk_bytes} bytes instead of {least} to {most}"));
        }
        let operations = &self.trace.operations;
        for (sector, content) in (0..).zip(contents) {
            if !self.oracle.permits(sector, *content, operations) {
                let expected = self.oracle.describe(sector, operations);
                return Err(format!("sector {sector}: expected {expected}; found {}", self.named(*content)));
            }
        }
        // A write to where the disk has grown cannot be sure before its new size is.
        let behind = contents.len() as u32..self.floor.len() as u32;
        match behind.into_iter().find(|sector| !self.oracle.permits(*sector, Content::Zeroes, operations)) {
            Some(sector) => {
                let expected = self.oracle.describe(sector, operations);
                Err(format!("sector {sector}: expected {expected}; the disk ends at sector {}", contents.len()))
            }
            None => Ok(()),
        }
    }

    fn check_read(&self, operation: u32, contents: &[Content]) -> Result<(), Violation> {
        let operations = &self.trace.operations;
        let read = &operations[operation as usize];
        for (index, content) in (0..).zip(contents) {
            if !self.oracle.permits_read(operation, index, *content, operations) {
                let sector = read.first + index;
                let expected = self.oracle.describe(sector, operations);
                let found = self.named(*content);
                let what =
                    format!("operation {operation} ({read}): sector {sector}: expected {expected}; found {found}");
                return Err(self.violation("none: a read under load", what));
            }
        }
        Ok(())
    }

    /// A content with the operation that left it.
    fn named(&self, content: Content) -> String {
        match content {
            Content::Of(number) => match self.trace.operations.get(number as usize) {
                Some(operation) => format!("operation {number} ({operation})"),
                None => format!("operation {number}, which was not asked for"),
            },
            other => other.to_string(),
        }
    }

    /// What a cut leaves now, for another life.
    fn keep(&self) -> Before {
        let mut rng = self.rng(u64::from(u8::MAX));
        let loss = Loss::draw(&mut rng);
        let images = self.media.iter().map(|medium| medium.cut(loss, self.trace, &mut rng).to_vec());
        let asked = self.oracle.operations() as usize;
        Before {
            devices: images.collect(),
            known: self.oracle.known(),
            operations: self.trace.operations[..asked].to_vec(),
        }
    }

    fn violation(&self, cut: &str, what: String) -> Violation {
        violation(self.trace, self.now, cut.to_owned(), what)
    }
}

/// Whether a cut behind an event differs from one before it. What is asked for changes nothing that a cut leaves, and permits
/// more, not less.
fn changes(event: &Event) -> bool {
    !matches!(event, Event::Asked { .. } | Event::Growing { .. })
}

fn superblock(mut images: Vec<Image<'_>>) -> Result<Superblock, String> {
    recovery::superblock(&mut images)
}

fn violation(trace: &Trace, event: Time, cut: String, what: String) -> Violation {
    Violation { scene: trace.scene.to_string(), event, cut, what }
}

/// Fails where two disks differ.
fn same(one: &[Content], other: &[Content], after: &str) -> Result<(), String> {
    if one.len() != other.len() {
        return Err(format!("after {after} the disk has {} sectors, before {}", other.len(), one.len()));
    }
    match one.iter().zip(other).position(|(one, other)| one != other) {
        None => Ok(()),
        Some(sector) => Err(format!("sector {sector}: holds {} after {after}, {} before", other[sector], one[sector])),
    }
}
