//! Changes of the mapping: what an allocating write prepares, and how L2 entries are written. All of it blocks, but for what it is said of.
//!
//! Whoever changes the entries of clusters has claimed them ([`crate::claims`]). An allocating write is *prepared*: clusters are taken,
//! and what the guest does not write of them is copied there. Then its data is written, and then it is *linked*. Where the old
//! contents were anything but nothing, there is a barrier before the link: a power cut must not leave an entry that leads to
//! zeroes where there was data. Where they were nothing, a cluster of the reserve reads as nothing until its data arrives.

use super::allocator::Taken;
use super::chain::Chain;
use super::disk;
use super::error::Trouble;
use super::shared::Shared;
use crate::entry::{self, COPIED, Cluster, L2Place, NOTHING, State};
use crate::geometry::{Geometry, SUBCLUSTERS};
use crate::tables::Found;
use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};

/// Most bytes that are allocated at once.
pub(super) const ALLOCATE_BYTES_MAX: u64 = 2 << 20;

/// An allocating write of clusters that follow one another, here and there.
#[derive(Debug)]
pub(super) struct Plan {
    /// The first byte of the first cluster, on the disk and in the file.
    guest: u64,
    pub(super) host: u64,
    clusters: u64,
    /// What the guest writes, in bytes of the disk.
    pub(super) write: Range<u64>,
    /// What is there when it is linked.
    covered: Range<u64>,
    /// Data is flushed before it is linked.
    pub(super) barrier: bool,
    /// The clusters come from the reserve, and read as zeroes.
    pub(super) fresh: bool,
    /// There is no data: what is covered reads as zeroes by its entry.
    clears: bool,
    /// These clusters, until they are linked. A plan that is dropped gives them back.
    taken: Option<Taken>,
}

impl Plan {
    /// Where the guest's data goes.
    pub(super) fn target(&self) -> u64 {
        self.host + (self.write.start - self.guest)
    }

    /// The entry of the cluster at `guest`, which was `old`.
    fn entry(&self, geometry: &Geometry, guest: u64, old: Cluster) -> Cluster {
        let unit = geometry.unit_bytes();
        let units = (0..SUBCLUSTERS).filter(|unit_number| self.covered.contains(&(guest + unit_number * unit)));
        let mask = if geometry.extended { units.fold(0u32, |mask, number| mask | 1 << number) } else { !0 };
        if self.clears {
            let zero = if let Cluster::Plain { zero, .. } = old { zero | mask } else { mask };
            return Cluster::Plain { host: None, copied: false, allocated: 0, zero };
        }
        let host = Some(self.host + (guest - self.guest));
        let all = Cluster::Plain { host, copied: true, allocated: !0, zero: 0 };
        let Cluster::Plain { allocated, zero, .. } = old else { return all };
        if !geometry.extended {
            return all;
        }
        Cluster::Plain { host, copied: true, allocated: allocated | mask, zero: zero & !mask }
    }
}

/// What an old entry means for a write that cannot go there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Old {
    /// There is a cluster of its own, and something of it is not used.
    Room(u64),
    /// There is nothing.
    Nothing,
    /// What is there is shared or compressed: it is copied whole.
    Elsewhere,
}

impl Chain {
    /// The entry of the first image for the cluster at `guest`; `None`: its table is not in memory.
    fn entry_now(&self, guest: u64) -> Result<Option<Cluster>, Trouble> {
        let top = self.top();
        let (l1, index) = top.geometry.place(guest);
        match top.tables.find(l1, index) {
            Found::NoTable => Ok(Some(NOTHING)),
            Found::Missing => Ok(None),
            Found::Entry(word, bitmap) => {
                let cluster = entry::l2(&top.geometry, guest, word, bitmap);
                cluster.map(Some).map_err(|error| Trouble::Format(0, error))
            }
        }
    }

    fn entry(&self, guest: u64, may_block: bool) -> Result<Option<Cluster>, Trouble> {
        loop {
            if let Some(cluster) = self.entry_now(guest)? {
                return Ok(Some(cluster));
            }
            if !may_block {
                return Ok(None);
            }
            self.load(0, guest)?;
        }
    }
}

