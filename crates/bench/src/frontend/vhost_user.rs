//! A connection to a vhost-user-blk server, made by libblkio.

use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blkio::{Blkio, Blkioq, Errno, ReqFlags};
use rustix::event::{PollFd, PollFlags};

use super::Error;
use super::buffers::{Buffers, Loan};
use super::device::{Device, Memory};
use super::queue::{self, Completion};
use super::spec::{Limits, Spec};

/// A request takes a header, a data and a status descriptor (virtio 1.3, 5.2.6): libblkio has no indirect ones.
const DESCRIPTORS_PER_REQUEST: u32 = 3;

/// Connects to `socket` and sets up what `spec` asks for. libblkio waits for answers without end.
pub(crate) fn set_up(socket: &Path, spec: &Spec) -> Result<Device, Error> {
    let failed = |step: &'static str| move |cause: blkio::Error| Error::SetUp { step, cause };
    let mut blkio = connect(socket, !spec.rw.writes())?;
    let limits = read_limits(&blkio).map_err(failed("read the configuration of the disk"))?;
    let parts = spec.parts(&limits)?;

    let descriptors = (u32::from(spec.depth) * DESCRIPTORS_PER_REQUEST).next_power_of_two().max(64);
    let kind = if spec.poll { "num-poll-queues" } else { "num-queues" };
    blkio.set_i32("num-queues", 0).map_err(failed("choose queues"))?;
    blkio.set_i32(kind, i32::from(spec.queues)).map_err(failed("choose queues"))?;
    blkio.set_i32("queue-size", descriptors as i32).map_err(failed("choose the queue size"))?;
    let outcome = blkio.start().map_err(|cause| match cause.errno() {
        Errno::ROFS => Error::ReadOnly,
        _ => Error::SetUp { step: "set up the queues", cause },
    })?;

    let region = blkio.alloc_mem_region(spec.buffer_bytes() as usize).map_err(failed("allocate buffers"))?;
    blkio.map_mem_region(&region).map_err(failed("share the buffers"))?;
    let queues = outcome.queues.into_iter().chain(outcome.poll_queues);
    let queues = queues.map(|queue| queue::Queue::VhostUser(Box::new(Queue::new(queue, spec.depth)))).collect();
    let buffers = Buffers::side_by_side(region.addr, spec);
    Ok(Device { queues, buffers, parts, limits, memory: Memory::Libblkio(blkio) })
}

fn connect(socket: &Path, read_only: bool) -> Result<Blkio, Error> {
    let failed = |cause| Error::Connect { socket: PathBuf::from(socket), cause };
    let path = socket.to_str().ok_or_else(|| Error::Path { socket: socket.to_owned() })?;
    let mut blkio = Blkio::new("virtio-blk-vhost-user").map_err(failed)?;
    blkio.set_str("path", path).map_err(failed)?;
    // libblkio refuses a read-only disk unless told that this is meant.
    blkio.set_bool("read-only", read_only).map_err(failed)?;
    blkio.connect().map_err(failed)?;
    Ok(blkio)
}

fn read_limits(blkio: &Blkio) -> Result<Limits, blkio::Error> {
    let positive = |name| blkio.get_i32(name).map(|value| u32::try_from(value).unwrap_or(0));
    Ok(Limits {
        capacity_bytes: blkio.get_u64("capacity")?,
        block_bytes: positive("request-alignment")?,
        segment_bytes_max: positive("max-segment-len")?,
        queues: u16::try_from(positive("max-queues")?).unwrap_or(u16::MAX),
    })
}

/// A virtqueue.
pub(crate) struct Queue {
    queue: Blkioq,
    completions: Box<[MaybeUninit<blkio::Completion>]>,
    /// How many of them the last `do_io` filled in.
    reaped: usize,
}

impl Queue {
    fn new(queue: Blkioq, depth: u16) -> Self {
        Self { queue, completions: (0..depth).map(|_| MaybeUninit::uninit()).collect(), reaped: 0 }
    }

    pub(super) fn read(&mut self, offset: u64, data: &Loan, slot: u16) {
        self.queue.read(offset, data.address(), data.len(), usize::from(slot), ReqFlags::empty());
    }

    pub(super) fn write(&mut self, offset: u64, data: &Loan, slot: u16) {
        self.queue.write(offset, data.address(), data.len(), usize::from(slot), ReqFlags::empty());
    }

    pub(super) fn flush(&mut self, slot: u16) {
        self.queue.flush(usize::from(slot), ReqFlags::empty());
    }

    pub(super) fn reap(&mut self, least: usize, mut wait: Duration) -> Result<usize, Error> {
        self.reaped = 0;
        self.reaped = match self.queue.do_io(&mut self.completions, least, Some(&mut wait), None) {
            Ok(count) => count,
            Err(error) if matches!(error.errno(), Errno::TIME | Errno::INTR | Errno::AGAIN) => 0,
            Err(cause) => return Err(Error::Queue { cause }),
        };
        Ok(self.reaped)
    }

    pub(super) fn completion(&self, index: usize) -> Completion {
        // SAFETY: `do_io` filled in the first `reaped` completions.
        let completion = unsafe { self.completions[..self.reaped][index].assume_init_ref() };
        Completion { slot: completion.user_data as u16, result: completion.ret }
    }

    pub(super) fn announce(&mut self, enabled: bool) {
        self.queue.set_completion_fd_enabled(enabled);
    }

    pub(super) fn announcement(&self) -> Option<PollFd<'_>> {
        // SAFETY: the descriptor belongs to the queue, which is borrowed as long.
        let descriptor = self.queue.get_completion_fd().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        descriptor.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    pub(super) fn clear_announcement(&self) {
        if let Some(fd) = self.announcement() {
            // Only to clear it: the ring says what there is. It may be clear already.
            let _cleared = rustix::io::read(&fd, &mut [0; 8]);
        }
    }
}
