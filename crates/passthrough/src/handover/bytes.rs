//! The bytes of what passes: a [`Form`](super::form) that is never there as a whole, as its nodes may be many.

use super::form::NodeForm;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::result::Result;

/// Pieces of bytes that belong behind each other.
pub(crate) type Pieces = Vec<Vec<u8>>;

/// Writes one value behind others.
pub(crate) fn write<T: Serialize + ?Sized>(value: &T, piece: &mut Vec<u8>) -> Result<(), postcard::Error> {
    postcard::to_io(value, piece).map(drop)
}

/// Reads values, one behind the other.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> Result<T, postcard::Error> {
        let (value, rest) = postcard::take_from_bytes(self.0)?;
        self.0 = rest;
        Ok(value)
    }

    /// What is said is not believed before there is room made for it.
    pub(crate) fn has_room_for(&self, count: usize, bytes_min: usize) -> Result<(), postcard::Error> {
        if count > self.0.len() / bytes_min { Err(postcard::Error::DeserializeUnexpectedEnd) } else { Ok(()) }
    }

    /// The first node of so many that is one; those before are read for nothing.
    pub(super) fn find(
        mut self,
        count: usize,
        is: impl Fn(&NodeForm) -> bool,
    ) -> Result<Option<NodeForm>, postcard::Error> {
        for _ in 0..count {
            let node = self.next()?;
            if is(&node) {
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    pub(super) fn is_at_end(self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn end(self) -> Result<(), postcard::Error> {
        if self.is_at_end() { Ok(()) } else { Err(postcard::Error::DeserializeBadEncoding) }
    }
}
