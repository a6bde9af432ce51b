//! The listening socket: made with care, removed at the end, and the identity of those who connect.

use super::connection::{CONNECTIONS_MAX, Connection};
use super::error::StartError;
use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

/// Connections that wait in the kernel's queue while all places are taken.
const CONNECTIONS_WAITING: i32 = 128;

/// Who is at the other end of a connection: the user id, or nothing if the kernel would not say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) Option<u32>);

impl Peer {
    /// Root may, and whoever runs the daemon.
    pub(super) fn may_control(self, own_uid: u32) -> bool {
        self.0.is_some_and(|uid| uid == 0 || uid == own_uid)
    }
}

impl Connected<IncomingStream<'_, Listener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Listener>) -> Self {
        *stream.remote_addr()
    }
}

/// A control socket that listens while nobody answers yet; callers wait. Dropping it removes the path, if the path is
/// still this socket's.
#[derive(Debug)]
pub struct ControlSocket {
    listener: std::os::unix::net::UnixListener,
    file: SocketFile,
}

/// A control socket on its way to another program.
#[derive(Debug)]
pub struct ControlSocketState {
    /// The listening socket.
    pub socket: OwnedFd,
    /// Where it was made.
    pub path: PathBuf,
    /// Number of the file system of that path.
    pub device: u64,
    /// Number of its inode there.
    pub inode: u64,
}

/// The file of the socket, removed at the end.
#[derive(Debug)]
struct SocketFile(socket::File);

/// The control socket while it is served.
#[derive(Debug)]
pub(super) struct Listener {
    inner: UnixListener,
    places: Arc<Semaphore>,
    _file: SocketFile,
}

impl ControlSocket {
    /// Listens at `path`, for its owner alone. A socket that a dead daemon left behind is replaced. The directory of the
    /// socket is made when it is missing (its parent must be there).
    ///
    /// # Errors
    /// [`StartError`]; its message names the path and the fix.
    pub fn bind(path: &Path) -> Result<Self, StartError> {
        Self::bind_as(path, &socket::Options::default())
    }

    /// As [`ControlSocket::bind`], for the user and the group that the process is to become.
    ///
    /// # Errors
    /// As [`ControlSocket::bind`].
    pub fn bind_for(path: &Path, uid: u32, gid: u32) -> Result<Self, StartError> {
        Self::bind_as(path, &socket::Options { owner: Some(uid), group: Some(gid), ..socket::Options::default() })
    }

    /// Looks whether [`bind`](Self::bind) would be refused, and changes nothing; who may listen there already is not seen. Says whether it would
    /// make the directory of the socket.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind) that can be foreseen.
    pub fn check(path: &Path) -> Result<bool, StartError> {
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        let Some(missing) = directory.filter(|directory| !directory.exists()) else {
            socket::look(path)?;
            return Ok(false);
        };
        // As what a socket is made in, a directory is made in one that may be changed.
        match socket::look(missing) {
            Ok(_) => Ok(true),
            Err(socket::BindError::System { error: source, .. }) => {
                Err(StartError::Io { action: "make the directory of", path: path.to_owned(), source })
            }
            Err(other) => Err(other.into()),
        }
    }

    fn bind_as(path: &Path, options: &socket::Options) -> Result<Self, StartError> {
        if let Some(directory) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            match std::fs::create_dir(directory) {
                Err(source) if source.kind() != ErrorKind::AlreadyExists => {
                    let action = "make the directory of";
                    return Err(StartError::Io { action, path: path.to_owned(), source });
                }
                _ => {}
            }
        }
        let options = socket::Options { mode: Some(0o600), ..*options };
        let (socket, file) = socket::bind(path, &options, CONNECTIONS_WAITING)?;
        Ok(Self { listener: socket.into(), file: SocketFile(file) })
    }

    /// Takes over a socket that listens already, such as one that the service manager has made. Its file, if it has one, is
    /// left alone. Root and the daemon's own user are answered, whatever its mode.
    ///
    /// # Errors
    /// A descriptor that is no listening unix stream socket.
    pub fn inherited(socket: OwnedFd) -> io::Result<Self> {
        use rustix::net::{AddressFamily, SocketType, sockopt};
        let unix = sockopt::socket_domain(&socket)? == AddressFamily::UNIX;
        if !unix || sockopt::socket_type(&socket)? != SocketType::STREAM || !sockopt::socket_acceptconn(&socket)? {
            return Err(io::Error::other("it is not a listening unix stream socket"));
        }
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        let listener = std::os::unix::net::UnixListener::from(socket);
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let path = address.as_pathname().unwrap_or(Path::new("inherited")).to_owned();
        // No file has these numbers: it is somebody else's to remove.
        Ok(Self { listener, file: SocketFile(socket::File { path, device: 0, inode: 0 }) })
    }

    /// What another program needs to go on with the socket.
    ///
    /// # Errors
    /// No more descriptors.
    pub fn state(&self) -> io::Result<ControlSocketState> {
        let socket::File { path, device, inode } = self.file.0.clone();
        Ok(ControlSocketState { socket: self.listener.as_fd().try_clone_to_owned()?, path, device, inode })
    }

    /// Goes on with a socket that another program has made.
    ///
    /// # Errors
    /// A descriptor that is no socket.
    pub fn adopt(state: ControlSocketState) -> io::Result<Self> {
        let listener = std::os::unix::net::UnixListener::from(state.socket);
        listener.set_nonblocking(true)?;
        let file = socket::File { path: state.path, device: state.device, inode: state.inode };
        Ok(Self { listener, file: SocketFile(file) })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.file.0.path
    }

    /// Hands it to the runtime of this context.
    pub(super) fn into_listener(self) -> Result<Listener, StartError> {
        let Self { listener, file } = self;
        match UnixListener::from_std(listener) {
            Ok(inner) => Ok(Listener { inner, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)), _file: file }),
            Err(source) => Err(StartError::Io { action: "watch", path: file.0.path.clone(), source }),
        }
    }
}

impl axum::serve::Listener for Listener {
    type Io = Connection;
    type Addr = Peer;

    async fn accept(&mut self) -> (Connection, Peer) {
        // Those that find no place wait in the kernel's queue, which is short and refuses what does not fit.
        let place = self.places.clone().acquire_owned().await.ok();
        loop {
            match self.inner.accept().await {
                Ok((stream, _)) => {
                    let peer = Peer(stream.peer_cred().ok().map(|cred| cred.uid()));
                    return (Connection::new(stream, place), peer);
                }
                Err(error) => {
                    // Out of descriptors or memory: others may give some back. Never spin on it.
                    tracing::warn!(%error, "cannot accept a control connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer(None))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove() {
            tracing::warn!(%error, path = %self.0.path.display(), "cannot remove the control socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_others_is_served_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.sock");
        let theirs = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let ours = ControlSocket::inherited(theirs.into()).unwrap();
        assert_eq!(ours.path(), path);
        drop(ours);
        assert!(path.exists());
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(ControlSocket::inherited(one.into()).is_err());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(ControlSocket::inherited(file.into()).is_err());
    }

    #[test]
    fn only_root_and_the_daemons_user_may_control() {
        assert!(Peer(Some(0)).may_control(1000));
        assert!(Peer(Some(1000)).may_control(1000));
        assert!(!Peer(Some(1001)).may_control(1000));
        assert!(!Peer(Some(1000)).may_control(0));
        assert!(!Peer(None).may_control(0));
    }
}
