//! A volume around the cache, small enough to be looked at whole: a lower storage with a volatile cache, a log, commits, sweeps,
//! and what must be found after a power cut.
//!
//! Each sector has a *history* of what was ever stored in it. After a power cut it may hold anything from its *floor* on: what
//! was stored when the last flush began that succeeded, unless it was discarded since.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard};

use interleave::{turn, yield_now};

use super::super::{Cache, CacheOptions, Full, Pins, Round, recover};
use crate::{SECTOR_BYTES, SECTORS_PER_BLOCK, SectorMask};

/// The blocks that are used: in three leaves of the map, and far apart in the bitmaps.
pub(super) const BLOCKS: [u64; 8] = [0, 1, 2, 63, 64, 5000, 5001, 200_000];
pub(super) const CAPACITY_BYTES: u64 = 1 << 30;

type Sectors = [u64; SECTORS_PER_BLOCK];

pub(super) struct World {
    pub(super) cache: Arc<Cache>,
    disk: Mutex<Disk>,
    /// The committer's lock.
    committer: Turnstile,
    /// Held for the length of a commit.
    commits: Turnstile,
    /// The last flush's.
    round: Mutex<Round>,
    zero_slots: u32,
}

#[derive(Clone, Default)]
struct Disk {
    /// What a read of the lower storage gives.
    lower: [Sectors; BLOCKS.len()],
    /// What a power cut leaves of it.
    stable: [Sectors; BLOCKS.len()],
    log: Vec<Record>,
    /// The first record that recovery looks at.
    tail: usize,
    facts: Vec<Fact>,
}

/// What is known of one sector.
#[derive(Clone)]
struct Fact {
    history: Vec<u64>,
    /// The place in the history of the last store that has returned.
    stored: usize,
    floor: usize,
    discards: u64,
    discarding: bool,
    /// Discarded, and not stored since: a read may find anything.
    unknown: bool,
}

#[derive(Clone)]
struct Record {
    state: State,
    versions: Vec<(usize, SectorMask, Sectors)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    InFlight,
    Durable,
    Failed,
}

/// A commit under way.
pub(super) struct Batch {
    pins: Pins,
    record: usize,
}

/// A sweep under way.
pub(super) struct Sweep {
    log_end: usize,
    written: Vec<Pins>,
    next: Option<u64>,
    failed: bool,
}

