//! The table of internal snapshots (specification: "Snapshots").

use crate::FormatError;
use crate::field::{u32_at, u64_at};

/// Bytes of an entry before its extra data.
const FIXED_BYTES: usize = 40;
/// Most bytes of extra data: QEMU's bound.
const EXTRA_BYTES_MAX: usize = 1024;
/// Most bytes of the table: QEMU's bound, of 65,536 snapshots of 1 KiB.
pub const TABLE_BYTES_MAX: u64 = 64 << 20;
/// Most bytes of an entry, with an identifier and a name of 64 KiB each.
pub const ENTRY_BYTES_MAX: usize = FIXED_BYTES + EXTRA_BYTES_MAX + 2 * 65_535 + 7;

/// An internal snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Where its L1 table is.
    pub l1_offset: u64,
    /// Entries of that.
    pub l1_entries: u32,
    /// What programs call it.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// When it was taken, in seconds since 1970.
    pub taken_s: u32,
    /// Bytes of a virtual machine's state.
    pub vm_state_bytes: u64,
    /// The disk's size then; `None` if the entry does not say it: as it is now.
    pub size_bytes: Option<u64>,
}

impl Snapshot {
    /// Reads the entry that `bytes` begins with, the one with number `index`, and says how long it is. `bytes` has
    /// [`ENTRY_BYTES_MAX`], or all there are.
    ///
    /// # Errors
    /// An entry that ends behind `bytes`, or has more extra data than any program writes.
    pub fn parse(bytes: &[u8], index: u32) -> Result<(Snapshot, usize), FormatError> {
        let wrong = |rule| FormatError::Snapshot { index, rule };
        let short = || wrong("its entry lies in the image");
        let (word, half) = (|at| u64_at(bytes, at).ok_or_else(short), |at| u32_at(bytes, at).ok_or_else(short));
        let lengths = half(12)?;
        let (id_bytes, name_bytes) = ((lengths >> 16) as usize, (lengths & 0xffff) as usize);
        let extra_bytes = half(36)? as usize;
        if extra_bytes > EXTRA_BYTES_MAX {
            return Err(wrong("its extra data has at most 1024 bytes"));
        }
        let id_at = FIXED_BYTES + extra_bytes;
        let text = |from: usize, len: usize| {
            let text = bytes.get(from..from + len).ok_or_else(short)?;
            Ok(String::from_utf8_lossy(text).into_owned())
        };
        let snapshot = Snapshot {
            l1_offset: word(0)?,
            l1_entries: half(8)?,
            id: text(id_at, id_bytes)?,
            name: text(id_at + id_bytes, name_bytes)?,
            taken_s: half(16)?,
            vm_state_bytes: if extra_bytes >= 8 { word(FIXED_BYTES)? } else { half(32)?.into() },
            size_bytes: if extra_bytes >= 16 { Some(word(FIXED_BYTES + 8)?) } else { None },
        };
        Ok((snapshot, (id_at + id_bytes + name_bytes).next_multiple_of(8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(extra: &[u64], id: &str, name: &str) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(0x5_0000u64.to_be_bytes());
        out.extend(7u32.to_be_bytes());
        out.extend((id.len() as u16).to_be_bytes());
        out.extend((name.len() as u16).to_be_bytes());
        out.extend([1_700_000_000u32, 5].iter().flat_map(|word| word.to_be_bytes()));
        out.extend(99u64.to_be_bytes());
        out.extend(4096u32.to_be_bytes());
        out.extend((extra.len() as u32 * 8).to_be_bytes());
        out.extend(extra.iter().flat_map(|word| word.to_be_bytes()));
        out.extend(id.as_bytes());
        out.extend(name.as_bytes());
        out.resize(out.len().next_multiple_of(8), 0);
        out
    }

    #[test]
    fn entries_say_what_they_say_and_no_more() {
        let short = entry(&[], "1", "before the upgrade");
        let (snapshot, len) = Snapshot::parse(&short, 0).unwrap();
        assert_eq!((snapshot.id.as_str(), snapshot.name.as_str(), len), ("1", "before the upgrade", short.len()));
        assert_eq!((snapshot.vm_state_bytes, snapshot.size_bytes), (4096, None));
        let long = entry(&[1 << 33, 1 << 30, 3], "", "");
        let (snapshot, len) = Snapshot::parse(&long, 0).unwrap();
        assert_eq!((snapshot.vm_state_bytes, snapshot.size_bytes, len), (1 << 33, Some(1 << 30), long.len()));
        for cut in 0..short.len() - 7 {
            assert!(Snapshot::parse(&short[..cut.min(short.len())], 3).is_err() || cut >= 59, "{cut}");
        }
        let mut large = long;
        large[38] = 0xff;
        let error = Snapshot::parse(&large, 3).unwrap_err().to_string();
        assert!(error.contains("snapshot 3") && error.contains("1024"), "{error}");
    }
}
