//! The answer to READDIR and READDIRPLUS: entries one behind the other.

use super::attr::EntryOut;
use super::reply::encode_entry;
use super::spec::{DIRENT_BYTES, DIRENTPLUS_BYTES, RECORD_ALIGN};
use super::wire::put;

/// Appends entries while they fit.
#[derive(Debug)]
pub struct DirWriter<'v> {
    out: &'v mut Vec<u8>,
    /// Bytes still free.
    room: usize,
}

impl<'v> DirWriter<'v> {
    /// Appends to `out`, at most `limit` bytes, whatever stands in it already.
    pub fn new(out: &'v mut Vec<u8>, limit: usize) -> DirWriter<'v> {
        DirWriter { out, room: limit }
    }

    /// Bytes that an entry takes, with its padding.
    #[inline]
    const fn entry_bytes(name_len: usize, plus: bool) -> usize {
        let fixed = if plus { DIRENTPLUS_BYTES } else { DIRENT_BYTES };
        // A name is never that long; it just must not wrap.
        fixed.saturating_add(name_len).saturating_add(RECORD_ALIGN - 1) & !(RECORD_ALIGN - 1)
    }

    /// Whether an entry with a name of so many bytes would fit; `plus` as by [`add_plus`](Self::add_plus).
    #[inline]
    pub fn would_fit(&self, name_len: usize, plus: bool) -> bool {
        Self::entry_bytes(name_len, plus) <= self.room
    }

    /// Appends a `fuse_dirent`; `offset` is where the next entry is found, `kind` the `DT_*` of readdir(3). False when it does
    /// not fit: nothing is written then.
    #[inline]
    pub fn add(&mut self, ino: u64, offset: u64, kind: u32, name: &[u8]) -> bool {
        let bytes = Self::entry_bytes(name.len(), false);
        if bytes > self.room {
            return false;
        }
        self.append(ino, offset, kind, name, bytes);
        true
    }

    /// Appends a `fuse_direntplus`: as [`add`](Self::add), with what LOOKUP would have answered. An entry of node 0 counts no
    /// reference.
    #[inline]
    pub fn add_plus(&mut self, entry: &EntryOut, ino: u64, offset: u64, kind: u32, name: &[u8]) -> bool {
        let bytes = Self::entry_bytes(name.len(), true);
        if bytes > self.room {
            return false;
        }
        let entry = encode_entry(entry);
        self.out.extend_from_slice(&entry);
        self.room -= entry.len();
        self.append(ino, offset, kind, name, bytes - entry.len());
        true
    }

    /// Appends a `fuse_dirent` of so many bytes, which fit.
    #[inline]
    fn append(&mut self, ino: u64, offset: u64, kind: u32, name: &[u8], bytes: usize) {
        let mut fixed = [0; DIRENT_BYTES];
        put::<0, _, _>(&mut fixed, ino.to_le_bytes());
        put::<8, _, _>(&mut fixed, offset.to_le_bytes());
        // It fits into the room, of which the protocol has 32 bits.
        put::<16, _, _>(&mut fixed, (name.len() as u32).to_le_bytes());
        put::<20, _, _>(&mut fixed, kind.to_le_bytes());
        let end = self.out.len() + bytes;
        self.out.extend_from_slice(&fixed);
        self.out.extend_from_slice(name);
        self.out.resize(end, 0);
        self.room -= bytes;
    }
}