impl World {
    pub(super) fn new(data_slots: u32, zero_slots: u32) -> World {
        let options = CacheOptions { capacity_bytes: CAPACITY_BYTES, data_slots, zero_slots };
        let fact = Fact { history: vec![0], stored: 0, floor: 0, discards: 0, discarding: false, unknown: false };
        let facts = vec![fact; BLOCKS.len() * SECTORS_PER_BLOCK];
        World {
            cache: Arc::new(Cache::new(&options).unwrap()),
            disk: Mutex::new(Disk { facts, ..Disk::default() }),
            committer: Turnstile::default(),
            commits: Turnstile::default(),
            round: Mutex::default(),
            zero_slots,
        }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    /// Stores `value` in sectors of a block. Of one sector, one thread at a time stores.
    pub(super) fn store(&self, index: usize, sectors: SectorMask, value: u64) -> Result<(), Full> {
        self.disk().begin_store(index, sectors, value);
        let done = self.cache.store(BLOCKS[index], sectors, |data| write(data, sectors, value));
        self.disk().end_store(index, sectors, done.is_ok());
        done
    }

    /// The first half of a store: whoever does it is interrupted before anything is marked. Gives what the second half needs.
    pub(super) fn publish(&self, index: usize, sectors: SectorMask, value: u64) -> Result<Option<u32>, Full> {
        let fresh = self.cache.slots.take_data().ok_or(Full)?;
        self.disk().begin_store(index, sectors, value);
        write(fresh.data().unwrap(), sectors, value);
        Ok(self.cache.publish(BLOCKS[index], fresh, sectors))
    }

    /// The second half.
    pub(super) fn mark(&self, index: usize, sectors: SectorMask, old: Option<u32>) {
        self.cache.mark(BLOCKS[index], old);
        self.disk().end_store(index, sectors, true);
    }

    pub(super) fn zero(&self, index: usize) -> Result<(), Full> {
        self.disk().begin_store(index, SectorMask::ALL, 0);
        let done = self.cache.zero(BLOCKS[index]);
        self.disk().end_store(index, SectorMask::ALL, done.is_ok());
        done
    }

    pub(super) fn discard(&self, index: usize) {
        self.disk().begin_discard(index);
        self.cache.drop_range(BLOCKS[index]..BLOCKS[index] + 1);
        self.disk().end_discard(index);
    }

    /// Reads as a guest's read does, and expects in `sectors` what was stored there last.
    pub(super) fn read(&self, index: usize, sectors: SectorMask) {
        let mut pins = Pins::new(&self.cache);
        self.cache.pin(BLOCKS[index], &mut pins);
        turn();
        let pinned = pins.iter().next().map(|pinned| {
            assert_eq!(pinned.block, BLOCKS[index]);
            (pinned.sectors, contents(pinned.sectors, pinned.data))
        });
        // No turn passes while this is held: who gets it would wait for it.
        let disk = self.disk();
        let mut content = disk.lower[index];
        if let Some((sectors, pinned)) = pinned {
            apply(&mut content, sectors, &pinned);
        }
        let facts = &disk.facts[index * SECTORS_PER_BLOCK..][..SECTORS_PER_BLOCK];
        for (sector, (content, fact)) in content.iter().zip(facts).enumerate() {
            if sectors.contains(sector) && !fact.unknown {
                assert_eq!(*content, fact.history[fact.stored], "block {}, sector {sector}", BLOCKS[index]);
            }
        }
    }

    /// A guest's flush. `fails` is asked for each record whether its write fails; false if one did.
    pub(super) fn flush(&self, max: usize, mut fails: impl FnMut() -> bool) -> bool {
        let before = self.disk().facts.clone();
        let _commit = self.commits.enter();
        // No batch is in flight: this thread holds what every commit holds.
        let mut round = self.round.lock().unwrap().again();
        while self.cache.has_unlogged() && !round.is_done() {
            let Some(batch) = self.begin_commit(max, &mut round) else { break };
            turn();
            let ok = !fails();
            self.end_commit(&batch, ok);
            if !ok {
                return false;
            }
        }
        *self.round.lock().unwrap() = round;
        let mut disk = self.disk();
        for (fact, before) in disk.facts.iter_mut().zip(before) {
            if fact.discards == before.discards && !before.unknown {
                fact.floor = fact.floor.max(before.stored);
            }
        }
        true
    }

    /// Takes what is unlogged into a record, if the round comes to any. One batch at a time.
    pub(super) fn begin_commit(&self, max: usize, round: &mut Round) -> Option<Batch> {
        let _lock = self.committer.enter();
        let mut pins = Pins::new(&self.cache);
        if self.cache.take_unlogged(max, round, &mut pins) == 0 {
            return None;
        }
        let versions = pins
            .iter()
            .map(|pinned| (index_of(pinned.block), pinned.sectors, contents(pinned.sectors, pinned.data)))
            .collect();
        let mut disk = self.disk();
        disk.log.push(Record { state: State::InFlight, versions });
        Some(Batch { pins, record: disk.log.len() - 1 })
    }

    pub(super) fn end_commit(&self, batch: &Batch, ok: bool) {
        let _lock = self.committer.enter();
        self.disk().log[batch.record].state = if ok { State::Durable } else { State::Failed };
        if ok {
            self.cache.logged(&batch.pins);
        } else {
            self.cache.unlog(&batch.pins);
        }
    }

    pub(super) fn begin_sweep(&self) -> Sweep {
        let _lock = self.committer.enter();
        Sweep { log_end: self.disk().log.len(), written: Vec::new(), next: Some(0), failed: false }
    }

    /// Writes the next few blocks; false at the end of the pass.
    pub(super) fn step_sweep(&self, sweep: &mut Sweep, max: usize, fails: bool) -> bool {
        let Some(from) = sweep.next else { return false };
        let mut pins = Pins::new(&self.cache);
        sweep.next = self.cache.take_dirty(from, max, &mut pins);
        let mut last = None;
        for pinned in pins.iter() {
            assert!(last < Some(pinned.block), "not ascending");
            last = Some(pinned.block);
            turn();
            let written = contents(pinned.sectors, pinned.data);
            apply(&mut self.disk().lower[index_of(pinned.block)], pinned.sectors, &written);
        }
        if fails {
            self.cache.dirty_again(&pins);
            sweep.failed = true;
        } else {
            sweep.written.push(pins);
        }
        true
    }

    /// Makes the sweep's writes stable, cuts the log and evicts; or gives the sweep up, if one of its writes failed.
    pub(super) fn end_sweep(&self, mut sweep: Sweep) {
        if sweep.failed {
            for pins in &sweep.written {
                self.cache.dirty_again(pins);
            }
            return;
        }
        {
            let mut disk = self.disk();
            disk.stable = disk.lower;
        }
        // Records before the cut have come to their end.
        while self.disk().log[..sweep.log_end].iter().any(|record| record.state == State::InFlight) {
            turn();
            yield_now();
        }
        let _lock = self.committer.enter();
        let log_is_empty = {
            let mut disk = self.disk();
            disk.tail = sweep.log_end;
            disk.log[sweep.log_end..].iter().all(|record| record.state == State::Failed)
        };
        for pins in &mut sweep.written {
            self.cache.evict(pins, log_is_empty);
        }
    }

    /// A power cut now: every sector has what it must have, whether the record that is being written landed or not, and
    /// whether the lower storage had made a write stable or not.
    pub(super) fn cut(&self) {
        let disk = self.disk();
        for (base, landed) in [(disk.stable, false), (disk.stable, true), (disk.lower, false), (disk.lower, true)] {
            let mut found = base;
            disk.replay(&mut found, landed);
            for (place, fact) in disk.facts.iter().enumerate() {
                let (index, sector) = (place / SECTORS_PER_BLOCK, place % SECTORS_PER_BLOCK);
                let content = found[index][sector];
                let allowed = &fact.history[if fact.discarding { 0 } else { fact.floor }..];
                assert!(
                    allowed.contains(&content),
                    "block {}, sector {sector} holds {content} after a power cut, and must be one of {allowed:?}",
                    BLOCKS[index],
                );
            }
        }
    }

    /// The process is killed now: its memory, over what the lower storage and the log have, is what was stored last.
    pub(super) fn killed(&self) -> Arc<Cache> {
        // One moment: no turn passes in these lines.
        let (disk, left) = {
            let disk = self.disk();
            (disk.clone(), self.cache.slots.file().left_behind())
        };
        let cache = Arc::new(recover(left, [0; 16], CAPACITY_BYTES).unwrap());
        for landed in [false, true] {
            let mut found = disk.lower;
            disk.replay(&mut found, landed);
            for (index, found) in found.iter_mut().enumerate() {
                let mut pins = Pins::new(&cache);
                cache.pin(BLOCKS[index], &mut pins);
                for pinned in pins.iter() {
                    apply(found, pinned.sectors, &contents(pinned.sectors, pinned.data));
                }
            }
            for (place, fact) in disk.facts.iter().enumerate().filter(|(_, fact)| !fact.unknown && !fact.discarding) {
                let (index, sector) = (place / SECTORS_PER_BLOCK, place % SECTORS_PER_BLOCK);
                let content = found[index][sector];
                let allowed = &fact.history[fact.stored..];
                assert!(
                    allowed.contains(&content),
                    "block {}, sector {sector} holds {content} after the process was killed, and must be one of {allowed:?}",
                    BLOCKS[index],
                );
            }
        }
        cache
    }

    /// Kills the process, and goes on with what it left.
    pub(super) fn reopen(&mut self) {
        self.cache = self.killed();
        let mut disk = self.disk();
        let mut found = disk.lower;
        disk.replay(&mut found, true);
        for record in &mut disk.log {
            record.state = State::Durable;
        }
        disk.lower = found;
        disk.stable = found;
        disk.tail = disk.log.len();
    }

    /// Logs and writes back all there is, and checks that nothing is left and nothing is lost.
    pub(super) fn close(&self) {
        assert!(self.flush(usize::MAX, || false));
        self.cut();
        for _ in 0..2 {
            let mut sweep = self.begin_sweep();
            while self.step_sweep(&mut sweep, 3, false) {}
            self.end_sweep(sweep);
            self.cut();
        }
        let figures = self.cache.figures();
        assert_eq!(figures.data_slots_free, figures.data_slots);
        assert_eq!(figures.zero_slots_free, self.zero_slots);
        assert_eq!((figures.dirty_blocks, figures.unlogged_blocks), (0, 0));
        assert!(!self.cache.touches(0..u64::MAX));
        self.cache.trim();
        for index in 0..BLOCKS.len() {
            self.read(index, SectorMask::ALL);
        }
        let disk = self.disk();
        assert!(disk.tail == disk.log.len() && disk.stable == disk.lower);
    }
}

impl Sweep {
    /// Whether the end of the sweep has to wait for this batch.
    pub(super) fn waits_for(&self, batch: &Batch) -> bool {
        batch.record < self.log_end
    }
}

impl Disk {
    /// Recovery: what the log has, over what was found; `landed`: the record that was being written too.
    fn replay(&self, found: &mut [Sectors; BLOCKS.len()], landed: bool) {
        for record in &self.log[self.tail..] {
            if record.state == State::Durable || (record.state == State::InFlight && landed) {
                for (index, sectors, contents) in &record.versions {
                    apply(&mut found[*index], *sectors, contents);
                }
            }
        }
    }

