//! Exports: where a device meets what stands behind it, its session and its workers.
//!
//! A device knows bytes, storage and tree know operations, vhost_user knows messages, the engine knows rings; this room joins them into
//! one thing that has a name and a socket. Protocol code does not enter here, nor does anything that a person types.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod attachment;
mod buffers;
mod calls;
mod counters;
mod device;
mod directory;
mod disk;
mod error;
mod export;
mod figures;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod label;
mod limit;
mod nbd;
mod options;
mod p9;
mod page;
mod queue;
mod ring;
mod ring_set;
mod rings;
mod scsi;
mod shared;
mod status;
mod stream;
mod target;
mod trace;
mod turns;
mod virtqueue;
mod workers;

pub use directory::{
    DaxOptions, DirectoryOptions, DirectoryStatus, FuseSession, Policy, REQUEST_QUEUES_MAX, WINDOW_BYTES_MAX,
};
pub use error::ExportError;
pub use export::{Export, Held};
pub use figures::{Latency, Requests, RingFigures};
pub use limit::{Group, Limits, Rate};
pub use nbd::DirtyBitmap;
pub use options::{Carried, DiskOptions, Hosting, NbdOptions, Socket};
pub use p9::{P9Options, P9Policy, P9Status};
pub use queue::Broken;
pub use ring::Ring;

pub use scsi::{
    LogicalUnitName, LogicalUnits, ReservationStatus, ScsiOptions, UnitCondition, UnitOptions, UnitStatus, UnitWatch,
    check_reservations, kept_in, port_number,
};
pub use status::{Content, ExportStatus, RingState, RingStatus, SessionCounts};
pub use stream::{Admission, CONNECTIONS, CONNECTIONS_MAX, StreamError, StreamListener};
pub use trace::{LOCK, OTHER, Object, READERS_MAX, Recorder, SlowRequest, Taken, Times, Wait, What};
pub use vring::CRASH_POINTS;
pub use workers::DAEMON;

/// The engine that drives exports.
pub type Engine = engine::Engine<Ring>;
