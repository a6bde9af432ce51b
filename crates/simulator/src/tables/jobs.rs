//! The vhost note's loads on vringd's own costs, by the device that the disk in memory is: one worker, and a worker for each ring.

use super::vhost::{JOBS, cell};
use super::{rate, render};
use crate::{Costs, Placing, Scenario, run};

/// Placements that stay need no more.
const WARM_NS: u64 = 10_000_000;
const RUN_NS: u64 = 50_000_000;

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
            let of = |workers: &dyn Fn(u32) -> u32| {
                JOBS.map(|jobs| {
                    let cell = cell(costs.clone(), jobs, is_batched, Placing::Workers(workers(jobs)));
                    run(&Scenario { warm_ns: WARM_NS, run_ns: RUN_NS, ..cell }).rate
                })
            };
            let (one, each) = (of(&|_| 1), of(&|jobs| jobs));
            row("1 worker", one.map(rate));
            row("worker per vq", each.map(rate));
            row("ratio", std::array::from_fn(|at| format!("{:.2}", each[at] / one[at].max(1.0))));
        }
        text += &render(&rows);
        text.push('\n');
    }
    text
}
