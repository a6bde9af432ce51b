//! Placement policies: which ring goes to which worker. Pure functions of what is there; they touch no thread.

use values::Placement;

/// A worker that a ring may be placed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its number.
    pub worker: u32,
    /// Rings on it already, those that are being placed not counted.
    pub rings: usize,
}

/// How many workers of its own an export with `rings` rings has.
pub fn private_workers(placement: Placement, rings: usize) -> usize {
    match placement {
        Placement::Shared => 0,
        Placement::One => 1,
        Placement::PerQueue => rings.max(1),
        Placement::Workers(count) => count.min(rings.max(1)),
    }
}

/// The worker for each of an export's rings, by ring index; empty when there is no candidate. The candidates are the
/// daemon's workers for [`Shared`](Placement::Shared), else the export's own, in the order of their numbers.
pub fn place(placement: Placement, rings: usize, candidates: &[Candidate]) -> Vec<u32> {
    if candidates.is_empty() {
        return Vec::new();
    }
    if placement != Placement::Shared {
        let count = private_workers(placement, rings).min(candidates.len());
        return (0..rings).map(|ring| candidates[ring % count].worker).collect();
    }
    let mut load: Vec<Candidate> = candidates.to_vec();
    (0..rings)
        .filter_map(|_| {
            let least = load.iter_mut().min_by_key(|candidate| (candidate.rings, candidate.worker))?;
            least.rings += 1;
            Some(least.worker)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidates(loads: &[usize]) -> Vec<Candidate> {
        loads.iter().enumerate().map(|(worker, &rings)| Candidate { worker: worker as u32, rings }).collect()
    }

    #[test]
    fn private_placements_take_workers_in_turn() {
        assert_eq!(place(Placement::One, 3, &candidates(&[0, 0])), [0, 0, 0]);
        assert_eq!(place(Placement::PerQueue, 3, &candidates(&[0, 0, 0])), [0, 1, 2]);
        assert_eq!(place(Placement::Workers(2), 5, &candidates(&[0, 0, 0])), [0, 1, 0, 1, 0]);
        assert!(place(Placement::One, 1, &[]).is_empty());
    }

    proptest! {
        #[test]
        fn shared_evens_the_load_out(loads in prop::collection::vec(0usize..8, 1..8), rings in 0usize..64) {
            let placed = place(Placement::Shared, rings, &candidates(&loads));
            prop_assert_eq!(placed.len(), rings);
            let mut after = loads.clone();
            for worker in &placed {
                after[*worker as usize] += 1;
            }
            // No worker that received a ring may end above another by more than one.
            let least = after.iter().min().copied().unwrap_or(0);
            for (worker, load) in after.iter().enumerate() {
                prop_assert!(*load <= least + 1 || *load == loads[worker]);
            }
        }
    }
}
