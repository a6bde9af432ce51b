//! The life of the control socket: modes, stale and live ones, stopping.

use crate::common::{Fake, Served};
use control::StartError;
use control::client::{Client, ClientError};
use control::model::Info;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

#[test]
fn the_socket_is_for_its_owner_alone_and_goes_when_the_server_stops() {
    let served = Served::new();
    let path = served.socket();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    served.server.stop();
    assert!(!path.exists());
}

#[test]
fn dropping_the_server_stops_it() {
    let served = Served::new();
    let (path, client) = (served.socket(), Client::new(served.socket()).unwrap());
    client.get::<Info>("/v1/info").unwrap();
    drop(served.server);
    assert!(!path.exists());
    assert!(matches!(client.get::<Info>("/v1/info"), Err(ClientError::Unreachable { .. })));
}

#[test]
fn a_missing_directory_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let server = control::start(&directory.path().join("vringd/control.sock"), Fake::with_content()).unwrap();
    Client::new(server.path()).unwrap().get::<Info>("/v1/info").unwrap();
    let error = control::start(&directory.path().join("a/b/control.sock"), Fake::with_content()).unwrap_err();
    assert!(error.to_string().starts_with("cannot make the directory of control socket"), "{error}");
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = control::start(&path, Fake::with_content()).unwrap();
    let error = control::start(&path, Fake::with_content()).unwrap_err();
    assert!(matches!(error, StartError::Bind(socket::BindError::InUse { .. })), "{error}");
    assert!(error.to_string().contains("control socket"), "{error}");
    Client::new(server.path()).unwrap().get::<Info>("/v1/info").unwrap();
}

#[test]
fn a_file_in_the_way_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    std::fs::write(&path, "precious").unwrap();
    let error = control::start(&path, Fake::with_content()).unwrap_err();
    assert!(matches!(error, StartError::Bind(socket::BindError::NotASocket { .. })), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_server_leaves_the_socket_of_its_successor() {
    let served = Served::new();
    let path = served.socket();
    std::fs::remove_file(&path).unwrap();
    let successor = control::start(&path, Fake::with_content()).unwrap();
    served.server.stop();
    assert!(path.exists());
    Client::new(successor.path()).unwrap().get::<Info>("/v1/info").unwrap();
}

#[test]
fn callers_of_a_bound_socket_wait_until_it_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let socket = control::ControlSocket::bind(&path).unwrap();
    assert_eq!(socket.path(), path);
    let waiting = Client::new(path.clone()).unwrap();
    let caller = std::thread::spawn(move || waiting.get::<Info>("/v1/info").map(|info| info.exports));
    let server = control::serve(socket, Fake::with_content()).unwrap();
    assert_eq!(caller.join().unwrap().unwrap(), 2);
    drop(server);
    assert!(!path.exists());
    drop(control::ControlSocket::bind(&path).unwrap());
    assert!(!path.exists(), "a socket that is never served goes too");
}

/// The answer to a request by user `uid`, whatever the mode of the socket says.
fn ask_as(path: &std::path::Path, uid: u32) -> String {
    use rustix::process::Uid;
    use std::io::{Read, Write};

    let path = path.to_owned();
    // Who a thread is is its own affair (setresuid(2), "C library/kernel differences"), and ends with it.
    let thread = std::thread::spawn(move || {
        let uid = Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        let mut stream = std::os::unix::net::UnixStream::connect(path).unwrap();
        stream.write_all(b"GET /v1/info HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    thread.join().unwrap()
}

#[test]
fn the_kernels_word_counts_and_not_the_mode() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let served = Served::new();
    let open = |path: &std::path::Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open(served.directory.path(), 0o755);
    open(&served.socket(), 0o666);
    let answer = ask_as(&served.socket(), 65534);
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("\"forbidden\""), "{answer}");
    assert!(!answer.contains("uptime"), "{answer}");
    let answer = ask_as(&served.socket(), 0);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("uptime"), "{answer}");
}

/// Whoever opens more connections than are answered at once waits, and costs the daemon nothing meanwhile.
#[test]
fn connections_are_answered_a_bounded_number_at_once() {
    let served = Served::new();
    let path = served.socket();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let idle: Vec<_> = (0..64).map(|_| std::os::unix::net::UnixStream::connect(&path).unwrap()).collect();
    // The last place is taken when all have been accepted, each with a descriptor on either side.
    let client = Client::new(&path).unwrap();
    let (sender, answer) = std::sync::mpsc::channel();
    let asker = std::thread::spawn(move || {
        let _ = sender.send(client.get::<Info>("/v1/info"));
    });
    let before = descriptors();
    assert!(
        matches!(
            answer.recv_timeout(std::time::Duration::from_millis(300)),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout)
        ),
        "it has to wait for a place"
    );
    assert!(descriptors() <= before + 64 + 2);
    drop(idle);
    answer.recv_timeout(std::time::Duration::from_secs(60)).unwrap().unwrap();
    asker.join().unwrap();
}

#[test]
fn a_server_that_lives_shows_a_pulse() {
    let served = Served::new();
    let pulse = served.server.pulse();
    assert!(pulse.answers(std::time::Duration::from_secs(60)));
    served.server.stop();
    assert!(!pulse.answers(std::time::Duration::from_secs(1)));
}
