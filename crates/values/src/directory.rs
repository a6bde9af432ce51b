//! What people choose about a directory.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use utoipa::ToSchema;

/// For how long a guest may believe what it was told about a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum CachePolicy {
    /// Not at all: every look-up, attribute and read asks the host
    Never,
    /// Names and attributes for a day, data not at all
    Metadata,
    /// Names and attributes for a second; data until a file is opened after it has changed
    #[default]
    Auto,
    /// Everything for a day: for directories that nobody else changes
    Always,
}

impl CachePolicy {
    /// How long names and attributes are valid.
    pub fn timeout(self) -> Duration {
        match self {
            Self::Never => Duration::ZERO,
            Self::Auto => Duration::from_secs(1),
            Self::Metadata | Self::Always => Duration::from_secs(86_400),
        }
    }

    /// How long the absence of a name is valid: under `auto` not at all, because a file that appears is what people look
    /// for most often from both sides.
    pub fn negative_timeout(self) -> Duration {
        match self {
            Self::Metadata | Self::Always => self.timeout(),
            Self::Never | Self::Auto => Duration::ZERO,
        }
    }
}

/// Whether a listing brings the attributes of its entries along (FUSE_READDIRPLUS).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Readdirplus {
    /// Always
    On,
    /// Never
    Off,
    /// When the guest looks attributes up as well; never where they may not be cached
    #[default]
    Auto,
}

/// Which files a guest maps into the DAX window, of those that can be: whose size is a multiple of 2 MiB, on ext4, XFS, btrfs or
/// tmpfs, and which the daemon may write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum DaxWhen {
    /// None, unless the guest mounts with `-o dax`
    Never,
    /// Those with the extended attribute `user.vringd.dax` on the host
    #[default]
    Inode,
    /// All of them
    Always,
}

/// When inodes are held by file handles (name_to_handle_at(2)) and not by open descriptors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum FileHandles {
    /// Always hold a descriptor
    Never,
    /// Where the file system and the daemon's privileges allow it
    #[default]
    Prefer,
    /// Always; refuse to serve where that is impossible
    Mandatory,
}

/// What a guest's inodes are found by where it is migrated to. The meanings are virtiofsd's, but for this: a directory takes file
/// handles from another host only when it is `file-handles` itself, as a handle can name any file of the file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum MigrationMode {
    /// By their paths below the directory, which may be a copy
    #[default]
    FindPaths,
    /// By file handles: both sides have the same file system; files without a name go along
    FileHandles,
}

/// What becomes of a migration that comes in, when an inode, an open file or a lock of its guest is not had here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum MigrationOnError {
    /// It fails, and the guest goes on where it was
    #[default]
    Abort,
    /// It goes on, and the guest has errors where it uses these
    GuestError,
}

/// Whether a feature is used that the guest has to know as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Negotiation {
    /// It is not offered
    #[default]
    Never,
    /// When the guest knows it
    Auto,
    /// A guest that does not know it is refused
    Always,
}

/// What becomes of files of other file systems below the directory, whose inode numbers may be those of its own files.
/// The meanings are QEMU's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Multidevs {
    /// They are given numbers that no other file has
    #[default]
    Remap,
    /// They cannot be reached
    Forbid,
    /// They keep their numbers, and the log says once that they may not be alone with them
    Warn,
}

impl fmt::Display for Multidevs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Remap => "remap",
            Self::Forbid => "forbid",
            Self::Warn => "warn",
        })
    }
}
