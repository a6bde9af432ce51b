//! Moves the contents of one storage into another: in large pieces, several at once, and without the zeroes.

use crate::kit::AlignedBuffer;
use crate::{Action, Operation, Step, Storage, StorageError, Task};
use engine::{Completion, Solo, Token};
use libc::iovec;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, available_parallelism};

/// Bytes that are read at once.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// Chunks of a thread that are under way at once.
const DEPTH: usize = 8;
/// Threads at most: memory, and not processors, is what more of them would wait for.
const THREADS_MAX: usize = 4;
/// Zeroes are looked for in pieces of this many bytes: smaller holes cost a file system more than they save.
const GRAIN_BYTES: usize = 64 << 10;
/// Where a buffer of O_DIRECT has to lie at most.
pub const ALIGN: usize = 4096;

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Copied {
    /// Bytes that were written.
    pub data_bytes: u64,
    /// Bytes that were zeroes, and took no space.
    pub zero_bytes: u64,
}

/// What becomes of zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zeroes {
    /// The target reads as zeroes already.
    Leave,
    /// The target may hold anything.
    Write,
}

/// From where, to where.
pub struct Route<'a> {
    /// The source.
    pub from: &'a dyn Storage,
    /// First byte, in `from`.
    pub from_offset: u64,
    /// The target.
    pub to: &'a dyn Storage,
    /// First byte, in `to`.
    pub to_offset: u64,
    /// Bytes.
    pub len: u64,
    /// What becomes of zeroes.
    pub zeroes: Zeroes,
}

/// Part of a chunk: its first byte in the chunk, and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Data(u64, u64),
    Zeroes(u64, u64),
}

/// A chunk on its way.
struct Lane {
    task: Box<Task>,
    buffer: AlignedBuffer,
    /// First byte of the chunk, counted from the start of the copy, and its length.
    at: u64,
    len: u64,
    /// What is still to be written of it; `None` while it is being read.
    parts: Option<VecDeque<Part>>,
}

impl Lane {
    /// None where there is no memory.
    fn new() -> Option<Lane> {
        let buffer = AlignedBuffer::new(CHUNK_BYTES as usize, ALIGN)?;
        Some(Lane { task: Box::new(Task::new()), buffer, at: 0, len: 0, parts: None })
    }
}

/// Copies, and tells `progress` of bytes that are done, and of how many. `data` are the ranges, ascending and counted from the start of the copy, outside of which `from` reads as zeroes.
///
/// What the kernel has at hand is moved on the spot, which is as fast as one processor: so several threads share the chunks.
///
/// # Errors
/// The first error of either storage, once nothing is under way any more.
pub fn copy(
    route: &Route<'_>,
    data: Vec<Range<u64>>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Copied, StorageError> {
    let plan = Mutex::new(Plan { chunks: chunks(data, route.len), next: None, end: 0, len: route.len });
    let helpers = available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX) - 1;
    let mine = Copier::new(route)?;
    std::thread::scope(|scope| {
        // Where there is no room for more of them, there are fewer.
        let help = || Copier::new(route).map_or(Ok(Copied::default()), |copier| copier.run(&plan, &mut |_, _| {}));
        let helpers: Vec<_> = (0..helpers).map_while(|_| Builder::new().spawn_scoped(scope, help).ok()).collect();
        let mut results = vec![mine.run(&plan, progress)];
        results.extend(helpers.into_iter().map(|helper| helper.join().unwrap_or_else(|panic| resume_unwind(panic))));
        results.into_iter().try_fold(Copied::default(), |sum, one| one.map(|one| sum.plus(one)))
    })
    .inspect(|_| progress(route.len, route.len))
}

impl Copied {
    fn plus(self, other: Copied) -> Copied {
        let data_bytes = self.data_bytes + other.data_bytes;
        Copied { data_bytes, zero_bytes: self.zero_bytes + other.zero_bytes }
    }
}

/// What nobody has taken yet.
struct Plan<I> {
    chunks: I,
    /// A chunk whose hole in front of it was taken.
    next: Option<Range<u64>>,
    /// Up to where all is taken.
    end: u64,
    /// Bytes.
    len: u64,
}

/// A range to copy.
enum Piece {
    Data(Range<u64>),
    Hole(Range<u64>),
}

