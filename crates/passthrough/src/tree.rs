//! The tree itself: what is shared by all operations. They are in the modules of their concerns.

use crate::attributes::{Attributes, Time};
use crate::changing::Changes;
use crate::error::{OpenError, Result};
use crate::file::Files;
use crate::ids::ROOT;
use crate::lock::{Crowds, Exclusive, FILE_MAX, Limits, Locks};
use crate::mapped::Mapped;
use crate::mount::Mounts;
use crate::options::{Options, Source};
use crate::share::Share;
use crate::source::{Beginning, begin};
use crate::stat::has_harmless_group_bit;
use crate::table::Table;
use crate::window::Windows;
use crate::xattr::{CAPABILITY, Place};
use rustix::fs::Statx;
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// A tree as people see it.
#[derive(Clone, Debug)]
pub struct Description {
    /// Where it begins on the host.
    pub path: PathBuf,
    /// What it allows.
    pub options: Options,
    /// Inodes that the client knows, the root included.
    pub nodes: usize,
    /// Descriptors held for them.
    pub descriptors: usize,
    /// Files and directories that the client has open.
    pub handles: usize,
    /// Files that are mapped for reading.
    pub windows: usize,
    /// Owners of POSIX locks: as many descriptors.
    pub lock_owners: usize,
    /// The root's file system has file handles, and nodes are held by them.
    pub by_file_handles: bool,
}

/// What the clients of a tree may have in all, as far as other trees of the process leave it: for who divides it among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Open files and directories.
    pub open_files: usize,
    /// Descriptors, of open files and of nodes.
    pub descriptors: usize,
    /// A node keeps a descriptor for as long as a client knows it.
    pub nodes_take_descriptors: bool,
    /// Owners of POSIX locks.
    pub lock_owners: usize,
    /// Ranges that they hold.
    pub lock_ranges: usize,
}

/// A directory of the host for one client.
///
/// Everything a client names is a component of a directory that it knows, or a number that it was given. Every operation is
/// one or a few system calls on the thread that asks, any number of which may ask at once. Operations answer with `Errno`:
/// [`crate::Result`].
#[derive(Debug)]
pub struct Tree {
    pub(crate) options: Options,
    pub(crate) label: PathBuf,
    pub(crate) proc_self_fd: OwnedFd,
    pub(crate) mounts: Mounts,
    pub(crate) table: Table,
    pub(crate) files: Files,
    /// `None` when no file is mapped for reading.
    pub(crate) windows: Option<Arc<Windows>>,
    pub(crate) locks: Locks,
    /// Open files with a `flock`.
    pub(crate) flocks: Arc<Crowds>,
    /// There when clients of a read-only tree may exclude each other.
    pub(crate) exclusive: OnceLock<Exclusive>,
    /// `None` where the host's inodes say what the client sees.
    pub(crate) mapped: Option<Box<Mapped>>,
    /// Files that long calls are changing.
    pub(crate) changes: Arc<Changes>,
    /// The host's name of `security.capability`, where that is another one.
    pub(crate) mapped_capability: Option<CString>,
    /// A file was seen whose set-group-id bit outlives a write: before one, its mode has to be looked at.
    pub(crate) group_bits: AtomicBool,
    /// The descriptors of all of these.
    pub(crate) share: Arc<Share>,
    /// Directories that are being read in large pieces.
    pub(crate) pieces: Arc<AtomicUsize>,
}

impl Tree {
    /// Opens a tree.
    ///
    /// # Errors
    /// When the root cannot be opened, or cannot be served in the way that the options ask for.
    pub fn new(source: Source, options: Options) -> std::result::Result<Tree, OpenError> {
        let share = Share::of_process();
        let Beginning { label, proc_self_fd, mounts, table } = begin(source, &options, Arc::clone(&share))?;
        let files = Files::new(options.open_files_max, Arc::clone(&share));
        let windows = Windows::new(options.read_windows);
        let (locks, pieces) = (Locks::new(Limits::default(), Arc::clone(&share)), Arc::default());
        let mapped = Mapped::new(options.security);
        let exclusive = OnceLock::new();
        let mapped_capability = mapped_capability(&options, mapped.as_deref());
        Ok(Tree {
            options,
            label,
            proc_self_fd,
            mounts,
            table,
            files,
            windows,
            locks,
            flocks: Crowds::new(FILE_MAX),
            exclusive,
            mapped,
            changes: Arc::default(),
            mapped_capability,
            group_bits: AtomicBool::new(false),
            share,
            pieces,
        })
    }

