//! What all tasks of an image share.

use super::allocator::{Allocator, Returns};
use super::bitmaps::Bitmaps;
use super::chain::Chain;
use super::error::Trouble;
use super::mark;
use super::refcounts::{patch_header, set_incompatible};
use crate::claims::{Claims, Waiter};
use crate::epochs::Epochs;
use crate::{features, header};
use engine::Reply;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use storage::kit::{Jobs, Threads};

/// Metadata, copies on write, decompression: each is short.
pub(super) static METADATA: Threads = Threads::new(
    "qcow2",
    4,
    "metadata of qcow2 images is read and written on the workers and may delay other requests",
);

/// The same of an image over one that is open itself, whose threads these wait for.
static IN_FRONT: Threads = Threads::new(
    "qcow2-front",
    4,
    "metadata of qcow2 images that are committed is read and written on the workers and may delay other requests",
);

/// Reasons for which an image is not written any more.
const MARKED: &str = "its image is damaged and was marked as corrupt; repair it with `qemu-img check -r all`";
const MARKED_BEHIND_LOG: &str = "its image is damaged and was marked as corrupt; stop the daemon, then `vringd image log forget`, `qemu-img check -r all`, and `vringd image log replay --repaired` bring what its log has into the repaired image";
const APART: &str = "metadata of its image could not be written; see to its storage, and open it again";

/// Why an image that is marked as corrupt is not written any more. No tool repairs one as long as it says that its log has more.
fn marked(is_behind_log: bool) -> &'static str {
    if is_behind_log { MARKED_BEHIND_LOG } else { MARKED }
}

/// A task in line for clusters.
pub(super) struct InLine(pub(super) Reply);

impl Waiter for InLine {
    fn admit(self) {
        self.0.complete(0);
    }

    fn refuse(self) {
        self.0.complete(-libc::EIO);
    }
}

/// See [`Chain::flush`].
const UNFLUSHED: &str =
    "a flush of the image has failed and what was written may be lost: see to what it lies on, and open it again";

/// See the top.
pub(super) struct Shared {
    pub(super) chain: Chain,
    pub(super) epochs: Arc<Epochs>,
    pub(super) claims: Claims<InLine>,
    pub(super) returns: Arc<Returns>,
    /// None of an image that is only read.
    pub(super) bitmaps: Bitmaps,
    /// None of an image that is only read. It is held over I/O: a worker only tries to take it.
    allocator: Option<Mutex<Allocator>>,
    /// What no worker waits for.
    pub(super) jobs: Jobs,
    /// Changes of tables that were written.
    changes: AtomicU64,
    /// Of these, how many are on stable storage.
    flushed: AtomicU64,
    /// The features that a writer has to clear are cleared, and the files have all clusters of which they have a part.
    cleared: AtomicBool,
    /// Why nothing is written any more.
    broken: OnceLock<&'static str>,
    /// Metadata is read and written by whoever needs it: its file is memory, or calls are to run on the worker.
    pub(super) on_the_spot: AtomicBool,
    /// What holds up nothing but what it is held for: making the image ready, and a change of the size.
    header: Mutex<()>,
    /// Held by whoever frees clusters, over I/O, before the allocator is asked for.
    pub(super) settling: Mutex<()>,
    /// Another storage has the image now.
    given_away: AtomicBool,
}

impl Shared {
    pub(super) fn new(chain: Chain, allocator: Option<Allocator>, bitmaps: Bitmaps, on_the_spot: bool) -> Shared {
        let header = &chain.top().header;
        let kept = header.autoclear_kept() | if bitmaps.are_kept() { features::BITMAPS } else { 0 };
        let cleared = header.autoclear == kept && chain.short().is_empty() && !bitmaps.must_hold();
        let broken = OnceLock::new();
        if header.has(features::CORRUPT) && allocator.is_some() {
            // Only what was marked while it was served gets here.
            let _ = broken.set(marked(header.has(features::LOGGED)));
        }
        let epochs = Arc::new(Epochs::default());
        let threads = if chain.is_over_image() { &IN_FRONT } else { &METADATA };
        threads.prepare();
        Shared {
            chain,
            returns: Returns::new(epochs.clone()),
            bitmaps,
            epochs,
            claims: Claims::default(),
            allocator: allocator.map(Mutex::new),
            jobs: Jobs::on(threads),
            changes: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            cleared: AtomicBool::new(cleared),
            broken,
            on_the_spot: AtomicBool::new(on_the_spot),
            header: Mutex::new(()),
            settling: Mutex::new(()),
            given_away: AtomicBool::new(false),
        }
    }

