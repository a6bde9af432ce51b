//! Typed requests. What the protocol says by a flag beside a field that is then valid is an `Option` here.

use super::names::Names;
use super::spec::{NONUNAME, lock_flag};
use super::stat::Stat;
use crate::fs::SetTime;

/// A request with its fields. What begins with `Tx` in the specification is `X` here.
///
/// Strings have no NUL; names are 255 bytes or shorter, paths 4095. Whether a name is empty, `.` or `..`, or contains a slash is
/// the tree's to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Begin: everything that the client holds is gone.
    Version {
        /// Largest message that the client takes, in bytes.
        msize: u32,
        /// The dialect that it asks for; see [`Dialect::from_version`](super::Dialect::from_version).
        version: &'a [u8],
    },
    /// Authenticate.
    Auth(Auth<'a>),
    /// Have the root of a tree as a fid.
    Attach(Attach<'a>),
    /// Cancel a request, or wait for it.
    Flush {
        /// Its tag.
        oldtag: u16,
    },
    /// Go along names, or make another fid of the same place.
    Walk {
        /// Where from.
        fid: u32,
        /// The fid of where it ends; it may be the same.
        newfid: u32,
        /// The names.
        names: Names<'a>,
    },
    /// Read from an open file or an extended attribute; in 9P2000.u, from a directory too.
    Read {
        /// The open fid.
        fid: u32,
        /// First byte, at most `i64::MAX`.
        offset: u64,
        /// Most bytes to read. The room for the answer may be shorter.
        count: u32,
    },
    /// Write to an open file or an extended attribute what lies behind the first
    /// [`WRITE_HEAD_BYTES`](super::WRITE_HEAD_BYTES): exactly `count` bytes, all of which were sent.
    Write {
        /// The open fid.
        fid: u32,
        /// First byte, at most `i64::MAX`.
        offset: u64,
        /// Bytes of data.
        count: u32,
    },
    /// Forget a fid. It is gone even when that fails.
    Clunk {
        /// Which.
        fid: u32,
    },
    /// Remove what a fid stands for and forget the fid, even when that fails.
    Remove {
        /// Which.
        fid: u32,
    },
    /// Read the file system's figures.
    StatFs {
        /// A fid in it.
        fid: u32,
    },
    /// Open.
    Lopen {
        /// What; the fid is open then.
        fid: u32,
        /// [`open_flag`](super::open_flag)s.
        flags: u32,
    },
    /// Make and open a file.
    Lcreate(Lcreate<'a>),
    /// Make a symbolic link.
    Symlink(Symlink<'a>),
    /// Make a file of any type.
    Mknod(Mknod<'a>),
    /// Rename what a fid stands for.
    Rename {
        /// What.
        fid: u32,
        /// The directory of the new name.
        dfid: u32,
        /// The new name.
        name: &'a [u8],
    },
    /// Rename a name.
    RenameAt(RenameAt<'a>),
    /// Read a symbolic link.
    ReadLink {
        /// The link.
        fid: u32,
    },
    /// Read attributes.
    GetAttr {
        /// Whose.
        fid: u32,
        /// What is wanted: [`getattr_mask`](super::getattr_mask).
        mask: u64,
    },
    /// Change attributes.
    SetAttr(SetAttr),
    /// Have an extended attribute as a fid to read; with an empty name, their list.
    XattrWalk {
        /// Whose.
        fid: u32,
        /// The fid of the value.
        newfid: u32,
        /// Which.
        name: &'a [u8],
    },
    /// Make a fid one of an extended attribute, to which its value is written; it is set when the fid is clunked.
    XattrCreate(XattrCreate<'a>),
    /// Read a directory's entries.
    ReadDir {
        /// The open directory.
        fid: u32,
        /// Where to go on: 0, or what an entry said.
        offset: u64,
        /// Most bytes of entries. The room for the answer may be shorter.
        count: u32,
    },
    /// Make a file durable.
    Fsync {
        /// The open fid.
        fid: u32,
        /// As fdatasync(2).
        datasync: bool,
    },
    /// Set or drop a POSIX lock.
    Lock(LockRequest<'a>),
    /// Ask for a lock in the way.
    GetLock(GetLock<'a>),
    /// Give a file one more name.
    Link {
        /// The directory of the new name.
        dfid: u32,
        /// The file.
        fid: u32,
        /// The new name.
        name: &'a [u8],
    },
    /// Make a directory.
    Mkdir(Mkdir<'a>),
    /// Remove a name.
    UnlinkAt {
        /// The directory.
        dfid: u32,
        /// Which.
        name: &'a [u8],
        /// [`unlink_flag`](super::unlink_flag)s.
        flags: u32,
    },
    /// Open (9P2000.u).
    Open {
        /// What; the fid is open then.
        fid: u32,
        /// [`open_mode`](super::open_mode)s.
        mode: u8,
    },
    /// Make a file of any type and open it (9P2000.u).
    Create(Create<'a>),
    /// Read attributes (9P2000.u).
    Stat {
        /// Whose.
        fid: u32,
    },
    /// Change attributes and name (9P2000.u).
    WriteStat {
        /// Whose.
        fid: u32,
        /// What they become; see [`Stat`] for what leaves a field as it is.
        stat: Stat<'a>,
    },
    /// A type of message that the session's dialect does not have, whatever stands in it. The answer is EOPNOTSUPP.
    Unsupported(u8),
}

/// Tauth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auth<'a> {
    /// The fid to authenticate by.
    pub afid: u32,
    /// Name of the user.
    pub uname: &'a [u8],
    /// The tree to be attached: a path.
    pub aname: &'a [u8],
    /// Number of the user; [`NONUNAME`] when none was given.
    pub n_uname: u32,
}

/// Tattach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attach<'a> {
    /// The fid of the root.
    pub fid: u32,
    /// The fid of an authentication; [`NOFID`](super::NOFID) without.
    pub afid: u32,
    /// Name of the user.
    pub uname: &'a [u8],
    /// The tree: a path.
    pub aname: &'a [u8],
    /// Number of the user; [`NONUNAME`] when none was given.
    pub n_uname: u32,
}

impl Attach<'_> {
    /// The number of the user, if one was given.
    #[inline]
    pub fn uid(&self) -> Option<u32> {
        (self.n_uname != NONUNAME).then_some(self.n_uname)
    }
}

/// Tlcreate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lcreate<'a> {
    /// The directory; the fid is the open file's then.
    pub fid: u32,
    /// The new name.
    pub name: &'a [u8],
    /// [`open_flag`](super::open_flag)s.
    pub flags: u32,
    /// Type and permissions.
    pub mode: u32,
    /// The caller's group.
    pub gid: u32,
}

/// Tsymlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symlink<'a> {
    /// The directory.
    pub fid: u32,
    /// The new name.
    pub name: &'a [u8],
    /// What it points to.
    pub target: &'a [u8],
    /// The caller's group.
    pub gid: u32,
}

/// Tmknod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mknod<'a> {
    /// The directory.
    pub dfid: u32,
    /// The new name.
    pub name: &'a [u8],
    /// Type and permissions.
    pub mode: u32,
    /// Major number of a device.
    pub major: u32,
    /// Minor number of a device.
    pub minor: u32,
    /// The caller's group.
    pub gid: u32,
}

/// Trenameat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenameAt<'a> {
    /// The directory of the old name.
    pub olddirfid: u32,
    /// The old name.
    pub oldname: &'a [u8],
    /// The directory of the new name.
    pub newdirfid: u32,
    /// The new name.
    pub newname: &'a [u8],
}

/// Tsetattr: everything that is `None` stays. An owner or a group of `u32::MAX`, which is nobody's number, is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Whose.
    pub fid: u32,
    /// Permissions, perhaps with the file's own type.
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
    /// The time of the attributes' change becomes the present one, though nothing else changes, perhaps.
    pub ctime: bool,
}

/// Txattrcreate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrCreate<'a> {
    /// Whose; the fid is the attribute's then.
    pub fid: u32,
    /// Which.
    pub name: &'a [u8],
    /// Bytes of the value, at most 65536. With 0, Linux wants the attribute removed.
    pub size: u32,
    /// [`xattr_flag`](super::xattr_flag)s.
    pub flags: u32,
}

/// What a lock is, or what is asked for; the discriminant is its number on the wire (`P9_LOCK_TYPE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LockKind {
    /// Shared.
    Read = 0,
    /// Exclusive.
    Write = 1,
    /// None: drop it, or nothing is in the way.
    Unlock = 2,
}

/// Tlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest<'a> {
    /// The open fid.
    pub fid: u32,
    /// What is asked for.
    pub kind: LockKind,
    /// [`lock_flag`](super::lock_flag)s.
    pub flags: u32,
    /// First byte.
    pub start: u64,
    /// Bytes; 0 = to the end of the file. The last byte is at most `i64::MAX`.
    pub length: u64,
    /// Whose it is: a process of the client's.
    pub proc_id: u32,
    /// Which client.
    pub client_id: &'a [u8],
}

impl LockRequest<'_> {
    /// Last byte, `i64::MAX` = to the end of the file.
    #[inline]
    pub const fn end(&self) -> u64 {
        lock_end(self.start, self.length)
    }

    /// Whether the caller waits for the lock.
    #[inline]
    pub const fn waits(&self) -> bool {
        self.flags & lock_flag::BLOCK != 0
    }
}

/// Tgetlock, and the body of its answer, where `fid` means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLock<'a> {
    /// The open fid.
    pub fid: u32,
    /// What is asked for; in the answer, what is in the way, or that nothing is.
    pub kind: LockKind,
    /// First byte.
    pub start: u64,
    /// Bytes; 0 = to the end of the file. The last byte is at most `i64::MAX`.
    pub length: u64,
    /// Whose it is: a process of the client's.
    pub proc_id: u32,
    /// Which client.
    pub client_id: &'a [u8],
}

impl GetLock<'_> {
    /// Last byte, `i64::MAX` = to the end of the file.
    #[inline]
    pub const fn end(&self) -> u64 {
        lock_end(self.start, self.length)
    }
}

#[inline]
const fn lock_end(start: u64, length: u64) -> u64 {
    match length {
        0 => i64::MAX as u64,
        _ => start.saturating_add(length - 1),
    }
}

/// Tmkdir.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mkdir<'a> {
    /// The directory that it is made in.
    pub dfid: u32,
    /// The new name.
    pub name: &'a [u8],
    /// Permissions.
    pub mode: u32,
    /// The caller's group.
    pub gid: u32,
}

/// Tcreate (9P2000.u).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Create<'a> {
    /// The directory; the fid is the new file's then, and open.
    pub fid: u32,
    /// The new name.
    pub name: &'a [u8],
    /// Permissions and [`perm`](super::perm)s, which say what is made.
    pub perm: u32,
    /// [`open_mode`](super::open_mode)s.
    pub mode: u8,
    /// A link's target, a device's type and numbers; see [`perm`](super::perm).
    pub extension: &'a [u8],
}
