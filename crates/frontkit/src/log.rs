//! The frontend's side of a dirty log (vhost-user, "Migration").

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::Result;
use vhost::VhostUserDirtyLogRegion;

use crate::Memory;

/// Bytes of guest memory that one bit stands for.
pub const LOG_PAGE_BYTES: u64 = 4096;
/// Pages that one byte stands for.
const PAGES_A_BYTE: u64 = 8;

/// A log with a bit for each page of guest memory from address 0 on, in a file of its own.
#[derive(Debug)]
pub struct DirtyLog {
    bits: Memory,
    bytes: u64,
}

impl DirtyLog {
    /// A log of `bytes` bytes of guest memory, with nothing marked.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(bytes: u64) -> Result<Self> {
        let bytes = bytes.div_ceil(LOG_PAGE_BYTES * PAGES_A_BYTE);
        Ok(Self { bits: Memory::new(0, bytes)?, bytes })
    }

    /// As SET_LOG_BASE shows it.
    pub fn region(&self) -> VhostUserDirtyLogRegion {
        VhostUserDirtyLogRegion { mmap_size: self.bytes, mmap_offset: 0, mmap_handle: self.bits.file().as_raw_fd() }
    }

    /// Takes the marks, and leaves none: the numbers of the pages. What was written before a mark that this takes is seen by
    /// whoever reads the page now.
    pub fn take(&self) -> Vec<u64> {
        let mut pages = Vec::new();
        for at in 0..self.bytes {
            let byte = self.bits.fields::<AtomicU8>(at);
            if byte.load(Ordering::Relaxed) != 0 {
                let bits = byte.swap(0, Ordering::SeqCst);
                pages.extend((0..PAGES_A_BYTE).filter(|bit| bits >> bit & 1 != 0).map(|bit| at * PAGES_A_BYTE + bit));
            }
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_taken_once() {
        let log = DirtyLog::new(20 * LOG_PAGE_BYTES + 1).unwrap();
        assert_eq!(log.region().mmap_size, 3);
        log.bits.write(0, &[0x81, 0, 0x10]);
        assert_eq!(log.take(), [0, 7, 20]);
        assert!(log.take().is_empty());
    }
}
