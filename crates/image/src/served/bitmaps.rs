//! The dirty bitmaps of an image that is written.
//!
//! They are read when the image is opened, kept in memory while it is served, and written back when it is closed. In the
//! file a bitmap is meanwhile *in use*: what the image says of it counts no more.
//!
//! | order | a power cut between them leaves |
//! |---|---|
//! | the flags *in use* of all that follow what is written, flushed; the first change of the disk | bitmaps that speak of a disk that has not changed |
//! | bits and tables in new clusters, the new directory, flushed; the header that names it, flushed | the old directory, whose bitmaps are in use, and leaks |
//! | the header; the old clusters are freed | leaks |
//!
//! **What makes them right.** A request marks its range before it changes anything, and whoever reads all marks, to write them
//! back, to hand them over or to take them, does so while no request is in flight: the end of each has been reported to him,
//! and everything its thread did before that is seen. So marks need no order of their own. A mark is never taken back because a
//! request has failed: what it has written nobody knows. The list of bitmaps is read while a range is marked: who changes it,
//! because the disk grows, waits for that, and finds every mark in what he copies.

use super::allocator::Allocator;
use super::chain::Chain;
use super::disk;
use super::error::Trouble;
use super::heading::change_header;
use super::shared::Shared;
use crate::bitmap::{self, AUTO, Entries, Entry, IN_USE, ReadError, TableEntry};
use crate::dirty::{self, Bits};
use crate::extension::Bitmaps as Extension;
use crate::{FormatError, features, rewrite};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

const SECTOR: u64 = 512;

/// A bitmap of the directory.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    /// As it is in the file.
    pub(super) entry: Entry,
    /// Where in the directory that is.
    pub(super) at: u64,
    /// What it says, if that is known.
    pub(super) bits: Option<Arc<Bits>>,
}

impl Listed {
    /// Whether it will have to say of every change that it is one.
    fn follows(&self) -> bool {
        self.entry.is(AUTO) && !self.entry.is(IN_USE)
    }

    /// What is not as long as the disk would keep QEMU from opening it.
    fn is_to_be_written(&self, size_bytes: u64) -> bool {
        self.entry.is(IN_USE) && self.bits.as_ref().is_some_and(|bits| bits.size_bytes() == size_bytes)
    }
}

/// What the image has of bitmaps. Held over I/O, by whoever has the header's lock; before the allocator is asked for.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The directory that the header names, if the autoclear bit says that it counts.
    pub(super) directory: Option<Extension>,
    pub(super) listed: Vec<Listed>,
}

/// See the top.
#[derive(Debug, Default)]
pub(super) struct Bitmaps {
    /// Whether there is anything to mark. Who may see it change has no request in flight, or does not mind which it is.
    marking: AtomicBool,
    /// Those that follow what is written. Held for a mark, or to replace them; never over I/O.
    marked: RwLock<Vec<Arc<Bits>>>,
    state: Mutex<State>,
}

