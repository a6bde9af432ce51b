//! Medians and ratios.

use std::fmt::Write;

use serde::Serialize;

/// One run of one job.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Run {
    /// What fio moved, reads and writes together.
    pub(crate) kib_per_s: f64,
    /// How many blocks of 4 KiB that were.
    pub(crate) requests: f64,
    /// What the server took for it, all its threads.
    pub(crate) server_cpu_s: f64,
}

/// All runs of one job.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Series {
    job: String,
    ours: Vec<Run>,
    theirs: Vec<Run>,
}

/// All runs of all jobs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Results {
    /// Whether virtiofsd was on both sides.
    equals: bool,
    series: Vec<Series>,
    /// Ratio of medians, ours to theirs, in the order of `series`.
    ratios: Vec<f64>,
    geometric_mean: f64,
    least: f64,
}

impl Series {
    pub(crate) fn new(job: String) -> Self {
        Self { job, ours: Vec::new(), theirs: Vec::new() }
    }

    /// Adds a run of the first side or the second.
    pub(crate) fn push(&mut self, side: usize, run: Run) {
        if side == 0 { &mut self.ours } else { &mut self.theirs }.push(run);
    }

    /// What the last round of it brought.
    pub(crate) fn last(&self) -> String {
        let speed = |runs: &[Run]| runs.last().map_or(0.0, |run| run.kib_per_s / 1024.0);
        format!("{}: {:.1} against {:.1} MiB/s", self.job, speed(&self.ours), speed(&self.theirs))
    }

    fn ratio(&self) -> f64 {
        speed(&self.ours) / speed(&self.theirs)
    }

    /// Requests a second of the server's processor time.
    fn efficiency_ratio(&self) -> f64 {
        efficiency(&self.ours) / efficiency(&self.theirs)
    }
}

impl Results {
    pub(crate) fn new(equals: bool, series: Vec<Series>) -> Self {
        let ratios: Vec<f64> = series.iter().map(Series::ratio).collect();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        Self { equals, geometric_mean: geometric_mean(&ratios), least, ratios, series }
    }
}

/// The table for people.
pub(crate) fn table(results: &Results) -> String {
    let ours = if results.equals { "virtiofsd" } else { "vringd" };
    let mut text = format!(
        "{:<24} {ours:>12} {:>12} {:>7} {:>9} {:>9}\n{:<24} {:>12} {:>12}\n",
        "", "virtiofsd", "ratio", "per CPU", "spread", "job (medians)", "MiB/s", "MiB/s"
    );
    for series in &results.series {
        writeln!(
            text,
            "{:<24} {:>12.1} {:>12.1} {:>7.2} {:>9.2} {:>8.0}%",
            series.job,
            speed(&series.ours) / 1024.0,
            speed(&series.theirs) / 1024.0,
            series.ratio(),
            series.efficiency_ratio(),
            100.0 * spread(&series.ours).max(spread(&series.theirs)),
        )
        .expect("writing to a string cannot fail");
    }
    writeln!(
        text,
        "geometric mean of {} ratios {:.3}, least {:.3}; per CPU: requests a second of the server's processor time; \
         spread: of the server with the wider one, (most - least) / median",
        results.ratios.len(),
        results.geometric_mean,
        results.least
    )
    .expect("writing to a string cannot fail");
    text
}

fn speed(runs: &[Run]) -> f64 {
    median(runs.iter().map(|run| run.kib_per_s).collect())
}

fn efficiency(runs: &[Run]) -> f64 {
    // Less than a tick of the clock cannot be told from one.
    median(runs.iter().map(|run| run.requests / run.server_cpu_s.max(0.01)).collect())
}

fn spread(runs: &[Run]) -> f64 {
    let speeds = || runs.iter().map(|run| run.kib_per_s);
    (speeds().fold(0.0, f64::max) - speeds().fold(f64::INFINITY, f64::min)) / speed(runs)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_means() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!((geometric_mean(&[2.0, 8.0]) - 4.0).abs() < 1e-12);
    }

    #[test]
    fn ratios_are_ours_to_theirs() {
        let run = |kib_per_s| Run { kib_per_s, requests: 100.0, server_cpu_s: 1.0 };
        let mut series = Series::new("one".to_owned());
        series.push(0, run(300.0));
        series.push(1, run(100.0));
        let results = Results::new(false, vec![series]);
        assert_eq!(results.ratios, [3.0]);
        assert_eq!(results.least, 3.0);
        assert!(table(&results).contains("3.00"));
    }
}
