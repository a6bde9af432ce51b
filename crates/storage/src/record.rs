//! A record that is to outlive a loss of power: a file of two slots, written in turns, so that one of them is whole at any moment.
//! `docs/formats/reservations.md` describes the file.
//!
//! It needs no more of its process than the descriptor: nothing is made, renamed or removed once it is open.

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    file: File,
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
        for _ in 0..OPEN_TRIES {
            let (fd, is_new) = match rustix::fs::lstat(path) {
                // Before it is opened: that does something to a device.
                Ok(about) if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile => {
                    return Err(RecordError::NoFile { path: path.to_owned() });
                }
                Err(Errno::NOENT) => (RecordFile::make(path)?, true),
                _ => (RecordFile::open_there(path)?, false),
            };
            // Somebody else was faster.
            let Some(fd) = fd else { continue };
            if let Some(opened) = RecordFile::locked(path, fd, is_new)? {
                return Ok(opened);
            }
        }
        Err(RecordError::Unsteady { path: path.to_owned() })
    }

    fn make(path: &Path) -> Result<Option<OwnedFd>, RecordError> {
        match rustix::fs::open(path, FLAGS | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
            Err(Errno::EXIST) => Ok(None),
            made => made.map(Some).map_err(|errno| RecordError::Make { path: path.to_owned(), source: errno.into() }),
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
    fn locked(path: &Path, fd: OwnedFd, is_new: bool) -> Result<Option<RecordFile>, RecordError> {
        let failed = |source: io::Error| RecordError::Io { path: path.to_owned(), source };
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(RecordError::InUse { path: path.to_owned() }),
            locked => locked.map_err(|errno| failed(errno.into()))?,
        }
        let file = File::from(fd);
        let about = file.metadata().map_err(failed)?;
        if is_at(path, &about) != Some(true) {
            return Ok(None);
        }
        let contents = Written::read(&file).map_err(failed)?;
        let (bytes, read) = (about.len(), contents.len() as u64);
        let latest = match Written::latest(&contents) {
            Some(latest) => {
                // Whoever wrote it may not have come to that.
                file.sync_data().map_err(failed)?;
                latest
            }
            // What says that it is empty and is not holds nothing that is written to it.
            None if read == bytes && is_blank(&contents) => {
                RecordFile::begin(path, &file).inspect_err(|_| {
                    // Nobody else has it while it is locked.
                    let _ = if is_new { rustix::fs::unlink(path).map_err(Into::into) } else { file.set_len(bytes) };
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
    fn begin(path: &Path, file: &File) -> Result<Written, RecordError> {
        let written = file.write_all_at(&blank(), 0).and_then(|()| file.sync_all());
        written.map_err(|source| RecordError::Io { path: path.to_owned(), source })?;
        // Its name, too: whoever looks for it after a loss of power finds it.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let stored = File::open(directory).and_then(|directory| directory.sync_all());
        stored.map_err(|source| RecordError::Directory { path: path.to_owned(), source })?;
        let [latest, _] = blanks();
        Ok(latest)
    }

    fn of(path: &Path, file: File, latest: Written, is_uncertain: bool) -> RecordFile {
        let state = State { next: latest.number + 1, latest, is_uncertain, is_storing: false };
        RecordFile { path: path.to_owned(), file, is_new: false, state: Mutex::new(state) }
    }

    /// Goes on with what [`hand_over`](Self::hand_over) gave, whatever has become of the file since: what is not as the record says is
    /// written anew.
    pub fn adopt(path: &Path, fd: OwnedFd, handed: HandedRecord) -> RecordFile {
        let HandedRecord { number, record } = handed;
        let file = File::from(fd);
        let there = Written::read(&file).ok().and_then(|contents| Written::latest(&contents));
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
        Ok((self.file.try_clone()?.into(), HandedRecord { number: state.next - 1, record }))
    }

    /// Gives a file that was made when it was opened to who is going to serve.
    ///
    /// # Errors
    /// It may not.
    pub fn give_to(&self, user: u32, group: u32) -> io::Result<()> {
        if self.is_new { std::os::unix::fs::fchown(&self.file, Some(user), Some(group)) } else { Ok(()) }
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
            state.next = (written.number + 2).min(NUMBER_MAX);
            state.is_uncertain = true;
            (written, state.latest.clone())
        };
        let put = |written: &Written| self.file.write_all_at(&written.to_bytes(), written.slot() * SLOT_BYTES as u64);
        let about = self.file.metadata()?;
        if about.nlink() == 0 {
            // Nobody would find it again.
            return Err(io::Error::other("the file was removed: remove the disk, and add it again"));
        }
        if about.len() != FILE_BYTES {
            // Somebody has cut it, or written behind it.
            put(&latest)?;
            self.file.set_len(FILE_BYTES)?;
        }
        put(&written)?;
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d.reservations");
        (directory, path)
    }

    #[test]
    fn a_record_is_there_when_the_file_is_opened_again() {
        let (_directory, path) = place();
        let file = RecordFile::open(&path).unwrap();
        assert_eq!(file.record(), b"");
        for record in [&b"one"[..], b"", &[7; RECORD_BYTES_MAX], b"two"] {
            file.store(record).unwrap();
            assert_eq!(file.record(), record);
        }
        assert_eq!(file.store(&[0; RECORD_BYTES_MAX + 1]).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let line = RecordFile::open(&path).unwrap_err().to_string();
        assert!(line.contains("is in use: another disk or another daemon keeps its reservations there"), "{line}");
        // Another program has it without letting go of it.
        let (fd, handed) = file.hand_over().unwrap();
        drop(file);
        assert!(matches!(RecordFile::open(&path), Err(RecordError::InUse { .. })));
        let adopted = RecordFile::adopt(&path, fd, handed);
        assert!(!adopted.is_uncertain());
        assert_eq!(adopted.record(), b"two");
        adopted.store(b"three").unwrap();
        drop(adopted);
        assert_eq!(RecordFile::open(&path).unwrap().record(), b"three");
    }

    #[test]
    fn what_somebody_does_to_the_file_is_put_right() {
        let (_directory, path) = place();
        for damage in [&b""[..], b"garbage", &[9; 2 * SLOT_BYTES], &[0; SLOT_BYTES]] {
            let file = RecordFile::open(&path).unwrap();
            file.store(b"kept").unwrap();
            std::fs::write(&path, damage).unwrap();
            let (fd, handed) = file.hand_over().unwrap();
            drop(file);
            let adopted = RecordFile::adopt(&path, fd, handed);
            assert_eq!((adopted.record().as_slice(), adopted.is_uncertain()), (&b"kept"[..], false));
            drop(adopted);
            assert_eq!(RecordFile::open(&path).unwrap().record(), b"kept");
            let file = RecordFile::open(&path).unwrap();
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(SLOT_BYTES as u64).unwrap();
            file.store(b"more").unwrap();
            drop(file);
            assert_eq!(RecordFile::open(&path).unwrap().record(), b"more");
        }
    }

    #[test]
    fn what_cannot_be_stored_does_not_come_true_later() {
        let (_directory, path) = place();
        let file = RecordFile::open(&path).unwrap();
        file.store(b"before").unwrap();
        let (fd, handed) = file.hand_over().unwrap();
        let read_only = RecordFile::adopt(&path, File::open(&path).unwrap().into(), handed.clone());
        assert!(read_only.store(b"refused").is_err());
        assert_eq!((read_only.record().as_slice(), read_only.is_uncertain()), (&b"before"[..], true));
        // It had come to the file all the same.
        let refused = Written { number: handed.number + 1, record: b"refused".to_vec() };
        file.file.write_all_at(&refused.to_bytes(), refused.slot() * SLOT_BYTES as u64).unwrap();
        let mut state = file.lock();
        (state.next, state.is_uncertain) = (handed.number + 3, true);
        drop(state);
        file.store(b"before").unwrap();
        drop((file, fd));
        assert_eq!(RecordFile::open(&path).unwrap().record(), b"before");
    }

    #[test]
    fn nothing_is_kept_in_a_file_that_was_removed() {
        let (_directory, path) = place();
        let file = RecordFile::open(&path).unwrap();
        file.store(b"kept").unwrap();
        std::fs::remove_file(&path).unwrap();
        let refused = file.store(b"lost").unwrap_err().to_string();
        assert!(refused.contains("the file was removed"), "{refused}");
        assert_eq!(file.record(), b"kept");
    }

    #[test]
    fn what_stands_behind_a_record_is_cut_off() {
        let (_directory, path) = place();
        let file = RecordFile::open(&path).unwrap();
        file.store(b"kept").unwrap();
        drop(file);
        let mut longer = std::fs::read(&path).unwrap();
        longer.extend([7; 1000]);
        std::fs::write(&path, longer).unwrap();
        let file = RecordFile::open(&path).unwrap();
        assert_eq!(file.record(), b"kept");
        file.store(b"more").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), FILE_BYTES);
    }

    #[test]
    fn what_others_have_written_meanwhile_comes_back_by_no_number() {
        let (directory, path) = place();
        let other = directory.path().join("other");
        let foreign = RecordFile::open(&other).unwrap();
        (0..9).for_each(|_| foreign.store(b"another").unwrap());
        let file = RecordFile::open(&path).unwrap();
        file.store(b"kept").unwrap();
        let (fd, handed) = file.hand_over().unwrap();
        std::fs::write(&path, std::fs::read(&other).unwrap()).unwrap();
        drop(file);
        drop(RecordFile::adopt(&path, fd, handed));
        let mut there = std::fs::read(&path).unwrap();
        assert_eq!(Written::latest(&there).unwrap().record, b"kept");
        there[..SLOT_BYTES].fill(0);
        assert_eq!(Written::latest(&there).unwrap().record, b"kept");
    }

    #[test]
    fn one_record_is_stored_at_a_time_and_none_while_it_changes_hands() {
        let (_directory, path) = place();
        let file = Arc::new(RecordFile::open(&path).unwrap());
        let storing = file.clone().storing().unwrap();
        assert!(file.is_storing() && file.clone().storing().is_err());
        assert_eq!(file.store(b"other").unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(file.hand_over().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        storing.store(b"one").unwrap();
        assert_eq!((file.record().as_slice(), file.is_storing()), (&b"one"[..], false));
        file.hand_over().unwrap();
    }

    #[test]
    fn a_file_that_was_there_keeps_its_owner() {
        let (_directory, path) = place();
        std::fs::write(&path, b"").unwrap();
        let before = std::fs::metadata(&path).unwrap().uid();
        RecordFile::open(&path).unwrap().give_to(before + 1, before + 1).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().uid(), before);
    }

    #[test]
    fn what_is_no_such_file_is_left_alone() {
        let (directory, path) = place();
        for bytes in [&b"text"[..], &[7; 2 * SLOT_BYTES]] {
            std::fs::write(&path, bytes).unwrap();
            let line = RecordFile::open(&path).unwrap_err().to_string();
            let words = format!("{} has {} bytes and no record in them", path.display(), bytes.len());
            assert!(line.starts_with(&words), "{line}");
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
        let nowhere = directory.path().join("none/d");
        let line = RecordFile::open(&nowhere).unwrap_err().to_string();
        assert!(line.starts_with(&format!("cannot make {}: No such file", nowhere.display())), "{line}");
        for path in [directory.path(), Path::new("/dev/zero")] {
            assert!(matches!(RecordFile::open(path), Err(RecordError::NoFile { .. })));
        }
        let link = directory.path().join("link");
        for target in [&nowhere, &path] {
            std::os::unix::fs::symlink(target, &link).unwrap();
            assert!(matches!(RecordFile::open(&link), Err(RecordError::NoFile { .. })));
            std::fs::remove_file(&link).unwrap();
        }
        // One that says it is empty and is not.
        let name = std::fs::read("/proc/self/comm").unwrap();
        assert!(matches!(RecordFile::open(Path::new("/proc/self/comm")), Err(RecordError::Foreign { .. })));
        assert_eq!(std::fs::read("/proc/self/comm").unwrap(), name);
        std::fs::write(&path, [0; 2 * SLOT_BYTES]).unwrap();
        drop(RecordFile::open(&path).unwrap());
        std::fs::write(&path, b"").unwrap();
        let file = RecordFile::open(&path).unwrap();
        file.store(b"kept").unwrap();
        drop(file);
        // What was cut while it was made is made again; a number that nothing comes behind is none.
        for len in [512, SLOT_BYTES, SLOT_BYTES + 100] {
            let place = directory.path().join("half");
            std::fs::write(&place, &blank()[..len]).unwrap();
            assert_eq!(RecordFile::open(&place).unwrap().record(), b"");
            std::fs::write(&place, Written { number: u64::MAX, record: vec![1] }.to_bytes().repeat(2)).unwrap();
            assert!(matches!(RecordFile::open(&place), Err(RecordError::Damaged { .. })));
        }
        let mut damaged = std::fs::read(&path).unwrap();
        damaged.iter_mut().step_by(512).skip(1).for_each(|byte| *byte ^= 1);
        std::fs::write(&path, damaged).unwrap();
        let line = RecordFile::open(&path).unwrap_err().to_string();
        assert!(line.contains("is damaged: both of its slots are"), "{line}");
    }

    proptest! {
        /// Power is cut while a record is written: any of its sectors are there, or not.
        #[test]
        fn after_a_loss_of_power_it_is_the_record_or_the_one_before(
            records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3000), 1..5),
            sectors in any::<u16>(),
        ) {
            let (_directory, path) = place();
            let file = RecordFile::open(&path).unwrap();
            let (last, before) = records.split_last().unwrap();
            before.iter().for_each(|record| file.store(record).unwrap());
            let whole_before = std::fs::read(&path).unwrap();
            file.store(last).unwrap();
            drop(file);
            let mut torn = std::fs::read(&path).unwrap();
            let changes = torn.chunks_mut(512).zip(whole_before.chunks(512)).enumerate();
            changes.filter(|(sector, _)| sectors >> (sector % 16) & 1 == 0).for_each(|(_, (new, old))| new.copy_from_slice(old));
            std::fs::write(&path, torn).unwrap();
            let found = RecordFile::open(&path).unwrap().record();
            let before = before.last().cloned().unwrap_or_default();
            prop_assert!(found == *last || found == before, "{} bytes", found.len());
        }

        #[test]
        fn no_bytes_are_too_much_for_it(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..2 * SLOT_BYTES - 200) {
            let (_directory, path) = place();
            drop(RecordFile::open(&path).unwrap());
            let mut file = std::fs::read(&path).unwrap();
            file[at..at + bytes.len()].copy_from_slice(&bytes);
            std::fs::write(&path, file).unwrap();
            if let Ok(file) = RecordFile::open(&path) {
                prop_assert_eq!(file.record(), b"");
            }
        }
    }
}
