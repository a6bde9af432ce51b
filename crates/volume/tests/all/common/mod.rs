//! Volumes that end with the test, over models of a device, and storages as the format sees them.

use engine::Solo;
use std::sync::Arc;
use std::time::Duration;
use storage::{Kind, MemoryOptions, Operation, SimOptions, Storage, Task, VolumeFigures};
use testkit::storage::{read, run, write};
use values::{ByteSize, IntentLog, Span, SyncMode};
use volume::Blocks;

pub(crate) fn memory(size_bytes: u64) -> Box<dyn Kind> {
    Box::new(MemoryOptions { size: Some(ByteSize(size_bytes)), ..MemoryOptions::default() })
}

/// A device that serves one after the other, and takes `flush_cost` to make something stable.
pub(crate) fn serial(size_bytes: u64, flush_cost: Duration) -> Box<dyn Kind> {
    let latency = Span(Duration::from_micros(10));
    Box::new(SimOptions {
        read_latency: latency,
        write_latency: latency,
        channels: 1,
        flush_cost: Span(flush_cost),
        ..SimOptions::new(ByteSize(size_bytes))
    })
}

/// A volume that ends with the test.
pub(crate) fn fresh(lower: Box<dyn Kind>, log_bytes: u64, dirty_bytes: u64) -> Arc<dyn Storage> {
    volume::open_made(&log(log_bytes, dirty_bytes), lower).unwrap()
}

pub(crate) fn log(log_bytes: u64, dirty_bytes: u64) -> IntentLog {
    IntentLog { size: ByteSize(log_bytes), dirty_memory: ByteSize(dirty_bytes), sync: SyncMode::Standard }
}

pub(crate) fn figures(storage: &dyn Storage) -> VolumeFigures {
    storage.volume().unwrap().status().figures
}

/// A storage as the format's calls.
pub(crate) struct Plain(pub(crate) Arc<dyn Storage>);

impl Blocks for Plain {
    fn len(&self) -> u64 {
        self.0.capacity_bytes()
    }
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        buf.copy_from_slice(&read(&mut Solo::new()?, &*self.0, offset, buf.len()));
        Ok(())
    }
    fn write_at(&mut self, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        write(&mut Solo::new()?, &*self.0, offset, buf).map_err(std::io::Error::other)
    }
    fn zero_at(&mut self, offset: u64, len: u64) -> std::io::Result<()> {
        let mut task = Task::new();
        task.begin(Operation::WriteZeroes { offset, len, unmap: true, durable: false });
        run(&mut Solo::new()?, &*self.0, &mut task).map_err(std::io::Error::other)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
