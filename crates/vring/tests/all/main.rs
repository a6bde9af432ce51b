//! The integration tests of this crate: one program, so that one is linked.

mod common;
mod copy;
mod dirty;
mod errors;
mod gone;
mod guest_ranges;
mod hostile;
mod memory;
mod oracle;
mod ring;
