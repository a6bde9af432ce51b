//! Kinds of SCSI commands, as figures tell them apart.

/// Kinds of SCSI commands, as figures tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// SYNCHRONIZE CACHE.
    Flush,
    /// UNMAP.
    Discard,
    /// WRITE SAME.
    WriteZeroes,
    /// COMPARE AND WRITE.
    CompareAndWrite,
    /// VERIFY.
    Verify,
    /// PERSISTENT RESERVE IN and OUT, RESERVE, RELEASE.
    Reserve,
    /// Whatever tells of a unit, or changes a mode of it.
    Other,
    /// A request of the control queue.
    Task,
    /// Something that the driver was told.
    Event,
    /// A request that was refused as it came.
    Refused,
}

impl Kind {
    /// Names of the kinds, in their order.
    pub(crate) const NAMES: [&str; 12] = [
        "read",
        "write",
        "flush",
        "discard",
        "write_zeroes",
        "compare_and_write",
        "verify",
        "reserve",
        "other",
        "task_management",
        "event",
        "unsupported",
    ];
}
