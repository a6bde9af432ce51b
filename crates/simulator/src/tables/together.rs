//! Workers and clients on the same processors: more workers are not more processors.

use super::{rate, render};
use crate::{Client, Costs, Host, Outcome, Placing, Scenario, run};
use values::Favour;

/// So many clients and workers on so many processors together: fixed numbers of workers, and the policy by what is favoured.
#[must_use]
pub fn together_cell(processors: u16, clients: u32, placing: Placing) -> Outcome {
    let warm_ns = if matches!(placing, Placing::Policy(_)) { 4_000_000_000 } else { 200_000_000 };
    run(&Scenario {
        costs: Costs {
            request_ns: 1_200.0,
            data_ns: 800.0,
            client_request_ns: 1_000.0,
            client_call_ns: 1_000.0,
            ..Costs::here()
        },
        host: Host::together(processors),
        clients: (0..clients).map(|client| Client::busy(u64::from(client / 4), 32, 16)).collect(),
        placing,
        warm_ns,
        run_ns: 1_000_000_000,
        seed: 1,
    })
}

/// The table.
#[must_use]
pub fn together() -> String {
    let mut head = vec!["workers and clients together".to_owned(), "best fixed".into(), "rate".into(), "CPU µs".into()];
    for favour in Favour::ALL {
        head.extend([favour.to_string(), "to best".into(), "CPU µs".into(), "workers".into(), "changes".into()]);
    }
    let cpu = |it: &Outcome| format!("{:.2}", 1e6 / it.rate_per_cpu().max(1.0));
    let mut rows = vec![head];
    for (processors, clients) in [(1, 4), (2, 1), (2, 2), (2, 8), (4, 2), (4, 8), (8, 4), (8, 32)] {
        let counts = [1, 2, 4, 8].into_iter().filter(|workers| *workers <= u32::from(processors).min(clients));
        let fixed: Vec<(u32, Outcome)> =
            counts.map(|workers| (workers, together_cell(processors, clients, Placing::Workers(workers)))).collect();
        let Some((workers, best)) = fixed.iter().max_by(|a, b| a.1.rate.total_cmp(&b.1.rate)) else { continue };
        let mut row = vec![
            format!("{processors} processors, {clients} clients"),
            format!("{workers} workers"),
            rate(best.rate),
            cpu(best),
        ];
        for favour in Favour::ALL {
            let it = together_cell(processors, clients, Placing::Policy(favour));
            row.extend([
                rate(it.rate),
                format!("{:.2}", it.rate / best.rate),
                cpu(&it),
                it.serving.to_string(),
                it.changes().to_string(),
            ]);
        }
        rows.push(row);
    }
    render(&rows)
}