    fn begin_store(&mut self, index: usize, sectors: SectorMask, value: u64) {
        for fact in self.facts(index, sectors) {
            fact.history.push(value);
        }
    }

    fn end_store(&mut self, index: usize, sectors: SectorMask, done: bool) {
        for fact in self.facts(index, sectors) {
            if done {
                fact.stored = fact.history.len() - 1;
                fact.unknown = false;
            } else {
                fact.history.pop();
            }
        }
    }

    fn begin_discard(&mut self, index: usize) {
        for fact in self.facts(index, SectorMask::ALL) {
            fact.discarding = true;
        }
    }

    fn end_discard(&mut self, index: usize) {
        for fact in self.facts(index, SectorMask::ALL) {
            // A flush that was under way promises nothing for this sector (it compares `discards`).
            fact.floor = 0;
            fact.discards += 1;
            fact.discarding = false;
            fact.unknown = true;
        }
    }

    fn facts(&mut self, index: usize, sectors: SectorMask) -> impl Iterator<Item = &mut Fact> {
        let facts = &mut self.facts[index * SECTORS_PER_BLOCK..][..SECTORS_PER_BLOCK];
        facts.iter_mut().enumerate().filter(move |(sector, _)| sectors.contains(*sector)).map(|(_, fact)| fact)
    }
}

/// A lock that is waited for in turns.
#[derive(Default)]
struct Turnstile(AtomicBool);

struct Entered<'a>(&'a Turnstile);

