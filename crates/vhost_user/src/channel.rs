//! The channel back: requests to the frontend (SET_BACKEND_REQ_FD), and its answers.
//!
//! Any thread queues a request on a [`BackendChannel`]; only the session's thread sends and receives, between messages of the
//! main channel and in the same poll. No other thread waits for the frontend, and the frontend may send messages before it
//! answers: QEMU sends ADD_MEM_REG while it handles a SHMEM_MAP, and a backend that waits for the answer first deadlocks the
//! VM. Answers come in the order of the requests that asked for one.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use displaydoc::Display;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketType, recv, sockopt};
use thiserror::Error;
use vhost::vhost_user::message::BackendReq;

use crate::features::Acked;
use crate::refusal::Refusal;
use crate::wire::{FLAG_NEED_REPLY, FLAG_REPLY, HEADER_BYTES, VERSION, header, send_some};

/// Most requests that wait to be sent or answered: a frontend that neither reads nor answers must not fill our memory.
const REQUESTS_MAX: usize = 64;
/// Most pieces read in one turn: a flooded channel must not keep the session's thread from the main channel.
const PIECES_A_TURN: usize = 2 * REQUESTS_MAX;
/// Longest time that an answer is waited for.
const PATIENCE_MAX: Duration = Duration::from_secs(3600);
/// An answer: a header and a number, zero for success (vhost-user, "VHOST_USER_PROTOCOL_F_REPLY_ACK").
const ANSWER_BYTES: usize = HEADER_BYTES + size_of::<u64>();

/// Why a request of ours has no answer.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
pub enum NoAnswer {
    /// the frontend has opened no backend channel, has closed it, or is gone
    Closed,
    /// the frontend has not agreed to acknowledge requests (REPLY_ACK), or to take files along with them (BACKEND_SEND_FD)
    NotNegotiated,
    /// the frontend has too many requests of ours that it has not answered
    Full,
    /// the frontend has not answered in time
    Late,
    /// the frontend has answered with something else, and is asked no more
    Misspoken,
}

/// Called once, on the session's thread or the caller's; must not block.
type Told = Box<dyn FnOnce(Result<u64, NoAnswer>) + Send>;

/// A caller that waits for an answer, and until when.
struct Waiter {
    told: Told,
    until: Instant,
}

/// A request that is to be sent.
struct Request {
    code: u32,
    bytes: Vec<u8>,
    file: Option<OwnedFd>,
    /// It carries NEED_REPLY: an answer will come even if its waiter has given up.
    asks: bool,
    waiter: Option<Waiter>,
}

/// A request whose answer is still to come. Without a waiter if that was told it was late.
struct Awaited {
    code: u32,
    waiter: Option<Waiter>,
}

/// Handle by which any thread sends requests to the connected frontend. Without an open channel, and after the session, they are
/// refused.
#[derive(Clone, Default)]
pub struct BackendChannel(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    /// Wakes the session's thread, while there is a channel.
    wake: Option<Arc<OwnedFd>>,
    acked: Acked,
    requests: VecDeque<Request>,
    /// Sent, and not answered.
    awaited: usize,
}

impl BackendChannel {
    /// Announces that the device's config space changed. Returns whether it will be sent: the frontend has a channel, and reads
    /// what comes there. Never blocks.
    pub fn config_changed(&self) -> bool {
        let code = BackendReq::CONFIG_CHANGE_MSG.into();
        let bytes = header(code, VERSION, 0).to_vec();
        let request = Request { code, bytes, file: None, asks: false, waiter: None };
        match self.queue(request) {
            Ok(()) => true,
            Err((error, _)) => {
                if error != NoAnswer::Closed {
                    tracing::warn!("cannot announce the changed config space to the frontend: {error}");
                }
                false
            }
        }
    }

