//! A record that is to outlive a loss of power: a file of two slots, written in turns, so that one of them is whole at any moment.
//! `docs/formats/reservations.md` describes the file.
//!
//! It needs no more of its process than the descriptor: nothing is made, renamed or removed once it is open.

mod steps;

pub use steps::{RecordStep, RecordWitness};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use steps::{Stepped, Witness};
use xxhash_rust::xxh3::xxh3_64;

/// Longest record.
pub const RECORD_BYTES_MAX: usize = SLOT_BYTES - HEADER_BYTES;
/// Bytes of a slot, and of what is before the record in it.
const SLOT_BYTES: usize = 8192;
const HEADER_BYTES: usize = 32;
/// How often opening begins again where somebody makes and removes the file meanwhile.
const OPEN_TRIES: u32 = 10;
/// What a slot begins with.
const MAGIC: [u8; 8] = *b"VRINGDRF";

/// Why a file keeps no record. The doc comments are the messages.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum RecordError {
    /// cannot open {path}: {source}
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// cannot make {path}: {source}; make its directory, or name a place where files can be made
    Make {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// {path} is a link, or no regular file: name the file itself, or one that does not exist
    NoFile {
        /// What is there.
        path: PathBuf,
    },
    /// {path} is in use: another disk or another daemon keeps its reservations there, or requests of this disk's former users are under way
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// {path} has {bytes} bytes and no record in them: name a file that does not exist, an empty one, or one that was made for this
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// {path} is damaged: both of its slots are; remove the file, and with it the reservations that it kept
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// cannot use {path}: {source}
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// cannot have the name of {path} stored with its directory: {source}; let this process read the directory
    Directory {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// {path} is being made and removed by others
    Unsteady {
        /// The file.
        path: PathBuf,
    },
}

/// A record, and the number of the writing that it came by.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    number: u64,
    record: Vec<u8>,
}

impl Written {
    /// The slot of this writing.
    fn slot(&self) -> u64 {
        self.number % 2
    }

    /// Where that begins in the file, in bytes.
    fn offset(&self) -> u64 {
        self.slot() * SLOT_BYTES as u64
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut slot = vec![0; SLOT_BYTES];
        slot[..8].copy_from_slice(&MAGIC);
        slot[8..16].copy_from_slice(&self.number.to_le_bytes());
        // No longer than a slot.
        slot[16..20].copy_from_slice(&(self.record.len() as u32).to_le_bytes());
        slot[HEADER_BYTES..HEADER_BYTES + self.record.len()].copy_from_slice(&self.record);
        let checksum = xxh3_64(&slot).to_le_bytes();
        slot[24..32].copy_from_slice(&checksum);
        slot
    }

    /// What a slot has, if it is whole.
    fn from_bytes(slot: &[u8]) -> Option<Written> {
        let mut slot: [u8; SLOT_BYTES] = slot.try_into().ok()?;
        let number = u64::from_le_bytes(*slot[8..].first_chunk()?);
        let len = u32::from_le_bytes(*slot[16..].first_chunk()?) as usize;
        let checksum = u64::from_le_bytes(*slot[24..].first_chunk()?);
        slot[24..32].fill(0);
        let is_whole = slot[..8] == MAGIC && xxh3_64(&slot) == checksum;
        let record = slot.get(HEADER_BYTES..HEADER_BYTES.checked_add(len)?)?;
        is_whole.then(|| Written { number, record: record.to_vec() })
    }

    /// The latest of both slots.
    fn latest(file: &[u8]) -> Option<Written> {
        let (slots, _) = file.as_chunks::<SLOT_BYTES>();
        let whole = slots.iter().take(2).zip(0..).filter_map(|(slot, place)| {
            // A copy of a slot in the other's place is nothing that was written.
            Written::from_bytes(slot).filter(|written| written.slot() == place && written.number < NUMBER_MAX)
        });
        whole.max_by_key(|written| written.number)
    }

    /// What is in a file, as far as it can be one of these.
    fn read(file: &File) -> io::Result<Vec<u8>> {
        let (mut contents, mut len) = (vec![0; FILE_BYTES as usize], 0);
        while len < contents.len() {
            match file.read_at(&mut contents[len..], len as u64) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        contents.truncate(len);
        Ok(contents)
    }
}

/// A file with a record, or with none yet.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    file: Stepped,
    /// It was not there before.
    is_new: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What is there for certain.
    latest: Written,
    /// The number of the next writing, which goes into the other slot.
    next: u64,
    /// A writing has failed that may be there all the same.
    is_uncertain: bool,
    /// A record is being stored, which takes as long as the file system does.
    is_storing: bool,
}

