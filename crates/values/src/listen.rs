//! Where clients connect.

use crate::digits;
use crate::text::{ParseError, text_value};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Longest path of a unix socket in bytes: `sun_path` of `struct sockaddr_un` less its terminator (unix(7)).
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

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
                let legal = (1..=SOCKET_PATH_BYTES_MAX).contains(&rest.len()) && !rest.contains('\0');
                legal.then(|| Self::Unix(rest.into()))
            }
            "tcp" => {
                let (host, port) = rest.rsplit_once(':').unwrap_or(("", rest));
                Some(Self::Tcp(SocketAddr::new(host_of(host)?, digits(port)?)))
            }
            "vsock" => {
                let (cid, port) = rest.split_once(':').unwrap_or(("any", rest));
                let cid = if cid == "any" { None } else { Some(digits(cid)?) };
                let port = digits(port).filter(|port| *port != Self::VSOCK_ANY)?;
                Some(Self::Vsock { cid: cid.filter(|cid| *cid != Self::VSOCK_ANY), port })
            }
            "fd" => digits(rest).map(Self::Fd),
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_address_is_one_of_four_forms() {
        let tcp = |host: &str, port| Listen::Tcp(SocketAddr::new(host.parse().unwrap(), port));
        for (text, address, shown) in [
            ("unix:/run/p9.sock", Listen::Unix("/run/p9.sock".into()), "unix:/run/p9.sock"),
            ("unix:a:b", Listen::Unix("a:b".into()), "unix:a:b"),
            ("tcp:5640", tcp("127.0.0.1", 5640), "tcp:127.0.0.1:5640"),
            ("tcp::5640", tcp("127.0.0.1", 5640), "tcp:127.0.0.1:5640"),
            ("tcp:0.0.0.0:564", tcp("0.0.0.0", 564), "tcp:0.0.0.0:564"),
            ("tcp:[::1]:564", tcp("::1", 564), "tcp:[::1]:564"),
            ("tcp:localhost:0", tcp("127.0.0.1", 0), "tcp:127.0.0.1:0"),
            ("vsock:564", Listen::Vsock { cid: None, port: 564 }, "vsock:any:564"),
            ("vsock:4294967295:564", Listen::Vsock { cid: None, port: 564 }, "vsock:any:564"),
            ("vsock:any:564", Listen::Vsock { cid: None, port: 564 }, "vsock:any:564"),
            ("vsock:2:4294967294", Listen::Vsock { cid: Some(2), port: u32::MAX - 1 }, "vsock:2:4294967294"),
            ("fd:3", Listen::Fd(3), "fd:3"),
        ] {
            assert_eq!(text.parse(), Ok(address), "{text}");
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), shown, "{text}");
        }
        let long = format!("unix:{}", "x".repeat(108));
        for text in [
            "",
            "unix",
            "unix:",
            &long,
            "unix:a\0b",
            "/run/p9.sock",
            "tcp:",
            "tcp:x",
            "tcp:+1",
            "tcp:65536",
            "tcp:::1:564",
            "tcp:[::1]",
            "tcp:[::1:564",
            "tcp:[127.0.0.1]:564",
            "tcp:files.example:564",
            "vsock:",
            "vsock:any",
            "vsock:-1:564",
            "vsock:all:564",
            "vsock:4294967295",
            "fd:",
            "fd:-1",
            "fd:x",
            "udp:564",
        ] {
            let error = text.parse::<Listen>().expect_err(text).to_string();
            assert!(error.contains("tcp:IP:PORT") && !error.contains('\n'), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_again(text in "(unix|tcp|vsock|fd):(any:|[0-9a-f.:\\[\\]]{0,12}:)?[0-9]{1,6}") {
            if let Ok(address) = text.parse::<Listen>() {
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        }
    }
}
