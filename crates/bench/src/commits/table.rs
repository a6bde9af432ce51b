//! Results for people.

use super::Outcome;
use crate::contest::{Ratios, Standing};
use crate::environment::Environment;
use crate::table::Sheet;
use crate::words::{count, or_none, time_us, times, with_interval, with_range};

const HEADER: [&str; 9] = [
    "in flight",
    "median (min..max)",
    "writes/s",
    "mean",
    "p99",
    "CPU a write",
    "requests a commit",
    "volume against it (~: noise hides it)",
    "expected",
];

/// The tables, one a row, and what failed.
pub(super) fn render(rows: &[Outcome], environment: &Environment, rounds: u32) -> String {
    let mut text = format!(
        "{} on {} processors, Linux {}; {rounds} rounds\n",
        environment.file_system, environment.processors, environment.kernel
    );
    for group in rows.chunk_by(|one, next| one.row == next.row) {
        let Some(first) = group.first() else { continue };
        text +=
            &format!("\n{}\n{}\n", first.title, Sheet::new(2, &HEADER, group.iter().flat_map(cells).collect()).text());
    }
    text += &rows.iter().map(|row| row.results.faults(&format!("{} {}, ", row.row, row.depth))).collect::<String>();
    text
}

fn cells(row: &Outcome) -> Vec<Vec<String>> {
    let depths = std::iter::once(row.depth.to_string()).chain(std::iter::repeat(String::new()));
    let cells = |(depth, standing): (String, &Standing)| {
        let ratios = row.results.ratios_to(&standing.contender);
        vec![
            depth,
            standing.contender.clone(),
            with_range(&standing.iops, count),
            time_us(standing.mean_us.median),
            time_us(standing.p99_us.median),
            or_none(standing.ops_per_cpu_s, |spread| time_us(1e6 / spread.median)),
            or_none(standing.requests_a_commit, |spread| count(spread.median)),
            or_none(ratios, against),
            or_none(ratios.and_then(|ratios| ratios.expected), times),
        ]
    };
    depths.zip(&row.results.medians).map(cells).collect()
}

fn against(ratios: &Ratios) -> String {
    let mark = if ratios.is_short() { " below" } else { "" };
    or_none(ratios.iops.as_ref(), with_interval) + mark
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commits::Figures;
    use crate::contest::tests::{results, run};
    use crate::contest::{Measured, Run};

    fn rendered(runs: Vec<Run>) -> String {
        let environment = Environment { kernel: "6.18".into(), processors: 2, file_system: "ext4 on /dev/vda".into() };
        render(&[Outcome { row: "disk", title: "disk: writes", depth: 8, results: results(runs) }], &environment, 1)
    }

    fn volume(iops: f64) -> Run {
        let run = run("ours", 1, iops, 1.0);
        let volume = Some(Figures { commits: 10, committed_requests: 75, ..Figures::default() });
        Run { measured: Measured { volume, ..run.measured }, ..run }
    }

    #[test]
    fn a_row_shows_its_figures_and_what_falls_short() {
        let text = rendered(vec![volume(300.0), run("peer", 1, 200.0, 1.0)]);
        let line = |start: &str| text.lines().find(|line| line.contains(start)).unwrap_or_else(|| panic!("{text}"));
        assert!(line("ours  ").contains("300 (300..300)") && line("ours  ").contains("7.5"), "{text}");
        assert!(line("peer").contains("~1.50x below") && line("peer").contains("5.00 ms"), "{text}");
        assert!(line("peer").ends_with("2.00x"), "{text}");
        assert!(text.starts_with("ext4 on /dev/vda on 2 processors"), "{text}");
        let text = rendered(vec![volume(400.0), run("peer", 1, 200.0, 1.0)]);
        assert!(!text.contains("below"), "{text}");
    }

    #[test]
    fn faults_are_shown() {
        let mut bad = run("peer", 1, 200.0, 1.0);
        bad.measured.report.errors = 1;
        bad.measured.report.faults = vec!["write at offset 0: I/O error".into()];
        let text = rendered(vec![volume(300.0), bad]);
        assert!(text.contains("disk 8, peer, round 1: write at offset 0: I/O error"), "{text}");
    }
}
