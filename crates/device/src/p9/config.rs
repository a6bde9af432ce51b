//! What a 9P device announces: feature bits and configuration space.

use super::spec::virtio::{CONFIG_BYTES_MAX, TAG_BYTES_MAX, config_offset as at, feature};

/// Longest end (offset + length) of a configuration read, in bytes, as of a disk: no frontend can ask beyond it.
pub use crate::blk::CONFIG_READ_MAX;

/// Why a device cannot be announced, or a configuration access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum ConfigError {
    /// a tag has 1 to 36 bytes, not {0}
    TagLength(usize),
    /// a tag cannot contain a NUL
    TagNul,
    /// a configuration access of {len} bytes at offset {offset} is out of bounds
    OutOfBounds {
        /// First byte.
        offset: u32,
        /// Number of bytes.
        len: usize,
    },
}

/// Features and configuration space of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    tag: [u8; TAG_BYTES_MAX],
    tag_len: u16,
}

impl Config {
    /// A device that a guest mounts by `tag`, 1 to 36 bytes without NUL.
    ///
    /// # Errors
    /// One that says what is wrong with the tag.
    pub fn new(tag: &str) -> Result<Config, ConfigError> {
        if !(1..=TAG_BYTES_MAX).contains(&tag.len()) {
            return Err(ConfigError::TagLength(tag.len()));
        }
        if tag.contains('\0') {
            return Err(ConfigError::TagNul);
        }
        let mut padded = [0; TAG_BYTES_MAX];
        padded[..tag.len()].copy_from_slice(tag.as_bytes());
        Ok(Config { tag: padded, tag_len: tag.len() as u16 })
    }

    /// The device's feature bits: there is a tag.
    pub fn features(&self) -> u64 {
        feature::MOUNT_TAG
    }

    /// `struct virtio_9p_config` as the driver sees it, with zeroes behind the tag.
    pub fn bytes(&self) -> [u8; CONFIG_BYTES_MAX] {
        let mut out = [0; CONFIG_BYTES_MAX];
        out[at::TAG_LEN..at::TAG].copy_from_slice(&self.tag_len.to_le_bytes());
        out[at::TAG..].copy_from_slice(&self.tag);
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
        space[..CONFIG_BYTES_MAX].copy_from_slice(&self.bytes());
        out.copy_from_slice(&space[start..start + out.len()]);
        Ok(())
    }
}
