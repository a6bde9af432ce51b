//! The vhost note's two tables: one worker and a worker for each ring, 1 to 16 jobs, plain and batched.

use super::{rate, render};
use crate::{Client, Costs, Host, Placing, Scenario, run};
use values::Favour;

/// Jobs, one a ring.
pub const JOBS: [u32; 6] = [1, 2, 4, 8, 12, 16];

/// What the note has, in thousands of requests a second: plain and batched, one worker and a worker for each ring; 0 where it has nothing.
pub const PUBLISHED: [[[u32; 6]; 2]; 2] = [
    [[84, 492, 510, 0, 0, 0], [184, 380, 744, 1422, 2256, 2434]],
    [[494, 520, 0, 0, 0, 0], [496, 878, 1542, 2436, 2304, 2590]],
];

/// Requests of one submission where the note's jobs batch. It does not say how many; fio's examples have 16.
const BATCH: u32 = 16;
/// What the note's device takes at once: more jobs had fewer each.
const COMMANDS: u32 = 1024;

/// A cell: jobs, batched or plain, and who serves them.
#[must_use]
pub fn vhost_cell(jobs: u32, batched: bool, placing: Placing) -> Scenario {
    cell(Costs::vhost_note(), jobs, batched, placing)
}

/// The same at other costs.
pub(super) fn cell(costs: Costs, jobs: u32, batched: bool, placing: Placing) -> Scenario {
    let depth = 128.min(COMMANDS / jobs.max(1));
    let batch = if batched { BATCH } else { 1 };
    let settles = matches!(placing, Placing::Policy(_));
    Scenario {
        costs,
        host: Host::cores(16),
        clients: (0..jobs).map(|_| Client::busy(0, depth, batch)).collect(),
        placing,
        warm_ns: if settles { 4_000_000_000 } else { 100_000_000 },
        run_ns: 500_000_000,
        seed: 1,
    }
}

/// Both tables, published and simulated.
#[must_use]
pub fn vhost() -> String {
    let mut text = String::new();
    for (table, name) in ["plain", "batched"].into_iter().enumerate() {
        let mut rows = vec![[name.to_owned()].into_iter().chain(JOBS.map(|jobs| jobs.to_string())).collect::<Vec<_>>()];
        let mut row = |name: String, cells: Vec<String>| rows.push([name].into_iter().chain(cells).collect());
        for (place, who) in ["1 worker", "worker per vq"].into_iter().enumerate() {
            let published = PUBLISHED[table][place];
            let cells = published.iter().map(|it| if *it > 0 { format!("{it}k") } else { "-".to_owned() });
            row(format!("{who}, published"), cells.collect());
            let placing = |jobs: u32| Placing::Workers(if place == 0 { 1 } else { jobs });
            let rates = JOBS.map(|jobs| run(&vhost_cell(jobs, table == 1, placing(jobs))).rate);
            row(format!("{who}, simulated"), rates.iter().map(|it| rate(*it)).collect());
            let ratios = rates.iter().zip(published).map(|(it, published)| match published {
                0 => "-".to_owned(),
                _ => format!("{:.2}", it / 1e3 / f64::from(published)),
            });
            row("  ratio".to_owned(), ratios.collect());
        }
        let policy = JOBS.map(|jobs| run(&vhost_cell(jobs, table == 1, Placing::Policy(Favour::Balance))));
        row("the policy, simulated".to_owned(), policy.iter().map(|it| rate(it.rate)).collect());
        row("  its workers".to_owned(), policy.iter().map(|it| it.serving.to_string()).collect());
        text += &render(&rows);
        text.push('\n');
    }
    text
}
