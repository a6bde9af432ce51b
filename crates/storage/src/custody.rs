//! Storages that change hands: while nobody's requests run here, another process may have what is behind them.

use crate::{Description, OpenError, Storage, StorageError, VolumeStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// An opening of a volume that could be any. No volume that is open has it.
pub const OPENING_UNKNOWN: u64 = 0;

/// What can be inspected while nobody, or another process, has it open.
pub trait Look {
    /// What it is and its size in bytes, without a lock and without a write, while another process may have it.
    ///
    /// # Errors
    /// As for [`Kind::open`](crate::Kind::open).
    fn look(&self) -> Result<(Description, u64), OpenError>;

    /// What of that can be found out before a process gives up its rights, when it has one thread.
    ///
    /// # Errors
    /// As for [`look`](Look::look).
    fn look_before(&self) -> Result<(), OpenError> {
        self.look().map(drop)
    }

    /// Closes what this host has had open, in that [opening](crate::VolumeControl::opening), and could not close. Does nothing where
    /// somebody else has gone on with it. An attempt that fails may be another opening, which is noted: [`OPENING_UNKNOWN`] if it cannot be told.
    ///
    /// # Errors
    /// As for [`Kind::open`](crate::Kind::open), also where somebody who only looks has it locked; and what could not be written.
    fn close_left(&self, _opening: &AtomicU64) -> Result<(), OpenError> {
        Ok(())
    }

    /// What can be said of a volume, or of a log in front of an image, before anybody has it. `None`: it is neither.
    fn volume(&self) -> Option<VolumeStatus> {
        None
    }
}

/// Who has what is behind a storage. Requests go to what [`take`](Custody::take) answers with, and never to the storage itself.
///
/// The calls block, for as long as opening, flushing and closing take: not for a worker.
pub trait Custody: Send + Sync {
    /// Takes it for this process, as somebody else has left it; changes nothing where this process has it. Whoever has it, or I/O that a
    /// killed process has left, is waited for, as long as `is_wanted` says so.
    ///
    /// # Errors
    /// Somebody else has it still after a while, it cannot be opened, or it has become smaller.
    fn take(&self, is_wanted: &dyn Fn() -> bool) -> Result<Arc<dyn Storage>, OpenError>;

    /// Brings everything to stable storage and gives it up: whether this process had it. A volume is written back for as long as `patience`
    /// at most. Whoever calls has ended what he had under way,
    /// and has workers let go of files then ([`engine::Engine::sweep_files`]).
    ///
    /// # Errors
    /// Something is under way, or cannot be brought to stable storage: this process keeps it, so that nobody goes on with less. What
    /// could not be brought there once is not tried again: kernels tell of it once. Or a volume is not closed in order yet, which goes on: this
    /// waits for that the next time, and begins it anew where it has failed.
    fn give_up(&self, patience: Duration) -> Result<bool, StorageError>;

    /// What requests go to while this process has it. Whoever gets it keeps it from being given up.
    fn held(&self) -> Option<Arc<dyn Storage>>;

    /// Whether this process has it, or has not closed it in order yet.
    fn is_held(&self) -> bool;

    /// Whether [`Custody::give_up`] has something to do, or to tell.
    fn is_to_be_given_up(&self) -> bool {
        self.is_held()
    }

    /// Whether it is being taken or given up.
    fn is_changing(&self) -> bool;

    /// Whether anybody else than the storage uses what is behind it.
    fn is_used(&self) -> bool;
}
