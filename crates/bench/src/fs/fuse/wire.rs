//! FUSE as Linux speaks it (`include/uapi/linux/fuse.h`, protocol 7.45), encoded here and not taken from the server's
//! rooms, so that a mistake there cannot hide behind the same mistake here.

use anyhow::{Context, Result, ensure};

use crate::bytes::{Encoder, field, u32_at, u64_at};

/// The protocol that INIT offers.
pub(crate) const MAJOR: u32 = 7;
/// Linux 7.2 has this one.
pub(crate) const MINOR: u32 = 45;
/// The directory that a server shares.
pub(crate) const ROOT: u64 = 1;

/// `struct fuse_in_header`.
pub(crate) const IN_HEADER_BYTES: usize = 40;
/// `struct fuse_out_header`.
pub(crate) const OUT_HEADER_BYTES: usize = 16;
/// `struct fuse_entry_out`.
pub(crate) const ENTRY_BYTES: usize = 128;
/// `struct fuse_attr_out`.
pub(crate) const ATTR_BYTES: usize = 104;
/// `struct fuse_open_out`.
pub(crate) const OPEN_BYTES: usize = 16;
/// `struct fuse_init_out`.
pub(crate) const INIT_BYTES: usize = 64;
/// `struct fuse_write_out`.
pub(crate) const WRITE_BYTES: usize = 8;
/// `struct fuse_forget_one`.
pub(crate) const FORGET_ONE_BYTES: usize = 16;
/// `struct fuse_dirent` without its name.
const DIRENT_BYTES: usize = 24;

/// `enum fuse_opcode`, what is sent of it.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const READDIRPLUS: u32 = 44;
}

/// INIT flags that are offered: what a Linux guest offers, but for what would make requests carry more than the
/// figures are about (killpriv, security contexts, supplementary groups, idmaps) and what only a device does.
pub(crate) const INIT_FLAGS: u64 = {
    const ASYNC_READ: u64 = 1;
    const POSIX_LOCKS: u64 = 1 << 1;
    const ATOMIC_O_TRUNC: u64 = 1 << 3;
    const EXPORT_SUPPORT: u64 = 1 << 4;
    const BIG_WRITES: u64 = 1 << 5;
    const DONT_MASK: u64 = 1 << 6;
    const FLOCK_LOCKS: u64 = 1 << 10;
    const HAS_IOCTL_DIR: u64 = 1 << 11;
    const AUTO_INVAL_DATA: u64 = 1 << 12;
    const DO_READDIRPLUS: u64 = 1 << 13;
    const READDIRPLUS_AUTO: u64 = 1 << 14;
    const ASYNC_DIO: u64 = 1 << 15;
    const WRITEBACK_CACHE: u64 = 1 << 16;
    const NO_OPEN_SUPPORT: u64 = 1 << 17;
    const PARALLEL_DIROPS: u64 = 1 << 18;
    const ABORT_ERROR: u64 = 1 << 21;
    const MAX_PAGES: u64 = 1 << 22;
    const CACHE_SYMLINKS: u64 = 1 << 23;
    const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    const SUBMOUNTS: u64 = 1 << 27;
    const SETXATTR_EXT: u64 = 1 << 29;
    const INIT_EXT: u64 = 1 << 30;
    const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    ASYNC_READ
        | POSIX_LOCKS
        | ATOMIC_O_TRUNC
        | EXPORT_SUPPORT
        | BIG_WRITES
        | DONT_MASK
        | FLOCK_LOCKS
        | HAS_IOCTL_DIR
        | AUTO_INVAL_DATA
        | DO_READDIRPLUS
        | READDIRPLUS_AUTO
        | ASYNC_DIO
        | WRITEBACK_CACHE
        | NO_OPEN_SUPPORT
        | PARALLEL_DIROPS
        | ABORT_ERROR
        | MAX_PAGES
        | CACHE_SYMLINKS
        | NO_OPENDIR_SUPPORT
        | EXPLICIT_INVAL_DATA
        | SUBMOUNTS
        | SETXATTR_EXT
        | INIT_EXT
        | HAS_EXPIRE_ONLY
        | DIRECT_IO_ALLOW_MMAP
};

