//! What dm-log-writes leaves on its log device (Linux, `drivers/md/dm-log-writes.c`, version 1).
//!
//! One block of superblock, then the entries, one behind the other: a block that says what it is, and the blocks that were written.
//! A mark's text stands behind the fields in its own block; a flush and a discard have nothing behind theirs. Numbers are
//! little-endian, places and lengths are in blocks of the device that was logged.
//!
//! | superblock | bytes | entry | bytes |
//! |---|---|---|---|
//! | magic | 8 | first block | 8 |
//! | version | 8 | blocks | 8 |
//! | entries | 8 | flags | 8 |
//! | bytes of a block | 4 | bytes of a mark's text | 8 |
//!
//! A write is an entry from the moment from which it must survive: a durable one when it is complete, any other when a flush is
//! complete that began behind it, in front of that flush. So each beginning of the log is what a cut may leave.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1 << 0;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;
/// The mark that the kernel sets when the device is removed.
const END: &str = "dm-log-writes-end";
/// The least block of a device, which is as much of a block as the fields need.
const BLOCK_BYTES_MIN: usize = 512;
const BLOCK_BYTES_MAX: u32 = 65536;
const FIELDS_BYTES: usize = 32;
/// No write of a kernel is as long; a log that says so is none.
const WRITE_BYTES_MAX: u64 = 1 << 30;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::powercut) struct Entry {
    /// A flush ended, in front of what else the entry says.
    pub(in crate::powercut) flush: bool,
    pub(in crate::powercut) what: What,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::powercut) enum What {
    /// No more.
    Nothing,
    /// Data was written, `offset` in bytes.
    Write { offset: u64, data: Vec<u8>, durable: bool },
    /// A range was given back, in bytes.
    Discard { offset: u64, bytes: u64 },
    /// Somebody left a word.
    Mark(String),
}

/// Reads all entries.
///
/// # Errors
/// It is no log, or the kernel did not bring it to its end.
pub(in crate::powercut) fn read(file: &File) -> Result<Vec<Entry>> {
    let superblock = block(file, 0)?;
    let (magic, version) = (field(&superblock, 0), field(&superblock, 1));
    ensure!((magic, version) == (MAGIC, VERSION), "it begins with {magic:#x}, version {version}");
    let (count, block_bytes) = (field(&superblock, 2), field(&superblock, 3) as u32);
    let usable = block_bytes.is_power_of_two() && (BLOCK_BYTES_MIN as u32..=BLOCK_BYTES_MAX).contains(&block_bytes);
    ensure!(usable, "its blocks have {block_bytes} bytes");
    let block_bytes = u64::from(block_bytes);
    let mut entries = Vec::new();
    let mut at = block_bytes;
    for number in 0..count {
        let (entry, behind) = entry(file, at, block_bytes).with_context(|| format!("entry {number} of {count}"))?;
        entries.push(entry);
        at = behind;
    }
    // Where the device that holds the log is full, the kernel goes on and logs no more.
    let end = entries.pop().map(|entry| entry.what);
    ensure!(end == Some(What::Mark(END.to_owned())), "its end is missing: the log device was too small or failed");
    Ok(entries)
}

/// The entry at byte `at`, and where the next one is.
fn entry(file: &File, at: u64, block_bytes: u64) -> Result<(Entry, u64)> {
    let head = block(file, at)?;
    let (flags, text_bytes) = (field(&head, 2), field(&head, 3));
    let bytes_of = |blocks: u64| blocks.checked_mul(block_bytes).context("it lies behind any device's end");
    let (offset, bytes) = (bytes_of(field(&head, 0))?, bytes_of(field(&head, 1))?);
    let behind = at + block_bytes;
    let flush = flags & FLUSH != 0;
    if flags & MARK != 0 {
        let text =
            head[FIELDS_BYTES..].get(..usize::try_from(text_bytes)?).context("a mark is longer than its block")?;
        let text = String::from_utf8(text.to_vec()).context("a mark is no text")?;
        return Ok((Entry { flush, what: What::Mark(text) }, behind));
    }
    if flags & DISCARD != 0 {
        return Ok((Entry { flush, what: What::Discard { offset, bytes } }, behind));
    }
    if bytes == 0 {
        return Ok((Entry { flush, what: What::Nothing }, behind));
    }
    ensure!(bytes <= WRITE_BYTES_MAX, "a write of {bytes} bytes");
    let mut data = vec![0; usize::try_from(bytes)?];
    file.read_exact_at(&mut data, behind).context("its data is cut off")?;
    Ok((Entry { flush, what: What::Write { offset, data, durable: flags & FUA != 0 } }, behind + bytes))
}

