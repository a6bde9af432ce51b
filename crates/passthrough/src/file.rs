//! Files and directories that a client has open.

mod handover;

use crate::appends::Line;
use crate::closing::{Closing, Sort};
use crate::creds::without_fsetid;
use crate::dir::Stream;
use crate::error::Result;
use crate::held::changes;
use crate::lock::{Joined, Place as At};
use crate::mount::Mount;
use crate::node::{Inode, Pin, Place};
use crate::share::Share;
use crate::stat::open_anew;
use crate::sync::{Counted, Numbers, lock, read, write};
use crate::tree::{Node, Tree};
use crate::window::Reader;
use rustix::fs::{OFlags, Statx};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// Names an open file or directory. Never used twice within a tree, and never 0.
pub type Handle = u64;

/// How many parts the table of open files has. A power of two.
const SHARDS: usize = 16;

/// What a client may say when it opens a file. `O_NONBLOCK` means nothing for a regular file, `O_NOFOLLOW` nothing for one
/// that was found already, and `O_CREAT` and `O_EXCL` are the create operation's.
const FLAGS: OFlags = OFlags::ACCMODE
    .union(OFlags::APPEND)
    .union(OFlags::TRUNC)
    .union(OFlags::DIRECT)
    .union(OFlags::DSYNC)
    .union(OFlags::SYNC)
    .union(OFlags::NOATIME);

/// A file or directory that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// What to call it from now on.
    pub handle: Handle,
}

/// Whether a file that is opened like this can be written to.
pub(crate) fn is_writable(flags: OFlags) -> bool {
    flags.intersects(OFlags::WRONLY | OFlags::RDWR)
}

/// An open file or directory. It is closed when it is released and nobody uses it any more.
#[derive(Debug)]
pub struct OpenFile {
    /// Where small reads need no system call. It goes first: what it maps keeps the file as its descriptor does.
    reader: Option<Reader>,
    fd: Closing<Place>,
    flags: OFlags,
    node: Node,
    /// Where it lies, unless nobody can tell.
    at: Option<At>,
    pub(crate) mount: Arc<Mount>,
    /// Where a directory is read from.
    pub(crate) stream: Option<Stream>,
    /// Appends that are left to threads.
    pub(crate) line: Line,
    /// It has a `flock`, or may have one, and counts among those of its node.
    pub(crate) flock: Mutex<Option<Joined>>,
}

impl OpenFile {
    pub(crate) fn new(
        (fd, place): (OwnedFd, Place),
        (node, at, flags): (Node, Option<At>, OFlags),
        mount: Arc<Mount>,
        stream: Option<Stream>,
        reader: Option<Reader>,
    ) -> Arc<OpenFile> {
        let fd = Closing::new(fd, place, Sort::of(flags));
        Arc::new(OpenFile {
            reader,
            fd,
            flags,
            node,
            at,
            mount,
            stream,
            line: Line::default(),
            flock: Mutex::default(),
        })
    }

    /// It is about to be closed, and that takes no time.
    pub(crate) fn is_light(&self) {
        self.fd.is_light();
    }

    /// As [`Closing::empties`].
    pub(crate) fn empties(&self) {
        self.fd.empties();
    }

    /// Whether the file may be written out when it is closed. `stat` is what it is like.
    pub(crate) fn writes_out(&self, stat: &Statx) -> bool {
        self.fd.writes_out(stat)
    }

    /// The flags it was opened with on the host (`O_*` of `fcntl.h`), which need not be those the client asked for.
    #[must_use]
    pub fn flags(&self) -> i32 {
        self.flags.bits().cast_signed()
    }

    /// Writes go where the file ends, wherever the client wants them.
    #[must_use]
    #[inline]
    pub fn appends(&self) -> bool {
        self.flags.contains(OFlags::APPEND)
    }