impl Encoder<'_> {
    /// Appends a name and the zero behind it.
    pub(crate) fn name(&mut self, name: &[u8]) -> &mut Self {
        self.bytes(name).bytes(&[0])
    }

    /// Appends `struct fuse_read_in` or `struct fuse_write_in`, which are alike.
    pub(crate) fn transfer(&mut self, fh: u64, offset: u64, size: u32, open_flags: u32) -> &mut Self {
        self.u64(fh).u64(offset).u32(size).u32(0).u64(0).u32(open_flags).u32(0)
    }

    /// Appends `struct fuse_release_in`.
    pub(crate) fn release(&mut self, fh: u64, open_flags: u32) -> &mut Self {
        self.u64(fh).u32(open_flags).u32(0).u64(0)
    }

    /// Appends `struct fuse_init_in`.
    pub(crate) fn init(&mut self, readahead_bytes: u32) -> &mut Self {
        self.u32(MAJOR).u32(MINOR).u32(readahead_bytes).u32(INIT_FLAGS as u32).u32((INIT_FLAGS >> 32) as u32);
        self.bytes(&[0; 44])
    }
}

/// Writes `struct fuse_in_header`.
pub(crate) fn in_header(to: &mut [u8], len: u32, opcode: u32, unique: u64, node: u64, ids: Ids) {
    let mut header = Encoder::new(to);
    header.u32(len).u32(opcode).u64(unique).u64(node).u32(ids.uid).u32(ids.gid).u32(ids.pid).u32(0);
}

/// Who asks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
}

/// `struct fuse_out_header`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutHeader {
    pub(crate) len: u32,
    /// 0, or an errno as a positive number.
    pub(crate) errno: i32,
    pub(crate) unique: u64,
}

impl OutHeader {
    /// Reads it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let error = u32_at(bytes, 4)? as i32;
        ensure!((-4095..=0).contains(&error), "a reply's error is {error}, which is no errno");
        Ok(Self { len: u32_at(bytes, 0)?, errno: -error, unique: u64_at(bytes, 8)? })
    }
}

/// What a server granted in INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Granted {
    pub(crate) minor: u32,
    pub(crate) flags: u64,
    pub(crate) write_bytes_max: u32,
    pub(crate) pages_max: u16,
}

impl Granted {
    /// Reads `struct fuse_init_out`.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let major = u32_at(bytes, 0)?;
        ensure!(major == MAJOR, "the server speaks FUSE {major}, not {MAJOR}");
        let flags = u64::from(u32_at(bytes, 12)?) | u64::from(u32_at(bytes, 32)?) << 32;
        let granted = Self {
            minor: u32_at(bytes, 4)?,
            flags,
            write_bytes_max: u32_at(bytes, 20)?,
            pages_max: u16::from_le_bytes(field(bytes, 28)?),
        };
        ensure!(flags & !INIT_FLAGS == 0, "the server granted INIT flags {flags:#x}, of which some were not offered");
        Ok(granted)
    }
}

/// One entry of READDIR or READDIRPLUS, as much as is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirEntry<'a> {
    /// 0 for `.`, `..` and what was not looked up.
    pub(crate) node: u64,
    /// Where the next entry begins.
    pub(crate) offset: u64,
    pub(crate) name: &'a [u8],
}

