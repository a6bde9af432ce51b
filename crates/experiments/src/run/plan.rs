//! In which order things are measured: a pure function of the experiment.
//!
//! Machines warm up, disks fill and neighbours come and go, so configurations take turns at every workload, and who goes first
//! changes from round to round. Only what cannot be up at the same time is measured in separate groups.

use crate::experiment::{Configuration, Experiment, Medium, Order, Place};

/// Configurations that are up at the same time, and take turns: their indices in the experiment.
pub(crate) type Group = Vec<usize>;

/// Memory that a guest takes beside what its own system and fio use, in MiB.
const GUEST_OWN_MIB: u64 = 128;
/// Idle guests still tick. More than so many at once would be heard in each other's figures.
const GUESTS_TOGETHER_MAX: usize = 12;

/// Splits the configurations into groups whose guests fit into `memory_mib` together. The order within the experiment is kept,
/// so that what is written side by side is measured side by side.
pub(crate) fn groups(experiment: &Experiment, memory_mib: u64) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut free_mib = 0;
    for (index, configuration) in experiment.configurations.iter().enumerate() {
        let cost_mib = guest_memory_mib(configuration);
        match groups.last_mut() {
            Some(group) if cost_mib <= free_mib && group.len() < GUESTS_TOGETHER_MAX => group.push(index),
            // The first of a group is admitted whatever it costs: alone is the best that can be done for it.
            _ => {
                groups.push(vec![index]);
                free_mib = memory_mib;
            }
        }
        free_mib = free_mib.saturating_sub(cost_mib);
    }
    groups
}

/// The order of a group's configurations in `round` (from 1) at the `turn`th workload.
pub(crate) fn turns(experiment: &Experiment, group: &Group, round: u32, turn: usize) -> Vec<usize> {
    let rounds_before = usize::try_from(round.saturating_sub(1)).unwrap_or(0);
    let shift = if experiment.order == Order::Rotating { rounds_before + turn } else { 0 };
    bench::contest::turns(group.len(), shift).filter_map(|index| group.get(index).copied()).collect()
}

/// Whether a configuration is made ready anew for every measurement: without a guest that takes milliseconds, and no server
/// then keeps memory while others are measured.
pub(crate) fn is_fleeting(configuration: &Configuration) -> bool {
    matches!(configuration.place, Place::Host | Place::Frontend)
}

fn guest_memory_mib(configuration: &Configuration) -> u64 {
    if is_fleeting(configuration) || configuration.unsupported.is_some() {
        return 0;
    }
    // A server that keeps its data in memory of its own keeps it as long as its guest is up.
    let server_mib = if configuration.data.medium == Medium::None { configuration.data.size_mib } else { 0 };
    u64::from(configuration.guest.memory_mib) + GUEST_OWN_MIB + server_mib
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::samples::experiment;

    #[test]
    fn guests_are_up_together_as_far_as_memory_goes() {
        let mut experiment = experiment(5, 1);
        for configuration in &mut experiment.configurations {
            configuration.place = Place::Uml;
            configuration.guest.memory_mib = 872;
        }
        assert_eq!(groups(&experiment, 3500), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(groups(&experiment, 10), [vec![0], vec![1], vec![2], vec![3], vec![4]]);
        experiment.configurations[1].place = Place::Frontend;
        experiment.configurations[2].unsupported = Some("no".into());
        assert_eq!(groups(&experiment, 2000), [vec![0, 1, 2, 3], vec![4]]);
    }

    #[test]
    fn everyone_is_first_once() {
        let mut experiment = experiment(3, 1);
        let group = vec![0, 1, 2];
        let first = |experiment: &Experiment, round, turn| turns(experiment, &group, round, turn)[0];
        assert_eq!([1, 2, 3, 4].map(|round| first(&experiment, round, 0)), [0, 1, 2, 0]);
        assert_eq!([0, 1, 2].map(|turn| first(&experiment, 1, turn)), [0, 1, 2]);
        experiment.order = Order::Fixed;
        assert_eq!([1, 2].map(|round| turns(&experiment, &group, round, 1)), [vec![0, 1, 2], vec![0, 1, 2]]);
    }
}