impl<I: Iterator<Item = Range<u64>>> Plan<I> {
    fn take(&mut self) -> Option<Piece> {
        if self.end == self.len {
            return None;
        }
        let chunk = self.next.take().or_else(|| self.chunks.next()).unwrap_or(self.len..self.len);
        if self.end < chunk.start {
            let hole = self.end..chunk.start;
            self.end = chunk.start;
            self.next = Some(chunk);
            return Some(Piece::Hole(hole));
        }
        self.end = chunk.end;
        Some(Piece::Data(chunk))
    }
}

/// A thread's part is over, well or by a panic: at the end of all there is, or nobody takes more.
struct Parting<'p, I>(&'p Mutex<Plan<I>>);

impl<I> Drop for Parting<'_, I> {
    fn drop(&mut self) {
        let mut plan = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        plan.end = plan.len;
    }
}

/// Cuts the ranges into chunks that begin at multiples of their size, so that none has an odd start but the first.
fn chunks(data: Vec<Range<u64>>, len: u64) -> impl Iterator<Item = Range<u64>> {
    data.into_iter().flat_map(move |range| {
        let (mut at, end) = (range.start.min(len), range.end.min(len));
        std::iter::from_fn(move || {
            let start = at;
            at = end.min((start / CHUNK_BYTES + 1) * CHUNK_BYTES);
            (start < end).then_some(start..at)
        })
    })
}

/// One thread's part of a copy.
struct Copier<'a> {
    route: &'a Route<'a>,
    solo: Solo,
    lanes: Vec<Lane>,
    copied: Copied,
    trouble: Option<StorageError>,
    /// Lanes with something under way.
    under_way: usize,
}

impl<'a> Copier<'a> {
    fn new(route: &'a Route<'a>) -> Result<Self, StorageError> {
        let solo = Solo::new().map_err(|source| StorageError::Io { action: Action::Read, source })?;
        let lanes: Option<_> = (0..DEPTH).map(|_| Lane::new()).collect();
        let lanes = lanes.ok_or_else(|| StorageError::errno(Action::Read, libc::ENOMEM))?;
        Ok(Copier { route, solo, lanes, copied: Copied::default(), trouble: None, under_way: 0 })
    }

