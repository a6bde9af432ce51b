//! Numbers of virtio-fs and of the FUSE protocol, 7.31 to 7.45.
//!
//! Sources: virtio 1.3, section 5.11, and Linux' `include/uapi/linux/fuse.h` of protocol 7.45. Every number on the wire is
//! little-endian; a structure's size in bytes is named after it (`fuse_attr` is [`ATTR_BYTES`]).

pub mod flags;
mod opcode;
pub mod virtio;

pub use opcode::Opcode;

/// The protocol's major version.
pub const MAJOR: u32 = 7;
/// Newest minor version whose changes this decoder knows.
pub const MINOR_MAX: u32 = 45;
/// Oldest minor version that is served: the first that virtio-fs guests spoke (Linux 5.4).
pub const MINOR_MIN: u32 = 31;
/// Node id of the root directory.
pub const ROOT_ID: u64 = 1;
/// Most bytes of a directory entry's name, without the NUL (`NAME_MAX` of Linux; tree file systems have no longer ones).
pub const NAME_BYTES_MAX: usize = 255;
/// Most bytes of a symbolic link's target, without the NUL (`PATH_MAX` less one).
pub const TARGET_BYTES_MAX: usize = 4095;
/// Most bytes of an extended attribute's name, without the NUL (`XATTR_NAME_MAX`).
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Most bytes of an extended attribute's value (`XATTR_SIZE_MAX`).
pub const XATTR_VALUE_BYTES_MAX: usize = 65536;
/// Most supplementary groups of a request. Linux sends one; more than this is malformed.
pub const GROUPS_MAX: usize = 32;

/// Bytes of `fuse_in_header`, which starts every request.
pub const IN_HEADER_BYTES: usize = 40;
/// Bytes of `fuse_out_header`, which starts every reply.
pub const OUT_HEADER_BYTES: usize = 16;
/// Bytes of `fuse_write_in`, which stands between the header and the data of WRITE.
pub const WRITE_IN_BYTES: usize = 40;
/// Bytes of `fuse_attr`.
pub const ATTR_BYTES: usize = 88;
/// Bytes of `fuse_attr_out`.
pub const ATTR_OUT_BYTES: usize = 104;
/// Bytes of `fuse_entry_out`.
pub const ENTRY_OUT_BYTES: usize = 128;
/// Bytes of `fuse_open_out`.
pub const OPEN_OUT_BYTES: usize = 16;
/// Bytes of `fuse_init_out`.
pub const INIT_OUT_BYTES: usize = 64;
/// Bytes of `fuse_statfs_out`.
pub const STATFS_OUT_BYTES: usize = 80;
/// Bytes of `fuse_statx_out`.
pub const STATX_OUT_BYTES: usize = 288;
/// Bytes of `fuse_dirent` before the name.
pub const DIRENT_BYTES: usize = 24;
/// Bytes of `fuse_direntplus` before the name.
pub const DIRENTPLUS_BYTES: usize = ENTRY_OUT_BYTES + DIRENT_BYTES;
/// Directory entries and request extensions begin at multiples of this many bytes (`FUSE_REC_ALIGN`).
pub const RECORD_ALIGN: usize = 8;

