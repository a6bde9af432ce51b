//! The integration tests of this crate: one program, so that one is linked.

mod copy;
mod handover;
mod oracle;
mod refusals;
