//! The mounts of the host that a tree reaches: what each of them can do is found out once, when it is first met.

mod handover;

use crate::error::Result;
use crate::handle::FileHandle;
use crate::options::FileHandles;
use crate::stat::{Key, Kind, MountKey, open_anew, stat};
use crate::sync::lock;
use rustix::fs::{FsWord, OFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// File systems that report errors of earlier writes when a file is closed: the magic numbers of `linux/magic.h` and of
/// the file systems' own headers.
const REPORTS_AT_CLOSE: [FsWord; 12] = [
    0x6969,      // NFS
    0xFF53_4D42, // CIFS
    0xFE53_4D42, // SMB2
    0x517B,      // SMB
    0x6573_5546, // FUSE
    0x794C_7630, // overlayfs, whose upper layer may be one of the others
    0x00C3_6400, // Ceph
    0x0102_1997, // 9p
    0x5346_414F, // AFS
    0x6B41_4653, // AFS
    0x7375_7245, // Coda
    0x0BD0_0BD0, // Lustre
];

/// File systems whose files may be read through a mapping: what it shows is what a call reads, at any time, and a call
/// takes no lock that keeps a write out while it reads. XFS takes one: there a read sees all of a write or nothing, which a
/// mapping does not. overlayfs may put another file behind an open one when it is written to.
const MAPPED: [FsWord; 3] = [
    TMPFS,
    0xEF53,      // ext2, ext3, ext4
    0x9123_683E, // btrfs
];
/// tmpfs: a read through a mapping takes memory for a hole.
const TMPFS: FsWord = 0x0102_1994;

/// XFS, whose files can be mapped as well as those, but for what is said of them.
const XFS: FsWord = 0x5846_5342;

/// Whether what somebody else has mapped of a file is what a call reads and writes: of local file systems.
pub(crate) fn is_mapped_well(fd: BorrowedFd<'_>) -> Result<bool> {
    let magic = rustix::fs::fstatfs(fd)?.f_type;
    Ok(magic == XFS || MAPPED.contains(&magic))
}

/// What was found out about a mount.
#[derive(Debug)]
struct Facts {
    /// A file or directory of the mount, open for reading: needed to open handles and to sync the file system.
    file: Result<Arc<OwnedFd>>,
    handles: bool,
    reports_at_close: bool,
    /// Files may be read through mappings; `true` inside when that fills holes.
    windows: Option<bool>,
}

/// One mount of the host, on one device, for as long as the client knows a node there.
#[derive(Debug)]
pub(crate) struct Mount {
    key: MountKey,
    facts: OnceLock<Facts>,
}

impl Mount {
    pub(crate) fn key(&self) -> MountKey {
        self.key
    }

    /// Inodes of this mount are held by file handles.
    pub(crate) fn has_handles(&self) -> bool {
        self.facts.get().is_some_and(|facts| facts.handles)
    }

    /// Closing a file may report an error of an earlier write.
    pub(crate) fn reports_at_close(&self) -> bool {
        self.facts.get().is_none_or(|facts| facts.reports_at_close)
    }

    /// Whether files may be read through a mapping, and then whether that takes memory for holes.
    pub(crate) fn windows(&self) -> Option<bool> {
        self.facts.get().and_then(|facts| facts.windows)
    }

    /// Something on this mount that is open for reading.
    ///
    /// # Errors
    /// What the kernel said when it was opened; `EBADF` while only special files were met here.
    pub(crate) fn file(&self) -> Result<BorrowedFd<'_>> {
        let facts = self.facts.get().ok_or(Errno::BADF)?;
        facts.file.as_ref().map(AsFd::as_fd).map_err(|&error| error)
    }

    /// Finds out what the mount can do with the help of `fd`, an inode of it. Special files and links are never opened, so
    /// they cannot help.
    pub(crate) fn explore(&self, proc_self_fd: BorrowedFd<'_>, fd: BorrowedFd<'_>, kind: Kind, wish: FileHandles) {
        if kind.is_directory() || kind.is_file() {
            self.facts.get_or_init(|| {
                let file =
                    open_anew(proc_self_fd, fd, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map(Arc::new);
                let handles = match (&file, wish) {
                    (Err(_), _) | (_, FileHandles::Never) => false,
                    (Ok(file), FileHandles::Prefer | FileHandles::Mandatory) => try_handles(file.as_fd(), fd).is_ok(),
                };
                let magic = rustix::fs::fstatfs(fd).map(|facts| facts.f_type);
                let reports_at_close = magic.is_ok_and(|magic| REPORTS_AT_CLOSE.contains(&magic));
                let windows = magic.ok().filter(|magic| MAPPED.contains(magic)).map(|magic| magic == TMPFS);
                Facts { file, handles, reports_at_close, windows }
            });
        }
    }

    #[cfg(test)]
    pub(crate) fn made_up(key: MountKey) -> Arc<Mount> {
        Arc::new(Mount { key, facts: OnceLock::new() })
    }
}

/// Takes a handle of an inode, opens it, and looks whether it is the same inode.
///
/// # Errors
/// The kernel's: `EOPNOTSUPP` without handles, `EPERM` without the capability to open them.
pub(crate) fn try_handles(mount: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> Result<()> {
    let again = FileHandle::of(fd, c"")?.open(mount, OFlags::PATH)?;
    if Key::of(&stat(again.as_fd(), c"")?) == Key::of(&stat(fd, c"")?) { Ok(()) } else { Err(Errno::STALE) }
}

/// The mounts on which the client knows nodes.
#[derive(Debug, Default)]
pub(crate) struct Mounts(Mutex<HashMap<MountKey, Weak<Mount>>>);

impl Mounts {
    /// The mount of this key.
    pub(crate) fn get(&self, key: MountKey) -> Arc<Mount> {
        let mut mounts = lock(&self.0);
        if let Some(mount) = mounts.get(&key).and_then(Weak::upgrade) {
            return mount;
        }
        mounts.retain(|_, mount| mount.strong_count() > 0);
        let mount = Arc::new(Mount { key, facts: OnceLock::new() });
        mounts.insert(key, Arc::downgrade(&mount));
        mount
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Mount>> {
        lock(&self.0).values().filter_map(Weak::upgrade).collect()
    }
}
