//! The vhost note's loads on vringd's own costs, by the device that the disk in memory is: one worker, a worker for each ring, the policy.

use super::vhost::{JOBS, cell};
use super::{rate, render};
use crate::{Costs, Placing, run};
use values::Favour;

/// Devices, and what their requests cost.
fn devices() -> [(&'static str, Costs); 2] {
    [("blk", Costs::memory()), ("SCSI", Costs::memory().over_scsi())]
}

/// Both tables, plain and batched; a device's last line is what a worker for each ring gains on one worker.
#[must_use]
pub fn jobs() -> String {
    let mut text = String::new();
    for (is_batched, name) in [(false, "plain"), (true, "batched")] {
        let mut rows = vec![[name.to_owned()].into_iter().chain(JOBS.map(|jobs| jobs.to_string())).collect::<Vec<_>>()];
        for (device, costs) in devices() {
            let mut row = |what: &str, cells: [String; JOBS.len()]| {
                rows.push([format!("{device}, {what}")].into_iter().chain(cells).collect());
            };
            let of = |placing: &dyn Fn(u32) -> Placing| {
                JOBS.map(|jobs| run(&cell(costs.clone(), jobs, is_batched, placing(jobs))))
            };
            let one = of(&|_| Placing::Workers(1)).map(|it| it.rate);
            let each = of(&Placing::Workers).map(|it| it.rate);
            let policy = of(&|_| Placing::Policy(Favour::Balance));
            row("1 worker", one.map(rate));
            row("worker per vq", each.map(rate));
            row("the policy", policy.each_ref().map(|it| rate(it.rate)));
            row("its workers", policy.each_ref().map(|it| it.serving.to_string()));
            row("per vq to 1 worker", std::array::from_fn(|at| format!("{:.2}", each[at] / one[at].max(1.0))));
        }
        text += &render(&rows);
        text.push('\n');
    }
    text
}
