//! A set of blocks that many threads add to and one thread takes from, in ascending order, without looking at what is empty.
//!
//! One bit a block on the lowest level; a bit of a higher level says that the word of 64 below it *may* have a bit set. The
//! promise: **a bit whose [`Bits::mark`] has returned is found by every later [`Bits::take`] that covers it, once.**
//!
//! Why it holds (all accesses are sequentially consistent, so they have one order). A marker sets the lowest bit, then goes
//! *all* the way up and sets each hint it does not see set; seeing a low hint set is no reason to stop, because who set it may
//! not have come to the higher one yet. The taker clears bits, and for a word that became empty it clears the hint and then
//! looks at the word *again*. A marker that saw the hint still set had set its bit before that, so the second look finds it
//! and the hint comes back; a marker that came later saw the hint cleared and set it. The same argument, a level higher, holds
//! for the hint of the hint. There is one taker at a time, so nobody else ever clears.
//!
//! The count of marks is raised before a bit appears and lowered by the taker ([`Bits::discount`]) after it has done with the
//! bits: while it is 0, every mark that returned has been taken and dealt with.

use std::io;
use std::sync::atomic::Ordering::SeqCst;

use super::memory::{Array, Pages};
use super::sync::{AtomicU64, Padded};

/// Words of the highest level, at most: so few are looked through in a row.
const TOP_WORDS: u64 = 64;

/// What [`Bits::take`] did.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// How many bits were cleared; to be given to [`Bits::discount`] when what they stood for is dealt with.
    pub(super) bits: u64,
    /// Where to go on; `None` if the end was reached.
    pub(super) next: Option<u64>,
}

pub(super) struct Bits {
    /// The lowest first.
    levels: Vec<Array<AtomicU64>>,
    marks: Padded<AtomicU64>,
}

impl Bits {
    /// A set of numbers below `len`, which may grow to `reserved`.
    ///
    /// # Errors
    ///
    /// The kernel refuses the mappings.
    pub(super) fn new(len: u64, reserved: u64) -> io::Result<Bits> {
        let mut levels = Vec::new();
        let mut words = reserved.max(len).max(1).div_ceil(64);
        loop {
            levels.push(Array::new(0, index(words)?, Pages::Small)?);
            if words <= TOP_WORDS {
                break;
            }
            words = words.div_ceil(64);
        }
        let bits = Bits { levels, marks: Padded::default() };
        bits.extend(len)?;
        Ok(bits)
    }

    /// Lets numbers up to `len` in; one caller at a time.
    ///
    /// # Errors
    ///
    /// As [`Array::extend`].
    pub(super) fn extend(&self, len: u64) -> io::Result<()> {
        let mut words = len.max(1);
        for level in &self.levels {
            words = words.div_ceil(64);
            level.extend(index(words)?)?;
        }
        Ok(())
    }

    /// Adds `bit`. Any thread.
    pub(super) fn mark(&self, bit: u64) {
        let (word, mask) = place(bit);
        let leaf = self.levels[0].at(word);
        if leaf.load(SeqCst) & mask == 0 {
            self.marks.0.fetch_add(1, SeqCst);
            if leaf.fetch_or(mask, SeqCst) & mask != 0 {
                self.marks.0.fetch_sub(1, SeqCst);
            }
        }
        self.announce(0, word);
    }

    /// How many bits are set, or taken and not discounted. Never too low for marks that have returned.
    pub(super) fn marks(&self) -> u64 {
        self.marks.0.load(SeqCst)
    }

