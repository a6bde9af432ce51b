//! Internal snapshots: taken, applied and deleted, while nobody else uses the image. All of it blocks.
//!
//! What is used is never counted less often than that, whenever the power goes: counts go up before something is named, and down when it
//! has gone. Bit 63 of an entry, which lets a cluster be written in place, is cleared before a second user is named, and set when the last
//! other one has gone. So a cut leaves the image as it was or as it is to be, and leaks at worst. Between the steps there are barriers.
//! Of what is counted more often than it is used, bit 63 may then say otherwise than the count: `qemu-img check` calls that errors, and
//! mends it with `-r leaks`.

use super::Qcow2Storage;
use super::allocator::Allocator;
use super::chain::Chain;
use super::disk;
use super::error::Trouble;
use super::refcounts::patch_header;
use crate::entry::{self, COPIED, Cluster};
use crate::features;
use crate::geometry::Geometry;
use crate::header::{self, Header};
use crate::snapshot::{self, Raw, Snapshot};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::MutexGuard;
use std::time::Duration;
use storage::StorageError;

/// Of an image with an external data file.
pub(crate) const ONE_STATE: &str = "has an external data file, which has one state of the disk and no other";

/// Why nothing was done, or not all.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub(crate) enum SnapshotError {
    /// {0}
    Refused(String),
    /// {0}
    Failed(StorageError),
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotChange<'a> {
    /// Takes one of this name.
    Take {
        /// Its name, 1 to 255 bytes.
        name: &'a str,
        /// Since 1970.
        at: Duration,
    },
    /// Has the disk be as it was at one, an identifier or a name. What it is now is lost.
    Apply(&'a str),
    /// Forgets one.
    Delete(&'a str),
}

impl Qcow2Storage {
    /// Takes, applies or deletes a snapshot. The image is sound, open for writing and used by nobody, and is closed afterwards: the
    /// storage does not see what has changed.
    ///
    /// # Errors
    /// There is no such snapshot, or already one, or it cannot be had in this image: nothing has changed. The image cannot be read or
    /// written: it has what a power cut leaves.
    pub(crate) fn change_snapshots(&self, change: SnapshotChange<'_>) -> Result<(), SnapshotError> {
        let chain = &self.shared.chain;
        self.admit(change)?;
        let done = (|| {
            let mut work = Work::begin(chain, self.shared.allocator()?)?;
            // What speaks of contents that stay is kept.
            let mut unchanged = || Ok(self.shared.make_ready_but_for(features::BITMAPS)?);
            match change {
                SnapshotChange::Take { name, at } => work.take(name, at, &mut unchanged),
                SnapshotChange::Apply(wanted) => work.apply(wanted, &mut |size_bytes| {
                    self.shared.make_ready()?;
                    Ok(self.shared.bitmaps.replace(chain, size_bytes)?)
                }),
                SnapshotChange::Delete(wanted) => work.delete(wanted, &mut unchanged),
            }
        })();
        done.map_err(|why| match why {
            Why::Refused(reason) => SnapshotError::Refused(reason),
            Why::Trouble(trouble) => SnapshotError::Failed(self.failed(storage::Action::Write, &trouble)),
        })
    }

    /// Whether snapshots can be had at all.
    fn admit(&self, change: SnapshotChange<'_>) -> Result<(), SnapshotError> {
        let refused = |reason: &str| Err(SnapshotError::Refused(reason.to_owned()));
        if self.shared.chain.top().has_data_file() {
            return refused(ONE_STATE);
        }
        match change {
            SnapshotChange::Take { name, .. } if !(1..=snapshot::NAME_BYTES_MAX).contains(&name.len()) => {
                refused("the name of a snapshot has 1 to 255 bytes")
            }
            _ => Ok(()),
        }
    }
}

/// Why something was not done.
enum Why {
    Refused(String),
    Trouble(Trouble),
}

impl From<Trouble> for Why {
    fn from(trouble: Trouble) -> Why {
        Why::Trouble(trouble)
    }
}

impl From<i32> for Why {
    fn from(errno: i32) -> Why {
        Why::Trouble(Trouble::Errno(errno))
    }
}

/// How often clusters are used.
#[derive(Default)]
struct Uses(BTreeMap<u64, u32>);

impl Uses {
    fn add(&mut self, clusters: Range<u64>) {
        for cluster in clusters {
            let uses = self.0.entry(cluster).or_default();
            *uses = uses.saturating_add(1);
        }
    }

    fn of(&self, cluster: u64) -> u64 {
        self.0.get(&cluster).copied().unwrap_or(0).into()
    }

    /// Uses of which the others have none.
    fn beyond(&self, others: &Uses) -> Uses {
        let more = |(cluster, uses): (&u64, &u32)| {
            let others = others.0.get(cluster).copied().unwrap_or(0);
            (*uses > others).then(|| (*cluster, uses - others))
        };
        Uses(self.0.iter().filter_map(more).collect())
    }

    /// Runs of clusters that are used as often, none of them across a multiple of `per_block`.
    fn runs(&self, per_block: u64) -> Vec<(Range<u64>, u64)> {
        let mut runs: Vec<(Range<u64>, u64)> = Vec::new();
        for (cluster, uses) in &self.0 {
            match runs.last_mut() {
                Some((run, same)) if run.end == *cluster && *same == u64::from(*uses) && cluster % per_block != 0 => {
                    run.end += 1;
                }
                _ => runs.push((*cluster..cluster + 1, (*uses).into())),
            }
        }
        runs
    }
}

/// What is done before anything is written.
type Begin<'a> = &'a mut dyn FnMut() -> Result<(), Why>;

/// An image while its snapshots are changed.
struct Work<'a> {
    chain: &'a Chain,
    allocator: MutexGuard<'a, Allocator>,
    header: &'a Header,
    geometry: &'a Geometry,
    snapshots: Vec<Raw>,
}

