//! The listening socket: bound by us at a path, or inherited.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use displaydoc::Display;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, sockopt};
pub use socket::{File as SocketFile, Options as SocketOptions};
use thiserror::Error;

/// Connections that wait before the kernel refuses more. Only one is served at a time and the others are turned away
/// at once, so a short queue is enough.
const BACKLOG: i32 = 16;

/// A listening socket that frontends connect to. One that was bound at a path takes its file away when dropped.
#[derive(Debug)]
pub struct Endpoint {
    socket: OwnedFd,
    file: Option<SocketFile>,
}

/// Why there is no socket to listen on.
#[derive(Debug, Display, Error)]
pub enum BindError {
    /// {0}
    Path(#[from] socket::BindError),
    /// inherited descriptor: {0}; pass a listening unix stream socket
    Inherited(&'static str),
    /// inherited descriptor: {0}
    InheritedSystem(io::Error),
}

/// Looks whether [`Endpoint::bind`] would be refused at `path`. Nothing is changed, and who may listen there already is not seen.
///
/// # Errors
/// Those of [`Endpoint::bind`] that can be foreseen.
pub fn check_socket(path: &Path) -> Result<(), BindError> {
    socket::look(path)?;
    Ok(())
}

impl Endpoint {
    /// Listens at `path`.
    ///
    /// A socket file that nobody listens on (left by a crash) is replaced, and no other file is touched, whoever may write to
    /// the directory; see [`socket::bind`].
    pub fn bind(path: &Path, options: &SocketOptions) -> Result<Endpoint, BindError> {
        Endpoint::bind_for(path, options, BACKLOG)
    }

    /// As above, for so many connections that wait.
    ///
    /// # Errors
    /// As above.
    pub fn bind_for(path: &Path, options: &SocketOptions, backlog: i32) -> Result<Endpoint, BindError> {
        let (socket, file) = socket::bind(path, options, backlog)?;
        Ok(Endpoint { socket, file: Some(file) })
    }

    /// Takes over a socket that listens already, such as one inherited from systemd. Its file, if it has one, is left
    /// alone.
    pub fn from_fd(socket: OwnedFd) -> Result<Endpoint, BindError> {
        let system = |error: Errno| match error {
            Errno::NOTSOCK => BindError::Inherited("it is not a socket"),
            error => BindError::InheritedSystem(error.into()),
        };
        if sockopt::socket_domain(&socket).map_err(system)? != AddressFamily::UNIX {
            return Err(BindError::Inherited("it is not a unix socket"));
        }
        if sockopt::socket_type(&socket).map_err(system)? != SocketType::STREAM {
            return Err(BindError::Inherited("it is not a stream socket"));
        }
        if !sockopt::socket_acceptconn(&socket).map_err(system)? {
            return Err(BindError::Inherited("it does not listen"));
        }
        let flags = rustix::fs::fcntl_getfl(&socket).map_err(system)?;
        rustix::fs::fcntl_setfl(&socket, flags | OFlags::NONBLOCK).map_err(system)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(system)?;
        Ok(Endpoint { socket, file: None })
    }

    /// Takes over the socket of an endpoint that was handed over, and its file.
    pub fn adopt(socket: OwnedFd, file: Option<SocketFile>) -> Result<Endpoint, BindError> {
        let mut endpoint = Endpoint::from_fd(socket)?;
        endpoint.file = file;
        Ok(endpoint)
    }

    /// A duplicate of the socket, and its file.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn state(&self) -> io::Result<(OwnedFd, Option<SocketFile>)> {
        Ok((self.socket.try_clone()?, self.file.clone()))
    }

    /// Where the socket was bound. `None` for an inherited one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// One waiting connection.
    pub(crate) fn accept(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(accept_with(&self.socket, flags)?)
    }
}

impl AsFd for Endpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            Some(path) => write!(f, "socket {}", path.display()),
            None => f.write_str("inherited socket"),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        if let Err(error) = file.remove() {
            tracing::warn!("cannot remove {self}: {error}");
        }
    }
}
