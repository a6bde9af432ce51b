//! Refcounts of the image that is written: the table, its blocks, and how both grow.
//!
//! Every change is written at once. What must be on stable storage before what follows is flushed here; when callers have to
//! flush, their function says so.

use super::chain::Chain;
use super::disk;
use super::error::Trouble;
use crate::FormatError;
use crate::field::u64_at;
use crate::geometry::Geometry;
use crate::header;
use crate::refcount::{self, Growth};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::PoisonError;

/// Blocks that are kept in memory, in bytes; at least four.
const BLOCK_BYTES_MAX: u64 = 8 << 20;

/// See the top.
pub(super) struct Refcounts {
    table: Vec<u64>,
    table_offset: u64,
    table_clusters: u64,
    blocks: HashMap<u64, Vec<u8>>,
    /// What may not be allocated because the header that was read names it.
    geometry: Geometry,
    /// A device: what lies behind its last used cluster is not known to be zeroes.
    device: bool,
}

impl Refcounts {
    /// Of the first image of a chain.
    pub(super) fn read(chain: &Chain) -> Result<Refcounts, Trouble> {
        let image = chain.top();
        let table_clusters = u64::from(image.header.refcount_table_clusters);
        let mut bytes = vec![0; (table_clusters << image.geometry.cluster_bits) as usize];
        let file = chain.file(image.file);
        disk::read(file, image.header.refcount_table_offset, &mut bytes)?;
        let table = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_be_bytes)).collect();
        Ok(Refcounts {
            table,
            table_offset: image.header.refcount_table_offset,
            table_clusters,
            blocks: HashMap::new(),
            geometry: image.geometry.clone(),
            device: file.describe().kind == "device",
        })
    }

    fn cluster_bytes(&self) -> u64 {
        self.geometry.cluster_bytes()
    }

    fn per_block(&self) -> u64 {
        self.geometry.refcounts_in_block()
    }

    /// The block with this number; `None`: there is none.
    fn block(&mut self, chain: &Chain, number: u64) -> Result<Option<&mut Vec<u8>>, Trouble> {
        let Some(value) = self.table.get(number as usize).copied() else { return Ok(None) };
        let place = refcount::table_entry(&self.geometry, number, value).map_err(|error| Trouble::Format(0, error))?;
        let Some(place) = place else { return Ok(None) };
        if !self.blocks.contains_key(&number) {
            let file = chain.file(chain.top().file);
            if place >= file.capacity_bytes() {
                let rule = "the block does not lie behind the end of the image";
                return Err(Trouble::Format(0, FormatError::RefcountTable { index: number, value, rule }));
            }
            let most = (BLOCK_BYTES_MAX >> self.geometry.cluster_bits).max(4) as usize;
            if self.blocks.len() >= most {
                // All are written: which one goes matters little.
                let other = self.blocks.keys().copied().find(|other| *other != number);
                other.and_then(|other| self.blocks.remove(&other));
            }
            let mut bytes = vec![0; self.cluster_bytes() as usize];
            disk::read(file, place, &mut bytes)?;
            self.blocks.insert(number, bytes);
        }
        Ok(self.blocks.get_mut(&number))
    }

    /// The refcount of a cluster.
    pub(super) fn get(&mut self, chain: &Chain, cluster: u64) -> Result<u64, Trouble> {
        let (order, per_block) = (self.geometry.refcount_order, self.per_block());
        let block = self.block(chain, cluster / per_block)?;
        Ok(block.map_or(0, |block| refcount::get(block, order, cluster % per_block)))
    }

    /// Changes the refcounts of clusters of one block.
    fn change(
        &mut self,
        chain: &Chain,
        clusters: Range<u64>,
        value: impl Fn(u64) -> Option<u64>,
    ) -> Result<(), Trouble> {
        let (order, per_block) = (self.geometry.refcount_order, self.per_block());
        let number = clusters.start / per_block;
        let Some(block) = self.block(chain, number)? else {
            let rule = "what is used has a refcount block";
            let host = clusters.start * self.cluster_bytes();
            return Err(Trouble::Format(0, FormatError::Refcount { host, refcount: 0, rule }));
        };
        let (first, last) = (clusters.start % per_block, (clusters.end - 1) % per_block);
        let mut changed = block.clone();
        for index in first..=last {
            let before = refcount::get(&changed, order, index);
            let after = value(before).filter(|after| *after <= refcount::max(order));
            let Some(after) = after else {
                let host = (number * per_block + index) << self.geometry.cluster_bits;
                let rule = "what is used has a refcount of at least 1, and it fits its width";
                return Err(Trouble::Format(0, FormatError::Refcount { host, refcount: before, rule }));
            };
            refcount::set(&mut changed, order, index, after);
        }
        let sectors = refcount::sectors(order, first, last);
        let place = self.table[number as usize] + sectors.start as u64;
        disk::write(chain.file(chain.top().file), place, &changed[sectors])?;
        self.blocks.insert(number, changed);
        Ok(())
    }

    /// Counts clusters that were free, of one block, as used once.
    pub(super) fn take(&mut self, chain: &Chain, clusters: Range<u64>) -> Result<(), Trouble> {
        self.change(chain, clusters, |before| (before == 0).then_some(1))
    }

    /// Counts so many uses more of clusters of one block, which somebody uses.
    pub(super) fn add(&mut self, chain: &Chain, clusters: Range<u64>, uses: u64) -> Result<(), Trouble> {
        self.change(chain, clusters, |before| before.checked_add(uses).filter(|_| before > 0))
    }

    /// Counts so many uses less of clusters of one block.
    pub(super) fn subtract(&mut self, chain: &Chain, clusters: Range<u64>, uses: u64) -> Result<(), Trouble> {
        self.change(chain, clusters, |before| before.checked_sub(uses))
    }

    /// Takes clusters that follow one another, for a table: they read as zeroes, and are counted, which is not flushed.
    pub(super) fn take_together(&mut self, chain: &Chain, clusters: u64) -> Result<Range<u64>, Trouble> {
        let per_block = self.per_block();
        // A block that is made lies in the first cluster that it describes.
        if clusters >= per_block {
            let last = self.table.iter().rposition(|value| *value != 0);
            return self.grow(chain, last.map_or(0, |last| last as u64 + 1), clusters);
        }
        let mut from = 1;
        loop {
            let found = self.find(chain, from, per_block)?;
            if let Some(run) = found.iter().find(|run| run.end - run.start >= clusters) {
                let run = run.start..run.start + clusters;
                self.clear(chain, &run)?;
                self.take(chain, run.clone())?;
                return Ok(run);
            }
            from = found.last().map_or(from, |last| (last.start / per_block + 1) * per_block);
        }
    }

    /// Behind the last cluster that there can be.
    fn end(&self, chain: &Chain) -> u64 {
        if self.device { chain.file(chain.top().file).capacity_bytes() >> self.geometry.cluster_bits } else { u64::MAX }
    }

    /// Counts one use less of each of these clusters; gives those that nobody uses any more.
    pub(super) fn release(&mut self, chain: &Chain, clusters: Range<u64>) -> Result<Vec<Range<u64>>, Trouble> {
        let mut free: Vec<Range<u64>> = Vec::new();
        let mut at = clusters.start;
        while at < clusters.end {
            let stop = clusters.end.min((at / self.per_block() + 1) * self.per_block());
            self.change(chain, at..stop, |before| before.checked_sub(1))?;
            for cluster in at..stop {
                if self.get(chain, cluster)? == 0 {
                    append(&mut free, cluster);
                }
            }
            at = stop;
        }
        Ok(free)
    }

    /// Those of these clusters that are used once.
    pub(super) fn used_once(&mut self, chain: &Chain, clusters: Range<u64>) -> Result<Vec<Range<u64>>, Trouble> {
        let mut runs = Vec::new();
        for cluster in clusters {
            if self.get(chain, cluster)? == 1 {
                append(&mut runs, cluster);
            }
        }
        Ok(runs)
    }

    /// Clusters of one block, from cluster `from` on, that are free: at most `want`. Makes a block where there is none, which is on stable
    /// storage then. Where to go on the next time is behind the last of them.
    pub(super) fn find(&mut self, chain: &Chain, from: u64, want: u64) -> Result<Vec<Range<u64>>, Trouble> {
        let (order, per_block) = (self.geometry.refcount_order, self.per_block());
        let mut from = from.max(1);
        let end = self.end(chain);
        loop {
            if from >= end {
                return Err(Trouble::Errno(libc::ENOSPC));
            }
            let number = from / per_block;
            if self.table.get(number as usize).is_none_or(|value| *value == 0) {
                if self.geometry.is_metadata((number * per_block) << self.geometry.cluster_bits) {
                    // What is there is used, whatever is counted: it is left alone.
                    from = (number + 1) * per_block;
                    continue;
                }
                self.make_block(chain, number)?;
            }
            let bits = self.geometry.cluster_bits;
            let metadata = self.geometry.clone();
            let Some(block) = self.block(chain, number)? else { return Err(Trouble::Errno(libc::EIO)) };
            let mut found: Vec<Range<u64>> = Vec::new();
            let mut count = 0;
            for index in from % per_block..per_block {
                let cluster = number * per_block + index;
                if count == want || cluster >= end {
                    break;
                }
                if refcount::get(block, order, index) != 0 || metadata.is_metadata(cluster << bits) {
                    continue;
                }
                count += 1;
                append(&mut found, cluster);
            }
            if !found.is_empty() {
                return Ok(found);
            }
            from = (number + 1) * per_block;
        }
    }

    /// Has the image reach over these clusters, and lets them read as zeroes. What is behind the end of a file does already.
    pub(super) fn clear(&self, chain: &Chain, clusters: &Range<u64>) -> Result<(), Trouble> {
        let file = chain.file(chain.top().file);
        let bits = self.geometry.cluster_bits;
        let (start, end) = (clusters.start << bits, clusters.end << bits);
        if end >= 1 << 56 {
            return Err(Trouble::Errno(libc::EFBIG));
        }
        let there = file.capacity_bytes();
        if end > there {
            file.resize(end).map_err(|error| match error {
                storage::StorageError::Io { .. } => error.raw_errno(),
                // A device that is full.
                _ => libc::ENOSPC,
            })?;
        }
        let used = if self.device { end } else { end.min(there) };
        if start < used {
            disk::zero(file, start, used - start)?;
        }
        Ok(())
    }

    /// Makes the block with this number in the first cluster that it describes, so that it counts itself.
    fn make_block(&mut self, chain: &Chain, number: u64) -> Result<(), Trouble> {
        if number >= self.table.len() as u64 {
            return self.grow(chain, number, 0).map(|_| ());
        }
        let place = number * self.per_block();
        if self.geometry.is_metadata(place << self.geometry.cluster_bits) {
            let rule = "what is used has a refcount block";
            let host = place << self.geometry.cluster_bits;
            return Err(Trouble::Format(0, FormatError::Refcount { host, refcount: 0, rule }));
        }
        self.clear(chain, &(place..place + 1))?;
        let mut block = vec![0; self.cluster_bytes() as usize];
        refcount::set(&mut block, self.geometry.refcount_order, 0, 1);
        let file = chain.file(chain.top().file);
        disk::write(file, place << self.geometry.cluster_bits, &block)?;
        chain.flush(chain.top().file)?;
        let mut entries = self.table.clone();
        entries[number as usize] = place << self.geometry.cluster_bits;
        let first = number as usize / 64 * 64;
        let sector: Vec<u8> = entries[first..first + 64].iter().flat_map(|entry| entry.to_be_bytes()).collect();
        disk::write(file, self.table_offset + first as u64 * 8, &sector)?;
        chain.flush(chain.top().file)?;
        self.table = entries;
        self.blocks.insert(number, block);
        Ok(())
    }

    /// Makes a larger table, which reaches over block `number`: behind everything, with the blocks that describe it in
    /// front of it, and `beside` clusters behind it, which it gives. The header names the new one when it is on stable
    /// storage; then the old one is free.
    fn grow(&mut self, chain: &Chain, number: u64, beside: u64) -> Result<Range<u64>, Trouble> {
        let (bits, per_block, order) = (self.geometry.cluster_bits, self.per_block(), self.geometry.refcount_order);
        let growth = refcount::growth(&self.geometry, self.table_clusters, number, beside);
        let Growth { blocks: count, table_clusters } = growth.ok_or(Trouble::Errno(libc::EFBIG))?;
        let base = number * per_block;
        let used = base..base + count + table_clusters + beside;
        self.clear(chain, &used)?;
        let mut table = self.table.clone();
        table.resize((table_clusters * self.cluster_bytes() / 8) as usize, 0);
        let file = chain.file(chain.top().file);
        for at in 0..count {
            let mut block = vec![0; self.cluster_bytes() as usize];
            for index in 0..(used.end - base).saturating_sub(at * per_block).min(per_block) {
                refcount::set(&mut block, order, index, 1);
            }
            disk::write(file, (base + at) << bits, &block)?;
            table[(number + at) as usize] = (base + at) << bits;
            self.blocks.insert(number + at, block);
        }
        let table_offset = (base + count) << bits;
        let bytes: Vec<u8> = table.iter().flat_map(|entry| entry.to_be_bytes()).collect();
        disk::write(file, table_offset, &bytes)?;
        chain.flush(chain.top().file)?;
        let field = [&table_offset.to_be_bytes()[..], &(table_clusters as u32).to_be_bytes()].concat();
        // After an error nobody knows which table the header names.
        patch_header(chain, header::at::REFCOUNT_TABLE, &field).map_err(|trouble| match trouble {
            Trouble::Errno(errno) => Trouble::Apart(errno),
            other => other,
        })?;
        chain.flush(chain.top().file)?;
        let old = self.table_offset >> bits..(self.table_offset >> bits) + self.table_clusters;
        (self.table, self.table_offset, self.table_clusters) = (table, table_offset, table_clusters);
        self.release(chain, old)?;
        Ok(used.end - beside..used.end)
    }
}

