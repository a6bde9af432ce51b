//! Small reads of an open file from a mapping of it, without a system call (`docs/decisions/0008`).
//!
//! `pread(2)` looks at the size of the file, takes hold of the pages, and copies what lies below the size. A look at the size
//! is a system call too, and what is mapped cannot be held. So only what lies within whole pages of the file is copied here,
//! and that it does is seen from the last byte of the last page: the kernel keeps zeros behind the end of a file in its last
//! page, and takes away the pages behind that one. A page below the size at the last look that does not end in a zero byte,
//! before the copy and after it, is still below the size, or was cut off and written anew in between. Every other read is
//! left to a call: at the end of the file, of pages that end in zero, of pages that are gone.

mod map;

use map::Map;
pub(crate) use map::Windows;
use sigbus::Gone;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Bytes of the longest read from a mapping. In longer ones the copy is nearly all of the work, and while their pages are
/// not in memory a call fetches them together, a mapping one by one.
const READ_MAX: usize = 16 << 10;
/// Small reads of a file by a call before it is mapped, and between two attempts: most files are never read so often, and
/// a mapping costs as much as some of them.
const CALLS_MIN: u32 = 64;
/// The same, when attempts fail again and again.
const CALLS_MAX: u32 = 1024;
/// Attempts that fail within this time of each other, in nanoseconds, become rarer.
const SOON_NS: u64 = 100_000_000;
/// So often, in nanoseconds, one read is a call all the same: a mapping leaves the time of the last access alone, and
/// nobody who watches a file hears of it.
const CALL_EVERY_NS: u64 = 1_000_000_000;
/// A copy that took longer, in nanoseconds, has waited: for a processor, or for a disk, which a call does better.
const WAITED_NS: u64 = 30_000;
/// Two that waited within this time of each other, in nanoseconds, have waited for a disk: a processor that is taken away is
/// not given back and taken again so soon.
const AGAIN_NS: u64 = 500_000;
/// Reads behind what is known of the file between two looks at its size: it may have grown.
const LOOK_EVERY: u32 = 16;
/// Bytes of address space for growth, at most; below, a file may double before it needs another mapping.
const GROWTH_MAX: u64 = 64 << 20;
/// Mappings of one file as it grows. The older ones stay: somebody may be copying from them.
const GENERATIONS: usize = 4;

/// Decides for one open file which reads come from a mapping, and makes it. Any number of threads may read at once; what they
/// learn at the same time may get lost, and is learned again.
#[derive(Debug)]
pub(crate) struct Reader {
    windows: Arc<Windows>,
    /// Reading a hole through a mapping takes memory for it (tmpfs), which a call does not.
    fills_holes: bool,
    /// So many reads are calls before the next attempt.
    calls: AtomicU32,
    /// What `calls` was set to last.
    pause: AtomicU32,
    /// When an attempt failed last.
    failed_ns: AtomicU64,
    /// When the last copy that waited ended.
    waited_ns: AtomicU64,
    /// When a read was a call last.
    called_ns: AtomicU64,
    /// The file had at least this many bytes at the last look, and they are mapped. Whole pages.
    whole: AtomicU64,
    /// So many reads behind that are calls before the next look.
    blind: AtomicU32,
    maps: OnceLock<Box<[OnceLock<Map>; GENERATIONS]>>,
}

impl Reader {
    pub(crate) fn new(windows: Arc<Windows>, fills_holes: bool) -> Reader {
        Reader {
            windows,
            fills_holes,
            calls: AtomicU32::new(CALLS_MIN),
            pause: AtomicU32::new(CALLS_MIN),
            failed_ns: AtomicU64::new(0),
            waited_ns: AtomicU64::new(0),
            called_ns: AtomicU64::new(0),
            whole: AtomicU64::new(0),
            blind: AtomicU32::new(0),
            maps: OnceLock::new(),
        }
    }

    /// Reads from `offset` on until the pieces are full, and answers how many bytes that were. `None` when it has to be done
    /// by a call.
    ///
    /// # Safety
    /// The pieces are memory that may be overwritten, which no reference relies on and which stays what it is meanwhile.
    #[inline]
    pub(crate) unsafe fn read(
        &self,
        file: BorrowedFd<'_>,
        into: &[libc::iovec],
        offset: u64,
        now_ns: u64,
    ) -> Option<usize> {
        let wanted = into.iter().fold(0_usize, |all, piece| all.saturating_add(piece.iov_len));
        if !(1..=READ_MAX).contains(&wanted) || self.is_for_a_call(now_ns) {
            return None;
        }
        // SAFETY: the caller's promise.
        match unsafe { self.copy(file, into, offset, wanted) } {
            Ok(copied) => copied.then_some(wanted),
            Err(Gone) => {
                self.fail(now_ns);
                None
            }
        }
    }

