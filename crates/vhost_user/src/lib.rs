//! vhost-user sessions: memory table, features, rings that appear and vanish.
//!
//! This room turns the frontend's messages into calls on a [`Target`]. It serves no request and knows no device; a
//! frontend that disconnects or misspeaks ends its session here and nothing else.
//!
//! [`serve`] owns the socket: one session at a time, each message checked and answered before the next one is read.
//! [`serve_on`] does the same with an endpoint that can pause, and be handed over to the program that replaces this one.
//! Message types, constants and field checks are the `vhost` crate's. Reading and answering is our own, because that
//! crate's `BackendReqHandler` blocks inside half a message, sends no answer to a message it refuses (the frontend waits
//! for ever), loses its place in the stream on a short read, and keeps the backend channel to itself without a way to
//! announce a changed config space.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod channel;
mod device_state;
mod end;
mod endpoint;
mod features;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handover;
mod inflight;
mod log;
mod memory;
mod message;
mod peer;
mod refusal;
mod rings;
mod serve;
mod session;
mod shared_memory;
mod stop;
mod target;
mod wire;

pub use channel::{BackendChannel, NoAnswer};
pub use end::{Misspoken, SessionEnd};
pub use endpoint::{BindError, Endpoint, SocketFile, SocketOptions, check_socket};
pub use handover::{
    EndpointState, Handover, HandoverError, Hold, Order, Pending, Resume, RingState, SessionState, Taker,
};
pub use inflight::InflightState;
pub use log::LogState;
pub use memory::{MEMORY_SLOTS, RegionState};
pub use peer::info as peer_info;
pub use rings::Kick;
pub use serve::{serve, serve_on};
pub use shared_memory::SharedMap;
pub use stop::StopFd;
pub use target::{QUEUES_MAX, RingStart, SessionInfo, Suspended, Target};
pub use vring::RingPosition;