impl Bitmaps {
    /// Those of the first image, which is going to be written. `handed` is what another program has left of them.
    pub(super) fn load(chain: &Chain, handed: Option<OwnedFd>) -> Bitmaps {
        let top = chain.top();
        let extension = top.header.extensions.bitmaps.filter(|_| top.header.autoclear & features::BITMAPS != 0);
        let path = top.path.display();
        let Some(extension) = extension.filter(|_| top.header.version >= 3) else { return Bitmaps::default() };
        let mut listed = match list(chain, extension) {
            Ok(listed) => listed,
            Err(why) => {
                tracing::warn!(%path, %why, "its dirty bitmaps cannot be used, and are invalid from the first change on");
                return Bitmaps::default();
            }
        };
        let mut memory_bytes = 0;
        if let Some(handed) = handed {
            match carried(handed, top.size_bytes()) {
                Ok(all) => memory_bytes = take_up(&mut listed, all),
                Err(why) => {
                    tracing::warn!(%path, %why, "what another program knew of its dirty bitmaps cannot be used: they are inconsistent");
                }
            }
        }
        for (index, one) in (0..).zip(&mut listed).filter(|(_, one)| one.bits.is_none() && !one.entry.is(IN_USE)) {
            let name = one.entry.shown();
            let granularity = u32::from(one.entry.granularity_bits);
            memory_bytes += Bits::memory_bytes(top.size_bytes(), granularity);
            let read = if !one.entry.is_usable() {
                Err("it has extra data that is not known".to_owned())
            } else if memory_bytes > dirty::BYTES_MAX {
                memory_bytes -= Bits::memory_bytes(top.size_bytes(), granularity);
                Err(format!("all of them would take more than {} MiB of memory", dirty::BYTES_MAX >> 20))
            } else {
                read_bits(chain, index, &one.entry).map_err(|why| why.to_string())
            };
            match read {
                Ok(bits) => one.bits = Some(Arc::new(bits)),
                Err(why) => {
                    tracing::warn!(%path, bitmap = %name, %why, "a dirty bitmap is not maintained: if it is enabled it is inconsistent from the first change on");
                }
            }
        }
        let bitmaps = Bitmaps::default();
        let mut state = bitmaps.state();
        *state = State { directory: Some(extension), listed };
        bitmaps.follow(&state);
        drop(state);
        bitmaps
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request has to [mark](Self::mark) what it changes.
    #[inline]
    pub(super) fn are_marked(&self) -> bool {
        self.marking.load(Ordering::Relaxed)
    }

    /// A request is about to change these bytes of the disk.
    pub(super) fn mark(&self, range: Range<u64>) {
        for bits in self.marked.read().unwrap_or_else(PoisonError::into_inner).iter() {
            bits.mark(range.clone());
        }
    }

    /// From now on those that are enabled follow what is written.
    pub(super) fn follow(&self, state: &State) {
        let enabled = state.listed.iter().filter(|one| one.entry.is(AUTO)).filter_map(|one| one.bits.clone());
        let enabled: Vec<_> = enabled.collect();
        self.marking.store(!enabled.is_empty(), Ordering::Relaxed);
        *self.marked.write().unwrap_or_else(PoisonError::into_inner) = enabled;
    }

    /// Whether the directory counts, and goes on to.
    pub(super) fn are_kept(&self) -> bool {
        self.state().directory.is_some()
    }

    /// Whether something has to be in use before the first change.
    pub(super) fn must_hold(&self) -> bool {
        self.state().listed.iter().any(Listed::follows)
    }

    /// Everything that follows what is written is in use, on stable storage.
    pub(super) fn hold(&self, chain: &Chain) -> Result<(), Trouble> {
        let mut state = self.state();
        state.flag(chain, |one| if one.follows() { one.entry.flags | IN_USE } else { one.entry.flags })
    }

    /// Writes back all that is in use. Nothing is in flight, and the next change has to [hold](Self::hold) them again.
    pub(super) fn write_back(&self, shared: &Shared) -> Result<(), Trouble> {
        let mut state = self.state();
        let size_bytes = shared.chain.top().size_bytes();
        if !state.listed.iter().any(|one| one.is_to_be_written(size_bytes)) {
            return Ok(());
        }
        shared.check_written()?;
        let chain = &shared.chain;
        let mut allocator = shared.allocator()?;
        let written = state.write_back(chain, &mut allocator);
        let closed = allocator.close(chain);
        drop(allocator);
        written.and(closed)?;
        Ok(chain.flush(chain.top().file)?)
    }

    /// What another program needs to go on with what is in use; `None`: nothing is.
    pub(super) fn hand_over(&self, size_bytes: u64) -> io::Result<Option<OwnedFd>> {
        let state = self.state();
        let held = state.listed.iter().filter(|one| one.entry.is(IN_USE));
        let mut held = held.filter_map(|one| Some((&one.entry.name[..], &**one.bits.as_ref()?))).peekable();
        if held.peek().is_none() {
            return Ok(None);
        }
        let mut file = File::from(rustix::fs::memfd_create(c"bitmaps", MemfdFlags::CLOEXEC)?);
        file.write_all(&dirty::encode(size_bytes, held))?;
        Ok(Some(file.into()))
    }

    /// The disk is about to get another size, and what is new of it is dirty. The image is ready.
    pub(super) fn resize(&self, chain: &Chain, size_bytes: u64) -> Result<(), Trouble> {
        let mut state = self.state();
        // Tables of disabled ones, too, are as long as the disk.
        state.flag(chain, |one| one.entry.flags | IN_USE)?;
        let mut marked = self.marked.write().unwrap_or_else(PoisonError::into_inner);
        let mut memory_bytes = 0;
        for one in &mut state.listed {
            let Some(bits) = &one.bits else { continue };
            let granularity = bits.granularity_bits();
            memory_bytes += Bits::memory_bytes(size_bytes, granularity);
            let fits = bitmap::table_entries(size_bytes, granularity, chain.top().geometry.cluster_bits).is_some();
            one.bits = (fits && memory_bytes <= dirty::BYTES_MAX).then(|| Arc::new(bits.resized(size_bytes)));
            if one.bits.is_none() {
                let path = chain.top().path.display();
                tracing::warn!(%path, bitmap = %one.entry.shown(), "a dirty bitmap would be too large for the disk as it grows, and is inconsistent");
            }
        }
        // Nobody has marked anything since they were copied.
        *marked = state.listed.iter().filter(|one| one.entry.is(AUTO)).filter_map(|one| one.bits.clone()).collect();
        Ok(())
    }

    /// All of the disk is going to be another one, of so many bytes.
    pub(super) fn replace(&self, chain: &Chain, size_bytes: u64) -> Result<(), Trouble> {
        if size_bytes / SECTOR * SECTOR == chain.top().size_bytes() {
            self.mark(0..size_bytes);
            return Ok(());
        }
        let mut state = self.state();
        if state.listed.is_empty() {
            return Ok(());
        }
        // They would be as long as the disk is now.
        state.flag(chain, |one| one.entry.flags | IN_USE)?;
        state.listed.iter_mut().for_each(|one| one.bits = None);
        self.follow(&state);
        tracing::warn!(path = %chain.top().path.display(), "the disk gets another size: its dirty bitmaps are inconsistent");
        Ok(())
    }
}

impl State {
    /// Has the directory say these flags, on stable storage.
    pub(super) fn flag(&mut self, chain: &Chain, flags: impl Fn(&Listed) -> u32) -> Result<(), Trouble> {
        let Some(directory) = self.directory else { return Ok(()) };
        let file = chain.file(chain.top().file);
        let mut changed = Vec::new();
        for (index, one) in self.listed.iter().enumerate() {
            let flags = flags(one);
            if flags == one.entry.flags {
                continue;
            }
            let at = directory.directory_offset + one.at + bitmap::FLAGS_AT;
            let mut sector = [0; SECTOR as usize];
            disk::read(file, at / SECTOR * SECTOR, &mut sector)?;
            sector[(at % SECTOR) as usize..][..4].copy_from_slice(&flags.to_be_bytes());
            disk::write(file, at / SECTOR * SECTOR, &sector)?;
            changed.push((index, flags));
        }
        if !changed.is_empty() {
            chain.flush(chain.top().file)?;
        }
        for (index, flags) in changed {
            self.listed[index].entry.flags = flags;
        }
        Ok(())
    }

