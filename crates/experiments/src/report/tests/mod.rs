//! Reports of runs that are made up: every outcome, every form of table, and what is said about them.

mod compare;
mod data;
mod reading;
mod shipped;
mod summary;
mod tables;

use serde_json::json;

use super::Report;
use crate::experiment::{Experiment, Published, PublishedFigure};
use crate::record::{Environment, Figures, Header, Latency, Outcome, Run, SCHEMA, Sample};

/// An experiment of `configurations`, each a name with its labels, and of `workloads`; the first configuration is the baseline.
fn experiment(configurations: &[(&str, &[(&str, &str)])], workloads: &[&str]) -> Experiment {
    let configurations: Vec<serde_json::Value> = configurations
        .iter()
        .map(|(name, labels)| {
            let labels: std::collections::BTreeMap<&str, &str> = labels.iter().copied().collect();
            json!({
                "name": name, "labels": labels, "place": "frontend", "server": {"kind": "vringd-disk"},
                "data": {"medium": "memory", "files": 1, "size_mib": 64},
                "guest": {"processors": 1, "memory_mib": 64, "queues": 1},
            })
        })
        .collect();
    let workloads: Vec<serde_json::Value> = workloads.iter().map(|name| json!({ "name": name })).collect();
    let text = json!({
        "name": "example", "title": "an example", "claim": "Two are faster than one.", "source": "a note",
        "rounds": 3, "order": "rotating", "time_s": 1.0, "warm_up_s": 0.1, "drop_caches": "none",
        "baseline": configurations[0]["name"], "configurations": configurations, "workloads": workloads, "published": null,
    });
    serde_json::from_value(text).unwrap()
}

/// An experiment of plain configurations.
fn plain(configurations: &[&str], workloads: &[&str]) -> Experiment {
    let unlabelled: Vec<(&str, &[(&str, &str)])> = configurations.iter().map(|name| (*name, &[][..])).collect();
    experiment(&unlabelled, workloads)
}

/// A run of three rounds; `outcome` is given configuration, workload and round.
fn run(experiment: Experiment, outcome: impl Fn(&str, &str, u32) -> Option<Outcome>) -> Run {
    let mut samples = Vec::new();
    for round in 1..=experiment.rounds {
        for configuration in &experiment.configurations {
            for workload in &experiment.workloads {
                samples.extend(outcome(&configuration.name, &workload.name, round).map(|outcome| Sample {
                    round,
                    configuration: configuration.name.clone(),
                    workload: workload.name.clone(),
                    outcome,
                }));
            }
        }
    }
    let header = Header {
        schema: SCHEMA,
        vringd: "0.1.0".into(),
        quick: false,
        begun: "2026-11-21T12:00:00Z".into(),
        environment: Environment { kernel: "6.12".into(), processors: 2, ..Environment::default() },
        experiment,
    };
    Run { header, samples }
}

/// A second in which `iops` requests of 4 KiB completed.
fn measured(iops: f64) -> Option<Outcome> {
    let us = 1e6 / iops;
    let latency = Latency {
        count: 1,
        mean_us: us,
        p50_us: us,
        p90_us: 2.0 * us,
        p99_us: 3.0 * us,
        p999_us: 4.0 * us,
        max_us: 9.0 * us,
    };
    Some(Outcome::Measured(Figures {
        seconds: 1.0,
        requests: iops as u64,
        iops,
        kib_per_s: 4.0 * iops,
        latency,
        server_cpu_s: Some(0.5),
        guest_cpu_s: Some(0.3),
    }))
}

/// A little noise, another one for each round and configuration, that is the same each time: within ±1 %.
fn noise(configuration: &str, round: u32) -> f64 {
    let seed = configuration.bytes().fold(round, |seed, byte| seed.wrapping_mul(31).wrapping_add(u32::from(byte)));
    1.0 + f64::from(seed % 201) / 10_000.0 - 0.01
}

fn failed(reason: &str) -> Option<Outcome> {
    Some(Outcome::Failed { reason: reason.into() })
}

fn unsupported(reason: &str) -> Option<Outcome> {
    Some(Outcome::Unsupported { reason: reason.into() })
}

fn published(baseline: &str, figures: &[(&str, &str, f64)]) -> Option<Published> {
    let figure = |(configuration, workload, value): &(&str, &str, f64)| PublishedFigure {
        configuration: (*configuration).into(),
        workload: (*workload).into(),
        their_configuration: format!("their {configuration}"),
        value: *value,
    };
    Some(Published {
        source: "a table".into(),
        baseline: baseline.into(),
        unit: "kIOPS".into(),
        figures: figures.iter().map(figure).collect(),
    })
}

/// A run with everything: `one` is the baseline, `two` is twice as fast on reads and half as fast on writes, `same` is equal,
/// `broken` fails, `absent` cannot be run, and `flaky` fails in its second round.
fn full() -> Run {
    let mut experiment = plain(&["one", "two", "same", "broken", "absent", "flaky"], &["read", "write"]);
    experiment.published = published(
        "one",
        &[
            ("one", "read", 100.0),
            ("two", "read", 180.0),
            ("two", "write", 40.0),
            ("same", "read", 101.0),
            ("absent", "read", 0.0),
            ("one", "write", 20.0),
        ],
    );
    run(experiment, |configuration, workload, round| {
        let noise = noise(configuration, round);
        match (configuration, workload) {
            ("two", "read") => measured(20_000.0 * noise),
            ("two", "write") => measured(5_000.0 * noise),
            ("broken", _) => failed("the server ended: no space"),
            ("absent", _) => unsupported("ninepd was not found"),
            ("flaky", _) if round == 2 => failed("the guest did not answer within 9 s"),
            _ => measured(10_000.0 * noise),
        }
    })
}

/// A run along an axis of jobs: one worker gains half as much again, a worker for each queue gains with the queues.
fn workers() -> Run {
    let points = ["1", "2", "4", "16"].iter().flat_map(|jobs| ["one", "per-queue"].map(|workers| (workers, *jobs)));
    let named: Vec<(String, [(&str, &str); 2])> =
        points.map(|(workers, jobs)| (format!("{workers}-{jobs}"), [("jobs", jobs), ("workers", workers)])).collect();
    let configurations: Vec<(&str, &[(&str, &str)])> =
        named.iter().map(|(name, labels)| (name.as_str(), &labels[..])).collect();
    run(experiment(&configurations, &["batch-1", "batch-16"]), |configuration, _, round| {
        let (workers, jobs) = configuration.rsplit_once('-').unwrap();
        let jobs: f64 = jobs.parse().unwrap();
        let gain = if workers == "one" { jobs.sqrt().min(1.5) } else { jobs };
        measured(10_000.0 * gain * noise(configuration, round))
    })
}

fn report(run: Run) -> Report {
    Report::of(run)
}
