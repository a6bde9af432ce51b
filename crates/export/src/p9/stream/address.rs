//! Where clients of a stream connect, as a person writes it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::str::FromStr;

/// The context id that stands for any: VMADDR_CID_ANY (vsock(7)).
const CID_ANY: u32 = u32::MAX;

/// Where clients of a stream connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamAddress {
    /// A unix socket, made at this path: `unix:PATH`.
    Unix(PathBuf),
    /// TCP: `tcp:PORT` or `tcp::PORT` on the loopback interface, `tcp:HOST:PORT` on the one that has that IP address.
    Tcp(SocketAddr),
    /// Virtual machines of this host, or the host of this one: `vsock:PORT`, `vsock:any:PORT` or `vsock:CID:PORT`.
    Vsock {
        /// The context id to listen on; `None` for any that this machine has.
        cid: Option<u32>,
        /// The port.
        port: u32,
    },
    /// A descriptor that was inherited: `fd:N`.
    Fd(RawFd),
}

/// Why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, displaydoc::Display, thiserror::Error)]
pub enum StreamAddressError {
    /// `{0}` is no address: use unix:PATH, tcp:PORT, tcp:HOST:PORT, vsock:PORT, vsock:CID:PORT or fd:N
    Scheme(String),
    /// `{0}` has no path: use unix:PATH
    Path(String),
    /// `{0}`: the host must be an IP address, such as 127.0.0.1, or `[::1]` in its brackets; names are not looked up
    Host(String),
    /// `{0}`: the port must be a number from 0 to 65535
    Port(String),
    /// `{0}`: the context id must be a number or `any`
    Cid(String),
    /// `{0}`: the port of a vsock must be a number from 0 to 4294967294
    VsockPort(String),
    /// `{0}`: the descriptor must be a number from 0 on
    Fd(String),
}

impl FromStr for StreamAddress {
    type Err = StreamAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let whole = || text.to_owned();
        let (scheme, rest) = text.split_once(':').ok_or_else(|| StreamAddressError::Scheme(whole()))?;
        match scheme {
            "unix" if rest.is_empty() => Err(StreamAddressError::Path(whole())),
            "unix" => Ok(StreamAddress::Unix(rest.into())),
            "tcp" => {
                let (host, port) = rest.rsplit_once(':').unwrap_or(("", rest));
                let port = number(port).ok_or_else(|| StreamAddressError::Port(whole()))?;
                let host = host_of(host).ok_or_else(|| StreamAddressError::Host(whole()))?;
                Ok(StreamAddress::Tcp(SocketAddr::new(host, port)))
            }
            "vsock" => {
                let (cid, port) = rest.rsplit_once(':').unwrap_or(("any", rest));
                let cid = match cid {
                    "any" | "" => None,
                    cid => Some(number(cid).ok_or_else(|| StreamAddressError::Cid(whole()))?),
                };
                // The last port stands for any (VMADDR_PORT_ANY), which no client could know of.
                let port = number(port).filter(|&port| port != u32::MAX);
                let port = port.ok_or_else(|| StreamAddressError::VsockPort(whole()))?;
                Ok(StreamAddress::Vsock { cid: cid.filter(|&cid| cid != CID_ANY), port })
            }
            "fd" => {
                let fd = number(rest).and_then(|fd: u32| RawFd::try_from(fd).ok());
                fd.map(StreamAddress::Fd).ok_or_else(|| StreamAddressError::Fd(whole()))
            }
            _ => Err(StreamAddressError::Scheme(whole())),
        }
    }
}

/// Digits and nothing else: the parsers of the standard library take a sign too.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn host_of(text: &str) -> Option<IpAddr> {
    if text.is_empty() || text == "localhost" {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(inner) => inner.parse().ok().map(IpAddr::V6),
        None => text.parse().ok().map(IpAddr::V4),
    }
}

impl fmt::Display for StreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            StreamAddress::Tcp(address) => write!(f, "tcp:{address}"),
            StreamAddress::Vsock { cid: None, port } => write!(f, "vsock:any:{port}"),
            StreamAddress::Vsock { cid: Some(cid), port } => write!(f, "vsock:{cid}:{port}"),
            StreamAddress::Fd(fd) => write!(f, "fd:{fd}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for (text, shown) in [
            ("unix:/run/9p.sock", "unix:/run/9p.sock"),
            ("unix:with:colon", "unix:with:colon"),
            ("tcp:5640", "tcp:127.0.0.1:5640"),
            ("tcp::5640", "tcp:127.0.0.1:5640"),
            ("tcp:localhost:0", "tcp:127.0.0.1:0"),
            ("tcp:0.0.0.0:564", "tcp:0.0.0.0:564"),
            ("tcp:[::1]:564", "tcp:[::1]:564"),
            ("vsock:564", "vsock:any:564"),
            ("vsock:any:564", "vsock:any:564"),
            ("vsock:4294967295:564", "vsock:any:564"),
            ("vsock:2:564", "vsock:2:564"),
            ("fd:3", "fd:3"),
        ] {
            let address: StreamAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse(), Ok(address), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_says_what_would_be() {
        for (text, expected) in [
            (
                "/run/9p.sock",
                "`/run/9p.sock` is no address: use unix:PATH, tcp:PORT, tcp:HOST:PORT, vsock:PORT, vsock:CID:PORT or fd:N",
            ),
            (
                "udp:1",
                "`udp:1` is no address: use unix:PATH, tcp:PORT, tcp:HOST:PORT, vsock:PORT, vsock:CID:PORT or fd:N",
            ),
            ("unix:", "`unix:` has no path: use unix:PATH"),
            ("tcp:", "`tcp:`: the port must be a number from 0 to 65535"),
            ("tcp:+1", "`tcp:+1`: the port must be a number from 0 to 65535"),
            ("tcp:65536", "`tcp:65536`: the port must be a number from 0 to 65535"),
            (
                "tcp:example.org:1",
                "`tcp:example.org:1`: the host must be an IP address, such as 127.0.0.1, or `[::1]` in its brackets; names are not looked up",
            ),
            (
                "tcp:::1:1",
                "`tcp:::1:1`: the host must be an IP address, such as 127.0.0.1, or `[::1]` in its brackets; names are not looked up",
            ),
            ("vsock:x:1", "`vsock:x:1`: the context id must be a number or `any`"),
            ("vsock:4294967295", "`vsock:4294967295`: the port of a vsock must be a number from 0 to 4294967294"),
            ("fd:-1", "`fd:-1`: the descriptor must be a number from 0 on"),
            ("fd:", "`fd:`: the descriptor must be a number from 0 on"),
        ] {
            let error = text.parse::<StreamAddress>().unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }
}
