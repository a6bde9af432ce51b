//! Files that workers register with their io_uring, so that a request does not look its descriptor up each time.

use io_uring::types;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

static NEXT_KEY: AtomicU32 = AtomicU32::new(0);

/// A file that any worker may do I/O on. Dropping it closes the descriptor; workers that had it registered let go of it
/// at the engine's next [`sweep`](crate::Engine::sweep_files).
#[derive(Debug)]
pub struct SharedFile {
    fd: Arc<OwnedFd>,
    key: u32,
    alive: Arc<()>,
}

impl SharedFile {
    /// Takes the descriptor over, or shares it: every close of one, and not only the last, is work for some file systems.
    pub fn new(fd: impl Into<Arc<OwnedFd>>) -> Self {
        SharedFile { fd: fd.into(), key: NEXT_KEY.fetch_add(1, Ordering::Relaxed), alive: Arc::new(()) }
    }

    /// The descriptor, for whoever goes on with it.
    pub fn descriptor(&self) -> Arc<OwnedFd> {
        self.fd.clone()
    }
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What a submission reads, writes or syncs.
#[derive(Clone, Copy, Debug)]
pub enum File<'a> {
    /// A file that lives long and is registered at its first use.
    Shared(&'a SharedFile),
    /// A file that comes and goes: named by its descriptor, which must be open until the turn's submission.
    Plain(BorrowedFd<'a>),
}

impl<'a> From<&'a SharedFile> for File<'a> {
    fn from(file: &'a SharedFile) -> Self {
        File::Shared(file)
    }
}

/// Registered files a worker, at most. Further files work too, by their descriptor.
pub(crate) const FIXED_FILES_MAX: u32 = 1024;

#[derive(Debug)]
struct Slot {
    key: u32,
    alive: Weak<()>,
}

/// One worker's table of registered files: position is the io_uring index.
#[derive(Debug)]
pub(crate) struct FileTable {
    slots: Vec<Option<Slot>>,
    /// Where a file was found last, by the low bits of its key: workers with many files must not search for each request.
    recent: [u16; RECENT],
    usable: bool,
}

const RECENT: usize = 256;

/// How a submission names its file.
pub(crate) enum Target {
    Fixed(types::Fixed),
    Plain(types::Fd),
}

impl FileTable {
    pub(crate) fn new(submitter: &io_uring::Submitter<'_>) -> Self {
        FileTable {
            usable: submitter.register_files_sparse(FIXED_FILES_MAX).is_ok(),
            slots: Vec::new(),
            recent: [0; RECENT],
        }
    }

    /// One that registers nothing, for whoever lives longer than the files and would keep them open.
    pub(crate) fn empty() -> Self {
        FileTable { usable: false, slots: Vec::new(), recent: [0; RECENT] }
    }

    /// Whether files can be registered.
    pub(crate) fn is_usable(&self) -> bool {
        self.usable
    }

    /// How a submission names `file`, which is registered at first use if it lives long.
    pub(crate) fn target(&mut self, file: File<'_>, submitter: &io_uring::Submitter<'_>) -> Target {
        let file = match file {
            File::Shared(file) => file,
            File::Plain(fd) => return Target::Plain(types::Fd(fd.as_raw_fd())),
        };
        let holds = |slot: &Option<Slot>| slot.as_ref().is_some_and(|slot| slot.key == file.key);
        let recent = file.key as usize % RECENT;
        let index = self.recent[recent];
        if self.slots.get(usize::from(index)).is_some_and(holds) {
            return Target::Fixed(types::Fixed(index.into()));
        }
        let raw = file.fd.as_raw_fd();
        match self.slots.iter().position(holds).or_else(|| self.register(file, raw, submitter)) {
            Some(index) => {
                self.recent[recent] = index as u16;
                Target::Fixed(types::Fixed(index as u32))
            }
            None => Target::Plain(types::Fd(raw)),
        }
    }

    fn register(&mut self, file: &SharedFile, raw: RawFd, submitter: &io_uring::Submitter<'_>) -> Option<usize> {
        if !self.usable {
            return None;
        }
        let index = match self.slots.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.slots.len() < FIXED_FILES_MAX as usize => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return None,
        };
        submitter.register_files_update(index as u32, &[raw]).ok()?;
        self.slots[index] = Some(Slot { key: file.key, alive: Arc::downgrade(&file.alive) });
        Some(index)
    }

    /// Lets go of all of them.
    pub(crate) fn forget(&mut self, submitter: &io_uring::Submitter<'_>) {
        self.usable = false;
        self.slots.clear();
        let _ = submitter.unregister_files();
    }

    /// Lets go of files that nobody else holds, so that their locks and their space are freed.
    pub(crate) fn sweep(&mut self, submitter: &io_uring::Submitter<'_>) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let gone = slot.as_ref().is_some_and(|slot| slot.alive.strong_count() == 0);
            if gone && submitter.register_files_update(index as u32, &[-1]).is_ok() {
                *slot = None;
            }
        }
    }
}
