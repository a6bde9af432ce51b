//! Typed requests. What the protocol says by a flag beside a field that is then valid is an `Option` here.

use super::extensions::Extensions;
use super::forgets::Forgets;
use super::mapping::{RemoveMappings, SetupMapping};
use super::spec::{Opcode, lock_flag, write_flag};
use super::time::{SetTime, Time};
use std::ffi::CStr;

/// An operation with its arguments. The node that it is about is the header's: for names, the directory that holds them.
///
/// Names are 255 bytes or shorter without their NUL. Whether they are empty, `.` or `..`, or contain a slash is the tree's to
/// check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Find a name; counts one reference of what is found.
    Lookup {
        /// What to find.
        name: &'a CStr,
    },
    /// Drop references. No reply.
    Forget {
        /// How many.
        nlookup: u64,
    },
    /// Drop references of many nodes; the header's node means nothing. No reply.
    BatchForget(Forgets<'a>),
    /// Read attributes.
    GetAttr {
        /// An open file of the node.
        fh: Option<u64>,
    },
    /// Change attributes.
    SetAttr(SetAttr),
    /// Read a symbolic link.
    ReadLink,
    /// Make a symbolic link.
    Symlink(Symlink<'a>),
    /// Make a file of any type.
    Mknod(Mknod<'a>),
    /// Make a directory.
    Mkdir(Mkdir<'a>),
    /// Remove a name.
    Unlink {
        /// Which.
        name: &'a CStr,
    },
    /// Remove a directory.
    Rmdir {
        /// Which.
        name: &'a CStr,
    },
    /// RENAME and RENAME2.
    Rename(Rename<'a>),
    /// Give a node one more name; the header's node is the directory.
    Link {
        /// The node.
        nodeid: u64,
        /// Its new name.
        name: &'a CStr,
    },
    /// Open a file.
    Open(Open),
    /// Read from a file into the writable part.
    Read(Read),
    /// Write to a file what lies behind the first [`WRITE_HEAD_BYTES`](super::WRITE_HEAD_BYTES) of the readable part.
    Write(Write),
    /// Read the file system's figures.
    StatFs,
    /// Forget an open file.
    Release(Release),
    /// Make a file durable.
    Fsync(Fsync),
    /// Set an extended attribute.
    SetXattr(SetXattr<'a>),
    /// Read an extended attribute.
    GetXattr {
        /// Which.
        name: &'a CStr,
        /// Bytes of room; 0 asks for the length.
        size: u32,
    },
    /// List extended attributes.
    ListXattr {
        /// Bytes of room; 0 asks for the length.
        size: u32,
    },
    /// Remove an extended attribute.
    RemoveXattr {
        /// Which.
        name: &'a CStr,
    },
    /// A descriptor of an open file was closed.
    Flush {
        /// The open file.
        fh: u64,
        /// Who closed it: this owner's POSIX locks go.
        lock_owner: u64,
    },
    /// Begin.
    Init(Init),
    /// Open a directory.
    OpenDir(Open),
    /// Read a directory's entries.
    ReadDir(ReadDir),
    /// Read a directory's entries and look them up.
    ReadDirPlus(ReadDir),
    /// Forget an open directory.
    ReleaseDir(Release),
    /// Make a directory durable.
    FsyncDir(Fsync),
    /// Ask for a lock in the way.
    GetLk(LkRequest),
    /// Set a lock or fail.
    SetLk(LkRequest),
    /// Set a lock, waiting for it.
    SetLkw(LkRequest),
    /// Check permissions.
    Access {
        /// `R_OK`, `W_OK`, `X_OK` (4, 2, 1).
        mask: u32,
    },
    /// Make and open a file.
    Create(Create<'a>),
    /// Make and open a file without a name, in the header's directory.
    TmpFile(Create<'a>),
    /// Interrupt a request. No reply.
    Interrupt {
        /// The number of the request to interrupt.
        unique: u64,
    },
    /// End. Everything that the guest holds is gone.
    Destroy,
    /// Device control.
    Ioctl(Ioctl<'a>),
    /// Ask whether a file is ready.
    Poll(Poll),
    /// Allocate or free space.
    Fallocate(Fallocate),
    /// Find data or a hole.
    Lseek(Lseek),
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRange(CopyFileRange),
    /// Make the file system durable.
    SyncFs,
    /// Read attributes as statx(2) does.
    Statx(Statx),
    /// Map a part of the header's node into the DAX window.
    SetupMapping(SetupMapping),
    /// Take parts out of the DAX window. The header's node means nothing.
    RemoveMapping(RemoveMappings<'a>),
    /// An operation that nothing asks of a file system without block device and notifications: BMAP, NOTIFY_REPLY. The answer is
    /// ENOSYS.
    Unsupported(Opcode),
}

/// SETATTR: everything that is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// An open file of the node.
    pub fh: Option<u64>,
    /// Type and permissions; the type is the node's own.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size, in bytes, at most `i64::MAX`.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the data.
    pub mtime: Option<SetTime>,
    /// Last change of the attributes, from a guest that caches writes.
    pub ctime: Option<Time>,
    /// Owner of locks, when the change is a truncation.
    pub lock_owner: Option<u64>,
    /// Set-user-id and set-group-id bits go, as for a caller without `CAP_FSETID`.
    pub kill_suidgid: bool,
}

/// SYMLINK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symlink<'a> {
    /// The new name.
    pub name: &'a CStr,
    /// What it points to, 4095 bytes or shorter.
    pub target: &'a CStr,
    /// Label and groups.
    pub extensions: Extensions<'a>,
}

/// MKNOD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mknod<'a> {
    /// The new name.
    pub name: &'a CStr,
    /// Type and permissions.
    pub mode: u32,
    /// Bits of the mode that the caller wants off.
    pub umask: u32,
    /// Device number, major and minor, of device nodes.
    pub rdev: (u32, u32),
    /// Label and groups.
    pub extensions: Extensions<'a>,
}

/// MKDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mkdir<'a> {
    /// The new name.
    pub name: &'a CStr,
    /// Permissions.
    pub mode: u32,
    /// Bits of the mode that the caller wants off.
    pub umask: u32,
    /// Label and groups.
    pub extensions: Extensions<'a>,
}

/// RENAME and RENAME2; the header's node is the directory of the old name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rename<'a> {
    /// The old name.
    pub name: &'a CStr,
    /// The directory of the new name.
    pub new_nodeid: u64,
    /// The new name.
    pub new_name: &'a CStr,
    /// `RENAME_*` of renameat2(2); 0 for RENAME.
    pub flags: u32,
}

/// OPEN and OPENDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// `O_*` of open(2).
    pub flags: i32,
    /// An open that truncates takes set-user-id and set-group-id bits away.
    pub kill_suidgid: bool,
}

/// CREATE and TMPFILE. TMPFILE's name means nothing (Linux sends a slash).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// The new name.
    pub name: &'a CStr,
    /// `O_*` of open(2).
    pub flags: i32,
    /// Type and permissions.
    pub mode: u32,
    /// Bits of the mode that the caller wants off.
    pub umask: u32,
    /// An open that truncates takes set-user-id and set-group-id bits away.
    pub kill_suidgid: bool,
    /// Label and groups.
    pub extensions: Extensions<'a>,
}

/// READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The open file.
    pub fh: u64,
    /// First byte, at most `i64::MAX`.
    pub offset: u64,
    /// Most bytes to read. The writable part may be shorter.
    pub size: u32,
    /// Owner of locks.
    pub lock_owner: Option<u64>,
    /// `O_*` of the open file, as fcntl(2) left them.
    pub flags: i32,
}

/// WRITE. The data has exactly `size` bytes, all of which the readable part holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The open file.
    pub fh: u64,
    /// First byte, at most `i64::MAX`.
    pub offset: u64,
    /// Bytes to write.
    pub size: u32,
    /// [`write_flag`]s.
    pub write_flags: u32,
    /// Owner of locks.
    pub lock_owner: Option<u64>,
    /// `O_*` of the open file, as fcntl(2) left them.
    pub flags: i32,
}