    fn write_back(&mut self, chain: &Chain, allocator: &mut Allocator) -> Result<(), Trouble> {
        let mut room = Room { chain, allocator, taken: Vec::new() };
        let mut listed = self.listed.clone();
        let mut old = Vec::new();
        let size_bytes = chain.top().size_bytes();
        let written =
            (0..).zip(&mut listed).filter(|(_, one)| one.is_to_be_written(size_bytes)).try_for_each(|(index, one)| {
                let Some(bits) = &one.bits else { return Ok(()) };
                let (offset, entries) = room.write_bits(bits)?;
                old.push((index, one.entry.clone()));
                (one.entry.table_offset, one.entry.table_entries) = (offset, entries);
                one.entry.flags &= !IN_USE;
                Ok(())
            });
        written.and_then(|()| self.publish(&mut room, listed)).inspect_err(|why| room.give_back_after(why))?;
        for (index, entry) in old {
            room.free_table(index, &entry);
        }
        Ok(())
    }

    /// Has the header name a directory of these bitmaps, whose tables are written, or none. All of it is on stable storage then, and the
    /// old directory is free.
    pub(super) fn publish(&mut self, room: &mut Room<'_>, mut listed: Vec<Listed>) -> Result<(), Trouble> {
        let chain = room.chain;
        let mut bytes = Vec::new();
        for one in &mut listed {
            one.at = bytes.len() as u64;
            bytes.extend(one.entry.encode());
        }
        let new = if listed.is_empty() {
            None
        } else {
            let place = room.table(&bytes)?;
            let (count, directory_bytes) = (listed.len() as u32, bytes.len() as u64);
            Some(Extension { count, reserved: 0, directory_bytes, directory_offset: place })
        };
        chain.flush(chain.top().file)?;
        name_directory(chain, new)?;
        // Named by now: never given back.
        room.taken.clear();
        let old = std::mem::replace(&mut self.directory, new);
        self.listed = listed;
        if let Some(old) = old {
            room.free(old.directory_offset, old.directory_bytes);
        }
        Ok(())
    }

