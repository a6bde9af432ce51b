//! Results for people.

use super::Outcome;
use super::cell::Regret;
use crate::stats::Spread;
use crate::table::Sheet;
use crate::words::{NONE, count, or_none, times};

const HEADER: [&str; 9] = [
    "storage, in flight",
    "policy, requests/s",
    "to the best",
    "which is",
    "to itself again",
    "p99 to the shortest",
    "CPU a request",
    "to the cheapest",
    "which is",
];

/// The table, its summary, and what failed.
pub(super) fn render(outcomes: &[Outcome], rounds: u32) -> String {
    let regrets: Vec<&Regret> = outcomes.iter().filter_map(|outcome| outcome.regret.as_ref()).collect();
    let rows = outcomes.iter().map(cells).collect();
    let within = |least: f64| regrets.iter().filter(|regret| regret.rate >= least).count();
    let worst = regrets.iter().map(|regret| regret.rate).fold(f64::INFINITY, f64::min);
    let mut text = format!("4 KiB random reads, 1 queue, {rounds} rounds\n\n{}", Sheet::new(1, &HEADER, rows).text());
    if !regrets.is_empty() {
        text += &format!(
            "\n\nwithin 3 % of the best fixed window in {} of {} cells, within 10 % in {}; worst {}",
            within(0.97),
            regrets.len(),
            within(0.9),
            times(worst)
        );
    }
    text + &outcomes.iter().map(|outcome| outcome.results.faults(&format!("{}, ", outcome.cell))).collect::<String>()
}

fn cells(outcome: &Outcome) -> Vec<String> {
    let policy = outcome.results.medians.first();
    let regret = outcome.regret.as_ref();
    let ratio = |of: fn(&Regret) -> f64| or_none(regret.map(of), times);
    let cost_us = policy.and_then(|policy| policy.ops_per_cpu_s).map(|spread: Spread| 1e6 / spread.median);
    vec![
        outcome.cell.to_string(),
        or_none(policy, |policy| count(policy.iops.median)),
        ratio(|regret| regret.rate),
        or_none(regret, |regret| regret.best.clone()),
        ratio(|regret| regret.noise),
        ratio(|regret| regret.p99),
        or_none(cost_us, |us| format!("{us:.1} us")),
        or_none(regret.and_then(|regret| regret.cpu), times),
        regret.and_then(|regret| regret.cheapest.clone()).unwrap_or_else(|| NONE.to_owned()),
    ]
}