    /// Takes pieces until there are no more.
    fn run<I: Iterator<Item = Range<u64>>>(
        mut self,
        plan: &Mutex<Plan<I>>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Copied, StorageError> {
        // What the kernel may have of a lane is not freed before the ring is.
        let mut lanes = std::mem::take(&mut self.lanes);
        let mut copier = self;
        let _parting = Parting(plan);
        let mut idle: Vec<usize> = (0..lanes.len()).collect();
        loop {
            while copier.trouble.is_none()
                && let Some(place) = idle.last().copied()
                && let Some(lane) = lanes.get_mut(place)
            {
                let Some(piece) = plan.lock().unwrap_or_else(PoisonError::into_inner).take() else { break };
                let token = Token::request(place as u16);
                let (start, ended) = match piece {
                    Piece::Hole(range) => (range.start, copier.hole(lane, range, token)),
                    Piece::Data(chunk) => {
                        (lane.at, lane.len, lane.parts) = (chunk.start, chunk.end - chunk.start, None);
                        (chunk.start, copier.read(lane, token))
                    }
                };
                if !ended {
                    idle.pop();
                }
                progress(start, copier.route.len);
            }
            if copier.under_way == 0 {
                break;
            }
            let completion = copier.solo.wait().expect("what is under way completes");
            let place = completion.index();
            if let Some(lane) = lanes.get_mut(place)
                && copier.completed(lane, completion)
            {
                idle.push(place);
            }
        }
        match copier.trouble.take() {
            Some(error) => Err(error),
            None => Ok(copier.copied),
        }
    }

    /// Nothing is there: makes sure that the target has nothing there either. True when that has ended already.
    fn hole(&mut self, lane: &mut Lane, range: Range<u64>, token: Token) -> bool {
        let len = range.end - range.start;
        (lane.at, lane.len) = (range.start, len);
        lane.parts = Some(VecDeque::from([Part::Zeroes(0, len)]));
        self.under_way += 1;
        self.go_on(lane, Step::Done(Ok(())), token)
    }

    /// Reads the lane's chunk. True when that, and all that follows, has ended already.
    fn read(&mut self, lane: &mut Lane, token: Token) -> bool {
        lane.task.buffers.clear();
        lane.task.buffers.push(iovec { iov_base: lane.buffer.as_ptr().cast(), iov_len: lane.len as usize });
        lane.task.begin(Operation::Read { offset: self.route.from_offset + lane.at });
        let step = self.route.from.start(&mut lane.task, token, &mut self.solo.io());
        self.under_way += 1;
        self.go_on(lane, step, token)
    }

    fn completed(&mut self, lane: &mut Lane, completion: Completion) -> bool {
        let storage = if lane.parts.is_none() { self.route.from } else { self.route.to };
        let step = storage.resume(&mut lane.task, completion, &mut self.solo.io());
        self.go_on(lane, step, completion.token)
    }

    /// Goes on with the chunk until something is pending. True when it has ended.
    fn go_on(&mut self, lane: &mut Lane, mut step: Step, token: Token) -> bool {
        loop {
            match step {
                Step::Pending => return false,
                Step::Done(Err(error)) => {
                    self.trouble.get_or_insert(error);
                    self.under_way -= 1;
                    return true;
                }
                Step::Done(Ok(())) => {}
            }
            let parts = lane.parts.get_or_insert_with(|| {
                // SAFETY: the buffer has CHUNK_BYTES, the chunk no more, and nobody else uses it: the read has ended.
                parts(unsafe { std::slice::from_raw_parts(lane.buffer.as_ptr(), lane.len as usize) })
            });
            let part = loop {
                match parts.pop_front() {
                    Some(Part::Zeroes(_, len)) if self.route.zeroes == Zeroes::Leave => self.copied.zero_bytes += len,
                    part => break part,
                }
            };
            let base = self.route.to_offset + lane.at;
            lane.task.buffers.clear();
            match part {
                None => {
                    self.under_way -= 1;
                    return true;
                }
                Some(Part::Zeroes(at, len)) => {
                    self.copied.zero_bytes += len;
                    let offset = base + at;
                    lane.task.begin(Operation::WriteZeroes { offset, len, unmap: true, durable: false });
                }
                Some(Part::Data(at, len)) => {
                    self.copied.data_bytes += len;
                    let iov_base = lane.buffer.as_ptr().wrapping_add(at as usize).cast();
                    lane.task.buffers.push(iovec { iov_base, iov_len: len as usize });
                    lane.task.begin(Operation::Write { offset: base + at, durable: false });
                }
            }
            step = self.route.to.start(&mut lane.task, token, &mut self.solo.io());
        }
    }
}

/// Tells zeroes from data.
fn parts(chunk: &[u8]) -> VecDeque<Part> {
    let mut out: VecDeque<Part> = VecDeque::new();
    let mut at = 0;
    for grain in chunk.chunks(GRAIN_BYTES) {
        let len = grain.len() as u64;
        match (out.back_mut(), is_zero(grain)) {
            (Some(Part::Zeroes(_, bytes)), true) | (Some(Part::Data(_, bytes)), false) => *bytes += len,
            (_, true) => out.push_back(Part::Zeroes(at, len)),
            (_, false) => out.push_back(Part::Data(at, len)),
        }
        at += len;
    }
    out
}

fn is_zero(bytes: &[u8]) -> bool {
    // Comparing with itself, shifted by one, is a memcmp.
    match bytes.split_first() {
        Some((first, rest)) => *first == 0 && rest == bytes.get(..rest.len()).unwrap_or_default(),
        None => true,
    }
}

/// Shorter gaps are looked for in what is read.
const GAP_BYTES: u64 = CHUNK_BYTES;
/// Most ranges.
const RANGES_MAX: usize = if cfg!(test) { 64 } else { 1 << 20 };

/// Ranges of a disk in their order, of which there are not too many: those with little between them are one, and all that are side by
/// side become one where there are very many.
#[derive(Debug, Default)]
pub struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Adds a range that begins where all others have ended, or behind.
    pub fn add(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if range.start.saturating_sub(last.end) < GAP_BYTES => last.end = last.end.max(range.end),
            _ => self.0.push(range),
        }
        if self.0.len() > RANGES_MAX {
            let pairs = self.0.chunks(2).map(|pair| pair[0].start..pair[pair.len() - 1].end);
            self.0 = pairs.collect();
        }
    }
}

impl From<Ranges> for Vec<Range<u64>> {
    fn from(ranges: Ranges) -> Self {
        ranges.0
    }
}