/// Reads the first entry of a listing, a `struct fuse_direntplus` when `is_plus` is set and a `struct fuse_dirent`
/// otherwise, and says how long it is.
pub(crate) fn dir_entry(bytes: &[u8], is_plus: bool) -> Result<(DirEntry<'_>, usize)> {
    let at = if is_plus { ENTRY_BYTES } else { 0 };
    let name_len = u32_at(bytes, at + 16)? as usize;
    let name_at = at + DIRENT_BYTES;
    ensure!((1..=255).contains(&name_len), "an entry's name has {name_len} bytes");
    let name = bytes.get(name_at..name_at + name_len).context("an entry is cut off")?;
    ensure!(!name.contains(&0), "an entry's name contains a zero");
    let node = if is_plus { u64_at(bytes, 0)? } else { 0 };
    let entry = DirEntry { node, offset: u64_at(bytes, at + 8)?, name };
    // The padding of the last one may be cut off by nobody: the record is padded, and the reply is made of records.
    let len = (name_at + name_len).next_multiple_of(8);
    ensure!(len <= bytes.len(), "an entry's padding is cut off");
    Ok((entry, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::encoded;

    #[test]
    fn requests_have_the_sizes_of_the_kernel_header() {
        assert_eq!(encoded(|e| _ = e.init(1 << 20)).len(), 64, "fuse_init_in");
        assert_eq!(encoded(|e| _ = e.transfer(1, 2, 3, 4)).len(), 40, "fuse_read_in, fuse_write_in");
        assert_eq!(encoded(|e| _ = e.release(1, 2)).len(), 24, "fuse_release_in");
        assert_eq!(encoded(|e| _ = e.name(b"ab")), b"ab\0");
    }

    #[test]
    fn a_header_has_its_fields_in_place() {
        let mut bytes = [0xee; IN_HEADER_BYTES];
        in_header(&mut bytes, 0x11, 0x22, 0x33, 0x44, Ids { uid: 5, gid: 6, pid: 7 });
        let mut expected = Vec::new();
        expected.extend([0x11, 0, 0, 0, 0x22, 0, 0, 0]);
        expected.extend([0x33, 0, 0, 0, 0, 0, 0, 0, 0x44, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[..], expected[..]);
    }

    #[test]
    fn transfers_have_their_fields_in_place() {
        let bytes = encoded(|e| _ = e.transfer(1, 2, 3, 4));
        assert_eq!(u64_at(&bytes, 0).unwrap(), 1, "fh");
        assert_eq!(u64_at(&bytes, 8).unwrap(), 2, "offset");
        assert_eq!(u32_at(&bytes, 16).unwrap(), 3, "size");
        assert_eq!(u32_at(&bytes, 32).unwrap(), 4, "flags");
    }

    #[test]
    fn an_error_is_a_negative_errno_or_the_reply_is_refused() {
        let header = |error: i32| encoded(|e| _ = e.u32(16).u32(error as u32).u64(9));
        assert_eq!(OutHeader::parse(&header(-2)).unwrap(), OutHeader { len: 16, errno: 2, unique: 9 });
        assert!(OutHeader::parse(&header(2)).is_err());
        assert!(OutHeader::parse(&header(-5000)).is_err());
        assert!(OutHeader::parse(&[0; 15]).is_err());
    }

    #[test]
    fn a_grant_of_what_was_not_offered_is_refused() {
        let reply = |flags: u32, flags2: u32| {
            let mut bytes = encoded(|e| _ = e.u32(7).u32(38).u32(0).u32(flags).u32(0).u32(1 << 20).u32(1));
            bytes.extend(256_u16.to_le_bytes());
            bytes.extend([0; 2]);
            bytes.extend(flags2.to_le_bytes());
            bytes.resize(INIT_BYTES, 0);
            bytes
        };
        let granted = Granted::parse(&reply(1 << 22, 1 << 3)).unwrap();
        assert_eq!((granted.minor, granted.write_bytes_max, granted.pages_max), (38, 1 << 20, 256));
        assert_eq!(granted.flags, 1 << 22 | 1 << 35);
        assert!(Granted::parse(&reply(1 << 28, 0)).is_err());
    }

    #[test]
    fn directory_entries_are_padded_and_cut_ones_refused() {
        let mut bytes = vec![0; ENTRY_BYTES];
        bytes[0] = 42;
        bytes.extend(encoded(|e| _ = e.u64(1).u64(77).u32(3).u32(8).bytes(b"abc")));
        assert!(dir_entry(&bytes, true).is_err(), "no padding");
        bytes.resize(bytes.len() + 5, 0);
        let (entry, len) = dir_entry(&bytes, true).unwrap();
        assert_eq!((entry, len), (DirEntry { node: 42, offset: 77, name: b"abc" }, 160));
        let (entry, len) = dir_entry(&bytes[ENTRY_BYTES..], false).unwrap();
        assert_eq!((entry, len), (DirEntry { node: 0, offset: 77, name: b"abc" }, 32));
        bytes[ENTRY_BYTES + 16] = 0;
        assert!(dir_entry(&bytes, true).is_err(), "an empty name");
        bytes[ENTRY_BYTES + 17] = 0xff;
        assert!(dir_entry(&bytes, true).is_err(), "a name past the end");
    }
}
