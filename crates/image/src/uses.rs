//! Who uses which cluster of an image, and whether that is what its refcounts say.
//!
//! The header, the refcount table and its blocks, the L1 tables of the disk and of each snapshot, their L2 tables, clusters, compressed
//! clusters, the table of snapshots and persistent bitmaps each use clusters. One that is counted more often than it is used is a
//! leak, which costs space; one that is counted less often is *damage*: somebody will write over it. A cluster that lies outside of the
//! image, a table that contradicts itself, and bit 63 of an entry where the count is not 1 are damage too.

use crate::bitmap::{self, TableEntry};
use crate::entry::{self, Cluster};
use crate::extension::Bitmaps;
use crate::field::u64_at;
use crate::geometry::Geometry;
use crate::header::{Header, L1_BYTES_MAX};
use crate::snapshot::{Entries, Raw, TableError};
use crate::{features, refcount};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Damage that is told of one by one. Of more there is the number.
const PROBLEMS_MAX: usize = 100;
/// Clusters that are remembered together: so few that an image which lies far apart takes little memory.
const CHUNK: u64 = 16;

/// Where the bytes of an image come from.
pub trait Source {
    /// How many there are.
    fn len_bytes(&self) -> u64;

    /// Fills `buf` from `offset` on. What is behind the end reads as zeroes.
    ///
    /// # Errors
    /// What is there cannot be read.
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
}

impl Source for &[u8] {
    fn len_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let there = self.get(offset as usize..).unwrap_or(&[]);
        let len = there.len().min(buf.len());
        buf[..len].copy_from_slice(&there[..len]);
        buf[len..].fill(0);
        Ok(())
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Damage, in words: the first of it.
    pub problems: Vec<String>,
    /// How much of it there is.
    pub problem_count: u64,
    /// Uses that are counted and are none.
    pub leaks: u64,
    /// Clusters that have such.
    pub leaked_clusters: u64,
    /// Clusters of the disk that lie in the image, or in its data file.
    pub allocated_clusters: u64,
    /// Of these, those that are compressed.
    pub compressed_clusters: u64,
    /// Behind the last cluster that is used.
    pub end_bytes: u64,
}

/// See [`examine`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examination {
    /// What was found.
    pub findings: Findings,
    counts: Counts,
    /// Numbers and places of refcount blocks that nothing else uses.
    blocks: Vec<(u64, u64)>,
}

impl Examination {
    /// Numbers and places of the refcount blocks.
    pub fn blocks(&self) -> &[(u64, u64)] {
        &self.blocks
    }

    /// What a cluster that is counted so often is to be counted instead, if that mends anything and breaks nothing.
    pub fn repaired(&self, cluster: u64, counted: u64) -> Option<u64> {
        let Count { used, is_shared, .. } = self.counts.get(cluster);
        (counted > used.into() && !(used == 1 && is_shared)).then_some(used.into())
    }
}

/// What is used. What is only counted is not remembered: there may be much of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    used: u32,
    counted: u32,
    /// An entry of the disk says that nobody else uses it.
    is_own: bool,
    /// One says that somebody may.
    is_shared: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts(BTreeMap<u64, Box<[Count; CHUNK as usize]>>);

impl Counts {
    fn of(&mut self, cluster: u64) -> &mut Count {
        &mut self.0.entry(cluster / CHUNK).or_insert_with(|| Box::new([Count::default(); CHUNK as usize]))
            [(cluster % CHUNK) as usize]
    }

    fn get(&self, cluster: u64) -> Count {
        let chunk = self.0.get(&(cluster / CHUNK));
        chunk.map_or(Count::default(), |counts| counts[(cluster % CHUNK) as usize])
    }

    fn all(&self) -> impl Iterator<Item = (u64, Count)> + '_ {
        self.0.iter().flat_map(|(chunk, counts)| (chunk * CHUNK..).zip(counts.iter().copied()))
    }
}

struct Examiner<'a, S> {
    source: &'a mut S,
    geometry: Geometry,
    /// Clusters of the image, the last of which it may have in part.
    clusters: u64,
    found: Examination,
}

