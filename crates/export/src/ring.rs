//! What workers drive: the rings of all devices in one type, so that one worker serves disks and directories.

use crate::calls::Executor;
use crate::directory::DirectoryRing;
use crate::disk::DiskRing;
use crate::figures::RingFigures;
use crate::limit::Gate;
use crate::p9::{P9Ring, StreamRing};
use crate::queue::{Broken, Queue};
use engine::{Completion, Io, Panic};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use vring::Memory;

/// One virtqueue of an export.
pub enum Ring {
    /// Of a disk.
    Disk(Box<DiskRing>),
    /// Of a directory.
    Directory(Box<DirectoryRing>),
    /// Of a directory that speaks 9P.
    P9(Box<P9Ring>),
    /// A connection of a client of a directory that speaks 9P.
    Stream(Box<StreamRing>),
}

/// Calls the same method whatever the device.
macro_rules! each {
    ($ring:expr, $inner:ident => $call:expr) => {
        match $ring {
            Ring::Disk($inner) => $call,
            Ring::Directory($inner) => $call,
            Ring::P9($inner) => $call,
            Ring::Stream($inner) => $call,
        }
    };
}

/// Reaches the virtqueue of a ring.
macro_rules! queue_of {
    ($ring:expr, $queue:ident) => {
        match $ring {
            Ring::Disk(ring) => Some(ring.$queue()),
            Ring::Directory(ring) => Some(ring.$queue()),
            Ring::P9(ring) => Some(ring.$queue()),
            Ring::Stream(_) => None,
        }
    };
}

impl Ring {
    /// Its virtqueue, if it has one.
    #[inline]
    pub(crate) fn queue(&self) -> Option<&Queue> {
        queue_of!(self, queue)
    }

    /// As [`queue`](Self::queue).
    #[inline]
    pub(crate) fn queue_mut(&mut self) -> Option<&mut Queue> {
        queue_of!(self, queue_mut)
    }

    /// Gives its virtqueue, if it has one, a new memory table.
    pub(crate) fn set_memory(&mut self, memory: Arc<Memory>) {
        match self {
            Ring::Disk(ring) => ring.set_memory(memory),
            Ring::Directory(ring) => ring.set_memory(memory),
            Ring::P9(ring) => ring.set_memory(memory),
            Ring::Stream(_) => {}
        }
    }

    /// Why it takes no more requests until it is started again.
    pub(crate) fn broken(&self) -> Option<String> {
        self.queue()?.broken().map(Broken::to_string)
    }

    /// Whether the driver lets it take requests.
    pub(crate) fn enabled(&self) -> bool {
        self.queue().is_none_or(Queue::enabled)
    }

    /// Requests taken and not yet answered.
    pub(crate) fn requests_in_flight(&self) -> usize {
        match self {
            Ring::Stream(ring) => ring.requests_in_flight(),
            _ => self.queue().map_or(0, Queue::in_flight),
        }
    }

    /// As [`requests_in_flight`](Self::requests_in_flight), without those that can be left to the ring's next life.
    pub(crate) fn requests_to_drain(&self) -> usize {
        match self {
            Ring::Directory(ring) => self.requests_in_flight() - ring.waiting(),
            _ => self.requests_in_flight(),
        }
    }

    /// What cannot be waited for is left to the ring's next life from now on. The ring is detached next.
    pub(crate) fn suspend(&mut self) {
        if let Ring::Directory(ring) = self {
            ring.suspend();
        }
    }

    /// What is left to its next life, once it has been suspended and detached: heads, the oldest first.
    pub(crate) fn take_owed(&mut self) -> Vec<u16> {
        match self {
            Ring::Directory(ring) => ring.take_owed(),
            _ => Vec::new(),
        }
    }

    /// The place from which its next life takes requests.
    pub(crate) fn next_avail(&self) -> u16 {
        self.queue().map_or(0, Queue::next_avail)
    }

    /// Where its calls run from now on. What stands behind a disk has its own.
    pub(crate) fn set_executor(&mut self, executor: Executor) {
        match self {
            Ring::Disk(_) => {}
            Ring::Directory(ring) => ring.set_executor(executor),
            Ring::P9(ring) => ring.set_executor(executor),
            Ring::Stream(ring) => ring.set_executor(executor),
        }
    }

    pub(crate) fn gate(&self) -> &Gate {
        each!(self, ring => ring.gate())
    }

    pub(crate) fn gate_mut(&mut self) -> &mut Gate {
        each!(self, ring => ring.gate_mut())
    }

    /// When the request was taken that has been in flight longest, in nanoseconds of CLOCK_MONOTONIC.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        if self.requests_in_flight() == 0 { None } else { each!(self, ring => ring.oldest_ns()) }
    }

    pub(crate) fn figures(&self) -> RingFigures {
        let mut figures = each!(self, ring => ring.figures().clone());
        if let Some(notified) = self.queue().map(Queue::notified) {
            figures.notifications_sent = notified.sent;
            figures.notifications_suppressed = notified.suppressed;
        }
        let held = self.gate().held();
        (figures.throttled, figures.throttled_ns) = (held.requests, held.ns);
        figures
    }
}

impl engine::Ring for Ring {
    fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.queue()?.kick()
    }

    /// A connection is told of its client by what it receives.
    fn must_poll(&self) -> bool {
        !matches!(self, Ring::Stream(_)) && self.kick().is_none()
    }

    fn ready(&self) -> bool {
        match self {
            Ring::P9(ring) => ring.ready(),
            Ring::Stream(ring) => ring.ready(),
            _ => !self.gate().closed() && self.queue().is_some_and(Queue::ready),
        }
    }

    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        each!(self, ring => ring.serve(io))
    }

    fn complete(&mut self, completion: Completion, io: &mut Io<'_>) {
        each!(self, ring => ring.complete(completion, io));
    }

    fn publish(&mut self, io: &mut Io<'_>) {
        each!(self, ring => ring.publish(io));
    }

    fn arm(&mut self) -> bool {
        match self {
            Ring::P9(ring) => ring.arm(),
            Ring::Stream(ring) => ring.ready(),
            // While the gate is closed a kick would wake the worker for nothing: the gate's deadline wakes it.
            _ => !self.gate().closed() && self.queue_mut().is_some_and(Queue::arm),
        }
    }

    fn disarm(&mut self) {
        if let Some(queue) = self.queue_mut() {
            queue.disarm();
        }
    }

    fn drain(&mut self, io: &mut Io<'_>) {
        each!(self, ring => ring.drain(io));
    }

    fn lost(&mut self, why: &Panic) {
        match self {
            Ring::P9(ring) => ring.lost(),
            Ring::Stream(ring) => ring.lost(),
            Ring::Disk(_) | Ring::Directory(_) => {}
        }
        each!(self, ring => ring.label().lost(why));
    }

    fn in_flight(&self) -> usize {
        match self {
            Ring::Stream(ring) => ring.in_flight(),
            _ => self.requests_in_flight(),
        }
    }
}