    /// A read that [`Reader::read`] answered at `now_ns` took this long, in nanoseconds.
    #[inline]
    pub(crate) fn took(&self, ns: u64, bytes: usize, now_ns: u64) {
        if ns > WAITED_NS + bytes as u64 / 4 {
            self.waited(now_ns, now_ns.saturating_add(ns));
        }
    }

    /// The client has changed the size of the file, or has made holes.
    pub(crate) fn forget_size(&self) {
        self.blind.store(0, Relaxed);
        self.whole.store(0, Relaxed);
    }

    #[inline]
    fn is_for_a_call(&self, now_ns: u64) -> bool {
        let calls = self.calls.load(Relaxed);
        if calls > 0 {
            self.calls.store(calls - 1, Relaxed);
        } else if now_ns.saturating_sub(self.called_ns.load(Relaxed)) < CALL_EVERY_NS {
            return false;
        }
        self.called_ns.store(now_ns, Relaxed);
        true
    }

    #[cold]
    fn waited(&self, from_ns: u64, to_ns: u64) {
        if from_ns.saturating_sub(self.waited_ns.swap(to_ns, Relaxed)) < AGAIN_NS {
            self.fail(to_ns);
        }
    }

    #[cold]
    fn fail(&self, now_ns: u64) {
        let soon = now_ns.saturating_sub(self.failed_ns.swap(now_ns, Relaxed)) < SOON_NS;
        let pause = if soon { (self.pause.load(Relaxed) * 2).min(CALLS_MAX) } else { CALLS_MIN };
        self.forget_size();
        self.pause.store(pause, Relaxed);
        self.calls.store(pause, Relaxed);
    }

    /// The newest mapping, which is the longest.
    #[inline]
    fn map(&self) -> Option<&Map> {
        self.maps.get()?.iter().rev().find_map(OnceLock::get)
    }

    /// Copies what was asked for. `false` when this read has to be a call, and the next one need not be.
    ///
    /// # Errors
    /// [`Gone`] when this file cannot be read so at the moment.
    ///
    /// # Safety
    /// As [`Reader::read`].
    #[inline]
    unsafe fn copy(
        &self,
        file: BorrowedFd<'_>,
        into: &[libc::iovec],
        offset: u64,
        wanted: usize,
    ) -> Result<bool, Gone> {
        let end = offset.checked_add(wanted as u64).ok_or(Gone)?;
        let page_end = end.checked_next_multiple_of(self.windows.page).ok_or(Gone)?;
        if page_end > self.whole.load(Relaxed) && !(self.may_look() && page_end <= self.look(file)?) {
            return Ok(false);
        }
        // A thread that saw the size first may not see the mapping yet that came with it.
        let Some(map) = self.map().filter(|map| page_end <= map.len()) else {
            return Ok(false);
        };
        if map.byte(page_end - 1)? == 0 {
            return Ok(false);
        }
        // SAFETY: the caller's promise.
        unsafe { map.copy(into, offset, wanted)? };
        Ok(map.byte(page_end - 1)? != 0)
    }

    #[inline]
    fn may_look(&self) -> bool {
        let blind = self.blind.load(Relaxed);
        self.blind.store(blind.saturating_sub(1), Relaxed);
        blind == 0
    }

    /// Looks at the size of the file, and maps it when it was not or has outgrown that. Answers how many bytes of it there
    /// are and are mapped, in whole pages.
    #[cold]
    fn look(&self, file: BorrowedFd<'_>) -> Result<u64, Gone> {
        let stat = rustix::fs::fstat(file).map_err(|_| Gone)?;
        let size = u64::try_from(stat.st_size).map_err(|_| Gone)?;
        let in_memory = u64::try_from(stat.st_blocks).map_err(|_| Gone)?.saturating_mul(512);
        if self.fills_holes && in_memory < size {
            return Err(Gone);
        }
        let old = self.map().filter(|map| size <= map.len());
        let map = old.or_else(|| self.map_anew(file, size)).or_else(|| self.map()).ok_or(Gone)?;
        let whole = size.min(map.len()) / self.windows.page * self.windows.page;
        self.blind.store(LOOK_EVERY, Relaxed);
        self.whole.store(whole, Relaxed);
        Ok(whole)
    }

    fn map_anew(&self, file: BorrowedFd<'_>, size: u64) -> Option<&Map> {
        if size < self.windows.page {
            return None;
        }
        let free = self.maps.get_or_init(Box::default).iter().find(|map| map.get().is_none())?;
        let len = size.checked_add(size.min(GROWTH_MAX))?.checked_next_multiple_of(self.windows.page)?;
        // Of two threads that map at once, one keeps its mapping.
        let _ = free.set(Map::new(&self.windows, file, len)?);
        free.get()
    }
}
