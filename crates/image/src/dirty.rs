//! The bits of dirty bitmaps in memory, and how a program hands them to the one that goes on with its image.

use crate::bitmap::GRANULARITY_BITS;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Most bytes that the bits of all bitmaps of an image take.
pub const BYTES_MAX: u64 = 64 << 20;

/// What the bytes of a hand-over begin with, and which version of its form they have.
const MAGIC: [u8; 8] = *b"dirty\0\0\0";
const VERSION: u32 = 1;
/// Bytes before the first bitmap, and of a bitmap before its name.
const HEAD_BYTES: usize = 32;
const BITMAP_HEAD_BYTES: usize = 16;
/// Most bytes of a hand-over: bits, and 65,535 names.
pub const HANDED_BYTES_MAX: u64 = BYTES_MAX + (72 << 20);

/// A bit for every piece of a disk, which many threads set.
///
/// Accesses are relaxed. A mark is set before what it speaks of is begun, and whoever reads them as those of a moment, to write them
/// down or take them, knows that nothing is in flight: the end of each request has come to him with an order, and with it the marks.
#[derive(Debug)]
pub struct Bits {
    words: Box<[AtomicU64]>,
    granularity_bits: u32,
    size_bytes: u64,
}

impl Bits {
    /// Bytes that the bits of such a disk take.
    pub fn memory_bytes(size_bytes: u64, granularity_bits: u32) -> u64 {
        size_bytes.div_ceil(1 << granularity_bits).div_ceil(64) * 8
    }

    /// None set. The caller has bounded [their memory](Self::memory_bytes).
    pub fn new(size_bytes: u64, granularity_bits: u32) -> Bits {
        debug_assert!(GRANULARITY_BITS.contains(&granularity_bits));
        let words = Bits::memory_bytes(size_bytes, granularity_bits) / 8;
        Bits { words: (0..words).map(|_| AtomicU64::new(0)).collect(), granularity_bits, size_bytes }
    }

    /// Bytes of the disk.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// A bit stands for two to the power of so many bytes.
    pub fn granularity_bits(&self) -> u32 {
        self.granularity_bits
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.size_bytes.div_ceil(1 << self.granularity_bits)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.size_bytes == 0
    }

    /// Sets those of all pieces that have a byte of this range.
    pub fn mark(&self, range: Range<u64>) {
        let end = range.end.min(self.size_bytes);
        if range.start >= end {
            return;
        }
        let (mut bit, end) = (range.start >> self.granularity_bits, ((end - 1) >> self.granularity_bits) + 1);
        while bit < end {
            let stop = end.min((bit / 64 + 1) * 64);
            let mask = ones(stop - bit) << (bit % 64);
            let word = &self.words[(bit / 64) as usize];
            // A disk is written over and over where it was written: a line that is only read stays in every cache.
            if word.load(Relaxed) & mask != mask {
                word.fetch_or(mask, Relaxed);
            }
            bit = stop;
        }
    }

    /// Sets them as the bytes of an image have them, from byte `at` on.
    pub fn set_bytes(&self, at: u64, bytes: &[u8]) {
        let rest = self.len().saturating_sub(at * 8);
        for (index, byte) in bytes.iter().enumerate().take(rest.div_ceil(8) as usize) {
            let at = at + index as u64;
            // What lies behind the end of the disk is nothing.
            let byte = u64::from(*byte) & ones((self.len() - at * 8).min(8));
            if byte != 0 {
                self.words[(at / 8) as usize].fetch_or(byte << (at % 8 * 8), Relaxed);
            }
        }
    }

    /// Their bytes as an image has them, from byte `at` on; zeroes behind their end.
    pub fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        debug_assert!(at.is_multiple_of(8) && len.is_multiple_of(8));
        let words =
            (at / 8..(at + len) / 8).map(|word| self.words.get(word as usize).map_or(0, |word| word.load(Relaxed)));
        words.flat_map(u64::to_le_bytes).collect()
    }

    /// How many are set.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum()
    }

    /// Those that are set, which are not set from now on.
    pub fn take(&self) -> Dirty {
        let words = self.words.iter().map(|word| word.swap(0, Relaxed)).collect();
        Dirty { words, granularity_bits: self.granularity_bits, size_bytes: self.size_bytes }
    }

    /// Those that are set.
    pub fn dirty(&self) -> Dirty {
        let words = self.words.iter().map(|word| word.load(Relaxed)).collect();
        Dirty { words, granularity_bits: self.granularity_bits, size_bytes: self.size_bytes }
    }

    /// Sets those that are set there; where this one ends it ends.
    pub fn add(&self, dirty: &Dirty) {
        for range in dirty.ranges() {
            self.mark(range);
        }
    }

    /// The same of a disk of another size, whose new part is dirty.
    pub fn resized(&self, size_bytes: u64) -> Bits {
        let new = Bits::new(size_bytes, self.granularity_bits);
        new.add(&self.dirty());
        new.mark(self.size_bytes..size_bytes);
        new
    }
}

/// So many bits that are set.
fn ones(bits: u64) -> u64 {
    if bits >= 64 { !0 } else { (1 << bits) - 1 }
}

/// What of a disk was written, as one bitmap has seen it.
#[derive(Clone, PartialEq, Eq)]
pub struct Dirty {
    words: Box<[u64]>,
    granularity_bits: u32,
    size_bytes: u64,
}

impl std::fmt::Debug for Dirty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.ranges()).finish()
    }
}

impl Dirty {
    /// Bytes for which a bit stands.
    pub fn granularity_bytes(&self) -> u64 {
        1 << self.granularity_bits
    }

