//! A vhost-user server as its frontend sees it: a connection, features, memory and queues.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use vhost::VhostBackend;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::vhost_user::{Frontend as Link, VhostUserFrontend};

use super::bell::Bell;
use super::memory::{Area, Memory};
use super::queue::Queue;

/// VIRTIO_F_VERSION_1 and VIRTIO_RING_F_EVENT_IDX (virtio 1.3, 6).
pub(crate) const VERSION_1: u64 = 1 << 32;
pub(crate) const EVENT_IDX: u64 = 1 << 29;
/// How long the server may take to answer a message.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// How many queues or connections, how deep, and how much of what protocols agree on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Request queues, or connections, that are wanted.
    pub(crate) queues: u16,
    /// Requests in flight on each of them; a server with fewer queues gets as many altogether.
    pub(crate) depth: u16,
    /// Data of a request, in bytes.
    pub(crate) data_bytes: usize,
    /// Whether EVENT_IDX is taken when it is offered.
    pub(crate) event_idx: bool,
    /// The longest message that is offered over 9P, in bytes.
    pub(crate) msize: u32,
}

impl Shape {
    /// Requests in flight on each of `lanes` queues.
    pub(crate) fn depth_on(&self, lanes: u16) -> u16 {
        self.depth * (self.queues / lanes.max(1)).max(1)
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub(crate) enum ConnectError {
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

/// A connected server. Dropping it ends the connection.
pub(crate) struct Device {
    link: Link,
    protocol: VhostUserProtocolFeatures,
    event_idx: bool,
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
        let mut link = Link::from_stream(stream, 256);
        link.set_owner().context("SET_OWNER")?;
        let offered = link.get_features().context("GET_FEATURES: is another frontend connected?")?;
        let protocol_bit = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        if offered & VERSION_1 == 0 || offered & protocol_bit == 0 {
            bail!("the server offers features {offered:#x}; VERSION_1 and PROTOCOL_FEATURES must be among them");
        }
        let features = offered & (VERSION_1 | protocol_bit | own | if event_idx { EVENT_IDX } else { 0 });
        link.set_features(features).context("SET_FEATURES")?;
        let used =
            VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::CONFIG;
        let protocol = link.get_protocol_features().context("GET_PROTOCOL_FEATURES")? & used;
        link.set_protocol_features(protocol).context("SET_PROTOCOL_FEATURES")?;
        if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            link.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        Ok(Self { link, protocol, event_idx: features & EVENT_IDX != 0 })
    }

    /// How many queues the server has; `None` when it does not say.
    pub(crate) fn queue_count(&mut self) -> Result<Option<u64>> {
        let says = self.protocol.contains(VhostUserProtocolFeatures::MQ);
        says.then(|| self.link.get_queue_num().context("GET_QUEUE_NUM")).transpose()
    }

    /// The first `len` bytes of the configuration space; `None` when the server shows none.
    pub(crate) fn config(&mut self, len: u32) -> Result<Option<Vec<u8>>> {
        if !self.protocol.contains(VhostUserProtocolFeatures::CONFIG) {
            return Ok(None);
        }
        let blank = vec![0; len as usize];
        let (_, config) = self.link.get_config(0, len, VhostUserConfigFlags::empty(), &blank).context("GET_CONFIG")?;
        Ok(Some(config))
    }

    /// Starts the queues of `plan`, which are all that there will be, each with the memory for its buffers.
    pub(crate) fn start(&mut self, plan: &[QueuePlan]) -> Result<Vec<(Queue, Area)>> {
        let sizes: Vec<usize> =
            plan.iter().flat_map(|queue| [Queue::area_bytes(queue.size), queue.buffer_bytes]).collect();
        let (memory, areas) = Memory::areas(&sizes)?;
        self.link.set_mem_table(&[memory.info()]).context("SET_MEM_TABLE")?;
        let mut areas = areas.into_iter();
        let mut area = || areas.next().context("an area for each part");
        let mut started = Vec::new();
        for (index, wanted) in plan.iter().enumerate() {
            let queue = Queue::new(area()?, wanted.size, self.event_idx, Bell::eventfds()?);
            self.start_queue(index, &queue).with_context(|| format!("queue {index} of {}", plan.len()))?;
            started.push((queue, area()?));
        }
        Ok(started)
    }

    fn start_queue(&mut self, index: usize, queue: &Queue) -> Result<()> {
        let Bell::Eventfds { kick, call } = queue.bell() else { bail!("a queue has no eventfds") };
        let link = &mut self.link;
        link.set_vring_num(index, queue.size()).context("SET_VRING_NUM")?;
        link.set_vring_base(index, 0).context("SET_VRING_BASE")?;
        link.set_vring_addr(index, &queue.addresses()).context("SET_VRING_ADDR")?;
        link.set_vring_call(index, call).context("SET_VRING_CALL")?;
        link.set_vring_kick(index, kick).context("SET_VRING_KICK")?;
        link.set_vring_enable(index, true).context("SET_VRING_ENABLE")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_with_fewer_queues_gets_as_many_requests() {
        let shape = Shape { queues: 4, depth: 8, data_bytes: 0, event_idx: true, msize: 0 };
        assert_eq!((shape.depth_on(4), shape.depth_on(2), shape.depth_on(1)), (8, 16, 32));
        assert_eq!(shape.depth_on(3), 8, "not more than were asked for");
    }
}
