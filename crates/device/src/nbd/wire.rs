//! Big-endian fields, and the fields of an option from the front on.

pub(super) use crate::wire::{be16, be32, be64};

/// What is left of an option's data.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Fields<'a> {
        Fields { rest }
    }

    /// The next 16 bits; `None` when there are less.
    pub(super) fn take_u16(&mut self) -> Option<u16> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u16::from_be_bytes(*taken))
    }

    /// The next 32 bits; `None` when there are less.
    pub(super) fn take_u32(&mut self) -> Option<u32> {
        let (taken, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_be_bytes(*taken))
    }

    /// The next string, which has 32 bits of length before it; `None` when it reaches beyond the end.
    pub(super) fn take_string(&mut self) -> Option<&'a [u8]> {
        let mut behind = *self;
        let len = usize::try_from(behind.take_u32()?).ok()?;
        let (string, rest) = behind.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(string)
    }

    /// All that is left.
    pub(super) fn rest(self) -> &'a [u8] {
        self.rest
    }
}
