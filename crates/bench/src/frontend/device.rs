//! A connected frontend, whatever the server speaks.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

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

impl Device {
    /// Whether a read of the first block brings what lies there. A device of another kind may take a read for something that it
    /// knows, and call it done: nothing else tells a frontend that connects to a socket what device is there.
    pub(super) fn reads(&mut self) -> Result<bool, Error> {
        let Some((queue, buffers)) = self.queues.first_mut().zip(self.buffers.first_mut()) else { return Ok(true) };
        // What lies there may be what one of them was filled with.
        for fill in [0x5a, 0xa5] {
            buffers.slice(0).fill(fill);
            queue.read(0, buffers.lend(0), 0);
            let deadline = Instant::now() + SETUP_TIME_MAX;
            while queue.reap(1, SETUP_TIME_MAX)? == 0 {
                if Instant::now() > deadline {
                    return Err(Error::Stall { in_flight: 1, seconds: SETUP_TIME_MAX.as_secs() });
                }
            }
            // A disk may well fail: the load counts that.
            if queue.completion(0).result < 0 || buffers.slice(0).iter().any(|byte| *byte != fill) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn mute(socket: &Path, spec: &Spec) -> Error {
    let (socket, seconds) = (socket.to_owned(), SETUP_TIME_MAX.as_secs());
    match spec.protocol {
        Protocol::VhostUser | Protocol::Blk | Protocol::Scsi => Error::Mute { socket, seconds },
        Protocol::Nbd => Error::NbdMute { socket, seconds, connections: spec.queues },
    }
}
