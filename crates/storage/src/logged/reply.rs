//! The results by which tasks of a volume tell each other something, far from any that a lower storage has.
//!
//! A task that waits for others may have an operation of the lower storage under way with the same token at another time, whose
//! results are bytes, negated errnos or small numbers. Errors of a commit come as negated errnos.

/// You hold the lead: decide when the next commit begins.
pub(super) const LEAD: i32 = i32::MIN + 1;
/// Your request is in the log.
pub(super) const COMMITTED: i32 = i32::MIN + 2;
/// A turn of your wait for company is over.
pub(super) const TURN: i32 = i32::MIN + 5;
/// Nothing; a reply that was not needed.
pub(super) const NOTHING: i32 = i32::MIN + 3;
/// There are slots: try again.
pub(super) const ROOM: i32 = i32::MIN + 4;