/// Adds a cluster behind all others to runs of clusters.
fn append(runs: &mut Vec<Range<u64>>, cluster: u64) {
    match runs.last_mut() {
        Some(last) if last.end == cluster => last.end += 1,
        _ => runs.push(cluster..cluster + 1),
    }
}

/// Changes bytes in the first sector of the first image.
pub(super) fn patch_header(chain: &Chain, at: u64, bytes: &[u8]) -> Result<(), Trouble> {
    change_first_sector(chain, |sector| sector[at as usize..at as usize + bytes.len()].copy_from_slice(bytes))
}

/// Sets an incompatible feature beside those that the header has by now.
pub(super) fn set_incompatible(chain: &Chain, feature: u64) -> Result<(), Trouble> {
    const AT: usize = header::at::INCOMPATIBLE as usize;
    change_first_sector(chain, |sector| {
        let features = u64_at(sector, AT).unwrap_or_default() | feature;
        sector[AT..AT + 8].copy_from_slice(&features.to_be_bytes());
    })
}

fn change_first_sector(chain: &Chain, change: impl FnOnce(&mut [u8; 512])) -> Result<(), Trouble> {
    // Others change other fields of the sector at any time.
    let _one_at_a_time = chain.header.lock().unwrap_or_else(PoisonError::into_inner);
    let file = chain.file(chain.top().file);
    let mut sector = [0; 512];
    disk::read(file, 0, &mut sector)?;
    change(&mut sector);
    disk::write(file, 0, &sector)?;
    Ok(())
}