    /// Sends a request, with `file` if it has one, and calls `told` with the frontend's answer, or with the reason why there is
    /// none after `patience` (at most an hour). Never blocks.
    ///
    /// `told` is called exactly once and must not block: by this call if the request cannot be sent, else by the session's
    /// thread. That thread may be busy with a message meanwhile, so a caller with a hard deadline needs a timer of its own.
    pub fn ask(
        &self,
        code: BackendReq,
        body: &[u8],
        file: Option<OwnedFd>,
        patience: Duration,
        told: impl FnOnce(Result<u64, NoAnswer>) + Send + 'static,
    ) {
        let code = code.into();
        let mut bytes = header(code, VERSION | FLAG_NEED_REPLY, body.len() as u32).to_vec();
        bytes.extend_from_slice(body);
        let waiter = Some(Waiter { told: Box::new(told), until: Instant::now() + patience.min(PATIENCE_MAX) });
        if let Err((error, request)) = self.queue(Request { code, bytes, file, asks: true, waiter }) {
            tell(request.waiter, Err(error));
        }
    }

    /// Whether requests with files are sent and answered: the frontend has a channel, and has agreed to that.
    pub fn takes_files(&self) -> bool {
        let queue = self.lock();
        queue.wake.is_some() && queue.acked.reply_ack() && queue.acked.backend_send_fd()
    }

    fn queue(&self, request: Request) -> Result<(), (NoAnswer, Request)> {
        let mut queue = self.lock();
        let Some(wake) = queue.wake.clone() else {
            return Err((NoAnswer::Closed, request));
        };
        if request.asks && !queue.acked.reply_ack() || request.file.is_some() && !queue.acked.backend_send_fd() {
            return Err((NoAnswer::NotNegotiated, request));
        }
        if queue.requests.len() + queue.awaited >= REQUESTS_MAX {
            return Err((NoAnswer::Full, request));
        }
        queue.requests.push_back(request);
        // It can only fail when the counter is at its maximum, and then the signal is given already.
        let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for BackendChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.lock();
        let (open, queued, awaited) = (queue.wake.is_some(), queue.requests.len(), queue.awaited);
        write!(f, "BackendChannel {{ open: {open}, queued: {queued}, awaited: {awaited} }}")
    }
}

/// The session's end of the channel.
#[derive(Default)]
pub(crate) struct ChannelEnd {
    handle: BackendChannel,
    link: Option<Link>,
}

/// A channel that is open.
struct Link {
    socket: OwnedFd,
    wake: Arc<OwnedFd>,
    /// What is being sent, and how much of it has been.
    sending: Option<(Request, usize)>,
    awaited: VecDeque<Awaited>,
    answer: [u8; ANSWER_BYTES],
    received: usize,
}

/// What ends a channel.
enum Broken {
    Closed,
    Misspoken,
}

impl ChannelEnd {
    pub(crate) fn new(handle: BackendChannel) -> ChannelEnd {
        ChannelEnd { handle, link: None }
    }

