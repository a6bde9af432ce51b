//! The names of a walk.

use super::malformed::Reason;
use super::spec::WALK_NAMES_MAX;
use super::wire::Args;

/// Up to 16 names of at most 255 bytes each, as they stand in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// So many strings and nothing else, each of which was read once.
    raw: &'a [u8],
    len: usize,
}

impl<'a> Names<'a> {
    /// Takes all that is left of the fields, and checks every name.
    #[inline]
    pub(super) fn take(args: &mut Args<'a>, len: usize) -> Result<Names<'a>, Reason> {
        if len > WALK_NAMES_MAX {
            return Err(Reason::TooManyNames);
        }
        let raw = args.rest();
        for _ in 0..len {
            args.take_name()?;
        }
        Ok(Names { raw, len })
    }

    /// How many there are, at most 16.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none: the walk makes another fid of the same place.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One after the other.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut args = Args::new(self.raw);
        (0..self.len).map_while(move |_| args.take_name().ok())
    }
}