    /// The number of a bitmap of this name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.listed.iter().position(|one| one.entry.name == name.as_bytes())
    }
}

/// Where what is written gets its clusters.
pub(super) struct Room<'a> {
    pub(super) chain: &'a Chain,
    pub(super) allocator: &'a mut Allocator,
    /// What nothing names yet.
    pub(super) taken: Vec<Range<u64>>,
}

impl Room<'_> {
    fn bits(&self) -> u32 {
        self.chain.top().geometry.cluster_bits
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Trouble> {
        let mut whole = bytes.to_vec();
        whole.resize(bytes.len().next_multiple_of(SECTOR as usize), 0);
        Ok(disk::write(self.chain.file(self.chain.top().file), offset, &whole)?)
    }

    /// Writes a table, of which all clusters follow one another. Gives where.
    pub(super) fn table(&mut self, bytes: &[u8]) -> Result<u64, Trouble> {
        let clusters = (bytes.len() as u64).div_ceil(1 << self.bits());
        let run = self.allocator.take_together(self.chain, clusters)?;
        self.taken.push(run.clone());
        let offset = run.start << self.bits();
        self.write(offset, bytes)?;
        Ok(offset)
    }

    /// Writes bits and their table. Gives where that is, and how many entries it has.
    fn write_bits(&mut self, bits: &Bits) -> Result<(u64, u32), Trouble> {
        let cluster = 1 << self.bits();
        let entries = bitmap::table_entries(bits.size_bytes(), bits.granularity_bits(), self.bits());
        let entries = entries.ok_or(Trouble::Errno(libc::EFBIG))?;
        let bytes = bits.len().div_ceil(8);
        let mut words = Vec::with_capacity(entries as usize);
        for index in 0..u64::from(entries) {
            let part = bits.bytes(index * cluster, cluster);
            // Behind the last bit there are zeroes: a cluster that is not full of bits has no entry of ones.
            let is_full = (index + 1) * cluster <= bytes && (index + 1) * cluster * 8 <= bits.len();
            let entry = if part.iter().all(|byte| *byte == 0) {
                TableEntry::Zeroes
            } else if is_full && part.iter().all(|byte| *byte == 0xff) {
                TableEntry::Ones
            } else {
                let run = self.allocator.take(self.chain, 1, true)?;
                let offset = run.start << self.bits();
                self.taken.push(run);
                self.write(offset, &part)?;
                TableEntry::Cluster(offset)
            };
            words.push(entry.encode());
        }
        let words: Vec<u8> = words.into_iter().flat_map(u64::to_be_bytes).collect();
        Ok((self.table(&words)?, entries))
    }

    /// Gives back what nothing will name, because something has failed. Nobody knows whether the header names what is new where
    /// it could not be written: then it is leaked.
    pub(super) fn give_back_after(&mut self, why: &Trouble) {
        if matches!(why, Trouble::Apart(_)) {
            return;
        }
        for run in std::mem::take(&mut self.taken) {
            self.release(run);
        }
    }

    /// Frees a range that nothing names any more.
    fn free(&mut self, offset: u64, len: u64) {
        self.release(offset >> self.bits()..(offset + len).div_ceil(1 << self.bits()));
    }

    /// Frees the table of a bitmap, and its clusters.
    pub(super) fn free_table(&mut self, index: u32, entry: &Entry) {
        let geometry = &self.chain.top().geometry;
        match read_table(self.chain, index, entry) {
            Ok(table) => {
                let clusters = table.into_iter().filter_map(|entry| match entry {
                    TableEntry::Cluster(offset) => Some(offset),
                    TableEntry::Zeroes | TableEntry::Ones => None,
                });
                clusters.for_each(|offset| self.free(offset, geometry.cluster_bytes()));
                self.free(entry.table_offset, u64::from(entry.table_entries) * 8);
            }
            Err(why) => self.leaks(&why.to_string()),
        }
    }

    /// What cannot be freed is leaked: that costs space, and nothing else.
    fn release(&mut self, clusters: Range<u64>) {
        let (chain, bits) = (self.chain, self.bits());
        let end = chain.file(chain.top().file).capacity_bytes().div_ceil(1 << bits);
        let mut metadata = clusters.clone().map(|cluster| chain.top().geometry.is_metadata(cluster << bits));
        if clusters.end > end || metadata.any(|is| is) {
            return self.leaks("something else lies there");
        }
        let freed = (|| {
            for run in self.allocator.last_uses(chain, clusters.clone())? {
                disk::discard(chain.file(chain.top().file), run.start << bits, (run.end - run.start) << bits);
            }
            self.allocator.release(chain, clusters)
        })();
        if let Err(why) = freed {
            self.leaks(&format!("{why:?}"));
        }
    }

    fn leaks(&self, why: &str) {
        let path = self.chain.top().path.display();
        tracing::warn!(%path, why, "clusters of a dirty bitmap are leaked: `vringd image check --repair` gives them back");
    }
}

