//! Persistent dirty bitmaps (specification: "Bitmaps extension", "Bitmap directory", "Bitmap table", "Bitmap data").
//!
//! The directory has an entry for each bitmap, and each entry leads to a table of clusters with bits: bit `n` is of the
//! `n`th piece of the disk, of as many bytes as the granularity says, and lies in byte `n / 8`, the lowest bit first.

use crate::FormatError;
use crate::entry::OFFSET;
use crate::extension::Bitmaps;
use crate::field::{put_u32, u32_at, u64_at};
use crate::geometry::Geometry;
use crate::uses::Source;
use std::io;

/// Flag 0: its bits are not as they should be, because somebody has it in memory or has lost it.
pub const IN_USE: u32 = 1 << 0;
/// Flag 1: it is enabled, and follows what is written.
pub const AUTO: u32 = 1 << 1;
/// Flag 2: it may be used by programs that do not know its extra data.
pub const EXTRA_DATA_COMPATIBLE: u32 = 1 << 2;
/// All flags that there are.
const FLAGS: u32 = IN_USE | AUTO | EXTRA_DATA_COMPATIBLE;

/// The one type of bitmaps: of what was written.
const DIRTY_TRACKING: u8 = 1;
/// Most bitmaps, and most bytes of their directory: QEMU's bounds, 1 KiB each.
pub const BITMAPS_MAX: u32 = 65_535;
/// See [`BITMAPS_MAX`].
pub const DIRECTORY_BYTES_MAX: u64 = 64 << 20;
/// Most bytes of clusters of a bitmap: QEMU's bound.
const BITMAP_BYTES_MAX: u64 = 512 << 20;
/// Most bytes of a name.
pub const NAME_BYTES_MAX: usize = 1023;
/// Most bytes of extra data, of which no known program writes any.
const EXTRA_BYTES_MAX: usize = 4096;
/// A bit stands for two to the power of so many bytes.
pub const GRANULARITY_BITS: std::ops::RangeInclusive<u32> = 9..=31;

/// Bytes of an entry before its extra data.
const FIXED_BYTES: usize = 24;
/// Where the flags lie in an entry. Four bytes at a multiple of four: they change with one sector.
pub const FLAGS_AT: u64 = 12;

/// An entry of the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where its table is.
    pub table_offset: u64,
    /// Entries of that.
    pub table_entries: u32,
    /// [`IN_USE`], [`AUTO`], [`EXTRA_DATA_COMPATIBLE`], and those that are not known.
    pub flags: u32,
    /// Its type.
    pub kind: u8,
    /// A bit stands for two to the power of so many bytes.
    pub granularity_bits: u8,
    /// What other programs have to say of it.
    pub extra: Vec<u8>,
    /// Its name.
    pub name: Vec<u8>,
}

impl Entry {
    /// A new bitmap, enabled and in use.
    pub fn new(name: &str, granularity_bits: u8, table_offset: u64, table_entries: u32) -> Entry {
        Entry {
            table_offset,
            table_entries,
            flags: IN_USE | AUTO,
            kind: DIRTY_TRACKING,
            granularity_bits,
            extra: Vec::new(),
            name: name.as_bytes().to_vec(),
        }
    }

    /// Its name as people see it.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }

    /// Whether all these flags are set.
    pub fn is(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// Whether its bits may be used by a program that knows no extra data.
    pub fn is_usable(&self) -> bool {
        self.extra.is_empty() || self.is(EXTRA_DATA_COMPATIBLE)
    }

    /// Bytes of the entry, with what is between it and the next one.
    pub fn len_bytes(&self) -> usize {
        (FIXED_BYTES + self.extra.len() + self.name.len()).next_multiple_of(8)
    }

    /// Whether what it says can be, of an image with this geometry; `index` is its number.
    ///
    /// # Errors
    /// The first thing that cannot.
    pub fn check(&self, geometry: &Geometry, index: u32) -> Result<(), FormatError> {
        let wrong = |rule| Err(FormatError::Bitmap { index, rule });
        if !(1..=NAME_BYTES_MAX).contains(&self.name.len()) {
            return wrong("its name has 1 to 1023 bytes");
        }
        if self.flags & !FLAGS != 0 || self.kind != DIRTY_TRACKING {
            return wrong("its type is 1, and reserved flags are 0");
        }
        if !GRANULARITY_BITS.contains(&self.granularity_bits.into()) {
            return wrong("its granularity is 512 bytes to 2 GiB");
        }
        if self.table_offset == 0 || !self.table_offset.is_multiple_of(geometry.cluster_bytes()) {
            return wrong("its table begins at a cluster, and not at the header");
        }
        if !(1..=BITMAP_BYTES_MAX >> geometry.cluster_bits).contains(&self.table_entries.into()) {
            return wrong("its table has an entry at least, and leads to at most 512 MiB");
        }
        Ok(())
    }

    /// The entry as it is written.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; FIXED_BYTES];
        out[..8].copy_from_slice(&self.table_offset.to_be_bytes());
        put_u32(&mut out, 8, self.table_entries);
        put_u32(&mut out, FLAGS_AT as usize, self.flags);
        let kind = u32::from(self.kind) << 24 | u32::from(self.granularity_bits) << 16 | self.name.len() as u32;
        put_u32(&mut out, 16, kind);
        put_u32(&mut out, 20, self.extra.len() as u32);
        out.extend(&self.extra);
        out.extend(&self.name);
        out.resize(self.len_bytes(), 0);
        out
    }
}

