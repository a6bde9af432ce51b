//! What a guest has mapped into the DAX window, and taken out of it.

use super::wire::le64;

/// Bytes of `fuse_removemapping_one`.
pub(super) const REMOVE_ONE_BYTES: usize = 16;

/// SETUPMAPPING. Neither length nor offset in the window is checked: what goes is the window's to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetupMapping {
    /// First byte of the file, at most `i64::MAX`.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The guest is going to write.
    pub writable: bool,
    /// First byte in the window.
    pub window_offset: u64,
}

/// The parts of the window of a REMOVEMAPPING, as they stand in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoveMappings<'a> {
    raw: &'a [u8],
}

impl<'a> RemoveMappings<'a> {
    /// `raw` is a whole number of `fuse_removemapping_one`.
    pub(super) fn new(raw: &'a [u8]) -> RemoveMappings<'a> {
        RemoveMappings { raw }
    }

    /// Each part: its first byte in the window, and its length in bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + use<'a> {
        let (parts, _) = self.raw.as_chunks::<REMOVE_ONE_BYTES>();
        parts.iter().map(|one| (le64::<0, _>(one), le64::<8, _>(one)))
    }
}
