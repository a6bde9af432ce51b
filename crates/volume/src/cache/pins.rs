//! Versions that somebody looks at, and that stay as they are until they are let go.

use std::sync::Arc;

use super::Cache;
use crate::SectorMask;

/// References to versions of blocks. What is pinned neither changes nor goes, even when the cache has a newer version or none.
/// Dropping the pins lets it go.
pub struct Pins {
    cache: Arc<Cache>,
    pub(super) held: Vec<Held>,
    /// Blocks whose mark was found without a version: discarded since. Their marks for the log are taken back by `evict`.
    pub(super) gone: Vec<u64>,
}

/// One reference.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub(super) block: u64,
    pub(super) slot: u32,
}

/// One pinned version.
#[derive(Clone, Copy, Debug)]
pub struct Pinned {
    /// The block's number on the guest's disk.
    pub block: u64,
    /// The sectors that the version has. The others are what the lower storage has.
    pub sectors: SectorMask,
    /// The block's 4096 bytes, at an address that is a multiple of 4096, of which those of `sectors` mean something; `None` if
    /// the version is zeroes. They may be read as long as the [`Pins`] hold the version.
    pub data: Option<*const u8>,
}

impl Pins {
    /// Room for pins of `cache`'s versions.
    pub fn new(cache: &Arc<Cache>) -> Pins {
        Pins { cache: Arc::clone(cache), held: Vec::new(), gone: Vec::new() }
    }

    /// How many versions are pinned.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether no version is pinned.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// What is pinned, in the order in which it was.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Pinned> + DoubleEndedIterator + '_ {
        self.held.iter().map(|held| Pinned {
            block: held.block,
            sectors: self.cache.slots.sectors(held.slot),
            data: self.cache.slots.data(held.slot).map(<*mut u8>::cast_const),
        })
    }

    /// Lets go of everything.
    pub fn clear(&mut self) {
        for held in self.held.drain(..) {
            self.cache.slots.release(held.slot);
        }
        self.gone.clear();
    }

    /// Whether these are pins of `cache`: a slot's number means nothing in another.
    pub(super) fn are_of(&self, cache: &Cache) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.cache), cache)
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        self.clear();
    }
}