impl Write {
    /// Whether this write takes set-user-id and set-group-id bits away.
    #[inline]
    pub const fn kill_priv(&self) -> bool {
        self.write_flags & write_flag::KILL_SUIDGID != 0
    }

    /// Whether this is written back from the guest's cache: the handle is any open one, not the writer's.
    #[inline]
    pub const fn is_writeback(&self) -> bool {
        self.write_flags & write_flag::CACHE != 0
    }
}

/// RELEASE and RELEASEDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The open file.
    pub fh: u64,
    /// `O_*` of the open file.
    pub flags: i32,
    /// Do what FLUSH does, too.
    pub flush: bool,
    /// Drop the owner's flock(2) lock.
    pub flock_unlock: bool,
    /// Owner of locks.
    pub lock_owner: u64,
}

/// FSYNC and FSYNCDIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fsync {
    /// The open file.
    pub fh: u64,
    /// As fdatasync(2).
    pub data_only: bool,
}

/// SETXATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetXattr<'a> {
    /// Which.
    pub name: &'a CStr,
    /// What it becomes, 65536 bytes or shorter.
    pub value: &'a [u8],
    /// `XATTR_CREATE` and `XATTR_REPLACE` of setxattr(2).
    pub flags: u32,
    /// Setting an access ACL takes the set-group-id bit away.
    pub acl_kill_sgid: bool,
}