/// `fuse_setattr_in.valid`: which fields change (`FATTR_*`).
pub mod setattr_valid {
    /// The mode.
    pub const MODE: u32 = 1 << 0;
    /// The owner.
    pub const UID: u32 = 1 << 1;
    /// The group.
    pub const GID: u32 = 1 << 2;
    /// The size.
    pub const SIZE: u32 = 1 << 3;
    /// The access time.
    pub const ATIME: u32 = 1 << 4;
    /// The modification time.
    pub const MTIME: u32 = 1 << 5;
    /// The file handle is valid.
    pub const FH: u32 = 1 << 6;
    /// The access time becomes the server's present time.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// The modification time becomes the server's present time.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// The lock owner is valid.
    pub const LOCKOWNER: u32 = 1 << 9;
    /// The change time (sent by a guest that caches writes).
    pub const CTIME: u32 = 1 << 10;
    /// Set-user-id and set-group-id bits go with this change.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `fuse_open_out.open_flags` (`FOPEN_*`).
pub mod open_flags {
    /// Reads and writes of this file bypass the guest's page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// Pages cached of the file stay valid over this open.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The file has no position that can be set.
    pub const NONSEEKABLE: u32 = 1 << 2;
    /// The guest may cache the directory's entries.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// The file has no position at all.
    pub const STREAM: u32 = 1 << 4;
    /// Closing does not write dirty pages back (without the write-back cache).
    pub const NOFLUSH: u32 = 1 << 5;
    /// Direct writes of one file may overlap in time.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    /// Reads and writes go to a backing file of the guest; meaningless over virtio.
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// `fuse_open_in.open_flags` and `fuse_create_in.open_flags` (`FUSE_OPEN_*`).
pub mod open_request {
    /// Truncation by this open takes set-user-id and set-group-id bits away.
    pub const KILL_SUIDGID: u32 = 1 << 0;
}

/// `fuse_release_in.release_flags` (`FUSE_RELEASE_*`).
pub mod release_flag {
    /// Do what FLUSH does, too.
    pub const FLUSH: u32 = 1 << 0;
    /// Drop the owner's flock lock.
    pub const FLOCK_UNLOCK: u32 = 1 << 1;
}

/// `fuse_getattr_in.getattr_flags` (`FUSE_GETATTR_*`), also of STATX.
pub mod getattr_flag {
    /// The file handle is valid.
    pub const FH: u32 = 1 << 0;
}

/// `fuse_lk_in.lk_flags` (`FUSE_LK_*`).
pub mod lock_flag {
    /// A flock(2) lock, not a POSIX byte range.
    pub const FLOCK: u32 = 1 << 0;
}

/// `fuse_file_lock.type` (`F_RDLCK`, `F_WRLCK`, `F_UNLCK` of x86-64 and arm64).
pub mod lock_type {
    /// Shared.
    pub const READ: u32 = 0;
    /// Exclusive.
    pub const WRITE: u32 = 1;
    /// None: unlock, or "nothing in the way" in a reply.
    pub const UNLOCK: u32 = 2;
}

/// `fuse_write_in.write_flags` (`FUSE_WRITE_*`).
pub mod write_flag {
    /// Written back from the page cache: the handle is any open one, not the writer's.
    pub const CACHE: u32 = 1 << 0;
    /// The lock owner is valid.
    pub const LOCKOWNER: u32 = 1 << 1;
    /// This write takes set-user-id and set-group-id bits away.
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// `fuse_read_in.read_flags` (`FUSE_READ_*`).
pub mod read_flag {
    /// The lock owner is valid.
    pub const LOCKOWNER: u32 = 1 << 1;
}

/// `fuse_setupmapping_in.flags` (`FUSE_SETUPMAPPING_FLAG_*`).
pub mod mapping_flag {
    /// The guest is going to write.
    pub const WRITE: u64 = 1 << 0;
    /// The guest is going to read.
    pub const READ: u64 = 1 << 1;
}

/// `fuse_ioctl_in.flags` and `fuse_ioctl_out.flags` (`FUSE_IOCTL_*`).
pub mod ioctl_flag {
    /// A 32-bit program on a 64-bit guest.
    pub const COMPAT: u32 = 1 << 0;
    /// Not restricted to what the command number says of its argument.
    pub const UNRESTRICTED: u32 = 1 << 1;
    /// In a reply: ask again with the vectors given.
    pub const RETRY: u32 = 1 << 2;
    /// A 32-bit ioctl.
    pub const BITS_32: u32 = 1 << 3;
    /// The file is a directory.
    pub const DIR: u32 = 1 << 4;
    /// An x32 program (64-bit `time_t`).
    pub const COMPAT_X32: u32 = 1 << 5;
}

/// `fuse_poll_in.flags` (`FUSE_POLL_*`).
pub mod poll_flag {
    /// Notify when the file becomes ready.
    pub const SCHEDULE_NOTIFY: u32 = 1 << 0;
}

/// `fuse_fsync_in.fsync_flags` (`FUSE_FSYNC_*`).
pub mod fsync_flag {
    /// Data alone, as fdatasync(2).
    pub const FDATASYNC: u32 = 1 << 0;
}

/// `fuse_attr.flags` and `fuse_statx_out.flags` (`FUSE_ATTR_*`).
pub mod attr_flag {
    /// Root of another mount: the guest mounts it apart, with its own device number.
    pub const SUBMOUNT: u32 = 1 << 0;
    /// This file is accessed through DAX.
    pub const DAX: u32 = 1 << 1;
}

/// `fuse_setxattr_in.setxattr_flags` (`FUSE_SETXATTR_*`).
pub mod setxattr_flag {
    /// Setting an access ACL takes the set-group-id bit away.
    pub const ACL_KILL_SGID: u32 = 1 << 0;
}

/// `fuse_ext_header.type` (`enum fuse_ext_type`).
pub mod extension {
    /// Types up to and with this are security contexts; the type is their number.
    pub const SECURITY_CONTEXTS_MAX: u32 = 31;
    /// Supplementary groups.
    pub const GROUPS: u32 = 32;
}

/// Error numbers that a decoder answers with (Linux, as x86-64 and arm64 number them).
pub mod errno {
    /// Argument list too long.
    pub const E2BIG: i32 = 7;
    /// Invalid argument.
    pub const EINVAL: i32 = 22;
    /// Result does not fit.
    pub const ERANGE: i32 = 34;
    /// Name too long.
    pub const ENAMETOOLONG: i32 = 36;
    /// Not an operation of this server.
    pub const ENOSYS: i32 = 38;
    /// Protocol error.
    pub const EPROTO: i32 = 71;
}
