//! A record that is to outlive a loss of power: a file of two slots, written in turns, so that one of them is whole at any moment.
//! `docs/formats/reservations.md` describes the file.
//!
//! It needs no more of its process than the descriptor: nothing is made, renamed or removed once it is open.

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// Longest record.
pub const RECORD_BYTES_MAX: usize = SLOT_BYTES - HEADER_BYTES;
/// Bytes of a slot, and of what is before the record in it.
const SLOT_BYTES: usize = 8192;
const HEADER_BYTES: usize = 32;
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
    /// {path} is no regular file: name one, or a file that does not exist
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
}

/// A file with a record, or with none yet.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    file: File,
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
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        loop {
            let fd = match rustix::fs::stat(path) {
                // Before it is opened: that does something to a device.
                Ok(about) if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile => {
                    return Err(RecordError::NoFile { path: path.to_owned() });
                }
                Err(Errno::NOENT) => {
                    match rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
                        // Somebody else was faster, or it is a link to nothing.
                        Err(Errno::EXIST) if rustix::fs::stat(path).is_ok() => continue,
                        made => {
                            made.map_err(|errno| RecordError::Make { path: path.to_owned(), source: errno.into() })?
                        }
                    }
                }
                _ => match rustix::fs::open(path, flags, Mode::empty()) {
                    Err(Errno::NOENT) => continue,
                    opened => {
                        opened.map_err(|errno| RecordError::Open { path: path.to_owned(), source: errno.into() })?
                    }
                },
            };
            if let Some(opened) = RecordFile::locked(path, fd)? {
                return Ok(opened);
            }
        }
    }

    /// Nothing where another file has the path by now.
    fn locked(path: &Path, fd: OwnedFd) -> Result<Option<RecordFile>, RecordError> {
        let failed = |source: io::Error| RecordError::Io { path: path.to_owned(), source };
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(RecordError::InUse { path: path.to_owned() }),
            locked => locked.map_err(|errno| failed(errno.into()))?,
        }
        let file = File::from(fd);
        let about = file.metadata().map_err(failed)?;
        let is_there =
            rustix::fs::stat(path).is_ok_and(|there| (there.st_dev, there.st_ino) == (about.dev(), about.ino()));
        if !is_there {
            return Ok(None);
        }
        if about.len() > FILE_BYTES {
            return Err(RecordError::Foreign { path: path.to_owned(), bytes: about.len() });
        }
        let mut contents = vec![0; about.len() as usize];
        file.read_exact_at(&mut contents, 0).map_err(failed)?;
        if is_blank(&contents) {
            RecordFile::begin(path, &file).map_err(|source| {
                // It is as empty as before, and goes if there was none. Nobody else has it while it is locked.
                let _ = file.set_len(0);
                if contents.is_empty() {
                    let _ = rustix::fs::unlink(path);
                }
                failed(source)
            })?;
            contents = blank();
        }
        let is_ours = contents.chunks(SLOT_BYTES).any(|slot| slot.starts_with(&MAGIC));
        match Written::latest(&contents) {
            Some(latest) => Ok(Some(RecordFile::of(path, file, latest, false))),
            None if is_ours => Err(RecordError::Damaged { path: path.to_owned() }),
            None => Err(RecordError::Foreign { path: path.to_owned(), bytes: about.len() }),
        }
    }

    /// Writes both slots, without a record: from then on one of them is whole, whatever happens.
    fn begin(path: &Path, file: &File) -> io::Result<()> {
        file.write_all_at(&blank(), 0)?;
        file.sync_all()?;
        // Its name, too: whoever looks for it after a loss of power finds it.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory)?.sync_all()
    }

    fn of(path: &Path, file: File, latest: Written, is_uncertain: bool) -> RecordFile {
        let next = latest.number + 1;
        RecordFile { path: path.to_owned(), file, state: Mutex::new(State { latest, next, is_uncertain }) }
    }

    /// Goes on with what [`hand_over`](Self::hand_over) gave, whatever has become of the file since: it is as the record says with the
    /// next one that is stored.
    pub fn adopt(path: &Path, fd: OwnedFd, handed: HandedRecord) -> RecordFile {
        let HandedRecord { number, record } = handed;
        let number = number.min(NUMBER_MAX);
        let (file, mut there) = (File::from(fd), Vec::new());
        let latest = Written { number, record };
        let is_read = file.metadata().is_ok_and(|about| about.len() == FILE_BYTES) && {
            there.resize(FILE_BYTES as usize, 0);
            file.read_exact_at(&mut there, 0).is_ok()
        };
        let is_there = is_read && Written::latest(&there).is_some_and(|there| there.record == latest.record);
        if !is_there {
            tracing::warn!(path = %path.display(), "a file that keeps reservations was changed by others: it is written anew");
        }
        let file = RecordFile::of(path, file, latest, !is_there);
        if !is_there && let Err(error) = file.store(&file.record()) {
            tracing::error!(path = %path.display(), %error, "reservations cannot be stored");
        }
        file
    }

    /// What another program goes on with, and the lock with it.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn hand_over(&self) -> io::Result<(OwnedFd, HandedRecord)> {
        let fd = self.file.try_clone()?.into();
        let Written { number, record } = self.lock().latest.clone();
        Ok((fd, HandedRecord { number, record }))
    }

    /// Gives a file that is this process's own to who is going to serve.
    ///
    /// # Errors
    /// It may not.
    pub fn give_to(&self, user: u32, group: u32) -> io::Result<()> {
        let is_own = self.file.metadata()?.uid() == rustix::process::geteuid().as_raw();
        if is_own { std::os::unix::fs::fchown(&self.file, Some(user), Some(group)) } else { Ok(()) }
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

    /// Keeps this record, of [`RECORD_BYTES_MAX`] bytes at most, on stable storage, in place of the one before. Blocks.
    ///
    /// # Errors
    /// It cannot be written. The one before is there, or nobody knows which: see [`is_uncertain`](Self::is_uncertain).
    pub fn store(&self, record: &[u8]) -> io::Result<()> {
        if record.len() > RECORD_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut state = self.lock();
        let stored = self.write(&mut state, record.to_vec());
        if stored.is_err() {
            // What is refused must not come true later: the one before goes over it.
            let before = state.latest.record.clone();
            let _ = self.write(&mut state, before);
        }
        stored
    }

    /// Writes into the slot that the latest record is not in.
    fn write(&self, state: &mut State, record: Vec<u8>) -> io::Result<()> {
        let written = Written { number: state.next, record };
        // Whatever comes of it: the same slot again, and a higher number.
        state.next = (written.number + 2).min(NUMBER_MAX);
        state.is_uncertain = true;
        let put = |written: &Written| self.file.write_all_at(&written.to_bytes(), written.slot() * SLOT_BYTES as u64);
        if self.file.metadata()?.len() != FILE_BYTES {
            // Somebody has cut it.
            put(&state.latest)?;
        }
        put(&written)?;
        self.file.sync_data()?;
        *state = State { next: written.number + 1, latest: written, is_uncertain: false };
        Ok(())
    }
}

const FILE_BYTES: u64 = 2 * SLOT_BYTES as u64;
/// No file was written as often.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// Both slots without a record.
fn blank() -> Vec<u8> {
    [2, 1].map(|number| Written { number, record: Vec::new() }.to_bytes()).concat()
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
        std::os::unix::fs::symlink(&nowhere, &link).unwrap();
        assert!(matches!(RecordFile::open(&link), Err(RecordError::Make { .. })));
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
