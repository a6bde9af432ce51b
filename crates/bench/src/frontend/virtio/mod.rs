//! Disks over vhost-user by a driver of our own, so that virtio-blk and virtio-scsi are compared by what they say alone.
//!
//! | module | |
//! |---|---|
//! | `queue` | requests in flight on a virtqueue |
//! | `blk`, `scsi` | what is set up, what a request looks like, and how its end is read |

mod blk;
mod queue;
mod scsi;

use std::path::Path;

use anyhow::Result;

use super::Error;
use super::buffers::Buffers;
use super::device::{Device, Memory};
use super::protocol::Protocol;
use super::spec::{Limits, Spec};
use crate::driver;

pub(crate) use queue::Queue;

/// Descriptors of a queue, at least: as libblkio has it.
const DESCRIPTORS_MIN: u16 = 64;
/// Room for the data of a request, at least: what is asked before the load needs some.
const DATA_BYTES_MIN: u32 = 4096;

/// What an answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The request is done.
    Done,
    /// It is to be made again: the unit had something else to tell.
    Again,
    /// A negative errno.
    Failed(i32),
}

/// A negative errno.
const fn failed(errno: rustix::io::Errno) -> Verdict {
    Verdict::Failed(-errno.raw_os_error())
}

/// What is put on a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read(u64),
    Write(u64),
    Flush,
}

/// A device that is connected, with what its requests look like.
struct Disk {
    link: driver::Device,
    queues: Vec<Queue>,
    limits: Limits,
    is_read_only: bool,
    has_flush: bool,
}

/// Connects to `socket` and sets up what `spec` asks for. The server is waited for some seconds at each message.
pub(crate) fn set_up(socket: &Path, spec: &Spec) -> Result<Device, Error> {
    let own_features = if spec.protocol == Protocol::Scsi { 0 } else { blk::FEATURES };
    let failed = |cause| Error::Device { socket: socket.to_owned(), cause };
    let link = driver::Device::connect(socket, true, own_features);
    let link = link.map_err(|cause| Error::DeviceConnect { socket: socket.to_owned(), cause })?;
    let set_up = if spec.protocol == Protocol::Scsi { scsi::set_up } else { blk::set_up };
    let Disk { link, queues, limits, is_read_only, has_flush } = set_up(link, spec).map_err(failed)?;
    if is_read_only && spec.rw.writes() {
        return Err(Error::ReadOnly);
    }
    if !has_flush && spec.flushes() {
        return Err(Error::NoFlush);
    }
    let parts = spec.parts(&limits)?;
    let (mut lanes, mut buffers) = (Vec::new(), Vec::new());
    for mut queue in queues {
        let (address, stride) = queue.buffers();
        buffers.extend(Buffers::at(address, stride, spec.block_bytes as usize));
        lanes.push(super::queue::Queue::Virtio(Box::new(queue)));
    }
    Ok(Device { queues: lanes, buffers, parts, limits, memory: Memory::Driver(Box::new(link)) })
}

/// Request queues for `spec`, of those that are offered: no more, which is refused with all other limits.
fn request_queues(spec: &Spec, offered: u16) -> usize {
    usize::from(spec.queues.min(offered))
}

/// How a request queue for `spec` is laid out.
fn plan(spec: &Spec) -> driver::QueuePlan {
    let plan = queue::LAYOUT.plan(spec.depth, data_bytes(spec));
    driver::QueuePlan { size: plan.size.max(DESCRIPTORS_MIN), ..plan }
}

fn data_bytes(spec: &Spec) -> usize {
    spec.block_bytes.max(DATA_BYTES_MIN) as usize
}
