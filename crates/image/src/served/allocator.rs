//! Which clusters are free, which are ready to be used, and which were used until a moment ago.
//!
//! Clusters are made ready in numbers, before they are needed: **what is in the reserve has refcount 1 and reads as zeroes, on
//! stable storage**. So an L2 entry may name a cluster of the reserve at any time, in whatever order a kernel writes things: a power
//! cut leaves the cluster unused, or used and counted, with its data or zeroes in it. What a cut leaves in the reserve is a leak, and
//! nothing worse.
//!
//! What an L2 entry does not name any more is in *limbo* until a flush has made that true on disk and nobody who has looked
//! the old entry up is under way ([`Epochs`]). Then it is counted down, and what nobody uses becomes a hole and free.

use super::chain::Chain;
use super::error::Trouble;
use super::refcounts::Refcounts;
use crate::epochs::Epochs;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that the reserve gets at first, and at most, each time it is empty: what a kill leaks.
const RESERVE_BYTES: Range<u64> = 1 << 20..16 << 20;

/// Most bytes that rest in limbo for want of a flush, and most runs of clusters.
const LIMBO_BYTES_MAX: u64 = 32 << 20;
const LIMBO_RUNS_MAX: usize = 4096;

/// Clusters that nobody names any more.
struct Old {
    clusters: Range<u64>,
    /// When they were freed, in epochs and in changes of the image.
    epoch: u64,
    change: u64,
}

/// What comes back from those who cannot wait for the allocator: whoever has it next takes it up.
pub(super) struct Returns {
    epochs: Arc<Epochs>,
    /// Held for a push or a swap, never over I/O.
    list: Mutex<Vec<Return>>,
}

enum Return {
    /// As they came out of the reserve.
    Unused(Range<u64>),
    /// Something may have been written there until this epoch.
    Written(Range<u64>, u64),
}

impl Returns {
    pub(super) fn new(epochs: Arc<Epochs>) -> Arc<Returns> {
        Arc::new(Returns { epochs, list: Mutex::new(Vec::new()) })
    }

    fn push(&self, back: Return) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(back);
    }
}

/// Clusters out of the reserve that no entry names yet. Dropped, they come back by way of limbo.
pub(super) struct Taken {
    returns: Arc<Returns>,
    clusters: Range<u64>,
}

impl Taken {
    pub(super) fn new(returns: &Arc<Returns>, clusters: Range<u64>) -> Taken {
        Taken { returns: returns.clone(), clusters }
    }

    /// From now on an entry may name them.
    pub(super) fn keep(mut self) {
        self.clusters = 0..0;
    }

    /// Nothing was written there.
    pub(super) fn unused(mut self) {
        self.returns.push(Return::Unused(std::mem::take(&mut self.clusters)));
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.clusters.is_empty() {
            let epoch = self.returns.epochs.now();
            self.returns.push(Return::Written(self.clusters.clone(), epoch));
        }
    }
}

impl std::fmt::Debug for Taken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Taken({:?})", self.clusters)
    }
}

/// See the top.
pub(super) struct Allocator {
    refcounts: Refcounts,
    /// Runs of clusters, the next first.
    reserve: VecDeque<Range<u64>>,
    reserve_bytes: u64,
    /// No cluster before this one is free.
    scan_from: u64,
    limbo: VecDeque<Old>,
    /// Clusters in limbo.
    resting: u64,
    /// Bytes of a cluster that has compressed data, of which others may use the rest.
    packed: Range<u64>,
}

impl Allocator {
    pub(super) fn new(refcounts: Refcounts) -> Allocator {
        Allocator {
            refcounts,
            reserve: VecDeque::new(),
            reserve_bytes: RESERVE_BYTES.start,
            scan_from: 1,
            limbo: VecDeque::new(),
            resting: 0,
            packed: 0..0,
        }
    }

    /// Takes up to `most` clusters that follow one another out of the reserve, if it has any.
    /// Where their table is yet to be made, one before them is left to it: tables lie before what they name, as QEMU has them.
    pub(super) fn take_ready(&mut self, most: u64, has_table: bool) -> Option<Range<u64>> {
        if !has_table
            && let Some(first) = self.reserve.front_mut()
            && first.end - first.start > 1
        {
            let others = first.start + 1..first.end;
            first.end = others.start;
            self.reserve.insert(1, others);
        }
        let number = usize::from(!has_table && self.reserve.len() > 1);
        let run = self.reserve.get_mut(number)?;
        let taken = run.start..run.end.min(run.start + most);
        run.start = taken.end;
        if run.is_empty() {
            self.reserve.remove(number);
        }
        Some(taken)
    }

    /// Takes up to `most` clusters that follow one another. Blocks when the reserve is empty.
    pub(super) fn take(&mut self, chain: &Chain, most: u64, has_table: bool) -> Result<Range<u64>, Trouble> {
        if self.reserve.is_empty() {
            self.refill(chain)?;
        }
        self.take_ready(most, has_table).ok_or(Trouble::Errno(libc::ENOSPC))
    }

