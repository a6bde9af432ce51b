//! What stands behind a disk, behind one small trait: file or block device, memory, null, sim. Volumes are such storages too, and
//! have a room of their own.
//!
//! Storage knows no virtqueue and no device. It turns an [`Operation`] into work for the engine's [`engine::Io`]: a caller
//! starts a [`Task`], and hands each completion of its token back until the storage says that the task is done. What a guest
//! may ask was checked where it was decoded; storage checks the bounds again, because memory and files depend on them.
//!
//! A kind of storage is one module: its options, which a person writes ([`Kind`]), and what they open ([`Storage`]). The list of all
//! kinds is in the room `disk`.

// A daemon's words go to its log; a line to a closed or full standard error would be a panic or a wait on a worker.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod aligned;
mod buffers;
pub mod copy;
mod custody;
mod error;
pub mod extent;
mod file;
mod handover;
mod jobs;
mod kind;
mod late;
mod line;
mod links;
mod lock;
mod mark;
mod memory;
mod null;
mod pass;
mod record;
mod remote;
mod room;
mod sim;
mod sync;
pub mod target;
mod task;
mod through;
mod traits;
mod volume;
mod wait;
pub mod ways;

pub use custody::{Custody, Look, OPENING_UNKNOWN};
pub use engine::Execution;
pub use error::{Action, OpenError, StorageError};
pub use extent::Extent;
pub use file::{FileOptions, FileStorage};
pub use handover::Handed;
pub use kind::{
    Access, FrontLog, KEY_FILE, Kind, LUKS, Made, NO_LOCK, Need, Opened, READ_ONLY, check_migratable, open,
};
pub use links::Links;
pub use mark::{LogMark, Marked};
pub use memory::{MemoryOptions, MemoryStorage};
pub use null::{NullOptions, NullStorage};
pub use pass::{Loss, Pass, PassCommand, PassData, PassPlace, Passed, Refusal};
pub use record::{HandedRecord, RECORD_BYTES_MAX, RecordError, RecordFile, RecordStep, RecordWitness, Storing};
pub use remote::{Link, LinkState, Remote};
pub use room::{Counted, Room};
pub use sim::{Distribution, SimOptions, SimStorage};
pub use task::{Operation, Progress, State, Step, Task};
pub use traits::{Description, Storage};
pub use volume::{GoBeforeError, InFront, LATENCY_BUCKETS, LatencyFigures, VolumeControl, VolumeFigures, VolumeStatus};

/// What storages are made of, for those that have rooms of their own.
pub mod kit {
    pub use crate::aligned::AlignedBuffer;
    pub use crate::buffers::{Lent, ON_THE_SPOT_MAX, aligned, copy_in, copy_out, range, remaining, total, zero};
    pub use crate::error::check_size;
    pub use crate::file::{
        begins_like, check_access, check_kind, check_makes_files, check_writable, file_system_memory, forget_cached,
    };
    pub use crate::jobs::{Jobs, LOOKS, RECORDS, Threads, WORK};
    pub use crate::late::{has_left_io, settled};
    pub use crate::line::Line;
    pub use crate::lock::{Holders, ImageLock};
    pub use crate::null::check_growth;
    pub use crate::through::Through;
    pub use crate::wait::wait_for;
}
