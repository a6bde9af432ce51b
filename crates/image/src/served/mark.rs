//! The mark of an image whose intent log may hold more than the image: incompatible feature 63, which keeps every other program away
//! from it, and the extension that says which log that is. Both are in the first sector, and come and go with it.

use super::chain::Chain;
use super::error::Trouble;
use super::heading::{change_header, check_header};
use super::{Qcow2Storage, disk};
use crate::FormatError;
use crate::features::{self, Name, Word};
use crate::header::Header;
use crate::rewrite;
use std::io;
use storage::{Action, LogMark, Marked, StorageError};
use uuid::Uuid;

/// Any mark: whatever its numbers are, it is as long.
const SOME: Option<LogMark> = Some(LogMark { log: Uuid::nil(), from: 0, epoch: 0 });

impl Marked for Qcow2Storage {
    fn log_mark(&self) -> Result<Option<LogMark>, StorageError> {
        of(&self.shared.chain)
    }

    fn check_log_mark(&self) -> Result<(), StorageError> {
        self.admits_mark()?;
        let fits = check_header(&self.shared.chain, |old, first| rewrite::steps(old, &marked(old, SOME), first));
        fits.map_err(|trouble| self.no_mark(Action::Read, trouble))
    }

    fn set_log_mark(&self, mark: Option<LogMark>) -> Result<(), StorageError> {
        self.admits_mark()?;
        let changed = self.shared.check_written().and_then(|()| {
            change_header(&self.shared.chain, |old, first| rewrite::steps(old, &marked(old, mark), first))
        });
        changed.map_err(|trouble| self.no_mark(Action::Write, trouble))
    }
}

impl Qcow2Storage {
    fn admits_mark(&self) -> Result<(), StorageError> {
        match self.shared.chain.top().header.version {
            ..3 => Err(refused(
                "an image of version 2 has no features: `qemu-img amend -f qcow2 -o compat=1.1` makes it one of version 3",
            )),
            _ => Ok(()),
        }
    }

    fn no_mark(&self, action: Action, trouble: Trouble) -> StorageError {
        match trouble {
            Trouble::Errno(libc::ENOSPC) => {
                refused("there is no room for it in the header of this image: convert it to one with larger clusters")
            }
            trouble => self.failed(action, &trouble),
        }
    }
}

/// Whether a new image that begins with this cluster has room for a mark.
///
/// # Errors
/// It does not begin like an image.
pub(crate) fn has_room_for_mark(first: &[u8]) -> Result<bool, FormatError> {
    let header = Header::parse(first)?;
    Ok(rewrite::fits(first, &rewrite::steps(&header, &marked(&header, SOME), first)))
}

fn refused(reason: &str) -> StorageError {
    StorageError::Io { action: Action::Write, source: io::Error::other(reason.to_owned()) }
}

/// The mark of the first image of a chain, as it is on the storage. Blocks.
///
/// # Errors
/// It cannot be read.
pub(super) fn of(chain: &Chain) -> Result<Option<LogMark>, StorageError> {
    let failed = |source| StorageError::Io { action: Action::Read, source };
    let file = chain.file(chain.top().file);
    // The chain has read it whole, and it is no longer than that.
    let bytes = chain.top().geometry.cluster_bytes().min(file.capacity_bytes());
    let mut first = vec![0; bytes as usize];
    disk::read(file, 0, &mut first).map_err(|errno| failed(io::Error::from_raw_os_error(errno)))?;
    let header = Header::parse(&first).map_err(|error| failed(io::Error::other(error)))?;
    Ok(header.log_mark())
}

/// The header with this mark.
pub(crate) fn marked(old: &Header, mark: Option<LogMark>) -> Header {
    let mut new = old.clone();
    new.extensions.log = mark;
    let names = &mut new.extensions.feature_names;
    names.retain(|name| !(name.word == Word::Incompatible && 1 << name.bit == features::LOGGED));
    match mark {
        Some(_) => {
            new.incompatible |= features::LOGGED;
            let bit = features::LOGGED.trailing_zeros() as u8;
            names.push(Name { word: Word::Incompatible, bit, name: features::LOGGED_NAME.to_owned() });
        }
        None => new.incompatible &= !features::LOGGED,
    }
    new
}
