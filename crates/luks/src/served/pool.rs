//! Buffers in which data are encrypted: a bounded number for one disk, used again and again, and a line for those who find none.
//!
//! A buffer is taken by clearing its bit, without a lock. Nobody stands in line while there are buffers. No wake-up is lost: who parks
//! looks for free buffers once more *after* it stands in line, and who gives one back looks at the line *after* that, with a fence between
//! the two on either side. A place in line that is dropped after it was called, because its ring has fallen, calls the next.

use engine::Reply;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use storage::kit::AlignedBuffer;

/// Bytes of a buffer.
pub(super) const BUFFER_BYTES: usize = 64 << 10;
/// Words of the bitmap.
const WORDS: usize = 4;
/// Buffers of a disk: 16 MiB, of which those that were ever needed at once exist.
const BUFFERS: usize = WORDS * 64;
/// O_DIRECT takes memory that begins at a multiple of this, wherever it is found today.
const ALIGN: usize = 4096;

/// See the module.
pub(super) struct Pool {
    free: [AtomicU64; WORDS],
    /// A buffer is here unless somebody has it: its lock is never waited for.
    buffers: Vec<Mutex<Option<AlignedBuffer>>>,
    waiting: AtomicUsize,
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    next: u64,
    places: VecDeque<(u64, Reply)>,
}

/// A buffer that is somebody's, until it is dropped.
pub(super) struct Buffer {
    pool: Arc<Pool>,
    number: usize,
    memory: Option<AlignedBuffer>,
}

/// A place in line.
pub(super) struct Place {
    pool: Arc<Pool>,
    number: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(super) fn new() -> Arc<Pool> {
        let free = std::array::from_fn(|_| AtomicU64::new(u64::MAX));
        let buffers = (0..BUFFERS).map(|_| Mutex::new(None)).collect();
        Arc::new(Pool { free, buffers, waiting: AtomicUsize::new(0), line: Mutex::default() })
    }

    /// Whether more than half of them are free: then one task may have several.
    pub(super) fn has_plenty(&self) -> bool {
        let free: u32 = self.free.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum();
        free as usize > BUFFERS / 2
    }

    /// Takes a buffer, looking first where `hint` says; `None`: there is none. An error: there is no memory.
    pub(super) fn take(self: &Arc<Pool>, hint: usize) -> Result<Option<Buffer>, i32> {
        for turn in 0..WORDS {
            let at = (hint + turn) % WORDS;
            let word = &self.free[at];
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                // The lowest: it was used last, and is in a cache still.
                let lowest = bits & bits.wrapping_neg();
                match word.compare_exchange_weak(bits, bits ^ lowest, Ordering::Acquire, Ordering::Relaxed) {
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

    /// Stands in line: `reply` is completed when there is a buffer, which may be at once.
    pub(super) fn park(self: &Arc<Pool>, reply: Reply) -> Place {
        let mut line = locked(&self.line);
        let number = line.next;
        line.next += 1;
        line.places.push_back((number, reply));
        self.waiting.fetch_add(1, Ordering::Relaxed);
        drop(line);
        self.look_again();
        Place { pool: self.clone(), number }
    }

    /// For one that has just come into the line: a buffer may have been given back before.
    fn look_again(&self) {
        fence(Ordering::SeqCst);
        if self.has_any() {
            self.call();
        }
    }

    fn has_any(&self) -> bool {
        self.free.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// How many stand in line: newcomers look, so that they do not overtake.
    pub(super) fn is_wanted(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Tells the first in line that there is a buffer.
    fn call(&self) {
        let called = {
            let mut line = locked(&self.line);
            let called = line.places.pop_front();
            self.waiting.fetch_sub(usize::from(called.is_some()), Ordering::Relaxed);
            called
        };
        // Apart from the lock: who is called may come back at once.
        if let Some((_, reply)) = called {
            reply.complete(0);
        }
    }
}

impl Buffer {
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

impl Drop for Buffer {
    fn drop(&mut self) {
        *locked(&self.pool.buffers[self.number]) = self.memory.take();
        self.pool.free[self.number / 64].fetch_or(1 << (self.number % 64), Ordering::Release);
        fence(Ordering::SeqCst);
        if self.pool.is_wanted() {
            self.pool.call();
        }
    }
}

impl Place {
    /// Stands at the front again, for one that was called and found the buffers taken.
    pub(super) fn again(&self, reply: Reply) {
        let mut line = locked(&self.pool.line);
        line.places.push_front((self.number, reply));
        self.pool.waiting.fetch_add(1, Ordering::Relaxed);
        drop(line);
        self.pool.look_again();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut line = locked(&self.pool.line);
        let found = line.places.iter().position(|(number, _)| *number == self.number);
        let removed = found.and_then(|at| line.places.remove(at));
        self.pool.waiting.fetch_sub(usize::from(removed.is_some()), Ordering::Relaxed);
        let pass_on = removed.is_none() && self.pool.has_any() && !line.places.is_empty();
        drop(line);
        // Without the lock: a reply that is dropped completes.
        drop(removed);
        if pass_on {
            self.pool.call();
        }
    }
}
