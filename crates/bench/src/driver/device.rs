//! A vhost-user server as its frontend sees it: a connection, features, memory and queues.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use frontkit::feature::{EVENT_IDX, PROTOCOL_FEATURES, VERSION_1};
use frontkit::{Area, Areas, Eventfds, Memory, Session};
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

use super::queue::{Bell, Queue};

/// Guest addresses differ from those in the file, so that a server that mixes them up shows.
const GUEST_BASE: u64 = 1 << 30;
/// Rings begin at multiples of this, as pages do in a guest.
const ALIGNMENT: usize = 4096;
/// How long the server may take to answer a message.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Why there is no connection.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum ConnectError {
    /// cannot connect: {0}
    Connect(io::Error),
    /// {0:#}
    Device(anyhow::Error),
}

impl ConnectError {
    /// Whether the server may only have to come up.
    pub(crate) fn is_early(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(self, Self::Connect(error) if matches!(error.kind(), NotFound | ConnectionRefused))
    }
}

/// A queue that is wanted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuePlan {
    /// Descriptors, a power of two.
    pub(crate) size: u16,
    /// Bytes of memory for the buffers of its requests.
    pub(crate) buffer_bytes: usize,
}

/// Where a queue lies, and memory for the buffers of its requests.
pub(crate) type Place = (Areas, Area);

impl QueuePlan {
    /// Memory that the guest sees at `guest_base`, from `file_at` on in its file, with places for `plan`.
    pub(crate) fn lay_out(plan: &[Self], guest_base: u64, file_at: u64) -> Result<(Arc<Memory>, Vec<Place>)> {
        let mut rings_bytes = 0;
        let mut rings = Vec::new();
        for queue in plan {
            rings.push(Areas::packed(guest_base + rings_bytes as u64, queue.size));
            rings_bytes += Areas::packed_bytes(queue.size).next_multiple_of(ALIGNMENT);
        }
        let buffers: Vec<usize> = plan.iter().map(|queue| queue.buffer_bytes).collect();
        let (memory, buffers) = Memory::with_areas(guest_base, file_at, rings_bytes, &buffers)?;
        Ok((memory, rings.into_iter().zip(buffers).collect()))
    }
}

/// A connected server. Dropping it ends the connection.
pub(crate) struct Device {
    session: Session,
}

impl Device {
    /// Connects to the server on `socket`, and takes of its features what every device has, those in `own`, and
    /// EVENT_IDX if `event_idx` is set.
    pub(crate) fn connect(socket: &Path, event_idx: bool, own: u64) -> Result<Self, ConnectError> {
        let stream = UnixStream::connect(socket).map_err(ConnectError::Connect)?;
        Self::set_up(stream, event_idx, own).map_err(ConnectError::Device)
    }

    fn set_up(stream: UnixStream, event_idx: bool, own: u64) -> Result<Self> {
        stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        let features = |offered: u64| {
            if offered & VERSION_1 == 0 || offered & PROTOCOL_FEATURES == 0 {
                bail!("the server offers features {offered:#x}; VERSION_1 and PROTOCOL_FEATURES must be among them");
            }
            Ok(offered & (VERSION_1 | PROTOCOL_FEATURES | own | if event_idx { EVENT_IDX } else { 0 }))
        };
        let used =
            VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::CONFIG;
        Ok(Self { session: Session::negotiate(stream, features, |offered| Ok(offered & used))? })
    }

    /// The features that were agreed on.
    pub(crate) fn features(&self) -> u64 {
        self.session.features
    }

    /// How many queues the server has; `None` when it does not say.
    pub(crate) fn queue_count(&mut self) -> Result<Option<u64>> {
        let says = self.session.protocol.contains(VhostUserProtocolFeatures::MQ);
        says.then(|| self.session.link().get_queue_num().context("GET_QUEUE_NUM")).transpose()
    }

    /// The first `len` bytes of the configuration space; `None` when the server shows none.
    pub(crate) fn config(&mut self, len: u32) -> Result<Option<Vec<u8>>> {
        let shows = self.session.protocol.contains(VhostUserProtocolFeatures::CONFIG);
        shows.then(|| self.session.config(0, len)).transpose()
    }

    /// Starts the queues of `plan`, which are all that there will be, each with the memory for its buffers.
    pub(crate) fn start(&mut self, plan: &[QueuePlan]) -> Result<Vec<(Queue, Area)>> {
        let event_idx = self.session.features & EVENT_IDX != 0;
        let (memory, places) = QueuePlan::lay_out(plan, GUEST_BASE, 0)?;
        self.session.share(&[&memory])?;
        let mut started = Vec::new();
        for (index, (QueuePlan { size, .. }, (areas, buffers))) in plan.iter().zip(places).enumerate() {
            let ring = frontkit::Queue::new(Arc::clone(&memory), areas, *size, event_idx);
            let eventfds = Eventfds::new()?;
            self.session
                .start(index, &ring, &eventfds, 0)
                .with_context(|| format!("queue {index} of {}", plan.len()))?;
            started.push((Queue::new(ring, Bell::Eventfds(eventfds)), buffers));
        }
        Ok(started)
    }
}