fn block(file: &File, at: u64) -> Result<[u8; BLOCK_BYTES_MIN]> {
    let mut block = [0; BLOCK_BYTES_MIN];
    file.read_exact_at(&mut block, at).context("it is cut off")?;
    Ok(block)
}

/// The number `index` in the fields of a block.
fn field(block: &[u8; BLOCK_BYTES_MIN], index: usize) -> u64 {
    u64::from_le_bytes(block.as_chunks::<8>().0[index])
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use super::*;

    /// One block with these fields, and what stands behind them.
    fn fields(numbers: [u64; 4], text: &str) -> Vec<u8> {
        let mut block: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        block.extend_from_slice(text.as_bytes());
        block.resize(BLOCK_BYTES_MIN, 0);
        block
    }

    fn log(count: u64, entries: &[Vec<u8>]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&fields([MAGIC, VERSION, count, 512], "")).unwrap();
        for entry in entries {
            file.write_all(entry).unwrap();
        }
        file
    }

    fn mark(text: &str) -> Vec<u8> {
        fields([0, 0, MARK, text.len() as u64], text)
    }

    #[test]
    fn entries_are_read_in_their_order() {
        let write = [fields([5, 2, FUA, 0], ""), vec![7; 1024]].concat();
        let both = [fields([1, 1, FLUSH, 0], ""), vec![8; 512]].concat();
        let discard = fields([3, 1_000_000, DISCARD, 0], "");
        let log = log(6, &[write, mark("42"), fields([0, 0, FLUSH, 0], ""), discard, both, mark(END)]);
        let entry = |flush, what| Entry { flush, what };
        let expected = [
            entry(false, What::Write { offset: 2560, data: vec![7; 1024], durable: true }),
            entry(false, What::Mark("42".to_owned())),
            entry(true, What::Nothing),
            entry(false, What::Discard { offset: 1536, bytes: 512_000_000 }),
            entry(true, What::Write { offset: 512, data: vec![8; 512], durable: false }),
        ];
        assert_eq!(read(&log).unwrap(), expected);
    }

    #[test]
    fn what_is_no_whole_log_is_refused() {
        let complaint = |file: &File| format!("{:#}", read(file).unwrap_err());
        assert!(complaint(&tempfile::tempfile().unwrap()).contains("cut off"));
        assert!(complaint(&log(1, &[mark("1")])).contains("its end is missing"));
        assert!(complaint(&log(2, &[mark("1")])).contains("entry 1 of 2: it is cut off"));
        assert!(complaint(&log(1, &[fields([0, 9, 0, 0], "")])).contains("its data is cut off"));
        assert!(complaint(&log(1, &[fields([0, u64::MAX, 0, 0], "")])).contains("behind any device's end"));
        assert!(complaint(&log(1, &[fields([0, 1 << 40, 0, 0], "")])).contains("a write of"));
        assert!(complaint(&log(1, &[fields([0, 0, MARK, 481], "")])).contains("longer than its block"));
        let mut other = tempfile::tempfile().unwrap();
        other.write_all(&fields([MAGIC, VERSION, 0, 1000], "")).unwrap();
        assert!(complaint(&other).contains("blocks have 1000 bytes"));
    }
}
