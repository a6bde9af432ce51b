//! Results for people.

use super::{Conditions, Outcome};
use crate::stats::Ratio;
use crate::table::Sheet;
use crate::words::{count, marked, or_none, times, with_interval};

const HEADER: [&str; 10] = [
    "storage, in flight",
    "policy, requests/s",
    "to the fastest",
    "which is",
    "to itself again",
    "p99 to the shortest",
    "which is",
    "requests/CPU s",
    "to the cheapest",
    "which is",
];

/// The table, its summary, and what failed.
pub(super) fn render(outcomes: &[Outcome], conditions: &Conditions<'_>) -> String {
    let Conditions { rounds, time_s, ramp_s, ours, dir } = conditions;
    let ours = if ours.is_empty() { String::new() } else { format!(", {ours}") };
    let mut text = format!(
        "4 KiB random reads, 1 queue, {rounds} rounds of {time_s} s behind {ramp_s} s, disk in {dir}{ours} (~: noise hides which is more)"
    );
    text += &format!("\n\n{}", Sheet::new(1, &HEADER, outcomes.iter().map(cells).collect()).text());
    let rates: Vec<f64> =
        outcomes.iter().filter_map(|outcome| Some(outcome.regret.as_ref()?.rate.as_ref()?.value)).collect();
    if let Some(worst) = rates.iter().copied().min_by(f64::total_cmp) {
        let within = |least: f64| rates.iter().filter(|rate| **rate >= least).count();
        let (near, all) = (within(0.97), rates.len());
        // The fastest of several is partly the luckiest: that is in these numbers, and in the interval of each.
        text += &format!(
            "\n\nwithin 3 % of the fastest fixed window in {near} of {all} cells, within 10 % in {}; worst {}",
            within(0.9),
            times(worst)
        );
    }
    text + &outcomes.iter().map(|outcome| outcome.results.faults(&format!("{}, ", outcome.cell))).collect::<String>()
}

fn cells(outcome: &Outcome) -> Vec<String> {
    let policy = outcome.results.medians.first();
    let regret = outcome.regret.as_ref();
    let shown = |ratio: Option<&Ratio>| or_none(ratio, marked);
    let name = |name: Option<&String>| or_none(name, Clone::clone);
    vec![
        outcome.cell.to_string(),
        or_none(policy, |policy| count(policy.iops.median)),
        or_none(regret.and_then(|regret| regret.rate.as_ref()), with_interval),
        name(regret.map(|regret| &regret.fastest)),
        shown(regret.and_then(|regret| regret.noise.as_ref())),
        shown(regret.and_then(|regret| regret.p99.as_ref())),
        name(regret.map(|regret| &regret.shortest)),
        or_none(policy.and_then(|policy| policy.ops_per_cpu_s), |spread| count(spread.median)),
        shown(regret.and_then(|regret| regret.per_cpu.as_ref())),
        name(regret.and_then(|regret| regret.cheapest.as_ref())),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::cell::{AGAIN, Cell, On, POLICY, Regret};
    use super::*;
    use crate::contest::Results;
    use crate::contest::tests::{Named, run};

    fn outcome(policy: f64) -> Outcome {
        let contenders = [POLICY, "off", "fixed=50", AGAIN].map(|name| Named(name, None));
        let runs = vec![
            run(POLICY, 1, policy, 0.5),
            run("off", 1, 400.0, 0.1),
            run("fixed=50", 1, 1000.0, 0.5),
            run(AGAIN, 1, policy, 0.5),
        ];
        let results = Results::of(&contenders, runs);
        let cell = Cell { on: On::Tmpfs, depth: 16, polling: false };
        Outcome { cell, regret: Regret::of(&results), results }
    }

    #[test]
    fn the_table_has_a_row_a_cell_and_says_how_many_are_near() {
        let conditions =
            Conditions { rounds: 3, time_s: 1.0, ramp_s: 3.0, ours: "--favour latency", dir: "/srv".to_owned() };
        let text = render(&[outcome(980.0), outcome(950.0), outcome(600.0)], &conditions);
        assert!(text.contains("tmpfs 16") && text.contains("fixed=50") && text.contains("0.60x"), "{text}");
        assert!(text.lines().next().unwrap().contains("behind 3 s, disk in /srv, --favour latency"), "{text}");
        assert!(
            text.ends_with("within 3 % of the fastest fixed window in 1 of 3 cells, within 10 % in 2; worst 0.60x"),
            "{text}"
        );
    }
}
