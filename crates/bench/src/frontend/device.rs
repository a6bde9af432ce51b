//! A connected frontend, whatever the server speaks.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use blkio::Blkio;

use super::buffers::Buffers;
use super::protocol::Protocol;
use super::queue::Queue;
use super::spec::{Limits, Part, Spec};
use super::{Error, nbd, vhost_user, virtio};
use crate::driver;

/// A server that has not answered the set-up messages after this time never will.
const SETUP_TIME_MAX: Duration = Duration::from_secs(10);

/// A connected frontend with its queues. The server sees it until it is dropped.
pub(crate) struct Device {
    // Dropped before `memory`, which they use.
    pub(crate) queues: Vec<Queue>,
    /// The data buffers of each queue.
    pub(crate) buffers: Vec<Buffers>,
    pub(crate) parts: Vec<Part>,
    pub(crate) limits: Limits,
    #[expect(dead_code, reason = "owns the connection and all memory the queues use")]
    pub(super) memory: Memory,
}

/// Whose memory the buffers are.
#[expect(dead_code, reason = "owned until the device is dropped")]
pub(super) enum Memory {
    /// The connection's, shared with the server.
    Libblkio(Blkio),
    /// Our own: what a connection moves is copied.
    Own(Vec<u8>),
    /// That of the queues themselves; this is the connection.
    Driver(Box<driver::Device>),
}

impl Device {
    /// Connects to `socket` and sets up what `spec` asks for.
    pub(crate) fn open(socket: &Path, spec: &Spec) -> Result<Self, Error> {
        let set_up = match spec.protocol {
            Protocol::VhostUser => vhost_user::set_up,
            Protocol::Nbd => nbd::set_up,
            Protocol::Blk | Protocol::Scsi => virtio::set_up,
        };
        // Answers are waited for without end, so that is done on a thread of its own.
        let (sender, receiver) = mpsc::sync_channel(1);
        let (path, asked) = (socket.to_owned(), spec.clone());
        thread::Builder::new()
            .name("bench-connect".into())
            .spawn(move || {
                // Nobody listens any more when the answer came too late.
                let _late = sender.send(set_up(&path, &asked));
            })
            .map_err(|cause| Error::Thread { cause })?;
        match receiver.recv_timeout(SETUP_TIME_MAX) {
            Ok(device) => device,
            Err(_) => Err(mute(socket, spec)),
        }
    }
}

fn mute(socket: &Path, spec: &Spec) -> Error {
    let (socket, seconds) = (socket.to_owned(), SETUP_TIME_MAX.as_secs());
    match spec.protocol {
        Protocol::VhostUser | Protocol::Blk | Protocol::Scsi => Error::Mute { socket, seconds },
        Protocol::Nbd => Error::NbdMute { socket, seconds, connections: spec.queues },
    }
}
