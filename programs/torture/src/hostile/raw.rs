//! A vhost-user connection that can say anything. Every wait has an end.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, sendmsg, socket_with,
};

/// How long an answer, or room for a message, is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// Most descriptors that the kernel carries in one message (SCM_MAX_FD).
const FDS_MAX: usize = 253;
/// Largest answer that is believed, in bytes.
const ANSWER_BYTES_MAX: u32 = 64 << 10;

/// Version 1, and with it the wish for an acknowledgement (vhost-user, "Header").
pub(crate) const VERSION: u32 = 1;
/// As above.
pub(crate) const NEED_REPLY: u32 = 9;

/// Requests (vhost-user, "Front-end message types").
pub(crate) mod request {
    #![allow(missing_docs, reason = "they are the protocol's names")]
    pub(crate) const GET_FEATURES: u32 = 1;
    pub(crate) const SET_FEATURES: u32 = 2;
    pub(crate) const SET_OWNER: u32 = 3;
    pub(crate) const SET_MEM_TABLE: u32 = 5;
    pub(crate) const SET_LOG_BASE: u32 = 6;
    pub(crate) const SET_LOG_FD: u32 = 7;
    pub(crate) const SET_VRING_NUM: u32 = 8;
    pub(crate) const SET_VRING_ADDR: u32 = 9;
    pub(crate) const SET_VRING_BASE: u32 = 10;
    pub(crate) const GET_VRING_BASE: u32 = 11;
    pub(crate) const SET_VRING_KICK: u32 = 12;
    pub(crate) const SET_VRING_CALL: u32 = 13;
    pub(crate) const SET_VRING_ERR: u32 = 14;
    pub(crate) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(crate) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(crate) const SET_VRING_ENABLE: u32 = 18;
    pub(crate) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(crate) const GET_CONFIG: u32 = 24;
    pub(crate) const SET_CONFIG: u32 = 25;
    pub(crate) const GET_INFLIGHT_FD: u32 = 31;
    pub(crate) const SET_INFLIGHT_FD: u32 = 32;
    pub(crate) const RESET_DEVICE: u32 = 34;
    pub(crate) const ADD_MEM_REG: u32 = 37;
    pub(crate) const REM_MEM_REG: u32 = 38;
    /// One past the highest request that the specification has.
    pub(crate) const END: u32 = 45;
}

/// A message's bytes, whatever they say.
pub(crate) fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(12 + body.len());
    for field in [request, flags, body.len() as u32] {
        bytes.extend(field.to_ne_bytes());
    }
    bytes.extend(body);
    bytes
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Raw(UnixStream);

impl Raw {
    /// Connects.
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        let address = SocketAddrUnix::new(socket)?;
        let end = Instant::now() + PATIENCE;
        let stream = loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            match connect(&stream, &address) {
                Ok(()) => break UnixStream::from(stream),
                // Too many wait already.
                Err(Errno::AGAIN) if Instant::now() < end => thread::sleep(LOOK_AGAIN_AFTER),
                Err(error) => return Err(error).with_context(|| format!("cannot connect to {}", socket.display())),
            }
        };
        stream.set_nonblocking(false)?;
        let raw = Self(stream);
        raw.set_patience(PATIENCE)?;
        Ok(raw)
    }

    /// Changes how long it waits for the other side.
    pub(crate) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(patience))?;
        self.0.set_write_timeout(Some(patience))
    }

    /// Says that nothing follows.
    pub(crate) fn finish(&self) -> io::Result<()> {
        self.0.shutdown(std::net::Shutdown::Write)
    }

    /// Sends bytes, the descriptors with the first of them.
    pub(crate) fn send_bytes(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut rest = bytes;
        let mut fds = Some(fds).filter(|fds| !fds.is_empty());
        while !rest.is_empty() {
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if let Some(fds) = fds.take()
                && !ancillary.push(SendAncillaryMessage::ScmRights(fds))
            {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            match sendmsg(&self.0, &[IoSlice::new(rest)], &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends a message.
    pub(crate) fn send(&self, request: u32, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_bytes(&message(request, flags, body), fds)
    }

    /// The next answer: which request it is to, and its body. Descriptors that come along are closed.
    pub(crate) fn answer(&mut self) -> io::Result<(u32, Vec<u8>)> {
        let mut header = [[0; 4]; 3];
        self.0.read_exact(header.as_flattened_mut())?;
        let [request, _flags, size] = header.map(u32::from_ne_bytes);
        if size > ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; size as usize];
        self.0.read_exact(&mut body)?;
        Ok((request, body))
    }

    /// Sends a message that has an answer of its own, and waits for that.
    pub(crate) fn ask(&mut self, request: u32, body: &[u8]) -> io::Result<Vec<u8>> {
        self.send(request, VERSION, body, &[])?;
        match self.answer()? {
            (answered, body) if answered == request => Ok(body),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// As [`ask`](Self::ask), for a number.
    fn ask_number(&mut self, request: u32) -> io::Result<u64> {
        let body = self.ask(request, &[])?;
        body.try_into().map(u64::from_ne_bytes).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Sends a message that is to be acknowledged; whether it was obeyed.
    pub(crate) fn order(&mut self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<bool> {
        self.send(request, NEED_REPLY, body, fds)?;
        match self.answer()? {
            (answered, body) if answered == request => Ok(body.iter().all(|byte| *byte == 0)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Does what every frontend does first: all features but those in `without`, and the protocol features in `wanted`
    /// as far as they are offered.
    pub(crate) fn negotiate(&mut self, without: u64, wanted: u64) -> io::Result<()> {
        self.send(request::SET_OWNER, VERSION, &[], &[])?;
        let features = self.ask_number(request::GET_FEATURES)? & !without;
        self.send(request::SET_FEATURES, VERSION, &features.to_ne_bytes(), &[])?;
        let protocol = self.ask_number(request::GET_PROTOCOL_FEATURES)? & wanted;
        self.send(request::SET_PROTOCOL_FEATURES, VERSION, &protocol.to_ne_bytes(), &[])
    }
}
