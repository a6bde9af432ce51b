//! Files and directories that a client has open.

mod handover;

use crate::closing::{Closing, Sort, is_writable};
use crate::dir::Stream;
use crate::error::Result;
use crate::ids::{Handle, Node};
use crate::lock::{Joined, LockKind, Place as At};
use crate::mount::Mount;
use crate::share::{Place, Share};
use crate::sync::{Counted, Numbers, read, write};
use crate::window::Reader;
use rustix::fs::{OFlags, Statx};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};

/// How many parts the table of open files has. A power of two.
const SHARDS: usize = 16;

/// A file or directory that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// What to call it from now on.
    pub handle: Handle,
}

/// Who appends to one open file.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) turns: Mutex<Turns>,
    pub(crate) next: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// So many have been left to threads.
    pub(crate) left: u64,
    /// So many of those have ended.
    pub(crate) ended: u64,
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
    pub(crate) flock: Mutex<Flock>,
}

/// The `flock` of an open file.
#[derive(Debug, Default)]
pub(crate) struct Flock {
    /// It has one, or may have one, and counts among those of its node.
    pub(crate) joined: Option<Joined>,
    /// The one that was granted last and not dropped since.
    pub(crate) kind: Option<LockKind>,
}

impl Flock {
    /// One of this kind is asked for: the kernel drops another one first, whether or not this one is granted.
    pub(crate) fn changes_to(&mut self, kind: LockKind) {
        self.kind = self.kind.filter(|held| *held == kind);
    }
}

impl OpenFile {
    pub(crate) fn new(
        (fd, place): (OwnedFd, Place),
        (node, at, flags): (Node, Option<At>, OFlags),
        mount: Arc<Mount>,
        stream: Option<Stream>,
        reader: Option<Reader>,
    ) -> Arc<OpenFile> {
        if is_writable(flags) && mount.reports_at_close() {
            place.1.will_report_at_close();
        }
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
    pub(crate) fn room(&self, mut close_any: impl FnMut() -> bool) -> Result<Place> {
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

    pub(crate) fn add(&self, file: Arc<OpenFile>) -> Opened {
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

    pub(crate) fn remove(&self, handle: Handle) -> Option<Arc<OpenFile>> {
        let mut map = write(self.shard(handle));
        let file = map.remove(&handle);
        if map.capacity() > 256 && map.len() < map.capacity() / 4 {
            let capacity = map.len() * 2;
            map.shrink_to(capacity);
        }
        file
    }

    /// All that are open.
    pub(crate) fn all(&self) -> Vec<(Handle, Arc<OpenFile>)> {
        let mut all = Vec::with_capacity(self.len());
        for shard in &self.shards {
            all.extend(read(&shard.0).iter().map(|(&handle, file)| (handle, Arc::clone(file))));
        }
        all
    }

    /// The number that the next one gets.
    pub(crate) fn next(&self) -> Handle {
        self.next.load(Ordering::Relaxed)
    }

    /// Nobody knows a number.
    pub(crate) fn begin_anew(&self) {
        self.next.store(1, Ordering::Relaxed);
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
