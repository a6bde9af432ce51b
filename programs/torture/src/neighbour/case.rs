//! What is measured.

use clap::ValueEnum;
use serde::Serialize;

/// What the other guest does.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Case {
    /// Nothing.
    Baseline,
    /// Removes the only name of a file of many extents.
    Unlink,
    /// Sets the size of such a file to 0.
    Truncate,
    /// Renames a small file over such a file.
    Rename,
    /// Closes such a file, which has no name any more.
    Release,
    /// Opens files on which another process holds a lease.
    Leases,
    /// Locks thousands of ranges of one file, and asks for more.
    Locks,
    /// Copies a file by COPY_FILE_RANGE, which 9P does not have.
    Copy,
    /// Makes a file durable that has just been written: SYNCFS, or Tfsync.
    Sync,
}

/// What the other guest speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Protocol {
    /// FUSE, over vhost-user.
    Fuse,
    /// 9P2000.L, over vhost-user.
    #[value(name = "9p")]
    #[serde(rename = "9p")]
    P9,
}

impl Protocol {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fuse => "fuse",
            Self::P9 => "9p",
        }
    }
}
