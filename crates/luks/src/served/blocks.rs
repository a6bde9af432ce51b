//! A storage as blocking calls on bytes, for headers and key material.

use engine::Solo;
use libc::iovec;
use std::io;
use storage::kit::{AlignedBuffer, wait_for};
use storage::{Operation, Storage, StorageError, Task};

/// Most bytes of one operation.
const PIECE_BYTES: usize = 256 << 10;

/// See the top.
pub(crate) struct Blocks<'a> {
    storage: &'a dyn Storage,
    solo: Solo,
    task: Task,
    buffer: AlignedBuffer,
}

impl<'a> Blocks<'a> {
    pub(crate) fn of(storage: &'a dyn Storage) -> io::Result<Blocks<'a>> {
        let buffer = AlignedBuffer::new(PIECE_BYTES, 4096).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Blocks { storage, solo: Solo::for_one()?, task: Task::new(), buffer })
    }

    /// As [`crate::header::Read`].
    pub(crate) fn read(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset, buf.len())?;
        let mut at = offset;
        for piece in buf.chunks_mut(PIECE_BYTES - 512) {
            let start = at / 512 * 512;
            let skip = (at - start) as usize;
            let len = (skip + piece.len()).next_multiple_of(512);
            self.run(Operation::Read { offset: start }, len)?;
            piece.copy_from_slice(&self.bytes(len)[skip..skip + piece.len()]);
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Writes whole sectors; what is missing of the last one is zero.
    pub(crate) fn write(&mut self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check(offset, buf.len())?;
        let mut at = offset;
        for piece in buf.chunks(PIECE_BYTES) {
            let len = piece.len().next_multiple_of(512);
            let bytes = self.bytes(len);
            bytes[..piece.len()].copy_from_slice(piece);
            bytes[piece.len()..].fill(0);
            self.run(Operation::Write { offset: at, durable: false }, len)?;
            at += len as u64;
        }
        Ok(())
    }

    /// Brings to stable storage what was written.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.run(Operation::Flush, 0)
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.storage.capacity_bytes()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    fn bytes(&mut self, len: usize) -> &mut [u8] {
        // SAFETY: inside the allocation, which was zeroed and is ours alone; no operation is under way.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.as_ptr(), len.min(self.buffer.len())) }
    }

    fn run(&mut self, operation: Operation, len: usize) -> io::Result<()> {
        self.task.buffers.clear();
        if len > 0 {
            self.task.buffers.push(iovec { iov_base: self.buffer.as_ptr().cast(), iov_len: len });
        }
        self.task.begin(operation);
        wait_for(self.storage, &mut self.solo, &mut self.task)?.map_err(|error| match error {
            StorageError::Io { source, .. } => source,
            other => io::Error::other(other),
        })
    }
}