/// Where a file has data, in `offset..offset + len`, counted from `offset`. What cannot be asked has data everywhere.
///
/// # Errors
/// The kernel's answer.
pub fn data_ranges(fd: impl AsFd, offset: u64, len: u64) -> io::Result<Vec<Range<u64>>> {
    let end = offset.saturating_add(len);
    let mut out = Ranges::default();
    let mut at = offset;
    while at < end {
        let start = match rustix::fs::seek(&fd, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Behind the last data.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::SPIPE) => at,
            Err(errno) => return Err(errno.into()),
        };
        if start >= end {
            break;
        }
        let hole = rustix::fs::seek(&fd, SeekFrom::Hole(start)).unwrap_or(end);
        let stop = hole.clamp(start + 1, end);
        // Holes have the grain of the file system; a transfer has that of sectors.
        let range = (start / 512 * 512).max(offset) - offset..stop.next_multiple_of(512).min(end) - offset;
        out.add(range);
        at = stop;
    }
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::FileExt;

    proptest! {
        #[test]
        fn parts_tell_zeroes_from_data(grains in proptest::collection::vec((any::<bool>(), 0usize..GRAIN_BYTES), 0..8), odd in 1usize..=GRAIN_BYTES) {
            let mut chunk = vec![0; grains.len() * GRAIN_BYTES];
            for (number, (zero, at)) in grains.iter().enumerate() {
                chunk[number * GRAIN_BYTES + at] = u8::from(!zero);
            }
            chunk.truncate((grains.len() * GRAIN_BYTES).saturating_sub(odd / 512 * 512));
            let mut at = 0;
            for part in parts(&chunk) {
                let (start, len, zero) = match part {
                    Part::Data(start, len) => (start, len, false),
                    Part::Zeroes(start, len) => (start, len, true),
                };
                prop_assert_eq!(start, at);
                at += len;
                let bytes = &chunk[start as usize..at as usize];
                prop_assert_eq!(bytes.iter().all(|byte| *byte == 0), zero);
            }
            prop_assert_eq!(at, chunk.len() as u64);
        }

        #[test]
        fn chunks_cover_the_ranges(cuts in proptest::collection::btree_set(0u64..8 << 20, 0..8), len in 0u64..9 << 20) {
            let cuts: Vec<_> = cuts.into_iter().collect();
            let ranges: Vec<_> = cuts.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
            let cut: Vec<_> = chunks(ranges.clone(), len).collect();
            for chunk in &cut {
                prop_assert!(!chunk.is_empty() && chunk.end - chunk.start <= CHUNK_BYTES && chunk.end <= len);
            }
            let total: u64 = ranges.iter().map(|range| range.end.min(len) - range.start.min(len)).sum();
            prop_assert_eq!(cut.iter().map(|chunk| chunk.end - chunk.start).sum::<u64>(), total);
            prop_assert!(cut.windows(2).all(|pair| pair[0].end <= pair[1].start));
        }
    }

    #[test]
    fn ranges_cover_what_was_added_and_stay_few() {
        let mut ranges = Ranges::default();
        let added: Vec<_> = (0..1000u64).map(|n| (n * n) << 18).map(|at| at..at + 4096).collect();
        added.iter().cloned().for_each(|range| ranges.add(range));
        let all = Vec::from(ranges);
        assert!((RANGES_MAX / 4..=RANGES_MAX).contains(&all.len()));
        assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start));
        for range in added {
            assert!(all.iter().any(|it| it.start <= range.start && range.end <= it.end));
        }
    }

    #[test]
    fn holes_are_found() {
        // On a disk, wherever the build is.
        let program = std::env::current_exe().unwrap();
        let file = tempfile::tempfile_in(program.parent().unwrap()).unwrap();
        file.set_len(16 << 20).unwrap();
        file.write_all_at(&[1; 4096], 4 << 20).unwrap();
        file.write_all_at(&[1; 10], 9 << 20).unwrap();
        let ranges = data_ranges(&file, 1 << 20, 14 << 20).unwrap();
        let inside = |at: u64| ranges.iter().any(|range| range.contains(&(at - (1 << 20))));
        assert!(inside(4 << 20) && inside(9 << 20), "{ranges:?}");
        assert!(ranges.iter().all(|range| range.end <= 14 << 20));
        let total: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        assert!(total < 8 << 20, "{ranges:?}");
        let (pipe, _writer) = std::io::pipe().unwrap();
        assert!(data_ranges(&pipe, 0, 1000 * 512).unwrap().into_iter().eq(std::iter::once(0..1000 * 512)));
    }
}