    /// Reads and writes go to the disk itself.
    #[must_use]
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.flags.contains(OFlags::DIRECT)
    }

    /// A write is not over before the disk has it.
    #[must_use]
    #[inline]
    pub fn is_synchronous(&self) -> bool {
        self.flags.intersects(OFlags::DSYNC)
    }

    /// What was opened.
    #[must_use]
    pub fn node(&self) -> Node {
        self.node
    }

    pub(crate) fn at(&self) -> Option<At> {
        self.at
    }

    pub(crate) fn is_writable(&self) -> bool {
        is_writable(self.flags)
    }

    /// Reads from `offset` (bytes) on until the pieces are full, without a system call, and answers how many bytes that
    /// were. `None` when the caller has to read by himself, as it is for most files, for the first reads of every one, and
    /// at its end; the pieces may have been written to then. `now_ns` is `CLOCK_MONOTONIC`.
    ///
    /// # Safety
    /// The pieces are memory that may be overwritten. No Rust reference relies on it, and it stays what it is during the
    /// call; its pages may go.
    #[inline]
    pub unsafe fn read_mapped(&self, into: &[libc::iovec], offset: u64, now_ns: u64) -> Option<usize> {
        // SAFETY: the caller's promise.
        unsafe { self.reader.as_ref()?.read(self.fd.as_fd(), into, offset, now_ns) }
    }

    /// Tells how long a read took that [`OpenFile::read_mapped`] answered: one that had to wait for a disk is better done
    /// by a call. `now_ns` is when it began.
    #[inline]
    pub fn mapped_read_took(&self, ns: u64, bytes: usize, now_ns: u64) {
        if let Some(reader) = &self.reader {
            reader.took(ns, bytes, now_ns);
        }
    }

    /// The client has changed the size of the file, or has made holes.
    pub(crate) fn forget_size(&self) {
        if let Some(reader) = &self.reader {
            reader.forget_size();
        }
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(RwLock<HashMap<Handle, Arc<OpenFile>, Numbers>>);

/// The files that the client of a tree has open.
#[derive(Debug)]
pub(crate) struct Files {
    shards: [Shard; SHARDS],
    next: AtomicU64,
    count: Arc<AtomicUsize>,
    count_max: usize,
    share: Arc<Share>,
}

impl Files {
    pub(crate) fn new(count_max: usize, share: Arc<Share>) -> Files {
        Files { shards: Default::default(), next: AtomicU64::new(1), count: Arc::default(), count_max, share }
    }

    fn shard(&self, handle: Handle) -> &RwLock<HashMap<Handle, Arc<OpenFile>, Numbers>> {
        // The remainder is below the length.
        &self.shards[handle as usize % SHARDS].0
    }

    /// Room for one more, for which `close_any` makes some if the tree holds too many descriptors, unless there are none that it
    /// can close.
    ///
    /// # Errors
    /// `ENFILE` when there are as many as allowed.
    fn room(&self, mut close_any: impl FnMut() -> bool) -> Result<Place> {
        let counted = Counted::within(&self.count, self.count_max).ok_or(Errno::NFILE)?;
        loop {
            if let Some(taken) = self.share.take() {
                return Ok((counted, taken));
            }
            if !close_any() {
                return Err(Errno::NFILE);
            }
        }
    }

    fn add(&self, file: Arc<OpenFile>) -> Opened {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        write(self.shard(handle)).insert(handle, file);
        Opened { handle }
    }

    /// The open file of this name.
    ///
    /// # Errors
    /// `EBADF` when there is none.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        read(self.shard(handle)).get(&handle).cloned().ok_or(Errno::BADF)
    }

    fn remove(&self, handle: Handle) -> Option<Arc<OpenFile>> {
        let mut map = write(self.shard(handle));
        let file = map.remove(&handle);
        if map.capacity() > 256 && map.len() < map.capacity() / 4 {
            let capacity = map.len() * 2;
            map.shrink_to(capacity);
        }
        file
    }

    /// How many are open, those that were released and are still in use included.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Releases all.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            // The files are closed without the lock.
            drop(std::mem::take(&mut *write(&shard.0)));
        }
    }
}

