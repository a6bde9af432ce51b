//! The listening socket: bound by us at a path, or inherited.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use displaydoc::Display;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with, sockopt,
};
use thiserror::Error;

/// Connections that wait before the kernel refuses more. Only one is served at a time and the others are turned away
/// at once, so a short queue is enough.
const BACKLOG: i32 = 16;

/// Who may connect to the socket file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// Permission bits of the socket file, such as `0o660`. `None`: what the umask leaves.
    pub mode: Option<u32>,
    /// User id that owns the socket file. `None`: the process's own.
    pub owner: Option<u32>,
    /// Group id of the socket file. `None`: the process's own.
    pub group: Option<u32>,
}

/// A listening socket that frontends connect to. One that was bound at a path takes its file away when dropped.
#[derive(Debug)]
pub struct Endpoint {
    socket: OwnedFd,
    file: Option<SocketFile>,
}

/// The file that an endpoint made, so that it never removes another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFile {
    /// Where it was made.
    pub path: PathBuf,
    /// Number of its file system (st_dev).
    pub device: u64,
    /// Number of its inode.
    pub inode: u64,
}

/// Why there is no socket to listen on.
#[derive(Debug, Display, Error)]
pub enum BindError {
    /// socket {path:?}: the path is too long or contains a NUL byte; a socket path has at most 107 bytes, use a shorter directory
    Path {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// socket {path:?}: another process listens there; stop it or choose another path
    InUse {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// socket {path:?}: a file that is not a socket is in the way; remove it or choose another path
    NotASocket {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// socket {path:?}: cannot {action}: {error}; its directory must exist, and this user must be allowed to
    System {
        /// The path that was asked for.
        path: PathBuf,
        /// What failed.
        action: &'static str,
        /// How it failed.
        error: io::Error,
    },
    /// inherited descriptor: {0}; pass a listening unix stream socket
    Inherited(&'static str),
    /// inherited descriptor: {0}
    InheritedSystem(io::Error),
}

impl Endpoint {
    /// Listens at `path`.
    ///
    /// A socket file that nobody listens on (left by a crash) is replaced. A live one is [`BindError::InUse`]; a file
    /// that is no socket is never removed. Nobody can connect before mode and owner are set.
    pub fn bind(path: &Path, options: &SocketOptions) -> Result<Endpoint, BindError> {
        let fail = |action| move |error: io::Error| BindError::System { path: path.to_owned(), action, error };
        let address = SocketAddrUnix::new(path).map_err(|_| BindError::Path { path: path.to_owned() })?;
        remove_stale(path, &address)?;
        let socket = new_socket().map_err(fail("create a socket"))?;
        bind(&socket, &address).map_err(|error| match error {
            Errno::ADDRINUSE => BindError::InUse { path: path.to_owned() },
            error => fail("bind it")(error.into()),
        })?;
        let metadata = path.symlink_metadata().map_err(fail("look at it"))?;
        let file = SocketFile { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() };
        // From here on the endpoint's drop removes the file, whatever fails.
        let endpoint = Endpoint { socket, file: Some(file) };
        if options.owner.is_some() || options.group.is_some() {
            std::os::unix::fs::lchown(path, options.owner, options.group).map_err(fail("change its owner"))?;
        }
        if let Some(mode) = options.mode {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).map_err(fail("change its mode"))?;
        }
        listen(&endpoint.socket, BACKLOG).map_err(|error| fail("listen")(error.into()))?;
        Ok(endpoint)
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
        let ours = file.path.symlink_metadata().is_ok_and(|now| (now.dev(), now.ino()) == (file.device, file.inode));
        if ours && let Err(error) = std::fs::remove_file(&file.path) {
            tracing::warn!("cannot remove {self}: {error}");
        }
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Removes a socket file that nobody listens on.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), BindError> {
    let fail = |action, error| BindError::System { path: path.to_owned(), action, error };
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fail("look at it", error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(BindError::NotASocket { path: path.to_owned() });
    }
    let probe = new_socket().map_err(|error| fail("create a socket", error))?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(|error| fail("remove the stale socket", error)),
        // A full backlog (AGAIN) also means that somebody listens, and so does a datagram socket (PROTOTYPE).
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(BindError::InUse { path: path.to_owned() }),
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(fail("find out whether another process listens there", error.into())),
    }
}
