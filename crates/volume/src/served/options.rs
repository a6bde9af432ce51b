//! What can be chosen about a volume.

use values::SyncMode;

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

impl Default for LoggedOptions {
    /// 64 MiB of dirty data, stable when the guest asks for it.
    fn default() -> LoggedOptions {
        LoggedOptions { dirty_bytes: 64 << 20, sync: SyncMode::Standard, barriers: Barriers::default() }
    }
}