fn old(geometry: &Geometry, guest: u64, cluster: Cluster) -> Old {
    match cluster {
        // All clusters of a data file have their place there.
        _ if geometry.data_file => Old::Room(guest),
        Cluster::Plain { host: Some(host), copied: true, .. } => Old::Room(host),
        Cluster::Plain { host: None, .. } => Old::Nothing,
        Cluster::Plain { .. } | Cluster::Compressed(_) => Old::Elsewhere,
    }
}

impl Shared {
    /// Prepares an allocating write of what `want` begins with, be it `zeroes`; its first cluster, and all others that it shall reach, are
    /// claimed. Without `may_block` it does what can be done at once, or nothing.
    pub(super) fn prepare(&self, want: &Range<u64>, zeroes: bool, may_block: bool) -> Result<Option<Plan>, Trouble> {
        self.check_written()?;
        let chain = &self.chain;
        let geometry = &chain.top().geometry;
        let cluster_bytes = geometry.cluster_bytes();
        let guest = want.start / cluster_bytes * cluster_bytes;
        let Some(first) = chain.entry(guest, may_block)? else { return Ok(None) };
        let kind = old(geometry, guest, first);
        if zeroes && kind == Old::Nothing && chain.top().geometry.version >= 3 {
            let unit = geometry.unit_bytes();
            let stop = want.end.min(guest + cluster_bytes);
            let covered = want.start / unit * unit..stop.next_multiple_of(unit);
            let mut is_zero = true;
            for beside in [covered.start..want.start, stop..covered.end] {
                match chain.is_zero(beside.start, beside.end - beside.start, may_block)? {
                    None => return Ok(None),
                    Some(is) => is_zero &= is,
                }
            }
            if is_zero {
                let write = want.start..stop;
                let plan = Plan {
                    guest,
                    host: 0,
                    clusters: 1,
                    write,
                    covered,
                    barrier: false,
                    fresh: true,
                    clears: true,
                    taken: None,
                };
                return Ok(Some(plan));
            }
        }
        // As many clusters as are alike; none that is written in place, and none of another table.
        let end = want.end.min(geometry.guest(geometry.place(guest).0 + 1, 0));
        let mut found = vec![first];
        while guest + found.len() as u64 * cluster_bytes < end {
            let next = guest + found.len() as u64 * cluster_bytes;
            let Some(cluster) = chain.entry(next, may_block)? else { break };
            let room = |kind| matches!(kind, Old::Room(_));
            if !geometry.data_file && (room(kind) || room(old(geometry, next, cluster))) {
                break;
            }
            found.push(cluster);
        }
        let (host, clusters, taken) = match kind {
            Old::Room(_) if !may_block => return Ok(None),
            Old::Room(host) => (host, found.len() as u64, None),
            Old::Nothing | Old::Elsewhere => {
                let want = found.len() as u64;
                let allocator = if may_block { Some(self.allocator()?) } else { self.try_allocator() };
                let Some(mut allocator) = allocator else { return Ok(None) };
                // Nobody else makes one while this has the allocator.
                let has_table = chain.top().tables.l1(geometry.place(guest).0) & COPIED != 0;
                let taken = match may_block {
                    true => Some(allocator.take(chain, want, has_table)?),
                    false => allocator.take_ready(want, has_table),
                };
                drop(allocator);
                let Some(clusters) = taken else { return Ok(None) };
                let (host, count) = (clusters.start << geometry.cluster_bits, clusters.end - clusters.start);
                (host, count, Some(Taken::new(&self.returns, clusters)))
            }
        };
        let fresh = taken.is_some();
        let last = found[clusters as usize - 1];
        let write = want.start..end.min(guest + clusters * cluster_bytes);
        // A raw data file reads as it did, whatever the tables say.
        let barrier = !fresh && !chain.top().header.data_file_is_raw();
        let mut plan =
            Plan { guest, host, clusters, covered: write.clone(), write, barrier, fresh, clears: false, taken };
        if self.fill(&mut plan, first, last, may_block)? {
            return Ok(Some(plan));
        }
        plan.taken.take().into_iter().for_each(Taken::unused);
        Ok(None)
    }

