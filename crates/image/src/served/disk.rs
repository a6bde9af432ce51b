//! A file of an image as blocking calls, for metadata and copies, on whatever thread needs them.
//!
//! They go through the file's storage like any other request: so there is one owner of partial blocks under O_DIRECT, and what is
//! written here and there has the order in which it was asked for.

use crate::uses::Source;
use engine::Solo;
use libc::iovec;
use std::cell::RefCell;
use std::io;
use storage::kit::wait_for;
use storage::{Operation, Storage, Task};

/// An operation at a time.
type Lane = (Solo, Task);

thread_local! {
    /// Lanes that are idle: one, but for a file that is an image itself, whose operations have operations of their own.
    static LANES: RefCell<Vec<Lane>> = const { RefCell::new(Vec::new()) };
}

/// Sets up what calls of this thread need.
pub(super) fn prepare() -> Result<(), i32> {
    lane().map(put_back)
}

fn lane() -> Result<Lane, i32> {
    match LANES.with_borrow_mut(Vec::pop) {
        Some(lane) => Ok(lane),
        None => Ok((Solo::for_one().map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?, Task::new())),
    }
}

fn put_back(lane: Lane) {
    LANES.with_borrow_mut(|lanes| lanes.push(lane));
}

fn run(storage: &dyn Storage, operation: Operation, buffer: Option<iovec>) -> Result<(), i32> {
    let mut lane = lane()?;
    let (solo, task) = &mut lane;
    task.buffers.clear();
    task.buffers.extend(buffer);
    task.begin(operation);
    // A lane that cannot be waited for is not used again.
    let ended = wait_for(storage, solo, task).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    put_back(lane);
    ended.map_err(|error| error.raw_errno())
}

/// Memory that every O_DIRECT takes as it is: what is moved through it waits for no bounce buffer, of which guests may hold all.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; 4096]);

fn scratch(bytes: usize) -> Vec<Page> {
    vec![Page([0; 4096]); bytes.div_ceil(4096)]
}

fn buffer(scratch: &mut [Page], bytes: usize) -> iovec {
    debug_assert!(bytes <= size_of_val(scratch));
    iovec { iov_base: scratch.as_mut_ptr().cast(), iov_len: bytes }
}

/// Fills `buf`, whose length is whole sectors; behind the end there are zeroes.
pub(super) fn read(storage: &dyn Storage, offset: u64, buf: &mut [u8]) -> Result<(), i32> {
    let there = storage.capacity_bytes().saturating_sub(offset).min(buf.len() as u64) as usize;
    buf[there..].fill(0);
    if there == 0 {
        return Ok(());
    }
    let mut scratch = scratch(there);
    let moved = buffer(&mut scratch, there);
    run(storage, Operation::Read { offset }, Some(moved))?;
    for (part, page) in buf[..there].chunks_mut(4096).zip(&scratch) {
        part.copy_from_slice(&page.0[..part.len()]);
    }
    Ok(())
}

/// A file's bytes, for what reads them piece by piece.
pub(super) struct Bytes<'a>(pub(super) &'a dyn Storage);

impl Source for Bytes<'_> {
    fn len_bytes(&self) -> u64 {
        self.0.capacity_bytes()
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = offset / 512 * 512;
        let skip = (offset - start) as usize;
        let mut whole = vec![0; (skip + buf.len()).next_multiple_of(512)];
        read(self.0, start, &mut whole).map_err(io::Error::from_raw_os_error)?;
        buf.copy_from_slice(&whole[skip..skip + buf.len()]);
        Ok(())
    }
}

/// Writes whole sectors.
pub(super) fn write(storage: &dyn Storage, offset: u64, buf: &[u8]) -> Result<(), i32> {
    let mut scratch = scratch(buf.len());
    for (part, page) in buf.chunks(4096).zip(&mut scratch) {
        page.0[..part.len()].copy_from_slice(part);
    }
    let moved = buffer(&mut scratch, buf.len());
    run(storage, Operation::Write { offset, durable: false }, Some(moved))
}

/// Brings to stable storage what was written.
pub(super) fn flush(storage: &dyn Storage) -> Result<(), i32> {
    run(storage, Operation::Flush, None)
}

/// Lets a range read as zeroes and gives its space back.
pub(super) fn zero(storage: &dyn Storage, offset: u64, len: u64) -> Result<(), i32> {
    run(storage, Operation::WriteZeroes { offset, len, unmap: true, durable: false }, None)
}

/// Gives the space of a range back. What cannot be given back stays.
pub(super) fn discard(storage: &dyn Storage, offset: u64, len: u64) {
    if let Err(errno) = run(storage, Operation::Discard { offset, len }, None) {
        tracing::debug!(offset, len, errno, "the space of freed clusters is not given back");
    }
}
