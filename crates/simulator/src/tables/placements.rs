//! The policy against fixed placements, from 1 to 128 processors.

use super::{rate, render};
use crate::{Costs, Host, Outcome, Placing, Scenario, Shape, run};
use values::Favour;

/// The rings, and the exports that they are divided among.
const RINGS: u32 = 256;
const EXPORTS: u32 = 100;
const RUN_NS: u64 = 500_000_000;
/// Behind this the policy is compared: it has found its way.
const SETTLED_NS: u64 = 4_000_000_000;
/// A load that never settles is compared over so long.
const BURSTS_NS: u64 = 4_000_000_000;

/// The policy and the best of some fixed placements under the same load.
#[derive(Clone, Debug)]
pub struct Against {
    /// The load.
    pub shape: Shape,
    /// Processors for workers.
    pub processors: u16,
    /// Fixed placements: what they are, and what came of them.
    pub fixed: Vec<(String, Outcome)>,
    /// The policy, by [`Favour::ALL`].
    pub policy: Vec<Outcome>,
}

impl Against {
    /// The best fixed placement by rate; of those that are as good, the one that takes the least processor time.
    #[must_use]
    pub fn best(&self) -> Option<&(String, Outcome)> {
        let fastest = self.fixed.iter().map(|(_, it)| it.rate).fold(0.0, f64::max);
        let good = self.fixed.iter().filter(|(_, it)| it.rate >= 0.99 * fastest);
        good.min_by(|a, b| a.1.worker_cpu.total_cmp(&b.1.worker_cpu))
    }
}

fn costs() -> Costs {
    // A request of the page cache: two microseconds, as a copy and a call. Memory for a quarter of the processors at full speed.
    Costs { request_ns: 1_200.0, data_ns: 800.0, streams: 32.0, ..Costs::here() }
}

/// Runs the policy and fixed placements: one worker, a worker for each ring, and as many as processors, with rings in turn and with the
/// largest first on the least loaded (which knows the load beforehand).
#[must_use]
pub fn against(shape: Shape, processors: u16, favours: &[Favour]) -> Against {
    let is_bursty = shape == Shape::Bursty;
    let lasts_ns = SETTLED_NS + BURSTS_NS;
    let costs = costs();
    let clients = shape.clients(RINGS, EXPORTS, &costs, processors, lasts_ns);
    let scenario = |placing: Placing| Scenario {
        costs: costs.clone(),
        host: Host::cores(processors),
        clients: clients.clone(),
        warm_ns: match placing {
            _ if is_bursty => SETTLED_NS,
            Placing::Policy(_) => SETTLED_NS,
            _ => 200_000_000,
        },
        run_ns: if is_bursty { BURSTS_NS } else { RUN_NS },
        placing,
        seed: 1,
    };
    let count = u32::from(processors);
    let mut fixed = vec![("one".to_owned(), Placing::Workers(1))];
    if count > 1 {
        fixed.push((format!("{count} in turn"), Placing::Workers(count)));
        if shape == Shape::Zipf {
            fixed.push((format!("{count} known"), Placing::Fixed(largest_first(&clients, count))));
            if count > 2 {
                fixed
                    .push((format!("{} known", count * 3 / 4), Placing::Fixed(largest_first(&clients, count * 3 / 4))));
            }
        }
    }
    fixed.push(("per ring".to_owned(), Placing::Workers(RINGS)));
    let fixed = fixed.into_iter().map(|(name, placing)| (name, run(&scenario(placing)))).collect();
    let policy = favours.iter().map(|favour| run(&scenario(Placing::Policy(*favour)))).collect();
    Against { shape, processors, fixed, policy }
}

fn largest_first(clients: &[crate::Client], workers: u32) -> Vec<u32> {
    let rate = |client: &crate::Client| 1.0 / client.interval_ns.max(1.0);
    let mut order: Vec<usize> = (0..clients.len()).collect();
    order.sort_by(|a, b| rate(&clients[*b]).total_cmp(&rate(&clients[*a])));
    let mut loads = vec![0.0_f64; workers as usize];
    let mut homes = vec![0; clients.len()];
    for ring in order {
        let least = (0..loads.len()).min_by(|a, b| loads[*a].total_cmp(&loads[*b])).unwrap_or_default();
        loads[least] += rate(&clients[ring]);
        homes[ring] = least as u32;
    }
    homes
}

/// The table: for each load and number of processors, the policy's figures and the best fixed placement's.
#[must_use]
pub fn placements(processors: &[u16], favours: &[Favour]) -> String {
    let mut text = String::new();
    for shape in Shape::ALL {
        let head = [
            format!("{} load", shape.name()),
            "best fixed".into(),
            "rate".into(),
            "processors".into(),
            "p99 µs".into(),
        ];
        let mut head: Vec<String> = head.to_vec();
        for favour in favours {
            head.extend([favour.to_string(), "to best".into(), "processors".into(), "p99 µs".into(), "workers".into()]);
            head.extend(["changes".into(), "moves".into()]);
        }
        let mut rows = vec![head];
        for processors in processors {
            let it = against(shape, *processors, favours);
            let Some((name, best)) = it.best() else { continue };
            let mut row = vec![
                format!("{processors} processors"),
                name.clone(),
                rate(best.rate),
                format!("{:.1}", best.worker_cpu),
                format!("{:.0}", best.p99_ns / 1e3),
            ];
            for outcome in &it.policy {
                row.extend([
                    rate(outcome.rate),
                    format!("{:.2}", outcome.rate / best.rate),
                    format!("{:.1}", outcome.worker_cpu),
                    format!("{:.0}", outcome.p99_ns / 1e3),
                    outcome.serving.to_string(),
                    outcome.changes().to_string(),
                    outcome.moves().to_string(),
                ]);
            }
            rows.push(row);
        }
        text += &render(&rows);
        text.push('\n');
    }
    text
}
