//! The disk as the parts of a volume see it that run while nobody else does: creation, recovery, examination.

use std::io;

/// A storage that is read and written in place, one call at a time; each returns when it is done.
///
/// Offsets and lengths are in bytes and multiples of 512. A write is durable once a later [`flush`](Blocks::flush) has returned;
/// until then a power cut may leave any of its sectors old or new.
#[expect(clippy::len_without_is_empty, reason = "a storage without a byte is none")]
pub trait Blocks {
    /// Bytes of the storage.
    fn len(&self) -> u64;

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// What the storage says, or [`io::ErrorKind::InvalidInput`] when the range leaves the storage.
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// What the storage says, or [`io::ErrorKind::InvalidInput`] when the range leaves the storage.
    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// Makes `len` bytes from `offset` read as zeroes; the storage may give their space back.
    ///
    /// # Errors
    /// What the storage says, or [`io::ErrorKind::InvalidInput`] when the range leaves the storage.
    fn zero_at(&mut self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// What the storage says. What was written since the last success may then be durable or not.
    fn flush(&mut self) -> io::Result<()>;
}

/// How far a long operation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are done.
    pub done_bytes: u64,
    /// Bytes that there are to do at most: a log is read as far as it goes, often less than its length.
    pub total_bytes: u64,
}

/// Bytes that are written or read in one go.
pub(crate) const RUN_BYTES: usize = 1 << 20;

/// Writes zeroes over a range, so that the file system gives it blocks which are *written*: a hole, or an extent that is merely
/// allocated, would turn each durable write there into one of metadata too.
///
/// # Errors
/// What the storage says.
pub(crate) fn write_zeroes(
    blocks: &mut dyn Blocks,
    offset: u64,
    len: u64,
    progress: &mut dyn FnMut(Progress),
) -> io::Result<()> {
    let zeroes = vec![0; RUN_BYTES.min(usize::try_from(len).unwrap_or(RUN_BYTES))];
    let mut done = 0;
    while done < len {
        let now = (len - done).min(zeroes.len() as u64);
        blocks.write_at(offset + done, zeroes.get(..now as usize).unwrap_or_default())?;
        done += now;
        progress(Progress { done_bytes: done, total_bytes: len });
    }
    Ok(())
}
