//! One ring's way through its export's limits: open, or closed until a time.

use super::throttle::{Grant, Throttle};
use engine::{Counter, Token};
use std::sync::Arc;

/// What is no request and has a number from here on is a deadline of a gate.
const DEADLINES: u32 = 1 << 30;
/// Longest time to one deadline, in nanoseconds: a worker that is to end waits for the deadlines that were set on it.
const DEADLINE_MAX_NS: u64 = 20_000_000;
/// How long a ring leaves a turn to one that has waited longer, in nanoseconds: time to wake up.
const YIELD_NS: u64 = 100_000;

/// Whether a completion's token names a deadline.
#[inline]
pub(crate) fn is_deadline(token: Token) -> bool {
    token.number().is_some_and(|number| number >= DEADLINES)
}

/// Sets the token to be completed at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    pub(crate) at_ns: u64,
    pub(crate) token: Token,
}

/// What a ring hears when it wants to take requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Take these.
    Go(Grant),
    /// Take none until the gate has been [`reached`](Gate::reached) by this deadline.
    Wait(Deadline),
}

/// What was held up so far.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Requests that had to wait.
    pub(crate) requests: Counter,
    /// Time during which some did.
    pub(crate) ns: Counter,
}

/// One ring's gate.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    throttle: Option<Arc<Throttle>>,
    /// Its number among the gates of the throttle.
    number: u32,
    closed: bool,
    /// Closed until somebody opens it, whatever the limits say: by which order, and since when, in nanoseconds.
    shut: Option<(u64, u64)>,
    /// The last order to open it. What was told may come late, and in another order.
    opened: u64,
    /// Counts waits, so that the deadline of one that is over is told from the present one.
    wait: u32,
    since_ns: u64,
    /// When there should be something; 0 when it has been taken.
    due_ns: u64,
    hungry: bool,
    yielded: bool,
    /// The next requests to be taken had to wait.
    held_up: bool,
    held: Arc<Held>,
}

impl Gate {
    /// Whether nothing may be taken for now.
    #[inline]
    pub(crate) fn closed(&self) -> bool {
        self.closed || self.shut.is_some()
    }

    /// Lets nothing through until it is [opened](Self::open) by the same order or a later one; orders have numbers from 1 on.
    pub(crate) fn shut(&mut self, order: u64, now_ns: u64) {
        if order > self.opened {
            let since_ns = self.shut.map_or(now_ns, |(_, since_ns)| since_ns);
            self.shut = Some((order.max(self.shut.map_or(0, |(order, _)| order)), since_ns));
        }
    }

    /// As before this order shut it. Returns since when it was shut, if it is open now and was not.
    pub(crate) fn open(&mut self, order: u64) -> Option<u64> {
        self.opened = self.opened.max(order);
        let (_, since_ns) = self.shut.take_if(|(shut_by, _)| *shut_by <= order)?;
        Some(since_ns)
    }

    /// The page of what was held up.
    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    /// Other limits, or none: they hold from now on, and whoever waits for the old ones waits no longer.
    pub(crate) fn set(&mut self, throttle: Option<Arc<Throttle>>, now_ns: u64) {
        if same(self.throttle.as_ref(), throttle.as_ref()) {
            return;
        }
        self.no_longer_hungry();
        if std::mem::take(&mut self.closed) {
            self.held.ns.add(now_ns.saturating_sub(self.since_ns));
        }
        self.number = throttle.as_ref().map_or(0, |throttle| throttle.enter());
        (self.throttle, self.due_ns, self.yielded) = (throttle, 0, false);
    }

    /// Asks for up to `want` requests, at least one. A grant is given back with [`settle`](Self::settle).
    #[inline]
    pub(crate) fn ask(&mut self, want: u32, now_ns: u64) -> Ask {
        if self.throttle.is_none() {
            return Ask::Go(Grant { requests: want, bytes: u64::MAX });
        }
        self.ask_throttle(want, now_ns)
    }

    fn ask_throttle(&mut self, want: u32, now_ns: u64) -> Ask {
        let Some(throttle) = &self.throttle else {
            return Ask::Go(Grant { requests: want, bytes: u64::MAX });
        };
        if !self.yielded && throttle.owes_another(self.number) {
            self.yielded = true;
            return Ask::Wait(self.close(now_ns.saturating_add(YIELD_NS), now_ns));
        }
        match throttle.take(want, now_ns) {
            Ok(grant) => {
                self.yielded = false;
                self.due_ns = 0;
                self.no_longer_hungry();
                Ask::Go(grant)
            }
            Err(until_ns) => {
                // It came when there should have been something, and another ring of the export had been quicker.
                if self.due_ns != 0 && now_ns >= self.due_ns && !self.hungry {
                    throttle.went_empty(self.number);
                    self.hungry = true;
                }
                self.yielded = false;
                Ask::Wait(self.close(until_ns, now_ns))
            }
        }
    }

    fn close(&mut self, until_ns: u64, now_ns: u64) -> Deadline {
        self.closed = true;
        self.since_ns = now_ns;
        self.due_ns = until_ns;
        self.wait = self.wait.wrapping_add(1);
        Deadline { at_ns: until_ns.min(now_ns.saturating_add(DEADLINE_MAX_NS)), token: self.token() }
    }

    fn token(&self) -> Token {
        Token::other(DEADLINES | (self.wait % DEADLINES))
    }

    /// Says what became of a grant: `taken` requests were, which began to move `bytes`.
    #[inline]
    pub(crate) fn settle(&mut self, grant: Grant, taken: u32, bytes: u64) {
        if let Some(throttle) = &self.throttle {
            throttle.settle(grant.requests.saturating_sub(taken), bytes);
            if std::mem::take(&mut self.held_up) {
                self.held.requests.add(u64::from(taken));
            }
        }
    }

    /// A deadline has been reached; `pending` says whether requests wait. Returns the next deadline when the gate stays
    /// closed: to pay for what was taken, even though nothing more is wanted.
    pub(crate) fn reached(&mut self, token: Token, pending: bool, now_ns: u64) -> Option<Deadline> {
        if !self.closed || token != self.token() {
            return None;
        }
        self.closed = false;
        if pending {
            self.held.ns.add(now_ns.saturating_sub(self.since_ns));
            self.held_up = true;
            return None;
        }
        self.no_longer_hungry();
        self.due_ns = 0;
        let throttle = self.throttle.as_ref().filter(|throttle| throttle.in_debt())?;
        let until_ns = throttle.open(now_ns).err()?;
        Some(self.close(until_ns, now_ns))
    }

    fn no_longer_hungry(&mut self) {
        if std::mem::take(&mut self.hungry)
            && let Some(throttle) = &self.throttle
        {
            throttle.satisfied(self.number);
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.no_longer_hungry();
    }
}

fn same(one: Option<&Arc<Throttle>>, other: Option<&Arc<Throttle>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (None, None) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_that_come_late_do_nothing() {
        let mut gate = Gate::default();
        gate.shut(1, 10);
        assert!(gate.closed());
        assert_eq!((gate.open(1), gate.closed()), (Some(10), false));
        // Its hold was on its way for longer than its release.
        gate.open(2);
        gate.shut(2, 20);
        assert!(!gate.closed());
        // The release of an older one is no release of this one.
        gate.shut(4, 30);
        assert_eq!((gate.open(3), gate.closed()), (None, true));
        gate.shut(3, 40);
        assert_eq!((gate.open(4), gate.closed()), (Some(30), false));
    }
}
