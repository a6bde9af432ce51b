//! Exports: where a device meets its storage, its session and its workers.
//!
//! A device knows bytes, storage knows operations, link knows messages, the engine knows rings; this room joins them into
//! one thing that has a name and a socket. Protocol code does not enter here, nor does anything that a person types.

mod disk;
mod error;
mod export;
mod figures;
mod options;
mod queue;
mod rings;
mod status;
mod workers;

pub use disk::DiskRing;
pub use error::ExportError;
pub use export::Export;
pub use figures::{Kind, Latency, RingFigures};
pub use options::{DiskOptions, Socket};
pub use queue::Broken;
pub use status::{ExportStatus, RingState, RingStatus, SessionCounts};
pub use workers::DAEMON;

/// The engine that drives exports.
pub type Engine = engine::Engine<DiskRing>;