/// Examines an image with this header. `progress` hears of L1 entries that were followed, of how many.
///
/// # Errors
/// The image cannot be read. What is wrong in it is found, and no error.
pub fn examine(
    source: &mut impl Source,
    header: &Header,
    progress: &mut dyn FnMut(u64, u64),
) -> io::Result<Examination> {
    let geometry = Geometry::new(header);
    let clusters = source.len_bytes().div_ceil(geometry.cluster_bytes());
    let mut examiner = Examiner { source, geometry, clusters, found: Examination::default() };
    examiner.uses(0, header.cluster_bytes(), "the header");
    let table_bytes = u64::from(header.refcount_table_clusters) << header.cluster_bits;
    let is_counted = examiner.uses(header.refcount_table_offset, table_bytes, "the refcount table");
    let snapshots = examiner.snapshots(header)?;
    let all = snapshots.iter().map(|(_, entries)| u64::from(*entries)).sum::<u64>();
    let all = all + u64::from(header.l1_entries);
    let mut done = 0;
    examiner.l1((header.l1_offset, header.l1_entries), None, &mut |entries| progress(done + entries, all))?;
    done += u64::from(header.l1_entries);
    for (number, place) in snapshots.into_iter().enumerate() {
        examiner.l1(place, Some(number), &mut |entries| progress(done + entries, all))?;
        done += u64::from(place.1);
    }
    if let Some(bitmaps) = header.extensions.bitmaps.filter(|_| header.autoclear & features::BITMAPS != 0) {
        examiner.bitmaps(bitmaps)?;
    }
    if is_counted {
        examiner.blocks(header.refcount_table_offset, table_bytes)?;
        examiner.refcounts()?;
    }
    examiner.compare();
    Ok(examiner.found)
}

