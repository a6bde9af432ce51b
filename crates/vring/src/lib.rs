//! Rings over guest memory.
//!
//! This room turns bytes that a guest wrote into checked values and back: the memory table, the split virtqueue
//! (virtio 1.3, section 2.7), batched pop and push, notification suppression, the record of requests in flight by which a
//! later process goes on, and the marks in a frontend's dirty log. It performs no I/O, starts no thread and knows no device; whatever a guest writes is checked here
//! once, and a ring that lies is an error, never a panic.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod areas;
mod chain;
pub mod copy;
mod crash;
mod dirty;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod inflight;
mod layout;
mod mapping;
mod memory;
mod position;
mod split;
mod walk;

pub use chain::{Chain, Segment};
pub use crash::CRASH_POINTS;
pub use dirty::{DirtyLog, PAGE_BYTES as LOG_PAGE_BYTES, RingLog};
pub use error::{Area, LogError, MemoryError, RingError};
pub use inflight::{InflightError, InflightQueue, Note, Recovery};
pub use layout::{Layout, QUEUE_SIZE_MAX};
pub use mapping::Mapping;
pub use memory::{Memory, Region};
pub use position::RingPosition;
pub use split::SplitRing;
