//! Buffers in which data are encrypted: a bounded number for one disk, used again and again, and a line for those who find none.
//!
//! A buffer is taken by clearing its bit, without a lock. Nobody stands in line while there are buffers. No wake-up is lost
//! (`storage::kit::Line`, `models`): a task looks for buffers once more after it has parked, and whoever gives one back looks at the
//! line after that. A place in line that is dropped after it was called, because its ring has fallen, calls the next.

use super::sync::{AtomicU64, Line, Mutex, MutexGuard};
use engine::Reply;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use storage::kit::AlignedBuffer;

/// Bytes of a buffer.
pub(super) const BUFFER_BYTES: usize = 64 << 10;
/// Words of the bitmap.
const WORDS: usize = 4;
/// Buffers of a disk: 16 MiB, of which those that were ever needed at once exist.
const BUFFERS: usize = WORDS * 64;
/// O_DIRECT takes memory that begins at a multiple of this, wherever it is found today.
const ALIGN: usize = 4096;

/// Told that there is a buffer: a task's reply, or a model's.
pub(super) trait Waiter {
    fn call(self);
}

impl Waiter for Reply {
    fn call(self) {
        self.complete(0);
    }
}

/// See the module.
pub(super) struct Pool<W: Waiter = Reply> {
    free: [AtomicU64; WORDS],
    /// A buffer is here unless somebody has it: its lock is never waited for.
    buffers: Vec<Mutex<Option<AlignedBuffer>>>,
    next_place: AtomicU64,
    line: Line<(u64, W)>,
}

/// A buffer that is somebody's, until it is dropped.
pub(super) struct Buffer<W: Waiter = Reply> {
    pool: Arc<Pool<W>>,
    number: usize,
    memory: Option<AlignedBuffer>,
}

/// A place in line.
pub(super) struct Place<W: Waiter = Reply> {
    pool: Arc<Pool<W>>,
    number: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(super) fn new() -> Arc<Pool> {
        Pool::with([u64::MAX; WORDS])
    }
}

impl<W: Waiter> Pool<W> {
    /// A pool of these buffers alone.
    pub(super) fn with(free: [u64; WORDS]) -> Arc<Pool<W>> {
        let buffers = (0..BUFFERS).map(|_| Mutex::new(None)).collect();
        Arc::new(Pool { free: free.map(AtomicU64::new), buffers, next_place: AtomicU64::new(0), line: Line::new() })
    }

    /// The buffers that nobody has.
    #[cfg(test)]
    pub(super) fn free(&self) -> [u64; WORDS] {
        std::array::from_fn(|at| self.free[at].load(Ordering::Relaxed))
    }

    /// Whether more than half of them are free: then one task may have several.
    pub(super) fn has_plenty(&self) -> bool {
        let free: u32 = self.free.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum();
        free as usize > BUFFERS / 2
    }

    /// Takes a buffer, looking first where `hint` says; `None`: there is none. An error: there is no memory.
    pub(super) fn take(self: &Arc<Self>, hint: usize) -> Result<Option<Buffer<W>>, i32> {
        for turn in 0..WORDS {
            let at = (hint + turn) % WORDS;
            let word = &self.free[at];
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                // The lowest: it was used last, and is in a cache still.
                let lowest = bits & bits.wrapping_neg();
                match word.compare_exchange(bits, bits ^ lowest, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => {
                        let number = at * 64 + lowest.trailing_zeros() as usize;
                        let memory = locked(&self.buffers[number]).take();
                        let mut buffer = Buffer { pool: self.clone(), number, memory };
                        if buffer.memory.is_none() {
                            buffer.memory = AlignedBuffer::new(BUFFER_BYTES, ALIGN);
                        }
                        return if buffer.memory.is_some() { Ok(Some(buffer)) } else { Err(libc::ENOMEM) };
                    }
                    Err(now) => bits = now,
                }
            }
        }
        Ok(None)
    }

    /// Takes a buffer, as [`take`](Self::take), for a task that has none: a newcomer does not overtake those that wait. `None`: the
    /// task has a place in line, and `waiter` is called when there is a buffer, which may be at once.
    pub(super) fn take_or_park(
        self: &Arc<Self>,
        hint: usize,
        place: &mut Option<Place<W>>,
        waiter: impl FnOnce() -> W,
    ) -> Result<Option<Buffer<W>>, i32> {
        let may_take = place.is_some() || !self.is_wanted();
        let buffer = may_take.then(|| self.take(hint)).transpose()?.flatten();
        if buffer.is_some() {
            *place = None;
            return Ok(buffer);
        }
        // Called, and too late: at the front.
        let again = place.is_some();
        let number = place.get_or_insert_with(|| self.place()).number;
        self.line.park((number, waiter()), again);
        // A buffer may have been given back before we stood in line.
        if self.has_any() {
            self.call();
        }
        Ok(None)
    }

    fn place(self: &Arc<Self>) -> Place<W> {
        Place { pool: self.clone(), number: self.next_place.fetch_add(1, Ordering::Relaxed) }
    }

    fn has_any(&self) -> bool {
        self.free.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Whether somebody stands in line.
    pub(super) fn is_wanted(&self) -> bool {
        !self.line.is_empty()
    }

    /// Tells the first in line that there is a buffer.
    fn call(&self) {
        for (_, waiter) in self.line.call(1) {
            waiter.call();
        }
    }

    /// There is a buffer that nobody was told of.
    fn pass_on(&self) {
        if self.line.wanted() {
            self.call();
        }
    }
}

impl<W: Waiter> Buffer<W> {
    /// Its first byte.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ref().map_or(std::ptr::null_mut(), AlignedBuffer::as_ptr)
    }

    /// Its first bytes.
    pub(super) fn bytes(&mut self, len: usize) -> &mut [u8] {
        let Some(memory) = &mut self.memory else { return &mut [] };
        // SAFETY: inside the allocation, which was zeroed and is ours alone; no operation of the kernel has it while it is borrowed here.
        unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), len.min(memory.len())) }
    }
}

impl<W: Waiter> Drop for Buffer<W> {
    fn drop(&mut self) {
        *locked(&self.pool.buffers[self.number]) = self.memory.take();
        self.pool.free[self.number / 64].fetch_or(1 << (self.number % 64), Ordering::Release);
        self.pool.pass_on();
    }
}

impl<W: Waiter> Drop for Place<W> {
    fn drop(&mut self) {
        let was_called = self.pool.line.leave(|(number, _)| *number == self.number).is_none();
        // Not in line any more: the buffer that it was called for may be left over, and the one behind it has not heard of it.
        if was_called && self.pool.has_any() {
            self.pool.pass_on();
        }
    }
}
