//! A virtio-fs server that is mounted.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};

use super::client::Client;
use super::device::Device;
use super::fixture::Fixture;
use super::lane::Lane;
use super::port::Port;
use crate::driver::ConnectError;
use crate::fs::lane::Order;
use crate::fs::session::{self, Agreed, Mounted};
use crate::fs::shape::Shape;

/// A frontend that is connected and has initialized FUSE.
pub(crate) struct Mount {
    client: Client,
}

impl Mount {
    /// Connects to `socket` and initializes FUSE.
    pub(crate) fn connect(socket: &Path, shape: Shape, server_pid: Option<u32>) -> Result<Self, ConnectError> {
        let device = Device::connect(socket, shape)?;
        let client = Client::new(device, server_pid).map_err(ConnectError::Device)?;
        Ok(Self { client })
    }
}

impl session::Mount for Mount {
    type Lane = Lane;

    fn mounted(&self) -> Mounted {
        let device = &self.client.device;
        let depth = device.ports.first().map_or(0, Port::depth);
        Mounted { agreed: Agreed::Fuse(self.client.granted), queues: device.ports.len(), depth, qtest: None }
    }

    fn server_pid(&self) -> Option<u32> {
        self.client.server_pid
    }

    fn lanes(&mut self, order: &Order<'_>) -> Result<Vec<Lane>> {
        let fixture = Arc::new(Fixture::prepare(&mut self.client, order)?);
        let device = &mut self.client.device;
        let forgets = Arc::new(Mutex::new(device.forgets.take().context("the high-priority queue")?));
        let count = device.ports.len();
        let pid = self.client.server_pid;
        let lane =
            |(index, port)| Lane::new(port, (index, count), order.job, Arc::clone(&fixture), Arc::clone(&forgets), pid);
        Ok(device.ports.drain(..).enumerate().map(lane).collect())
    }

    fn take_back(&mut self, lanes: Vec<Lane>) -> Result<()> {
        let device = &mut self.client.device;
        let mut forgets = None;
        for lane in lanes {
            let (port, shared) = lane.into_parts();
            device.ports.push(port);
            forgets = Arc::into_inner(shared);
        }
        let forgets = forgets.context("the last lane gives the high-priority queue back")?;
        device.forgets = Some(forgets.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }
}
