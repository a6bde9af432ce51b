//! The table of internal snapshots (specification: "Snapshots").

use crate::FormatError;
use crate::field::{u32_at, u64_at};
use crate::header::Header;
use crate::uses::Source;
use std::io;

/// Bytes of an entry before its extra data.
pub(crate) const FIXED_BYTES: usize = 40;
/// Most bytes of extra data: QEMU's bound.
const EXTRA_BYTES_MAX: usize = 1024;
/// Most bytes of the table: QEMU's bound, of 65,536 snapshots of 1 KiB.
pub const TABLE_BYTES_MAX: u64 = 64 << 20;
/// Most bytes of a name that programs give: QEMU's bound.
pub const NAME_BYTES_MAX: usize = 255;
/// Most bytes of an entry, with an identifier and a name of 64 KiB each.
const ENTRY_BYTES_MAX: usize = FIXED_BYTES + EXTRA_BYTES_MAX + 2 * 65_535 + 7;
/// Bytes of a long table that are read at once.
const WINDOW_BYTES: usize = 8 * ENTRY_BYTES_MAX;

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
    /// what the longest entry has, or all there are.
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

impl Snapshot {
    /// Whether it has this identifier or name.
    pub fn is(&self, wanted: &str) -> bool {
        self.id == wanted || self.name == wanted
    }

    /// The entry as it is written, with sizes of 64 bits, and the clock of no machine.
    pub fn encode(&self) -> Vec<u8> {
        let (id, name) = (self.id.as_bytes(), self.name.as_bytes());
        let mut out = Vec::new();
        out.extend(self.l1_offset.to_be_bytes());
        out.extend(self.l1_entries.to_be_bytes());
        out.extend((id.len() as u16).to_be_bytes());
        out.extend((name.len() as u16).to_be_bytes());
        // Seconds, nanoseconds; nanoseconds of the machine's clock, bytes of its state.
        out.extend([self.taken_s, 0].iter().flat_map(|word| word.to_be_bytes()));
        out.extend(0u64.to_be_bytes());
        out.extend(0u32.to_be_bytes());
        let extra = [self.vm_state_bytes, self.size_bytes.unwrap_or(0)];
        out.extend((8 * extra.len() as u32).to_be_bytes());
        out.extend(extra.iter().flat_map(|word| word.to_be_bytes()));
        out.extend([id, name].concat());
        out.resize(out.len().next_multiple_of(8), 0);
        out
    }

    /// The header that an image with header `now` would have if its disk were as it was at this snapshot, which has number `index`.
    ///
    /// # Errors
    /// Its L1 table is none, or not that of a disk of its size.
    pub fn header(&self, now: &Header, index: u32) -> Result<Header, FormatError> {
        let Snapshot { l1_offset, l1_entries, size_bytes, .. } = *self;
        let then = Header { l1_offset, l1_entries, size_bytes: size_bytes.unwrap_or(now.size_bytes), ..now.clone() };
        let rule =
            "its L1 table begins at a cluster, has as many entries as its size needs, and at most 32 MiB of them";
        then.check().map(|()| then).map_err(|_| FormatError::Snapshot { index, rule })
    }
}

/// Why the table of snapshots cannot be read.
#[derive(Debug)]
pub enum TableError {
    /// The bytes cannot be had.
    Io(io::Error),
    /// They are no table.
    Format(FormatError),
}

/// An entry of the table, and what it was read from: other programs may have more to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    /// What is known of it.
    pub snapshot: Snapshot,
    /// All of it, with what is between it and the next one.
    pub bytes: Vec<u8>,
}

/// The table of an image, entry by entry, until one is wrong.
pub struct Entries<'a, S> {
    source: &'a mut S,
    /// Of the next one, and how many there are.
    index: u32,
    count: u32,
    /// Bytes of those before.
    bytes: u64,
    /// Where the window begins, and where in it the next entry does.
    begins: u64,
    at: usize,
    window: Vec<u8>,
}

