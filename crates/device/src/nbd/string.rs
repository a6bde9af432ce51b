//! Strings that the server sends.

use super::spec::NAME_BYTES_MAX;

/// As much of a message as the protocol allows, whole characters.
pub(super) fn cut(message: &str) -> &str {
    let mut end = message.len().min(NAME_BYTES_MAX);
    // A character has at most four bytes, and 0 is a boundary.
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message.get(..end).unwrap_or_default()
}
