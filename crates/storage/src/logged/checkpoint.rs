//! The superblock of an open volume, and the one way in which it changes.

use super::blocking::StorageBlocks;
use crate::Storage;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use volume::format::{FormatError, Superblock, write_superblock};

/// How often a write of the superblock is tried before that is an error.
const ATTEMPTS: u32 = 4;

/// The superblock as the storage has it. The write-back thread changes it with each checkpoint, whoever resizes the volume
/// now and then.
pub(super) struct Checkpoints {
    superblock: Mutex<Superblock>,
    lower: Arc<dyn Storage>,
    /// Whether a superblock is durable before it counts.
    barrier: bool,
}

impl Checkpoints {
    /// `superblock` is what `lower` begins with.
    pub(super) fn new(superblock: Superblock, lower: Arc<dyn Storage>, barrier: bool) -> Checkpoints {
        Checkpoints { superblock: Mutex::new(superblock), lower, barrier }
    }

    /// A way to the storage for the calling thread, to be used again and again there.
    ///
    /// # Errors
    /// The kernel's refusal of an io_uring.
    pub(super) fn way(&self) -> io::Result<StorageBlocks> {
        let mut way = StorageBlocks::new(self.lower.clone())?;
        way.try_often(ATTEMPTS);
        if !self.barrier {
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
        Checkpoints::write(way, &mut self.lock(), change)
    }

    /// As [`change`](Self::change), for who holds the lock.
    pub(super) fn write(
        way: &mut StorageBlocks,
        superblock: &mut Superblock,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), FormatError> {
        let mut next = superblock.clone();
        change(&mut next);
        write_superblock(way, &mut next)?;
        *superblock = next;
        Ok(())
    }
}
