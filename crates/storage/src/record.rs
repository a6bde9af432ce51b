//! A record that is to outlive a loss of power: a file of two slots, written in turns, so that one of them is whole at any moment.
//! `docs/formats/reservations.md` describes the file.
//!
//! It needs no more of its process than the descriptor: nothing is made, renamed or removed once it is open.

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
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
    /// {path} is in use: another disk or another daemon keeps its reservations there
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
            Written::from_bytes(slot).filter(|written| written.slot() == place)
        });
        whole.max_by_key(|written| written.number)
    }
}

/// A file with a record, or with none yet.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    file: File,
    latest: Mutex<Written>,
}

impl RecordFile {
    /// Opens the file, or makes it, for nobody else until it is dropped.
    ///
    /// # Errors
    /// It cannot be opened or made, somebody else has it, or it is another kind of file.
    pub fn open(path: &Path) -> Result<RecordFile, RecordError> {
        let failed = |errno: Errno| RecordError::Open { path: path.to_owned(), source: errno.into() };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let (fd, is_new) = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                let made = rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR);
                (made.map_err(failed)?, true)
            }
            opened => (opened.map_err(failed)?, false),
        };
        let opened = RecordFile::locked(path, fd, is_new);
        if is_new && opened.is_err() {
            // Nobody asked for a file that keeps nothing.
            let _ = rustix::fs::unlink(path);
        }
        opened
    }

    fn locked(path: &Path, fd: OwnedFd, is_new: bool) -> Result<RecordFile, RecordError> {
        let failed = |source: io::Error| RecordError::Io { path: path.to_owned(), source };
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(RecordError::InUse { path: path.to_owned() }),
            locked => locked.map_err(|errno| failed(errno.into()))?,
        }
        let file = File::from(fd);
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() || !matches!(about.len(), 0 | FILE_BYTES) {
            return Err(RecordError::Foreign { path: path.to_owned(), bytes: about.len() });
        }
        if is_blank(&file, about.len()).map_err(failed)? {
            RecordFile::begin(&file).map_err(failed)?;
        }
        if is_new {
            // Its name, too: whoever looks for it after a loss of power finds it.
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        }
        RecordFile::read(path, file)
    }

    /// Writes both slots, without a record: from then on one of them is whole, whatever happens.
    fn begin(file: &File) -> io::Result<()> {
        let slots = [2, 1].map(|number| Written { number, record: Vec::new() }.to_bytes());
        file.write_all_at(&slots.concat(), 0)?;
        file.sync_all()
    }

    fn read(path: &Path, file: File) -> Result<RecordFile, RecordError> {
        let mut bytes = vec![0; 2 * SLOT_BYTES];
        file.read_exact_at(&mut bytes, 0).map_err(|source| RecordError::Io { path: path.to_owned(), source })?;
        let is_ours = bytes.chunks(SLOT_BYTES).any(|slot| slot.starts_with(&MAGIC));
        match Written::latest(&bytes) {
            Some(latest) => Ok(RecordFile { path: path.to_owned(), file, latest: Mutex::new(latest) }),
            None if is_ours => Err(RecordError::Damaged { path: path.to_owned() }),
            None => Err(RecordError::Foreign { path: path.to_owned(), bytes: FILE_BYTES }),
        }
    }

    /// Goes on with what [`hand_over`](Self::hand_over) gave.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn adopt(path: &Path, fd: OwnedFd) -> Result<RecordFile, RecordError> {
        RecordFile::read(path, File::from(fd))
    }

    /// What another program goes on with, and the lock with it.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn hand_over(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record; empty where there is none.
    pub fn record(&self) -> Vec<u8> {
        self.lock().record.clone()
    }

    /// Keeps this record, of [`RECORD_BYTES_MAX`] bytes at most, on stable storage, in place of the one before. Blocks.
    ///
    /// # Errors
    /// It cannot be written: after a loss of power it is the one or the other.
    pub fn store(&self, record: &[u8]) -> io::Result<()> {
        if record.len() > RECORD_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut latest = self.lock();
        let next = Written { number: latest.number + 1, record: record.to_vec() };
        self.file.write_all_at(&next.to_bytes(), next.slot() * SLOT_BYTES as u64)?;
        self.file.sync_data()?;
        *latest = next;
        Ok(())
    }
}

const FILE_BYTES: u64 = 2 * SLOT_BYTES as u64;

/// Whether nothing was ever written there: what a loss of power leaves of a file that had just been made has no slot, either.
fn is_blank(file: &File, bytes: u64) -> io::Result<bool> {
    let mut contents = [0; FILE_BYTES as usize];
    let contents = &mut contents[..usize::try_from(bytes).unwrap_or(0)];
    file.read_exact_at(contents, 0)?;
    Ok(contents.iter().all(|byte| *byte == 0))
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
        assert!(line.ends_with("is in use: another disk or another daemon keeps its reservations there"), "{line}");
        // Another program has it without letting go of it.
        let handed = file.hand_over().unwrap();
        drop(file);
        assert!(matches!(RecordFile::open(&path), Err(RecordError::InUse { .. })));
        let adopted = RecordFile::adopt(&path, handed).unwrap();
        assert_eq!(adopted.record(), b"two");
        adopted.store(b"three").unwrap();
        drop(adopted);
        assert_eq!(RecordFile::open(&path).unwrap().record(), b"three");
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
        assert!(line.starts_with(&format!("cannot open {}: No such file", nowhere.display())), "{line}");
        assert!(matches!(RecordFile::open(directory.path()), Err(RecordError::Open { .. })));
        std::fs::write(&path, [0; 2 * SLOT_BYTES]).unwrap();
        drop(RecordFile::open(&path).unwrap());
        std::fs::write(&path, b"").unwrap();
        let file = RecordFile::open(&path).unwrap();
        file.store(b"kept").unwrap();
        drop(file);
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
