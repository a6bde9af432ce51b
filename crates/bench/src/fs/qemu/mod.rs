//! QEMU's own 9p server, driven without a guest.
//!
//! That server is a device of a virtual machine and listens nowhere. Here the machine has no processor that runs
//! (`-accel qtest`), and this process is its guest: the machine's memory is a file that both map (`machine`), the
//! device's registers (`mmio`) are read and written by QEMU's protocol for tests (`qtest`), and requests lie on a ring in
//! the memory, as with vhost-user. Per batch of requests one register is written (`doorbell`). QEMU's main loop reads
//! that from a socket, where under KVM it would read an eventfd; what this costs is measured, and nothing is subtracted.

mod doorbell;
mod machine;
mod mmio;
mod qtest;

use std::os::unix::net::UnixStream;

use anyhow::Result;
use frontkit::Area;
use frontkit::feature::{EVENT_IDX, VERSION_1};

pub(crate) use doorbell::KickCost;
pub(crate) use machine::{Qemu, Ram};

use mmio::Transport;
use qtest::Qtest;

use crate::driver::{Bell, Queue};

/// A device with its one queue.
pub(crate) struct Started {
    pub(crate) queue: Queue,
    /// Memory for the buffers of its requests.
    pub(crate) buffers: Area,
    pub(crate) kick_cost: KickCost,
}

impl Ram {
    /// Starts the 9p device of the QEMU that has this memory and `server_pid`, and listens for qtest at the other end of
    /// `socket`. Of its features, what every device has, those in `own`, and EVENT_IDX if `event_idx` is set are taken.
    pub(crate) fn start(
        self,
        socket: UnixStream,
        (event_idx, own): (bool, u64),
        server_pid: Option<u32>,
    ) -> Result<Started> {
        let Self { memory, areas, buffers, queue_size, .. } = self;
        let mut transport = Transport::find(Qtest::new(socket)?)?;
        let features = transport.negotiate(VERSION_1, own | if event_idx { EVENT_IDX } else { 0 })?;
        transport.start(queue_size, [areas.desc, areas.avail, areas.used])?;
        let mut doorbell = transport.into_doorbell();
        let kick_cost = doorbell.cost(server_pid)?;
        let ring = frontkit::Queue::new(memory, areas, queue_size, features & EVENT_IDX != 0);
        Ok(Started { queue: Queue::new(ring, Bell::Register(Box::new(move || doorbell.ring()))), buffers, kick_cost })
    }
}
