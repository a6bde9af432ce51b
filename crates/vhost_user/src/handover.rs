//! A session that goes on in another program: what it consists of, and how its thread is asked for it.
//!
//! An endpoint's thread owns the session, so it is the thread that pauses it: between two messages, with every ring
//! drained and stopped. What it answers then holds duplicates of all descriptors and borrows nothing. The session stays
//! paused until whoever asked lets go of the [`Hold`]: either the process has become another program by then, which goes
//! on by [`serve_on`](crate::serve_on) with a [`Resume`], or nothing came of it, and the same thread goes on.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use displaydoc::Display;
use rustix::event::{EventfdFlags, eventfd};
use thiserror::Error;
use vring::RingPosition;

use crate::endpoint::SocketFile;
use crate::inflight::InflightState;
use crate::log::LogState;
use crate::memory::RegionState;
use crate::rings::Kick;

/// Everything by which another program can go on with an endpoint.
#[derive(Debug)]
pub struct EndpointState {
    /// The listening socket.
    pub socket: OwnedFd,
    /// The file at which it was bound, to be removed at its end. `None` for an inherited socket.
    pub file: Option<SocketFile>,
    /// The session, while a frontend is connected.
    pub session: Option<SessionState>,
}

/// One frontend's session between two messages.
#[derive(Debug)]
pub struct SessionState {
    /// The connection.
    pub socket: OwnedFd,
    /// Virtio features that the frontend acknowledged, those of the transport included.
    pub features: u64,
    /// Protocol features that it acknowledged.
    pub protocol_features: u64,
    /// The memory table; `None` before there is one.
    pub memory: Option<Vec<RegionState>>,
    /// Where requests in flight are written down, once the frontend has shown it (SET_INFLIGHT_FD).
    pub inflight: Option<InflightState>,
    /// The dirty log, once the frontend has shown one (SET_LOG_BASE). Whether it is used is in `features`.
    pub log: Option<LogState>,
    /// What was said about the rings; those of which nothing was said are left out.
    pub rings: Vec<RingState>,
    /// The channel for our own messages (SET_BACKEND_REQ_FD).
    pub backend_channel: Option<OwnedFd>,
}

/// What the frontend has said about one ring, and how far the ring has come.
#[derive(Debug)]
pub struct RingState {
    /// Its index.
    pub index: u16,
    /// SET_VRING_NUM, in descriptors.
    pub size: Option<u16>,
    /// SET_VRING_ADDR: descriptor table, avail ring, used ring, as addresses of the frontend.
    pub areas: Option<[u64; 3]>,
    /// The same: guest address by which the used ring is logged, if it is to be.
    pub used_log: Option<u64>,
    /// Where it goes on when it starts.
    pub position: RingPosition,
    /// Heads of requests before that which are to be taken again, the oldest first.
    pub owed: Vec<u16>,
    /// SET_VRING_KICK.
    pub kick: Kick,
    /// SET_VRING_CALL.
    pub call: Option<OwnedFd>,
    /// SET_VRING_ERR.
    pub err: Option<OwnedFd>,
    /// SET_VRING_ENABLE, if it was sent.
    pub enabled: Option<bool>,
    /// Whether it was being served and is to be served again.
    pub running: bool,
}

/// A session for [`serve_on`](crate::serve_on) to begin with.
#[derive(Debug)]
pub struct Resume {
    /// As it was handed over.
    pub session: SessionState,
    /// Told how many rings were started, or why the session could not go on and was ended.
    pub resumed: Sender<Result<usize, String>>,
}

