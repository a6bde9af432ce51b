//! What may be a name: of exports, disks and groups.

use values::FieldError;

/// Checks the name in `field`.
pub(super) fn check_name(field: &str, name: &str) -> Result<(), FieldError> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if name.bytes().all(|b| b == b'.') || name.len() > 64 || !name.bytes().all(legal) {
        return Err(FieldError::new(field, "must be 1 to 64 letters, digits, `.`, `_` or `-` (not dots alone)"));
    }
    Ok(())
}
