//! Numbers of 9P2000.L and 9P2000.u.
//!
//! Sources: the 9P2000.L specification, the 9P2000.u one ("Plan 9 Remote Resource Protocol, Unix extension"), intro(5) of Plan 9,
//! and Linux' `include/net/9p/9p.h` (its names are given in parentheses). Every number on the wire is little-endian; a string is
//! 16 bits of length and so many bytes, without a NUL.

mod kind;
pub mod virtio;

pub use kind::Kind;

/// Bytes in front of every message: size (4), type (1), tag (2). The size counts them too.
pub const HEADER_BYTES: usize = 7;
/// Bytes of a `Twrite` in front of its data: header, fid (4), offset (8), count (4).
pub const WRITE_HEAD_BYTES: usize = HEADER_BYTES + 16;
/// Bytes of an `Rread` or `Rreaddir` in front of its data: header, count (4).
pub const READ_HEAD_BYTES: usize = HEADER_BYTES + 4;
/// What a client takes off the message size for the longest read or write (`P9_IOHDRSZ`), in bytes: an `iounit` is the message
/// size less this.
pub const IO_HEADER_BYTES: u32 = 24;
/// Smallest message size that is granted, in bytes; Linux refuses a server that grants less.
pub const MSIZE_MIN: u32 = 4096;
/// Largest message size that is granted unless an operator says otherwise, in bytes: the most that Linux asks of any transport.
pub const MSIZE_MAX: u32 = 1 << 20;
/// No fid (`P9_NOFID`): of an attach without authentication.
pub const NOFID: u32 = u32::MAX;
/// No tag (`P9_NOTAG`): of a version request.
pub const NOTAG: u16 = u16::MAX;
/// No numeric user (`P9_NONUNAME`).
pub const NONUNAME: u32 = u32::MAX;
/// Most names of a walk (`P9_MAXWELEM`).
pub const WALK_NAMES_MAX: usize = 16;

/// Most bytes of one component of a path (`NAME_MAX` of Linux), and of the names of users and clients.
pub const NAME_BYTES_MAX: usize = 255;
/// Most bytes of a symbolic link's target and of an attach's path (`PATH_MAX` less the NUL).
pub const TARGET_BYTES_MAX: usize = 4095;
/// Most bytes of an extended attribute's name (`XATTR_NAME_MAX`).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Most bytes of an extended attribute's value (`XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: u64 = 65536;

/// Bytes of a qid: type (1), version (4), path (8).
pub const QID_BYTES: usize = 13;
/// Bytes of the body of an `Rgetattr`.
pub const ATTR_BYTES: usize = 153;
/// Bytes of the body of an `Rstatfs`.
pub const STATFS_BYTES: usize = 60;
/// Bytes of an entry of an `Rreaddir` before its name: qid, offset (8), type (1), length of the name (2).
pub const DIRENT_BYTES: usize = QID_BYTES + 11;
/// Bytes of a 9P2000.u `stat` before its first string, with its own size (2).
pub const STAT_HEAD_BYTES: usize = 41;
/// Bytes of a 9P2000.u `stat` behind its last string: three numeric users.
pub const STAT_TAIL_BYTES: usize = 12;

/// The body of a version request and its answer.
pub mod version {
    /// 9P2000.L.
    pub const L: &str = "9P2000.L";
    /// 9P2000.u.
    pub const U: &str = "9P2000.u";
    /// The answer to anything else: the session has not begun.
    pub const UNKNOWN: &str = "unknown";
}

/// Types of a qid (`enum p9_qid_t`).
pub mod qid_type {
    /// Directory.
    pub const DIR: u8 = 0x80;
    /// Symbolic link.
    pub const SYMLINK: u8 = 0x02;
    /// Anything else.
    pub const FILE: u8 = 0x00;
}

