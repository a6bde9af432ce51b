//! One connection, whatever is said over it: bytes in, messages, replies, bytes out.
//!
//! There is one receive with the kernel while its ring can take requests, and none while the client does not read its replies.
//! Replies leave by a call of the worker's own at the end of each turn, and the kernel waits for what a client has no room for.

use super::buffers::Buffers;
use super::ends::Ends;
use super::inbox::{Front, Inbox, Room, Size};
use super::outbox::{Outbox, Sent};
use super::secure::{Handshakes, Secure, Stage};
use crate::queue::QueuePage;
use engine::{Io, Token};
use rustix::io::Errno;
use rustix::net::Shutdown;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use tls::{Certificates, Opened, SessionError};
use vhost_user::SessionEnd;

/// Replies that leave together while a batch goes on: the client works on them meanwhile.
const SEND_EVERY: usize = 8;
/// Bytes of replies that leave at once.
const SEND_BYTES: usize = 64 << 10;
/// Bytes that are sealed in a turn before the kernel waits for the client with what there is, and other rings have theirs. Where the
/// kernel must not wait, since the ring stops, another turn goes on.
const SEALED_BYTES_MAX: usize = 1 << 20;

/// The token of a receive.
pub(crate) const RECEIVE: Token = Token::other(0);
/// The token of a send that waits for the client.
pub(crate) const SEND: Token = Token::other(1);

/// The token of another turn, in which more is sealed.
pub(crate) const MORE: Token = Token::other(3);

/// One connection of a client.
pub(crate) struct Pipe {
    socket: OwnedFd,
    /// As of a virtqueue; sends count as notifications.
    page: Arc<QueuePage>,
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
    pub(crate) buffers: Buffers,
    /// What protects all of it, if anything does.
    secure: Option<Box<Secure>>,
    /// The kernel receives.
    receiving: bool,
    /// Why no more requests are taken.
    end: Option<SessionEnd>,
    /// Nobody waits for room to send any more.
    stopping: bool,
    /// Another turn seals more.
    more: bool,
    /// What the client asks for is done though it does not read what becomes of it.
    patient: bool,
    /// No reply reaches the client any more.
    unread: bool,
    /// Of a patient ring whose client has gone: how many bytes are still taken of it: those that had come by the time that it was known.
    mute: Option<u64>,
    ends: Arc<Ends>,
}

impl Pipe {
    /// A connection in blocking mode. `ends` is told when it is over.
    pub(crate) fn new(socket: OwnedFd, ends: Arc<Ends>) -> Pipe {
        Pipe {
            socket,
            page: Arc::default(),
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            buffers: Buffers::default(),
            secure: None,
            receiving: false,
            end: None,
            stopping: false,
            more: false,
            patient: false,
            unread: false,
            mute: None,
            ends,
        }
    }

    /// From now on a client that hangs up has everything done that it has asked for before, unless the kernel has dropped it.
    pub(crate) fn be_patient(&mut self) {
        self.patient = true;
    }

    /// What anybody can read of it.
    pub(crate) fn page(&self) -> &Arc<QueuePage> {
        &self.page
    }

    /// Whether the client may ask for more: it is there, and reads what it is answered.
    #[inline]
    pub(crate) fn takes_more(&self) -> bool {
        self.end.is_none() && !self.lent()
    }

    /// Whether the kernel sends something.
    #[inline]
    fn lent(&self) -> bool {
        self.outbox.lent() || self.secure.as_ref().is_some_and(|secure| secure.lent)
    }

    /// What was not sent, in bytes.
    #[inline]
    fn unsent_bytes(&self) -> usize {
        self.outbox.bytes() + self.secure.as_ref().map_or(0, |secure| secure.unsent_bytes())
    }

    /// From now on all is protected by TLS, but for what is in the outbox already. Nothing was received of it.
    pub(crate) fn protect(&mut self, certificates: Arc<Certificates>, handshakes: Handshakes) {
        debug_assert!(self.inbox.bytes() == 0 && self.secure.is_none() && !self.receiving);
        self.secure = Some(Box::new(Secure::new(certificates, handshakes)));
    }

