//! A volume that was open here and could not be closed in order.

use super::epoch::EPOCH_STEP_MIN;
use super::error::VolumeError;
use super::open::{OpenedVolume, VolumeOptions, whole_superblock};
use crate::format::Superblock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use storage::{OPENING_UNKNOWN, OpenError};

/// How long is waited for somebody who only looks, and locks it for that.
const LOCKED_PATIENCE: Duration = Duration::from_millis(500);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// See [`storage::Look::close_left`].
pub(super) fn close(options: &VolumeOptions, opening: &AtomicU64) -> Result<(), OpenError> {
    let by = Instant::now() + LOCKED_PATIENCE;
    loop {
        let superblock = superblock(options)?;
        if superblock.clean {
            return Ok(());
        }
        let why = match OpenedVolume::new(options) {
            Ok(volume) => return Ok(close_again(volume, options, opening)?),
            Err(why @ (VolumeError::NotGivenUp { .. } | VolumeError::Open(OpenError::Locked { .. }))) => why,
            Err(why) => return Err(why.into()),
        };
        // Whoever has it locked has gone on with it, or only looks.
        if !is_of(&superblock, opening) {
            return Ok(());
        }
        if Instant::now() >= by {
            return Err(why.into());
        }
        sleep(LOOK_AGAIN_AFTER);
    }
}

fn superblock(options: &VolumeOptions) -> Result<Superblock, OpenError> {
    Ok(whole_superblock(&options.path, &options.reader(&options.path)?)?)
}

/// Whether that opening was the last to serve it. Recoveries count the epoch up by less than an opening does.
fn is_of(superblock: &Superblock, opening: &AtomicU64) -> bool {
    let opening = opening.load(Ordering::Relaxed);
    opening == OPENING_UNKNOWN || (opening..opening.saturating_add(EPOCH_STEP_MIN)).contains(&superblock.epoch)
}

/// Closes it, or notes the opening that it is left in.
pub(super) fn close_again(
    volume: OpenedVolume,
    options: &VolumeOptions,
    opening: &AtomicU64,
) -> Result<(), VolumeError> {
    // Nobody else goes on with it before that is seen: its files have the locks.
    let (data, _log) = volume.files();
    let closed = volume.start().and_then(|volume| volume.close());
    if closed.is_err() {
        let superblock = whole_superblock(&options.path, &data);
        opening.store(superblock.map_or(OPENING_UNKNOWN, |superblock| superblock.epoch), Ordering::Relaxed);
    }
    closed
}
