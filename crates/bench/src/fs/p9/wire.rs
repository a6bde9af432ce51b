//! 9P2000.L as Linux speaks it (`include/net/9p/9p.h`, and the 9P2000.L specification), encoded here and not taken from
//! the server's rooms, so that a mistake there cannot hide behind the same mistake here.

use anyhow::{Context, Result, ensure};

use crate::bytes::{Encoder, field, u16_at, u32_at, u64_at};

/// The dialect that is asked for.
pub(crate) const VERSION: &[u8] = b"9P2000.L";
/// `P9_NOTAG`, which Tversion has.
pub(crate) const NO_TAG: u16 = u16::MAX;
/// `P9_NOFID`, where no fid is meant.
pub(crate) const NO_FID: u32 = u32::MAX;

/// `size[4] type[1] tag[2]`, which each message begins with.
pub(crate) const HEADER_BYTES: usize = 7;
/// What is before the data of Twrite: the header, `fid[4] offset[8] count[4]`.
pub(crate) const WRITE_HEAD_BYTES: usize = HEADER_BYTES + 16;
/// What is before the data of Rread and Rreaddir: the header and `count[4]`.
pub(crate) const READ_HEAD_BYTES: usize = HEADER_BYTES + 4;
/// `P9_IOHDRSZ`: of a message, this is not used for data.
pub(crate) const IO_HEADER_BYTES: u32 = 24;
/// `qid[13]`.
pub(crate) const QID_BYTES: usize = 13;
/// Rgetattr without its header, and where the qid and the size are in it.
pub(crate) const ATTR_BYTES: usize = 153;
pub(crate) const ATTR_QID_AT: usize = 8;
pub(crate) const ATTR_SIZE_AT: usize = 49;
/// `P9_STATS_BASIC`, which Linux asks Tgetattr for.
pub(crate) const STATS_BASIC: u64 = 0x7ff;
/// `P9_DOTL_AT_REMOVEDIR`, a flag of Tunlinkat.
pub(crate) const AT_REMOVEDIR: u32 = 0x200;

/// Types of messages, what is sent of them; the reply's type is one higher.
pub(crate) mod kind {
    /// `Rlerror`, which answers anything.
    pub(crate) const RLERROR: u8 = 7;
    pub(crate) const TLOPEN: u8 = 12;
    pub(crate) const TLCREATE: u8 = 14;
    pub(crate) const TRENAME: u8 = 20;
    pub(crate) const TGETATTR: u8 = 24;
    pub(crate) const TREADDIR: u8 = 40;
    pub(crate) const TMKDIR: u8 = 72;
    pub(crate) const TRENAMEAT: u8 = 74;
    pub(crate) const TUNLINKAT: u8 = 76;
    pub(crate) const TVERSION: u8 = 100;
    pub(crate) const TATTACH: u8 = 104;
    pub(crate) const TWALK: u8 = 110;
    pub(crate) const TREAD: u8 = 116;
    pub(crate) const TWRITE: u8 = 118;
    pub(crate) const TCLUNK: u8 = 120;
    pub(crate) const TREMOVE: u8 = 122;
}

/// Flags of Tlopen and Tlcreate (`P9_DOTL_*`), which are those of open(2) on most architectures.
pub(crate) mod open {
    pub(crate) const READ_ONLY: u32 = 0;
    pub(crate) const READ_WRITE: u32 = 0o2;
    pub(crate) const CREATE: u32 = 0o100;
    pub(crate) const EXCLUSIVE: u32 = 0o200;
    pub(crate) const DIRECT: u32 = 0o40_000;
    pub(crate) const LARGE_FILE: u32 = 0o100_000;
    pub(crate) const DIRECTORY: u32 = 0o200_000;
}

impl Encoder<'_> {
    /// Appends a string: its length in 16 bits, and its bytes. Longer ones than that are cut.
    pub(crate) fn string(&mut self, text: &[u8]) -> &mut Self {
        let text = &text[..text.len().min(u16::MAX.into())];
        self.u16(text.len() as u16).bytes(text)
    }

    /// Appends the header of a message.
    pub(crate) fn header(&mut self, size: u32, kind: u8, tag: u16) -> &mut Self {
        self.u32(size).u8(kind).u16(tag)
    }

    /// Appends the fields of Twalk.
    pub(crate) fn walk(&mut self, fid: u32, newfid: u32, names: &[&[u8]]) -> &mut Self {
        self.u32(fid).u32(newfid).u16(names.len() as u16);
        for name in names {
            self.string(name);
        }
        self
    }

    /// Appends the fields of Tread, Twrite and Treaddir, which are alike.
    pub(crate) fn span(&mut self, fid: u32, offset: u64, count: u32) -> &mut Self {
        self.u32(fid).u64(offset).u32(count)
    }
}

