//! The listening socket and its file.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;

use tempfile::TempDir;
use vhost_user::{BindError, Endpoint, SocketOptions};

fn bind(path: &Path) -> Result<Endpoint, BindError> {
    Endpoint::bind(path, &SocketOptions::default())
}

#[test]
fn a_bound_socket_takes_its_file_away() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.sock");
    let endpoint = bind(&path).unwrap();
    assert_eq!(endpoint.path(), Some(path.as_path()));
    assert!(path.symlink_metadata().unwrap().file_type().is_socket());
    UnixStream::connect(&path).unwrap();
    drop(endpoint);
    assert!(!path.exists());
}

#[test]
fn a_stale_socket_is_replaced() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "std leaves the file behind, like a crash");
    let _endpoint = bind(&path).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_live_socket_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.sock");
    let _first = bind(&path).unwrap();
    let error = bind(&path).unwrap_err();
    assert!(matches!(error, BindError::Path(socket::BindError::InUse { .. })), "{error}");
    assert!(error.to_string().contains("another process listens"), "{error}");
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_live_socket_with_a_full_backlog_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.sock");
    let first = bind(&path).unwrap();
    let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
    let flags = rustix::net::SocketFlags::NONBLOCK;
    let mut waiting = Vec::new();
    loop {
        let family = rustix::net::AddressFamily::UNIX;
        let socket = rustix::net::socket_with(family, rustix::net::SocketType::STREAM, flags, None).unwrap();
        if rustix::net::connect(&socket, &address).is_err() {
            break;
        }
        waiting.push(socket);
    }
    assert!(matches!(bind(&path), Err(BindError::Path(socket::BindError::InUse { .. }))));
    drop(first);
}

#[test]
fn a_live_datagram_socket_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.sock");
    let _other = UnixDatagram::bind(&path).unwrap();
    assert!(matches!(bind(&path), Err(BindError::Path(socket::BindError::InUse { .. }))));
    assert!(path.exists());
}

#[test]
fn files_that_are_no_sockets_are_never_removed() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("precious");
    fs::write(&file, "data").unwrap();
    let link = dir.path().join("link");
    symlink(&file, &link).unwrap();
    for path in [&file, &link, &dir.path().to_owned()] {
        let error = bind(path).unwrap_err();
        assert!(matches!(error, BindError::Path(socket::BindError::NotASocket { .. })), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(fs::read(&file).unwrap(), b"data");
}

#[test]
fn paths_that_cannot_be_bound_say_so() {
    let dir = TempDir::new().unwrap();
    let long = dir.path().join("x".repeat(120));
    let error = bind(&long).unwrap_err();
    assert!(matches!(error, BindError::Path(socket::BindError::Path { .. })), "{error}");
    assert!(error.to_string().contains("107 bytes"), "{error}");
    let error = bind(&dir.path().join("missing/a.sock")).unwrap_err();
    assert!(matches!(error, BindError::Path(socket::BindError::System { action: "bind it", .. })), "{error}");
}

#[test]
fn mode_and_owner_are_applied() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.sock");
    for mode in [0o600, 0o666, 0o060] {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let options = SocketOptions { mode: Some(mode), owner: Some(uid), group: Some(gid) };
        let _endpoint = Endpoint::bind(&path, &options).unwrap();
        let metadata = path.symlink_metadata().unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, mode);
        assert_eq!((metadata.uid(), metadata.gid()), (uid, gid));
    }
}

#[test]
fn another_socket_at_the_path_is_not_removed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.sock");
    let endpoint = bind(&path).unwrap();
    let moved = dir.path().join("b.sock");
    fs::rename(&path, &moved).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(endpoint);
    UnixStream::connect(&path).unwrap();
}

#[test]
fn an_inherited_socket_is_used_and_its_file_kept() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("a.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let endpoint = Endpoint::from_fd(OwnedFd::from(listener)).unwrap();
    assert_eq!(endpoint.path(), None);
    UnixStream::connect(&path).unwrap();
    drop(endpoint);
    assert!(path.exists());
}

#[test]
fn only_listening_unix_stream_sockets_are_inherited() {
    let refused = |fd: OwnedFd| Endpoint::from_fd(fd).unwrap_err().to_string();
    let file = fs::File::open("/dev/null").unwrap();
    assert!(refused(file.into()).contains("not a socket"));
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(refused(tcp.into()).contains("not a unix socket"));
    assert!(refused(UnixDatagram::unbound().unwrap().into()).contains("not a stream socket"));
    let (connected, _other) = UnixStream::pair().unwrap();
    assert!(refused(connected.into()).contains("does not listen"));
}
