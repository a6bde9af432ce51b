//! 9P: which protocol a directory is served by, what 9P adds to its description, and what is shown of it.

use super::config::NewExport;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use utoipa::ToSchema;
use values::{ParseError, text_value};

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

/// What becomes of files of other file systems below the directory, whose inode numbers may be those of its own files.
/// The meanings are QEMU's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
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

/// Where the clients of a 9P stream connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket at this path.
    Unix(PathBuf),
    /// A TCP port at an address of this host; port 0 for any that is free.
    Tcp(SocketAddr),
    /// A vsock port (vsock(7)), for guests of this host without a network.
    Vsock {
        /// The context to listen in; any when there is none.
        cid: Option<u32>,
        /// The port, below 2^32 - 1.
        port: u32,
    },
    /// An inherited descriptor of a listening or connected socket.
    Fd(i32),
}

impl Listen {
    /// Where a TCP port is made unless told otherwise: 9P asks nobody who they are.
    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    /// What stands for any context and any port: VMADDR_CID_ANY, VMADDR_PORT_ANY (linux/vm_sockets.h).
    const VSOCK_ANY: u32 = u32::MAX;
    const EXPECTED: &'static str = "an address: unix:PATH, tcp:PORT (on 127.0.0.1), tcp:IP:PORT, tcp:[IPV6]:PORT, \
                                    vsock:PORT, vsock:CID:PORT or fd:N";

    /// The path of a unix socket.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) => Some(path),
            Self::Tcp(_) | Self::Vsock { .. } | Self::Fd(_) => None,
        }
    }

    fn read(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "unix" => {
                let legal = (1..=NewExport::SOCKET_PATH_BYTES_MAX).contains(&rest.len()) && !rest.contains('\0');
                legal.then(|| Self::Unix(rest.into()))
            }
            "tcp" => {
                let (host, port) = rest.rsplit_once(':').unwrap_or(("", rest));
                Some(Self::Tcp(SocketAddr::new(host_of(host)?, number(port)?)))
            }
            "vsock" => {
                let (cid, port) = rest.split_once(':').unwrap_or(("any", rest));
                let cid = if cid == "any" { None } else { Some(number(cid)?) };
                let port = number(port).filter(|port| *port != Self::VSOCK_ANY)?;
                Some(Self::Vsock { cid: cid.filter(|cid| *cid != Self::VSOCK_ANY), port })
            }
            "fd" => number(rest).map(Self::Fd),
            _ => None,
        }
    }
}

/// Names are not looked up: what they stand for may change, and whoever serves may be without a network by then.
fn host_of(text: &str) -> Option<IpAddr> {
    if text.is_empty() || text == "localhost" {
        return Some(Listen::LOOPBACK);
    }
    match text.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?.parse().ok().map(IpAddr::V6),
        None => text.parse().ok().map(IpAddr::V4),
    }
}

/// Digits alone: `parse` would take a sign.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

impl FromStr for Listen {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::read(text).ok_or_else(|| ParseError::new(text, Self::EXPECTED))
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It was read from text.
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::Vsock { cid: None, port } => write!(f, "vsock:any:{port}"),
            Self::Vsock { cid: Some(cid), port } => write!(f, "vsock:{cid}:{port}"),
            Self::Fd(number) => write!(f, "fd:{number}"),
        }
    }
}

text_value!(
    Listen,
    string,
    "an address: unix:PATH, tcp:PORT (on 127.0.0.1), tcp:IP:PORT, tcp:[IPV6]:PORT, vsock:PORT, vsock:CID:PORT or fd:N",
    "^(unix:.+|tcp:(.*:)?[0-9]+|vsock:((any|[0-9]+):)?[0-9]+|fd:[0-9]+)$",
    "tcp:127.0.0.1:5640"
);

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
