//! The structures of a message, from the front on.

use super::malformed::Reason;
use std::ffi::CStr;

pub(super) use crate::wire::{le16, le32, le64, put};

/// What is left of a request's arguments, from the front on.
#[derive(Clone, Copy)]
pub(super) struct Args<'a> {
    rest: &'a [u8],
}

impl<'a> Args<'a> {
    #[inline]
    pub(super) fn new(rest: &'a [u8]) -> Args<'a> {
        Args { rest }
    }

    /// The next structure.
    #[inline]
    pub(super) fn take<const N: usize>(&mut self) -> Result<&'a [u8; N], Reason> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Reason::TooShort)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next `len` bytes.
    #[inline]
    pub(super) fn take_bytes(&mut self, len: usize) -> Result<&'a [u8], Reason> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Reason::BadSize)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next string, which ends with the first NUL, at most `max` bytes long without it.
    #[inline]
    pub(super) fn take_string(&mut self, max: usize, too_long: Reason) -> Result<&'a CStr, Reason> {
        // Looking at no more than can be taken, so that a request's length does not decide what a string costs.
        let visible = &self.rest[..self.rest.len().min(max + 1)];
        let Ok(string) = CStr::from_bytes_until_nul(visible) else {
            return Err(if self.rest.len() > max { too_long } else { Reason::Unterminated });
        };
        self.rest = &self.rest[string.count_bytes() + 1..];
        Ok(string)
    }

    /// All that is left.
    #[inline]
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }
}