/// `Tlopen.flags` and `Tlcreate.flags` (9P2000.L specification; `P9_DOTL_*`): Linux' generic `O_*`, whatever the machine.
pub mod open_flag {
    /// The two bits that say how it is opened.
    pub const ACCESS: u32 = 0o3;
    /// Read only.
    pub const RDONLY: u32 = 0;
    /// Write only.
    pub const WRONLY: u32 = 0o1;
    /// Read and write.
    pub const RDWR: u32 = 0o2;
    /// Make it if it is not there.
    pub const CREATE: u32 = 0o100;
    /// It must not be there.
    pub const EXCL: u32 = 0o200;
    /// Not a controlling terminal.
    pub const NOCTTY: u32 = 0o400;
    /// Cut it off.
    pub const TRUNC: u32 = 0o1000;
    /// Write at the end.
    pub const APPEND: u32 = 0o2000;
    /// Do not wait.
    pub const NONBLOCK: u32 = 0o4000;
    /// Data is durable when a write ends.
    pub const DSYNC: u32 = 0o10000;
    /// Signal when ready.
    pub const FASYNC: u32 = 0o20000;
    /// Past the cache.
    pub const DIRECT: u32 = 0o40000;
    /// Files can be large.
    pub const LARGEFILE: u32 = 0o100_000;
    /// It must be a directory.
    pub const DIRECTORY: u32 = 0o200_000;
    /// It must not be a symbolic link.
    pub const NOFOLLOW: u32 = 0o400_000;
    /// Reading leaves the time of access.
    pub const NOATIME: u32 = 0o1_000_000;
    /// Closed by an exec.
    pub const CLOEXEC: u32 = 0o2_000_000;
    /// Everything is durable when a write ends (`P9_DOTL_SYNC`; `O_SYNC` of Linux is this and `DSYNC`).
    pub const SYNC: u32 = 0o4_000_000;
}

/// `Tunlinkat.flags` (`P9_DOTL_AT_*`).
pub mod unlink_flag {
    /// Remove a directory.
    pub const REMOVEDIR: u32 = 0x200;
}

/// `Tgetattr.request_mask` and `Rgetattr.valid` (`P9_STATS_*`).
pub mod getattr_mask {
    /// Type and permissions.
    pub const MODE: u64 = 0x1;
    /// Hard links.
    pub const NLINK: u64 = 0x2;
    /// Owner.
    pub const UID: u64 = 0x4;
    /// Group.
    pub const GID: u64 = 0x8;
    /// Device number.
    pub const RDEV: u64 = 0x10;
    /// Last access.
    pub const ATIME: u64 = 0x20;
    /// Last change of the data.
    pub const MTIME: u64 = 0x40;
    /// Last change of the attributes.
    pub const CTIME: u64 = 0x80;
    /// The qid.
    pub const INO: u64 = 0x100;
    /// Size.
    pub const SIZE: u64 = 0x200;
    /// Allocated blocks.
    pub const BLOCKS: u64 = 0x400;
    /// Creation.
    pub const BTIME: u64 = 0x800;
    /// Generation of the inode's number.
    pub const GEN: u64 = 0x1000;
    /// Version of the data.
    pub const DATA_VERSION: u64 = 0x2000;
    /// All that stat(2) knows.
    pub const BASIC: u64 = 0x7ff;
}

/// `Tsetattr.valid`: which fields change (9P2000.L specification; `P9_ATTR_*` of Linux' `fs/9p/vfs_inode_dotl.c`).
pub mod setattr_valid {
    /// The mode.
    pub const MODE: u32 = 0x1;
    /// The owner.
    pub const UID: u32 = 0x2;
    /// The group.
    pub const GID: u32 = 0x4;
    /// The size.
    pub const SIZE: u32 = 0x8;
    /// The time of access: to now, or with [`ATIME_SET`] to what is given.
    pub const ATIME: u32 = 0x10;
    /// The time of the data's change: to now, or with [`MTIME_SET`] to what is given.
    pub const MTIME: u32 = 0x20;
    /// The time of the attributes' change, to now.
    pub const CTIME: u32 = 0x40;
    /// The time of access is given.
    pub const ATIME_SET: u32 = 0x80;
    /// The time of the data's change is given.
    pub const MTIME_SET: u32 = 0x100;
}

