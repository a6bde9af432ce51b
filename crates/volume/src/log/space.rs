//! Where in the log the next record goes: arithmetic only.

use crate::format::COUNTER_MAX;
use crate::units::BLOCK_BYTES;

/// The part of a circular log that is in use: from the tail, where recovery would begin, to the head, where the next record goes.
///
/// Positions count bytes ever written; the place of a position in the region is the position modulo the region's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSpace {
    len: u64,
    tail: u64,
    head: u64,
}

impl LogSpace {
    /// A log of `len` bytes (a multiple of 4096, not 0) in use from `tail` to `head`.
    pub fn new(len: u64, tail: u64, head: u64) -> LogSpace {
        debug_assert!(len > 0 && len.is_multiple_of(BLOCK_BYTES as u64));
        debug_assert!(tail <= head && head - tail <= len);
        LogSpace { len, tail, head }
    }

    /// Takes room for a record of `bytes` (a multiple of 4096): the position where it goes, and the one behind it.
    ///
    /// A record that does not fit before the end of the lap goes to the start of the next one. `None` when the log is too full: a
    /// release may help. A record of at most [`record_bytes_max`](super::record_bytes_max) always fits an empty log.
    pub fn reserve(&mut self, bytes: u64) -> Option<(u64, u64)> {
        debug_assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES as u64));
        let offset = self.head % self.len;
        let position = if bytes <= self.len - offset { self.head } else { self.head.checked_add(self.len - offset)? };
        let next = position.checked_add(bytes)?;
        if bytes > self.len || next - self.tail > self.len || next >= COUNTER_MAX * 2 {
            return None;
        }
        self.head = next;
        Some((position, next))
    }

    /// Takes back everything from `head` on, a head noted before a reservation: the records there failed.
    ///
    /// Their sequence numbers are not used again: they may be on the disk, whole.
    pub fn rewind(&mut self, head: u64) {
        debug_assert!((self.tail..=self.head).contains(&head));
        self.head = head;
    }

    /// Gives back everything before `tail`. A superblock that says so must be durable before.
    pub fn release(&mut self, tail: u64) {
        debug_assert!((self.tail..=self.head).contains(&tail));
        self.tail = tail;
    }

    /// Where recovery would begin.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Where the next record goes, unless it does not fit the lap.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// Length of the region in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Bytes in use, with what was left out at the end of a lap.
    pub fn used(&self) -> u64 {
        self.head - self.tail
    }

    /// Whether half of it or more is in use.
    pub fn is_half_full(&self) -> bool {
        self.used() >= self.len / 2
    }

    /// Whether nothing is in use.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Longest record that this log takes, in bytes.
    pub fn record_bytes_max(&self) -> u64 {
        super::record_bytes_max(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: u64 = BLOCK_BYTES as u64;

    #[derive(Clone, Debug)]
    enum Step {
        Reserve(u64),
        /// So many of the oldest records.
        Release(usize),
        /// So many of the newest.
        Rewind(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (1u64..12).prop_map(Step::Reserve),
            1 => (0usize..9).prop_map(Step::Release),
            1 => (0usize..3).prop_map(Step::Rewind),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// Against an owner for each block of the region.
        #[test]
        fn no_record_lies_on_another(blocks in 1u64..40, start in 0u64..200, steps in steps()) {
            let len = blocks * BLOCK;
            let start = start * BLOCK;
            let mut space = LogSpace::new(len, start, start);
            // Of each record in use: the head before it, its position, its end.
            let mut live: Vec<(u64, u64, u64)> = Vec::new();
            for step in steps {
                match step {
                    Step::Reserve(count) => {
                        let (before, bytes) = (space.head(), count * BLOCK);
                        let Some((position, next)) = space.reserve(bytes) else {
                            prop_assert_eq!(space.head(), before);
                            // It was refused because no whole run of blocks was free at the head or at the next lap.
                            let place = if before % len + bytes <= len { before } else { (before / len + 1) * len };
                            prop_assert!(place + bytes > space.tail() + len);
                            prop_assert!(!space.is_empty() || bytes > space.record_bytes_max());
                            continue;
                        };
                        prop_assert_eq!(next, position + bytes);
                        prop_assert_eq!(position / len, (next - 1) / len, "wraps");
                        prop_assert!(position == before || position % len == 0 && position - before < len);
                        let place = |(_, from, to): (u64, u64, u64)| from % len..(to - from) + from % len;
                        let mine = place((before, position, next));
                        for other in live.iter().copied().map(place) {
                            prop_assert!(mine.end <= other.start || other.end <= mine.start, "{mine:?} on {other:?}");
                        }
                        live.push((before, position, next));
                    }
                    Step::Release(count) => {
                        let count = count.min(live.len());
                        if let Some((_, _, end)) = live.drain(..count).next_back() {
                            space.release(end);
                        }
                    }
                    Step::Rewind(count) => {
                        let keep = live.len().saturating_sub(count);
                        if let Some((before, _, _)) = live.drain(keep..).next() {
                            space.rewind(before.max(space.tail()));
                        }
                    }
                }
                prop_assert!(space.used() <= len);
                prop_assert_eq!(space.is_empty(), live.is_empty());
            }
        }
    }

    #[test]
    fn the_longest_record_fits_an_empty_log_anywhere() {
        for blocks in 16..80 {
            let longest = crate::log::record_bytes_max(blocks * BLOCK);
            assert!(longest >= 4 * BLOCK);
            for head in 0..blocks {
                let mut space = LogSpace::new(blocks * BLOCK, head * BLOCK, head * BLOCK);
                assert!(space.reserve(longest).is_some(), "{blocks} blocks, head at {head}");
            }
        }
    }
}
