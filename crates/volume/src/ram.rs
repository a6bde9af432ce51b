//! A storage in memory, for tests and for whoever plays recovery through.

use crate::blocks::Blocks;
use std::io;

/// Bytes in memory. Nothing that was written is ever lost, so a flush has nothing to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ram(pub Vec<u8>);

impl Ram {
    /// `len` bytes of zeroes.
    pub fn new(len: usize) -> Ram {
        Ram(vec![0; len])
    }

    fn range(&mut self, offset: u64, len: u64) -> io::Result<&mut [u8]> {
        let place = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        place
            .and_then(|(offset, len)| self.0.get_mut(offset..offset.checked_add(len)?))
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the range leaves the storage"))
    }
}

impl Blocks for Ram {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let range = self.range(offset, buf.len() as u64)?;
        buf.copy_from_slice(range);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.range(offset, buf.len() as u64)?.copy_from_slice(buf);
        Ok(())
    }

    fn zero_at(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.range(offset, len)?.fill(0);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
