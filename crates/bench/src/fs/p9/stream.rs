//! Messages on a socket: sent as many at a time as there are, received as many as have come.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use super::channel::{Reply, Request, Slots};
use super::wire::{HEADER_BYTES, Header, WRITE_HEAD_BYTES};
use crate::bytes::Encoder;
use crate::fs::patience::LOOK_INTERVAL;
use crate::fs::protocol::Address;

/// Room for a request without data, at most a Twalk with all its names.
const REQUEST_BYTES: usize = 5120;
/// Messages in one call.
const SENT_AT_ONCE_MAX: usize = 64;
/// What is received in one call, at least.
const RECEIVED_AT_ONCE: usize = 1 << 20;

/// A request as it is sent.
struct Message {
    bytes: Box<[u8]>,
    len: usize,
}

/// A connection with its slots.
pub(crate) struct Stream {
    socket: OwnedFd,
    pub(super) slots: Slots,
    /// Of each slot.
    messages: Box<[Message]>,
    /// Slots whose messages have not been sent whole, and how much of the first has been.
    unsent: VecDeque<u16>,
    sent: usize,
    inbox: Inbox,
}

impl Stream {
    /// Connects to `address`, with `depth` slots of `data_bytes` of data each, for messages of at most `msize` bytes.
    pub(crate) fn connect(address: &Address, depth: u16, data_bytes: usize, msize: u32) -> io::Result<Self> {
        let socket = match address {
            Address::Path(path) => OwnedFd::from(UnixStream::connect(path)?),
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                OwnedFd::from(stream)
            }
        };
        // A sleep is a blocking recv(2) that ends after this time.
        set_socket_timeout(&socket, Timeout::Recv, Some(LOOK_INTERVAL))?;
        let message_bytes = REQUEST_BYTES.max(WRITE_HEAD_BYTES + data_bytes);
        let message = |_| Message { bytes: vec![0; message_bytes].into_boxed_slice(), len: 0 };
        Ok(Self {
            socket,
            slots: Slots::new(depth),
            messages: (0..depth).map(message).collect(),
            unsent: VecDeque::new(),
            sent: 0,
            inbox: Inbox::new(msize as usize),
        })
    }

    /// As [`super::channel::Channel::submit`].
    pub(super) fn submit(&mut self, slot: u16, request: Request, encode: impl FnOnce(&mut Encoder<'_>)) {
        let tag = self.slots.give(slot, request);
        let message = &mut self.messages[usize::from(slot)];
        let mut fields = Encoder::new(&mut message.bytes[HEADER_BYTES..]);
        encode(&mut fields);
        let front = HEADER_BYTES + fields.len();
        // The data lies behind the fields of Twrite, where the slot keeps it.
        assert!(request.data_out == 0 || front == WRITE_HEAD_BYTES);
        message.len = front + request.data_out;
        assert!(message.len <= message.bytes.len());
        Encoder::new(&mut message.bytes).header(message.len as u32, request.kind, tag);
        self.unsent.push_back(slot);
    }

    /// Sends what was entered, as much as the socket takes now; the rest goes while a reply is waited for.
    pub(super) fn publish(&mut self) -> Result<()> {
        while !self.unsent.is_empty() {
            let mut parts = [IoSlice::new(&[]); SENT_AT_ONCE_MAX];
            let mut count = 0;
            for (part, slot) in parts.iter_mut().zip(&self.unsent) {
                let message = &self.messages[usize::from(*slot)];
                let from = if count == 0 { self.sent } else { 0 };
                *part = IoSlice::new(&message.bytes[from..message.len]);
                count += 1;
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.socket, &parts[..count], &mut SendAncillaryBuffer::default(), flags) {
                Ok(bytes) => self.advance(bytes),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot send to the server"),
            }
        }
        Ok(())
    }

    /// Notes that `bytes` more have been sent.
    fn advance(&mut self, bytes: usize) {
        let mut sent = self.sent + bytes;
        while let Some(slot) = self.unsent.front() {
            let len = self.messages[usize::from(*slot)].len;
            if sent < len {
                break;
            }
            sent -= len;
            self.unsent.pop_front();
        }
        self.sent = sent;
    }

    /// Whether a whole reply has come, without sleeping for one.
    pub(super) fn has_reply(&mut self) -> Result<bool> {
        if self.inbox.next()?.is_some() {
            return Ok(true);
        }
        self.publish()?;
        while self.receive(RecvFlags::DONTWAIT)? {
            if self.inbox.next()?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sleeps until a whole reply has come; false when nothing happened for `limit`, which is [`LOOK_INTERVAL`].
    pub(super) fn sleep(&mut self, limit: Duration) -> Result<bool> {
        while self.inbox.next()?.is_none() {
            let has_moved = if self.unsent.is_empty() {
                self.receive(RecvFlags::empty())?
            } else {
                // Both at once: a server may take no more requests before its replies are taken.
                self.send_or_receive(limit)?
            };
            if !has_moved {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn send_or_receive(&mut self, limit: Duration) -> Result<bool> {
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN | PollFlags::OUT)];
        match poll(&mut fds, Some(&limit)) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the server"),
        }
        self.publish()?;
        self.receive(RecvFlags::DONTWAIT)?;
        Ok(true)
    }

    /// Receives what has come; whether anything has.
    fn receive(&mut self, flags: RecvFlags) -> Result<bool> {
        match recv(&self.socket, self.inbox.room(), flags) {
            Ok((_, 0)) => bail!("the server closed the connection with {} requests in flight", self.slots.in_flight()),
            Ok((_, bytes)) => {
                self.inbox.end += bytes;
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(error).context("cannot receive from the server"),
        }
    }

    /// As [`super::channel::Channel::take`].
    pub(super) fn take(&mut self) -> Result<Option<Reply>> {
        let Some(header) = self.inbox.next()? else { return Ok(None) };
        let at = self.inbox.start;
        let slot = self.slots.by_tag(header.tag)?;
        let reply = self.slots.judge(slot, &self.inbox.bytes[at..at + header.size as usize], at)?;
        self.inbox.start += header.size as usize;
        Ok(Some(reply))
    }

    /// What is in a reply behind its first `front` bytes.
    pub(super) fn received(&self, reply: Reply, front: usize) -> &[u8] {
        let start = reply.at + front;
        &self.inbox.bytes[start..start + reply.len]
    }

    /// As [`super::channel::Channel::data_mut`].
    pub(super) fn data_mut(&mut self, slot: u16) -> &mut [u8] {
        &mut self.messages[usize::from(slot)].bytes[WRITE_HEAD_BYTES..]
    }
}

/// What has been received and not been taken.
struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// The longest message.
    msize: usize,
}

impl Inbox {
    fn new(msize: usize) -> Self {
        // Room for a whole message behind the beginning of another.
        let bytes = vec![0; (2 * msize).max(RECEIVED_AT_ONCE)].into_boxed_slice();
        Self { bytes, start: 0, end: 0, msize }
    }

    /// The header of the first message, if that is here whole.
    fn next(&self) -> Result<Option<Header>> {
        let here = &self.bytes[self.start..self.end];
        if here.len() < HEADER_BYTES {
            return Ok(None);
        }
        let header = Header::parse(here)?;
        let size = header.size as usize;
        ensure!((HEADER_BYTES..=self.msize).contains(&size), "a message of {size} bytes; msize is {}", self.msize);
        Ok((size <= here.len()).then_some(header))
    }

    /// Where more goes, while there is no whole message.
    fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.bytes.len() - self.end < self.bytes.len() / 2 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::bytes::encoded;
    use crate::fs::p9::channel::Channel;
    use crate::fs::p9::wire::kind;

    const MSIZE: u32 = 8192;

    /// A connection and its other end.
    fn pair(depth: u16) -> (Channel, UnixStream) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let stream = Stream::connect(&Address::Path(path), depth, 4096, MSIZE).unwrap();
        (Channel::Stream(stream), listener.accept().unwrap().0)
    }

    fn reply(kind: u8, tag: u16, fields: &[u8]) -> Vec<u8> {
        encoded(|e| _ = e.header((HEADER_BYTES + fields.len()) as u32, kind, tag).bytes(fields))
    }

    #[test]
    fn replies_in_any_order_and_in_pieces_find_their_slots() {
        let (mut channel, mut server) = pair(3);
        for slot in 0..3 {
            channel.submit(slot, Request { kind: kind::TCLUNK, ..Request::default() }, |f| _ = f.u32(slot.into()));
        }
        channel.publish().unwrap();
        let mut seen = [0; 33];
        server.read_exact(&mut seen).unwrap();
        assert_eq!(seen[11..22], *b"\x0b\0\0\0\x78\x01\0\x01\0\0\0");
        let all: Vec<u8> = [2, 0, 1].into_iter().flat_map(|tag| reply(kind::TCLUNK + 1, tag, &[])).collect();
        server.write_all(&all[..10]).unwrap();
        channel.wait(None).unwrap();
        assert_eq!(channel.take().unwrap().unwrap().slot, 2);
        assert_eq!(channel.take().unwrap(), None);
        assert!(!channel.has_reply().unwrap(), "three bytes are no message");
        server.write_all(&all[10..]).unwrap();
        channel.wait(None).unwrap();
        assert_eq!(channel.take().unwrap().unwrap().slot, 0);
        assert_eq!(channel.take().unwrap().unwrap().slot, 1);
        assert_eq!(channel.slots().in_flight(), 0);
    }

    #[test]
    fn data_goes_out_behind_its_fields_and_comes_back() {
        let (mut channel, mut server) = pair(1);
        channel.data_mut(0)[..4].copy_from_slice(b"abcd");
        let write = Request { kind: kind::TWRITE, data_out: 4, ..Request::default() };
        channel.submit(0, write, |f| _ = f.span(1, 2, 4));
        channel.publish().unwrap();
        let mut seen = [0; WRITE_HEAD_BYTES + 4];
        server.read_exact(&mut seen).unwrap();
        assert_eq!((seen[0], &seen[WRITE_HEAD_BYTES..]), (27, &b"abcd"[..]));
        server.write_all(&reply(kind::TWRITE + 1, 0, &[4, 0, 0, 0])).unwrap();
        channel.wait(None).unwrap();
        let written = channel.take().unwrap().unwrap();
        assert_eq!(channel.fields(written), [4, 0, 0, 0]);
        let read = Request { kind: kind::TREAD, data_in: 4, ..Request::default() };
        channel.submit(0, read, |f| _ = f.span(1, 2, 4));
        channel.publish().unwrap();
        server.write_all(&reply(kind::TREAD + 1, 0, b"\x03\0\0\0xyz")).unwrap();
        channel.wait(None).unwrap();
        let seen = channel.take().unwrap().unwrap();
        assert_eq!(channel.data(seen), b"xyz");
    }

    #[test]
    fn more_than_the_sockets_hold_goes_while_replies_are_waited_for() {
        // No socket holds 256 writes of 4 KiB unread.
        let (mut channel, mut server) = pair(256);
        for slot in 0..256 {
            channel.data_mut(slot).fill(slot as u8);
            let write = Request { kind: kind::TWRITE, data_out: 4096, ..Request::default() };
            channel.submit(slot, write, |f| _ = f.span(1, 0, 4096));
        }
        let echo = std::thread::spawn(move || {
            let mut message = vec![0; WRITE_HEAD_BYTES + 4096];
            for slot in 0..256_u16 {
                server.read_exact(&mut message).unwrap();
                assert_eq!(message[5..7], slot.to_le_bytes());
                assert!(message[WRITE_HEAD_BYTES..].iter().all(|byte| *byte == slot as u8));
                server.write_all(&reply(kind::TWRITE + 1, slot, &4096_u32.to_le_bytes())).unwrap();
            }
        });
        channel.publish().unwrap();
        let mut slots = Vec::new();
        while slots.len() < 256 {
            channel.wait(None).unwrap();
            while let Some(reply) = channel.take().unwrap() {
                slots.push(reply.slot);
            }
        }
        echo.join().unwrap();
        assert_eq!(slots, (0..256).collect::<Vec<_>>());
    }

    #[test]
    fn a_server_that_misspeaks_or_leaves_is_an_error() {
        let clunk = Request { kind: kind::TCLUNK, ..Request::default() };
        let (mut channel, mut server) = pair(1);
        server.write_all(&reply(kind::TCLUNK + 1, 9, &[])).unwrap();
        channel.wait(None).unwrap();
        assert!(channel.take().unwrap_err().to_string().contains("tag 9"));
        let (mut channel, mut server) = pair(1);
        channel.submit(0, clunk, |f| _ = f.u32(1));
        server.write_all(&[0xff; 8]).unwrap();
        assert!(channel.wait(None).unwrap_err().to_string().contains("msize"));
        let (mut channel, server) = pair(1);
        channel.submit(0, clunk, |f| _ = f.u32(1));
        channel.publish().unwrap();
        drop(server);
        assert!(channel.wait(None).is_err());
    }
}
