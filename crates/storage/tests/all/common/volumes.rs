//! Volumes that end with the test, over models of a device.

use std::sync::Arc;
use std::time::Duration;
use storage::{LoggedSpec, MemoryOptions, SimOptions, Storage, StorageSpec, SyncMode, VolumeFigures};

pub(crate) fn memory(size_bytes: u64) -> StorageSpec {
    StorageSpec::Memory(MemoryOptions { size_bytes, ..MemoryOptions::default() })
}

/// A device that serves one after the other, and takes `flush_cost` to make something stable.
pub(crate) fn serial(size_bytes: u64, flush_cost: Duration) -> StorageSpec {
    StorageSpec::Sim(SimOptions {
        size_bytes,
        read_latency: Duration::from_micros(10),
        write_latency: Duration::from_micros(10),
        channels: 1,
        flush_cost,
        ..SimOptions::default()
    })
}

/// A volume that ends with the test.
pub(crate) fn fresh(lower: StorageSpec, log_bytes: u64, dirty_bytes: u64) -> Arc<dyn Storage> {
    let spec = LoggedSpec { lower, log_bytes, dirty_bytes, sync: SyncMode::Standard };
    storage::open(&StorageSpec::Logged(Box::new(spec))).unwrap()
}

pub(crate) fn figures(storage: &dyn Storage) -> VolumeFigures {
    storage.volume().unwrap().status().figures
}
