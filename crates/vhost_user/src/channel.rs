//! The channel back: requests of ours to the frontend (SET_BACKEND_REQ_FD), and its answers.
//!
//! Any thread queues a request by a [`BackendChannel`]; the session's thread alone sends and receives, between messages of the
//! main channel and by the same poll. So nobody else waits for the frontend, and the frontend may say what it likes on its main
//! channel before it answers: QEMU sends ADD_MEM_REG in the middle of a SHMEM_MAP, and would wait for ever for a backend that
//! wants the answer first. Answers come in the order of the requests that asked for one.

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

use crate::refusal::Refusal;
use crate::wire::{FLAG_NEED_REPLY, FLAG_REPLY, HEADER_BYTES, VERSION, header, send_some};

/// Requests that wait to be sent or answered: a frontend that does neither must not fill our memory.
const REQUESTS_MAX: usize = 64;
/// Pieces that are read at a time: whoever floods the channel gets no more of the session's thread than that.
const PIECES_A_TURN: usize = 2 * REQUESTS_MAX;
/// An answer: a header and a number, zero for success (vhost-user, "VHOST_USER_PROTOCOL_F_REPLY_ACK").
const ANSWER_BYTES: usize = HEADER_BYTES + size_of::<u64>();

/// Why a request of ours has no answer.
#[derive(Clone, Copy, Debug, Display, Error, PartialEq, Eq)]
pub enum NoAnswer {
    /// the frontend has opened no backend channel, has closed it, or is gone
    Closed,
    /// the frontend does not acknowledge requests (VHOST_USER_PROTOCOL_F_REPLY_ACK)
    NotNegotiated,
    /// the frontend has too many requests of ours that it has not answered
    Full,
    /// the frontend has not answered in time
    Late,
    /// the frontend has answered with something else, and is asked no more
    Misspoken,
}

/// Told once, on the session's thread or on that of the caller: it must not wait for anything.
type Told = Box<dyn FnOnce(Result<u64, NoAnswer>) + Send>;

/// Who waits for an answer, and how long.
struct Waiter {
    told: Told,
    until: Instant,
}

/// A request that is to be sent.
struct Request {
    code: u32,
    bytes: Vec<u8>,
    file: Option<OwnedFd>,
    waiter: Option<Waiter>,
}

/// A request that was sent. One whose waiter has been told already still has its answer to come.
struct Awaited {
    code: u32,
    waiter: Option<Waiter>,
}

/// Handle by which any thread sends requests to the connected frontend. They are refused when the frontend has opened no such
/// channel, and when its session is over.
#[derive(Clone, Default)]
pub struct BackendChannel(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    /// Wakes the session's thread, while there is a channel.
    wake: Option<Arc<OwnedFd>>,
    /// The frontend acknowledges.
    acknowledges: bool,
    requests: VecDeque<Request>,
    /// Sent, and not answered.
    awaited: usize,
}

impl BackendChannel {
    /// Announces that the device's config space changed. Returns whether it will be sent: the frontend has a channel, and reads
    /// what comes there. Never blocks.
    pub fn config_changed(&self) -> bool {
        let code = BackendReq::CONFIG_CHANGE_MSG.into();
        let request = Request { code, bytes: header(code, VERSION, 0).to_vec(), file: None, waiter: None };
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

    /// Sends a request, with `file` if it has one, and has `told` hear the frontend's answer, or why there is none after `patience`.
    /// Never blocks. `told` is called once: in here when the request cannot be sent, else by the session's thread, which is not to
    /// be held up by it. That thread may itself be in a message that takes its time: who must know in time has a clock as well.
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
        let waiter = Some(Waiter { told: Box::new(told), until: Instant::now() + patience });
        if let Err((error, request)) = self.queue(Request { code, bytes, file, waiter }) {
            tell(request.waiter, Err(error));
        }
    }

    fn queue(&self, request: Request) -> Result<(), (NoAnswer, Request)> {
        let mut queue = self.lock();
        let Some(wake) = queue.wake.clone() else {
            return Err((NoAnswer::Closed, request));
        };
        if request.waiter.is_some() && !queue.acknowledges {
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
    pub(crate) fn open(&mut self, socket: OwnedFd, acknowledges: bool) -> Result<(), Refusal> {
        let family = sockopt::socket_domain(&socket).map_err(|_| Refusal::BackendChannel)?;
        let kind = sockopt::socket_type(&socket).map_err(|_| Refusal::BackendChannel)?;
        if family != AddressFamily::UNIX || kind != SocketType::STREAM {
            return Err(Refusal::BackendChannel);
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.map_err(|error| Refusal::Duplicate(error.into()))?);
        self.close();
        let mut queue = self.handle.lock();
        (queue.wake, queue.acknowledges) = (Some(wake.clone()), acknowledges);
        drop(queue);
        let (sending, awaited) = (None, VecDeque::new());
        self.link = Some(Link { socket, wake, sending, awaited, answer: [0; ANSWER_BYTES], received: 0 });
        Ok(())
    }

    /// Whether the frontend acknowledges from now on.
    pub(crate) fn set_acknowledges(&mut self, acknowledges: bool) {
        self.handle.lock().acknowledges = acknowledges;
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

    /// What to poll for, besides the time until [`ChannelEnd::patience`] is over.
    pub(crate) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.link.iter().flat_map(|link| {
            let out = if link.sending.is_some() { PollFlags::OUT } else { PollFlags::empty() };
            [PollFd::new(&*link.wake, PollFlags::IN), PollFd::new(&link.socket, PollFlags::IN | out)]
        })
    }

    /// How long nobody is told anything if the frontend says nothing. `None`: nobody waits.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let link = self.link.as_ref()?;
        let sent = link.awaited.iter().filter_map(|awaited| awaited.waiter.as_ref());
        let sending = link.sending.as_ref().and_then(|(request, _)| request.waiter.as_ref());
        let queue = self.handle.lock();
        let unsent = queue.requests.iter().filter_map(|request| request.waiter.as_ref());
        let first = sent.chain(sending).chain(unsent).map(|waiter| waiter.until).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }

    /// Sends and receives what can be without waiting, and tells those who have waited long enough.
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

    /// A request that was begun is sent all the same, and its answer has its place among the others.
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

    /// A duplicate of the channel for the program that goes on with the session. One on which answers are still to come that
    /// nobody waits for stays behind: they would be taken for those to requests of the other program.
    ///
    /// # Errors
    /// No more descriptors.
    pub(crate) fn duplicate(&self) -> std::io::Result<Option<OwnedFd>> {
        let link = self.link.as_ref().filter(|link| link.is_between_messages());
        crate::handover::duplicate(link.map(|link| &link.socket))
    }

    /// Whether somebody waits for an answer.
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
                && header_asks_for_answer(&request.bytes)
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
            // A frontend that acknowledges what it was not asked to does no harm while nothing can be mistaken for it.
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

fn header_asks_for_answer(bytes: &[u8]) -> bool {
    bytes.get(4..8).is_some_and(|flags| flags == (VERSION | FLAG_NEED_REPLY).to_ne_bytes())
}

fn tell(waiter: Option<Waiter>, outcome: Result<u64, NoAnswer>) {
    if let Some(waiter) = waiter {
        (waiter.told)(outcome);
    }
}
