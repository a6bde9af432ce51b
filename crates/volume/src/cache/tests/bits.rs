//! The bitmap.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use interleave::{in_many_orders, random, thread};
use proptest::prelude::*;

use super::super::bitmap::Bits;
use super::random::Random;

#[derive(Clone, Debug)]
enum Step {
    Mark(u64),
    Unmark(u64),
    Take { from: u64, end: u64, max: usize },
    Extend(u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Neighbours and strangers, on all levels.
    let bit = || prop_oneof![0..200u64, 4000..4200u64, 262_100..262_200u64, 0..300_000u64];
    prop_oneof![
        8 => bit().prop_map(Step::Mark),
        2 => bit().prop_map(Step::Unmark),
        3 => (bit(), prop_oneof![Just(u64::MAX), bit()], 0..70usize)
            .prop_map(|(from, end, max)| Step::Take { from, end, max }),
        1 => (0..400_000u64).prop_map(Step::Extend),
    ]
}

proptest! {
    #[test]
    fn is_a_set(steps in prop::collection::vec(step(), 1..200)) {
        let bits = Bits::new(1000, 1 << 26).unwrap();
        let mut len = 1000;
        let mut model = BTreeSet::new();
        for step in steps {
            match step {
                Step::Mark(bit) if bit < len => {
                    bits.mark(bit);
                    model.insert(bit);
                }
                Step::Unmark(bit) if bit < len => {
                    let was = bits.unmark(bit);
                    prop_assert_eq!(was, model.remove(&bit));
                    bits.discount(u64::from(was));
                }
                Step::Mark(_) | Step::Unmark(_) => {}
                Step::Take { from, end, max } => {
                    let mut found = Vec::new();
                    let taken = bits.take(from, end, max, |bit| {
                        found.push(bit);
                        true
                    });
                    bits.discount(taken.bits);
                    let expected: Vec<u64> =
                        if from < end { model.range(from..end).copied().take(max).collect() } else { Vec::new() };
                    prop_assert_eq!(&found, &expected);
                    prop_assert_eq!(taken.bits, found.len() as u64);
                    match taken.next {
                        Some(next) => {
                            prop_assert_eq!(found.len(), max);
                            prop_assert_eq!(next, found.last().map_or(from, |last| last + 1));
                        }
                        None => prop_assert!(found.len() < max),
                    }
                    for bit in found {
                        model.remove(&bit);
                    }
                }
                Step::Extend(to) => {
                    bits.extend(to).unwrap();
                    len = len.max(to);
                }
            }
            prop_assert_eq!(bits.marks(), model.len() as u64);
        }
    }
}

/// Bits that share words, share hints, and share neither.
const PLACES: [u64; 8] = [0, 1, 63, 64, 4095, 4096, 262_143, 262_144];

/// What markers and the taker know of the bits.
#[derive(Default)]
struct Board {
    /// What a bit stands for: counted up before it is marked.
    version: [AtomicU64; 8],
    /// The version for which `mark` has returned.
    finished: [AtomicU64; 8],
}

fn mark(board: &Board, bits: &Bits, random: &mut Random, times: u64) {
    for _ in 0..times {
        let place = random.below(8) as usize;
        let version = board.version[place].fetch_add(1, SeqCst) + 1;
        bits.mark(PLACES[place]);
        board.finished[place].fetch_max(version, SeqCst);
    }
}

fn place_of(bit: u64) -> usize {
    PLACES.iter().position(|&place| place == bit).expect("a bit that nobody marked")
}

/// Takes `times` times, and checks each time that what was finished before is seen.
fn take(board: &Board, bits: &Bits, seen: &mut [u64; 8], random: &mut Random, times: u64) {
    for _ in 0..times {
        let from = if random.once_in(3) { PLACES[random.below(8) as usize] } else { 0 };
        let before = finished(board);
        if (0..8).any(|place| before[place] > seen[place]) {
            assert!(bits.marks() > 0, "marked, not taken, and not counted");
        }
        if random.once_in(4) {
            // As `evict` does it.
            let place = random.below(8) as usize;
            if bits.unmark(PLACES[place]) {
                if board.version[place].load(SeqCst) > seen[place] {
                    bits.mark(PLACES[place]);
                }
                bits.discount(1);
            }
        }
        let max = random.below(9) as usize;
        let mut last = None;
        let taken = bits.take(from, u64::MAX, max, |bit| {
            assert!(last < Some(bit), "{bit} behind {last:?}");
            last = Some(bit);
            let place = place_of(bit);
            seen[place] = board.version[place].load(SeqCst);
            true
        });
        bits.discount(taken.bits);
        if taken.next.is_none() {
            for place in place_of(from)..8 {
                assert!(seen[place] >= before[place], "bit {} was missed", PLACES[place]);
            }
        }
    }
}

fn finished(board: &Board) -> [u64; 8] {
    std::array::from_fn(|place| board.finished[place].load(SeqCst))
}

fn ended(board: &Board, bits: &Bits, seen: &mut [u64; 8]) {
    take(board, bits, seen, &mut Random(1), 40);
    assert_eq!(*seen, finished(board));
    assert_eq!(bits.marks(), 0);
    assert_eq!(bits.take(0, u64::MAX, 1, |_| true).bits, 0);
}

#[test]
fn no_finished_mark_is_missed_in_any_order() {
    in_many_orders(3000, || {
        let bits = Arc::new(Bits::new(300_000, 300_000).unwrap());
        let board = Arc::new(Board::default());
        let mut threads = Vec::new();
        for _ in 0..2 {
            let (board, bits, mut random) = (board.clone(), bits.clone(), Random(random()));
            threads.push(thread::spawn(move || mark(&board, &bits, &mut random, 4)));
        }
        let mut seen = [0; 8];
        take(&board, &bits, &mut seen, &mut Random(random()), 6);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        ended(&board, &bits, &mut seen);
    });
}

#[test]
fn no_finished_mark_is_missed_by_free_threads() {
    let bits = Bits::new(300_000, 300_000).unwrap();
    let board = Board::default();
    let mut seen = [0; 8];
    std::thread::scope(|scope| {
        let (board, bits) = (&board, &bits);
        for thread in 0..3 {
            scope.spawn(move || mark(board, bits, &mut Random(thread), 200_000));
        }
        let seen = &mut seen;
        scope.spawn(move || take(board, bits, seen, &mut Random(9), 200_000));
    });
    ended(&board, &bits, &mut seen);
}