    /// Copies what the guest does not write of the plan's clusters. `false`: that would block.
    fn fill(&self, plan: &mut Plan, first: Cluster, last: Cluster, may_block: bool) -> Result<bool, Trouble> {
        let (chain, geometry) = (&self.chain, &self.chain.top().geometry);
        let cluster_bytes = geometry.cluster_bytes();
        let unit = |guest, cluster| match old(geometry, guest, cluster) {
            Old::Elsewhere => cluster_bytes,
            Old::Room(_) | Old::Nothing => geometry.unit_bytes(),
        };
        let write = plan.write.clone();
        let before = unit(plan.guest, first);
        let last_guest = plan.guest + (plan.clusters - 1) * cluster_bytes;
        let behind = unit(last_guest, last);
        let start = write.start / before * before;
        let end = write.end.next_multiple_of(behind);
        plan.covered = start..end;
        // A data file ends with the disk.
        let end = if geometry.data_file { end.min(chain.top().size_bytes().max(write.end)) } else { end };
        let lies_there = |cluster: Cluster, inside: u64| {
            matches!(cluster.state(geometry, inside), Some((State::Data(_), _))) && !plan.fresh
        };
        let mut copies = Vec::new();
        if start < write.start && !lies_there(first, start - plan.guest) {
            copies.push(start..write.start);
        }
        if write.end < end && !lies_there(last, write.end - last_guest) {
            copies.push(write.end..end);
        }
        let Some(nothing) = chain.is_zero(start, end - start, may_block)? else { return Ok(false) };
        plan.barrier |= !nothing;
        for range in copies {
            let len = range.end - range.start;
            if plan.fresh && (nothing || chain.is_zero(range.start, len, may_block)? == Some(true)) {
                continue;
            }
            if !may_block {
                return Ok(false);
            }
            let mut buf = vec![0; len as usize];
            chain.read(range.start, &mut buf)?;
            disk::write(chain.file(chain.top().data), plan.host + (range.start - plan.guest), &buf)?;
        }
        Ok(true)
    }

    /// Links what was prepared, now that its data is there. After an error nobody knows whether it is linked: its clusters are leaked.
    pub(super) fn link(&self, mut plan: Plan) -> Result<(), Trouble> {
        plan.taken.take().into_iter().for_each(Taken::keep);
        let plan = &plan;
        let geometry = &self.chain.top().geometry;
        self.rewrite(plan.guest, plan.clusters, plan.guest, |guest, old| plan.entry(geometry, guest, old))
    }

    /// Lets clusters up to byte `stop` of the disk read as zeroes, or as nothing, and gives their space back unless it is to stay. Only
    /// where the disk ends may `stop` lie inside of the last one.
    pub(super) fn unmap(&self, guest: u64, stop: u64, stay: bool) -> Result<(), Trouble> {
        let (chain, top) = (&self.chain, self.chain.top());
        let clusters = (stop - guest).div_ceil(top.geometry.cluster_bytes());
        let zeroes = chain.has_backing();
        let cleared = Cluster::Plain { host: None, copied: false, allocated: 0, zero: !0 };
        self.rewrite(guest, clusters, stop, |_, old| match old {
            // Room that is kept for what is written later.
            Cluster::Plain { host: host @ Some(_), copied: true, .. } if stay && top.geometry.version >= 3 => {
                Cluster::Plain { host, copied: true, allocated: 0, zero: !0 }
            }
            _ if zeroes => cleared,
            _ => NOTHING,
        })?;
        if top.geometry.data_file && !stay {
            let len = clusters * top.geometry.cluster_bytes();
            let file = chain.file(top.data);
            let there = storage::Storage::capacity_bytes(file).saturating_sub(guest).min(len);
            if there > 0 {
                disk::discard(file, guest, there);
            }
        }
        Ok(())
    }

    /// Brings entries to stable storage, and frees what none of them names any more.
    pub(super) fn settle_all(&self) -> Result<(), Trouble> {
        self.flush_entries()?;
        self.settle()
    }

    fn flush_entries(&self) -> Result<(), Trouble> {
        self.check_written()?;
        let changes = self.changes();
        self.chain.flush(self.chain.top().file)?;
        self.has_flushed(changes);
        Ok(())
    }