    /// Takes room for compressed data, behind that of others where that is possible: each cluster is counted once for all that begins or
    /// ends in it. Gives the first byte.
    pub(super) fn pack(&mut self, chain: &Chain, bytes: u64) -> Result<u64, Trouble> {
        let bits = chain.top().geometry.cluster_bits;
        let bytes = bytes.next_multiple_of(512);
        let mut at = self.packed.start;
        let shared = (!self.packed.is_empty()).then_some(at >> bits..(at >> bits) + 1);
        if self.packed.end - at < bytes {
            let next = self.take(chain, 1, true)?;
            // What does not follow begins anew.
            if next.start << bits != self.packed.end || shared.is_none() {
                at = next.start << bits;
                self.packed = at + bytes..next.end << bits;
                return Ok(at);
            }
            self.packed.end = next.end << bits;
        }
        if let Some(cluster) = shared {
            self.refcounts.add(chain, cluster, 1)?;
        }
        self.packed.start = at + bytes;
        Ok(at)
    }

    /// Takes clusters that follow one another, for a table. They are none of the reserve: that they are counted is not
    /// flushed.
    pub(super) fn take_together(&mut self, chain: &Chain, clusters: u64) -> Result<Range<u64>, Trouble> {
        self.refcounts.take_together(chain, clusters)
    }

    /// Takes up what came back meanwhile.
    pub(super) fn take_up(&mut self, returns: &Returns) {
        let list = std::mem::take(&mut *returns.list.lock().unwrap_or_else(PoisonError::into_inner));
        for back in list {
            match back {
                Return::Unused(clusters) => self.reserve.push_front(clusters),
                // No entry has named them: no flush has to be waited for.
                Return::Written(clusters, epoch) => self.retire(clusters, epoch, 0),
            }
        }
    }

    fn refill(&mut self, chain: &Chain) -> Result<(), Trouble> {
        let want = (self.reserve_bytes >> chain.top().geometry.cluster_bits).max(1);
        let found = self.refcounts.find(chain, self.scan_from, want)?;
        for run in &found {
            self.refcounts.clear(chain, run)?;
        }
        for (at, run) in found.iter().enumerate() {
            if let Err(trouble) = self.refcounts.take(chain, run.clone()) {
                // What is counted by now is a leak at worst.
                self.scan_from = found[at].start;
                return Err(trouble);
            }
        }
        chain.flush(chain.top().file)?;
        if let Some(last) = found.last() {
            self.scan_from = last.end;
        }
        self.reserve.extend(found);
        self.reserve_bytes = (self.reserve_bytes * 2).min(RESERVE_BYTES.end);
        Ok(())
    }

    /// Clusters that the image named until its change number `change`.
    pub(super) fn retire(&mut self, clusters: Range<u64>, epoch: u64, change: u64) {
        self.resting += clusters.end - clusters.start;
        match self.limbo.back_mut() {
            Some(last) if last.clusters.end == clusters.start && (last.epoch, last.change) == (epoch, change) => {
                last.clusters.end = clusters.end;
            }
            _ => self.limbo.push_back(Old { clusters, epoch, change }),
        }
    }

    /// Runs of clusters that are not free yet.
    pub(super) fn in_limbo(&self) -> usize {
        self.limbo.len()
    }

    /// Whether so much is in limbo that it must not wait for a guest's flush: one that never flushes would let the image grow
    /// without an end.
    pub(super) fn is_overfull(&self, chain: &Chain) -> bool {
        let most = (LIMBO_BYTES_MAX >> chain.top().geometry.cluster_bits).max(16);
        self.resting > most || self.limbo.len() > LIMBO_RUNS_MAX
    }

    /// Takes the first run out of limbo that a change up to `flushed`, which is on stable storage, has retired, if it is nobody's: the
    /// space of what has one use left can be given back, and then it has to be [released](Allocator::release).
    pub(super) fn due(&mut self, now: u64, flushed: u64) -> Option<Range<u64>> {
        let old = self.limbo.front()?;
        if old.change > flushed || !Epochs::is_over(old.epoch, now) {
            return None;
        }
        let clusters = old.clusters.clone();
        self.limbo.pop_front();
        self.resting -= clusters.end - clusters.start;
        Some(clusters)
    }

    /// Those of these clusters that have one use left.
    pub(super) fn last_uses(&mut self, chain: &Chain, clusters: Range<u64>) -> Result<Vec<Range<u64>>, Trouble> {
        self.refcounts.used_once(chain, clusters)
    }

    /// Counts one use less; what nobody uses any more is free.
    pub(super) fn release(&mut self, chain: &Chain, clusters: Range<u64>) -> Result<(), Trouble> {
        let free = self.refcounts.release(chain, clusters)?;
        self.scan_from = free.iter().map(|run| run.start).fold(self.scan_from, u64::min);
        Ok(())
    }

    /// The counts themselves, for whoever uses the image alone.
    pub(super) fn refcounts(&mut self) -> &mut Refcounts {
        &mut self.refcounts
    }

    /// Gives the reserve back.
    pub(super) fn close(&mut self, chain: &Chain) -> Result<(), Trouble> {
        while let Some(run) = self.reserve.pop_front() {
            self.scan_from = self.scan_from.min(run.start);
            self.refcounts.release(chain, run)?;
        }
        Ok(())
    }
}