    /// Whether a handshake goes on elsewhere: nothing can be done here meanwhile.
    #[inline]
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.secure.as_ref().is_some_and(|secure| secure.is_elsewhere())
    }

    /// Goes on with a handshake. True when both sides know each other.
    pub(crate) fn shake(&mut self, io: &mut Io<'_>) -> bool {
        if self.receiving || !self.takes_more() {
            return false;
        }
        let Some(secure) = &mut self.secure else { return false };
        match &mut secure.stage {
            Stage::Begun(_) => return true,
            // The answer to who asked for it is the last word in the open.
            Stage::Open(_) if self.outbox.bytes() == 0 => secure.step(io),
            Stage::Open(_) | Stage::Elsewhere(_) | Stage::Over(_) => {}
            Stage::Shaking(_) if secure.fresh => secure.step(io),
            Stage::Shaking(_) => self.receive_sealed(io),
        }
        false
    }

    /// A step of a handshake has ended.
    pub(crate) fn shaken(&mut self) {
        let stepped = self.secure.as_mut().map(|secure| secure.stepped());
        if let Some(Err(error)) = stepped {
            self.fail(&error);
        }
    }

    /// Opens what has come while there is not all of a message, if the connection is protected. Returns whether there is.
    #[inline]
    pub(crate) fn open(&mut self, size: impl Fn(&[u8]) -> Size) -> bool {
        self.secure.is_some() && self.open_sealed(&size)
    }

    fn open_sealed(&mut self, size: &impl Fn(&[u8]) -> Size) -> bool {
        while !self.receiving && self.inbox.front(size) == Front::Part {
            let Some(secure) = &mut self.secure else { return false };
            let mut full = false;
            let (inbox, buffers) = (&mut self.inbox, &mut self.buffers);
            let opened = secure.open(&mut |data| full |= inbox.put(data, size, buffers).is_none());
            match opened {
                _ if full => self.finish(SessionEnd::Connection(io::ErrorKind::OutOfMemory.into())),
                Ok(Opened::Data) => continue,
                Ok(Opened::Nothing) => {}
                Ok(Opened::End) => self.finish(SessionEnd::Disconnected),
                Err(error) => self.fail(&error),
            }
            return false;
        }
        !self.receiving
    }

    /// Has the kernel receive more of what is sealed.
    fn receive_sealed(&mut self, io: &mut Io<'_>) {
        let Some(session) = self.secure.as_mut().and_then(|secure| secure.session()) else { return };
        match session.room() {
            Ok(room) => {
                let (place, bytes) = (NonNull::from(&mut *room).cast(), room.len());
                // SAFETY: the room lies behind all that has come in a buffer of the session's. Until the completion nothing is opened or
                // shaken, by which the buffer would change, and the session stays in its place.
                unsafe { io.receive(RECEIVE, self.socket.as_fd(), place, bytes, false) };
                self.receiving = true;
            }
            Err(error) => self.fail(&error),
        }
    }

    /// The client cannot be understood any more, or is not let in.
    fn fail(&mut self, error: &SessionError) {
        if let Some(secure) = &mut self.secure {
            secure.give_up();
        }
        self.outbox.clear();
        self.misspoke(error.to_string());
    }

    /// Whether no more requests are taken, ever.
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some()
    }

    /// Whether no reply reaches the client any more: what it only wants to know is not worth finding out.
    #[inline]
    pub(crate) fn is_unread(&self) -> bool {
        self.unread
    }

    /// Whether the kernel receives: there is not all of a message.
    #[inline]
    pub(crate) fn receiving(&self) -> bool {
        self.receiving
    }

    /// Whether the end of the turn will send something, and make room for more requests by that.
    pub(crate) fn will_send(&self) -> bool {
        self.unsent_bytes() > 0 && !self.lent()
    }

    /// What the kernel has of it: a receive, a send. And what another thread has, or another turn: a handshake, replies.
    pub(crate) fn in_flight(&self) -> usize {
        [self.receiving, self.lent(), self.is_elsewhere(), self.more].into_iter().map(usize::from).sum()
    }

    /// Has the kernel receive more, unless it does or there is all of a message.
    pub(crate) fn receive(&mut self, size: impl Fn(&[u8]) -> Size, io: &mut Io<'_>) {
        if self.receiving || self.open(&size) || self.inbox.front(&size) != Front::Part || self.end.is_some() {
            return;
        }
        if self.secure.as_mut().is_some_and(|secure| secure.has_opened_enough()) {
            // There may be more to open, which the next turn does.
            return;
        }
        if self.mute == Some(0) {
            return self.finish(SessionEnd::Disconnected);
        }
        if self.secure.is_some() {
            return self.receive_sealed(io);
        }
        let Some(Room { place, bytes, whole }) = self.inbox.room(&size, &mut self.buffers) else {
            return self.finish(SessionEnd::Connection(io::ErrorKind::OutOfMemory.into()));
        };
        // SAFETY: the room lies in the inbox's buffer, which nobody touches before the completion: messages are taken, and
        // room is made, only while nothing is received.
        unsafe { io.receive(RECEIVE, self.socket.as_fd(), place, bytes, whole) };
        self.receiving = true;
    }

    /// A receive has ended.
    pub(crate) fn received(&mut self, result: i32) {
        self.receiving = false;
        match result {
            1.. => {
                match &mut self.secure {
                    Some(secure) => secure.received(result as usize),
                    // SAFETY: the kernel wrote so many bytes to the place that it was given last.
                    None => unsafe { self.inbox.received(result as usize) },
                }
                self.mute = self.mute.map(|left| left.saturating_sub(result.unsigned_abs().into()));
            }
            0 => self.finish(SessionEnd::Disconnected),
            _ => match -result {
                // The ring has moved, or a signal came: the next turn receives again.
                libc::ECANCELED | libc::EINTR => {}
                libc::ECONNRESET | libc::EPIPE => self.finish(SessionEnd::Disconnected),
                error => self.finish(SessionEnd::Connection(io::Error::from_raw_os_error(error))),
            },
        }
    }

    /// Puts a reply behind all others: long ones as they are, short ones by a copy.
    pub(crate) fn reply(&mut self, reply: Vec<u8>) {
        self.outbox.push(reply, &mut self.buffers);
    }

    /// Puts a copy of a short reply behind all others.
    pub(crate) fn say(&mut self, reply: &[u8]) {
        self.outbox.say(reply, &mut self.buffers);
    }

    /// Sends while the turn goes on, if `unshown` replies are enough to be worth it. Returns whether it has.
    pub(crate) fn send_some(&mut self, unshown: usize, io: &mut Io<'_>) -> bool {
        let worth_it = unshown >= SEND_EVERY || self.outbox.bytes() >= SEND_BYTES;
        if worth_it {
            self.send(io);
        }
        worth_it
    }

    /// Sends what the client has room for, and has the kernel wait for the rest.
    pub(crate) fn send(&mut self, io: &mut Io<'_>) {
        if self.mute.is_some() {
            return self.clear();
        }
        if self.secure.as_ref().is_some_and(|secure| !matches!(secure.stage, Stage::Open(_))) {
            return self.send_sealed(io);
        }
        match self.outbox.send(self.socket.as_fd(), &mut self.buffers, &self.page.sent) {
            Sent::All => {}
            Sent::Full if self.outbox.lent() => {}
            Sent::Full if self.stopping => self.cut(),
            Sent::Full => {
                if let Some((place, bytes)) = self.outbox.lend() {
                    // SAFETY: a lent piece stays as it is until it is returned.
                    unsafe { io.send(SEND, self.socket.as_fd(), place, bytes) };
                }
            }
            Sent::Failed(error) => self.unsendable(error.into()),
        }
    }

    /// As [`send`](Self::send), of what has to be sealed first.
    fn send_sealed(&mut self, io: &mut Io<'_>) {
        let mut sealed_bytes = 0;
        loop {
            let Some(secure) = self.secure.as_mut().filter(|secure| !secure.lent && !self.more) else { return };
            if let Stage::Over(_) = secure.stage {
                // Of requests that were in flight: nobody seals it any more.
                self.outbox.clear();
            }
            if let Stage::Begun(session) = &mut secure.stage {
                while sealed_bytes < SEALED_BYTES_MAX {
                    match session.seal(self.outbox.first()) {
                        Ok(0) => break,
                        Ok(bytes) => {
                            sealed_bytes += bytes;
                            self.outbox.skip(bytes, &mut self.buffers);
                        }
                        Err(error) => return self.fail(&error),
                    }
                }
            }
            if sealed_bytes >= SEALED_BYTES_MAX && self.outbox.bytes() > 0 && !self.stopping {
                // The rest is for another turn.
                return self.lend_sealed(io);
            }
            match secure.send(self.socket.as_fd(), &self.page.sent) {
                // Who stops waits for nobody, so that the kernel must not either.
                Ok(true) if sealed_bytes >= SEALED_BYTES_MAX && self.outbox.bytes() > 0 => {
                    self.more = true;
                    return io.timer(MORE, io.now_ns());
                }
                Ok(true) if self.outbox.bytes() > 0 && matches!(secure.stage, Stage::Begun(_)) => {}
                Ok(true) => return,
                Ok(false) if self.stopping => return self.cut(),
                Ok(false) => return self.lend_sealed(io),
                Err(error) => return self.unsendable(error.into()),
            }
        }
    }

    /// Has the kernel wait for the client with what is sealed.
    fn lend_sealed(&mut self, io: &mut Io<'_>) {
        if let Some((place, bytes)) = self.secure.as_mut().and_then(|secure| secure.lend()) {
            // SAFETY: what is lent stays as it is until it is returned.
            unsafe { io.send(SEND, self.socket.as_fd(), place, bytes) };
        }
    }

    /// Drops what was not sent, and that the kernel does not have.
    fn clear(&mut self) {
        self.outbox.clear();
        if let Some(secure) = &mut self.secure {
            secure.clear();
        }
    }

    /// Nobody waits for room to send any more. What was sent last may be a part of a reply, and another one that comes later would look
    /// like the rest of it: nothing follows.
    fn cut(&mut self) {
        self.clear();
        self.hang_up(Shutdown::Both);
    }

    /// The next turn has come that seals more at its end.
    pub(crate) fn goes_on(&mut self) {
        self.more = false;
    }

    /// A send has ended that waited for the client.
    pub(crate) fn sent(&mut self, result: i32) {
        let bytes = usize::try_from(result).unwrap_or_default();
        match &mut self.secure {
            Some(secure) if secure.lent => secure.returned(bytes),
            _ => self.outbox.returned(bytes, &mut self.buffers),
        }
        match -result {
            // It is sent again.
            ..=0 | libc::EINTR | libc::EAGAIN | libc::ENOBUFS | libc::ECANCELED => {}
            error => self.unsendable(io::Error::from_raw_os_error(error)),
        }
    }

    /// Nobody reads replies any more.
    fn unsendable(&mut self, error: io::Error) {
        self.clear();
        self.unread = true;
        let gone = matches!(Errno::from_io_error(&error), Some(Errno::PIPE | Errno::CONNRESET));
        if gone && self.patient {
            // The end of what it has sent is its end. More may come of one that only does not read.
            let left = rustix::io::ioctl_fionread(&self.socket).unwrap_or_default();
            self.mute = Some(left);
            if left == 0 {
                self.hang_up(Shutdown::Read);
            }
            return;
        }
        self.hang_up(Shutdown::Both);
        self.finish(if gone { SessionEnd::Disconnected } else { SessionEnd::Connection(error) });
    }

    /// Takes no more requests. Those that are in flight end.
    pub(crate) fn finish(&mut self, why: SessionEnd) {
        self.end.get_or_insert(why);
    }

    /// As [`finish`](Self::finish), since what the client has sent is no message.
    pub(crate) fn misspoke(&mut self, why: String) {
        self.finish(SessionEnd::Connection(io::Error::new(io::ErrorKind::InvalidData, why)));
    }

    /// The turn is over, with so many requests in flight: sends, and tells the listening thread when all is over, once.
    pub(crate) fn show(&mut self, ring: u16, requests_in_flight: usize, io: &mut Io<'_>) {
        self.page.in_flight.set(requests_in_flight as u64);
        self.send(io);
        let idle = requests_in_flight == 0 && self.in_flight() == 0 && self.unsent_bytes() == 0;
        if idle && !self.stopping && self.end.is_some() {
            // It is detached next, which is when it stops.
            self.stopping = true;
            let why = self.end.replace(SessionEnd::Stopped).unwrap_or(SessionEnd::Stopped);
            self.ends.tell(ring, why);
        }
    }

    /// Its ring is stopped. Replies that are ready are still sent, as far as the client takes them at once.
    pub(crate) fn drain(&mut self) {
        self.stopping = true;
        self.finish(SessionEnd::Stopped);
        self.secure.iter_mut().for_each(|secure| secure.leave());
        self.hang_up(if self.lent() { Shutdown::Both } else { Shutdown::Read });
    }

    /// Its ring is lost.
    pub(crate) fn lost(&self) {
        self.hang_up(Shutdown::Both);
    }

    fn hang_up(&self, how: Shutdown) {
        // A socket whose other end is gone has been shut down.
        let _ = rustix::net::shutdown(&self.socket, how);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::SHAKEN;
    use engine::{Completion, Solo};
    use rustls::ClientConnection;
    use std::net::{TcpListener, TcpStream};
    use std::thread::{self, JoinHandle};
    use testkit::certificates::{Authority, SERVER_NAME, client};
    use values::Tls;

    fn ended(pipe: &mut Pipe, completion: Completion) {
        match completion.token {
            RECEIVE => pipe.received(completion.result),
            SEND => pipe.sent(completion.result),
            SHAKEN => pipe.shaken(),
            MORE => pipe.goes_on(),
            token => panic!("{token:?}"),
        }
    }

    /// A connection whose handshake is over, and its client. TCP: sockets that take more than a turn seals.
    fn connected(solo: &mut Solo) -> (Pipe, JoinHandle<(ClientConnection, TcpStream)>) {
        let directory = tempfile::tempdir().unwrap();
        Authority::new("one").fill(directory.path());
        let about = Tls { certificates: directory.path().to_owned(), clients_may_be_anonymous: false };
        let certificates = Arc::new(Certificates::read(&about).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, config) = (listener.local_addr().unwrap(), client(directory.path(), true, &[]));
        let client = thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let mut connection = ClientConnection::new(config, SERVER_NAME.try_into().unwrap()).unwrap();
            connection.complete_io(&mut stream).unwrap();
            (connection, stream)
        });
        let mut pipe = Pipe::new(listener.accept().unwrap().0.into(), Arc::new(Ends::new().unwrap()));
        pipe.protect(certificates, Handshakes::new());
        while !pipe.shake(&mut solo.io()) {
            pipe.send(&mut solo.io());
            let completion = solo.wait().unwrap();
            ended(&mut pipe, completion);
            assert!(!pipe.is_over());
        }
        (pipe, client)
    }

    #[test]
    fn who_stops_seals_no_more_in_a_turn_than_others() {
        let mut solo = Solo::new().unwrap();
        let (mut pipe, client) = connected(&mut solo);
        let client = client.join().unwrap();
        let replies_bytes = 64 * SEND_BYTES;
        (0..64).for_each(|_| pipe.reply(vec![7; SEND_BYTES]));
        pipe.drain();
        pipe.send(&mut solo.io());
        // The client does not read, and the sockets take as much.
        let left_bytes = pipe.outbox.bytes();
        assert!((1..=replies_bytes - SEALED_BYTES_MAX).contains(&left_bytes), "{left_bytes}");
        assert!(left_bytes > replies_bytes - SEALED_BYTES_MAX - SEND_BYTES, "{left_bytes}");
        assert_eq!(pipe.in_flight(), 1, "nobody comes back");
        // More is sealed by another turn alone, and in the end there is no more room.
        pipe.send(&mut solo.io());
        assert_eq!(pipe.outbox.bytes(), left_bytes);
        while pipe.in_flight() > 0 {
            let completion = solo.wait().unwrap();
            assert_eq!(completion.token, MORE);
            ended(&mut pipe, completion);
            pipe.send(&mut solo.io());
        }
        assert_eq!(pipe.unsent_bytes(), 0);
        drop(client);
    }
}