/// INIT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Init {
    /// The guest's major version.
    pub major: u32,
    /// The guest's minor version.
    pub minor: u32,
    /// Most bytes that the guest reads ahead.
    pub max_readahead: u32,
    /// The [`flags`](super::flags) that the guest knows.
    pub flags: u64,
}

/// READDIR and READDIRPLUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDir {
    /// The open directory.
    pub fh: u64,
    /// Where to go on: 0, or what an entry said.
    pub offset: u64,
    /// Most bytes of entries. The writable part may be shorter.
    pub size: u32,
}

/// GETLK, SETLK and SETLKW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LkRequest {
    /// The open file.
    pub fh: u64,
    /// Whose lock it is.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte, not before the first; `i64::MAX` = to the end of the file.
    pub end: u64,
    /// [`lock_type`](super::spec::lock_type): one of the three.
    pub kind: u32,
    /// The process that wants it, in the guest.
    pub pid: u32,
    /// [`lock_flag`]s.
    pub lk_flags: u32,
}

impl LkRequest {
    /// Whether it is a flock(2) lock, which has no range.
    #[inline]
    pub const fn flock(&self) -> bool {
        self.lk_flags & lock_flag::FLOCK != 0
    }
}

/// IOCTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ioctl<'a> {
    /// The open file.
    pub fh: u64,
    /// [`ioctl_flag`](super::spec::ioctl_flag)s.
    pub flags: u32,
    /// The command.
    pub command: u32,
    /// Its argument: a number, or an address in the caller's memory that means nothing here.
    pub argument: u64,
    /// What the caller's memory holds there.
    pub input: &'a [u8],
    /// Most bytes to answer with.
    pub out_size: u32,
}

/// POLL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// The open file.
    pub fh: u64,
    /// The guest's name for it in notifications.
    pub kh: u64,
    /// [`poll_flag`](super::spec::poll_flag)s.
    pub flags: u32,
    /// `POLL*` of poll(2).
    pub events: u32,
}

/// FALLOCATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallocate {
    /// The open file.
    pub fh: u64,
    /// First byte, at most `i64::MAX`.
    pub offset: u64,
    /// Bytes, at most `i64::MAX`.
    pub len: u64,
    /// `FALLOC_FL_*` of fallocate(2).
    pub mode: u32,
}

/// LSEEK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lseek {
    /// The open file.
    pub fh: u64,
    /// Where to begin, as the program said: beyond `i64::MAX` it was negative.
    pub offset: u64,
    /// `SEEK_*` of lseek(2); Linux asks for `SEEK_DATA` (3) and `SEEK_HOLE` (4) alone.
    pub whence: u32,
}

/// COPY_FILE_RANGE and COPY_FILE_RANGE_64; the header's node is the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFileRange {
    /// The open source.
    pub fh_in: u64,
    /// First byte to read, at most `i64::MAX`.
    pub offset_in: u64,
    /// The target's node.
    pub nodeid_out: u64,
    /// The open target.
    pub fh_out: u64,
    /// First byte to write, at most `i64::MAX`.
    pub offset_out: u64,
    /// Most bytes to copy.
    pub len: u64,
    /// Flags of copy_file_range(2).
    pub flags: u64,
    /// The reply counts in 64 bits ([`copy_file_range_out`](super::copy_file_range_out)), not in 32
    /// ([`write_out`](super::write_out)).
    pub wide: bool,
}

/// STATX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statx {
    /// An open file of the node.
    pub fh: Option<u64>,
    /// `AT_STATX_*` of statx(2).
    pub flags: u32,
    /// `STATX_*` of statx(2).
    pub mask: u32,
}
