//! How long an experiment takes, before it has begun.

use super::{DropCaches, Experiment, Place};

/// Beside what is measured, each measurement takes about so long: caches are dropped, and the load starts and reports. In s.
fn around_one_s(place: Place, drops: DropCaches) -> f64 {
    let load = match place {
        Place::Frontend => 0.2,
        Place::Host => 0.5,
        Place::Uml | Place::Ssh => 0.7,
        // Emulated, a guest takes as long to start fio as others to run it.
        Place::Qemu => 1.5,
    };
    load + if drops == DropCaches::None { 0.0 } else { 0.3 }
}

/// Making a configuration ready takes about so long: the server, and the boot of a guest. In s.
fn ready_s(place: Place) -> f64 {
    match place {
        Place::Host => 0.1,
        Place::Frontend => 0.3,
        Place::Ssh => 2.0,
        Place::Uml => 2.0,
        Place::Qemu => 6.0,
    }
}

/// A small file of a load's own is made, used and removed in about so long, in s.
const OWN_FILE_S: f64 = 0.004;

/// Laying out data takes about so long, in s for each MiB: what a plain SATA SSD writes.
const LAY_OUT_S_PER_MIB: f64 = 1.0 / 400.0;

impl Experiment {
    /// About how long a run of this takes, in s, if every configuration that is not known to be unsupported runs.
    ///
    /// A guess for `bench list`, made of constants; a run learns from its own measurements.
    #[must_use]
    pub fn estimate_s(&self) -> f64 {
        let running = self.configurations.iter().filter(|it| it.unsupported.is_none());
        let measurements = self.workloads.len() as f64 * f64::from(self.rounds);
        let each = running.map(|it| {
            let one_s = self.warm_up_s + self.time_s + around_one_s(it.place, self.drop_caches);
            let own_files: f64 = self.workloads.iter().map(|it| f64::from(it.own_files)).sum();
            ready_s(it.place) + measurements * one_s + own_files * f64::from(self.rounds) * OWN_FILE_S
        });
        let data = self.configurations.iter().map(|it| &it.data);
        let largest_mib =
            data.map(|data| data.size_mib.saturating_mul(u64::from(data.files))).max().unwrap_or_default();
        each.sum::<f64>() + largest_mib as f64 * LAY_OUT_S_PER_MIB
    }
}