    /// Frees what was retired by changes that are on stable storage, as far as it is nobody's. Nobody waits for space to be given back
    /// but whoever calls: a device may take its time.
    pub(super) fn settle(&self) -> Result<(), Trouble> {
        let now = self.epochs.advance();
        // Whoever looks for room has what another one is about to free.
        while self.settle_one(now, &self.settling.lock().unwrap_or_else(PoisonError::into_inner))? {}
        Ok(())
    }

    /// As above, unless somebody is at it.
    pub(super) fn settle_unless_busy(&self) -> Result<(), Trouble> {
        let now = self.epochs.advance();
        while let Ok(alone) = self.settling.try_lock()
            && self.settle_one(now, &alone)?
        {}
        Ok(())
    }

    /// Frees one run of clusters. False when there is none.
    fn settle_one(&self, now: u64, _alone: &MutexGuard<'_, ()>) -> Result<bool, Trouble> {
        let (chain, top) = (&self.chain, self.chain.top());
        let mut allocator = self.allocator()?;
        let Some(clusters) = allocator.due(now, self.flushed()) else { return Ok(false) };
        let last = allocator.last_uses(chain, clusters.clone())?;
        drop(allocator);
        let bits = top.geometry.cluster_bits;
        for run in last {
            disk::discard(chain.file(top.file), run.start << bits, (run.end - run.start) << bits);
        }
        self.allocator()?.release(chain, clusters)?;
        Ok(true)
    }

    /// Writes the L2 entries of claimed clusters of one table. Unless `stop` is at a cluster's end it must be that of the disk.
    pub(super) fn rewrite(
        &self,
        guest: u64,
        clusters: u64,
        stop: u64,
        new: impl Fn(u64, Cluster) -> Cluster,
    ) -> Result<(), Trouble> {
        match self.rewrite_once(guest, clusters, stop, &new) {
            // A table found no room, and nothing has changed. What rests may have some.
            Err(Trouble::Errno(libc::ENOSPC)) => {
                self.settle_all()?;
                self.rewrite_once(guest, clusters, stop, &new)
            }
            other => other,
        }
    }

    /// As above, if there is room.
    fn rewrite_once(
        &self,
        guest: u64,
        clusters: u64,
        stop: u64,
        new: impl Fn(u64, Cluster) -> Cluster,
    ) -> Result<(), Trouble> {
        self.check_written()?;
        let (chain, top) = (&self.chain, self.chain.top());
        let geometry = &top.geometry;
        let (l1, index) = geometry.place(guest);
        debug_assert_eq!(geometry.place(guest + (clusters - 1) * geometry.cluster_bytes()).0, l1);
        // Only who has the allocator changes L1 entries.
        let mut allocator = self.allocator()?;
        // And who has it changes the size.
        if !stop.is_multiple_of(geometry.cluster_bytes()) && stop < top.size_bytes() {
            return Err(Trouble::Grown);
        }
        let place = entry::l1(geometry, l1, top.tables.l1(l1)).map_err(|error| Trouble::Format(0, error))?;
        let own = place.filter(|place| place.copied);
        if place.is_none() && (0..clusters).all(|at| new(guest + at * geometry.cluster_bytes(), NOTHING) == NOTHING) {
            return Ok(());
        }
        let table = match own {
            Some(place) => place.offset,
            None => allocator.take(chain, 1, true)?.start << geometry.cluster_bits,
        };
        let written = self.rewrite_in((l1, index), (table, place), (guest, clusters), new);
        // After an error nobody knows whether the image names the new table: its cluster is leaked.
        let gone = written?;
        if let Some(place) = place.filter(|place| !place.copied) {
            let cluster = place.offset >> geometry.cluster_bits;
            allocator.retire(cluster..cluster + 1, self.epochs.now(), self.changes());
        }
        let (epoch, change) = (self.epochs.now(), self.changes());
        if !geometry.data_file {
            for clusters in gone {
                allocator.retire(clusters, epoch, change);
            }
        }
        let overfull = allocator.is_overfull(chain);
        drop(allocator);
        if overfull {
            self.flush_entries()?;
            self.settle_unless_busy()?;
        }
        Ok(())
    }