/// A record that another program goes on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedRecord {
    /// The number of its writing.
    pub number: u64,
    /// The record.
    pub record: Vec<u8>,
}

impl RecordFile {
    /// Opens the file, or makes it, for nobody else until it is dropped.
    ///
    /// # Errors
    /// It cannot be opened or made, somebody else has it, or it is another kind of file.
    pub fn open(path: &Path) -> Result<RecordFile, RecordError> {
        RecordFile::open_before(path, &Witness::default())
    }

    /// The same, while somebody looks on.
    ///
    /// # Errors
    /// As there, and what the witness wants to fail.
    pub fn open_seen(path: &Path, witness: Arc<dyn RecordWitness>) -> Result<RecordFile, RecordError> {
        RecordFile::open_before(path, &Witness(Some(witness)))
    }

    fn open_before(path: &Path, witness: &Witness) -> Result<RecordFile, RecordError> {
        for _ in 0..OPEN_TRIES {
            let (fd, is_new) = match rustix::fs::lstat(path) {
                // Before it is opened: that does something to a device.
                Ok(about) if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile => {
                    return Err(RecordError::NoFile { path: path.to_owned() });
                }
                Err(Errno::NOENT) => (RecordFile::make(path, witness)?, true),
                _ => (RecordFile::open_there(path)?, false),
            };
            // Somebody else was faster.
            let Some(fd) = fd else { continue };
            if let Some(opened) = RecordFile::locked(path, fd, is_new, witness)? {
                return Ok(opened);
            }
        }
        Err(RecordError::Unsteady { path: path.to_owned() })
    }

