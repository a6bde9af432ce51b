//! A virtio-fs server: the queue for FORGET, and request queues.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::port::{LAYOUT, Port};
use crate::bytes::u32_at;
use crate::driver::{ConnectError, Device as Link, QueuePlan};
use crate::fs::shape::Shape;

/// Slots of the high-priority queue, and the data of one: FORGET needs little, BATCH_FORGET 16 bytes for each node.
const FORGETS: u16 = 64;
pub(crate) const FORGET_BYTES: usize = 16 << 10;
/// `struct virtio_fs_config` (virtio 1.3, 5.11.4): a tag of 36 bytes, then the number of request queues.
const CONFIG_BYTES: u32 = 40;
const CONFIG_QUEUES_AT: usize = 36;

/// A connected server. Dropping it ends the connection.
pub(crate) struct Device {
    /// The high-priority queue, for FORGET.
    pub(crate) forgets: Option<Port>,
    /// Request queues, at least one.
    pub(crate) ports: Vec<Port>,
    /// Held open as long as the queues are used.
    _link: Link,
}

impl Device {
    /// Connects to the server on `socket` and starts its queues.
    pub(crate) fn connect(socket: &Path, shape: Shape) -> Result<Self, ConnectError> {
        let link = Link::connect(socket, shape.event_idx, 0)?;
        Self::start(link, shape).map_err(ConnectError::Device)
    }

    fn start(mut link: Link, shape: Shape) -> Result<Self> {
        let lanes = shape.queues.min(request_queues(&mut link)?);
        let depth = shape.depth_on(lanes);
        let requests = (0..lanes).map(|_| (depth, shape.data_bytes));
        let slots: Vec<(u16, usize)> = std::iter::once((FORGETS, FORGET_BYTES)).chain(requests).collect();
        let plan: Vec<QueuePlan> = slots.iter().map(|(depth, data_bytes)| LAYOUT.plan(*depth, *data_bytes)).collect();
        let mut ports = link
            .start(&plan)?
            .into_iter()
            .zip(slots)
            .map(|((queue, buffers), (depth, data_bytes))| Port::new(queue, buffers, depth, data_bytes));
        let forgets = ports.next();
        let ports = ports.collect();
        Ok(Self { forgets, ports, _link: link })
    }
}

/// How many request queues the server has.
fn request_queues(link: &mut Link) -> Result<u16> {
    // One of them is the high-priority queue.
    let mut queues = link.queue_count()?.map_or(1, |count| count.saturating_sub(1));
    if let Some(config) = link.config(CONFIG_BYTES)? {
        queues = queues.min(u32_at(&config, CONFIG_QUEUES_AT).context("GET_CONFIG")?.into());
    }
    match u16::try_from(queues) {
        Ok(queues @ 1..) => Ok(queues),
        _ => bail!("the server has {queues} request queues"),
    }
}