    /// Bytes of the disk that are in the [ranges](Self::ranges).
    pub fn dirty_bytes(&self) -> u64 {
        self.ranges().map(|range| range.end - range.start).sum()
    }

    /// Bytes of the disk that were written, in order; none of them touches the next.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let bits = self.words.len() as u64 * 64;
            let start = self.next(at..bits, 0)?;
            let end = self.next(start..bits, !0).unwrap_or(bits);
            at = end;
            let bytes = |bit: u64| bit.checked_shl(self.granularity_bits).unwrap_or(u64::MAX).min(self.size_bytes);
            Some(bytes(start)..bytes(end))
        })
    }

    /// The first bytes of `range` that were written, as far as there is no gap between them. Looks no further than `range`.
    pub fn first(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let bytes = range.start..range.end.min(self.size_bytes);
        if bytes.is_empty() {
            return None;
        }
        let bits = bytes.start >> self.granularity_bits..((bytes.end - 1) >> self.granularity_bits) + 1;
        let start = self.next(bits.clone(), 0)?;
        let end = self.next(start..bits.end, !0).unwrap_or(bits.end);
        let at = |bit: u64| bit.checked_shl(self.granularity_bits).unwrap_or(u64::MAX);
        Some(at(start).max(bytes.start)..at(end).min(bytes.end))
    }

    /// The first of these bits that is set, or with all bits in `flip` the first that is not.
    fn next(&self, bits: Range<u64>, flip: u64) -> Option<u64> {
        let mut word = (bits.start / 64) as usize;
        let mut rest = (self.words.get(word)? ^ flip) & (!0 << (bits.start % 64));
        while rest == 0 && (word as u64 + 1) * 64 < bits.end {
            word += 1;
            rest = self.words.get(word)? ^ flip;
        }
        let found = word as u64 * 64 + u64::from(rest.trailing_zeros());
        (rest != 0 && found < bits.end).then_some(found)
    }
}

/// A bitmap that goes along.
#[derive(Debug)]
pub struct Carried {
    /// Its name.
    pub name: Vec<u8>,
    /// What was written.
    pub bits: Bits,
}

/// Bitmaps as they are handed over. All numbers are little-endian:
///
/// | offset | bytes | |
/// |---|---|---|
/// | 0 | 8 | `dirty`, zeroes |
/// | 8 | 4 | version: 1 |
/// | 12 | 4 | number of bitmaps |
/// | 16 | 8 | bytes of the disk |
/// | 24 | 8 | bytes of all this |
///
/// and for each bitmap, at multiples of 8: its name's length (4), its granularity in powers of two (4), its words of 64 bits (8), its
/// name, zeroes up to a multiple of 8, and the words.
pub fn encode<'a>(size_bytes: u64, bitmaps: impl Iterator<Item = (&'a [u8], &'a Bits)>) -> Vec<u8> {
    let mut out = vec![0; HEAD_BYTES];
    let mut count = 0u32;
    for (name, bits) in bitmaps {
        count += 1;
        out.extend((name.len() as u32).to_le_bytes());
        out.extend(bits.granularity_bits.to_le_bytes());
        out.extend((bits.words.len() as u64).to_le_bytes());
        out.extend(name);
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend(bits.words.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()));
    }
    let len = out.len() as u64;
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&count.to_le_bytes());
    out[16..24].copy_from_slice(&size_bytes.to_le_bytes());
    out[24..32].copy_from_slice(&len.to_le_bytes());
    out
}

/// Reads what another program has [encoded](encode), of a disk of so many bytes.
///
/// # Errors
/// What is wrong with it.
pub fn decode(bytes: &[u8], size_bytes: u64) -> Result<Vec<Carried>, &'static str> {
    let half = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?));
    const SHORT: &str = "it ends too early";
    if bytes.get(..8) != Some(&MAGIC[..]) {
        return Err("it does not begin as it has to");
    }
    if half(8) != Some(VERSION) {
        return Err("it has a form of another version");
    }
    if word(24) != Some(bytes.len() as u64) {
        return Err("it has another length than it says");
    }
    if word(16) != Some(size_bytes) {
        return Err("it is of a disk of another size");
    }
    let (mut at, mut memory, mut found) = (HEAD_BYTES, 0, Vec::new());
    for _ in 0..half(12).ok_or(SHORT)? {
        let (name_bytes, granularity) = (half(at).ok_or(SHORT)? as usize, half(at + 4).ok_or(SHORT)?);
        let words = word(at + 8).ok_or(SHORT)?;
        if !GRANULARITY_BITS.contains(&granularity) || words != Bits::memory_bytes(size_bytes, granularity) / 8 {
            return Err("a bitmap has another number of bits than its granularity says");
        }
        memory += words * 8;
        if memory > BYTES_MAX {
            return Err("it has more bits than any program keeps");
        }
        at += BITMAP_HEAD_BYTES;
        let name = bytes.get(at..at.saturating_add(name_bytes)).ok_or(SHORT)?.to_vec();
        at += name_bytes.next_multiple_of(8);
        let bits = bytes.get(at..at.saturating_add(words as usize * 8)).ok_or(SHORT)?;
        at += bits.len();
        let carried = Bits::new(size_bytes, granularity);
        carried.set_bytes(0, bits);
        found.push(Carried { name, bits: carried });
    }
    if at == bytes.len() { Ok(found) } else { Err("something follows the last bitmap") }
}

#[cfg(test)]
#[path = "dirty_tests.rs"]
mod tests;
