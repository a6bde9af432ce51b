//! When what was freed can be used again.
//!
//! Whoever reads or writes a cluster in place looks its offset up without a lock, and the I/O takes a while. A cluster that a
//! discard frees meanwhile must not be given to another guest offset before that I/O has ended. So every I/O is *inside* from
//! before its look-up until its end, in the epoch of its beginning; and what is freed in an epoch is free for others two epochs
//! later: the epoch moves on only when nobody is inside of the one before it.
//!
//! Of two orders the argument depends, and every access here is sequentially consistent for their sake: an I/O is counted before
//! it looks up, and the epoch of a freed cluster is read after its L2 entry has changed.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Counters are apart, so that workers do not share cache lines.
const SHARDS: usize = 32;

#[derive(Default)]
#[repr(align(64))]
struct Shard([AtomicU32; 2]);

/// The epochs of one image.
#[derive(Default)]
pub struct Epochs {
    now: AtomicU64,
    shards: [Shard; SHARDS],
}

/// Somebody is inside, until it is dropped, on any thread.
#[must_use]
pub struct Inside {
    epochs: Arc<Epochs>,
    shard: u8,
    parity: u8,
}

fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<Option<usize>> = const { Cell::new(None) };
    }
    MINE.with(|mine| {
        mine.get().unwrap_or_else(|| {
            let shard = NEXT.fetch_add(1, SeqCst) % SHARDS;
            mine.set(Some(shard));
            shard
        })
    })
}

impl Epochs {
    /// Enters.
    #[inline]
    pub fn enter(self: &Arc<Epochs>) -> Inside {
        let shard = shard();
        loop {
            let now = self.now.load(SeqCst);
            let parity = (now & 1) as usize;
            let counter = &self.shards[shard].0[parity];
            counter.fetch_add(1, SeqCst);
            if self.now.load(SeqCst) == now {
                return Inside { epochs: self.clone(), shard: shard as u8, parity: parity as u8 };
            }
            counter.fetch_sub(1, SeqCst);
        }
    }

    /// The epoch in which something is freed: asked for once nobody can look it up any more.
    pub fn now(&self) -> u64 {
        self.now.load(SeqCst)
    }

    /// Moves on if nobody is inside of the epoch before this one, at most twice; gives the epoch that it is then.
    pub fn advance(&self) -> u64 {
        for _ in 0..2 {
            let now = self.now.load(SeqCst);
            let before = ((now + 1) & 1) as usize;
            if self.shards.iter().any(|shard| shard.0[before].load(SeqCst) != 0) {
                break;
            }
            // Whoever loses has been helped.
            let _ = self.now.compare_exchange(now, now + 1, SeqCst, SeqCst);
        }
        self.now()
    }

    /// Whether what was freed in epoch `freed` is nobody's now.
    pub fn is_over(freed: u64, now: u64) -> bool {
        now >= freed + 2
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        self.epochs.shards[usize::from(self.shard)].0[usize::from(self.parity)].fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn what_was_freed_waits_for_those_inside() {
        let epochs = Arc::new(Epochs::default());
        let reader = epochs.enter();
        let freed = epochs.now();
        for _ in 0..5 {
            assert!(!Epochs::is_over(freed, epochs.advance()));
        }
        let later = epochs.enter();
        drop(reader);
        // Who came later does not keep it waiting for ever.
        epochs.advance();
        drop(later);
        assert!(Epochs::is_over(freed, epochs.advance()) || Epochs::is_over(freed, epochs.advance()));
    }

    #[test]
    fn nobody_finds_reused_what_was_looked_up() {
        // The "image" is one place; a value below it is marked dead only when it is over.
        let epochs = Arc::new(Epochs::default());
        let current = AtomicUsize::new(0);
        let dead: Vec<AtomicBool> = (0..2000).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        let inside = epochs.enter();
                        let found = current.load(SeqCst);
                        for _ in 0..20 {
                            assert!(!dead[found].load(SeqCst), "{found} was reused under a reader");
                            std::hint::spin_loop();
                        }
                        drop(inside);
                        if found == dead.len() - 1 {
                            break;
                        }
                    }
                });
            }
            let mut limbo = Vec::new();
            for next in 1..dead.len() {
                current.store(next, SeqCst);
                limbo.push((next - 1, epochs.now()));
                let now = epochs.advance();
                limbo.retain(|(old, freed)| {
                    let over = Epochs::is_over(*freed, now);
                    if over {
                        dead[*old].store(true, SeqCst);
                    }
                    !over
                });
            }
        });
    }
}
