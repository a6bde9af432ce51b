//! Results for people: one table for all jobs, and the system calls of each kind of request.

use super::contest::{Counted, JobResults};
use super::qemu::KickCost;
use crate::contest::{Ratios, Standing};
use crate::stats::ratio;
use crate::table::Sheet;
use crate::words::{count, marked, or_none, time_us, times, with_interval, with_range};

/// The tables.
pub(crate) fn render(jobs: &[JobResults]) -> String {
    let mut text = medians(jobs).text();
    if jobs.iter().any(|job| !job.results.ratios.is_empty()) {
        text += "\n\nA ratio is that of medians; ~ before it: noise hides which is more.";
    }
    if jobs.iter().any(|job| !job.system_calls.is_empty()) {
        text += &format!("\n\n{}", calls(jobs).text());
    }
    for (job, failure) in jobs.iter().flat_map(|job| job.failures.iter().map(move |failure| (job.job, failure))) {
        text += &format!("\n{}, {}: FAILED: {}", job.name(), failure.contender, failure.error);
    }
    text
}

/// What it costs to tell QEMU of requests, in a line.
pub(crate) fn kick_cost(name: &str, cost: KickCost) -> String {
    let us = |ns: u64| format!("{:.1} us", ns as f64 / 1e3);
    let used =
        cost.server_cpu_ns.map(|ns| format!(", and takes QEMU {} of processor time", us(ns))).unwrap_or_default();
    format!(
        "{name}: a kick without a request is answered after {}{used}: qtest, not subtracted",
        us(cost.round_trip_ns)
    )
}

fn medians(jobs: &[JobResults]) -> Sheet {
    let header =
        ["median (min..max)", "", "ops/s", "MiB/s", "mean", "p50", "p99", "ops/CPU s", "calls/op", "for files"];
    let mut rows = Vec::new();
    for job in jobs {
        for (index, standing) in job.results.medians.iter().enumerate() {
            let name = if index == 0 { job.job.name() } else { "" };
            rows.push(standing_row(name, standing, job.calls_of(&standing.contender)));
        }
        rows.extend(job.results.ratios.iter().map(|ratios| ratio_row(job, ratios)));
    }
    Sheet::new(2, &header, rows)
}

fn standing_row(job: &str, standing: &Standing, calls: Option<&Counted>) -> Vec<String> {
    let moved = Some(standing.mib_per_s.median).filter(|mib_per_s| *mib_per_s > 0.0);
    vec![
        job.to_owned(),
        standing.contender.clone(),
        with_range(&standing.iops, count),
        or_none(moved, count),
        time_us(standing.mean_us.median),
        time_us(standing.p50_us.median),
        time_us(standing.p99_us.median),
        or_none(standing.ops_per_cpu_s, |spread| count(spread.median)),
        or_none(calls, |counted| format!("{:.2}", counted.calls_per_operation)),
        or_none(calls, |counted| format!("{:.2}", counted.file_system_calls_per_operation)),
    ]
}

fn ratio_row(job: &JobResults, ratios: &Ratios) -> Vec<String> {
    let calls = |name: &str| job.calls_of(name).map(|counted| counted.calls_per_operation);
    let of_calls = calls(&ratios.of).zip(calls(&ratios.to)).and_then(|(of, to)| ratio(of, to));
    vec![
        String::new(),
        ratios.name(),
        or_none(ratios.iops.as_ref(), with_interval),
        String::new(),
        or_none(ratios.mean_latency.as_ref(), marked),
        String::new(),
        or_none(ratios.p99_latency.as_ref(), marked),
        or_none(ratios.ops_per_cpu_s.as_ref(), marked),
        or_none(of_calls, times),
        String::new(),
    ]
}

fn calls(jobs: &[JobResults]) -> Sheet {
    let mut rows = Vec::new();
    for (job, counted) in jobs.iter().flat_map(|job| job.system_calls.iter().map(move |counted| (job.job, counted))) {
        for (index, step) in counted.steps.iter().enumerate() {
            let mut names: Vec<(&String, &u64)> = step.calls.iter().collect();
            names.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
            let per_request = |calls: u64| calls as f64 / step.requests.max(1) as f64;
            let shown = names.iter().take(5).map(|(name, calls)| format!("{name} {:.2}", per_request(**calls)));
            let [job, contender] = if index == 0 { [job.name(), &counted.contender] } else { [""; 2] };
            rows.push(vec![
                job.to_owned(),
                contender.to_owned(),
                step.request.to_owned(),
                format!("{:.2}", step.calls_per_request),
                format!("{:.2}", step.file_system_calls_per_request),
                shown.collect::<Vec<_>>().join(", "),
            ]);
        }
    }
    Sheet::new(3, &["system calls a request", "", "", "all", "for files", "most frequent"], rows)
}

#[cfg(test)]
mod tests {
    use super::super::contest::Failure;
    use super::super::job::Job;
    use super::super::session::CountedStep;
    use super::super::syscalls::Tool;
    use super::*;
    use crate::contest::tests::{results as ratings, run};

    fn results() -> Vec<JobResults> {
        let runs = vec![run("ours", 1, 4000.0, 0.5), run("peer", 1, 1000.0, 0.5)];
        let counted = |contender: &str, calls: u64| Counted {
            contender: contender.into(),
            tool: Tool::Perf,
            calls_per_operation: calls as f64,
            file_system_calls_per_operation: 1.0,
            steps: vec![CountedStep::new("GETATTR", (10, 0), 10, [("statx".to_owned(), 10 * calls)].into())],
        };
        vec![JobResults {
            job: Job::Getattr,
            results: ratings(runs),
            system_calls: vec![counted("ours", 1), counted("peer", 4)],
            failures: vec![Failure { contender: "third".into(), error: "GETATTR failed".into() }],
        }]
    }

    #[test]
    fn the_tables_show_figures_ratios_calls_and_failures() {
        let text = render(&results());
        let row = |words: &[&str]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(row(&["getattr", "ours", "4000 (4000..4000)", "1.00"]), "{text}");
        assert!(row(&["ours / peer", "4.00x", "0.25x"]), "{text}");
        assert!(row(&["GETATTR", "statx 1.00"]), "{text}");
        assert!(row(&["getattr, third: FAILED: GETATTR failed"]), "{text}");
    }

    #[test]
    fn the_cost_of_a_kick_is_shown_with_what_is_known_of_it() {
        let line = kick_cost("qemu", KickCost { round_trip_ns: 9120, server_cpu_ns: Some(4000) });
        assert!(line.starts_with("qemu: ") && line.contains("9.1 us") && line.contains("4.0 us"), "{line}");
        let line = kick_cost("qemu", KickCost { round_trip_ns: 9120, server_cpu_ns: None });
        assert!(!line.contains("processor"), "{line}");
    }

    #[test]
    fn json_has_the_calls_by_name() {
        let json = serde_json::to_value(results()).unwrap();
        assert_eq!(json[0]["job"], "getattr");
        assert_eq!(json[0]["ratios"][0]["iops"]["value"], 4.0);
        assert_eq!(json[0]["system_calls"][1]["steps"][0]["calls"]["statx"], 40);
        assert_eq!(json[0]["system_calls"][1]["tool"], "perf");
    }
}
