//! What people choose about encryption.

use crate::FieldError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use utoipa::ToSchema;

/// A LUKS container, which the storage holds: the disk is what is encrypted in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Luks {
    /// Path of the file that has the passphrase, and nothing else: every byte of it counts, as for `cryptsetup --key-file`.
    #[schema(value_type = String)]
    pub key_file: PathBuf,
    /// Pass discards on: whoever sees the container sees then what of it is in use. False when left out.
    #[serde(default)]
    pub allow_discards: bool,
}

impl Luks {
    /// Opened with this key file, with every other field at its default.
    pub fn new(key_file: impl Into<PathBuf>) -> Luks {
        Luks { key_file: key_file.into(), allow_discards: false }
    }

    /// Checks what can be checked without opening anything.
    ///
    /// # Errors
    /// A path that is none.
    pub fn check(&self) -> Result<(), FieldError> {
        if self.key_file.as_os_str().is_empty() {
            return Err(FieldError::new(
                "storage.luks.key_file",
                "is empty: give the path of a file with the passphrase",
            ));
        }
        Ok(())
    }
}
