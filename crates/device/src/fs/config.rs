//! What a directory announces: feature bits and configuration space.

use super::spec::virtio::{CONFIG_BYTES, TAG_BYTES, config_offset as at};

/// Longest end (offset + length) of a configuration read, in bytes, as of a disk: no frontend can ask beyond it.
pub use crate::blk::CONFIG_READ_MAX;

/// Why a directory cannot be announced, or a configuration access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum ConfigError {
    /// a tag has 1 to 36 bytes, not {0}
    TagLength(usize),
    /// a tag cannot contain a NUL
    TagNul,
    /// a directory has at least one request queue
    NoRequestQueue,
    /// a configuration access of {len} bytes at offset {offset} is out of bounds
    OutOfBounds {
        /// First byte.
        offset: u32,
        /// Number of bytes.
        len: usize,
    },
}

/// Features and configuration space of one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    tag: [u8; TAG_BYTES],
    request_queues: u32,
}

impl Config {
    /// A directory that a guest mounts by `tag`, 1 to 36 bytes without NUL, with so many request queues (1 or more; the
    /// high-priority queue does not count).
    ///
    /// # Errors
    /// One that names what is out of its range.
    pub fn new(tag: &str, request_queues: u32) -> Result<Config, ConfigError> {
        if !(1..=TAG_BYTES).contains(&tag.len()) {
            return Err(ConfigError::TagLength(tag.len()));
        }
        if tag.contains('\0') {
            return Err(ConfigError::TagNul);
        }
        if request_queues == 0 {
            return Err(ConfigError::NoRequestQueue);
        }
        let mut padded = [0; TAG_BYTES];
        padded[..tag.len()].copy_from_slice(tag.as_bytes());
        Ok(Config { tag: padded, request_queues })
    }

    /// The device's feature bits: none. There is no notification queue.
    pub fn features(&self) -> u64 {
        0
    }

    /// `struct virtio_fs_config` as the driver sees it. `notify_buf_size` is 0: nothing notifies.
    pub fn bytes(&self) -> [u8; CONFIG_BYTES] {
        let mut out = [0; CONFIG_BYTES];
        out[at::TAG..at::TAG + TAG_BYTES].copy_from_slice(&self.tag);
        out[at::NUM_REQUEST_QUEUES..at::NUM_REQUEST_QUEUES + 4].copy_from_slice(&self.request_queues.to_le_bytes());
        out
    }

    /// Reads the configuration space. What lies behind its fields reads as zero, as a disk's does.
    ///
    /// # Errors
    /// An access that ends beyond [`CONFIG_READ_MAX`]; `out` is untouched then.
    pub fn read(&self, offset: u32, out: &mut [u8]) -> Result<(), ConfigError> {
        let start = offset as usize;
        if start.saturating_add(out.len()) > CONFIG_READ_MAX {
            return Err(ConfigError::OutOfBounds { offset, len: out.len() });
        }
        let mut space = [0; CONFIG_READ_MAX];
        space[..CONFIG_BYTES].copy_from_slice(&self.bytes());
        out.copy_from_slice(&space[start..start + out.len()]);
        Ok(())
    }
}
