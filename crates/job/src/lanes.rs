//! Pieces of a disk on their way into the copy, several at once.

use crate::JobError;
use crate::copying::Course;
use crate::error::WRITE_COPY;
use crate::marks::Marks;
use engine::{Completion, Solo, Token};
use libc::iovec;
use std::collections::VecDeque;
use std::ops::Range;
use storage::copy::{ALIGN, CHUNK_BYTES, Copied, DEPTH, Part, parts};
use storage::kit::AlignedBuffer;
use storage::{Action, Operation, Step, Storage, StorageError, Task};

/// Part of the disk that is to be copied, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// To be read: at most [`CHUNK_BYTES`].
    Data(Range<u64>),
    /// Known to be zeroes.
    Hole(Range<u64>),
}

impl Piece {
    pub(crate) fn bytes(&self) -> &Range<u64> {
        let (Piece::Data(bytes) | Piece::Hole(bytes)) = self;
        bytes
    }
}

/// The two ends of the copy.
struct Way<'a> {
    from: &'a dyn Storage,
    to: &'a dyn Storage,
    /// Clusters of the target that may hold something; `None`: all of them.
    written: Option<Marks>,
    solo: Solo,
    copied: Copied,
}

impl Way<'_> {
    /// What has to be written so that the target has zeroes there.
    fn zeroes(&mut self, bytes: Range<u64>, base: u64, out: &mut VecDeque<Part>) {
        let len = bytes.end - bytes.start;
        self.copied.zero_bytes += len;
        let Some(written) = &self.written else {
            out.push_back(Part::Zeroes(bytes.start - base, len));
            return;
        };
        let mut left = written.clusters(bytes.start, len);
        while let Some(run) = written.run(&left) {
            left.start = run.end;
            let run = written.bytes(&run);
            out.push_back(Part::Zeroes(run.start - base, run.end - run.start));
        }
    }

    fn data(&mut self, bytes: Range<u64>, base: u64, out: &mut VecDeque<Part>) {
        let len = bytes.end - bytes.start;
        self.copied.data_bytes += len;
        if let Some(written) = &self.written {
            written.set(written.clusters(bytes.start, len));
        }
        out.push_back(Part::Data(bytes.start - base, len));
    }
}

/// One piece at a time.
struct Lane {
    task: Box<Task>,
    buffer: AlignedBuffer,
    bytes: Range<u64>,
    is_reading: bool,
    /// What is still to be written.
    parts: VecDeque<Part>,
}

impl Lane {
    /// None where there is no memory.
    fn new() -> Option<Lane> {
        let buffer = AlignedBuffer::new(CHUNK_BYTES as usize, ALIGN)?;
        Some(Lane { task: Box::new(Task::new()), buffer, bytes: 0..0, is_reading: false, parts: VecDeque::new() })
    }

    fn start(&mut self, piece: Piece, way: &mut Way<'_>, token: Token, course: &dyn Course) -> Step {
        self.parts.clear();
        match piece {
            Piece::Hole(bytes) => {
                way.zeroes(bytes.clone(), bytes.start, &mut self.parts);
                course.has_read(&bytes);
                (self.bytes, self.is_reading) = (bytes, false);
                Step::Done(Ok(()))
            }
            Piece::Data(bytes) => {
                let len = (bytes.end - bytes.start) as usize;
                assert!(len <= self.buffer.len(), "a piece is no longer than a buffer");
                self.task.buffers.clear();
                self.task.buffers.push(iovec { iov_base: self.buffer.as_ptr().cast(), iov_len: len });
                self.task.begin(Operation::Read { offset: bytes.start });
                (self.bytes, self.is_reading) = (bytes, true);
                way.from.start(&mut self.task, token, &mut way.solo.io())
            }
        }
    }

    /// The old contents are in the buffer.
    fn has_read(&mut self, way: &mut Way<'_>, course: &dyn Course) {
        self.is_reading = false;
        course.has_read(&self.bytes);
        let Range { start: base, end } = self.bytes;
        // SAFETY: `start` has found the buffer long enough, and nobody else uses it: the read has ended.
        let chunk = unsafe { std::slice::from_raw_parts(self.buffer.as_ptr(), (end - base) as usize) };
        for part in parts(chunk) {
            match part {
                Part::Data(at, len) => way.data(base + at..base + at + len, base, &mut self.parts),
                Part::Zeroes(at, len) => way.zeroes(base + at..base + at + len, base, &mut self.parts),
            }
        }
    }

    /// Goes on until something is pending; `Some`: the piece has ended.
    fn go_on(
        &mut self,
        mut step: Step,
        way: &mut Way<'_>,
        token: Token,
        course: &dyn Course,
    ) -> Option<Result<(), JobError>> {
        loop {
            match step {
                Step::Pending => return None,
                Step::Done(Err(source)) => return Some(Err(JobError::storage(self.what())(source))),
                Step::Done(Ok(())) if self.is_reading => self.has_read(way, course),
                Step::Done(Ok(())) => {}
            }
            let base = self.bytes.start;
            self.task.buffers.clear();
            match self.parts.pop_front() {
                None => return Some(Ok(())),
                Some(Part::Zeroes(at, len)) => {
                    self.task.begin(Operation::WriteZeroes { offset: base + at, len, unmap: true, durable: false });
                }
                Some(Part::Data(at, len)) => {
                    let iov_base = self.buffer.as_ptr().wrapping_add(at as usize).cast();
                    self.task.buffers.push(iovec { iov_base, iov_len: len as usize });
                    self.task.begin(Operation::Write { offset: base + at, durable: false });
                }
            }
            step = way.to.start(&mut self.task, token, &mut way.solo.io());
        }
    }

