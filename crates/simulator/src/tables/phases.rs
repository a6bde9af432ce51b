//! Loads that change every few seconds: how soon the policy is within 5 % of the best, and how often it changes anything.

use super::{rate, render};
use crate::{Client, Costs, Host, Placing, Scenario, run};
use values::Favour;

/// How long a phase lasts.
const PHASE_NS: u64 = 6_000_000_000;
const TENTH_NS: u64 = 100_000_000;
/// What a rate is compared over: single tenths of a second are noise.
const WINDOW: usize = 3;

/// What became of a phase.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Rings that are active.
    pub rings: u32,
    /// The best fixed placement's rate.
    pub best: f64,
    /// The policy's at the end of the phase.
    pub rate: f64,
    /// Seconds until it was within 5 % of the best and stayed there for all but a tenth of the rest; `None` when it was not.
    pub within: Option<f64>,
    /// Changes that moved rings.
    pub changes: usize,
    /// Of them in the second half of the phase.
    pub late: usize,
}

/// Runs phases in which so many rings are active, one phase after the other.
#[must_use]
pub fn phases(processors: u16, rings: &[u32], favour: Favour) -> Vec<Phase> {
    let costs = Costs { request_ns: 1_200.0, data_ns: 800.0, ..Costs::here() };
    let most = rings.iter().copied().max().unwrap_or_default();
    let clients: Vec<Client> = (0..most)
        .map(|ring| {
            let mut client = Client::busy(u64::from(ring / 4), 16, 16);
            let phases = rings.iter().enumerate().filter(|(_, active)| ring < **active);
            client.active = phases.map(|(at, _)| (at as u64 * PHASE_NS, (at as u64 + 1) * PHASE_NS)).collect();
            client
        })
        .collect();
    let host = Host::cores(processors);
    let policy = run(&Scenario {
        costs: costs.clone(),
        host,
        clients,
        placing: Placing::Policy(favour),
        warm_ns: 0,
        run_ns: PHASE_NS * rings.len() as u64,
        seed: 1,
    });
    let tenths = (PHASE_NS / TENTH_NS) as usize;
    let mut done = Vec::new();
    for (at, active) in rings.iter().enumerate() {
        let fixed = |placing: Placing| {
            let clients = (0..*active).map(|ring| Client::busy(u64::from(ring / 4), 16, 16)).collect();
            let (warm_ns, run_ns) = (TENTH_NS, 3 * TENTH_NS);
            run(&Scenario { costs: costs.clone(), host, clients, placing, warm_ns, run_ns, seed: 1 }).rate
        };
        let placings = [1, u32::from(processors), *active].map(|workers| fixed(Placing::Workers(workers)));
        let best = placings.into_iter().fold(0.0, f64::max);
        let seen = policy.tenths.get(at * tenths..).unwrap_or_default();
        let seen: Vec<f64> = seen.iter().take(tenths).map(|it| *it as f64 * 10.0).collect();
        let means: Vec<f64> = seen.windows(WINDOW).map(|it| it.iter().sum::<f64>() / WINDOW as f64).collect();
        let stays = |from: usize| {
            let rest = &means[from..];
            rest[0] >= 0.95 * best && rest.iter().filter(|it| **it < 0.95 * best).count() * 10 <= rest.len()
        };
        let within = (0..means.len()).find(|from| stays(*from)).map(|from| from as f64 / 10.0);
        let (from_ns, to_ns) = (at as u64 * PHASE_NS, (at as u64 + 1) * PHASE_NS);
        let moved = policy.verdicts.iter().filter(|it| !it.moves.is_empty() && (from_ns..to_ns).contains(&it.at_ns));
        let times: Vec<u64> = moved.map(|it| it.at_ns).collect();
        let late = times.iter().filter(|at_ns| **at_ns >= from_ns + PHASE_NS / 2).count();
        let rate = means.last().copied().unwrap_or_default();
        done.push(Phase { rings: *active, best, rate, within, changes: times.len(), late });
    }
    done
}

/// Phases as a table.
#[must_use]
pub fn table(processors: u16, phases: &[Phase]) -> String {
    let head = ["rings", "best fixed", "policy", "to best", "within 5 % after", "changes", "of them after 3 s"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for it in phases {
        rows.push(vec![
            format!("{}", it.rings),
            rate(it.best),
            rate(it.rate),
            format!("{:.2}", it.rate / it.best),
            it.within.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds:.1} s")),
            it.changes.to_string(),
            it.late.to_string(),
        ]);
    }
    format!("{processors} processors, phases of {} s\n{}", PHASE_NS / 1_000_000_000, render(&rows))
}