    fn make(path: &Path, witness: &Witness) -> Result<Option<OwnedFd>, RecordError> {
        match witness.make(path, FLAGS) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            made => made.map(Some).map_err(|source| RecordError::Make { path: path.to_owned(), source }),
        }
    }

    fn open_there(path: &Path) -> Result<Option<OwnedFd>, RecordError> {
        match rustix::fs::open(path, FLAGS, Mode::empty()) {
            // It is gone, or a link by now.
            Err(Errno::NOENT | Errno::LOOP) => Ok(None),
            there => there.map(Some).map_err(|errno| RecordError::Open { path: path.to_owned(), source: errno.into() }),
        }
    }

    /// Nothing where another file has the path by now.
    fn locked(path: &Path, fd: OwnedFd, is_new: bool, witness: &Witness) -> Result<Option<RecordFile>, RecordError> {
        let failed = |source: io::Error| RecordError::Io { path: path.to_owned(), source };
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(RecordError::InUse { path: path.to_owned() }),
            locked => locked.map_err(|errno| failed(errno.into()))?,
        }
        let file = Stepped { file: File::from(fd), witness: witness.clone() };
        let about = file.metadata().map_err(failed)?;
        if is_at(path, &about) != Some(true) {
            return Ok(None);
        }
        let contents = Written::read(&file.file).map_err(failed)?;
        let (bytes, read) = (about.len(), contents.len() as u64);
        let latest = match Written::latest(&contents) {
            Some(latest) => RecordFile::go_on(path, &file, latest)?,
            // What says that it is empty and is not holds nothing that is written to it.
            None if read == bytes && is_blank(&contents) => {
                RecordFile::begin(path, &file).inspect_err(|_| {
                    // Nobody else has it while it is locked.
                    let _ = if is_new { witness.remove(path) } else { file.set_len(bytes) };
                })?
            }
            None if contents.chunks(SLOT_BYTES).any(|slot| slot.starts_with(&MAGIC)) => {
                return Err(RecordError::Damaged { path: path.to_owned() });
            }
            None => return Err(RecordError::Foreign { path: path.to_owned(), bytes: bytes.max(read) }),
        };
        Ok(Some(RecordFile { is_new, ..RecordFile::of(path, file, latest, false) }))
    }

    /// Writes both slots, without a record: from then on one of them is whole, whatever happens.
    fn begin(path: &Path, file: &Stepped) -> Result<Written, RecordError> {
        let written = file.write_all_at(&blank(), 0).and_then(|()| file.sync_all());
        written.map_err(|source| RecordError::Io { path: path.to_owned(), source })?;
        RecordFile::sync_name(path, file)?;
        let [latest, _] = blanks();
        Ok(latest)
    }

    /// Makes certain what a file has, in both slots.
    fn go_on(path: &Path, file: &Stepped, latest: Written) -> Result<Written, RecordError> {
        let put = |written: &Written| {
            let written = file.put(written).and_then(|()| file.sync_data());
            written.map_err(|source| RecordError::Io { path: path.to_owned(), source })
        };
        // Whoever wrote it may not have come to the sync, or that has failed: what is not written again then is not synced either.
        put(&latest)?;
        if latest == blanks()[0] {
            // Whoever made the file may not have come to its name.
            RecordFile::sync_name(path, file)?;
        }
        // The other slot may have parts of a record that a loss of power has kept from being stored. Parts of the next one, of the same
        // number, must not make it whole.
        let copy = Written { number: latest.number + 1, ..latest };
        put(&copy)?;
        Ok(copy)
    }

    /// From then on whoever looks for the file after a loss of power finds it.
    fn sync_name(path: &Path, file: &Stepped) -> Result<(), RecordError> {
        file.witness.sync_name(path).map_err(|source| RecordError::Directory { path: path.to_owned(), source })
    }

    fn of(path: &Path, file: Stepped, latest: Written, is_uncertain: bool) -> RecordFile {
        let state = State { next: latest.number + 1, latest, is_uncertain, is_storing: false };
        RecordFile { path: path.to_owned(), file, is_new: false, state: Mutex::new(state) }
    }

    /// Goes on with what [`hand_over`](Self::hand_over) gave, whatever has become of the file since: what is not as the record says is
    /// written anew.
    pub fn adopt(path: &Path, fd: OwnedFd, handed: HandedRecord) -> RecordFile {
        RecordFile::adopt_before(path, fd, handed, Witness::default())
    }

    /// The same, while somebody looks on.
    pub fn adopt_seen(path: &Path, fd: OwnedFd, handed: HandedRecord, witness: Arc<dyn RecordWitness>) -> RecordFile {
        RecordFile::adopt_before(path, fd, handed, Witness(Some(witness)))
    }

    fn adopt_before(path: &Path, fd: OwnedFd, handed: HandedRecord, witness: Witness) -> RecordFile {
        let HandedRecord { number, record } = handed;
        let file = Stepped { file: File::from(fd), witness };
        let there = Written::read(&file.file).ok().and_then(|contents| Written::latest(&contents));
        let latest = Written { number: number.min(NUMBER_MAX), record };
        if let Ok(about) = file.metadata()
            && (about.nlink() == 0 || is_at(path, &about) == Some(false))
        {
            let path = path.display();
            tracing::error!(%path, "the file of these reservations was removed, renamed or replaced: they end with the disk");
        }
        if there.as_ref() == Some(&latest) && file.sync_data().is_ok() {
            return RecordFile::of(path, file, latest, false);
        }
        tracing::warn!(path = %path.display(), "a file that keeps reservations is not as it was left: it is written anew");
        let number = there.map_or(latest.number, |there| there.number.max(latest.number));
        let file = RecordFile::of(path, file, Written { number, ..latest }, true);
        let record = file.record();
        // Into both slots: neither has another one.
        if let Err(error) = file.store(&record).and_then(|()| file.store(&record)) {
            tracing::error!(path = %path.display(), %error, "reservations cannot be stored");
        }
        file
    }

    /// What another program goes on with, and the lock with it.
    ///
    /// # Errors
    /// A record is being stored, or there are no more descriptors.
    pub fn hand_over(&self) -> io::Result<(OwnedFd, HandedRecord)> {
        let state = self.lock();
        if state.is_storing {
            return Err(self.busy());
        }
        let record = state.latest.record.clone();
        // That of the last writing, whatever has come of it: what the file has by another number is not this record.
        Ok((self.file.file.try_clone()?.into(), HandedRecord { number: state.next - 1, record }))
    }

    /// Gives a file that was made when it was opened to who is going to serve.
    ///
    /// # Errors
    /// It may not.
    pub fn give_to(&self, user: u32, group: u32) -> io::Result<()> {
        if self.is_new { std::os::unix::fs::fchown(&self.file.file, Some(user), Some(group)) } else { Ok(()) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record; empty where there is none.
    pub fn record(&self) -> Vec<u8> {
        self.lock().latest.record.clone()
    }

    /// Whether another record may be there than [`record`](Self::record) says, until one is stored.
    pub fn is_uncertain(&self) -> bool {
        self.lock().is_uncertain
    }

    /// Whether a record is being stored.
    pub fn is_storing(&self) -> bool {
        self.lock().is_storing
    }

    fn busy(&self) -> io::Error {
        let message =
            format!("a record is being written to {}: look at the file system if that lasts", self.path.display());
        io::Error::new(io::ErrorKind::ResourceBusy, message)
    }

    /// Keeps this record, of [`RECORD_BYTES_MAX`] bytes at most, on stable storage, in place of the one before. Blocks.
    ///
    /// # Errors
    /// Another one is being stored, or it cannot be written. The one before is there, or nobody knows which: see
    /// [`is_uncertain`](Self::is_uncertain).
    pub fn store(&self, record: &[u8]) -> io::Result<()> {
        if !self.begin_to_store() {
            return Err(self.busy());
        }
        let _ended = Ended(self);
        self.put(record)
    }

    /// From now on a record is being stored.
    ///
    /// # Errors
    /// Another one is.
    pub fn storing(self: Arc<Self>) -> io::Result<Storing> {
        if self.begin_to_store() { Ok(Storing(self)) } else { Err(self.busy()) }
    }

    fn begin_to_store(&self) -> bool {
        !std::mem::replace(&mut self.lock().is_storing, true)
    }

    /// One at a time.
    fn put(&self, record: &[u8]) -> io::Result<()> {
        if record.len() > RECORD_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let stored = self.write(record.to_vec());
        if stored.is_err() {
            // What is refused must not come true later: the one before goes over it.
            let _ = self.write(self.record());
        }
        stored
    }

    /// Writes into the slot that the latest record is not in.
    fn write(&self, record: Vec<u8>) -> io::Result<()> {
        let (written, latest) = {
            let mut state = self.lock();
            let written = Written { number: state.next, record };
            // Whatever comes of it: the same slot again, and a higher number.
            state.next = written.number + 2;
            state.is_uncertain = true;
            (written, state.latest.clone())
        };
        let about = self.file.metadata()?;
        if about.nlink() == 0 {
            // Nobody would find it again.
            return Err(io::Error::other("the file was removed: remove the disk, and add it again"));
        }
        if about.len() != FILE_BYTES {
            // Somebody has cut it, or written behind it.
            self.file.put(&latest)?;
            self.file.set_len(FILE_BYTES)?;
        }
        self.file.put(&written)?;
        self.file.sync_data()?;
        let mut state = self.lock();
        (state.next, state.latest, state.is_uncertain) = (written.number + 1, written, false);
        Ok(())
    }
}

/// Ends with a record that is being stored, however that ends.
struct Ended<'a>(&'a RecordFile);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.lock().is_storing = false;
    }
}

