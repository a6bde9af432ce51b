//! Who executes a request, and where.
//!
//! Workers (a thread, an io_uring, a mailbox), the map from rings to workers.
//! This room knows no device and no protocol: it drives anything that implements [`Ring`], and moves it while it runs.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod abilities;
mod bell;
mod bells;
mod burial;
mod clock;
mod counter;
mod directory;
mod engine;
mod favoured;
mod figures;
mod file;
mod io;
mod lane;
mod mailbox;
mod panic;
mod pool;
mod price;
mod remains;
mod reply;
mod ring;
mod slots;
mod solo;
mod spec;
mod sync;
mod timer;
mod token;
mod uring;
mod ways;
mod worker;

pub use abilities::Abilities;
pub use bell::{Bell, BellError, may_be_watched};
pub use burial::RING_END_THREAD;
pub use clock::monotonic_ns;
pub use counter::Counter;
pub use directory::Watcher;
pub use engine::{Death, Engine, EngineError, Told, WorkerStatus};
pub use figures::{RingStay, StayPage, WorkerFigures};
pub use file::{File, SharedFile};
pub use io::Io;
pub use lane::WORKER_LOCKED_BYTES;
pub use mailbox::Pulse;
pub use panic::{Panic, catch};
pub use pool::{POOL_THREADS_MAX, Pool, PoolError};
pub use reply::Reply;
pub use ring::Ring;
pub use solo::Solo;
pub use spec::{SpecError, WorkerSpec};
pub use token::{Completion, RingId, Token};
pub use values::{CpuList, Execution, Placement, Poll};
pub use ways::Ways;