    /// As above, into the table at offset `table`, which is the one at `place` or is about to replace it; by whoever has the allocator.
    /// Gives the clusters that were named before.
    fn rewrite_in(
        &self,
        (l1, index): (u64, u64),
        (table, place): (u64, Option<L2Place>),
        (guest, clusters): (u64, u64),
        new: impl Fn(u64, Cluster) -> Cluster,
    ) -> Result<Vec<Range<u64>>, Trouble> {
        let shared = place.is_some_and(|place| !place.copied);
        let (chain, top) = (&self.chain, self.chain.top());
        let geometry = &top.geometry;
        let file = chain.file(top.file);
        let words_each = geometry.entry_words() as usize;
        let mut locked = top.tables.lock();
        chain.load_locked(0, l1, &mut locked)?;
        let all = geometry.cluster_bytes() as usize / 8;
        let mut words = locked.words(l1, 0..all).ok_or(Trouble::Errno(libc::EIO))?;
        let unchanged = words.clone();
        let first = index as usize * words_each;
        let mut gone = Vec::new();
        for at in 0..clusters {
            let at_guest = guest + at * geometry.cluster_bytes();
            let place = first + at as usize * words_each;
            let bitmap = if geometry.extended { words[place + 1] } else { 0 };
            let before = entry::l2(geometry, at_guest, words[place], bitmap);
            let before = before.map_err(|error| Trouble::Format(0, error))?;
            let after = new(at_guest, before);
            let (word, bitmap) = after.encode(geometry).ok_or(Trouble::Errno(libc::EIO))?;
            words[place] = word;
            if geometry.extended {
                words[place + 1] = bitmap;
            }
            gone.extend(named(geometry, before).filter(|old| named(geometry, after).is_none_or(|now| now != *old)));
        }
        let end = first + clusters as usize * words_each;
        let sectors = if shared { 0..all } else { first / 64 * 64..end.next_multiple_of(64) };
        let before: Vec<u8> = unchanged[sectors.clone()].iter().flat_map(|word| word.to_be_bytes()).collect();
        let bytes: Vec<u8> = words[sectors.clone()].iter().flat_map(|word| word.to_be_bytes()).collect();
        let at = table + sectors.start as u64 * 8;
        match disk::write(file, at, &bytes) {
            // A new table is nobody's yet.
            Err(errno) if place.is_none() || shared => return Err(Trouble::Errno(errno)),
            written => written.map_err(|errno| apart(file, at, &before, errno))?,
        }
        if shared {
            // Only what is on stable storage may take the place of what was.
            chain.flush(top.file)?;
        }
        if place.is_none() || shared {
            let (start, mut entries) = locked.l1_sector(l1);
            let sector = |entries: &[u64]| {
                let mut bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_be_bytes()).collect();
                // What follows the last entry in its sector is nobody's.
                bytes.resize(512, 0);
                bytes
            };
            let (before, at) = (sector(&entries), geometry.l1_offset + start * 8);
            entries[(l1 - start) as usize] = COPIED | table;
            disk::write(file, at, &sector(&entries)).map_err(|errno| apart(file, at, &before, errno))?;
        }
        // Counted before it can be looked up: a durable write that finds it must not take it for stable.
        self.changed();
        if place.is_none() || shared {
            locked.set_l1(l1, COPIED | table);
        }
        locked.set(l1, first, &words[first..end]);
        Ok(gone)
    }
}

/// What a write of metadata that has failed is: no more than that if the file still has what was there before.
fn apart(file: &dyn storage::Storage, at: u64, before: &[u8], errno: i32) -> Trouble {
    let mut now = vec![0; before.len()];
    match disk::read(file, at, &mut now) {
        Ok(()) if now == before => Trouble::Errno(errno),
        _ => Trouble::Apart(errno),
    }
}

/// The clusters of the image that an entry names.
fn named(geometry: &Geometry, cluster: Cluster) -> Option<Range<u64>> {
    let bits = geometry.cluster_bits;
    match cluster {
        Cluster::Plain { host, .. } => host.map(|host| host >> bits..(host >> bits) + 1),
        Cluster::Compressed(at) => Some(at.host >> bits..((at.host + at.len - 1) >> bits) + 1),
    }
}
