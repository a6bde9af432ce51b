//! The socket that clients of a stream connect to: bound by us, or inherited.

use super::Admission;
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use values::Listen;
use vhost_user::{BindError, Endpoint, EndpointState, SocketFile, SocketOptions};

/// Connections that wait before the kernel refuses more. Each waits for one turn of the listening thread.
const BACKLOG: i32 = 128;

/// Why nobody can connect.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum StreamError {
    /// {0}
    Bind(#[from] BindError),
    /// {address}: cannot {action}: {error}
    System {
        /// The address that was asked for.
        address: Listen,
        /// What failed.
        action: &'static str,
        /// How it failed.
        error: io::Error,
    },
    /// {0}: another process listens there; stop it or choose another port
    InUse(Listen),
    /// {0}: an inherited descriptor is not bound to an address
    Inherited(Listen),
    /// inherited descriptor: {0}; pass a stream socket (unix, TCP or vsock) that listens or is connected
    Kind(&'static str),
    /// inherited descriptor: {0}
    Descriptor(io::Error),
}

/// A socket that clients of a stream connect to, or one that a client is connected to already.
#[derive(Debug)]
pub struct StreamListener {
    socket: Socket,
    address: Listen,
    admission: Admission,
}

#[derive(Debug)]
enum Socket {
    /// It listens at a path.
    Unix(Endpoint),
    /// It listens.
    Listening(OwnedFd),
    /// It is a connection.
    Connected(OwnedFd),
}

impl StreamListener {
    /// Listens at `address`. `options` are the file's of a unix socket; a stale file of that kind is replaced.
    ///
    /// # Errors
    /// What the system says of it, or an address that is an inherited descriptor: that is for [`from_fd`](Self::from_fd).
    pub fn bind(address: &Listen, options: &SocketOptions) -> Result<StreamListener, StreamError> {
        let (socket, address) = match address {
            Listen::Unix(path) => (Socket::Unix(Endpoint::bind_for(path, options, BACKLOG)?), address.clone()),
            Listen::Tcp(tcp) => {
                let socket = bind_tcp(tcp, address)?;
                let bound = address_of(socket.as_fd()).unwrap_or_else(|| address.clone());
                (Socket::Listening(socket), bound)
            }
            Listen::Vsock { cid, port } => (Socket::Listening(bind_vsock(*cid, *port, address)?), address.clone()),
            Listen::Fd(_) => return Err(StreamError::Inherited(address.clone())),
        };
        Ok(StreamListener { socket, address, admission: Admission::default() })
    }

    /// Looks whether [`bind`](Self::bind) would be refused at `address`. Nothing listens there meanwhile, and no file is made; whether somebody
    /// else listens at a path is not seen.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind) that can be foreseen.
    pub fn check(address: &Listen) -> Result<(), StreamError> {
        match address {
            Listen::Unix(path) => vhost_user::check_socket(path).map_err(StreamError::from),
            Listen::Tcp(tcp) => bound_tcp(tcp, address).map(drop),
            Listen::Vsock { cid, port } => bound_vsock(*cid, *port, address).map(drop),
            Listen::Fd(_) => Ok(()),
        }
    }

    /// The same socket for these clients alone.
    #[must_use]
    pub fn admitting(self, admission: Admission) -> StreamListener {
        StreamListener { admission, ..self }
    }

    /// Whether the kernel can name the users who connect: it is a unix socket.
    pub fn knows_users(&self) -> bool {
        sockopt::socket_domain(self.as_fd()) == Ok(AddressFamily::UNIX)
    }

    /// Takes over a stream socket that listens, such as one inherited from systemd, or that a client is connected to, such
    /// as one end of a pair whose other end is mounted by `trans=fd`. What it is called is left alone.
    ///
    /// # Errors
    /// Any other descriptor.
    pub fn from_fd(socket: OwnedFd) -> Result<StreamListener, StreamError> {
        let system = |error: Errno| match error {
            Errno::NOTSOCK => StreamError::Kind("it is not a socket"),
            error => StreamError::Descriptor(error.into()),
        };
        let domain = sockopt::socket_domain(&socket).map_err(system)?;
        if ![AddressFamily::UNIX, AddressFamily::INET, AddressFamily::INET6, AddressFamily::VSOCK].contains(&domain) {
            return Err(StreamError::Kind("it is a socket of another kind"));
        }
        if sockopt::socket_type(&socket).map_err(system)? != SocketType::STREAM {
            return Err(StreamError::Kind("it is not a stream socket"));
        }
        let address = address_of(socket.as_fd()).unwrap_or(Listen::Fd(socket.as_raw_fd()));
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC).map_err(system)?;
        let listens = sockopt::socket_acceptconn(&socket).map_err(system)?;
        set_blocking(socket.as_fd(), !listens).map_err(system)?;
        if listens {
            return Ok(StreamListener { socket: Socket::Listening(socket), address, admission: Admission::default() });
        }
        match rustix::net::getpeername(&socket) {
            Ok(_) => Ok(StreamListener { socket: Socket::Connected(socket), address, admission: Admission::default() }),
            Err(Errno::NOTCONN) => Err(StreamError::Kind("it neither listens nor is connected")),
            Err(error) => Err(StreamError::Descriptor(error.into())),
        }
    }

    /// Takes over the socket of a listener that was handed over, and its file.
    ///
    /// # Errors
    /// As for [`from_fd`](Self::from_fd).
    pub fn adopt(socket: OwnedFd, file: Option<SocketFile>) -> Result<StreamListener, StreamError> {
        let Some(file) = file else {
            return Self::from_fd(socket);
        };
        let address = Listen::Unix(file.path.clone());
        let socket = Socket::Unix(Endpoint::adopt(socket, Some(file))?);
        Ok(StreamListener { socket, address, admission: Admission::default() })
    }

    /// Where clients connect: as it was asked for, with the port that was given where 0 was asked for.
    pub fn address(&self) -> &Listen {
        &self.address
    }

    /// Who may connect.
    pub fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Splits it into what listens and the client that is connected already: it is one or the other.
    pub(super) fn into_parts(self) -> (Option<StreamListener>, Option<OwnedFd>) {
        match self.socket {
            Socket::Connected(connection) => (None, Some(connection)),
            socket => (Some(StreamListener { socket, ..self }), None),
        }
    }

    /// One waiting connection, in blocking mode.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        Ok(rustix::net::accept_with(self, SocketFlags::CLOEXEC)?)
    }

    /// What another program needs to go on with it.
    pub(super) fn state(&self) -> io::Result<EndpointState> {
        let (socket, file) = match &self.socket {
            Socket::Unix(endpoint) => endpoint.state()?,
            Socket::Listening(socket) | Socket::Connected(socket) => (socket.try_clone()?, None),
        };
        Ok(EndpointState { socket, file, session: None })
    }
}

