//! The client's side of TLS, between a client that knows nothing of it and a server.

use super::server::HANG;
use rustix::event::{PollFd, PollFlags, poll};
use rustls::{ClientConfig, ClientConnection};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use testkit::certificates::SERVER_NAME;

/// Bytes that wait on their way to the client, at most.
const WAITING_BYTES_MAX: usize = 256 << 10;

/// Begins TLS over `server`, and goes on with what is said at the other end of the socket that is returned.
pub fn tunnel(server: UnixStream, config: Arc<ClientConfig>) -> UnixStream {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_read_timeout(Some(HANG)).unwrap();
    near.set_write_timeout(Some(HANG)).unwrap();
    let connection = ClientConnection::new(config, SERVER_NAME.try_into().unwrap()).unwrap();
    std::thread::spawn(move || Pump { server, client: far, connection, waiting: Vec::new(), said_all: false }.run());
    near
}

struct Pump {
    server: UnixStream,
    client: UnixStream,
    connection: ClientConnection,
    /// For the client.
    waiting: Vec<u8>,
    /// The client says no more.
    said_all: bool,
}

impl Pump {
    fn run(mut self) {
        self.server.set_nonblocking(true).unwrap();
        self.client.set_nonblocking(true).unwrap();
        while self.turn().is_some() {}
        // What has come is for the client still, with the end behind it.
        let _ = self.client.set_nonblocking(false);
        let _ = self.client.write_all(&self.waiting);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    /// Waits and does what can be done. `None` when all is over.
    fn turn(&mut self) -> Option<()> {
        let flag = |wanted, flag| if wanted { flag } else { PollFlags::empty() };
        let of_server = flag(self.waiting.len() < WAITING_BYTES_MAX, PollFlags::IN)
            | flag(self.connection.wants_write(), PollFlags::OUT);
        let of_client = flag(!self.said_all && !self.connection.wants_write(), PollFlags::IN)
            | flag(!self.waiting.is_empty(), PollFlags::OUT);
        let mut polled = [PollFd::new(&self.server, of_server), PollFd::new(&self.client, of_client)];
        poll(&mut polled, None).unwrap();
        let [server, client] = polled.map(|polled| polled.revents());
        if client.intersects(PollFlags::ERR | PollFlags::HUP) && self.said_all {
            // It is gone, and has said all.
            self.client.write_all(b"").ok()?;
            if self.client.write(&self.waiting).is_err() || self.waiting.is_empty() {
                return None;
            }
        }
        if server.contains(PollFlags::OUT) {
            self.connection.write_tls(&mut self.server).ok().or_else(|| self.is_late())?;
        }
        if server.intersects(PollFlags::IN | PollFlags::HUP) && of_server.contains(PollFlags::IN) {
            match self.connection.read_tls(&mut self.server) {
                Ok(0) => return None,
                Ok(_) => {
                    let heard = self.connection.process_new_packets();
                    let mut some = [0; 64 << 10];
                    while let Ok(bytes @ 1..) = self.connection.reader().read(&mut some) {
                        self.waiting.extend_from_slice(&some[..bytes]);
                    }
                    if heard.is_err() {
                        let _ = self.connection.write_tls(&mut self.server);
                        return None;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
        if of_client.contains(PollFlags::IN) && client.intersects(PollFlags::IN | PollFlags::HUP) {
            let mut some = [0; 32 << 10];
            match self.client.read(&mut some) {
                Ok(0) => {
                    self.said_all = true;
                    self.connection.send_close_notify();
                }
                Ok(bytes) => self.connection.writer().write_all(&some[..bytes]).unwrap(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
        if client.contains(PollFlags::OUT) {
            let written = self.client.write(&self.waiting).ok()?;
            self.waiting.drain(..written);
        }
        Some(())
    }

    /// The server hears no more, and may have said something.
    fn is_late(&mut self) -> Option<usize> {
        let mut some = Vec::new();
        let _ = self.server.read_to_end(&mut some);
        let mut left = &some[..];
        while !left.is_empty() && self.connection.read_tls(&mut left).is_ok() {
            let _ = self.connection.process_new_packets();
        }
        None
    }
}
