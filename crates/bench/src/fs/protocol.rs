//! What servers speak, and where they listen.

use std::fmt;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;

/// What a server speaks, and over what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
pub enum Protocol {
    /// FUSE over vhost-user
    #[serde(rename = "virtiofs")]
    Virtiofs,
    /// 9P2000.L over vhost-user (virtio id 9)
    #[value(name = "9p")]
    #[serde(rename = "9p")]
    P9,
    /// 9P2000.L on a unix socket
    #[value(name = "9p+unix")]
    #[serde(rename = "9p+unix")]
    P9Unix,
    /// 9P2000.L on a TCP socket of the loopback interface
    #[value(name = "9p+tcp")]
    #[serde(rename = "9p+tcp")]
    P9Tcp,
}

impl Protocol {
    /// The word for it, which is the option's value too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Virtiofs => "virtiofs",
            Self::P9 => "9p",
            Self::P9Unix => "9p+unix",
            Self::P9Tcp => "9p+tcp",
        }
    }

    /// Whether it is a stream of messages, and not a device with queues.
    pub(crate) fn is_stream(self) -> bool {
        matches!(self, Self::P9Unix | Self::P9Tcp)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// A socket in the file system.
    Path(PathBuf),
    /// `HOST:PORT`.
    Tcp(String),
}

impl Address {
    /// Of a server that runs already, as a command line says it.
    pub(crate) fn of(protocol: Protocol, text: &str) -> Self {
        match protocol {
            Protocol::P9Tcp => Self::Tcp(text.to_owned()),
            _ => Self::Path(text.into()),
        }
    }

    /// For a server that is to be started: `path`, or a port that is free now.
    pub(crate) fn fresh(protocol: Protocol, path: &Path) -> Result<Self> {
        if protocol != Protocol::P9Tcp {
            return Ok(Self::Path(path.to_owned()));
        }
        let probe = TcpListener::bind("127.0.0.1:0").context("cannot find a free TCP port")?;
        Ok(Self::Tcp(probe.local_addr().context("cannot find a free TCP port")?.to_string()))
    }

    /// What stands for `{socket}` in a server's command.
    pub(crate) fn place(&self) -> &Path {
        match self {
            Self::Path(path) => path,
            Self::Tcp(address) => Path::new(address),
        }
    }

    /// What stands for `{port}` in a server's command.
    pub(crate) fn port(&self) -> Option<&Path> {
        match self {
            Self::Path(_) => None,
            Self::Tcp(address) => address.rsplit(':').next().map(Path::new),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.place().display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::spoken;

    #[test]
    fn names_are_those_of_the_option() {
        for protocol in Protocol::value_variants() {
            assert_eq!(protocol.to_possible_value().unwrap().get_name(), protocol.name());
            assert_eq!(serde_json::to_value(protocol).unwrap(), protocol.name());
        }
    }

    #[test]
    fn a_prefix_is_a_protocol_or_a_part_of_the_command() {
        assert_eq!(spoken::<Protocol>("9p+tcp:diod"), (Some(Protocol::P9Tcp), "diod"));
        assert_eq!(spoken::<Protocol>("virtiofs:a b:c"), (Some(Protocol::Virtiofs), "a b:c"));
        assert_eq!(spoken::<Protocol>("peer --at unix:{socket}"), (None, "peer --at unix:{socket}"));
        assert_eq!(spoken::<Protocol>("diod"), (None, "diod"));
    }

    #[test]
    fn a_fresh_address_can_be_listened_on() {
        let path = Path::new("/nonexistent/s");
        assert_eq!(Address::fresh(Protocol::P9, path).unwrap(), Address::Path(path.into()));
        let address = Address::fresh(Protocol::P9Tcp, path).unwrap();
        let listener = TcpListener::bind(address.to_string()).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(address.port(), Some(Path::new(&port.to_string())));
    }
}
