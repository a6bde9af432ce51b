//! How openings of a volume are told apart.

use crate::format::Uuid;

/// Recovery counts the epoch up by one, and may do so this often before the volume is opened for guests. A step of an
/// opening is larger.
pub(super) const EPOCH_STEP_MIN: u64 = 1 << 16;

/// The epoch of an opening behind one of `epoch`: by a random step, so that two who go on from the same state do not arrive at
/// the same one.
pub(super) fn next_epoch(epoch: u64) -> u64 {
    let (random, _) = Uuid::new_v4().as_u64_pair();
    epoch.saturating_add(EPOCH_STEP_MIN + (random >> 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_is_told_from_recoveries() {
        let mut epochs: Vec<_> = (0..100).map(|_| next_epoch(7)).collect();
        assert!(epochs.iter().all(|epoch| *epoch >= 7 + EPOCH_STEP_MIN && *epoch < 1 << 33));
        epochs.sort_unstable();
        epochs.dedup();
        assert!(epochs.len() > 90);
    }
}