impl<'a> Work<'a> {
    fn begin(chain: &'a Chain, allocator: MutexGuard<'a, Allocator>) -> Result<Work<'a>, Trouble> {
        let (header, geometry) = (&chain.top().header, &chain.top().geometry);
        let mut bytes = disk::Bytes(chain.file(chain.top().file));
        let snapshots = snapshot::all(&mut bytes, header).map_err(|error| match error {
            snapshot::TableError::Io(error) => Trouble::Errno(error.raw_os_error().unwrap_or(libc::EIO)),
            snapshot::TableError::Format(error) => Trouble::Format(0, error),
        })?;
        Ok(Work { chain, allocator, header, geometry, snapshots })
    }

    fn find(&self, wanted: &str) -> Result<usize, Why> {
        snapshot::find(&self.snapshots, wanted).map_err(Why::Refused)
    }

    /// `begin` is called once nothing speaks against it, before anything is written; so in all of them.
    fn take(&mut self, name: &str, at: Duration, begin: Begin<'_>) -> Result<(), Why> {
        if self.snapshots.iter().any(|raw| raw.snapshot.is(name)) {
            return Err(Why::Refused(format!("has a snapshot `{}` already", name.escape_debug())));
        }
        if self.snapshots.len() >= header::SNAPSHOTS_MAX as usize {
            return Err(Why::Refused(format!("has {} snapshots: that is the most", self.snapshots.len())));
        }
        let l1 = self.table(self.header.l1_offset, self.header.l1_entries)?;
        let uses = self.uses(&l1)?;
        self.admit(&uses)?;
        let mut snapshot = Snapshot {
            l1_offset: 0,
            l1_entries: self.header.l1_entries,
            id: snapshot::new_id(&self.snapshots),
            name: name.to_owned(),
            taken_s: u32::try_from(at.as_secs()).unwrap_or(u32::MAX),
            vm_state_bytes: 0,
            size_bytes: Some(self.header.size_bytes),
        };
        let entries = self.entries().collect::<Vec<_>>().concat();
        if (entries.len() + snapshot.encode().len()) as u64 > snapshot::TABLE_BYTES_MAX {
            return Err(Why::Refused("its table of snapshots has no room for another one".to_owned()));
        }
        begin()?;
        let own = shared(&l1);
        // Where there is no room for what is new, nothing else has changed.
        let copy = self.allocate(own.len() as u64 * 8)?;
        snapshot.l1_offset = copy;
        let entries = [entries, snapshot.encode()].concat();
        let written = self.write(copy, &words(&own)).and_then(|()| self.lay_out(&entries));
        let place = match written {
            Ok(place) => place,
            Err(why) => {
                self.forget(self.clusters(copy, own.len() as u64 * 8))?;
                return Err(why);
            }
        };
        self.share(&uses)?;
        self.mark_tables(&l1, |_, _| Ok(false))?;
        self.write(self.header.l1_offset, &words(&own))?;
        self.flush()?;
        let old = self.list(place, self.snapshots.len() + 1)?;
        self.forget(old)
    }

    fn delete(&mut self, wanted: &str, begin: Begin<'_>) -> Result<(), Why> {
        let index = self.find(wanted)?;
        let Snapshot { l1_offset, l1_entries, .. } = self.snapshots[index].snapshot;
        let l1 = self.table(l1_offset, l1_entries)?;
        let mut gone = self.uses(&l1)?;
        gone.add(self.clusters(l1_offset, l1.len() as u64 * 8));
        begin()?;
        let kept: Vec<_> =
            self.entries().enumerate().filter(|(number, _)| *number != index).map(|(_, raw)| raw).collect();
        let place = self.lay_out(&kept.concat())?;
        gone.add(self.list(place, kept.len())?);
        // What only the disk uses from now on may be written in place.
        let disk = self.table(self.header.l1_offset, self.header.l1_entries)?;
        let alone = |work: &mut Self, cluster| Ok(work.count(cluster)? == gone.of(cluster) + 1);
        self.mark_tables(&disk, alone)?;
        let mut new = disk.clone();
        for (index, word) in (0..).zip(&mut new) {
            if let Some(place) = self.l2_table(index, *word)? {
                let is_own = alone(self, place >> self.geometry.cluster_bits)?;
                *word = marked(*word, is_own);
            }
        }
        if new != disk {
            self.write(self.header.l1_offset, &words(&new))?;
        }
        self.flush()?;
        self.give_back(&gone)
    }

    fn apply(&mut self, wanted: &str, begin: &mut dyn FnMut(u64) -> Result<(), Why>) -> Result<(), Why> {
        let index = self.find(wanted)?;
        let then = self.snapshots[index].snapshot.header(self.header, index as u32);
        // It is the snapshot that cannot be had: nothing is wrong with the disk.
        let then = then.map_err(|error| Why::Refused(error.to_string()))?;
        if then.size_bytes < 512 {
            let reason = format!(
                "snapshot `{}` is of a disk of {} bytes, less than a sector",
                wanted.escape_debug(),
                then.size_bytes
            );
            return Err(Why::Refused(reason));
        }
        // What lies behind the disk's end is the state of a machine, and must not come up when the disk grows.
        let mut l1 = self.table(then.l1_offset, then.l1_entries)?;
        let needed = then.size_bytes.div_ceil(then.l2_covers_bytes()) as usize;
        l1.iter_mut().skip(needed).for_each(|word| *word = 0);
        let now = self.table(self.header.l1_offset, self.header.l1_entries)?;
        let (mut old, new) = (self.uses(&now)?, self.uses(&l1)?);
        old.add(self.clusters(self.header.l1_offset, now.len() as u64 * 8));
        // What both use stays counted as it is: it may be used as often as can be counted.
        let (gone, more) = (old.beyond(&new), new.beyond(&old));
        self.admit(&more)?;
        begin(then.size_bytes)?;
        let own = shared(&l1);
        let place = self.allocate(own.len() as u64 * 8)?;
        self.write(place, &words(&own))?;
        self.share(&more)?;
        self.mark_tables(&l1, |_, _| Ok(false))?;
        self.flush()?;
        // Size, the encryption that there is not, and where the L1 table is follow one another.
        let fields = [
            &then.size_bytes.to_be_bytes()[..],
            &0u32.to_be_bytes(),
            &then.l1_entries.to_be_bytes(),
            &place.to_be_bytes(),
        ];
        patch_header(self.chain, header::at::SIZE, &fields.concat())?;
        self.flush()?;
        self.give_back(&gone)
    }

    fn flush(&self) -> Result<(), Why> {
        Ok(self.chain.flush(self.chain.top().file)?)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Why> {
        let mut whole = bytes.to_vec();
        whole.resize(bytes.len().next_multiple_of(512), 0);
        Ok(disk::write(self.chain.file(self.chain.top().file), offset, &whole)?)
    }

    fn read(&self, offset: u64, len: u64) -> Result<Vec<u8>, Why> {
        let mut bytes = vec![0; len.next_multiple_of(512) as usize];
        disk::read(self.chain.file(self.chain.top().file), offset, &mut bytes)?;
        bytes.truncate(len as usize);
        Ok(bytes)
    }

    fn clusters(&self, offset: u64, len: u64) -> Range<u64> {
        let bits = self.geometry.cluster_bits;
        offset >> bits..(offset + len).div_ceil(1 << bits)
    }

    fn count(&mut self, cluster: u64) -> Result<u64, Why> {
        Ok(self.allocator.refcounts().get(self.chain, cluster)?)
    }

    /// The words of a table.
    fn table(&self, offset: u64, entries: u32) -> Result<Vec<u64>, Why> {
        let bytes = self.read(offset, u64::from(entries) * 8)?;
        Ok(bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_be_bytes)).collect())
    }

    /// Where the L2 table of an L1 entry is.
    fn l2_table(&self, index: u64, word: u64) -> Result<Option<u64>, Why> {
        let place = entry::l1(self.geometry, index, word).map_err(|error| Trouble::Format(0, error))?;
        Ok(place.map(|place| place.offset))
    }

    /// What lies behind an L1 table.
    fn uses(&self, l1: &[u64]) -> Result<Uses, Why> {
        let mut uses = Uses::default();
        for (index, word) in (0..).zip(l1) {
            let Some(place) = self.l2_table(index, *word)? else { continue };
            uses.add(self.clusters(place, 1));
            for (_, cluster) in self.l2_entries(index, &self.l2_words(place)?)? {
                match cluster {
                    Cluster::Compressed(at) => uses.add(self.clusters(at.host, at.len)),
                    Cluster::Plain { host: Some(host), .. } => uses.add(self.clusters(host, 1)),
                    Cluster::Plain { host: None, .. } => {}
                }
            }
        }
        Ok(uses)
    }

    fn l2_words(&self, place: u64) -> Result<Vec<u64>, Why> {
        self.table(place, (self.geometry.cluster_bytes() / 8) as u32)
    }

    /// The entries of an L2 table, each with the number of its first word.
    fn l2_entries(&self, l1: u64, table: &[u64]) -> Result<Vec<(usize, Cluster)>, Why> {
        let words = self.geometry.entry_words() as usize;
        let read = |(index, entry): (usize, &[u64])| {
            let guest = self.geometry.guest(l1, index as u64);
            let cluster = entry::l2(self.geometry, guest, entry[0], entry.get(1).copied().unwrap_or(0));
            cluster.map(|cluster| (index * words, cluster)).map_err(|error| Why::Trouble(Trouble::Format(0, error)))
        };
        table.chunks_exact(words).enumerate().map(read).collect()
    }

    /// Says in the L2 tables of an L1 table which clusters may be written in place.
    fn mark_tables(&mut self, l1: &[u64], is_own: impl Fn(&mut Self, u64) -> Result<bool, Why>) -> Result<(), Why> {
        for (index, word) in (0..).zip(l1) {
            let Some(place) = self.l2_table(index, *word)? else { continue };
            let table = self.l2_words(place)?;
            let mut new = table.clone();
            for (at, cluster) in self.l2_entries(index, &table)? {
                if let Cluster::Plain { host: Some(host), .. } = cluster {
                    let own = is_own(self, host >> self.geometry.cluster_bits)?;
                    new[at] = marked(table[at], own);
                }
            }
            if new != table {
                self.write(place, &words(&new))?;
            }
        }
        Ok(())
    }

    /// Whether the refcounts are wide enough for these uses besides those that there are.
    fn admit(&mut self, uses: &Uses) -> Result<(), Why> {
        let most = crate::refcount::max(self.geometry.refcount_order);
        for (cluster, more) in &uses.0 {
            if self.count(*cluster)?.checked_add((*more).into()).is_none_or(|sum| sum > most) {
                let bits = 1 << self.geometry.refcount_order;
                return Err(Why::Refused(format!(
                    "its refcounts of {bits} bits count no more than {most} uses of a cluster: convert it to an image with wider ones"
                )));
            }
        }
        Ok(())
    }

    /// Counts these uses.
    fn share(&mut self, uses: &Uses) -> Result<(), Why> {
        for (run, more) in uses.runs(self.geometry.refcounts_in_block()) {
            self.allocator.refcounts().add(self.chain, run, more)?;
        }
        self.flush()
    }

    /// Counts these uses no more, and gives back the space of what nobody else has.
    fn give_back(&mut self, gone: &Uses) -> Result<(), Why> {
        let bits = self.geometry.cluster_bits;
        for (run, uses) in gone.runs(self.geometry.refcounts_in_block()) {
            let mut last = Uses::default();
            for cluster in run.clone() {
                if self.count(cluster)? == uses {
                    last.add(cluster..cluster + 1);
                }
            }
            for (run, _) in last.runs(u64::MAX) {
                let file = self.chain.file(self.chain.top().file);
                disk::discard(file, run.start << bits, (run.end - run.start) << bits);
            }
            self.allocator.refcounts().subtract(self.chain, run, uses)?;
        }
        self.flush()
    }

    /// Room for so many bytes, which nobody names yet.
    fn allocate(&mut self, bytes: u64) -> Result<u64, Why> {
        let clusters = bytes.div_ceil(self.geometry.cluster_bytes());
        let run = self.allocator.take_together(self.chain, clusters)?;
        Ok(run.start << self.geometry.cluster_bits)
    }

    /// The entries of the table of snapshots, as they are.
    fn entries(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.snapshots.iter().map(|raw| raw.bytes.clone())
    }

    /// Writes a table of snapshots with these entries, which nobody names yet. Returns where.
    fn lay_out(&mut self, entries: &[u8]) -> Result<u64, Why> {
        if entries.is_empty() {
            return Ok(0);
        }
        let place = self.allocate(entries.len() as u64)?;
        self.write(place, entries)?;
        self.flush()?;
        Ok(place)
    }

    /// Has the header name the table there, with so many snapshots. Returns the clusters of the old one.
    fn list(&mut self, place: u64, snapshots: usize) -> Result<Range<u64>, Why> {
        let fields = [&(snapshots as u32).to_be_bytes()[..], &place.to_be_bytes()].concat();
        patch_header(self.chain, header::at::SNAPSHOTS, &fields)?;
        self.flush()?;
        let bytes = self.snapshots.iter().map(|raw| raw.bytes.len() as u64).sum();
        Ok(if self.snapshots.is_empty() { 0..0 } else { self.clusters(self.header.snapshots_offset, bytes) })
    }

    fn forget(&mut self, clusters: Range<u64>) -> Result<(), Why> {
        let mut gone = Uses::default();
        gone.add(clusters);
        self.give_back(&gone)
    }
}

/// An entry that says whether what it leads to may be written in place.
fn marked(word: u64, is_own: bool) -> u64 {
    word & !COPIED | if is_own { COPIED } else { 0 }
}

/// An L1 table of which nothing may be written in place.
fn shared(l1: &[u64]) -> Vec<u64> {
    l1.iter().map(|word| marked(*word, false)).collect()
}

fn words(table: &[u64]) -> Vec<u8> {
    table.iter().flat_map(|word| word.to_be_bytes()).collect()
}
