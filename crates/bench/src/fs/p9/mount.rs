//! A 9p server that is mounted: one session on the queues of a device, or one on each connection.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use anyhow::{Context, Result, bail};

use super::channel::Channel;
use super::client::Client;
use super::fixture::Fixture;
use super::lane::Lane;
use super::ring::{LAYOUT, Ring};
use super::stream::Stream;
use super::wire::IO_HEADER_BYTES;
use crate::driver::{ConnectError, Device};
use crate::fs::lane::Order;
use crate::fs::protocol::Address;
use crate::fs::qemu::{KickCost, Ram, Started};
use crate::fs::session::{self, Agreed, Mounted};
use crate::fs::shape::Shape;

/// VIRTIO_9P_MOUNT_TAG (virtio 1.3, 5.15.3), which Linux's driver does not do without.
const MOUNT_TAG: u64 = 1;

/// A frontend that is connected and attached.
pub(crate) struct Mount {
    /// One a queue or connection, at least one.
    clients: Vec<Client>,
    /// The device, whose queues share a session.
    device: Option<Device>,
    server_pid: Option<u32>,
    /// Where QEMU is told of requests.
    kick_cost: Option<KickCost>,
}

impl Mount {
    /// Connects to `address`, a stream or a device, and attaches to the tree that is called `aname`.
    pub(crate) fn connect(
        address: &Address,
        is_stream: bool,
        aname: &str,
        shape: Shape,
        server_pid: Option<u32>,
    ) -> Result<Self, ConnectError> {
        let shape = within_msize(shape);
        if !is_stream {
            let device = Device::connect(address.place(), shape.event_idx, MOUNT_TAG)?;
            return Self::on_device(device, aname, shape, server_pid).map_err(ConnectError::Device);
        }
        let mut clients = Vec::new();
        for _ in 0..shape.queues {
            let stream = Stream::connect(address, shape.depth, shape.data_bytes, shape.msize);
            let channel = Channel::Stream(stream.map_err(ConnectError::Connect)?);
            clients.push(Client::mount(channel, aname, shape.msize, server_pid).map_err(ConnectError::Device)?);
        }
        Ok(Self { clients, device: None, server_pid, kick_cost: None })
    }

    /// Memory for a QEMU whose device is to be driven as `shape` says.
    pub(crate) fn ram(shape: Shape) -> Result<Ram> {
        Ram::new(LAYOUT.plan(shape.depth_on(1), within_msize(shape).data_bytes))
    }

    /// Starts the device of the QEMU that listens for qtest at the other end of `socket` and has `ram`, which was made for
    /// `shape`, and attaches to its tree.
    pub(crate) fn on_qemu(socket: UnixStream, ram: Ram, shape: Shape, server_pid: Option<u32>) -> Result<Self> {
        let shape = within_msize(shape);
        let Started { queue, buffers, kick_cost } = ram.start(socket, (shape.event_idx, MOUNT_TAG), server_pid)?;
        let channel = Channel::Ring(Ring::new(queue, buffers, shape.depth_on(1), shape.data_bytes));
        let client = Client::mount(channel, "", shape.msize, server_pid)?;
        Ok(Self { clients: vec![client], device: None, server_pid, kick_cost: Some(kick_cost) })
    }

    fn on_device(mut device: Device, aname: &str, shape: Shape, server_pid: Option<u32>) -> Result<Self> {
        let queues = match u16::try_from(device.queue_count()?.unwrap_or(1)) {
            Ok(queues @ 1..) => shape.queues.min(queues),
            _ => bail!("the server has no queue, or more than there can be"),
        };
        let depth = shape.depth_on(queues);
        let mut channels = device
            .start(&vec![LAYOUT.plan(depth, shape.data_bytes); usize::from(queues)])?
            .into_iter()
            .map(|(queue, buffers)| Channel::Ring(Ring::new(queue, buffers, depth, shape.data_bytes)));
        let first = Client::mount(channels.next().context("a queue")?, aname, shape.msize, server_pid)?;
        let others: Vec<Client> = channels.map(|channel| first.beside(channel)).collect();
        let clients = std::iter::once(first).chain(others).collect();
        Ok(Self { clients, device: Some(device), server_pid, kick_cost: None })
    }
}

/// A request's data fits into a message.
fn within_msize(shape: Shape) -> Shape {
    Shape { data_bytes: shape.data_bytes.min((shape.msize - IO_HEADER_BYTES) as usize), ..shape }
}

impl session::Mount for Mount {
    type Lane = Lane;

    fn mounted(&self) -> Mounted {
        // There is one at least, and all agreed on the same.
        let (depth, agreed) =
            self.clients.first().map_or((0, None), |client| (client.channel.slots().depth(), Some(client.granted)));
        let agreed = Agreed::P9(agreed.unwrap_or_default());
        Mounted { agreed, queues: self.clients.len(), depth, qtest: self.kick_cost }
    }

    fn server_pid(&self) -> Option<u32> {
        self.server_pid
    }

    fn lanes(&mut self, order: &Order<'_>) -> Result<Vec<Lane>> {
        let count = self.clients.len();
        let shares = self.device.is_some();
        let mut fixtures = Vec::new();
        let sessions = if shares { 1 } else { count };
        for client in self.clients.iter_mut().take(sessions) {
            let listings = if shares { count } else { 1 };
            fixtures.push(Arc::new(Fixture::prepare(client, order, listings)?));
        }
        let mut lanes = Vec::new();
        for (index, client) in self.clients.drain(..).enumerate() {
            let (session, listing) = if shares { (0, index) } else { (index, 0) };
            let fixture = Arc::clone(fixtures.get(session).context("a fixture")?);
            lanes.push(Lane::new(client, (index, count), listing, order.job, fixture));
        }
        Ok(lanes)
    }

    fn take_back(&mut self, lanes: Vec<Lane>) -> Result<()> {
        self.clients.extend(lanes.into_iter().map(Lane::into_client));
        self.clients.iter_mut().try_for_each(Client::clunk_all)
    }
}
