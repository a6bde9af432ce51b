//! The fields of a message, from the front on.

use super::malformed::Reason;
use super::spec::{NAME_BYTES_MAX, TARGET_BYTES_MAX};
use crate::wire::le16;

/// What is left of a request's fields.
#[derive(Clone, Copy)]
pub(super) struct Args<'a> {
    rest: &'a [u8],
}

impl<'a> Args<'a> {
    #[inline]
    pub(super) fn new(rest: &'a [u8]) -> Args<'a> {
        Args { rest }
    }

    /// The next fields of a known length together.
    #[inline]
    pub(super) fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], Reason> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Reason::TooShort)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next string, of at most `max` bytes.
    #[inline]
    pub(super) fn take_string(&mut self, max: usize, too_long: Reason) -> Result<&'a [u8], Reason> {
        let len = usize::from(le16::<0, _>(self.take::<2>()?));
        let (string, rest) = self.rest.split_at_checked(len).ok_or(Reason::TooShort)?;
        if len > max {
            return Err(too_long);
        }
        if string.contains(&0) {
            return Err(Reason::NulInString);
        }
        self.rest = rest;
        Ok(string)
    }

    /// The next component of a path, or the name of a user or a client.
    #[inline]
    pub(super) fn take_name(&mut self) -> Result<&'a [u8], Reason> {
        self.take_string(NAME_BYTES_MAX, Reason::NameTooLong)
    }

    /// The next path.
    #[inline]
    pub(super) fn take_path(&mut self) -> Result<&'a [u8], Reason> {
        self.take_string(TARGET_BYTES_MAX, Reason::NameTooLong)
    }

    /// All that is left.
    #[inline]
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }

    /// Whether nothing is left.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// Most bytes of a string that is written: longer than any name or path of Linux, and so short that five of them fit into a
/// `stat`, whose size has 16 bits.
const STRING_BYTES_MAX: usize = 8192;

/// Bytes that a string takes.
#[inline]
pub(super) fn string_bytes(string: &[u8]) -> usize {
    2 + string.len().min(STRING_BYTES_MAX)
}

/// Appends a string; what is longer than any that there is gets cut off.
#[inline]
pub(super) fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    let string = string.get(..STRING_BYTES_MAX).unwrap_or(string);
    out.extend_from_slice(&(string.len() as u16).to_le_bytes());
    out.extend_from_slice(string);
}
