//! Messages on the socket: framing, file descriptors, answers. What a message means is not known here.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, take};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use vhost::vhost_user::message::{MAX_ATTACHED_FD_ENTRIES, MAX_MSG_SIZE};

use crate::{Misspoken, SessionEnd, StopFd};

/// Bytes of a message header: request, flags and body size, each a u32 in native order (vhost-user, "Header").
pub(crate) const HEADER_BYTES: usize = 12;
/// Version number of the protocol, in the lowest two flag bits (vhost-user, "Header").
pub(crate) const VERSION: u32 = 0x1;
const VERSION_MASK: u32 = 0x3;
/// This message answers another one.
pub(crate) const FLAG_REPLY: u32 = 0x4;
/// The sender waits for an answer even where the message has none of its own.
pub(crate) const FLAG_NEED_REPLY: u32 = 0x8;
/// The kernel's limit of descriptors in one message (SCM_MAX_FD, include/net/scm.h). Room for all of them means that
/// none is cut off unseen.
const FDS_A_RECEIVE: usize = 253;

/// One complete message from the frontend.
#[derive(Debug, Default)]
pub(crate) struct Message {
    pub(crate) request: u32,
    pub(crate) need_reply: bool,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
    /// Number of descriptors that came along, including those beyond the limit, which are closed at once.
    pub(crate) fd_count: usize,
}

/// The header of a message in its wire form.
pub(crate) fn header(request: u32, flags: u32, size: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0..4].copy_from_slice(&request.to_ne_bytes());
    bytes[4..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[8..12].copy_from_slice(&size.to_ne_bytes());
    bytes
}

/// A frontend's connection. Never blocks while a message is incomplete, so that a stop is noticed at any moment.
#[derive(Debug)]
pub(crate) struct Wire {
    socket: OwnedFd,
    header: [u8; HEADER_BYTES],
    /// Bytes of header and body received so far.
    filled: usize,
    message: Message,
    /// Descriptors of the message were lost.
    cut: bool,
}

impl Wire {
    pub(crate) fn new(socket: OwnedFd) -> Wire {
        Wire { socket, header: [0; HEADER_BYTES], filled: 0, message: Message::default(), cut: false }
    }

    /// Whether a message has begun to arrive and is not complete.
    pub(crate) fn is_in_message(&self) -> bool {
        self.filled > 0
    }

    /// Takes in what has arrived. `None`: the message is not complete yet.
    pub(crate) fn receive(&mut self) -> Result<Option<Message>, SessionEnd> {
        loop {
            if self.filled >= HEADER_BYTES && self.filled - HEADER_BYTES == self.message.body.len() {
                self.filled = 0;
                if take(&mut self.cut) {
                    tracing::warn!(
                        "a descriptor of the frontend's was lost, as this process has as many as it may (RLIMIT_NOFILE): raise that by \
                         LimitNOFILE= of the unit, or ulimit -n"
                    );
                }
                return Ok(Some(take(&mut self.message)));
            }
            match self.receive_some() {
                Ok(0) => return Err(SessionEnd::Disconnected),
                Ok(bytes) => self.filled += bytes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(SessionEnd::Disconnected),
                Err(error) => return Err(SessionEnd::Connection(error.into())),
            }
            if self.filled == HEADER_BYTES {
                self.parse_header()?;
            }
        }
    }

    /// Receives the rest of the header or the rest of the body, never across their border: descriptors belong to the
    /// message whose first byte they came with.
    fn receive_some(&mut self) -> Result<usize, Errno> {
        let rest = match self.filled.checked_sub(HEADER_BYTES) {
            None => &mut self.header[self.filled..],
            Some(body_filled) => &mut self.message.body[body_filled..],
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_A_RECEIVE))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(rest)], &mut ancillary, flags)?;
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                for fd in fds {
                    self.message.fd_count += 1;
                    if self.message.fds.len() < MAX_ATTACHED_FD_ENTRIES {
                        self.message.fds.push(fd);
                    }
                }
            }
        }
        // There is room for all that a message can have: only the limit of the process cuts any off.
        self.cut |= received.flags.contains(ReturnFlags::CTRUNC);
        Ok(received.bytes)
    }

    fn parse_header(&mut self) -> Result<(), SessionEnd> {
        let field = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&self.header[at..at + 4]);
            u32::from_ne_bytes(bytes)
        };
        let (request, flags, size) = (field(0), field(4), field(8));
        let misspoke = |what| Err(SessionEnd::Misspoke(what));
        if flags & VERSION_MASK != VERSION {
            return misspoke(Misspoken::Version(flags & VERSION_MASK));
        }
        if flags & !(VERSION_MASK | FLAG_NEED_REPLY) != 0 {
            return misspoke(Misspoken::Flags(flags));
        }
        if size as usize > MAX_MSG_SIZE {
            return misspoke(Misspoken::Oversized { size, max: MAX_MSG_SIZE as u32 });
        }
        self.message.request = request;
        self.message.need_reply = flags & FLAG_NEED_REPLY != 0;
        self.message.body = vec![0; size as usize];
        Ok(())
    }

    /// Answers a message. Waits while the frontend does not read, but not beyond a stop.
    pub(crate) fn reply(
        &self,
        request: u32,
        body: &[u8],
        mut file: Option<BorrowedFd<'_>>,
        stop: &StopFd,
    ) -> Result<(), SessionEnd> {
        let mut bytes = header(request, VERSION | FLAG_REPLY, body.len() as u32).to_vec();
        bytes.extend_from_slice(body);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match send_some(&self.socket, rest, file) {
                Ok(sent) => {
                    rest = &rest[sent..];
                    // A descriptor goes with the first byte.
                    file = None;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait_writable(stop)?,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(SessionEnd::Disconnected),
                Err(error) => return Err(SessionEnd::Connection(error.into())),
            }
        }
        Ok(())
    }

    fn wait_writable(&self, stop: &StopFd) -> Result<(), SessionEnd> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(SessionEnd::Connection(io::Error::from(error))),
        }
        if fds[1].revents().is_empty() { Ok(()) } else { Err(SessionEnd::Stopped) }
    }
}

/// Sends what there is room for, and a descriptor along with it. Never blocks.
pub(crate) fn send_some(socket: impl AsFd, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> Result<usize, Errno> {
    let fds = file.as_slice();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::NOBUFS);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