impl Turnstile {
    fn enter(&self) -> Entered<'_> {
        while self.0.swap(true, SeqCst) {
            turn();
            yield_now();
        }
        Entered(self)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, SeqCst);
    }
}

fn index_of(block: u64) -> usize {
    BLOCKS.iter().position(|&known| known == block).expect("a block that nobody stored")
}

fn write(data: *mut u8, sectors: SectorMask, value: u64) {
    for sector in (0..SECTORS_PER_BLOCK).filter(|&sector| sectors.contains(sector)) {
        let bytes = value.to_le_bytes().repeat(SECTOR_BYTES / 8);
        // SAFETY: `fill` is given 4096 bytes for itself, and the sector lies in them.
        unsafe { data.add(sector * SECTOR_BYTES).copy_from_nonoverlapping(bytes.as_ptr(), SECTOR_BYTES) };
    }
}

/// The values of a pinned version; each sector is of one piece.
fn contents(sectors: SectorMask, data: Option<*const u8>) -> Sectors {
    let mut contents = Sectors::default();
    let Some(data) = data else { return contents };
    for sector in (0..SECTORS_PER_BLOCK).filter(|&sector| sectors.contains(sector)) {
        // SAFETY: a pinned version has 4096 bytes, which nobody writes while the pins are held (the callers hold them).
        let bytes = unsafe { std::slice::from_raw_parts(data.add(sector * SECTOR_BYTES), SECTOR_BYTES) };
        let (words, _) = bytes.as_chunks::<8>();
        contents[sector] = u64::from_le_bytes(words[0]);
        assert!(words.iter().all(|word| *word == words[0]), "a torn sector");
    }
    contents
}

fn apply(to: &mut Sectors, sectors: SectorMask, from: &Sectors) {
    for sector in (0..SECTORS_PER_BLOCK).filter(|&sector| sectors.contains(sector)) {
        to[sector] = from[sector];
    }
}
