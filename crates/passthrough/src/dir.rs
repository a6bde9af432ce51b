//! Reading directories: large pieces of `getdents64`, kept with the open directory.

use crate::error::Result;
use crate::handle::last_error;
use crate::handover::form::Listing;
use crate::sync::{Counted, lock};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// How much of a directory is read at once.
const PIECE_BYTES: usize = 32 * 1024;

/// How many directories of a tree are read in pieces of that size at one time: a client that opens all that it may and
/// reads none to its end has the others read in small pieces.
const PIECES_MAX: usize = 1024;

/// How much is read at once then. Names have at most 255 bytes.
const SMALL_PIECE_BYTES: usize = 2 * 1024;

/// Bytes of a `struct linux_dirent64` before the name.
const NAME_AT: usize = 19;

/// One name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Inode number on the host; of a mount point, that of the directory under the mount.
    pub ino: u64,
    /// Where reading goes on behind this entry: the `offset` of a later [`crate::Tree::read_dir`].
    pub offset: u64,
    /// `DT_*` of `dirent.h`, 0 when the file system does not tell.
    pub kind: u8,
    /// The name. "." and ".." are among the entries.
    pub name: &'a [u8],
}

/// Where in a directory its reader is.
#[derive(Debug, Default)]
struct Position {
    /// Entries as the kernel wrote them; those before `at` were delivered.
    piece: Vec<u8>,
    at: usize,
    /// The right to a large piece.
    large: Option<Counted>,
    /// The offset of the next entry.
    offset: u64,
}

/// A directory that is read piece by piece.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    position: Mutex<Position>,
    /// The last name that was looked up from here was new.
    expects_unknown: AtomicBool,
}

impl Stream {
    /// Where its reader is. The descriptor is further: it is where the piece ends.
    pub(crate) fn hand_over(&self) -> Listing {
        let position = lock(&self.position);
        let rest = position.piece.get(position.at..).unwrap_or_default().to_vec();
        Listing { rest, offset: position.offset, expects_unknown: self.expects_unknown() }
    }

    /// The stream whose reader was there.
    pub(crate) fn again(listing: &Listing, pieces: &Arc<AtomicUsize>) -> Stream {
        let mut position = Position { offset: listing.offset, ..Position::default() };
        if !listing.rest.is_empty() {
            // As large as any piece, whatever is left of this one: the next takes its place.
            position.make_room(pieces);
            position.piece.extend_from_slice(&listing.rest);
        }
        Stream { position: Mutex::new(position), expects_unknown: AtomicBool::new(listing.expects_unknown) }
    }

    /// Gives `each` the entries of `dir` from `offset` on, which is 0 or the offset of an entry that was given before. `each` says
    /// `false` for an entry that it cannot take, which ends the reading and comes again next time. Calls wait for each other.
    ///
    /// # Errors
    /// `EINVAL` for an offset that is none, and the kernel's. Entries that were given are given nonetheless.
    pub(crate) fn read(
        &self,
        dir: BorrowedFd<'_>,
        offset: u64,
        pieces: &Arc<AtomicUsize>,
        mut each: impl FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let position = &mut *lock(&self.position);
        // From the start means what the directory is now, not what it was when the piece was read.
        if offset != position.offset || offset == 0 {
            if i64::try_from(offset).is_err() {
                return Err(Errno::INVAL);
            }
            position.piece.clear();
            position.at = 0;
            rustix::fs::seek(dir, SeekFrom::Start(offset))?;
            position.offset = offset;
        }
        loop {
            while let Some((entry, length)) = position.entry()? {
                let next = entry.offset;
                if !each(entry) {
                    return Ok(());
                }
                position.at += length;
                position.offset = next;
            }
            if !position.fill(dir, pieces)? {
                return Ok(());
            }
        }
    }

    pub(crate) fn expects_unknown(&self) -> bool {
        self.expects_unknown.load(Ordering::Relaxed)
    }

    pub(crate) fn expect_unknown(&self, unknown: bool) {
        self.expects_unknown.store(unknown, Ordering::Relaxed);
    }
}

impl Position {
    /// Room for a piece, of which nothing is there yet.
    fn make_room(&mut self, pieces: &Arc<AtomicUsize>) {
        self.large = Counted::within(pieces, PIECES_MAX);
        self.piece.reserve_exact(if self.large.is_some() { PIECE_BYTES } else { SMALL_PIECE_BYTES });
    }

    /// Reads on from where the descriptor is. `false` at the end of the directory.
    fn fill(&mut self, dir: BorrowedFd<'_>, pieces: &Arc<AtomicUsize>) -> Result<bool> {
        self.at = 0;
        self.piece.clear();
        if self.piece.capacity() == 0 {
            self.make_room(pieces);
        }
        // SAFETY: the kernel writes at most as many bytes as it is told, all of them into the vector's own room.
        let len = unsafe {
            libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), self.piece.as_mut_ptr(), self.piece.capacity())
        };
        let len = usize::try_from(len).map_err(|_| last_error())?;
        // SAFETY: so many bytes were written, and the kernel never says more than there is room.
        unsafe { self.piece.set_len(len) };
        if len == 0 {
            // A directory that was read keeps no memory.
            self.piece = Vec::new();
            self.large = None;
        }
        Ok(len > 0)
    }

    /// The entry at `at`, and how many bytes it takes.
    fn entry(&self) -> Result<Option<(DirEntry<'_>, usize)>> {
        let rest = self.piece.get(self.at..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        // A FUSE or network file system of the host has written what the kernel gave us: nothing of it is taken on trust.
        parse(rest).map(Some).ok_or(Errno::IO)
    }
}

/// Reads one `struct linux_dirent64` of `getdents64(2)`.
fn parse(bytes: &[u8]) -> Option<(DirEntry<'_>, usize)> {
    let (ino, rest) = bytes.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let kind = *rest.first()?;
    let length = usize::from(u16::from_ne_bytes(*length));
    let name = bytes.get(NAME_AT..length)?;
    let name = name.split(|&byte| byte == 0).next()?;
    Some((DirEntry { ino: u64::from_ne_bytes(*ino), offset: u64::from_ne_bytes(*offset), kind, name }, length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some((entry, length)) = parse(&bytes) {
                prop_assert!(length >= NAME_AT && length <= bytes.len());
                prop_assert!(entry.name.len() <= length - NAME_AT);
            }
        }
    }
}