/// Has the header name this directory, or none, with the autoclear bit that says so.
fn name_directory(chain: &Chain, directory: Option<Extension>) -> Result<(), Trouble> {
    change_header(chain, |old, first| {
        let mut new = old.clone();
        new.extensions.bitmaps = directory;
        new.autoclear = old.autoclear & !features::BITMAPS | if directory.is_some() { features::BITMAPS } else { 0 };
        let in_place = directory.filter(|_| old.autoclear == new.autoclear);
        match in_place.and_then(|directory| rewrite::bitmaps(old, first, directory)) {
            Some(step) => vec![step],
            None => rewrite::steps(old, &new, first),
        }
    })
}

/// Why bitmaps cannot be read.
#[derive(Debug, displaydoc::Display)]
enum Unreadable {
    /// {0}
    Io(io::Error),
    /// {0}
    Format(FormatError),
}

impl From<FormatError> for Unreadable {
    fn from(error: FormatError) -> Unreadable {
        Unreadable::Format(error)
    }
}

impl From<i32> for Unreadable {
    fn from(errno: i32) -> Unreadable {
        Unreadable::Io(io::Error::from_raw_os_error(errno))
    }
}

/// The directory, of which every entry is what it may be.
fn list(chain: &Chain, extension: Extension) -> Result<Vec<Listed>, Unreadable> {
    let top = chain.top();
    bitmap::check_directory(extension, &top.geometry)?;
    let mut source = disk::Bytes(chain.file(top.file));
    let mut listed: Vec<Listed> = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    for (index, entry) in (0..).zip(Entries::of(&mut source, extension)) {
        let (at, entry) = entry.map_err(|error| match error {
            ReadError::Io(error) => Unreadable::Io(error),
            ReadError::Format(error) => Unreadable::Format(error),
        })?;
        entry.check(&top.geometry, index)?;
        if !names.insert(entry.name.clone()) {
            return Err(FormatError::Bitmap { index, rule: "no two have one name" }.into());
        }
        listed.push(Listed { entry, at, bits: None });
    }
    Ok(listed)
}