    pub(super) fn read_only(&self) -> bool {
        self.allocator.is_none()
    }

    /// Waits for whoever has it, who may wait for a disk. Not for a worker.
    ///
    /// # Errors
    /// The image is only read.
    pub(super) fn allocator(&self) -> Result<MutexGuard<'_, Allocator>, Trouble> {
        let allocator = self.allocator.as_ref().ok_or(Trouble::Errno(libc::EROFS))?;
        let mut allocator = allocator.lock().unwrap_or_else(PoisonError::into_inner);
        allocator.take_up(&self.returns);
        Ok(allocator)
    }

    /// As above, if nobody has it now.
    pub(super) fn try_allocator(&self) -> Option<MutexGuard<'_, Allocator>> {
        let mut allocator = match self.allocator.as_ref()?.try_lock() {
            Ok(allocator) => allocator,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        allocator.take_up(&self.returns);
        Some(allocator)
    }

    pub(super) fn header_lock(&self) -> MutexGuard<'_, ()> {
        self.header.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken().is_some()
    }

    /// Why nothing is written any more, and what to do.
    pub(super) fn broken(&self) -> Option<&'static str> {
        self.broken.get().copied().or(self.chain.is_unflushed().then_some(UNFLUSHED))
    }

    /// # Errors
    /// Nothing is written any more.
    pub(super) fn check_written(&self) -> Result<(), Trouble> {
        if self.is_broken() { Err(Trouble::Errno(libc::EIO)) } else { Ok(()) }
    }

    /// Another storage has the image from now on: nothing is written here any more, not even in the end.
    pub(super) fn give_away(&self) {
        self.given_away.store(true, Ordering::SeqCst);
    }

    /// Nothing came of that.
    pub(super) fn take_back(&self) {
        self.given_away.store(false, Ordering::SeqCst);
    }

    pub(super) fn is_given_away(&self) -> bool {
        self.given_away.load(Ordering::SeqCst)
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Counts a change that was written and is about to be looked up; gives its number.
    pub(super) fn changed(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The first `changes` changes are on stable storage.
    pub(super) fn has_flushed(&self, changes: u64) {
        if !self.chain.is_unflushed() {
            self.flushed.fetch_max(changes, Ordering::SeqCst);
        }
    }

    pub(super) fn flushed(&self) -> u64 {
        self.flushed.load(Ordering::SeqCst)
    }

    /// Whether a writer still has to make the image ready.
    #[inline]
    pub(super) fn must_clear(&self) -> bool {
        !self.cleared.load(Ordering::Acquire)
    }

    /// Makes the image ready for its first change. Blocks.
    pub(super) fn make_ready(&self) -> Result<(), Trouble> {
        let _one_at_a_time = self.header_lock();
        self.make_ready_locked()
    }

    /// As above, by whoever has the header's lock.
    pub(super) fn make_ready_locked(&self) -> Result<(), Trouble> {
        if !self.must_clear() {
            return Ok(());
        }
        self.complete()?;
        self.bitmaps.hold(&self.chain)?;
        self.clear_features(0)?;
        self.cleared.store(true, Ordering::Release);
        Ok(())
    }

    /// As [`make_ready`](Self::make_ready), for what changes nothing that these autoclear features speak of.
    pub(super) fn make_ready_but_for(&self, features: u64) -> Result<(), Trouble> {
        let _one_at_a_time = self.header_lock();
        self.complete()?;
        self.clear_features(features)
    }

    /// Has files reach to the end of their last clusters.
    fn complete(&self) -> Result<(), Trouble> {
        for (number, bytes) in self.chain.short() {
            self.chain.file(number).resize(bytes).map_err(|error| {
                tracing::error!(%error, "the last cluster of an image cannot be completed");
                Trouble::Errno(error.raw_errno())
            })?;
        }
        Ok(())
    }

    /// Clears the autoclear features that are not known or not maintained (specification: "autoclear_features"), but for `also_kept`.
    fn clear_features(&self, also_kept: u64) -> Result<(), Trouble> {
        let top = self.chain.top();
        let had = top.header.autoclear;
        let also_kept = also_kept | if self.bitmaps.are_kept() { features::BITMAPS } else { 0 };
        let kept = top.header.autoclear_kept() | had & also_kept;
        if had == kept {
            return Ok(());
        }
        patch_header(&self.chain, header::at::AUTOCLEAR, &kept.to_be_bytes())?;
        self.chain.flush(top.file)?;
        if had & !kept & features::BITMAPS != 0 {
            tracing::warn!(path = %top.path.display(), "its dirty bitmaps are not maintained, and invalid from now on");
        }
        Ok(())
    }

    /// What a trouble is to a guest. An image whose own metadata is wrong is marked and not written any more. Blocks.
    pub(super) fn settle_trouble(&self, trouble: &Trouble) -> i32 {
        let (number, error) = match trouble {
            Trouble::Errno(errno) => return *errno,
            Trouble::Grown => return libc::EIO,
            Trouble::Apart(errno) => {
                if self.broken.set(APART).is_ok() {
                    let (path, error) = (self.chain.top().path.display(), std::io::Error::from_raw_os_error(*errno));
                    tracing::error!(%path, %error, "metadata could not be written: the image is not written any more until it is opened again");
                }
                return *errno;
            }
            Trouble::Format(number, error) => (*number, error),
        };
        let path = self.chain.images[number].path.display();
        if number != 0 || self.read_only() {
            tracing::error!(%path, %error, "the image is damaged");
            return libc::EIO;
        }
        if self.broken.get().is_some() {
            return libc::EIO;
        }
        // The header of the chain is of the time before its log was there.
        let reason = marked(matches!(mark::of(&self.chain), Ok(Some(_))));
        if self.broken.set(reason).is_ok() {
            tracing::error!(%path, %error, "an image is not written any more: {reason}");
            if self.chain.top().header.version >= 3
                && let Err(trouble) = set_incompatible(&self.chain, features::CORRUPT)
            {
                tracing::error!(%path, ?trouble, "it cannot be marked as corrupt");
            }
        }
        libc::EIO
    }

    /// Writes back what dirty bitmaps say. Nothing is in flight, and the image is ready for the next change only once they are in use
    /// again. Blocks.
    pub(super) fn write_bitmaps_back(&self) -> Result<(), Trouble> {
        if self.read_only() {
            return Ok(());
        }
        let _one_at_a_time = self.header_lock();
        let written = self.bitmaps.write_back(self);
        if self.bitmaps.must_hold() {
            self.cleared.store(false, Ordering::Release);
        }
        written
    }

    /// Brings everything to stable storage and gives back what is not used. Blocks.
    pub(super) fn quiesce(&self) -> Result<(), Trouble> {
        if self.read_only() {
            return Ok(());
        }
        let top = self.chain.top();
        let changes = self.changes();
        if top.data != top.file {
            self.chain.flush(top.data)?;
        }
        self.chain.flush(top.file)?;
        self.has_flushed(changes);
        if !self.is_broken() {
            // What is under way goes on, and what it may use stays.
            self.epochs.advance();
            self.settle()?;
            self.allocator()?.close(&self.chain)?;
            self.chain.flush(top.file)?;
        }
        Ok(())
    }
}
