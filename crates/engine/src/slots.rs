//! The places of rings on a worker.

use crate::figures::StayPage;
use crate::remains::Remains;
use crate::{Ring, RingId, Token};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// How often in a row a kick watch that the kernel ended is renewed. It ends watches when the completion queue is full,
/// which passes; it also ends them at once on descriptors that cannot be watched, and a frontend may send such a one.
const RENEWALS_MAX: u8 = 16;

/// A ring's place on a worker. It outlives the ring's stay until everything started here has ended.
pub(crate) struct Slot<R> {
    pub(crate) id: RingId,
    pub(crate) here: Option<Here<R>>,
    /// Work started from this slot whose completion has not arrived, the kick watch not counted.
    pub(crate) outstanding: u32,
    /// The ring's receive, while it waits for its client: the other thing that is not counted.
    pub(crate) awaited: Option<Token>,
    /// The kernel watches the kick.
    pub(crate) watched: bool,
    /// A share of a ring that has left, while something is under way that it started here.
    pub(crate) left: Option<Arc<Remains<R>>>,
    /// Watches that the kernel ended since it last signalled a kick and went on watching.
    renewals: u8,
}

/// A ring on its way to a worker, with all that goes along.
pub(crate) struct Arrival<R> {
    pub(crate) ring: Box<R>,
    pub(crate) stay: Arc<StayPage>,
    pub(crate) remains: Arc<Remains<R>>,
}

impl<R> Arrival<R> {
    /// A new one.
    pub(crate) fn new(ring: Box<R>) -> Self {
        Arrival { ring, stay: Arc::default(), remains: Arc::default() }
    }
}

/// A ring that is attached.
pub(crate) struct Here<R> {
    pub(crate) ring: Box<R>,
    pub(crate) stay: Arc<StayPage>,
    /// Where it goes if it falls.
    pub(crate) remains: Arc<Remains<R>>,
    /// In the list of rings that are looked at every turn.
    pub(crate) active: bool,
    /// The driver was asked to kick.
    pub(crate) armed: bool,
    /// A kick came that no request has been taken for yet.
    pub(crate) kicked: bool,
    /// Has something to publish this turn.
    pub(crate) dirty: bool,
    pub(crate) idle_since_ns: u64,
    /// Who wants the ring back once it is drained.
    pub(crate) detach: Option<Sender<R>>,
}

impl<R: Ring> Slot<R> {
    pub(crate) fn new(id: RingId, arrived: Arrival<R>, now_ns: u64) -> Self {
        let Arrival { ring, stay, remains } = arrived;
        let here = Here {
            ring,
            stay,
            remains,
            active: false,
            armed: true,
            kicked: false,
            dirty: false,
            idle_since_ns: now_ns,
            detach: None,
        };
        Slot { id, here: Some(here), outstanding: 0, awaited: None, watched: false, left: None, renewals: 0 }
    }

    /// Whether something that was started here has not ended.
    pub(crate) fn is_owed(&self) -> bool {
        self.outstanding > 0 || self.awaited.is_some()
    }

    /// Takes note of what the kernel said of the kick watch: whether it goes on (`more`), and `result`, an error or the
    /// events. Returns whether the watch is worth renewing.
    pub(crate) fn renew_watch(&mut self, more: bool, result: i32) -> bool {
        if more {
            self.renewals = 0;
            return false;
        }
        self.watched = false;
        if self.here.is_none() || result < 0 || self.renewals >= RENEWALS_MAX {
            return false;
        }
        self.renewals += 1;
        true
    }
}

impl<R: Ring> Here<R> {
    /// Asks for kicks; the ring stays active when requests came in the meantime.
    pub(crate) fn arm(&mut self) {
        self.active = self.ring.arm();
        self.armed = true;
        self.stay.polls_missed.add(u64::from(!self.active));
    }
}

pub(crate) fn ring_of<R>(slots: &[Option<Slot<R>>], slot: u32) -> Option<&Here<R>> {
    slots.get(slot as usize)?.as_ref()?.here.as_ref()
}

pub(crate) fn ring_of_mut<R>(slots: &mut [Option<Slot<R>>], slot: u32) -> Option<&mut Here<R>> {
    slots.get_mut(slot as usize)?.as_mut()?.here.as_mut()
}