impl AsFd for StreamListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(endpoint) => endpoint.as_fd(),
            Socket::Listening(socket) | Socket::Connected(socket) => socket.as_fd(),
        }
    }
}

impl fmt::Display for StreamListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

/// A new connection is made fit for short messages that wait for each other.
pub(super) fn prepare(connection: BorrowedFd<'_>) {
    // None of these is needed, and a socket that refuses them works as well.
    match sockopt::socket_domain(connection) {
        Ok(AddressFamily::INET | AddressFamily::INET6) => {
            let _ = sockopt::set_tcp_nodelay(connection, true);
            // A client whose machine is gone says nothing any more: its locks and its place are free after two minutes. One that
            // only does not read is left alone.
            let _ = sockopt::set_socket_keepalive(connection, true);
            let _ = sockopt::set_tcp_keepidle(connection, KEEPALIVE_IDLE);
            let _ = sockopt::set_tcp_keepintvl(connection, KEEPALIVE_INTERVAL);
            let _ = sockopt::set_tcp_keepcnt(connection, KEEPALIVE_PROBES);
        }
        // The kernel takes what it allows: large replies then take fewer turns.
        Ok(AddressFamily::UNIX) => {
            let _ = sockopt::set_socket_send_buffer_size(connection, SEND_BUFFER_BYTES);
        }
        _ => {}
    }
}

/// When a silent TCP client is asked whether it is there, and how often.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;
/// What is asked for of a unix socket, in bytes.
const SEND_BUFFER_BYTES: usize = 1 << 20;

fn set_blocking(socket: BorrowedFd<'_>, blocking: bool) -> rustix::io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(socket)?;
    let flags = if blocking { flags - OFlags::NONBLOCK } else { flags | OFlags::NONBLOCK };
    rustix::fs::fcntl_setfl(socket, flags)
}

/// The TCP address that a socket is bound to.
fn address_of(socket: BorrowedFd<'_>) -> Option<Listen> {
    let bound = rustix::net::getsockname(socket).ok()?;
    SocketAddr::try_from(bound).ok().map(Listen::Tcp)
}

fn failed(address: &Listen, action: &'static str) -> impl Fn(Errno) -> StreamError {
    move |error| match error {
        Errno::ADDRINUSE => StreamError::InUse(address.clone()),
        error => StreamError::System { address: address.clone(), action, error: error.into() },
    }
}

fn new_socket(family: AddressFamily, address: &Listen) -> Result<OwnedFd, StreamError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None).map_err(failed(address, "create a socket"))
}

