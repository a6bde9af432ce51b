//! Little-endian fields of structures whose size is known, checked when this is compiled rather than when it runs.

use super::malformed::Reason;
use std::ffi::CStr;

/// The 16 bits at `AT`.
#[inline(always)]
pub(super) fn le16<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u16 {
    const { assert!(AT + 2 <= N) };
    u16::from_le_bytes([bytes[AT], bytes[AT + 1]])
}

/// The 32 bits at `AT`.
#[inline(always)]
pub(super) fn le32<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u32 {
    const { assert!(AT + 4 <= N) };
    u32::from_le_bytes([bytes[AT], bytes[AT + 1], bytes[AT + 2], bytes[AT + 3]])
}

/// The 64 bits at `AT`.
#[inline(always)]
pub(super) fn le64<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u64 {
    const { assert!(AT + 8 <= N) };
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[AT..AT + 8]);
    u64::from_le_bytes(word)
}

/// Puts a field of `LEN` bytes to `AT`.
#[inline(always)]
pub(super) fn put<const AT: usize, const N: usize, const LEN: usize>(bytes: &mut [u8; N], field: [u8; LEN]) {
    const { assert!(AT + LEN <= N) };
    bytes[AT..AT + LEN].copy_from_slice(&field);
}

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