    fn what(&self) -> &'static str {
        match self.task.operation {
            Operation::Read { .. } => "read the disk",
            Operation::Flush => "flush the copy",
            Operation::Write { .. } | Operation::WriteZeroes { .. } | Operation::Discard { .. } => WRITE_COPY,
        }
    }
}

/// A piece has ended: its bytes, and how.
pub(crate) type Ended = (Range<u64>, Result<(), JobError>);

/// See the module.
pub(crate) struct Lanes<'a> {
    way: Way<'a>,
    lanes: Vec<Lane>,
    idle: Vec<usize>,
}

impl<'a> Lanes<'a> {
    /// `blank_bytes`: the target reads as zeroes, and has so many of them.
    ///
    /// # Errors
    /// No io_uring, or no memory.
    pub(crate) fn new(
        from: &'a dyn Storage,
        to: &'a dyn Storage,
        blank_bytes: Option<u64>,
    ) -> Result<Lanes<'a>, StorageError> {
        let solo = Solo::new().map_err(|source| StorageError::Io { action: Action::Read, source })?;
        let lanes: Option<Vec<Lane>> = (0..DEPTH).map(|_| Lane::new()).collect();
        let lanes = lanes.ok_or_else(|| StorageError::errno(Action::Read, libc::ENOMEM))?;
        let written = blank_bytes.map(|bytes| Marks::new(bytes, false));
        let idle = (0..lanes.len()).collect();
        Ok(Lanes { way: Way { from, to, written, solo, copied: Copied::default() }, lanes, idle })
    }

    pub(crate) fn solo(&mut self) -> &mut Solo {
        &mut self.way.solo
    }

    pub(crate) fn copied(&self) -> Copied {
        self.way.copied
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Nothing is under way.
    pub(crate) fn are_idle(&self) -> bool {
        self.idle.len() == self.lanes.len()
    }

    /// Starts a piece on an idle lane; `Some`: it has ended on the spot.
    pub(crate) fn start(&mut self, piece: Piece, course: &dyn Course) -> Option<Ended> {
        debug_assert!(!self.overlaps(piece.bytes()), "two lanes would write to one place in no order");
        self.on_a_lane(course, |lane, way, token| lane.start(piece, way, token, course))
    }

    /// Starts a flush of the target; `Some`: it has ended on the spot.
    pub(crate) fn flush(&mut self, course: &dyn Course) -> Option<Ended> {
        self.on_a_lane(course, |lane, way, token| {
            (lane.bytes, lane.is_reading) = (0..0, false);
            lane.parts.clear();
            lane.task.buffers.clear();
            lane.task.begin(Operation::Flush);
            way.to.start(&mut lane.task, token, &mut way.solo.io())
        })
    }

    fn on_a_lane(
        &mut self,
        course: &dyn Course,
        start: impl FnOnce(&mut Lane, &mut Way<'_>, Token) -> Step,
    ) -> Option<Ended> {
        // It is busy from here on, so that it is not freed if a storage panics.
        let place = self.idle.pop()?;
        let lane = self.lanes.get_mut(place)?;
        let token = Token::request(place as u16);
        let step = start(lane, &mut self.way, token);
        let result = lane.go_on(step, &mut self.way, token, course)?;
        self.idle.push(place);
        Some((lane.bytes.clone(), result))
    }

    /// A lane's token has completed; `Some`: its piece has ended.
    pub(crate) fn complete(&mut self, completion: Completion, course: &dyn Course) -> Option<Ended> {
        let place = completion.index();
        let lane = self.lanes.get_mut(place)?;
        let way = &mut self.way;
        let storage = if lane.is_reading { way.from } else { way.to };
        let step = storage.resume(&mut lane.task, completion, &mut way.solo.io());
        let result = lane.go_on(step, way, completion.token, course)?;
        self.idle.push(place);
        Some((lane.bytes.clone(), result))
    }

    fn overlaps(&self, bytes: &Range<u64>) -> bool {
        let busy = self.lanes.iter().enumerate().filter(|(place, _)| !self.idle.contains(place));
        busy.map(|(_, lane)| &lane.bytes).any(|other| other.start < bytes.end && bytes.start < other.end)
    }
}

impl Drop for Lanes<'_> {
    /// After a panic the kernel and other threads may still have what is under way, and nobody waits for it: better lost than freed.
    fn drop(&mut self) {
        if !self.are_idle() {
            std::mem::forget(std::mem::take(&mut self.lanes));
        }
    }
}
