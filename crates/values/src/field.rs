//! Fields: which one a person got wrong, and why.

use serde::de::{self, DeserializeOwned};
use std::fmt;

/// A field whose value cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Path of the field, as in `storage.size`.
    pub field: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl FieldError {
    /// An error about the named field.
    pub fn new(field: impl Into<String>, message: impl fmt::Display) -> Self {
        Self { field: field.into(), message: message.to_string() }
    }
}

/// Reads a table whose kind is known. The error names the field, which the derived form of a tagged enum forgets.
///
/// # Errors
/// A field that is unknown, missing or has a value that cannot be used.
pub fn fields<T: DeserializeOwned, E: de::Error>(table: serde_json::Map<String, serde_json::Value>) -> Result<T, E> {
    serde_path_to_error::deserialize(serde_json::Value::Object(table)).map_err(|error| {
        let (mut path, message) = (error.path().to_string(), error.inner().to_string());
        // An unknown or missing field is named by its message already, unless it is a field of a field.
        if path == "." || message.contains(&format!(" field `{path}`")) {
            return E::custom(message);
        }
        let named = ["unknown field `", "missing field `"].iter().find_map(|prefix| message.strip_prefix(prefix));
        if let Some((leaf, _)) = named.and_then(|rest| rest.split_once('`'))
            && !path.ends_with(&format!(".{leaf}"))
        {
            path = format!("{path}.{leaf}");
        }
        E::custom(format_args!("invalid field `{path}`: {message}"))
    })
}

/// Refuses a size that no disk can have.
///
/// # Errors
/// Zero, more than a file can have, or no multiple of the block size: an error for `storage.size`.
pub fn check_size(size: crate::ByteSize, block_size_bytes: u32) -> Result<(), FieldError> {
    // Offsets are signed in the kernel's file interface (loff_t).
    if size.0 == 0 || size.0 > i64::MAX as u64 || !size.0.is_multiple_of(u64::from(block_size_bytes)) {
        let message = format!("must be a positive multiple of the block size ({block_size_bytes} bytes), not {size}");
        return Err(FieldError::new("storage.size", message));
    }
    Ok(())
}