    /// What the tree is and holds at the moment.
    #[must_use]
    pub fn describe(&self) -> Description {
        Description {
            path: self.label.clone(),
            options: self.options.clone(),
            nodes: self.table.len(),
            descriptors: self.table.descriptors(),
            handles: self.files.len(),
            windows: self.windows.as_ref().map_or(0, |windows| windows.len()),
            lock_owners: self.locks.owners() + self.exclusive.get().map_or(0, Exclusive::owners),
            by_file_handles: self.table.get(ROOT).is_ok_and(|root| root.mount.has_handles()),
        }
    }

    /// Does what may take long and nobody waits for: on a thread that serves others later, and elsewhere at once.
    pub fn when_there_is_time(&self, job: impl FnOnce() + Send + 'static) {
        self.share.closer.when_there_is_time(Box::new(job));
    }

    /// What there is for all clients.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        let locks = self.exclusive.get().map_or_else(Limits::default, |_| Limits::on_one_file());
        Capacity {
            open_files: self.options.open_files_max,
            descriptors: self.share.most(),
            nodes_take_descriptors: !self.table.get(ROOT).is_ok_and(|root| root.mount.has_handles()),
            lock_owners: locks.owners,
            lock_ranges: locks.ranges,
        }
    }

    /// How much there is to give up when the client goes: nodes and open files that it knows, the root included, and locks, as
    /// many as take as long. An owner's go along all that there are of their file; ranges go with their owner.
    #[must_use]
    pub fn holds(&self) -> usize {
        const OWNER: usize = 32;
        const RANGES: usize = 8;
        self.table.len() + self.files.len() + self.locks.owners() * OWNER + self.locks.ranges() / RANGES
    }

    /// The client is gone, or begins anew: drops every node but the root, every open file and every lock, and cancels who
    /// waits for one. Operations in progress finish, and what they give out is nobody's: the caller ends them first, or
    /// calls this once more behind them.
    pub fn clear(&self) {
        self.locks.clear();
        if let Some(exclusive) = self.exclusive.get() {
            exclusive.clear();
        }
        self.files.clear();
        self.table.clear();
        if let Some(mapped) = &self.mapped {
            mapped.clear();
        }
    }

    /// As [`Tree::clear`], for a client that begins anew and of which nothing is under way any more: numbers are given away again.
    pub fn begin_anew(&self) {
        self.clear();
        self.table.begin_anew();
        self.files.begin_anew();
    }

    /// Sleeps as long as the options say an operation takes at least. Operations do it themselves; who reads or writes an
    /// open file does it before.
    pub fn pause(&self) {
        if !self.options.delay.is_zero() {
            std::thread::sleep(self.options.delay);
        }
    }

    /// Files may be opened with `O_DIRECT`.
    #[must_use]
    #[inline]
    pub fn allows_direct_io(&self) -> bool {
        self.options.allow_direct_io
    }

    /// # Errors
    /// `EROFS` on a read-only tree.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.options.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// By which extended attributes of what `fd` is are read and written.
    pub(crate) fn place(&self, fd: impl AsFd) -> Place<'_> {
        Place::new(self.proc_self_fd.as_fd(), fd)
    }

    /// What `stat` says, in the client's ids.
    pub(crate) fn attributes_of(&self, stat: &Statx) -> Attributes {
        if has_harmless_group_bit(stat.stx_mode.into()) && !self.group_bits.load(Ordering::Relaxed) {
            self.group_bits.store(true, Ordering::Relaxed);
        }
        let time = |at: rustix::fs::StatxTimestamp| Time { seconds: at.tv_sec, nanoseconds: at.tv_nsec };
        Attributes {
            ino: stat.stx_ino,
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            btime: time(stat.stx_btime),
            mode: stat.stx_mode.into(),
            links: stat.stx_nlink,
            uid: self.options.uid_map.to_guest(stat.stx_uid),
            gid: self.options.gid_map.to_guest(stat.stx_gid),
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
            block_size: stat.stx_blksize,
            mount_id: stat.stx_mnt_id,
            flags: stat.stx_attributes.bits(),
            mask: stat.stx_mask,
        }
    }
}

/// Where the client's file capabilities are, if not where the kernel looks for its own. No system call.
fn mapped_capability(options: &Options, mapped: Option<&Mapped>) -> Option<CString> {
    let name = options.xattr_map.to_host(CAPABILITY).ok()?;
    let name = match mapped {
        None => name,
        Some(mapped) => mapped.xattr_to_host(name, Errno::ACCESS).ok()?,
    };
    (*name != *CAPABILITY).then(|| name.into_owned())
}