    /// Takes over the channel that SET_BACKEND_REQ_FD brought, in the place of one that there was.
    pub(crate) fn open(&mut self, socket: OwnedFd, acked: Acked) -> Result<(), Refusal> {
        let family = sockopt::socket_domain(&socket).map_err(|_| Refusal::BackendChannel)?;
        let kind = sockopt::socket_type(&socket).map_err(|_| Refusal::BackendChannel)?;
        if family != AddressFamily::UNIX || kind != SocketType::STREAM {
            return Err(Refusal::BackendChannel);
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| Refusal::Duplicate(error.into()))?);
        self.close();
        let mut queue = self.handle.lock();
        (queue.wake, queue.acked) = (Some(wake.clone()), acked);
        drop(queue);
        let (sending, awaited) = (None, VecDeque::new());
        self.link = Some(Link { socket, wake, sending, awaited, answer: [0; ANSWER_BYTES], received: 0 });
        Ok(())
    }

    /// The frontend has negotiated these features.
    pub(crate) fn set_acked(&mut self, acked: Acked) {
        self.handle.lock().acked = acked;
    }

    /// The session is over, or the channel is.
    pub(crate) fn close(&mut self) {
        self.end(NoAnswer::Closed);
    }

    fn end(&mut self, why: NoAnswer) {
        let queued = {
            let mut queue = self.handle.lock();
            (queue.wake, queue.awaited) = (None, 0);
            std::mem::take(&mut queue.requests)
        };
        let Some(link) = self.link.take() else { return };
        let sent = link.awaited.into_iter().map(|awaited| awaited.waiter);
        let unsent = link.sending.map(|(request, _)| request).into_iter().chain(queued).map(|request| request.waiter);
        sent.chain(unsent).for_each(|waiter| tell(waiter, Err(why)));
    }

    /// The descriptors to poll, for at most [`ChannelEnd::patience`].
    pub(crate) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.link.iter().flat_map(|link| {
            let out = if link.sending.is_some() { PollFlags::OUT } else { PollFlags::empty() };
            [PollFd::new(&*link.wake, PollFlags::IN), PollFd::new(&link.socket, PollFlags::IN | out)]
        })
    }

    /// Time until the first waiter is late. `None`: there is no waiter.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let link = self.link.as_ref()?;
        let sent = link.awaited.iter().filter_map(|awaited| awaited.waiter.as_ref());
        let sending = link.sending.as_ref().and_then(|(request, _)| request.waiter.as_ref());
        let queue = self.handle.lock();
        let unsent = queue.requests.iter().filter_map(|request| request.waiter.as_ref());
        let first = sent.chain(sending).chain(unsent).map(|waiter| waiter.until).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    /// Sends and receives what is possible without blocking, and gives up on late answers.
    pub(crate) fn turn(&mut self) {
        let Some(link) = &mut self.link else { return };
        let _ = rustix::io::read(&link.wake, &mut [0; 8]);
        match link.receive(&self.handle).and_then(|()| link.send(&self.handle)) {
            Ok(()) => self.tell_late(),
            Err(Broken::Closed) => self.close(),
            Err(Broken::Misspoken) => {
                tracing::warn!("the frontend misspeaks on the backend channel, which is closed");
                self.end(NoAnswer::Misspoken);
            }
        }
    }

    /// A late request that was sent, or begun, keeps its place: its answer is still to come, and must not be taken for the next one's.
    fn tell_late(&mut self) {
        let Some(link) = &mut self.link else { return };
        let now = Instant::now();
        let late = |waiter: &mut Waiter| waiter.until <= now;
        let mut told: Vec<_> = link.awaited.iter_mut().filter_map(|awaited| awaited.waiter.take_if(late)).collect();
        told.extend(link.sending.as_mut().and_then(|(request, _)| request.waiter.take_if(late)));
        self.handle.lock().requests.retain_mut(|request| {
            let waiter = request.waiter.take_if(late);
            let wanted = waiter.is_none();
            told.extend(waiter);
            wanted
        });
        told.into_iter().for_each(|waiter| tell(Some(waiter), Err(NoAnswer::Late)));
    }

    /// A duplicate of the channel for the program that goes on with the session. A channel with late answers still to come is not
    /// handed over: the other program would take them for answers to its own requests.
    ///
    /// # Errors
    /// No more descriptors.
    pub(crate) fn duplicate(&self) -> std::io::Result<Option<OwnedFd>> {
        let link = self.link.as_ref().filter(|link| link.is_between_messages());
        link.map(|link| link.socket.try_clone()).transpose()
    }

    /// Whether an answer is waited for.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.patience().is_some()
    }
}

impl Drop for ChannelEnd {
    fn drop(&mut self) {
        self.close();
    }
}

impl Link {
    fn is_between_messages(&self) -> bool {
        self.sending.as_ref().is_none_or(|(_, sent)| *sent == 0) && self.awaited.is_empty() && self.received == 0
    }

    /// Sends what is queued, for as long as the frontend has room.
    fn send(&mut self, handle: &BackendChannel) -> Result<(), Broken> {
        loop {
            if self.sending.is_none() {
                self.sending = handle.lock().requests.pop_front().map(|request| (request, 0));
            }
            let Some((request, sent)) = &mut self.sending else { return Ok(()) };
            // A descriptor goes with the first byte.
            let file = request.file.as_ref().filter(|_| *sent == 0).map(AsFd::as_fd);
            match send_some(&self.socket, &request.bytes[*sent..], file) {
                Ok(more) => *sent += more,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(Broken::Closed),
            }
            if *sent == request.bytes.len()
                && let Some((request, _)) = self.sending.take()
                && request.asks
            {
                self.awaited.push_back(Awaited { code: request.code, waiter: request.waiter });
                handle.lock().awaited = self.awaited.len();
            }
        }
    }

