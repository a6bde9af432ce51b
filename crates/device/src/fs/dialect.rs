//! What a guest and this server agreed on.

use super::spec::{MINOR_MIN, flags};

/// The outcome of INIT, which decides how later requests look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Minor version of the protocol, [`MINOR_MIN`] to [`MINOR_MAX`](super::MINOR_MAX).
    pub minor: u32,
    /// The granted [`flags`].
    pub flags: u64,
}

impl Dialect {
    /// Whether every one of these flags was granted.
    #[inline]
    pub const fn has(self, flags: u64) -> bool {
        self.flags & flags == flags
    }

    /// Whether requests that make files may carry extensions.
    #[inline]
    pub(super) const fn extends(self) -> bool {
        self.flags & (flags::SECURITY_CTX | flags::CREATE_SUPP_GROUP) != 0
    }
}

impl Default for Dialect {
    /// What holds before INIT: the oldest version, and no flag.
    fn default() -> Dialect {
        Dialect { minor: MINOR_MIN, flags: 0 }
    }
}
