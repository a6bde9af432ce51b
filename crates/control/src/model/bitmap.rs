//! Dirty bitmaps of qcow2 disks: which parts were written since a backup.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use values::{ByteSize, FieldError};

/// The longest name, in bytes, as QEMU has it (`BME_MAX_NAME_SIZE`).
const NAME_BYTES_MAX: usize = 1023;

/// One dirty bitmap of a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Bitmap {
    /// Name, unique among the bitmaps of the disk.
    pub name: String,
    /// Bytes of the disk for which one bit stands.
    pub granularity_bytes: u64,
    /// Whether it records what is written.
    pub enabled: bool,
    /// Whether it knows of every write. One that does not is of no use: a daemon or a QEMU was killed, or the power was
    /// cut, while it recorded. It can only be removed.
    pub consistent: bool,
    /// Bytes that were written since the last backup with it, in whole pieces of its granularity; 0 where it is not
    /// consistent.
    pub dirty_bytes: u64,
}

/// Description of a bitmap: the body of `POST /v1/disks/{name}/bitmaps`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBitmap {
    /// Name, unique among the bitmaps of the disk: 1 to 1023 bytes.
    pub name: String,
    /// Bytes of the disk for which one bit stands: a power of two, 512 to 2G; 64K when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granularity: Option<ByteSize>,
}

impl NewBitmap {
    /// A sector.
    pub const GRANULARITY_BYTES_MIN: u64 = 512;
    /// The most that the format has (`granularity_bits` of 31).
    pub const GRANULARITY_BYTES_MAX: u64 = 2 << 30;
    /// A cluster of usual size.
    pub const GRANULARITY_BYTES_DEFAULT: u64 = 64 << 10;

    /// The granularity that was asked for, or the default.
    pub fn granularity_bytes(&self) -> u64 {
        self.granularity.map_or(Self::GRANULARITY_BYTES_DEFAULT, |size| size.0)
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self) -> Result<(), FieldError> {
        check_bitmap_name("name", &self.name)?;
        let bytes = self.granularity_bytes();
        let range = Self::GRANULARITY_BYTES_MIN..=Self::GRANULARITY_BYTES_MAX;
        if !bytes.is_power_of_two() || !range.contains(&bytes) {
            let message = format_args!("must be a power of two, 512 to 2G, not {}", ByteSize(bytes));
            return Err(FieldError::new("granularity", message));
        }
        Ok(())
    }
}

/// Checks the name of a bitmap in `field`.
pub(super) fn check_bitmap_name(field: &str, name: &str) -> Result<(), FieldError> {
    match name.len() {
        // What other programs end it by.
        1..=NAME_BYTES_MAX if name.contains('\0') => Err(FieldError::new(field, "must have no NUL in it")),
        1..=NAME_BYTES_MAX => Ok(()),
        bytes => Err(FieldError::new(field, format_args!("must be 1 to {NAME_BYTES_MAX} bytes, not {bytes}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_enough() {
        let new: NewBitmap = serde_json::from_str(r#"{"name": "daily"}"#).unwrap();
        assert_eq!((new.check(), new.granularity_bytes()), (Ok(()), 64 << 10));
        assert_eq!(serde_json::to_string(&new).unwrap(), r#"{"name":"daily"}"#);
        let new: NewBitmap = serde_json::from_str(r#"{"name": "x", "granularity": "1M"}"#).unwrap();
        assert_eq!((new.check(), new.granularity_bytes()), (Ok(()), 1 << 20));
        assert!(serde_json::from_str::<NewBitmap>(r#"{"name": "x", "colour": 1}"#).is_err());
    }

    #[test]
    fn every_bad_field_is_named() {
        let fault = |name: &str, granularity: u64| {
            let new = NewBitmap { name: name.into(), granularity: Some(ByteSize(granularity)) };
            new.check().map_err(|error| error.to_string())
        };
        for fits in [512, 64 << 10, 2 << 30] {
            assert_eq!(fault(&"x".repeat(1023), fits), Ok(()));
        }
        assert_eq!(fault("", 512), Err("name: must be 1 to 1023 bytes, not 0".into()));
        assert_eq!(fault("a\0b", 512), Err("name: must have no NUL in it".into()));
        assert_eq!(fault(&"\u{e9}".repeat(512), 512), Err("name: must be 1 to 1023 bytes, not 1024".into()));
        for (granularity, shown) in [(0, "0"), (256, "256"), (768, "768"), (4 << 30, "4G")] {
            let message = format!("granularity: must be a power of two, 512 to 2G, not {shown}");
            assert_eq!(fault("x", granularity), Err(message));
        }
    }
}