impl Tree {
    /// The flags that a file is opened with for a client that asks for `flags`.
    ///
    /// # Errors
    /// `EROFS` for anything that could change a read-only tree.
    pub(crate) fn host_flags(&self, flags: i32) -> Result<OFlags> {
        let mut flags = OFlags::from_bits_retain(flags.cast_unsigned()) & FLAGS;
        if flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC) {
            self.writable()?;
        }
        if self.options.writeback {
            flags.remove(OFlags::APPEND);
            if flags & OFlags::ACCMODE == OFlags::WRONLY {
                flags = flags.difference(OFlags::ACCMODE) | OFlags::RDWR;
            }
        }
        if !self.options.allow_direct_io {
            flags.remove(OFlags::DIRECT);
        }
        if !self.options.preserve_noatime {
            flags.remove(OFlags::NOATIME);
        }
        Ok(flags)
    }

    /// Opens a regular file or a directory of the host.
    ///
    /// # Errors
    /// `ELOOP` for a symbolic link and `ENXIO` for a special file: a client opens those itself, and opening one here could
    /// block or have effects on the host.
    pub(crate) fn open_node(&self, inode: &Arc<Inode>, flags: OFlags) -> Result<OwnedFd> {
        if inode.kind.is_link() {
            return Err(Errno::LOOP);
        }
        if !inode.kind.is_file() && !inode.kind.is_directory() {
            return Err(Errno::NXIO);
        }
        let pin = self.table.pin(inode)?;
        if let Some(mapped) = &self.mapped {
            self.is_plain(mapped, inode, pin.as_fd())?;
        }
        open_anew(self.proc_self_fd.as_fd(), pin.as_fd(), flags)
    }

    /// Room for one more open file.
    ///
    /// # Errors
    /// `ENFILE` when there are as many as allowed, or as many descriptors.
    pub(crate) fn room(&self) -> Result<Place> {
        self.files.room(|| self.table.close_any())
    }

    /// Gives a descriptor that was opened for the client its name.
    pub(crate) fn add_file(&self, inode: &Inode, fd: OwnedFd, flags: OFlags, place: Place) -> Opened {
        let stream = inode.kind.is_directory().then(Stream::default);
        let mount = Arc::clone(&inode.mount);
        let reader = self.reader(inode, flags);
        let file = OpenFile::new((fd, place), (inode.node, Some(At::known(&inode.key)), flags), mount, stream, reader);
        lock(&inode.slot).opened(&file);
        if flags.contains(OFlags::TRUNC) {
            file.empties();
            inode.forget_size();
        }
        self.files.add(file)
    }

    /// What reads a file without system calls, where that is possible.
    fn reader(&self, inode: &Inode, flags: OFlags) -> Option<Reader> {
        let windows = self.windows.as_ref()?;
        let fills_holes = inode.mount.windows()?;
        let readable = flags & OFlags::ACCMODE != OFlags::WRONLY && !flags.contains(OFlags::DIRECT);
        (inode.kind.is_file() && readable).then(|| Reader::new(Arc::clone(windows), fills_holes))
    }

    /// Opens a regular file. `flags` are the client's `O_*`; `kill_priv` with `O_TRUNC` drops set-id bits and file
    /// capabilities as for an unprivileged caller.
    ///
    /// # Errors
    /// `EROFS` for writing on a read-only tree, `ENFILE` when too many files are open, `ESTALE` for a node that is unknown
    /// or gone, `EISDIR`, `ELOOP` and `ENXIO` for what is no regular file, and the kernel's.
    pub fn open(&self, node: Node, flags: i32, kill_priv: bool) -> Result<Opened> {
        self.pause();
        let flags = self.host_flags(flags)?;
        self.open_file(&self.table.get(node)?, flags, kill_priv)
    }

    /// Opens a regular file with flags of the host.
    pub(crate) fn open_file(&self, inode: &Arc<Inode>, flags: OFlags, kill_priv: bool) -> Result<Opened> {
        if inode.kind.is_directory() {
            return Err(Errno::ISDIR);
        }
        let room = self.room()?;
        let truncates = flags.contains(OFlags::TRUNC);
        // By a name that could not be looked at before.
        let _changing = truncates.then(|| changes(self, || self.table.pin_and_stat(inode).map(|(_, stat)| stat)));
        if truncates && self.mapped_capability.is_some() {
            self.strip_capability(&self.table.pin(inode)?)?;
        }
        let fd = if kill_priv && truncates {
            if let Some(mapped) = &self.mapped {
                self.drop_set_ids_before_truncation(mapped, inode)?;
            }
            let open = || self.open_node(inode, flags);
            if self.group_bits.load(Ordering::Relaxed) {
                self.as_a_user(self.table.pin(inode)?.as_fd(), open)?
            } else {
                without_fsetid(open)?
            }
        } else {
            self.open_node(inode, flags)?
        };
        Ok(self.add_file(inode, fd, flags, room))
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENFILE` when too many files are open, `ESTALE` for a node that is unknown or gone, and the kernel's.
    pub fn open_dir(&self, node: Node) -> Result<Opened> {
        self.pause();
        let inode = self.table.get(node)?;
        if !inode.kind.is_directory() {
            return Err(Errno::NOTDIR);
        }
        let room = self.room()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = self.open_node(&inode, flags)?;
        Ok(self.add_file(&inode, fd, flags, room))
    }

    /// Releases an open file. Locks that came by it go, if their owner has taken none by another since. With
    /// `flock_unlock_owner` its `flock` goes even if an operation still uses the file. A handle that is unknown is nothing to
    /// release.
    pub fn release(&self, handle: Handle, flock_unlock_owner: Option<u64>) {
        if let Some(file) = self.files.remove(handle) {
            self.unlock_released(file.node(), handle);
            if flock_unlock_owner.is_some() {
                self.unlock_file(&file);
            }
        }
    }

    /// Drops the locks that go with a release, for a caller that leaves the rest of [`Tree::release`] to another thread: who asks
    /// for one next must not find it taken.
    pub fn unlock_for_release(&self, handle: Handle, flock_unlock_owner: Option<u64>) {
        if let Ok(file) = self.files.get(handle) {
            // Those of many owners take long themselves, and go with the release.
            if !self.has_many_owners(file.node(), handle) {
                self.unlock_released(file.node(), handle);
            }
            if flock_unlock_owner.is_some() {
                self.unlock_file(&file);
            }
        }
    }

    /// Releases an open directory.
    pub fn release_dir(&self, handle: Handle) {
        self.files.remove(handle);
    }

    /// An open file or directory, for I/O that the caller does itself. No system call and no allocation.
    ///
    /// # Errors
    /// `EBADF` for a handle that is unknown.
    pub fn file(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        self.files.get(handle)
    }

    /// A node opened for reading, for clients that read without opening. The descriptor is kept with those of the nodes,
    /// and closed as they are.
    ///
    /// # Errors
    /// `ESTALE` for a node that is unknown or gone, `ELOOP` and `ENXIO` for what is neither file nor directory, and the
    /// kernel's.
    pub fn node_file(&self, node: Node) -> Result<Arc<OpenFile>> {
        let inode = self.table.get(node)?;
        self.table.read_file(&inode, |place| {
            let flags = OFlags::RDONLY;
            let fd = self.open_node(&inode, flags)?;
            let stream = inode.kind.is_directory().then(Stream::default);
            let mount = Arc::clone(&inode.mount);
            let reader = self.reader(&inode, flags);
            Ok(OpenFile::new((fd, place), (node, Some(At::known(&inode.key)), flags), mount, stream, reader))
        })
    }

    /// An open file of this node.
    ///
    /// # Errors
    /// `EBADF` for a handle that is unknown or another node's.
    pub(crate) fn file_of(&self, node: Node, handle: Handle) -> Result<Arc<OpenFile>> {
        let file = self.files.get(handle)?;
        if file.node == node { Ok(file) } else { Err(Errno::BADF) }
    }

    /// An open file of this node that can be written to, or nothing.
    pub(crate) fn writable_file_of(&self, node: Node, handle: Option<Handle>) -> Result<Option<Arc<OpenFile>>> {
        let file = handle.map(|handle| self.file_of(node, handle)).transpose()?;
        Ok(file.filter(|file| file.is_writable()))
    }

    /// A descriptor of a node: the client's open file, or one of the tree's own.
    pub(crate) fn pin_of(&self, node: Node, handle: Option<Handle>) -> Result<Pin> {
        match handle {
            Some(handle) => self.file_of(node, handle).map(Pin::File),
            None => self.table.pin(&self.table.get(node)?),
        }
    }
}