/// Why an endpoint is not handed over. It goes on as if nobody had asked.
#[derive(Debug, Display, Error)]
pub enum HandoverError {
    /// ring {index} still has {in_flight} request(s) in flight: its storage does not answer; look at it, and try again
    Busy {
        /// The ring.
        index: u16,
        /// Requests taken and not answered.
        in_flight: usize,
    },
    /// ring {0}: {1}
    Ring(u16, String),
    /// the frontend has sent half a message: try again
    HalfMessage,
    /// the frontend has not answered a request of ours yet: try again
    Unanswered,
    /// {0}
    Refused(String),
    /// its thread is held up by a frontend that does not read its answers, or by an image that is being opened, flushed or closed: end that frontend, or try again
    Unresponsive,
    /// it is ending
    Ended,
    /// a file descriptor cannot be duplicated: {0} (check RLIMIT_NOFILE)
    Duplicate(#[from] io::Error),
}

/// By which any thread asks the thread of an endpoint to hand it over.
#[derive(Clone, Debug)]
pub struct Handover(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    orders: Mutex<Orders>,
}

#[derive(Debug, Default)]
struct Orders {
    waiting: VecDeque<Order>,
    closed: bool,
}

/// What one caller wants. Dropping it says that the endpoint has ended.
#[derive(Debug)]
pub struct Order {
    /// When rings that are not drained are not worth waiting for any more. `None`: only look, and stop nothing.
    pub drained_by: Option<Instant>,
    /// Told when its endpoint's thread is at it.
    taken: Sender<()>,
    answer: Sender<Result<EndpointState, HandoverError>>,
    hold: Receiver<Infallible>,
}

/// An answer that is on its way. Dropping it takes the request back.
#[derive(Debug)]
pub struct Pending {
    taken: Receiver<()>,
    answer: Receiver<Result<EndpointState, HandoverError>>,
    hold: Hold,
}

/// Keeps an endpoint paused until it is dropped.
#[derive(Debug)]
pub struct Hold {
    _sender: Sender<Infallible>,
}

impl Handover {
    /// Fails when the process is out of file descriptors.
    pub fn new() -> io::Result<Handover> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Handover(Arc::new(Shared { wake, orders: Mutex::default() })))
    }

    /// Asks what would be handed over now, without stopping a ring: the positions of rings in it are old.
    pub fn look(&self) -> Pending {
        self.order(None)
    }

    /// Asks to pause with every ring drained, which must be so at `drained_by`.
    pub fn pause(&self, drained_by: Instant) -> Pending {
        self.order(Some(drained_by))
    }

    fn order(&self, drained_by: Option<Instant>) -> Pending {
        let (answer, answered) = channel();
        let (sender, hold) = channel();
        let (tells, taken) = channel();
        let mut orders = self.lock();
        // An order that is dropped is an answer too: the endpoint has ended.
        if !orders.closed {
            orders.waiting.push_back(Order { drained_by, taken: tells, answer, hold });
            self.signal();
        }
        drop(orders);
        Pending { taken, answer: answered, hold: Hold { _sender: sender } }
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.0.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self) {
        // It can only fail when the counter is at its maximum, and then the signal is given already.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    /// The next order, if there is one.
    pub fn take(&self) -> Option<Order> {
        let mut orders = self.lock();
        let order = orders.waiting.pop_front();
        if let Some(order) = &order {
            // Nobody may wait for it any more.
            let _ = order.taken.send(());
        }
        if orders.waiting.is_empty() {
            let _ = rustix::io::read(&self.0.wake, &mut [0; 8]);
        }
        order
    }

    /// Leaves an order for later, before all others.
    pub(crate) fn put_back(&self, order: Order) {
        self.lock().waiting.push_front(order);
        self.signal();
    }

    /// Whoever is to take orders. When it is gone, by a panic too, nobody waits for an answer.
    pub fn taker(&self) -> Taker<'_> {
        Taker(self)
    }
}

/// See [`Handover::taker`].
#[derive(Debug)]
pub struct Taker<'a>(&'a Handover);

impl Drop for Taker<'_> {
    fn drop(&mut self) {
        let mut orders = self.0.lock();
        orders.closed = true;
        orders.waiting.clear();
    }
}

impl AsFd for Handover {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }
}

impl Order {
    /// Whether the caller still waits.
    pub fn is_wanted(&self) -> bool {
        matches!(self.hold.try_recv(), Err(TryRecvError::Empty))
    }

    /// Answers. After a state it returns only when the caller has let go.
    pub fn answer(self, state: Result<EndpointState, HandoverError>) {
        let pauses = state.is_ok();
        if self.answer.send(state).is_ok() && pauses {
            // Nothing is ever sent: this is the end of the hold.
            let _ = self.hold.recv();
        }
    }
}

impl Pending {
    /// Waits until the endpoint's thread is at it, or has ended, at most until `deadline`.
    ///
    /// # Errors
    /// Something else holds it up.
    pub fn wait_until_taken(&self, deadline: Instant) -> Result<(), HandoverError> {
        match self.taken.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            // Or the order is gone with its endpoint.
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(HandoverError::Unresponsive),
        }
    }

    /// Waits for the state, at most until `deadline`. The endpoint stays paused while the hold is kept.
    ///
    /// # Errors
    /// Why it is not handed over.
    pub fn wait(self, deadline: Instant) -> Result<(EndpointState, Hold), HandoverError> {
        match self.answer.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(state) => Ok((state?, self.hold)),
            Err(RecvTimeoutError::Timeout) => Err(HandoverError::Unresponsive),
            Err(RecvTimeoutError::Disconnected) => Err(HandoverError::Ended),
        }
    }
}