    /// Clears the bits from `from` up to (not including) `end`, ascending, until `take` has said true `max` times. It is called
    /// with each bit *after* that was cleared. One caller at a time, of this and of [`Bits::unmark`].
    pub(super) fn take(&self, from: u64, end: u64, max: usize, mut take: impl FnMut(u64) -> bool) -> Taken {
        let mut at = from;
        let mut bits = 0;
        let mut room = max;
        while room > 0 {
            let Some(first) = self.next(at).filter(|&bit| bit < end) else {
                return Taken { bits, next: None };
            };
            let base = first & !63;
            let leaf = self.levels[0].at(place(first).0);
            let mut chosen = leaf.load(SeqCst) & (u64::MAX << (first - base));
            if end - base < 64 {
                chosen &= (1 << (end - base)) - 1;
            }
            chosen = lowest(chosen, room);
            // Nobody else clears: what was chosen is still there.
            leaf.fetch_and(!chosen, SeqCst);
            self.settle(0, place(first).0);
            while chosen != 0 {
                at = base + u64::from(chosen.trailing_zeros());
                chosen &= chosen - 1;
                bits += 1;
                if take(at) {
                    room -= 1;
                }
                at += 1;
            }
        }
        Taken { bits, next: Some(at) }
    }

    /// Takes one bit out, if it is set. As with [`Bits::take`], the caller then looks at what the bit stood for, marks again if
    /// need be, and [`Bits::discount`]s.
    pub(super) fn unmark(&self, bit: u64) -> bool {
        let (word, mask) = place(bit);
        let leaf = self.levels[0].at(word);
        if leaf.load(SeqCst) & mask == 0 {
            return false;
        }
        leaf.fetch_and(!mask, SeqCst);
        self.settle(0, word);
        true
    }

    /// Ends what [`Bits::take`] or [`Bits::unmark`] began: so many bits no longer count.
    pub(super) fn discount(&self, bits: u64) {
        if bits > 0 {
            self.marks.0.fetch_sub(bits, SeqCst);
        }
    }

    /// Sets the hints above `word` of `level`.
    fn announce(&self, level: usize, word: usize) {
        let mut below = word;
        for hints in self.levels.iter().skip(level + 1) {
            let (word, mask) = (below / 64, 1 << (below % 64));
            let hint = hints.at(word);
            if hint.load(SeqCst) & mask == 0 {
                hint.fetch_or(mask, SeqCst);
            }
            below = word;
        }
    }

    /// Takes the hint above `word` of `level` back if the word is empty, and so on upwards.
    fn settle(&self, level: usize, word: usize) {
        let mut word = word;
        for (level, pair) in self.levels.windows(2).enumerate().skip(level) {
            let [words, hints] = pair else { return };
            let child = words.at(word);
            let (above, mask) = (word / 64, 1 << (word % 64));
            let hint = hints.at(above);
            if child.load(SeqCst) != 0 || hint.load(SeqCst) & mask == 0 {
                return;
            }
            hint.fetch_and(!mask, SeqCst);
            if child.load(SeqCst) != 0 {
                self.announce(level, word);
                return;
            }
            word = above;
        }
    }

    /// The first set bit from `from` on. Only the taker asks: it takes hints back that lead nowhere.
    fn next(&self, from: u64) -> Option<u64> {
        let mut level = 0;
        let mut at = from;
        loop {
            let words = &self.levels[level];
            let (word, _) = place(at);
            if word < words.len() {
                let found = words.at(word).load(SeqCst) & (u64::MAX << (at % 64));
                if found != 0 {
                    at = (at & !63) + u64::from(found.trailing_zeros());
                    if level == 0 {
                        return Some(at);
                    }
                    level -= 1;
                    at *= 64;
                    continue;
                }
                if at.is_multiple_of(64) {
                    self.settle(level, word);
                }
            }
            at = at / 64 + 1;
            if level + 1 < self.levels.len() {
                level += 1;
            } else if at < words.len() as u64 {
                at *= 64;
            } else {
                return None;
            }
        }
    }
}

/// The word of a bit, and the bit in it.
fn place(bit: u64) -> (usize, u64) {
    // What does not fit a usize lies outside of every array, which `Array::at` answers.
    (usize::try_from(bit / 64).unwrap_or(usize::MAX), 1 << (bit % 64))
}

/// The lowest `count` bits of those set in `bits`.
fn lowest(bits: u64, count: usize) -> u64 {
    let mut above = bits;
    for _ in 0..count.min(64) {
        above &= above.wrapping_sub(1);
    }
    bits & !above
}

fn index(words: u64) -> io::Result<usize> {
    usize::try_from(words).map_err(|_| io::ErrorKind::OutOfMemory.into())
}
