//! 9P: which protocol a directory is served by, what 9P adds to its description, and what is shown of it.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;
use values::Multidevs;

/// The protocol by which a directory is served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
pub enum Protocol {
    /// FUSE over virtio (virtio-fs)
    #[default]
    #[serde(rename = "virtiofs")]
    #[value(name = "virtiofs")]
    Virtiofs,
    /// 9P2000.L, and 9P2000.u where a client asks for it: over virtio, or over the connections of a socket
    #[serde(rename = "9p")]
    #[value(name = "9p")]
    P9,
}

impl Protocol {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Virtiofs => "virtiofs",
            Self::P9 => "9p",
        })
    }
}

/// Where owner, mode and kind of a file are kept that a client sees: the meanings are QEMU's (`-virtfs
/// security_model=`), and so is what is on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SecurityModel {
    /// In the file of the host itself
    #[default]
    Passthrough,
    /// As passthrough, but it is no error when a file cannot be given its owner
    None,
    /// In extended attributes of the file (user.virtfs.*): the daemon needs no rights of root
    MappedXattr,
    /// In files of their own, in a directory .virtfs_metadata beside the file
    MappedFile,
}

impl SecurityModel {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether files have modes of their own on the host (`fmode`, `dmode`).
    pub fn is_mapped(self) -> bool {
        matches!(self, Self::MappedXattr | Self::MappedFile)
    }
}

impl fmt::Display for SecurityModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passthrough => "passthrough",
            Self::None => "none",
            Self::MappedXattr => "mapped-xattr",
            Self::MappedFile => "mapped-file",
        })
    }
}

/// What is shown of a directory that is served over 9P.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct P9Info {
    /// Longest message that was agreed on with the client who said last what it can take (Tversion), in bytes; absent
    /// before one has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub msize: Option<u32>,
    /// Longest message that any client is granted, in bytes.
    pub msize_max: u32,
    /// What becomes of files of other file systems.
    pub multidevs: Multidevs,
    /// Fids that clients hold now: names for files, open ones and others.
    pub fids: u64,
    /// Clients that have agreed on a version and are connected now: the guest, or those of a stream.
    pub connections: u64,
}

#[cfg(test)]
#[path = "p9_tests.rs"]
mod tests;
