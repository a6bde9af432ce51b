//! The answer to a request that reads a directory: how many bytes of entries, and the entries one behind the other.

use super::attr::Qid;
use super::reply::read_count_out;
use super::spec::{DIRENT_BYTES, QID_BYTES};
use super::stat::Stat;
use crate::wire::put;

/// Appends a count, and entries while they fit. The count is right whenever no call is under way.
#[derive(Debug)]
pub struct DirWriter<'v> {
    out: &'v mut Vec<u8>,
    /// Where the count stands.
    count_at: usize,
    /// Bytes of entries so far.
    count: u32,
    /// Most bytes of entries.
    limit: u32,
}

impl<'v> DirWriter<'v> {
    /// Appends to `out`, whatever stands in it already, at most `limit` bytes of entries, and their count, which has four more.
    pub fn new(out: &'v mut Vec<u8>, limit: u32) -> DirWriter<'v> {
        let count_at = out.len();
        read_count_out(out, 0);
        DirWriter { out, count_at, count: 0, limit }
    }

    /// Bytes of entries so far.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether an entry of an `Rreaddir` with a name of so many bytes would fit.
    #[inline]
    pub fn would_fit(&self, name_len: usize) -> bool {
        self.end(DIRENT_BYTES.saturating_add(name_len)).is_some()
    }

    /// Appends an entry of an `Rreaddir`; `offset` is where the next entry is found, `kind` the `DT_*` of readdir(3). False when
    /// it does not fit: nothing is written then.
    #[inline]
    pub fn add(&mut self, qid: Qid, offset: u64, kind: u8, name: &[u8]) -> bool {
        let (Some(end), Ok(name_len)) = (self.end(DIRENT_BYTES.saturating_add(name.len())), u16::try_from(name.len()))
        else {
            return false;
        };
        let mut fixed = [0; DIRENT_BYTES];
        put::<0, _, _>(&mut fixed, qid.encode());
        put::<QID_BYTES, _, _>(&mut fixed, offset.to_le_bytes());
        put::<21, _, _>(&mut fixed, [kind]);
        put::<22, _, _>(&mut fixed, name_len.to_le_bytes());
        self.out.extend_from_slice(&fixed);
        self.out.extend_from_slice(name);
        self.set_count(end);
        true
    }

    /// Appends an entry of a directory that is read in 9P2000.u. False when it does not fit: nothing is written then.
    pub fn add_stat(&mut self, stat: &Stat<'_>) -> bool {
        let Some(end) = self.end(stat.bytes()) else {
            return false;
        };
        stat.encode(self.out);
        self.set_count(end);
        true
    }

    /// What the count becomes with so many bytes more, if they fit.
    #[inline]
    fn end(&self, bytes: usize) -> Option<u32> {
        let end = self.count.checked_add(u32::try_from(bytes).ok()?)?;
        (end <= self.limit).then_some(end)
    }

    #[inline]
    fn set_count(&mut self, count: u32) {
        self.count = count;
        if let Some(field) = self.out.get_mut(self.count_at..self.count_at + 4) {
            field.copy_from_slice(&count.to_le_bytes());
        }
    }
}
