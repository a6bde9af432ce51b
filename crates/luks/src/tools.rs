//! What is done to containers that nobody serves: look at one, make one.

use crate::header::{CIPHER, Header, MAGIC};
use crate::kdf::DeriveError;
use crate::new::{self, New, Pieces};
use crate::served::Blocks;
use crate::slot::Slot;
use crate::{LuksError, Passphrase, key};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use storage::Storage;
use uuid::Uuid;

/// What is known of a container without its key. Its JSON is what `vringd image info --json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Info {
    /// Where it is.
    pub path: String,
    /// `luks`.
    pub format: &'static str,
    /// 1 or 2.
    pub version: u16,
    /// Its UUID.
    pub uuid: String,
    /// Its label; empty in version 1.
    pub label: String,
    /// How data are encrypted.
    pub cipher: &'static str,
    /// Bits of both keys together.
    pub key_bits: u64,
    /// Bytes that are encrypted together.
    pub sector_bytes: u32,
    /// Where the data begin.
    pub data_offset: u64,
    /// Size of the disk, in bytes.
    pub size_bytes: u64,
    /// Slots in use.
    pub slots: Vec<SlotInfo>,
}

/// A slot in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlotInfo {
    /// Its number.
    pub number: u32,
    /// How its key is derived; nothing where that is not supported.
    pub kdf: Option<&'static str>,
    /// Why it cannot be opened, if so.
    pub unsupported: Option<String>,
}

impl From<&Slot> for SlotInfo {
    fn from(slot: &Slot) -> SlotInfo {
        let (kdf, unsupported) = match &slot.area {
            Ok(area) => (Some(area.kdf.name()), None),
            Err(error) => (None, Some(error.to_string())),
        };
        SlotInfo { number: slot.number, kdf, unsupported }
    }
}

/// Reads what a container in a file or device says of itself; `None`: there is none. It may be served meanwhile.
///
/// # Errors
/// It cannot be read, or is one that is not supported.
pub fn info(path: &Path) -> Result<Option<Info>, LuksError> {
    let failed = |source| LuksError::Read { path: path.to_owned(), source };
    // NONBLOCK: a FIFO must not keep us waiting before we have seen that it is one.
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let kind = file.metadata().map_err(failed)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Ok(None);
    }
    let mut magic = MAGIC;
    // A first copy that is lost is for those who open it.
    match file.read_exact_at(&mut magic, 0) {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(failed(error)),
        Ok(()) if magic == MAGIC => {}
        _ => return Ok(None),
    }
    let bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|errno| failed(errno.into()))?;
    let header = Header::read(&mut |at, buf| file.read_exact_at(buf, at)).map_err(failed)?;
    let header = header.map_err(|source| LuksError::Format { path: path.to_owned(), source })?;
    Ok(Some(told(path, header, bytes)))
}

/// Whether a file or device has a container, of which a first copy may be lost.
///
/// # Errors
/// There is none, it cannot be read, or is one that is not supported.
pub fn check(path: &Path) -> Result<(), LuksError> {
    let failed = |source| LuksError::Read { path: path.to_owned(), source };
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let header = Header::read(&mut |at, buf| file.read_exact_at(buf, at)).map_err(failed)?;
    header.map(drop).map_err(|source| LuksError::Format { path: path.to_owned(), source })
}

/// The same of a storage that is open.
///
/// # Errors
/// As above; or there is none.
pub fn info_of(storage: &dyn Storage) -> Result<Info, LuksError> {
    let path = PathBuf::from(storage.describe().target);
    let failed = |source| LuksError::Read { path: path.clone(), source };
    let mut blocks = Blocks::of(storage).map_err(failed)?;
    let header = Header::read(&mut |at, buf| blocks.read(at, buf)).map_err(failed)?;
    let header = header.map_err(|source| LuksError::Format { path: path.clone(), source })?;
    Ok(told(&path, header, storage.capacity_bytes()))
}

fn told(path: &Path, header: Header, lower_bytes: u64) -> Info {
    let data = header.data;
    Info {
        path: path.display().to_string(),
        format: "luks",
        version: header.version,
        uuid: header.uuid,
        label: header.label,
        cipher: CIPHER,
        key_bits: data.key_bytes as u64 * 8,
        sector_bytes: data.sector_bytes,
        data_offset: data.offset,
        size_bytes: data.within(lower_bytes),
        slots: header.slots.iter().map(SlotInfo::from).collect(),
    }
}