    /// Takes in the answers that have come.
    fn receive(&mut self, handle: &BackendChannel) -> Result<(), Broken> {
        for _ in 0..PIECES_A_TURN {
            // Descriptors that come along are not asked for: without room for them the kernel closes them.
            match recv(&self.socket, &mut self.answer[self.received..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(Broken::Closed),
                Ok((bytes, _)) => self.received += bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(Broken::Closed),
            }
            if self.received == ANSWER_BYTES {
                self.received = 0;
                self.answered(handle)?;
            }
        }
        Ok(())
    }

    fn answered(&mut self, handle: &BackendChannel) -> Result<(), Broken> {
        let field = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&self.answer[at..at + 4]);
            u32::from_ne_bytes(bytes)
        };
        let (code, flags, size) = (field(0), field(4), field(8));
        if flags != VERSION | FLAG_REPLY || size as usize != size_of::<u64>() {
            return Err(Broken::Misspoken);
        }
        let Some(awaited) = self.awaited.front() else {
            // An acknowledgement that was not asked for: harmless while no request could be mistaken for its subject.
            return Ok(());
        };
        if awaited.code != code {
            return Err(Broken::Misspoken);
        }
        let mut value = [0; 8];
        value.copy_from_slice(&self.answer[HEADER_BYTES..]);
        let waiter = self.awaited.pop_front().and_then(|awaited| awaited.waiter);
        handle.lock().awaited = self.awaited.len();
        tell(waiter, Ok(u64::from_ne_bytes(value)));
        Ok(())
    }
}

fn tell(waiter: Option<Waiter>, outcome: Result<u64, NoAnswer>) {
    if let Some(waiter) = waiter {
        (waiter.told)(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, SocketFlags, recvmsg, socketpair};
    use std::io::IoSliceMut;
    use std::mem::MaybeUninit;
    use std::sync::mpsc::channel;
    use vhost::vhost_user::message::VhostUserProtocolFeatures;

    /// No device that we have needs it, so that it is not offered.
    #[test]
    fn a_file_goes_along_where_that_was_agreed_on() {
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (near, far) = pair.unwrap();
        let handle = BackendChannel::default();
        let mut end = ChannelEnd::new(handle.clone());
        let (acks, files) = (VhostUserProtocolFeatures::REPLY_ACK, VhostUserProtocolFeatures::BACKEND_SEND_FD);
        end.open(near, Acked { virtio: 0, protocol: acks.bits() }).unwrap();
        let file = || memfd_create("window", MemfdFlags::CLOEXEC).unwrap();
        let (told, outcomes) = channel();
        let ask = |file| {
            let told = told.clone();
            let code = BackendReq::SHMEM_MAP;
            handle.ask(code, &[1, 2], Some(file), Duration::MAX, move |outcome| told.send(outcome).unwrap());
        };
        ask(file());
        assert_eq!(outcomes.try_recv(), Ok(Err(NoAnswer::NotNegotiated)));
        end.set_acked(Acked { virtio: 0, protocol: acks.union(files).bits() });
        let window = file();
        let inode = rustix::fs::fstat(&window).unwrap().st_ino;
        ask(window);
        end.turn();

        let mut bytes = [0; HEADER_BYTES + 2];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(&far, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
        assert_eq!((got.bytes, &bytes[HEADER_BYTES..]), (HEADER_BYTES + 2, &[1, 2][..]));
        let mut inodes = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                inodes.extend(fds.map(|fd| rustix::fs::fstat(fd).unwrap().st_ino));
            }
        }
        assert_eq!(inodes, [inode]);
        drop(end);
        assert_eq!(outcomes.try_recv(), Ok(Err(NoAnswer::Closed)));
    }
}