impl<'a, S: Source> Entries<'a, S> {
    /// Those of an image with this header.
    pub fn of(source: &'a mut S, header: &Header) -> Entries<'a, S> {
        let begins = header.snapshots_offset;
        Entries { source, index: 0, count: header.snapshots, bytes: 0, begins, at: 0, window: Vec::new() }
    }

    fn read(&mut self) -> Result<Raw, TableError> {
        let there = self.source.len_bytes().saturating_sub(self.begins + self.at as u64);
        if self.window.len() - self.at < ENTRY_BYTES_MAX && there > (self.window.len() - self.at) as u64 {
            (self.begins, self.at) = (self.begins + self.at as u64, 0);
            // A table is short as a rule, and read at once.
            let usual = if self.index == 0 { ENTRY_BYTES_MAX } else { WINDOW_BYTES };
            self.window = vec![0; there.min(usual as u64) as usize];
            self.source.read(self.begins, &mut self.window).map_err(TableError::Io)?;
        }
        let (snapshot, len) = Snapshot::parse(&self.window[self.at..], self.index).map_err(TableError::Format)?;
        self.bytes += len as u64;
        if self.bytes > TABLE_BYTES_MAX {
            let rule = "all entries together have at most 64 MiB";
            return Err(TableError::Format(FormatError::Snapshot { index: self.index, rule }));
        }
        let end = (self.at + len).min(self.window.len());
        // The last entry may end with the file.
        let mut bytes = Vec::with_capacity(len);
        bytes.extend(&self.window[self.at..end]);
        bytes.resize(len, 0);
        self.at = end;
        Ok(Raw { snapshot, bytes })
    }
}

impl<S: Source> Iterator for Entries<'_, S> {
    type Item = Result<Raw, TableError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.count {
            return None;
        }
        let entry = self.read();
        self.index = if entry.is_err() { self.count } else { self.index + 1 };
        Some(entry)
    }
}

/// All snapshots of an image with this header.
///
/// # Errors
/// The table cannot be read, or is none.
pub fn all(source: &mut impl Source, header: &Header) -> Result<Vec<Raw>, TableError> {
    Entries::of(source, header).collect()
}

/// The number of the one snapshot that has this identifier or name.
///
/// # Errors
/// There is none, or there are several: what to say of it, behind the image's path.
pub fn find(all: &[Raw], wanted: &str) -> Result<usize, String> {
    let mut found = (0..all.len()).filter(|index| all[*index].snapshot.is(wanted));
    let shown = wanted.escape_debug();
    match (found.next(), found.next()) {
        (Some(index), None) => Ok(index),
        (None, _) => Err(format!("has no snapshot `{shown}`: `vringd image snapshot list` says which there are")),
        (Some(_), Some(_)) => {
            Err(format!("has several snapshots with identifier or name `{shown}`: give what only one of them has"))
        }
    }
}

/// An identifier for a new snapshot, which nobody takes for that of another one, nor for a name.
pub fn new_id(all: &[Raw]) -> String {
    let largest = all.iter().filter_map(|raw| raw.snapshot.id.parse::<u64>().ok()).max().unwrap_or(0);
    let behind = (largest.saturating_add(1)..=u64::MAX).chain(1..=u64::MAX);
    let mut free = behind.map(|id| id.to_string()).filter(|id| !all.iter().any(|raw| raw.snapshot.is(id)));
    free.next().unwrap_or_default()
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
    fn snapshots_are_found_by_identifier_or_name_if_that_is_one_of_them() {
        let all: Vec<_> = [("1", "2"), ("2", "daily"), ("3", "daily"), ("4", "")]
            .map(|(id, name)| entry(&[], id, name))
            .map(|bytes| Raw { snapshot: Snapshot::parse(&bytes, 0).unwrap().0, bytes })
            .to_vec();
        let found = ["1", "3", "4", ""].map(|wanted| find(&all, wanted));
        assert_eq!(found, [Ok(0), Ok(2), Ok(3), Ok(3)]);
        for (wanted, why) in [("2", "several"), ("daily", "several"), ("5", "has no")] {
            assert!(find(&all, wanted).unwrap_err().contains(why), "{wanted}");
        }
        assert_eq!(new_id(&all), "5");
        let named =
            |id, name| Raw { snapshot: Snapshot::parse(&entry(&[], id, name), 0).unwrap().0, bytes: Vec::new() };
        assert_eq!(new_id(&[named("1", "2"), named("7", "8")]), "9");
        assert_eq!(new_id(&[named("18446744073709551615", ""), named("1", "2")]), "3");
    }

    #[test]
    fn what_is_encoded_is_read() {
        for (id, name) in [("1", "a"), ("18446744073709551615", "änderungen vom 3.")] {
            let snapshot = Snapshot {
                l1_offset: 0x7_0000,
                l1_entries: 3,
                id: id.to_owned(),
                name: name.to_owned(),
                taken_s: 1_800_000_000,
                vm_state_bytes: 0,
                size_bytes: Some(5 << 30),
            };
            let bytes = snapshot.encode();
            assert!(bytes.len().is_multiple_of(8));
            assert_eq!(Snapshot::parse(&bytes, 0).unwrap(), (snapshot, bytes.len()));
        }
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