/// A container that is made, and not written yet.
pub struct Made {
    header: Header,
    pieces: Pieces,
}

/// Makes a container, which takes the time and memory that opening it takes. `path`: where it will be, for an error.
///
/// # Errors
/// There is not so much memory, or nothing random.
pub fn make(path: &Path, new: &New, passphrase: &Passphrase) -> Result<Made, LuksError> {
    let mut broken = Ok(());
    let mut random = |buf: &mut [u8]| {
        if let Err(error) = key::random(buf) {
            broken = Err(error);
        }
    };
    let uuid = Uuid::new_v4().to_string();
    let made = new::make(new, &uuid, passphrase.bytes(), &mut random);
    broken.map_err(|source| LuksError::Write { path: path.to_owned(), source })?;
    let (header, pieces) = made.map_err(|error| LuksError::Costly {
        path: path.to_owned(),
        what: match error {
            DeriveError::Work(what) => what,
            DeriveError::Memory(kib) => format!("{kib} KiB of memory"),
        },
    })?;
    Ok(Made { header, pieces })
}

impl Made {
    /// Writes it to `storage`, whose contents are lost. What the disk reads as is noise, until it is written.
    ///
    /// # Errors
    /// It cannot be written, or is too small.
    pub fn write(self, storage: &dyn Storage) -> Result<(), LuksError> {
        let Made { header, mut pieces } = self;
        let path = || PathBuf::from(storage.describe().target);
        let failed = |source| LuksError::Write { path: path(), source };
        let present_bytes = storage.capacity_bytes();
        if header.data.within(present_bytes) == 0 {
            return Err(LuksError::Empty { path: path(), present_bytes, offset: header.data.offset });
        }
        let mut blocks = Blocks::of(storage).map_err(failed)?;
        // Nobody takes it for a container before it is whole.
        pieces.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (at, bytes) in pieces {
            blocks.write(at, &bytes).map_err(failed)?;
            blocks.flush().map_err(failed)?;
        }
        Ok(())
    }
}

/// Both at once.
///
/// # Errors
/// As of either.
pub fn format(storage: &dyn Storage, new: &New, passphrase: &Passphrase) -> Result<(), LuksError> {
    make(Path::new(&storage.describe().target), new, passphrase)?.write(storage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LuksStorage;
    use crate::testing::{PASSPHRASE, cheap};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use storage::{FileOptions, FileStorage};

    #[test]
    fn what_is_made_is_found_and_opens() {
        let directory = tempfile::tempdir().unwrap();
        let [image, key] = ["image", "key"].map(|name| directory.path().join(name));
        std::fs::write(&key, PASSPHRASE).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let passphrase = Passphrase::read(&key).unwrap();
        for (new, offset) in
            [(cheap(1, 32, 512), 2 << 20), (cheap(1, 64, 512), 2 << 20), (cheap(2, 64, 4096), 16 << 20)]
        {
            let offset = if new.key_bytes == 32 { 1056768u64.next_multiple_of(1 << 20) } else { offset };
            std::fs::File::create(&image).unwrap().set_len(offset + 8192).unwrap();
            assert_eq!(info(&image).unwrap(), None);
            let file = Arc::new(FileStorage::open(&FileOptions::new(&image)).unwrap());
            format(&*file, &new, &passphrase).unwrap();
            let info = info(&image).unwrap().unwrap();
            assert_eq!((info.version, info.data_offset, info.size_bytes), (new.version, offset, 8192));
            assert_eq!((info.key_bits, info.sector_bytes), (new.key_bytes as u64 * 8, new.sector_bytes));
            assert_eq!(info.slots, [SlotInfo { number: 0, kdf: Some("pbkdf2"), unsupported: None }]);
            assert_eq!((info.uuid.len(), info.uuid.as_bytes()[14]), (36, b'4'));
            let storage = LuksStorage::unlock(file, &passphrase, false).unwrap();
            assert_eq!(storage.capacity_bytes(), 8192);
        }
        std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
        let file = FileStorage::open(&FileOptions::new(&image)).unwrap();
        assert!(matches!(format(&file, &cheap(2, 64, 512), &passphrase), Err(LuksError::Empty { .. })));
        assert_eq!(super::info(&image).unwrap(), None);
    }
}
