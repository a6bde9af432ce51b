//! Unit attention conditions.

use device::scsi::{Attention, Attentions, Reports};
use proptest::prelude::*;

fn all_of(conditions: &[Attention]) -> Attentions {
    conditions.iter().fold(Attentions::NONE, |all, one| all.with(*one))
}

#[test]
fn conditions_are_reported_one_by_one_resets_first() {
    let mut pending = all_of(&[Attention::LunsChanged, Attention::CapacityChanged, Attention::PowerOn]);
    let mut reported = Vec::new();
    while let (Some(first), rest) = pending.take() {
        reported.push(first);
        pending = rest;
    }
    assert_eq!(reported, [Attention::PowerOn, Attention::CapacityChanged, Attention::LunsChanged]);
    assert_eq!(pending.take(), (None, Attentions::NONE));
}

#[test]
fn one_reset_says_what_the_lower_ones_do() {
    use Attention as A;
    let pending = all_of(&[A::NexusLoss, A::DeviceReset, A::ModeChanged, A::PowerOn, A::Reset]);
    assert_eq!(pending.iter().collect::<Vec<_>>(), [A::PowerOn, A::ModeChanged]);
    let pending = all_of(&[A::DeviceReset, A::NexusLoss]);
    assert_eq!(pending.iter().collect::<Vec<_>>(), [A::DeviceReset]);
}

#[test]
fn three_commands_are_processed_all_the_same() {
    for code in 0..=255 {
        let expected = match code {
            0x12 => Reports::Nothing,
            0xa0 => Reports::Luns,
            0x03 => Reports::AsData,
            _ => Reports::First,
        };
        assert_eq!(Reports::by(code), expected);
    }
    let pending = all_of(&[Attention::LunsChanged, Attention::ModeChanged]);
    assert_eq!(pending.without(Attention::LunsChanged), all_of(&[Attention::ModeChanged]));
}

proptest! {
    #[test]
    fn every_condition_is_reported_once(conditions in proptest::collection::vec(0..12_usize, 0..30)) {
        let mut pending = all_of(&conditions.iter().map(|index| Attention::ALL[*index]).collect::<Vec<_>>());
        let listed: Vec<_> = pending.iter().collect();
        // Resets are the first four; of them the first alone.
        let reset = conditions.iter().filter(|index| **index < 4).min();
        let expected = (0..12).filter(|index| conditions.contains(index) && (*index >= 4 || Some(index) == reset));
        prop_assert!(listed.iter().copied().eq(expected.map(|index| Attention::ALL[index])));
        let mut reported = Vec::new();
        while let (Some(first), rest) = pending.take() {
            reported.push(first);
            prop_assert!(rest.bits() < pending.bits());
            pending = rest;
        }
        prop_assert!(pending.is_empty());
        prop_assert_eq!(reported, listed);
    }

    #[test]
    fn bits_that_are_none_are_left_out(bits: u16) {
        prop_assert_eq!(Attentions::from_bits(bits).bits(), bits & 0x1fff);
        prop_assert_eq!(Attentions::from_bits(bits).iter().count(), (bits & 0x1fff).count_ones() as usize);
    }
}
