//! The contents of a device after a cut: what is certain, and what of the rest is there, page by page.

use std::collections::HashMap;
use std::io;

use volume::Blocks;

use super::stamp::SECTOR_BYTES;

const PAGE_BYTES: usize = 4096;

/// Contents that share what they do not change, so that thousands of them a second can be made, recovered and looked at.
#[derive(Clone)]
pub(super) struct Image<'a> {
    below: &'a [u8],
    bytes: u64,
    pages: HashMap<u64, Box<[u8; PAGE_BYTES]>>,
}

impl<'a> Image<'a> {
    /// A device of `bytes` whose contents are those of `below`, with zeroes behind its end.
    pub(super) fn new(below: &'a [u8], bytes: u64) -> Self {
        Self { below, bytes, pages: HashMap::new() }
    }

    /// Overwrites what lies inside the device from byte `offset` on; the rest is lost with the room for it.
    pub(super) fn put(&mut self, offset: u64, bytes: &[u8]) {
        let room = usize::try_from(self.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        for (at, part) in pieces(offset, bytes.len()) {
            let page = self.page(at);
            let start = at as usize % PAGE_BYTES;
            page[start..start + part.len()].copy_from_slice(&bytes[part]);
        }
    }

    /// Overwrites with zeroes.
    pub(super) fn zero(&mut self, offset: u64, len: u64) {
        let len = len.min(self.bytes.saturating_sub(offset));
        for (at, part) in pieces(offset, len as usize) {
            let start = at as usize % PAGE_BYTES;
            self.page(at)[start..start + part.len()].fill(0);
        }
    }

    /// Copies from byte `offset` on.
    pub(super) fn get(&self, offset: u64, bytes: &mut [u8]) {
        for (at, part) in pieces(offset, bytes.len()) {
            let start = at as usize % PAGE_BYTES;
            let out = &mut bytes[part];
            match self.pages.get(&(at / PAGE_BYTES as u64)) {
                Some(page) => out.copy_from_slice(&page[start..start + out.len()]),
                None => copy_below(self.below, at, out),
            }
        }
    }

    /// The sector at byte `offset`, if it is not, or may not be, as in what lies below.
    pub(super) fn changed(&self, offset: u64) -> Option<&[u8]> {
        let page = self.pages.get(&(offset / PAGE_BYTES as u64))?;
        let start = offset as usize % PAGE_BYTES;
        page.get(start..start + SECTOR_BYTES)
    }

    /// All of it.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut all = vec![0; self.bytes as usize];
        self.get(0, &mut all);
        all
    }

    fn page(&mut self, at: u64) -> &mut [u8; PAGE_BYTES] {
        let number = at / PAGE_BYTES as u64;
        let below = self.below;
        self.pages.entry(number).or_insert_with(|| {
            let mut page = Box::new([0; PAGE_BYTES]);
            copy_below(below, number * PAGE_BYTES as u64, page.as_mut_slice());
            page
        })
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        let aligned = (offset | len).is_multiple_of(SECTOR_BYTES as u64);
        if aligned && offset.checked_add(len).is_some_and(|end| end <= self.bytes) {
            return Ok(());
        }
        let what = format!("{len} bytes at {offset} of a device of {}", self.bytes);
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }
}

fn copy_below(below: &[u8], at: u64, out: &mut [u8]) {
    let rest = usize::try_from(at).ok().and_then(|at| below.get(at..)).unwrap_or_default();
    let known = rest.len().min(out.len());
    out[..known].copy_from_slice(&rest[..known]);
    out[known..].fill(0);
}

/// Cuts a range at the borders of pages: where each piece is, and which part of the range it is.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let part = done..len.min(done + PAGE_BYTES - at as usize % PAGE_BYTES);
        done = part.end;
        Some((at, part))
    })
}

impl Blocks for Image<'_> {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.get(offset, buf);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check(offset, buf.len() as u64)?;
        self.put(offset, buf);
        Ok(())
    }

    fn zero_at(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len)?;
        self.zero(offset, len);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_found_and_the_rest_is_as_below() {
        let below = vec![1; 3 * PAGE_BYTES];
        let mut image = Image::new(&below, 4 * PAGE_BYTES as u64);
        image.put(PAGE_BYTES as u64 - 512, &[2; 1024]);
        image.zero(2 * PAGE_BYTES as u64 + 512, 512);
        let mut expected = below.clone();
        expected.resize(4 * PAGE_BYTES, 0);
        expected[PAGE_BYTES - 512..PAGE_BYTES + 512].fill(2);
        expected[2 * PAGE_BYTES + 512..2 * PAGE_BYTES + 1024].fill(0);
        assert!(image.to_vec() == expected);
        assert!(image.changed(PAGE_BYTES as u64).is_some_and(|sector| sector == [2; 512]));
        assert_eq!(image.changed(3 * PAGE_BYTES as u64), None);
    }

    #[test]
    fn what_lies_outside_is_refused_or_lost() {
        let mut image = Image::new(&[], 1024);
        assert!(image.write_at(512, &[1; 1024]).is_err());
        assert!(image.read_at(1, &mut [0; 512]).is_err());
        image.put(512, &[1; 1024]);
        assert_eq!(image.to_vec(), [[0; 512], [1; 512]].concat());
    }
}
