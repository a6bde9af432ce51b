//! Exports that share limits. A single export's own limits are a group of one.

use super::line::Line;
use super::purse::Purse;
use super::rate::Limits;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Requests,
    Bytes,
}

#[derive(Debug)]
struct Lines {
    members: u64,
    requests: Option<Line>,
    bytes: Option<Line>,
}

/// Limits that any number of exports share, evenly among those that want something. A group never changes: other limits
/// are another group, into which its exports are moved.
#[derive(Debug)]
pub struct Group {
    name: String,
    limits: Limits,
    lines: Mutex<Lines>,
}

impl Group {
    /// A group without exports.
    pub fn new(name: impl Into<String>, limits: Limits) -> Group {
        let requests = limits.requests.map(|rate| Line::new(rate, rate.quantum_requests()));
        let bytes = limits.bytes.map(|rate| Line::new(rate, rate.quantum_bytes()));
        Group { name: name.into(), limits, lines: Mutex::new(Lines { members: 0, requests, bytes }) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its exports share.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refill(&self, purse: &Purse, unit: Unit, now_ns: u64) {
        let mut lines = self.lock();
        let members = lines.members;
        let line = match unit {
            Unit::Requests => lines.requests.as_mut(),
            Unit::Bytes => lines.bytes.as_mut(),
        };
        if let Some(line) = line {
            purse.refill(line, members, now_ns);
        }
    }
}

/// When to ask again if a turn was there and somebody else took it, in nanoseconds.
const AGAIN_NS: u64 = 20_000;

/// A member's place in a group.
#[derive(Debug)]
pub(super) struct Share {
    group: Arc<Group>,
    requests: Purse,
    bytes: Purse,
}

impl Share {
    pub(super) fn join(group: Arc<Group>) -> Share {
        group.lock().members += 1;
        Share { group, requests: Purse::default(), bytes: Purse::default() }
    }

    /// Whether something may pass now; reserves the next turn where it has to.
    ///
    /// # Errors
    /// When to ask again.
    pub(super) fn open(&self, now_ns: u64) -> Result<(), u64> {
        if self.group.limits.requests.is_some() {
            self.open_one(&self.requests, Unit::Requests, now_ns)?;
        }
        if self.group.limits.bytes.is_some() {
            self.open_one(&self.bytes, Unit::Bytes, now_ns)?;
        }
        Ok(())
    }

    fn open_one(&self, purse: &Purse, unit: Unit, now_ns: u64) -> Result<(), u64> {
        if purse.is_open(now_ns)? {
            return Ok(());
        }
        self.group.refill(purse, unit, now_ns);
        if purse.is_open(now_ns)? { Ok(()) } else { Err(now_ns.saturating_add(AGAIN_NS)) }
    }

    /// Takes up to `want` requests.
    #[inline]
    pub(super) fn take(&self, want: u32) -> u32 {
        if self.group.limits.requests.is_some() { self.requests.take(want) } else { want }
    }

    /// Gives requests back that were taken and not served.
    #[inline]
    pub(super) fn give(&self, requests: u32) {
        if self.group.limits.requests.is_some() && requests > 0 {
            self.requests.give(requests);
        }
    }

    /// How many bytes may be begun now; `u64::MAX` without a limit.
    #[inline]
    pub(super) fn bytes_left(&self) -> u64 {
        if self.group.limits.bytes.is_some() { self.bytes.left() } else { u64::MAX }
    }

    /// Counts bytes.
    #[inline]
    pub(super) fn spend(&self, bytes: u64) {
        if self.group.limits.bytes.is_some() && bytes > 0 {
            self.bytes.spend(bytes);
        }
    }

    pub(super) fn in_debt(&self) -> bool {
        self.bytes.in_debt()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.group.lock().members -= 1;
    }
}