/// What a message begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Bytes of the whole message.
    pub(crate) size: u32,
    pub(crate) kind: u8,
    pub(crate) tag: u16,
}

impl Header {
    /// Reads it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        Ok(Self { size: u32_at(bytes, 0)?, kind: field::<1>(bytes, 4)?[0], tag: u16_at(bytes, 5)? })
    }
}

/// Reads a string, and says where it ends.
pub(crate) fn string_at(bytes: &[u8], at: usize) -> Result<(&[u8], usize)> {
    let start = at + 2;
    let end = start + usize::from(u16_at(bytes, at)?);
    Ok((bytes.get(start..end).context("a string is cut off")?, end))
}

/// `path[8]` of the qid at `at`: which file it is.
pub(crate) fn qid_path_at(bytes: &[u8], at: usize) -> Result<u64> {
    u64_at(bytes, at + 5)
}

/// The path of the qid of the last of `count` names, out of Rwalk's fields.
///
/// # Errors
/// The walk ended before.
pub(crate) fn walked(fields: &[u8], count: u16) -> Result<u64> {
    let seen = u16_at(fields, 0)?;
    ensure!(seen == count, "a walk went {seen} of {count} names");
    ensure!(fields.len() == 2 + QID_BYTES * usize::from(count), "Rwalk has {} bytes", fields.len());
    if count == 0 { Ok(0) } else { qid_path_at(fields, 2 + QID_BYTES * usize::from(count - 1)) }
}

/// One entry of Treaddir, as much as is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirEntry<'a> {
    /// Where the next entry begins.
    pub(crate) offset: u64,
    pub(crate) name: &'a [u8],
}

/// Reads the first entry, and says how long it is.
pub(crate) fn dir_entry(bytes: &[u8]) -> Result<(DirEntry<'_>, usize)> {
    let name_at = QID_BYTES + 8 + 1;
    let (name, end) = string_at(bytes, name_at)?;
    ensure!((1..=255).contains(&name.len()), "an entry's name has {} bytes", name.len());
    ensure!(!name.contains(&0), "an entry's name contains a zero");
    Ok((DirEntry { offset: u64_at(bytes, QID_BYTES)?, name }, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::encoded;

    #[test]
    fn messages_are_those_of_the_specification() {
        // Tversion of size 21: size[4] Tversion tag[2] msize[4] version[s].
        let bytes = encoded(|e| _ = e.header(21, kind::TVERSION, NO_TAG).u32(8192).string(VERSION));
        assert_eq!(bytes, b"\x15\0\0\0\x64\xff\xff\0\x20\0\0\x08\09P2000.L");
        assert_eq!(Header::parse(&bytes).unwrap(), Header { size: 21, kind: 100, tag: NO_TAG });
        // Twalk: fid[4] newfid[4] nwname[2] nwname*(wname[s]).
        let bytes = encoded(|e| _ = e.walk(1, 2, &[b"ab", b"c"]));
        assert_eq!(bytes, b"\x01\0\0\0\x02\0\0\0\x02\0\x02\0ab\x01\0c");
        // Tread: fid[4] offset[8] count[4].
        let bytes = encoded(|e| _ = e.span(1, 2, 3));
        assert_eq!(bytes, b"\x01\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0");
    }

    #[test]
    fn a_walk_that_ended_early_is_refused() {
        let mut fields = encoded(|e| _ = e.u16(2));
        for path in [7_u64, 9] {
            fields.extend(encoded(|e| _ = e.u8(0).u32(0).u64(path)));
        }
        assert_eq!(walked(&fields, 2).unwrap(), 9);
        assert!(walked(&fields, 3).is_err());
        assert!(walked(&fields[..20], 2).is_err());
        assert_eq!(walked(&[0, 0], 0).unwrap(), 0);
    }

    #[test]
    fn directory_entries_follow_each_other_and_cut_ones_are_refused() {
        let entry = |offset, name: &[u8]| encoded(|e| _ = e.bytes(&[1; 13]).u64(offset).u8(8).string(name));
        let bytes = [entry(5, b"abc"), entry(6, b"d")].concat();
        let (first, len) = dir_entry(&bytes).unwrap();
        assert_eq!((first, len), (DirEntry { offset: 5, name: b"abc" }, 27));
        let (second, len) = dir_entry(&bytes[len..]).unwrap();
        assert_eq!((second, len), (DirEntry { offset: 6, name: b"d" }, 25));
        assert!(dir_entry(&bytes[..26]).is_err(), "a name past the end");
        assert!(dir_entry(&entry(1, b"")).is_err(), "an empty name");
        assert!(dir_entry(&entry(1, b"a\0")).is_err(), "a zero");
        assert!(string_at(&[3, 0, 1, 2], 0).is_err());
    }
}
