//! An image that somebody else may have is opened as soon as it can be had.

use super::{LOOK_AGAIN_AFTER, TAKE_PATIENCE, written};
use crate::StorageSpec;
use rbd::RbdError;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Instant;
use storage::kit::{Holders, forget_cached, has_left_io};
use storage::{OpenError, Opened, Storage};
use volume::VolumeError;

fn start(opened: Opened, begun: &mut bool) -> Result<Arc<dyn Storage>, OpenError> {
    *begun = true;
    opened.start()
}

fn not_given_up(why: &OpenError) -> Option<PathBuf> {
    let OpenError::Other(why) = why else { return None };
    match (why.downcast_ref(), why.downcast_ref()) {
        (Some(VolumeError::NotGivenUp { path }), _) => Some(path.clone()),
        (_, Some(RbdError::Locked { spec, .. })) => Some(spec.into()),
        _ => None,
    }
}

/// Opens it, as soon as the other side has given it up. `begun` is set when something may have been written.
pub(super) fn opened(
    spec: &StorageSpec,
    begun: &mut bool,
    is_wanted: &dyn Fn() -> bool,
) -> Result<Arc<dyn Storage>, OpenError> {
    let (end, seconds) = (Instant::now() + TAKE_PATIENCE, TAKE_PATIENCE.as_secs());
    let mut is_read = true;
    loop {
        // What is locked before it is read need not be forgotten again.
        if std::mem::take(&mut is_read) {
            written(spec).try_for_each(|path| forget_cached(&path))?;
        }
        // Whoever opens it would wait for that, and not look whether anybody wants it still.
        let late = written(spec).find(|path| has_left_io(path));
        let (path, why) = match late {
            Some(path) => (path.clone(), OpenError::Late { path, seconds }),
            None => match (**spec).open().and_then(|opened| start(opened, begun)) {
                Err(OpenError::Locked { path, held, holders }) => {
                    (path.clone(), OpenError::Kept { path, held, holders, seconds })
                }
                Err(OpenError::Busy { path }) => {
                    (path.clone(), OpenError::Kept { path, held: "the device", holders: Holders::Unknown, seconds })
                }
                Err(why) => {
                    // Locks of files do not tell of another host, which may be closing it.
                    let Some(path) = not_given_up(&why) else { return Err(why) };
                    is_read = true;
                    (path, why)
                }
                opened => return opened,
            },
        };
        if Instant::now() >= end {
            return Err(why);
        }
        if !is_wanted() {
            return Err(OpenError::Unwanted { path });
        }
        sleep(LOOK_AGAIN_AFTER);
    }
}
