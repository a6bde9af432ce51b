//! Moves the contents of one storage into another: in large pieces, several at once, and without the zeroes.

use crate::extent::DataRanges;
use crate::kit::AlignedBuffer;
use crate::{Action, Operation, Step, Storage, StorageError, Task};
use engine::{Completion, Solo, Token};
use libc::iovec;
use std::collections::VecDeque;
use std::num::NonZero;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, available_parallelism};

/// Bytes that are read at once.
pub const CHUNK_BYTES: u64 = 1 << 20;
/// Chunks of a thread that are under way at once.
pub const DEPTH: usize = 8;
/// Threads at most: memory, and not processors, is what more of them would wait for.
const THREADS_MAX: usize = 4;
/// Zeroes are looked for in pieces of this many bytes: smaller holes cost a file system more than they save.
pub const GRAIN_BYTES: usize = 64 << 10;
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
    /// Those that are data are written; where the source has nothing the target keeps what it has.
    Data,
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
pub enum Part {
    /// Some of it is not zero.
    Data(u64, u64),
    /// All of it is.
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

/// Copies, and tells `progress` of bytes that are done, and of how many. What the source says is a hole is not read.
///
/// What the kernel has at hand is moved on the spot, which is as fast as one processor: so several threads share the chunks.
///
/// # Errors
/// The first error of either storage, once nothing is under way any more.
pub fn copy(route: &Route<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<Copied, StorageError> {
    let plan = Mutex::new(Plan::of(route));
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
struct Plan<'a> {
    data: DataRanges<'a>,
    /// Where the copy starts, in the source.
    base: u64,
    /// The rest of a range of the source with data, of which some or the hole in front was taken.
    rest: Option<Range<u64>>,
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

impl<'a> Plan<'a> {
    fn of(route: &Route<'a>) -> Plan<'a> {
        let (base, len) = (route.from_offset, route.len);
        let data = match route.zeroes {
            Zeroes::Leave | Zeroes::Write => DataRanges::of(route.from, base..base + len),
            Zeroes::Data => DataRanges::exactly(route.from, base..base + len),
        };
        Plan { data, base, rest: None, end: 0, len }
    }

    /// Leaves a range of the copy to the next one.
    fn leave(&mut self, rest: Range<u64>) {
        self.rest = (!rest.is_empty()).then_some(self.base + rest.start..self.base + rest.end);
    }

    /// Chunks begin at multiples of their size, so that none has an odd start but the first.
    fn take(&mut self) -> Result<Option<Piece>, StorageError> {
        if self.end == self.len {
            return Ok(None);
        }
        let range = match self.rest.take().map(Ok).or_else(|| self.data.next()) {
            Some(Ok(range)) => range,
            None => self.base + self.len..self.base + self.len,
            Some(Err(error)) => {
                // What is not known is no hole, which another thread would take for one.
                self.end = self.len;
                return Err(error);
            }
        };
        let range = range.start - self.base..range.end - self.base;
        let taken = self.end;
        if taken < range.start {
            self.end = range.start;
            self.leave(range);
            return Ok(Some(Piece::Hole(taken..self.end)));
        }
        self.end = range.end.min((taken / CHUNK_BYTES + 1) * CHUNK_BYTES);
        self.leave(self.end..range.end);
        Ok(Some(Piece::Data(taken..self.end)))
    }
}

/// A thread's part is over, well or by a panic: at the end of all there is, or nobody takes more.
struct Parting<'p, 'a>(&'p Mutex<Plan<'a>>);

impl Drop for Parting<'_, '_> {
    fn drop(&mut self) {
        let mut plan = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        plan.end = plan.len;
    }
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
    fn run(mut self, plan: &Mutex<Plan<'_>>, progress: &mut dyn FnMut(u64, u64)) -> Result<Copied, StorageError> {
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
                let taken = plan.lock().unwrap_or_else(PoisonError::into_inner).take();
                let piece = match taken {
                    Ok(Some(piece)) => piece,
                    Ok(None) => break,
                    Err(error) => {
                        copier.trouble = Some(error);
                        break;
                    }
                };
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

    /// Nothing is there: makes sure that the target has nothing there either, unless it keeps what it has. True when
    /// that has ended already.
    fn hole(&mut self, lane: &mut Lane, range: Range<u64>, token: Token) -> bool {
        if self.route.zeroes == Zeroes::Data {
            return true;
        }
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

/// Tells zeroes from data, in pieces of [`GRAIN_BYTES`].
pub fn parts(chunk: &[u8]) -> VecDeque<Part> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::Through;
    use crate::{Extent, FileOptions, FileStorage, MemoryOptions, MemoryStorage};
    use proptest::prelude::*;
    use std::os::unix::fs::FileExt;
    use values::ByteSize;

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
        fn pieces_cover_the_copy_and_its_data(
            pages in proptest::collection::btree_set(0u64..2048, 0..40),
            (base, len) in (0u64..2 << 20, 0u64..9 << 20),
        ) {
            let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
            file.as_file().set_len(12 << 20).unwrap();
            for page in &pages {
                file.as_file().write_all_at(&[1; 4096], page * 4096).unwrap();
            }
            let from = FileStorage::open(&FileOptions::new(file.path())).unwrap();
            let (from_offset, len) = (base / 512 * 512, len / 512 * 512);
            let route = Route { from: &from, from_offset, to: &from, to_offset: 0, len, zeroes: Zeroes::Leave };
            let mut plan = Plan::of(&route);
            let mut at = 0;
            while let Some(piece) = plan.take().unwrap() {
                let range = match piece {
                    Piece::Data(range) => {
                        prop_assert!(range.start / CHUNK_BYTES == (range.end - 1) / CHUNK_BYTES, "{range:?}");
                        range
                    }
                    Piece::Hole(range) => {
                        let mut hole = vec![1; (range.end - range.start) as usize];
                        file.as_file().read_exact_at(&mut hole, from_offset + range.start).unwrap();
                        prop_assert!(is_zero(&hole));
                        range
                    }
                };
                prop_assert_eq!(range.start, at);
                prop_assert!(range.start < range.end);
                at = range.end;
            }
            prop_assert_eq!(at, len);
        }
    }

    /// Memory that does not know where it has data from some byte on.
    struct Forgetful(MemoryStorage, u64);

    impl Through for Forgetful {
        fn below(&self) -> &dyn Storage {
            &self.0
        }

        fn extents_through(&self, range: Range<u64>, _most: usize) -> Result<Vec<Extent>, StorageError> {
            match range.start < self.1 {
                true => Ok(vec![Extent { bytes: self.1.min(range.end) - range.start, data: false }]),
                false => Err(StorageError::errno(Action::Look, libc::EIO)),
            }
        }
    }

    /// Of several threads one hears of the error, and the others must not take the rest for a hole.
    #[test]
    fn what_is_not_known_is_no_hole() {
        let memory = |size| {
            MemoryStorage::open(&MemoryOptions { size: Some(ByteSize(size)), ..MemoryOptions::default() }).unwrap()
        };
        let (from, to) = (Forgetful(memory(4 << 20), 1 << 20), memory(4 << 20));
        let route = Route { from: &from, from_offset: 0, to: &to, to_offset: 0, len: 4 << 20, zeroes: Zeroes::Write };
        let mut plan = Plan::of(&route);
        assert!(plan.take().is_err());
        assert!(matches!(plan.take(), Ok(None)));
        assert!(matches!(copy(&route, &mut |_, _| {}), Err(StorageError::Io { action: Action::Look, .. })));
    }
}
