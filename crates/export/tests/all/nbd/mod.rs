//! Clients of disks over NBD: what they agree on, what they ask for, and what becomes of those that do not behave.

// The client has more than each part of the tests needs.
#![allow(unreachable_pub)]

mod bitmap;
pub(crate) mod client;
mod data;
mod handshake;
mod life;
mod refusals;
pub(crate) mod server;
mod status;
mod tls;
mod trace;
mod trouble;
mod tunnel;