fn bind_tcp(tcp: &SocketAddr, address: &Listen) -> Result<OwnedFd, StreamError> {
    let socket = bound_tcp(tcp, address)?;
    rustix::net::listen(&socket, BACKLOG).map_err(failed(address, "listen"))?;
    Ok(socket)
}

/// A socket that does not listen yet.
fn bound_tcp(tcp: &SocketAddr, address: &Listen) -> Result<OwnedFd, StreamError> {
    let family = if tcp.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = new_socket(family, address)?;
    // Connections of an earlier life that wait for their end must not keep the next one from listening.
    sockopt::set_socket_reuseaddr(&socket, true).map_err(failed(address, "reuse the address"))?;
    rustix::net::bind(&socket, tcp).map_err(failed(address, "bind it"))?;
    Ok(socket)
}

fn bind_vsock(cid: Option<u32>, port: u32, address: &Listen) -> Result<OwnedFd, StreamError> {
    let socket = bound_vsock(cid, port, address)?;
    rustix::net::listen(&socket, BACKLOG).map_err(failed(address, "listen"))?;
    Ok(socket)
}

/// A socket that does not listen yet.
fn bound_vsock(cid: Option<u32>, port: u32, address: &Listen) -> Result<OwnedFd, StreamError> {
    let socket = new_socket(AddressFamily::VSOCK, address)?;
    // SAFETY: integers and padding: zeroes are a value.
    let mut name: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    name.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    name.svm_cid = cid.unwrap_or(libc::VMADDR_CID_ANY);
    name.svm_port = port;
    let bytes = size_of::<libc::sockaddr_vm>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel reads `bytes` bytes of a value that is that long.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), bytes) };
    if result != 0 {
        let error = io::Error::last_os_error();
        let error = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        return Err(failed(address, "bind it")(error));
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::socketpair;
    use std::net::TcpStream;

    #[test]
    fn a_port_that_was_asked_for_as_0_is_shown_as_it_is() {
        let listener = StreamListener::bind(&"tcp::0".parse().unwrap(), &SocketOptions::default()).unwrap();
        let Listen::Tcp(address) = listener.address() else { panic!("{listener}") };
        assert_ne!(address.port(), 0);
        let client = TcpStream::connect(address).unwrap();
        let connection = listener.accept().unwrap();
        prepare(connection.as_fd());
        assert!(sockopt::tcp_nodelay(&connection).unwrap());
        assert!(sockopt::socket_keepalive(&connection).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&connection), Ok(KEEPALIVE_IDLE));
        let flags = rustix::fs::fcntl_getfl(&connection).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK), "io_uring does not wait for those");
        drop(client);

        let again = StreamListener::bind(listener.address(), &SocketOptions::default()).unwrap_err();
        assert_eq!(
            again.to_string(),
            format!("{listener}: another process listens there; stop it or choose another port")
        );
    }

    #[test]
    fn inherited_descriptors_listen_or_are_connected() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let (ours, _theirs) = pair();
        let number = ours.as_raw_fd();
        let listener = StreamListener::from_fd(ours).unwrap();
        assert_eq!(listener.to_string(), format!("fd:{number}"));
        let (listens, connection) = listener.into_parts();
        assert!(listens.is_none());
        let mode = rustix::fs::fcntl_getfl(connection.unwrap()).unwrap();
        assert!(!mode.contains(OFlags::NONBLOCK));

        let said = |fd: OwnedFd| StreamListener::from_fd(fd).unwrap_err().to_string();
        let hint = "pass a stream socket (unix, TCP or vsock) that listens or is connected";
        let file = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(said(file), format!("inherited descriptor: it is not a socket; {hint}"));
        let (datagrams, _other) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).unwrap();
        assert_eq!(said(datagrams), format!("inherited descriptor: it is not a stream socket; {hint}"));
        let fresh = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        assert_eq!(said(fresh), format!("inherited descriptor: it neither listens nor is connected; {hint}"));
    }

    #[test]
    fn a_file_at_the_path_goes_with_its_listener() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("9p.sock");
        let address = Listen::Unix(path.clone());
        let options = SocketOptions { mode: Some(0o600), ..SocketOptions::default() };
        let listener = StreamListener::bind(&address, &options).unwrap();
        assert_eq!(listener.to_string(), format!("unix:{}", path.display()));
        let state = listener.state().unwrap();
        assert!(state.file.is_some() && state.session.is_none());
        drop(listener);
        assert!(!path.exists());
        let fd = StreamListener::bind(&Listen::Fd(3), &options).unwrap_err();
        assert_eq!(fd.to_string(), "fd:3: an inherited descriptor is not bound to an address");
    }
}