impl<S: Source> Examiner<'_, S> {
    fn problem(&mut self, text: String) {
        let findings = &mut self.found.findings;
        findings.problem_count += 1;
        if findings.problems.len() < PROBLEMS_MAX {
            findings.problems.push(text);
        }
    }

    fn bytes(&mut self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let mut buf = vec![0; len as usize];
        self.source.read(offset, &mut buf)?;
        Ok(buf)
    }

    /// Something lies there. `false`: that is not in the image.
    fn uses(&mut self, from: u64, len: u64, what: &str) -> bool {
        let bits = self.geometry.cluster_bits;
        let end = from.checked_add(len).map(|end| end.div_ceil(1 << bits)).filter(|end| *end <= self.clusters);
        let Some(end) = end else {
            self.problem(format!("{what}, at offset {from:#x}, lies behind the end of the image"));
            return false;
        };
        for cluster in from >> bits..end {
            let used = &mut self.found.counts.of(cluster).used;
            *used = used.saturating_add(1);
        }
        true
    }

    /// Where the L1 tables of snapshots are, and how many entries they have.
    fn snapshots(&mut self, header: &Header) -> io::Result<Vec<(u64, u32)>> {
        let (mut snapshots, mut len, mut wrong) = (Vec::new(), 0, Vec::new());
        for entry in Entries::of(self.source, header) {
            match entry {
                Ok(Raw { snapshot, bytes }) => {
                    len += bytes.len() as u64;
                    if header.version >= 3 && snapshot.size_bytes.is_none() {
                        let index = snapshots.len();
                        wrong.push(format!(
                            "snapshot {index} does not say its size, as it has to in an image of version 3"
                        ));
                    }
                    snapshots.push((snapshot.l1_offset, snapshot.l1_entries));
                }
                Err(TableError::Io(error)) => return Err(error),
                Err(TableError::Format(error)) => wrong.push(error.to_string()),
            }
        }
        wrong.into_iter().for_each(|text| self.problem(text));
        if len > 0 {
            self.uses(header.snapshots_offset, len, "the table of snapshots");
        }
        Ok(snapshots)
    }

    /// Follows an L1 table: the disk's, or that of a snapshot.
    fn l1(
        &mut self,
        (offset, entries): (u64, u32),
        snapshot: Option<usize>,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        let what = snapshot.map_or("the L1 table".to_owned(), |number| format!("the L1 table of snapshot {number}"));
        let len = u64::from(entries) * 8;
        let cluster = self.geometry.cluster_bytes();
        if len == 0 {
            return Ok(());
        }
        if len > L1_BYTES_MAX || !offset.is_multiple_of(cluster) {
            self.problem(format!(
                "{what} begins at {offset:#x} and has {entries} entries: a cluster, and at most 32 MiB"
            ));
            return Ok(());
        }
        if !self.uses(offset, len, &what) {
            return Ok(());
        }
        let table = self.bytes(offset, len)?;
        for index in 0..u64::from(entries) {
            let value = u64_at(&table, index as usize * 8).unwrap_or(0);
            let place = match entry::l1(&self.geometry, index, value) {
                Ok(Some(place)) => place,
                Ok(None) if value != 0 => {
                    self.problem(format!("{what}: entry {index} says of no table that nobody else uses it (bit 63)"));
                    continue;
                }
                Ok(None) => continue,
                Err(error) => {
                    self.problem(format!("{what}: {error}"));
                    continue;
                }
            };
            if self.uses(place.offset, cluster, "an L2 table") {
                if snapshot.is_none() {
                    self.says(place.offset, place.copied);
                }
                self.l2(index, place.offset, snapshot.is_none())?;
            }
            progress(index + 1);
        }
        Ok(())
    }

    /// What bit 63 of an entry of the disk says of the cluster at this offset.
    fn says(&mut self, offset: u64, copied: bool) {
        let count = self.found.counts.of(offset >> self.geometry.cluster_bits);
        count.is_own |= copied;
        count.is_shared |= !copied;
    }

    fn l2(&mut self, l1: u64, offset: u64, is_disk: bool) -> io::Result<()> {
        let cluster = self.geometry.cluster_bytes();
        let table = self.bytes(offset, cluster)?;
        let words = self.geometry.entry_words() as usize;
        for index in 0..self.geometry.l2_entries() {
            let word = |which: usize| u64_at(&table, (index as usize * words + which) * 8).unwrap_or(0);
            let (word, bitmap) = (word(0), if words > 1 { word(1) } else { 0 });
            if word == 0 && bitmap == 0 {
                continue;
            }
            let guest = self.geometry.guest(l1, index);
            let (host, copied) = match entry::l2(&self.geometry, guest, word, bitmap) {
                Ok(Cluster::Compressed(at)) => {
                    if self.uses(at.host, at.len, "a compressed cluster") && is_disk {
                        self.found.findings.compressed_clusters += 1;
                        self.found.findings.allocated_clusters += 1;
                    }
                    continue;
                }
                Ok(Cluster::Plain { host: Some(host), copied, .. }) => (host, copied),
                Ok(Cluster::Plain { host: None, .. }) => continue,
                Err(error) => {
                    self.problem(error.to_string());
                    continue;
                }
            };
            if self.geometry.data_file {
                if is_disk && !copied {
                    self.problem(format!(
                        "the entry of guest offset {guest:#x} lacks bit 63, as none in a data file does"
                    ));
                }
            } else if self.uses(host, cluster, "a cluster") {
                if is_disk {
                    self.says(host, copied);
                }
            } else {
                continue;
            }
            self.found.findings.allocated_clusters += u64::from(is_disk);
        }
        Ok(())
    }

    /// Follows the bitmaps. What is not as it has to be is damage, and no leak: somebody may still save them.
    fn bitmaps(&mut self, bitmaps: Bitmaps) -> io::Result<()> {
        if let Err(error) = bitmap::check_directory(bitmaps, &self.geometry) {
            self.problem(error.to_string());
            return Ok(());
        }
        if !self.uses(bitmaps.directory_offset, bitmaps.directory_bytes, "the directory of bitmaps") {
            return Ok(());
        }
        let (mut names, mut all, mut wrong) = (BTreeSet::new(), Vec::new(), Vec::new());
        for (index, entry) in (0..).zip(bitmap::Entries::of(self.source, bitmaps)) {
            let checked = match entry {
                Ok((_, mut entry)) => entry.check(&self.geometry, index).map(|()| {
                    if !names.insert(std::mem::take(&mut entry.name)) {
                        wrong.push(format!("bitmap {index} has the name of another one"));
                    }
                    all.push((index, entry.table_offset, entry.table_entries));
                }),
                Err(bitmap::ReadError::Io(error)) => return Err(error),
                Err(bitmap::ReadError::Format(error)) => Err(error),
            };
            wrong.extend(checked.err().map(|error| error.to_string()));
        }
        wrong.into_iter().for_each(|text| self.problem(text));
        for (index, table, entries) in all {
            let len = u64::from(entries) * 8;
            if !self.uses(table, len, "the table of a bitmap") {
                continue;
            }
            for word in self.bytes(table, len)?.chunks_exact(8) {
                match TableEntry::parse(&self.geometry, index, u64_at(word, 0).unwrap_or(0)) {
                    Ok(TableEntry::Cluster(offset)) => {
                        self.uses(offset, self.geometry.cluster_bytes(), "a cluster of a bitmap");
                    }
                    Ok(TableEntry::Zeroes | TableEntry::Ones) => {}
                    Err(error) => self.problem(error.to_string()),
                }
            }
        }
        Ok(())
    }

    /// Finds the refcount blocks. What they and the other tables lie in is nobody else's, whatever is counted.
    fn blocks(&mut self, offset: u64, table_bytes: u64) -> io::Result<()> {
        let cluster = self.geometry.cluster_bytes();
        let table = self.bytes(offset, table_bytes)?;
        let mut blocks = Vec::new();
        for (number, word) in table.chunks_exact(8).enumerate() {
            match refcount::table_entry(&self.geometry, number as u64, u64_at(word, 0).unwrap_or(0)) {
                Ok(Some(block)) if self.uses(block, cluster, "a refcount block") => blocks.push((number as u64, block)),
                Ok(_) => {}
                Err(error) => self.problem(error.to_string()),
            }
        }
        let bits = self.geometry.cluster_bits;
        for (number, block) in blocks {
            if self.found.counts.get(block >> bits).used == 1 {
                self.found.blocks.push((number, block));
            } else {
                self.problem(format!("refcount block {number}, at offset {block:#x}, lies where something else does"));
            }
        }
        for range in self.geometry.metadata.clone() {
            for cluster in range.start >> bits..range.end.div_ceil(1 << bits).min(self.clusters) {
                if self.found.counts.get(cluster).used > 1 {
                    let at = cluster << bits;
                    self.problem(format!("something lies at offset {at:#x}, where the header or a table does"));
                }
            }
        }
        Ok(())
    }

    /// Reads what is counted.
    fn refcounts(&mut self) -> io::Result<()> {
        let (per_block, order) = (self.geometry.refcounts_in_block(), self.geometry.refcount_order);
        let bits = self.geometry.cluster_bits;
        for (number, block) in self.found.blocks.clone() {
            let bytes = self.bytes(block, self.geometry.cluster_bytes())?;
            for index in 0..per_block {
                let counted = refcount::get(&bytes, order, index);
                if counted == 0 {
                    continue;
                }
                let cluster = number * per_block + index;
                let used = u64::from(self.found.counts.get(cluster).used);
                if used > 0 {
                    self.found.counts.of(cluster).counted = counted.try_into().unwrap_or(u32::MAX);
                }
                let findings = &mut self.found.findings;
                if counted > used {
                    findings.leaks = findings.leaks.saturating_add(counted - used);
                    findings.leaked_clusters += 1;
                }
                findings.end_bytes = findings.end_bytes.max((cluster + 1).saturating_mul(1 << bits));
            }
        }
        Ok(())
    }

    fn compare(&mut self) {
        let bits = self.geometry.cluster_bits;
        let counts = std::mem::take(&mut self.found.counts);
        for (cluster, count) in counts.all().filter(|(_, count)| count.used > 0) {
            let Count { used, counted, is_own, is_shared } = count;
            let at = cluster << bits;
            let others = "an entry says that nobody else uses it (bit 63)";
            if counted < used {
                self.problem(format!("the cluster at offset {at:#x} is used {used} times and counted {counted} times"));
            } else if is_own && counted != 1 && used != 1 {
                self.problem(format!("the cluster at offset {at:#x} is counted {counted} times, and {others}"));
            } else if is_shared && counted == 1 {
                let others = "an entry says that somebody else may use it (bit 63)";
                self.problem(format!("the cluster at offset {at:#x} is counted once, and {others}"));
            }
            let end = &mut self.found.findings.end_bytes;
            *end = (*end).max((cluster + 1) << bits);
        }
        self.found.counts = counts;
    }
}
