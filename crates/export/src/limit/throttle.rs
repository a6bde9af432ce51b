//! What the rings of one export share: its own limits, its place in a group, and who of them comes next.

use super::group::{Group, Share};
use super::rate::Limits;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often a turn that was seen is asked for before another ring's luck is accepted.
const TRIES: usize = 3;
/// When to ask again then, in nanoseconds.
const AGAIN_NS: u64 = 20_000;

/// Bytes that are begun in one turn of a ring, and the request that goes beyond: what is cached is copied within the turn, and the
/// other rings of the worker wait meanwhile.
pub(crate) const TURN_BYTES_MAX: u64 = 1 << 20;

/// What may pass now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Requests, counted already.
    pub(crate) requests: u32,
    /// Bytes that may be begun; the request that uses up the last one may be larger. `u64::MAX` without a limit.
    pub(crate) bytes: u64,
}

impl Grant {
    /// Whether the bytes that were begun leave nothing of it in this turn.
    #[inline]
    pub(crate) fn is_spent(&self, begun_bytes: u64) -> bool {
        begun_bytes >= self.bytes.min(TURN_BYTES_MAX)
    }
}

/// The limits of one export. It never changes: other limits are another throttle.
#[derive(Debug)]
pub(crate) struct Throttle {
    own: Option<Share>,
    shared: Option<Share>,
    gates: AtomicU32,
    /// Rings that came in time and found nothing left, the first one first.
    hungry: Mutex<Vec<u32>>,
    hungry_count: AtomicUsize,
}

impl Throttle {
    /// `None` when nothing is limited.
    pub(crate) fn new(limits: Limits, group: Option<Arc<Group>>) -> Option<Throttle> {
        let own = (!limits.is_none()).then(|| Share::join(Arc::new(Group::new("", limits))));
        let shared = group.filter(|group| !group.limits().is_none()).map(Share::join);
        (own.is_some() || shared.is_some()).then(|| Throttle {
            own,
            shared,
            gates: AtomicU32::new(0),
            hungry: Mutex::default(),
            hungry_count: AtomicUsize::new(0),
        })
    }

    fn shares(&self) -> impl Iterator<Item = &Share> {
        self.own.iter().chain(&self.shared)
    }

    /// A number for a ring's gate.
    pub(super) fn enter(&self) -> u32 {
        self.gates.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether something may pass now. The export's own limits are asked first: who must wait for them holds no place in the
    /// group.
    ///
    /// # Errors
    /// When to ask again.
    pub(super) fn open(&self, now_ns: u64) -> Result<(), u64> {
        self.shares().try_for_each(|share| share.open(now_ns))
    }

    /// Takes up to `want` requests, at least one.
    ///
    /// # Errors
    /// When to ask again.
    pub(super) fn take(&self, want: u32, now_ns: u64) -> Result<Grant, u64> {
        for _ in 0..TRIES {
            self.open(now_ns)?;
            let mut requests = want;
            for share in self.shares() {
                let taken = share.take(requests);
                if taken < requests {
                    // Only the own share can come before one that has less.
                    self.own.iter().filter(|own| !std::ptr::eq(*own, share)).for_each(|own| own.give(requests - taken));
                    requests = taken;
                }
            }
            if requests > 0 {
                let bytes = self.shares().map(Share::bytes_left).min().unwrap_or(u64::MAX);
                // Another ring may have used them up just now: one request is the least.
                return Ok(Grant { requests, bytes: bytes.max(1) });
            }
        }
        Err(now_ns.saturating_add(AGAIN_NS))
    }

    /// Counts what was done with a grant: how many of its requests were not used, and how many bytes were begun.
    pub(super) fn settle(&self, unused: u32, bytes: u64) {
        for share in self.shares() {
            share.give(unused);
            share.spend(bytes);
        }
    }

    pub(super) fn in_debt(&self) -> bool {
        self.shares().any(Share::in_debt)
    }

    fn hungry(&self) -> MutexGuard<'_, Vec<u32>> {
        self.hungry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a ring other than `gate` has waited longest of those that found nothing.
    #[inline]
    pub(super) fn owes_another(&self, gate: u32) -> bool {
        self.hungry_count.load(Ordering::Acquire) > 0 && self.hungry().first().is_some_and(|first| *first != gate)
    }

    /// A ring came in time and found nothing left.
    pub(super) fn went_empty(&self, gate: u32) {
        let mut hungry = self.hungry();
        hungry.push(gate);
        self.hungry_count.store(hungry.len(), Ordering::Release);
    }

    /// The ring has got something, or wants nothing any more.
    pub(super) fn satisfied(&self, gate: u32) {
        let mut hungry = self.hungry();
        hungry.retain(|other| *other != gate);
        self.hungry_count.store(hungry.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::Grant;

    #[test]
    fn a_turn_has_an_end_whether_or_not_there_are_limits() {
        let (limited, unlimited) = (Grant { requests: 64, bytes: 4096 }, Grant { requests: 64, bytes: u64::MAX });
        assert!(!limited.is_spent(4095) && limited.is_spent(4096));
        assert!(!unlimited.is_spent((1 << 20) - 1) && unlimited.is_spent(1 << 20));
        assert!(Grant { requests: 64, bytes: 1 << 30 }.is_spent(1 << 20));
    }
}