/// A record that is being stored, from before it is known to who stores it.
#[derive(Debug)]
pub struct Storing(Arc<RecordFile>);

impl Storing {
    /// As [`RecordFile::store`].
    ///
    /// # Errors
    /// As there.
    pub fn store(self, record: &[u8]) -> io::Result<()> {
        self.0.put(record)
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        drop(Ended(&self.0));
    }
}

const FLAGS: OFlags =
    OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::NOFOLLOW);
const FILE_BYTES: u64 = 2 * SLOT_BYTES as u64;
/// No file was written as often.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// What both slots begin with: no record.
fn blanks() -> [Written; 2] {
    [2, 1].map(|number| Written { number, record: Vec::new() })
}

fn blank() -> Vec<u8> {
    blanks().map(|written| written.to_bytes()).concat()
}

/// Whether a path leads to this file; `None` if that is not to be seen.
fn is_at(path: &Path, about: &Metadata) -> Option<bool> {
    let there = rustix::fs::lstat(path).ok()?;
    Some((there.st_dev, there.st_ino) == (about.dev(), about.ino()))
}

/// Whether no record was ever there: nothing, or what a loss of power leaves of a file that is being made.
fn is_blank(contents: &[u8]) -> bool {
    let made = blank();
    let mut sectors = contents.chunks(512).zip(made.chunks(512));
    sectors.all(|(there, made)| made.starts_with(there) || there.iter().all(|byte| *byte == 0))
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
