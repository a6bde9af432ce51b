//! What stands behind a disk, behind one small trait: file or block device, memory, null, sim, and volumes over these.
//!
//! Storage knows no virtqueue and no device. It turns an [`Operation`] into work for the engine's [`engine::Io`]: a caller
//! starts a [`Task`], and hands each completion of its token back until the storage says that the task is done. What a guest
//! may ask was checked where it was decoded; storage checks the bounds again, because memory and files depend on them.

mod aligned;
mod blocking;
mod buffers;
mod error;
mod file;
mod handover;
mod late;
mod lock;
mod logged;
mod memory;
mod null;
mod open;
mod sim;
mod task;
mod traits;

pub use engine::Execution;
pub use error::{Action, OpenError, StorageError};
pub use file::{FileOptions, FileStorage};
pub use handover::{Handed, adopt};
pub use logged::{
    Barriers, LATENCY_BUCKETS, LatencyFigures, LoggedOptions, LoggedSpec, LoggedStorage, MEMORY_DIRECTORY, MemoryPlace,
    SyncMode, SyncModeError, VolumeControl, VolumeError, VolumeFigures, VolumeOptions, VolumeStatus,
    default_memory_path, tools,
};
pub use memory::{MemoryOptions, MemoryStorage};
pub use null::{NullOptions, NullStorage};
pub use open::{Opened, StorageSpec, open};
pub use sim::{Distribution, SimOptions, SimStorage};
pub use task::{Operation, Progress, State, Step, Task};
pub use traits::{Description, Storage};
