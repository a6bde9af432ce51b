//! Where a disk has data, for clients that ask (NBD protocol, "Metadata contexts", under `base:allocation`).

use super::handshake::ALLOCATION;
use device::nbd::{spec::state, status_chunk};
use engine::{Io, Token};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use storage::{Action, Extent, Storage, StorageError, kit::run_blocking};

/// Extents of one reply at most: who has asked for more asks again.
const EXTENTS_MAX: usize = 2048;

/// A question to a storage, asked on a thread of its own.
pub(super) struct Asked(Arc<OnceLock<Result<Vec<Extent>, StorageError>>>);

impl Asked {
    /// Asks where `range` has data, in `one` extent or many; `token` completes with the answer.
    pub(super) fn begin(
        storage: &Arc<dyn Storage>,
        range: Range<u64>,
        one: bool,
        token: Token,
        io: &mut Io<'_>,
    ) -> Asked {
        let place = Arc::new(OnceLock::new());
        let (storage, answer) = (storage.clone(), place.clone());
        run_blocking(io, token, move || {
            let most = if one { 1 } else { EXTENTS_MAX };
            // Nothing else can have been put there.
            let _first = answer.set(storage.extents(range, most));
            // Whoever has the answer may close the storage, and finds it unused.
            drop(storage);
            0
        });
        Asked(place)
    }

    /// What the storage has said. There is nothing when its thread panicked.
    pub(super) fn answer(self) -> Result<Vec<Extent>, StorageError> {
        let answer = Arc::into_inner(self.0).and_then(OnceLock::into_inner);
        answer.unwrap_or_else(|| Err(StorageError::errno(Action::Look, libc::EIO)))
    }
}

/// The reply that has these extents.
pub(super) fn reply(cookie: u64, extents: &[Extent]) -> Vec<u8> {
    let flags = |extent: &Extent| if extent.data { 0 } else { state::HOLE | state::ZERO };
    // None is longer than the request, whose length has 32 bits.
    let extents: Vec<_> = extents.iter().map(|extent| (extent.bytes as u32, flags(extent))).collect();
    let mut out = Vec::new();
    status_chunk(&mut out, cookie, ALLOCATION, &extents);
    out
}
