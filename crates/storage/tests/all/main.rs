//! The integration tests of this crate: one program, so that one is linked.

mod beside;
mod copy;
mod handover;
mod oracle;
mod refusals;
