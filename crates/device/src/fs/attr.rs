//! What replies tell of nodes and file systems.

use super::spec::ATTR_BYTES;
use super::wire::put;
use std::time::Duration;

/// Attributes of a node (`fuse_attr`). Times are seconds since the Unix epoch, negative before it, and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Inode number to show.
    pub ino: u64,
    /// Size, in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: (i64, u32),
    /// Last change of the data.
    pub mtime: (i64, u32),
    /// Last change of the attributes.
    pub ctime: (i64, u32),
    /// Type and permissions.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device that a device node stands for; see [`device_number`](super::device_number).
    pub rdev: u32,
    /// Preferred size of I/O, in bytes.
    pub blksize: u32,
    /// [`attr_flag`](super::spec::attr_flag)s.
    pub flags: u32,
}

impl Attr {
    #[inline]
    pub(super) fn encode(&self) -> [u8; ATTR_BYTES] {
        let mut bytes = [0; ATTR_BYTES];
        put::<0, _, _>(&mut bytes, self.ino.to_le_bytes());
        put::<8, _, _>(&mut bytes, self.size.to_le_bytes());
        put::<16, _, _>(&mut bytes, self.blocks.to_le_bytes());
        put::<24, _, _>(&mut bytes, self.atime.0.to_le_bytes());
        put::<32, _, _>(&mut bytes, self.mtime.0.to_le_bytes());
        put::<40, _, _>(&mut bytes, self.ctime.0.to_le_bytes());
        put::<48, _, _>(&mut bytes, self.atime.1.to_le_bytes());
        put::<52, _, _>(&mut bytes, self.mtime.1.to_le_bytes());
        put::<56, _, _>(&mut bytes, self.ctime.1.to_le_bytes());
        put::<60, _, _>(&mut bytes, self.mode.to_le_bytes());
        put::<64, _, _>(&mut bytes, self.nlink.to_le_bytes());
        put::<68, _, _>(&mut bytes, self.uid.to_le_bytes());
        put::<72, _, _>(&mut bytes, self.gid.to_le_bytes());
        put::<76, _, _>(&mut bytes, self.rdev.to_le_bytes());
        put::<80, _, _>(&mut bytes, self.blksize.to_le_bytes());
        put::<84, _, _>(&mut bytes, self.flags.to_le_bytes());
        bytes
    }
}

/// What a name leads to (`fuse_entry_out`). Node 0 leads nowhere: in the answer to LOOKUP, for as long as `entry_valid` says; in
/// READDIRPLUS, without a promise. That is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryOut {
    /// The node.
    pub nodeid: u64,
    /// Tells nodes of the same id apart, over the life of the file system.
    pub generation: u64,
    /// How long the name may be believed.
    pub entry_valid: Duration,
    /// How long the attributes may be believed.
    pub attr_valid: Duration,
    /// The node's attributes.
    pub attr: Attr,
}

/// Figures of a file system (`fuse_kstatfs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Blocks, each of `fragment_size` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Blocks free to unprivileged users.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Preferred size of I/O, in bytes.
    pub block_size: u32,
    /// Longest name, in bytes.
    pub name_bytes_max: u32,
    /// Unit of the block counts, in bytes.
    pub fragment_size: u32,
}

/// Attributes as statx(2) tells them (`fuse_statx`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatxAttr {
    /// Which of the fields are valid: `STATX_*`.
    pub mask: u32,
    /// Preferred size of I/O, in bytes.
    pub blksize: u32,
    /// `STATX_ATTR_*` that the node has.
    pub attributes: u64,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Type and permissions: 16 bits.
    pub mode: u16,
    /// Inode number to show.
    pub ino: u64,
    /// Size, in bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// `STATX_ATTR_*` that the file system knows of.
    pub attributes_mask: u64,
    /// Last access.
    pub atime: (i64, u32),
    /// Creation.
    pub btime: (i64, u32),
    /// Last change of the attributes.
    pub ctime: (i64, u32),
    /// Last change of the data.
    pub mtime: (i64, u32),
    /// Device that a device node stands for, major and minor.
    pub rdev: (u32, u32),
    /// Device of the file system, major and minor.
    pub dev: (u32, u32),
}

impl StatxAttr {
    pub(super) fn encode(&self) -> [u8; 256] {
        let mut bytes = [0; 256];
        put::<0, _, _>(&mut bytes, self.mask.to_le_bytes());
        put::<4, _, _>(&mut bytes, self.blksize.to_le_bytes());
        put::<8, _, _>(&mut bytes, self.attributes.to_le_bytes());
        put::<16, _, _>(&mut bytes, self.nlink.to_le_bytes());
        put::<20, _, _>(&mut bytes, self.uid.to_le_bytes());
        put::<24, _, _>(&mut bytes, self.gid.to_le_bytes());
        put::<28, _, _>(&mut bytes, self.mode.to_le_bytes());
        put::<32, _, _>(&mut bytes, self.ino.to_le_bytes());
        put::<40, _, _>(&mut bytes, self.size.to_le_bytes());
        put::<48, _, _>(&mut bytes, self.blocks.to_le_bytes());
        put::<56, _, _>(&mut bytes, self.attributes_mask.to_le_bytes());
        put::<64, _, _>(&mut bytes, self.atime.0.to_le_bytes());
        put::<72, _, _>(&mut bytes, self.atime.1.to_le_bytes());
        put::<80, _, _>(&mut bytes, self.btime.0.to_le_bytes());
        put::<88, _, _>(&mut bytes, self.btime.1.to_le_bytes());
        put::<96, _, _>(&mut bytes, self.ctime.0.to_le_bytes());
        put::<104, _, _>(&mut bytes, self.ctime.1.to_le_bytes());
        put::<112, _, _>(&mut bytes, self.mtime.0.to_le_bytes());
        put::<120, _, _>(&mut bytes, self.mtime.1.to_le_bytes());
        put::<128, _, _>(&mut bytes, self.rdev.0.to_le_bytes());
        put::<132, _, _>(&mut bytes, self.rdev.1.to_le_bytes());
        put::<136, _, _>(&mut bytes, self.dev.0.to_le_bytes());
        put::<140, _, _>(&mut bytes, self.dev.1.to_le_bytes());
        bytes
    }
}
