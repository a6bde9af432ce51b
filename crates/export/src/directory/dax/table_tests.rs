//! The table against a frontend that knows only what QEMU knows.

use super::table::{Answer, Order, Part, SLOT_BYTES, Slot, Table, WINDOW_BYTES_MAX};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

/// Does what it is told in order, and fails the test where QEMU would complain.
#[derive(Default)]
struct Frontend {
    mapped: BTreeMap<Slot, Part>,
    told: VecDeque<Order>,
}

impl Frontend {
    /// Does the oldest order, or refuses to; `is_late`: the answer is not waited for.
    fn act(&mut self, refuses: bool, is_late: bool) -> Option<(Order, Answer)> {
        let order = self.told.pop_front()?;
        let done = match order {
            Order::Map { slot, part, .. } if !refuses => {
                assert_eq!(self.mapped.insert(slot, part), None, "an overlap");
                true
            }
            Order::Map { .. } => false,
            Order::Unmap { slot, .. } => self.mapped.remove(&slot).is_some(),
        };
        Some((
            order,
            if is_late {
                Answer::Unknown
            } else if done {
                Answer::Done
            } else {
                Answer::Refused
            },
        ))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Map(Slot, Part),
    Unmap(Slot),
    Forget(u64),
    Act { refuses: bool, is_late: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let part = (0_u64..3, 0_u64..3).prop_map(|(node, piece)| Part { node, offset: piece * SLOT_BYTES });
    prop_oneof![
        (0_u16..4, part).prop_map(|(slot, part)| Step::Map(slot, part)),
        (0_u16..4).prop_map(Step::Unmap),
        (0_u64..3).prop_map(Step::Forget),
        (any::<bool>(), any::<bool>()).prop_map(|(refuses, is_late)| Step::Act { refuses, is_late }),
    ]
}

proptest! {
    /// Nothing overlaps whatever is asked, refused and late, and in the end both sides know the same.
    #[test]
    fn the_frontend_is_told_nothing_that_it_would_refuse(steps in proptest::collection::vec(step(), 0..200)) {
        let (mut table, mut frontend) = (Table::new(4 * SLOT_BYTES), Frontend::default());
        for step in steps {
            match step {
                Step::Map(slot, part) => frontend.told.extend(table.map(slot, part)),
                Step::Unmap(slot) => frontend.told.extend(table.unmap(slot)),
                Step::Forget(node) => {
                    for slot in table.of(|part| part.node == node) {
                        frontend.told.extend(table.unmap(slot));
                    }
                }
                Step::Act { refuses, is_late } => {
                    if let Some((order, answer)) = frontend.act(refuses, is_late) {
                        frontend.told.extend(table.answered(order, answer));
                    }
                }
            }
            prop_assert!(frontend.mapped.len() <= 4);
        }
        while let Some((order, answer)) = frontend.act(false, false) {
            frontend.told.extend(table.answered(order, answer));
        }
        for slot in 0..4 {
            for part in (0..9).map(|number| Part { node: number % 3, offset: number / 3 * SLOT_BYTES }) {
                prop_assert_eq!(table.has(slot, part), frontend.mapped.get(&slot) == Some(&part));
            }
        }
        prop_assert_eq!(table.mapped(), frontend.mapped.len());
    }

    #[test]
    fn what_is_no_slot_is_refused(window_offset: u64, offset: u64, len: u64) {
        let table = Table::new(4 * SLOT_BYTES);
        let is_slot = |at: u64| at.is_multiple_of(SLOT_BYTES);
        let fits = is_slot(window_offset) && window_offset < 4 * SLOT_BYTES && is_slot(offset) && len == SLOT_BYTES;
        prop_assert_eq!(table.slot(window_offset, offset, len).is_ok(), fits);
        if let Ok(slots) = table.slots(window_offset, len) {
            prop_assert!(slots.end <= 4 && (len == u64::MAX || u64::from(slots.start) * SLOT_BYTES == window_offset));
        }
    }
}

#[test]
fn hostile_numbers_end_in_an_error() {
    let table = Table::new(WINDOW_BYTES_MAX);
    assert_eq!(table.slot(255 * SLOT_BYTES, 0, SLOT_BYTES), Ok(255));
    for (window_offset, offset, len) in [
        (WINDOW_BYTES_MAX, 0, SLOT_BYTES),
        (u64::MAX, 0, SLOT_BYTES),
        (0, 4096, SLOT_BYTES),
        (4096, 0, SLOT_BYTES),
        (0, 0, 0),
        (0, 0, 2 * SLOT_BYTES),
        (0, 0, 1 << 63),
        (0, 0, u64::MAX),
    ] {
        assert!(table.slot(window_offset, offset, len).is_err());
    }
    assert_eq!(table.slots(SLOT_BYTES, 2 * SLOT_BYTES), Ok(1..3));
    assert_eq!(table.slots(4096, u64::MAX), Ok(0..256));
    for (window_offset, len) in
        [(0, 0), (0, 1 << 63), (u64::MAX, SLOT_BYTES), (WINDOW_BYTES_MAX, SLOT_BYTES), (0, 4096)]
    {
        assert!(table.slots(window_offset, len).is_err());
    }
    // More than the window is no larger window.
    assert!(Table::new(u64::MAX).slot(WINDOW_BYTES_MAX, 0, SLOT_BYTES).is_err());
}

#[test]
fn a_late_mapping_is_taken_out_again() {
    let mut table = Table::new(SLOT_BYTES);
    let part = Part { node: 7, offset: 0 };
    let orders: Vec<_> = table.map(0, part).collect();
    let [map] = orders[..] else { panic!("{orders:?}") };
    assert!(!table.has(0, part));
    let out = table.answered(map, Answer::Unknown).unwrap();
    assert!(matches!(out, Order::Unmap { slot: 0, .. }) && table.mapped() == 0);
    // Whoever comes next goes behind that.
    assert_eq!(table.map(0, part).count(), 1);
    assert_eq!(table.answered(out, Answer::Unknown), None);
    assert_eq!(table.mapped(), 1);
}
