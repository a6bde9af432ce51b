//! What can be chosen about a volume.

use std::fmt;
use std::str::FromStr;

/// When a write has to be on stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// When the guest asks for it: with a flush, or a durable write.
    #[default]
    Standard,
    /// Always: every write is answered once it is in the log.
    Always,
    /// Never: flushes are answered at once. What the guest believes to be safe is lost with the power, though never with the
    /// process being stopped in order.
    Disabled,
}

impl SyncMode {
    /// Every mode, in the order in which a person is told of them.
    pub const ALL: [SyncMode; 3] = [SyncMode::Standard, SyncMode::Always, SyncMode::Disabled];

    /// The word for it in configuration and API.
    pub fn word(self) -> &'static str {
        match self {
            SyncMode::Standard => "standard",
            SyncMode::Always => "always",
            SyncMode::Disabled => "disabled",
        }
    }

    pub(super) fn to_bits(self) -> u8 {
        match self {
            SyncMode::Standard => 0,
            SyncMode::Always => 1,
            SyncMode::Disabled => 2,
        }
    }

    /// Only ever given what [`to_bits`](Self::to_bits) made; anything else is the careful mode.
    pub(super) fn from_bits(bits: u8) -> SyncMode {
        match bits {
            0 => SyncMode::Standard,
            2 => SyncMode::Disabled,
            _ => SyncMode::Always,
        }
    }
}

impl fmt::Display for SyncMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// sync: `{0}` is not a mode: use `standard`, `always` or `disabled`
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, displaydoc::Display)]
pub struct SyncModeError(pub String);

impl FromStr for SyncMode {
    type Err = SyncModeError;

    fn from_str(word: &str) -> Result<SyncMode, SyncModeError> {
        SyncMode::ALL.into_iter().find(|mode| mode.word() == word).ok_or_else(|| SyncModeError(word.to_owned()))
    }
}

/// Orders that a volume keeps. Without one of them it loses data at a power cut, which the powercut torture has to notice: that
/// is the only reason to take one away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barriers {
    /// A log write is durable before its waiters are told.
    pub commit: bool,
    /// What was written back is flushed before the checkpoint says so.
    pub write_back: bool,
    /// The checkpoint is durable before the log space behind it is used again.
    pub checkpoint: bool,
    /// Batches complete in the order of their records.
    pub order: bool,
}

impl Default for Barriers {
    fn default() -> Barriers {
        Barriers { commit: true, write_back: true, checkpoint: true, order: true }
    }
}

/// What a volume is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedOptions {
    /// Memory for data that is not written back yet, in bytes: 1 MiB to 64 GiB.
    pub dirty_bytes: u64,
    /// When writes have to be stable, to begin with.
    pub sync: SyncMode,
    /// All of them, but for a torture that shows what each is good for.
    #[doc(hidden)]
    pub barriers: Barriers,
}

impl LoggedOptions {
    /// Least memory for dirty data, in bytes: room for a few of the largest requests.
    pub const DIRTY_BYTES_MIN: u64 = 1 << 20;
    /// Most memory for dirty data, in bytes: slots are numbered with 32 bits, and a sweep should end in this life.
    pub const DIRTY_BYTES_MAX: u64 = 64 << 30;
}

impl Default for LoggedOptions {
    /// 64 MiB of dirty data, stable when the guest asks for it.
    fn default() -> LoggedOptions {
        LoggedOptions { dirty_bytes: 64 << 20, sync: SyncMode::Standard, barriers: Barriers::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_their_words_and_bits() {
        for mode in SyncMode::ALL {
            assert_eq!(mode.word().parse(), Ok(mode));
            assert_eq!(SyncMode::from_bits(mode.to_bits()), mode);
        }
        let error = "sometimes".parse::<SyncMode>().unwrap_err().to_string();
        assert!(error.starts_with("sync: `sometimes`") && error.contains("always"), "{error}");
    }
}
