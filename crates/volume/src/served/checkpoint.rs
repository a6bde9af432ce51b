//! The superblock of an open volume, and the one way in which it changes.

use super::blocking::StorageBlocks;
use super::shared::Shared;
use crate::format::{FormatError, Superblock, write_superblock};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often a superblock is tried to be made durable before that is an error.
const ATTEMPTS: u32 = 4;

/// The superblock as the storage has it. The write-back thread changes it with each checkpoint, whoever resizes the volume
/// now and then.
pub(super) struct Checkpoints {
    superblock: Mutex<Superblock>,
    shared: Arc<Shared>,
}

impl Checkpoints {
    /// `superblock` is what the storage of the data begins with, or that of the log where the disk is apart.
    pub(super) fn new(superblock: Superblock, shared: Arc<Shared>) -> Checkpoints {
        Checkpoints { superblock: Mutex::new(superblock), shared }
    }

    /// A way to the storage for the calling thread, to be used again and again there.
    ///
    /// # Errors
    /// The kernel's refusal of an io_uring.
    pub(super) fn way(&self) -> io::Result<StorageBlocks> {
        let mut way = StorageBlocks::new(self.shared.home.clone())?;
        way.try_often(ATTEMPTS);
        // Whether a superblock is durable before it counts.
        if !self.shared.barriers.checkpoint {
            way.without_barriers();
        }
        Ok(way)
    }

    /// Keeps everybody else from changing it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Superblock> {
        self.superblock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a changed superblock durable.
    ///
    /// # Errors
    /// What the storage says; then the one before may count or this one.
    pub(super) fn change(
        &self,
        way: &mut StorageBlocks,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), FormatError> {
        self.write(way, &mut self.lock(), change)
    }

    /// As [`change`](Self::change), for who holds the lock.
    pub(super) fn write(
        &self,
        way: &mut StorageBlocks,
        superblock: &mut Superblock,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), FormatError> {
        let mut changed = superblock.clone();
        change(&mut changed);
        for attempt in 1.. {
            // Write and flush together, from the beginning: a flush that is repeated alone may tell of nothing that is lost.
            let before = self.shared.told_beside.load(Ordering::SeqCst);
            let mut next = changed.clone();
            let written = write_superblock(way, &mut next);
            // What a page cache has lost it tells whoever asks first: that may have been a log write, or this one.
            let told_elsewhere = self.shared.told_beside.load(Ordering::SeqCst) != before;
            if written.is_err() {
                self.shared.flush_failed(&self.shared.home);
                self.shared.told_beside();
            }
            match written {
                Ok(()) if !told_elsewhere => {
                    *superblock = next;
                    self.shared.cache.note_generation(superblock.generation);
                    break;
                }
                _ if attempt < ATTEMPTS => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    let source = io::Error::from_raw_os_error(libc::EIO);
                    return Err(FormatError::Io { what: "flush the superblock", offset: next.slot_offset(), source });
                }
            }
        }
        Ok(())
    }
}
