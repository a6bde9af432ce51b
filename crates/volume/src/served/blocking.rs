//! A storage as the blocking calls that formats, recovery and tools are written against.

use crate::Blocks;
use engine::Solo;
use libc::iovec;
use std::io;
use std::sync::Arc;
use storage::kit::wait_for;
use storage::{Operation, Storage, StorageError, Task};

/// Most bytes of one operation: bounds what a storage that copies has to hold.
const PIECE_BYTES: usize = 16 << 20;

/// Any storage, on the calling thread, which waits for each operation. It stays on the thread that made it.
pub(crate) struct StorageBlocks {
    storage: Arc<dyn Storage>,
    solo: Solo,
    task: Task,
    barriers: bool,
    attempts: u32,
    flush_attempts: u32,
}

impl StorageBlocks {
    /// # Errors
    /// The kernel's refusal of an io_uring.
    pub(crate) fn new(storage: Arc<dyn Storage>) -> io::Result<StorageBlocks> {
        let (solo, task) = (Solo::for_one()?, Task::new());
        Ok(StorageBlocks { storage, solo, task, barriers: true, attempts: 1, flush_attempts: 1 })
    }

    /// From now on [`flush`](Blocks::flush) does nothing: for tests that have to see what that would cost.
    pub(crate) fn without_barriers(&mut self) {
        self.barriers = false;
    }

    /// From now on an operation fails only if it does so this often in a row. Not so a flush: a page cache forgets what it could
    /// not write and says so once, so that the flush after it would be believed.
    pub(crate) fn try_often(&mut self, attempts: u32) {
        self.attempts = attempts;
    }

    /// The same of flushes: for models of storage, which forget nothing.
    pub(crate) fn flush_often(&mut self, attempts: u32) {
        self.flush_attempts = attempts;
    }

    fn run(&mut self, operation: Operation, buffer: Option<iovec>) -> io::Result<()> {
        let attempts = if operation == Operation::Flush { self.flush_attempts } else { self.attempts };
        for _ in 1..attempts {
            if self.run_once(operation, buffer).is_ok() {
                return Ok(());
            }
        }
        self.run_once(operation, buffer)
    }

    fn run_once(&mut self, operation: Operation, buffer: Option<iovec>) -> io::Result<()> {
        self.task.buffers.clear();
        self.task.buffers.extend(buffer);
        self.task.begin(operation);
        wait_for(&*self.storage, &mut self.solo, &mut self.task)?.map_err(io_error)
    }
}

/// The kernel's answer where there is one.
pub(crate) fn io_error(error: StorageError) -> io::Error {
    match error {
        StorageError::Io { source, .. } => source,
        other => io::Error::other(other),
    }
}

impl Blocks for StorageBlocks {
    fn len(&self) -> u64 {
        self.storage.capacity_bytes()
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut at = offset;
        for piece in buf.chunks_mut(PIECE_BYTES) {
            let buffer = iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
            self.run(Operation::Read { offset: at }, Some(buffer))?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn write_at(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let mut at = offset;
        for piece in buf.chunks(PIECE_BYTES) {
            // Storage only reads what it writes.
            let buffer = iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
            self.run(Operation::Write { offset: at, durable: false }, Some(buffer))?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn zero_at(&mut self, offset: u64, len: u64) -> io::Result<()> {
        match len {
            0 => Ok(()),
            len => self.run(Operation::WriteZeroes { offset, len, unmap: true, durable: false }, None),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.barriers { self.run(Operation::Flush, None) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use storage::{MemoryOptions, MemoryStorage, SimOptions, SimStorage};

    #[test]
    fn what_is_written_is_read() {
        let memory =
            MemoryStorage::open(&MemoryOptions { size: Some(values::ByteSize(1 << 20)), ..MemoryOptions::default() })
                .unwrap();
        let mut blocks = StorageBlocks::new(Arc::new(memory)).unwrap();
        assert_eq!(blocks.len(), 1 << 20);
        let data: Vec<u8> = (0..8192u32).map(|n| (n % 251) as u8).collect();
        blocks.write_at(512, &data).unwrap();
        blocks.zero_at(1024, 512).unwrap();
        blocks.flush().unwrap();
        let mut back = vec![1; 8192];
        blocks.read_at(512, &mut back).unwrap();
        assert_eq!(back[..512], data[..512]);
        assert!(back[512..1024].iter().all(|byte| *byte == 0));
        assert_eq!(back[1024..], data[1024..]);
        assert!(blocks.read_at(1 << 20, &mut back).is_err(), "behind the end");
    }

    #[test]
    fn errors_are_those_of_the_storage() {
        let options =
            SimOptions { size: values::ByteSize(1 << 20), flush_error_rate: Some(1.0), ..SimOptions::default() };
        let mut blocks = StorageBlocks::new(Arc::new(SimStorage::open(&options).unwrap())).unwrap();
        blocks.write_at(0, &[1; 512]).unwrap();
        assert!(blocks.flush().unwrap_err().to_string().contains("injected"));
        blocks.without_barriers();
        blocks.flush().unwrap();
    }
}