/// The table of a bitmap.
fn read_table(chain: &Chain, index: u32, entry: &Entry) -> Result<Vec<TableEntry>, Unreadable> {
    let top = chain.top();
    let file = chain.file(top.file);
    let len = u64::from(entry.table_entries) * 8;
    if entry
        .table_offset
        .checked_add(len)
        .is_none_or(|end| end > file.capacity_bytes().next_multiple_of(1 << top.geometry.cluster_bits))
    {
        return Err(FormatError::Bitmap { index, rule: "its table does not lie behind the end of the image" }.into());
    }
    let mut bytes = vec![0; len.next_multiple_of(SECTOR) as usize];
    disk::read(file, entry.table_offset, &mut bytes)?;
    bytes.truncate(len as usize);
    let words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_be_bytes));
    Ok(words.map(|word| TableEntry::parse(&top.geometry, index, word)).collect::<Result<_, _>>()?)
}

/// What a bitmap says. The caller has bounded its memory.
fn read_bits(chain: &Chain, index: u32, entry: &Entry) -> Result<Bits, Unreadable> {
    let top = chain.top();
    let (file, cluster) = (chain.file(top.file), top.geometry.cluster_bytes());
    let granularity = u32::from(entry.granularity_bits);
    let wrong = |rule| Err(FormatError::Bitmap { index, rule }.into());
    if bitmap::table_entries(top.size_bytes(), granularity, top.geometry.cluster_bits) != Some(entry.table_entries) {
        return wrong("its table is as long as the disk needs");
    }
    let bits = Bits::new(top.size_bytes(), granularity);
    let mut part = vec![0; cluster as usize];
    for (number, place) in (0..).zip(read_table(chain, index, entry)?) {
        match place {
            TableEntry::Zeroes => continue,
            TableEntry::Ones => part.fill(0xff),
            TableEntry::Cluster(offset) if offset >= file.capacity_bytes() => {
                return wrong("its clusters do not lie behind the end of the image");
            }
            TableEntry::Cluster(offset) => disk::read(file, offset, &mut part)?,
        }
        bits.set_bytes(number * cluster, &part);
    }
    Ok(bits)
}

/// What another program has handed over.
fn carried(handed: OwnedFd, size_bytes: u64) -> Result<Vec<dirty::Carried>, String> {
    let file = File::from(handed);
    let len = file.metadata().map_err(|error| error.to_string())?.len();
    if len > dirty::HANDED_BYTES_MAX {
        return Err(format!("it has {len} bytes"));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|error| error.to_string())?;
    dirty::decode(&bytes, size_bytes).map_err(str::to_owned)
}

/// Goes on with bitmaps that are in use. Gives the bytes of memory that they take.
fn take_up(listed: &mut [Listed], all: Vec<dirty::Carried>) -> u64 {
    let mut memory_bytes = 0;
    for dirty::Carried { name, bits } in all {
        let wanted = |one: &&mut Listed| {
            let entry = &one.entry;
            entry.name == name && entry.is(IN_USE) && u32::from(entry.granularity_bits) == bits.granularity_bits()
        };
        if let Some(one) = listed.iter_mut().find(wanted) {
            memory_bytes += Bits::memory_bytes(bits.size_bytes(), bits.granularity_bits());
            one.bits = Some(Arc::new(bits));
        }
    }
    memory_bytes
}
