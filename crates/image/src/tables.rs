//! The L1 table, and the L2 tables that are in memory.
//!
//! Looking an entry up takes no lock: an L1 entry names a *slot*, and the slot has the words of an L2 table as atomics under a
//! version that is odd while they change. A reader that finds another version afterwards, or another table's slot, looks again.
//! Memory is never given back, only used for another table, so that a late reader reads nonsense at worst, and sees that it did.
//!
//! Changes need the lock. It is also held while a table is read from the image or written there, so that what is in memory and
//! what is on its way to the image have one order. The number of slots is the bound on memory: where none is free, the table that was not
//! looked at for the longest time (roughly: a clock) makes room. Every change was written to the image by then.

use crate::geometry::Geometry;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// How often a look-up meets a change before it goes to the lock.
const TRIES: u32 = 64;

/// No slot, or no owner.
const NONE: u32 = 0;

struct Slot {
    version: AtomicU64,
    /// The L1 entry whose table it is, plus one.
    owner: AtomicU32,
    /// Somebody has looked since the hand went by.
    used: AtomicBool,
    words: Box<[AtomicU64]>,
}

/// What a look-up finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// There is no L2 table: nothing is allocated.
    NoTable,
    /// The words of the entry; the second is 0 where entries have one.
    Entry(u64, u64),
    /// The table is not in memory.
    Missing,
}

/// See the top.
pub struct Tables {
    entry_words: usize,
    table_words: usize,
    l1: Box<[AtomicU64]>,
    /// The slot of each table, plus one.
    slot_of: Box<[AtomicU32]>,
    slots: Box<[OnceLock<Slot>]>,
    hand: Mutex<usize>,
}

/// The right to change tables.
pub struct Locked<'a> {
    tables: &'a Tables,
    hand: MutexGuard<'a, usize>,
}

impl Tables {
    /// With the entries of the L1 table, and room for L2 tables of `memory_bytes`; for two at least.
    pub fn new(geometry: &Geometry, l1: &[u64], memory_bytes: u64) -> Tables {
        let table_words = (geometry.cluster_bytes() / 8) as usize;
        let slots = (memory_bytes / geometry.cluster_bytes()).clamp(2, l1.len().max(2) as u64);
        Tables {
            entry_words: geometry.entry_words() as usize,
            table_words,
            l1: l1.iter().map(|entry| AtomicU64::new(*entry)).collect(),
            slot_of: l1.iter().map(|_| AtomicU32::new(NONE)).collect(),
            slots: (0..slots).map(|_| OnceLock::new()).collect(),
            hand: Mutex::new(0),
        }
    }

    /// An entry of the L1 table; 0 behind its end.
    #[inline]
    pub fn l1(&self, l1: u64) -> u64 {
        self.l1.get(l1 as usize).map_or(0, |entry| entry.load(Ordering::Acquire))
    }

    /// The slot of a table, if it has one now.
    #[inline]
    fn slot(&self, l1: u64) -> Option<&Slot> {
        let number = self.slot_of.get(l1 as usize)?.load(Ordering::Acquire).checked_sub(1)?;
        self.slots.get(number as usize)?.get()
    }

    /// Looks an entry up.
    #[inline]
    pub fn find(&self, l1: u64, index: u64) -> Found {
        let at = index as usize * self.entry_words;
        for _ in 0..TRIES {
            let Some(slot) = self.slot(l1) else {
                return if self.l1(l1) == 0 { Found::NoTable } else { Found::Missing };
            };
            let version = slot.version.load(Ordering::Acquire);
            let owner = slot.owner.load(Ordering::Relaxed);
            let word = slot.words.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
            let second = if self.entry_words == 1 {
                0
            } else {
                slot.words.get(at + 1).map_or(0, |word| word.load(Ordering::Relaxed))
            };
            fence(Ordering::Acquire);
            let same = slot.version.load(Ordering::Relaxed) == version && version & 1 == 0;
            if same && u64::from(owner) == l1 + 1 {
                if !slot.used.load(Ordering::Relaxed) {
                    slot.used.store(true, Ordering::Relaxed);
                }
                return Found::Entry(word, second);
            }
            std::hint::spin_loop();
        }
        Found::Missing
    }

    /// Waits for the right to change tables.
    pub fn lock(&self) -> Locked<'_> {
        Locked { tables: self, hand: self.hand.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Tables that are in memory.
    pub fn loaded(&self) -> usize {
        self.slots
            .iter()
            .filter(|slot| slot.get().is_some_and(|slot| slot.owner.load(Ordering::Relaxed) != NONE))
            .count()
    }
}

impl Slot {
    fn change(&self, change: impl FnOnce()) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.version.store(version + 2, Ordering::Release);
    }
}