/// Why a directory or a table cannot be read.
#[derive(Debug)]
pub enum ReadError {
    /// The bytes cannot be had.
    Io(io::Error),
    /// They are none.
    Format(FormatError),
}

/// Whether the extension can be, of an image with this geometry.
///
/// # Errors
/// What cannot.
pub fn check_directory(bitmaps: Bitmaps, geometry: &Geometry) -> Result<(), FormatError> {
    let Bitmaps { count, reserved, directory_bytes, directory_offset } = bitmaps;
    let wrong = |rule| Err(FormatError::BitmapDirectory { offset: directory_offset, rule });
    if directory_bytes > DIRECTORY_BYTES_MAX || !(1..=BITMAPS_MAX).contains(&count) || reserved != 0 {
        return wrong("it has 1 to 65535 bitmaps and at most 64 MiB, and what is reserved is 0");
    }
    if directory_offset == 0 || !directory_offset.is_multiple_of(geometry.cluster_bytes()) {
        return wrong("it begins at a cluster, and not at the header");
    }
    Ok(())
}

/// The directory of an image, entry by entry, until one is wrong. No more is kept than one entry.
pub struct Entries<'a, S> {
    source: &'a mut S,
    bitmaps: Bitmaps,
    index: u32,
    /// Bytes of the entries before.
    at: u64,
}

impl<'a, S: Source> Entries<'a, S> {
    /// Those of a directory that was [checked](check_directory).
    pub fn of(source: &'a mut S, bitmaps: Bitmaps) -> Entries<'a, S> {
        Entries { source, bitmaps, index: 0, at: 0 }
    }

    fn read(&mut self) -> Result<(u64, Entry), ReadError> {
        let index = self.index;
        let wrong = |rule| ReadError::Format(FormatError::Bitmap { index, rule });
        let ends = || wrong("its entry lies in the directory");
        let rest = self.bitmaps.directory_bytes.saturating_sub(self.at);
        if rest < FIXED_BYTES as u64 {
            return Err(ends());
        }
        let offset = self.bitmaps.directory_offset + self.at;
        let mut head = [0; FIXED_BYTES];
        self.source.read(offset, &mut head).map_err(ReadError::Io)?;
        let half = |at| u32_at(&head, at).ok_or_else(ends);
        let kind = half(16)?;
        let (name_bytes, extra_bytes) = ((kind & 0xffff) as usize, half(20)? as usize);
        if extra_bytes > EXTRA_BYTES_MAX {
            return Err(wrong("its extra data has at most 4096 bytes"));
        }
        if ((FIXED_BYTES + name_bytes + extra_bytes) as u64) > rest {
            return Err(ends());
        }
        let mut extra = vec![0; extra_bytes + name_bytes];
        self.source.read(offset + FIXED_BYTES as u64, &mut extra).map_err(ReadError::Io)?;
        let name = extra.split_off(extra_bytes);
        let entry = Entry {
            table_offset: u64_at(&head, 0).ok_or_else(ends)?,
            table_entries: half(8)?,
            flags: half(FLAGS_AT as usize)?,
            kind: (kind >> 24) as u8,
            granularity_bits: (kind >> 16) as u8,
            extra,
            name,
        };
        let at = self.at;
        self.at += entry.len_bytes() as u64;
        if index + 1 == self.bitmaps.count && self.at != self.bitmaps.directory_bytes {
            return Err(wrong("the directory ends behind the last one"));
        }
        Ok((at, entry))
    }
}

impl<S: Source> Iterator for Entries<'_, S> {
    /// Where in the directory it lies, and the entry.
    type Item = Result<(u64, Entry), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.bitmaps.count {
            return None;
        }
        let entry = self.read();
        self.index = if entry.is_err() { self.bitmaps.count } else { self.index + 1 };
        Some(entry)
    }
}

/// Where bits lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableEntry {
    /// None of them is set.
    Zeroes,
    /// All of them are.
    Ones,
    /// In the cluster at this offset.
    Cluster(u64),
}

impl TableEntry {
    /// Reads an entry of the table of bitmap `index`.
    ///
    /// # Errors
    /// A reserved bit, or what is no cluster.
    pub fn parse(geometry: &Geometry, index: u32, word: u64) -> Result<TableEntry, FormatError> {
        let offset = word & OFFSET;
        let is_aligned = offset.is_multiple_of(geometry.cluster_bytes());
        match (offset, word & !OFFSET) {
            (0, 0) => Ok(TableEntry::Zeroes),
            (0, 1) => Ok(TableEntry::Ones),
            (offset, 0) if is_aligned => Ok(TableEntry::Cluster(offset)),
            _ => Err(FormatError::BitmapTable {
                index,
                value: word,
                rule: "an entry names a cluster or no bits or all, and reserved bits are 0",
            }),
        }
    }

    /// The entry as it is written.
    pub fn encode(self) -> u64 {
        match self {
            TableEntry::Zeroes => 0,
            TableEntry::Ones => 1,
            TableEntry::Cluster(offset) => offset,
        }
    }
}

/// Entries of the table of a bitmap of a disk of so many bytes; `None`: more than there can be.
pub fn table_entries(size_bytes: u64, granularity_bits: u32, cluster_bits: u32) -> Option<u32> {
    let bytes = size_bytes.div_ceil(1 << granularity_bits).div_ceil(8);
    let entries = bytes.div_ceil(1 << cluster_bits).max(1);
    (entries <= BITMAP_BYTES_MAX >> cluster_bits).then_some(entries as u32)
}

#[cfg(test)]
#[path = "bitmap_tests.rs"]
mod tests;
