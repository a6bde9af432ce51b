//! A vhost-user-fs server as its frontend sees it: a connection, memory, the queue for FORGET and request queues.

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

use super::memory::{Area, Memory};
use super::port::Port;
use super::queue::Queue;

/// VIRTIO_F_VERSION_1 and VIRTIO_RING_F_EVENT_IDX (virtio 1.3, 6).
const VERSION_1: u64 = 1 << 32;
const EVENT_IDX: u64 = 1 << 29;
/// How long the server may take to answer a message.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Slots of the high-priority queue, and the data of one: FORGET needs little, BATCH_FORGET 16 bytes for each node.
const FORGETS: u16 = 64;
pub(crate) const FORGET_BYTES: usize = 16 << 10;
/// `struct virtio_fs_config` (virtio 1.3, 5.11.4): a tag of 36 bytes, then the number of request queues.
const CONFIG_BYTES: u32 = 40;
const CONFIG_QUEUES_AT: usize = 36;

/// How many queues, how deep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Request queues that are wanted.
    pub(crate) queues: u16,
    /// Requests in flight on each of them; a server with fewer queues gets as many altogether.
    pub(crate) depth: u16,
    /// Data of a request, in bytes.
    pub(crate) data_bytes: usize,
    /// Whether EVENT_IDX is taken when it is offered.
    pub(crate) event_idx: bool,
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

/// A connected server. Dropping it ends the connection.
pub(crate) struct Device {
    /// The high-priority queue, for FORGET.
    pub(crate) forgets: Option<Port>,
    /// Request queues, at least one.
    pub(crate) ports: Vec<Port>,
    link: Link,
}

impl Device {
    /// Connects to the server on `socket` and starts its queues.
    pub(crate) fn connect(socket: &Path, shape: Shape) -> Result<Self, ConnectError> {
        let stream = UnixStream::connect(socket).map_err(ConnectError::Connect)?;
        Self::set_up(stream, shape).map_err(ConnectError::Device)
    }

    fn set_up(stream: UnixStream, shape: Shape) -> Result<Self> {
        stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        let mut link = Link::from_stream(stream, 256);
        link.set_owner().context("SET_OWNER")?;
        let offered = link.get_features().context("GET_FEATURES: is another frontend connected?")?;
        let protocol_bit = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();
        if offered & VERSION_1 == 0 || offered & protocol_bit == 0 {
            bail!("the server offers features {offered:#x}; VERSION_1 and PROTOCOL_FEATURES must be among them");
        }
        let features = offered & (VERSION_1 | protocol_bit | if shape.event_idx { EVENT_IDX } else { 0 });
        link.set_features(features).context("SET_FEATURES")?;
        let used =
            VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::REPLY_ACK | VhostUserProtocolFeatures::CONFIG;
        let protocol = link.get_protocol_features().context("GET_PROTOCOL_FEATURES")? & used;
        link.set_protocol_features(protocol).context("SET_PROTOCOL_FEATURES")?;
        if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            link.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        let lanes = shape.queues.min(request_queues(&mut link, protocol)?);
        let depth = shape.depth * (shape.queues / lanes).max(1);
        let mut device = Self { forgets: None, ports: Vec::new(), link };
        device.start(lanes, depth, shape.data_bytes, features & EVENT_IDX != 0)?;
        Ok(device)
    }

    fn start(&mut self, lanes: u16, depth: u16, data_bytes: usize, event_idx: bool) -> Result<()> {
        let plan: Vec<(u16, usize)> =
            std::iter::once((FORGETS, FORGET_BYTES)).chain((0..lanes).map(|_| (depth, data_bytes))).collect();
        let sizes: Vec<usize> = plan
            .iter()
            .flat_map(|(depth, data)| [Queue::area_bytes(Port::queue_size(*depth)), Port::buffers_bytes(*depth, *data)])
            .collect();
        let (memory, areas) = Memory::areas(&sizes)?;
        self.link.set_mem_table(&[memory.info()]).context("SET_MEM_TABLE")?;
        let mut areas = areas.into_iter();
        let mut area = || -> Result<Area> { areas.next().context("an area for each part") };
        for (index, (depth, data_bytes)) in plan.into_iter().enumerate() {
            let queue = Queue::new(area()?, Port::queue_size(depth), event_idx)?;
            self.start_queue(index, &queue).with_context(|| format!("queue {index} of {lanes}"))?;
            let port = Port::new(queue, area()?, depth, data_bytes);
            if index == 0 {
                self.forgets = Some(port);
            } else {
                self.ports.push(port);
            }
        }
        Ok(())
    }

    fn start_queue(&mut self, index: usize, queue: &Queue) -> Result<()> {
        let (kick, call) = queue.eventfds();
        let link = &mut self.link;
        link.set_vring_num(index, queue.size()).context("SET_VRING_NUM")?;
        link.set_vring_base(index, 0).context("SET_VRING_BASE")?;
        link.set_vring_addr(index, &queue.addresses()).context("SET_VRING_ADDR")?;
        link.set_vring_call(index, call).context("SET_VRING_CALL")?;
        link.set_vring_kick(index, kick).context("SET_VRING_KICK")?;
        link.set_vring_enable(index, true).context("SET_VRING_ENABLE")
    }
}

/// How many request queues the server has.
fn request_queues(link: &mut Link, protocol: VhostUserProtocolFeatures) -> Result<u16> {
    let mut queues = 1;
    if protocol.contains(VhostUserProtocolFeatures::MQ) {
        // One of them is the high-priority queue.
        queues = link.get_queue_num().context("GET_QUEUE_NUM")?.saturating_sub(1);
    }
    if protocol.contains(VhostUserProtocolFeatures::CONFIG) {
        let blank = [0; CONFIG_BYTES as usize];
        let (_, config) =
            link.get_config(0, CONFIG_BYTES, VhostUserConfigFlags::empty(), &blank).context("GET_CONFIG")?;
        queues = queues.min(super::wire::u32_at(&config, CONFIG_QUEUES_AT)?.into());
    }
    match u16::try_from(queues) {
        Ok(queues @ 1..) => Ok(queues),
        _ => bail!("the server has {queues} request queues"),
    }
}
