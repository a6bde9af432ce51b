//! What replies tell of files and file systems.

use super::spec::{ATTR_BYTES, QID_BYTES, STATFS_BYTES};
use crate::wire::{le32, le64, put};

/// What tells files apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Qid {
    /// [`qid_type`](super::qid_type)s.
    pub kind: u8,
    /// Changes when the file does, or 0.
    pub version: u32,
    /// The file's own number: no other file of the server has it.
    pub path: u64,
}

impl Qid {
    #[inline]
    pub(super) fn decode(bytes: &[u8; QID_BYTES]) -> Qid {
        Qid { kind: bytes[0], version: le32::<1, _>(bytes), path: le64::<5, _>(bytes) }
    }

    #[inline]
    pub(super) fn encode(self) -> [u8; QID_BYTES] {
        let mut bytes = [self.kind; QID_BYTES];
        put::<1, _, _>(&mut bytes, self.version.to_le_bytes());
        put::<5, _, _>(&mut bytes, self.path.to_le_bytes());
        bytes
    }
}

/// Attributes of a file (`Rgetattr`). Times are seconds since the Unix epoch, negative before it, and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Which of the fields are valid: [`getattr_mask`](super::getattr_mask).
    pub valid: u64,
    /// What tells it apart.
    pub qid: Qid,
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u64,
    /// Device that a device node stands for; see [`device_number`](super::device_number).
    pub rdev: u64,
    /// Size, in bytes.
    pub size: u64,
    /// Preferred size of I/O, in bytes.
    pub blksize: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: (i64, u32),
    /// Last change of the data.
    pub mtime: (i64, u32),
    /// Last change of the attributes.
    pub ctime: (i64, u32),
    /// Creation.
    pub btime: (i64, u32),
    /// Tells files apart whose number was used before.
    pub generation: u64,
    /// Changes when the data does.
    pub data_version: u64,
}

impl Attr {
    #[inline]
    pub(super) fn encode(&self) -> [u8; ATTR_BYTES] {
        let mut bytes = [0; ATTR_BYTES];
        put::<0, _, _>(&mut bytes, self.valid.to_le_bytes());
        put::<8, _, _>(&mut bytes, self.qid.encode());
        put::<21, _, _>(&mut bytes, self.mode.to_le_bytes());
        put::<25, _, _>(&mut bytes, self.uid.to_le_bytes());
        put::<29, _, _>(&mut bytes, self.gid.to_le_bytes());
        put::<33, _, _>(&mut bytes, self.nlink.to_le_bytes());
        put::<41, _, _>(&mut bytes, self.rdev.to_le_bytes());
        put::<49, _, _>(&mut bytes, self.size.to_le_bytes());
        put::<57, _, _>(&mut bytes, self.blksize.to_le_bytes());
        put::<65, _, _>(&mut bytes, self.blocks.to_le_bytes());
        put::<73, _, _>(&mut bytes, time(self.atime));
        put::<89, _, _>(&mut bytes, time(self.mtime));
        put::<105, _, _>(&mut bytes, time(self.ctime));
        put::<121, _, _>(&mut bytes, time(self.btime));
        put::<137, _, _>(&mut bytes, self.generation.to_le_bytes());
        put::<145, _, _>(&mut bytes, self.data_version.to_le_bytes());
        bytes
    }
}

/// Both parts of a time have 64 bits.
#[inline]
fn time((seconds, nanoseconds): (i64, u32)) -> [u8; 16] {
    let mut bytes = [0; 16];
    put::<0, _, _>(&mut bytes, seconds.to_le_bytes());
    put::<8, _, _>(&mut bytes, u64::from(nanoseconds).to_le_bytes());
    bytes
}

/// Figures of a file system (`Rstatfs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Type of the file system: its magic number, as of statfs(2).
    pub kind: u32,
    /// Unit of the block counts and preferred size of I/O, in bytes.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Blocks free to unprivileged users.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Which file system it is.
    pub fsid: u64,
    /// Longest name, in bytes.
    pub name_bytes_max: u32,
}

impl StatFs {
    pub(super) fn encode(&self) -> [u8; STATFS_BYTES] {
        let mut bytes = [0; STATFS_BYTES];
        put::<0, _, _>(&mut bytes, self.kind.to_le_bytes());
        put::<4, _, _>(&mut bytes, self.block_size.to_le_bytes());
        put::<8, _, _>(&mut bytes, self.blocks.to_le_bytes());
        put::<16, _, _>(&mut bytes, self.blocks_free.to_le_bytes());
        put::<24, _, _>(&mut bytes, self.blocks_available.to_le_bytes());
        put::<32, _, _>(&mut bytes, self.files.to_le_bytes());
        put::<40, _, _>(&mut bytes, self.files_free.to_le_bytes());
        put::<48, _, _>(&mut bytes, self.fsid.to_le_bytes());
        put::<56, _, _>(&mut bytes, self.name_bytes_max.to_le_bytes());
        bytes
    }
}