/// `Tlock.flags` (`P9_LOCK_FLAGS_*`).
pub mod lock_flag {
    /// The caller waits for the lock.
    pub const BLOCK: u32 = 1;
    /// The lock was held before a server was started again; no client sends it.
    pub const RECLAIM: u32 = 2;
}

/// `Rlock.status` (`P9_LOCK_*`).
pub mod lock_status {
    /// Done.
    pub const SUCCESS: u8 = 0;
    /// Somebody else holds it: try again.
    pub const BLOCKED: u8 = 1;
    /// It cannot be had.
    pub const ERROR: u8 = 2;
    /// The server has just been started: try again.
    pub const GRACE: u8 = 3;
}

/// `Txattrcreate.flags`, those of setxattr(2).
pub mod xattr_flag {
    /// It must not be there.
    pub const CREATE: u32 = 1;
    /// It must be there.
    pub const REPLACE: u32 = 2;
}

/// `Topen.mode` and `Tcreate.mode` of 9P2000.u (`enum p9_open_mode_t`).
pub mod open_mode {
    /// The two bits that say how it is opened.
    pub const ACCESS: u8 = 0x03;
    /// Read only.
    pub const READ: u8 = 0x00;
    /// Write only.
    pub const WRITE: u8 = 0x01;
    /// Read and write.
    pub const RDWR: u8 = 0x02;
    /// Read, as an exec does.
    pub const EXEC: u8 = 0x03;
    /// Cut it off.
    pub const TRUNC: u8 = 0x10;
    /// Remove it when the fid is clunked.
    pub const RCLOSE: u8 = 0x40;
    /// Write at the end.
    pub const APPEND: u8 = 0x80;
}

/// `Tcreate.perm` and `stat.mode` of 9P2000.u beside the nine permissions (`enum p9_perm_t`).
pub mod perm {
    /// Directory.
    pub const DIR: u32 = 0x8000_0000;
    /// Data is appended only.
    pub const APPEND: u32 = 0x4000_0000;
    /// One may have it open at a time.
    pub const EXCL: u32 = 0x2000_0000;
    /// Not backed up.
    pub const TMP: u32 = 0x0400_0000;
    /// Symbolic link; the extension is its target.
    pub const SYMLINK: u32 = 0x0200_0000;
    /// Hard link; the extension is the fid of its other name, in decimal.
    pub const LINK: u32 = 0x0100_0000;
    /// Device; the extension is `b` or `c`, major and minor, with spaces between them.
    pub const DEVICE: u32 = 0x0080_0000;
    /// Named pipe.
    pub const NAMED_PIPE: u32 = 0x0020_0000;
    /// Socket.
    pub const SOCKET: u32 = 0x0010_0000;
    /// Set-user-id.
    pub const SETUID: u32 = 0x0008_0000;
    /// Set-group-id.
    pub const SETGID: u32 = 0x0004_0000;
    /// Sticky.
    pub const SETVTX: u32 = 0x0001_0000;
}

/// Error numbers of the answers that this room chooses: Linux' generic ones, as the protocol demands.
pub mod errno {
    /// Argument list too long.
    pub const E2BIG: i32 = 7;
    /// Invalid argument.
    pub const EINVAL: i32 = 22;
    /// Result does not fit.
    pub const ERANGE: i32 = 34;
    /// Name too long.
    pub const ENAMETOOLONG: i32 = 36;
    /// Protocol error.
    pub const EPROTO: i32 = 71;
    /// Not a request of this server or dialect: what makes a client try an older one.
    pub const EOPNOTSUPP: i32 = 95;
}
