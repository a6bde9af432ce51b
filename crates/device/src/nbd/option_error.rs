//! An option that is refused.

use super::spec::option_reply_type;

/// Why an option is refused; see [`option_error`](super::option_error).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct OptionError {
    /// Type of the reply, one of the errors of [`option_reply_type`](super::spec::option_reply_type).
    pub kind: u32,
    /// What a person is told; at most [`NAME_BYTES_MAX`](super::NAME_BYTES_MAX) bytes.
    pub reason: &'static str,
}

impl OptionError {
    /// The option's data is of a wrong form, or the option comes at a wrong time.
    pub const fn invalid(reason: &'static str) -> OptionError {
        OptionError { kind: option_reply_type::ERR_INVALID, reason }
    }

    /// The data ends within a field.
    pub(super) const fn too_short() -> OptionError {
        OptionError::invalid("the option's data ends within a field")
    }

    /// The data goes on behind the last field.
    pub(super) const fn trailing() -> OptionError {
        OptionError::invalid("the option's data goes on behind its last field")
    }
}
