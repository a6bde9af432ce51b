//! What `--quick` makes of an experiment: a run of minutes, whose figures decide nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::{DropCaches, Experiment};

/// Small files that a load makes in a run of minutes, at most.
const OWN_FILES_MAX: u32 = 300;

impl Experiment {
    /// This experiment as a run of minutes: fewer rounds, shorter measurements, less data, the host's caches as they are, and
    /// of the axes that [`quick`](Experiment::quick) names only the values that it names. Everything keeps its name.
    #[must_use]
    pub fn quick(&self) -> Experiment {
        let mut quick = self.clone();
        quick.rounds = self.quick.rounds.min(self.rounds);
        quick.time_s = self.quick.time_s.min(self.time_s);
        quick.warm_up_s = self.quick.warm_up_s.min(self.warm_up_s);
        if quick.drop_caches == DropCaches::All {
            // The host's are everybody's, and filled again programs first: that takes longer than a short measurement.
            quick.drop_caches = DropCaches::Guest;
        }
        quick.configurations.retain(|configuration| self.quick_keeps(&configuration.labels));
        quick.workloads.retain(|workload| self.quick_keeps(&workload.labels));
        for configuration in &mut quick.configurations {
            configuration.data.size_mib = configuration.data.size_mib.min(self.quick.size_mib);
        }
        for workload in &mut quick.workloads {
            workload.own_files = workload.own_files.min(OWN_FILES_MAX);
        }
        if let Some(published) = &mut quick.published {
            let configurations: BTreeSet<&str> = quick.configurations.iter().map(|it| it.name.as_str()).collect();
            let workloads: BTreeSet<&str> = quick.workloads.iter().map(|it| it.name.as_str()).collect();
            published.figures.retain(|figure| {
                configurations.contains(figure.configuration.as_str()) && workloads.contains(figure.workload.as_str())
            });
        }
        quick
    }

    fn quick_keeps(&self, labels: &BTreeMap<String, String>) -> bool {
        self.quick.axes.iter().all(|(axis, values)| labels.get(axis).is_none_or(|label| values.contains(label)))
    }
}