impl Locked<'_> {
    /// Whether a table is in memory.
    pub fn has(&self, l1: u64) -> bool {
        self.tables.slot(l1).is_some()
    }

    /// Words `range` of a table; `None`: it is not in memory.
    pub fn words(&self, l1: u64, range: std::ops::Range<usize>) -> Option<Vec<u64>> {
        let slot = self.tables.slot(l1)?;
        Some(slot.words.get(range)?.iter().map(|word| word.load(Ordering::Relaxed)).collect())
    }

    /// Puts a table into memory; `words` has all of it.
    pub fn install(&mut self, l1: u64, words: &[u64]) {
        debug_assert!(words.len() == self.tables.table_words && (l1 as usize) < self.tables.l1.len());
        let tables = self.tables;
        let number = match tables.slot_of[l1 as usize].load(Ordering::Relaxed) {
            NONE => self.room(),
            there => there as usize - 1,
        };
        let slot = tables.slots[number].get_or_init(|| Slot {
            version: AtomicU64::new(0),
            owner: AtomicU32::new(NONE),
            used: AtomicBool::new(false),
            words: (0..tables.table_words).map(|_| AtomicU64::new(0)).collect(),
        });
        let before = slot.owner.load(Ordering::Relaxed);
        if let Some(before) = before.checked_sub(1).filter(|before| u64::from(*before) != l1) {
            tables.slot_of[before as usize].store(NONE, Ordering::Release);
        }
        slot.change(|| {
            slot.owner.store(l1 as u32 + 1, Ordering::Relaxed);
            slot.used.store(true, Ordering::Relaxed);
            for (word, value) in slot.words.iter().zip(words) {
                word.store(*value, Ordering::Relaxed);
            }
        });
        tables.slot_of[l1 as usize].store(number as u32 + 1, Ordering::Release);
    }

    /// A slot that is free, or was not used for a while.
    fn room(&mut self) -> usize {
        let slots = &self.tables.slots;
        for _ in 0..2 * slots.len() {
            let at = *self.hand;
            *self.hand = (at + 1) % slots.len();
            let Some(slot) = slots[at].get() else { return at };
            if !slot.used.swap(false, Ordering::Relaxed) {
                return at;
            }
        }
        *self.hand
    }

    /// Changes words of a table that is in memory, from word `at` on.
    pub fn set(&mut self, l1: u64, at: usize, words: &[u64]) {
        let Some(slot) = self.tables.slot(l1) else {
            debug_assert!(false, "the table of L1 entry {l1} is not in memory");
            return;
        };
        slot.change(|| {
            for (word, value) in slot.words[at..].iter().zip(words) {
                word.store(*value, Ordering::Relaxed);
            }
        });
    }

    /// Changes an entry of the L1 table.
    pub fn set_l1(&mut self, l1: u64, value: u64) {
        self.tables.l1[l1 as usize].store(value, Ordering::Release);
    }

    /// Entries of the L1 table that lie in its sector with entry `l1`, and the number of the first of them.
    pub fn l1_sector(&self, l1: u64) -> (u64, Vec<u64>) {
        let first = l1 / 64 * 64;
        let entries = self.tables.l1.iter().skip(first as usize).take(64);
        (first, entries.map(|entry| entry.load(Ordering::Relaxed)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features;
    use crate::header::{Header, tests_header};

    fn tables(incompatible: u64, l1: &[u64], slots: u64) -> Tables {
        let header = Header { cluster_bits: 14, incompatible, ..tests_header() };
        Tables::new(&Geometry::new(&header), l1, slots << 14)
    }

    #[test]
    fn tables_come_and_go_within_the_bound() {
        let tables = tables(0, &[1, 1, 1, 1, 0], 2);
        assert_eq!(
            (tables.find(4, 0), tables.find(0, 7), tables.find(9, 0)),
            (Found::NoTable, Found::Missing, Found::NoTable)
        );
        for l1 in 0..4u64 {
            tables.lock().install(l1, &vec![l1 + 10; 2048]);
            assert_eq!(tables.find(l1, 2047), Found::Entry(l1 + 10, 0));
            assert!(tables.loaded() <= 2);
        }
        tables.lock().set(3, 5, &[77]);
        assert_eq!((tables.find(3, 5), tables.find(3, 6)), (Found::Entry(77, 0), Found::Entry(13, 0)));
        assert_eq!(tables.lock().words(3, 4..6), Some(vec![13, 77]));
        assert_eq!(tables.find(0, 0), Found::Missing);
        assert_eq!(tables.lock().l1_sector(3), (0, vec![1, 1, 1, 1, 0]));
        tables.lock().set_l1(4, 9);
        assert_eq!(tables.find(4, 0), Found::Missing);
    }

    /// Readers see both words of one moment, and never those of another table.
    #[test]
    fn readers_see_whole_entries_of_their_own_table() {
        let tables = tables(features::EXTENDED_L2, &[1; 3], 2);
        let entry = |l1: u64, round: u64| [l1 << 32 | round, !(l1 << 32 | round)];
        let fill = |l1, round| entry(l1, round).repeat(1024);
        tables.lock().install(0, &fill(0, 0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut met = 0;
                    while met < 20_000 {
                        for l1 in 0..3 {
                            if let Found::Entry(word, second) = tables.find(l1, 1000) {
                                assert_eq!((word >> 32, second), (l1, !word));
                                met += 1;
                            }
                        }
                    }
                });
            }
            for round in 0..3000u64 {
                let l1 = round % 3;
                let mut locked = tables.lock();
                if locked.has(l1) {
                    locked.set(l1, 2000, &entry(l1, round));
                } else {
                    locked.install(l1, &fill(l1, round));
                }
            }
        });
    }
}
