//! The nodes of a BATCH_FORGET.

use super::wire::le64;

/// Bytes of `fuse_forget_one`.
pub(super) const FORGET_ONE_BYTES: usize = 16;

/// References to drop, as they stand in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a> {
    raw: &'a [u8],
}

impl<'a> Forgets<'a> {
    /// `raw` is a whole number of `fuse_forget_one`.
    pub(super) fn new(raw: &'a [u8]) -> Forgets<'a> {
        Forgets { raw }
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.raw.len() / FORGET_ONE_BYTES
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Each node with the number of its references to drop.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + use<'a> {
        let (nodes, _) = self.raw.as_chunks::<FORGET_ONE_BYTES>();
        nodes.iter().map(|one| (le64::<0, _>(one), le64::<8, _>(one)))
    }
}
