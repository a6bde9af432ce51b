//! Looking at inodes: `statx`, the identity of an inode, the names a client may use, and descriptors opened anew.

use crate::error::Result;
use crate::patience;
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use rustix::path::DecInt;
use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

/// What a look at an inode asks for. `STATX_MNT_ID_UNIQUE` (0x4000, Linux 6.8) wins over `STATX_MNT_ID` where the kernel
/// knows it: such an id never comes again while the host runs.
const WANTED: StatxFlags = StatxFlags::BASIC_STATS
    .union(StatxFlags::BTIME)
    .union(StatxFlags::MNT_ID)
    .union(StatxFlags::from_bits_retain(0x4000));

/// What a file may have, in bytes, to be given back or written out in no time even when each block of the file system is a piece of
/// its own: 16 pieces.
const LIGHT_BYTES: u64 = 64 << 10;

/// Which mount an inode was met on, and which device: one mount of btrfs has many devices, each with inode numbers of its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MountKey {
    pub(crate) id: u64,
    pub(crate) device: (u32, u32),
}

/// Which inode this is, among those that exist at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Inode number.
    pub(crate) ino: u64,
    /// Where the number counts.
    pub(crate) mount: MountKey,
}

impl Key {
    pub(crate) fn of(stat: &Statx) -> Key {
        let known = StatxFlags::MNT_ID.bits() | 0x4000;
        let id = if stat.stx_mask & known == 0 { 0 } else { stat.stx_mnt_id };
        Key { ino: stat.stx_ino, mount: MountKey { id, device: (stat.stx_dev_major, stat.stx_dev_minor) } }
    }

    #[cfg(test)]
    pub(crate) fn made_up(ino: u64) -> Key {
        Key { ino, mount: MountKey { id: 1, device: (0, 1) } }
    }
}

/// The type of an inode: `S_IFMT` of its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(u32);

impl Kind {
    pub(crate) fn of(stat: &Statx) -> Kind {
        Kind(u32::from(stat.stx_mode) & libc::S_IFMT)
    }

    /// The type with these `S_IFMT` bits.
    pub(crate) fn from_mode(mode: u32) -> Kind {
        Kind(mode & libc::S_IFMT)
    }

    /// `S_IFMT` bits.
    pub(crate) fn mode(self) -> u32 {
        self.0
    }

    pub(crate) fn is_directory(self) -> bool {
        self.0 == libc::S_IFDIR
    }

    pub(crate) fn is_file(self) -> bool {
        self.0 == libc::S_IFREG
    }

    pub(crate) fn is_link(self) -> bool {
        self.0 == libc::S_IFLNK
    }

    #[cfg(test)]
    pub(crate) fn file() -> Kind {
        Kind(libc::S_IFREG)
    }
}

/// Looks at `name` in `dir` without following or mounting anything, or at `dir` itself when the name is empty. One system
/// call.
pub(crate) fn stat(dir: BorrowedFd<'_>, name: &CStr) -> Result<Statx> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    rustix::fs::statx(dir, name, flags, WANTED)
}

/// A regular file with a set-group-id bit that no execution gives power to.
pub(crate) fn has_harmless_group_bit(mode: u32) -> bool {
    mode & (libc::S_IFMT | libc::S_ISGID | libc::S_IXGRP) == libc::S_IFREG | libc::S_ISGID
}

/// Whether giving it back, or writing it out, takes time that somebody would notice.
pub(crate) fn is_heavy(stat: &Statx) -> bool {
    bytes(stat) > LIGHT_BYTES
}

/// What an inode has: blocks of a device, and pages of memory where holes were read and where nothing is allocated yet.
pub(crate) fn bytes(stat: &Statx) -> u64 {
    stat.stx_size.max(stat.stx_blocks.saturating_mul(512))
}

/// Refuses everything but the name of something in the directory itself.
///
/// # Errors
/// `EINVAL` for "", ".", ".." and names with a slash.
pub(crate) fn component(name: &CStr) -> Result<()> {
    match name.to_bytes() {
        b"" | b"." | b".." => Err(Errno::INVAL),
        bytes if bytes.contains(&b'/') => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// An `O_PATH` descriptor of what `name` in `dir` is, symbolic links included. This has no effect on what is opened,
/// whatever it is.
pub(crate) fn open_path(dir: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    rustix::fs::openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens what `fd` refers to anew, by its name in `/proc/self/fd`, which is `proc_self_fd`. Only for regular files and
/// directories, whose type the caller has seen: opening anything else may have effects on the host. Another process's lease on
/// a file is waited for, unless this thread has no time for that; see [`patience`].
///
/// [`patience`]: crate::patience
pub(crate) fn open_anew(proc_self_fd: BorrowedFd<'_>, fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    let open =
        |more| rustix::fs::openat(proc_self_fd, DecInt::from_fd(fd), flags | OFlags::CLOEXEC | more, Mode::empty());
    if flags.contains(OFlags::PATH) || !patience::is_short() {
        return open(OFlags::empty());
    }
    let opened = open(OFlags::NONBLOCK).inspect_err(|&error| patience::found_in_use(error))?;
    // io_uring would answer EAGAIN where such a file is not in the cache.
    rustix::fs::fcntl_setfl(&opened, flags)?;
    Ok(opened)
}
