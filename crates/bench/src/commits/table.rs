//! Results for people.

use super::environment::Environment;
use super::measure::Run;
use super::results::{Ratio, Results, Standing};
use crate::contest::{trim_lines, with_range};
use crate::report::{count, table, time_us, times};

const HEADER: [&str; 9] = [
    "in flight",
    "median (min..max)",
    "writes/s",
    "mean",
    "p99",
    "CPU a write",
    "requests a commit",
    "volume against it",
    "expected",
];

/// A line when a run has ended.
pub(super) fn run_line(what: &str, run: &Run, rounds: u32) -> String {
    let mut line = format!(
        "{}/{rounds} {what:36} {:>8} writes/s, mean {}, p99 {}",
        run.round,
        count(run.writes_per_s),
        time_us(run.mean_us),
        time_us(run.p99_us)
    );
    if let Some(requests) = run.volume.and_then(|volume| volume.requests_a_commit()) {
        line += &format!(", {} requests a commit", count(requests));
    }
    if !run.is_clean() {
        line += &format!(", {} ERRORS", run.errors);
    }
    line
}

/// The tables, one a row, and what failed.
pub(super) fn render(results: &[Results], environment: &Environment, rounds: u32) -> String {
    let mut text = format!(
        "{} on {} processors, Linux {}; {rounds} rounds\n",
        environment.file_system, environment.processors, environment.kernel
    );
    for group in results.chunk_by(|one, next| one.row == next.row) {
        let Some(first) = group.first() else { continue };
        text += &format!("\n{}\n{}\n", first.title, row_table(group));
    }
    for results in results {
        for run in results.runs.iter().filter(|run| !run.is_clean()) {
            let fault = run.faults.first().map_or("a commit or a write-back failed", String::as_str);
            text += &format!("\n{} {}, {}, round {}: {fault}", results.row, results.depth, run.side, run.round);
        }
    }
    trim_lines(&text)
}

fn row_table(group: &[Results]) -> comfy_table::Table {
    let mut table = table(&HEADER);
    for results in group {
        for (index, standing) in results.sides.iter().enumerate() {
            let depth = if index == 0 { results.depth.to_string() } else { String::new() };
            table.add_row(cells(depth, standing));
        }
    }
    table
}

fn cells(depth: String, standing: &Standing) -> [String; 9] {
    let dash = || "-".to_owned();
    [
        depth,
        standing.side.to_owned(),
        with_range(&standing.writes_per_s, count),
        time_us(standing.mean_us.median),
        time_us(standing.p99_us.median),
        standing.cpu_us_per_write.map_or_else(dash, |spread| time_us(spread.median)),
        standing.requests_a_commit.map_or_else(dash, |spread| count(spread.median)),
        standing.ratio.as_ref().map_or_else(dash, against),
        standing.ratio.and_then(|ratio| ratio.expected).map_or_else(dash, |expected| times(Some(expected))),
    ]
}

fn against(ratio: &Ratio) -> String {
    let shown = |value| times(Some(value));
    let mark = if ratio.is_short() { " below" } else { "" };
    format!("{} ({}..{}){mark}", shown(ratio.medians), shown(ratio.rounds.min), shown(ratio.rounds.max))
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{results, run};
    use super::*;

    fn rendered(runs: Vec<Run>) -> String {
        let environment = Environment { kernel: "6.18".into(), processors: 2, file_system: "ext4 on /dev/vda".into() };
        render(&[results(runs)], &environment, 1)
    }

    #[test]
    fn a_row_shows_its_figures_and_what_falls_short() {
        let text = rendered(vec![run("volume", 1, 300.0), run("peer", 1, 200.0)]);
        let line = |start: &str| text.lines().find(|line| line.contains(start)).unwrap_or_else(|| panic!("{text}"));
        assert!(line("volume  ").contains("300 (300..300)") && line("volume  ").contains("7.5"), "{text}");
        assert!(line("peer").contains("1.50x (1.50x..1.50x) below"), "{text}");
        assert!(line("peer").trim_end().ends_with("2.00x"), "{text}");
        assert!(text.starts_with("ext4 on /dev/vda on 2 processors"), "{text}");
        let text = rendered(vec![run("volume", 1, 400.0), run("peer", 1, 200.0)]);
        assert!(!text.contains("below"), "{text}");
    }

    #[test]
    fn faults_are_shown() {
        let mut bad = run("peer", 1, 200.0);
        bad.errors = 1;
        bad.faults = vec!["write at offset 0: I/O error".into()];
        assert!(run_line("disk 8, peer", &bad, 3).ends_with(", 1 ERRORS"));
        let text = rendered(vec![run("volume", 1, 300.0), bad]);
        assert!(text.contains("disk 8, peer, round 1: write at offset 0: I/O error"), "{text}");
    }
}
