//! Closes a volume that is given up, on a thread of its own: what is written last is bounded by nothing else.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;
use storage::{Action, Storage, StorageError, VolumeControl};

/// The name of a thread that closes a disk; it is there for no longer.
pub const CLOSE_THREAD: &str = "disk-close";

/// What a thread says that closes a volume.
pub(super) type End = Receiver<Result<(), StorageError>>;

/// The end of a close that went well.
pub(super) fn ended_well() -> End {
    let (sender, end) = channel();
    let _ = sender.send(Ok(()));
    end
}

pub(super) fn writing(source: io::Error) -> StorageError {
    StorageError::Io { action: Action::Write, source }
}

pub(super) fn unclosed(kind: io::ErrorKind, why: &str) -> StorageError {
    writing(io::Error::new(kind, why.to_owned()))
}

pub(super) fn close(volume: Arc<dyn Storage>) -> Result<(), StorageError> {
    let closed = volume.volume().map_or(Ok(()), VolumeControl::close);
    // Its locks go with it.
    drop(volume);
    closed
}

/// Has a thread close a volume, which is left to that: what is written last is bounded by nothing else. The volume's locks are held until it
/// has ended. Behind `by` nobody need wait, so that it says itself how that went.
pub(super) fn closing_by(
    target: String,
    by: Instant,
    is_unclosed: Arc<AtomicBool>,
    close: impl FnOnce() -> Result<(), StorageError> + Send + 'static,
) -> Result<End, StorageError> {
    let (sender, end) = channel();
    let close = move || {
        let closed = close().map_err(|error| {
            unclosed(
                io::ErrorKind::Other,
                &format!(
                    "it is not closed in order: {error}; that is tried again while no guest runs, and `vringd volume replay` closes it when \
                     this daemon has ended"
                ),
            )
        });
        is_unclosed.store(closed.is_err(), Ordering::Release);
        let is_late = Instant::now() >= by;
        match &closed {
            Err(error) if is_late => {
                tracing::error!(path = target, %error, "the volume cannot be taken by another daemon");
            }
            Ok(()) if is_late => tracing::info!(path = target, "the volume is closed at last"),
            _ => {}
        }
        // Nobody may wait for it any more.
        let _ = sender.send(closed);
    };
    std::thread::Builder::new().name(CLOSE_THREAD.to_owned()).spawn(close).map_err(writing)?;
    Ok(end)
}
