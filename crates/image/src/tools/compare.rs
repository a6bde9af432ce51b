//! Two images with the same contents, or not.

use super::convert::{From, Open};
use super::file::ToolError;
use engine::{Solo, Token};
use libc::iovec;
use serde::Serialize;
use storage::copy::{ALIGN, CHUNK_BYTES};
use storage::extent::DataRanges;
use storage::kit::AlignedBuffer;
use storage::{Operation, Step, Task};

/// What a comparison has found. Its JSON is what `vringd image compare --json` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// Both have the same contents; of different sizes the rest of the larger reads as zeroes.
    pub same: bool,
    /// The first byte that differs.
    pub differs_at: Option<u64>,
    /// Sizes of the disks, in bytes.
    pub size_bytes: [u64; 2],
    /// Bytes that were read of each: all but what both have nothing of.
    pub read_bytes: u64,
}

/// Compares two images, with all that is behind each.
///
/// # Errors
/// One of them is being written, or cannot be read.
pub fn compare(one: &From, other: &From, progress: &mut dyn FnMut(u64, u64)) -> Result<Compared, ToolError> {
    let (one, other) = (Side::new(one.open()?)?, Side::new(other.open()?)?);
    let size_bytes = [&one, &other].map(|side| side.open.storage.capacity_bytes());
    let all = size_bytes[0].max(size_bytes[1]);
    let mut found = Compared { same: true, differs_at: None, size_bytes, read_bytes: 0 };
    let mut solo = Solo::new().map_err(ToolError::io(&one.open.path, "read"))?;
    let storages = [one.open.storage.clone(), other.open.storage.clone()];
    let paths = [one.open.path.clone(), other.open.path.clone()];
    let mut data = [0, 1].map(|side| DataRanges::of(&*storages[side], 0..size_bytes[side]).peekable());
    let mut sides = [one, other];
    let mut at = 0;
    loop {
        // What is next of either; the other has data there, too, or a hole.
        let starts = [0, 1].map(|side| match data[side].peek() {
            Some(Ok(range)) => range.start,
            Some(Err(_)) => 0,
            None => u64::MAX,
        });
        let side = usize::from(starts[1] < starts[0]);
        let Some(range) = data[side].next() else { break };
        let range = range.map_err(ToolError::storage(&paths[side]))?;
        at = at.max(range.start);
        while at < range.end {
            progress(at, all);
            let len = CHUNK_BYTES.min(range.end - at);
            read(&mut solo, &mut sides, at, len)?;
            found.read_bytes += len;
            let [one, other] = [0, 1].map(|side| sides[side].bytes(len));
            if one != other {
                let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
                return Ok(Compared { same: false, differs_at: Some(at + same as u64), ..found });
            }
            at += len;
        }
    }
    progress(all, all);
    Ok(found)
}

/// An image, and what was read of it.
pub(super) struct Side {
    open: Open,
    task: Box<Task>,
    buffer: AlignedBuffer,
}

impl Side {
    pub(super) fn new(open: Open) -> Result<Side, ToolError> {
        let buffer = AlignedBuffer::new(CHUNK_BYTES as usize, ALIGN);
        let no_memory = || ToolError::io(&open.path, "read")(std::io::ErrorKind::OutOfMemory.into());
        let buffer = buffer.ok_or_else(no_memory)?;
        Ok(Side { open, task: Box::new(Task::new()), buffer })
    }

    /// The first `len` bytes that were read; nothing is under way.
    pub(super) fn bytes(&self, len: u64) -> &[u8] {
        // SAFETY: the buffer has CHUNK_BYTES, `len` is no more, and the read into it has ended.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr(), len as usize) }
    }
}

/// Reads the same bytes of both, side by side. What is behind the end of one reads as zeroes.
pub(super) fn read(solo: &mut Solo, sides: &mut [Side; 2], at: u64, len: u64) -> Result<(), ToolError> {
    let mut trouble = None;
    let mut under_way = 0;
    for (number, side) in sides.iter_mut().enumerate() {
        let there = side.open.storage.capacity_bytes().saturating_sub(at).min(len) as usize;
        // SAFETY: the buffer has CHUNK_BYTES, `len` is no more, and nothing is under way.
        unsafe { std::slice::from_raw_parts_mut(side.buffer.as_ptr(), len as usize)[there..].fill(0) };
        if there == 0 {
            continue;
        }
        side.task.buffers.clear();
        side.task.buffers.push(iovec { iov_base: side.buffer.as_ptr().cast(), iov_len: there });
        side.task.begin(Operation::Read { offset: at });
        match side.open.storage.start(&mut side.task, Token::request(number as u16), &mut solo.io()) {
            Step::Pending => under_way += 1,
            Step::Done(result) => trouble = trouble.or(result.err().map(|error| (number, error))),
        }
    }
    while under_way > 0 {
        let completion = solo.wait().map_err(ToolError::io(&sides[0].open.path, "read"))?;
        let number = completion.index();
        let side = &mut sides[number];
        if let Step::Done(result) = side.open.storage.resume(&mut side.task, completion, &mut solo.io()) {
            under_way -= 1;
            trouble = trouble.or(result.err().map(|error| (number, error)));
        }
    }
    match trouble {
        Some((number, error)) => Err(ToolError::storage(&sides[number].open.path)(error)),
        None => Ok(()),
    }
}
