//! What workers drive: the rings of all devices in one type, so that one worker serves disks and directories.

use crate::directory::DirectoryRing;
use crate::disk::DiskRing;
use crate::figures::RingFigures;
use crate::limit::Gate;
use crate::queue::Queue;
use engine::{Io, Panic, Token};
use std::os::fd::BorrowedFd;

/// One virtqueue of an export.
pub enum Ring {
    /// Of a disk.
    Disk(Box<DiskRing>),
    /// Of a directory.
    Directory(Box<DirectoryRing>),
}

/// Calls the same method whatever the device.
macro_rules! each {
    ($ring:expr, $inner:ident => $call:expr) => {
        match $ring {
            Ring::Disk($inner) => $call,
            Ring::Directory($inner) => $call,
        }
    };
}

impl Ring {
    pub(crate) fn queue(&self) -> &Queue {
        each!(self, ring => ring.queue())
    }

    pub(crate) fn queue_mut(&mut self) -> &mut Queue {
        each!(self, ring => ring.queue_mut())
    }

    pub(crate) fn gate(&self) -> &Gate {
        each!(self, ring => ring.gate())
    }

    pub(crate) fn gate_mut(&mut self) -> &mut Gate {
        each!(self, ring => ring.gate_mut())
    }

    /// When the request was taken that has been in flight longest, in nanoseconds of CLOCK_MONOTONIC.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        if self.queue().in_flight() == 0 { None } else { each!(self, ring => ring.oldest_ns()) }
    }

    pub(crate) fn figures(&self) -> RingFigures {
        let mut figures = each!(self, ring => ring.figures().clone());
        let notified = self.queue().notified();
        figures.notifications_sent = notified.sent;
        figures.notifications_suppressed = notified.suppressed;
        let held = self.gate().held();
        (figures.throttled, figures.throttled_ns) = (held.requests, held.ns);
        figures
    }
}

impl engine::Ring for Ring {
    fn kick(&self) -> Option<BorrowedFd<'_>> {
        self.queue().kick()
    }

    fn ready(&self) -> bool {
        !self.gate().closed() && self.queue().ready()
    }

    fn serve(&mut self, io: &mut Io<'_>) -> usize {
        each!(self, ring => ring.serve(io))
    }

    fn complete(&mut self, token: Token, result: i32, io: &mut Io<'_>) {
        each!(self, ring => ring.complete(token, result, io));
    }

    fn publish(&mut self, io: &mut Io<'_>) {
        each!(self, ring => ring.publish(io));
    }

    fn arm(&mut self) -> bool {
        // While the gate is closed a kick would wake the worker for nothing: the gate's deadline wakes it.
        !self.gate().closed() && self.queue_mut().arm()
    }

    fn disarm(&mut self) {
        self.queue_mut().disarm();
    }

    fn drain(&mut self, io: &mut Io<'_>) {
        each!(self, ring => ring.drain(io));
    }

    fn lost(&mut self, why: &Panic) {
        each!(self, ring => ring.label().lost(why));
    }

    fn in_flight(&self) -> usize {
        self.queue().in_flight()
    }
}
