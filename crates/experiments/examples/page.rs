//! Writes a page of made-up runs of the shipped experiments, to look at: `cargo run -p experiments --example page -- FILE [NAME…]`.
//!
//! The names are those of the experiments; the figures are constructed and mean nothing. Some fail, for the look of it.

use std::path::PathBuf;

use anyhow::Context as _;
use experiments::experiment::{Configuration, Experiment, ServerKind, shipped};
use experiments::record::{Environment, Figures, Header, Latency, Outcome, Run, SCHEMA, Sample};
use experiments::report::{Report, page};

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().context("say where to: page FILE [NAME…]")?);
    let names: Vec<String> = arguments.collect();
    let wanted = |experiment: &Experiment| names.is_empty() || names.contains(&experiment.name);
    let experiments = shipped::all()?.into_iter().filter(wanted);
    let reports: Vec<Report> = experiments.map(|experiment| Report::of(made_up(experiment))).collect();
    std::fs::write(&path, page::page(&reports)?).with_context(|| format!("cannot write {}", path.display()))
}

/// Every round of everything, with noise.
fn made_up(experiment: Experiment) -> Run {
    let mut samples = Vec::new();
    for round in 1..=experiment.rounds {
        for workload in &experiment.workloads {
            for configuration in &experiment.configurations {
                let outcome = outcome(round, configuration, &workload.name);
                let (configuration, workload) = (configuration.name.clone(), workload.name.clone());
                samples.push(Sample { round, configuration, workload, outcome });
            }
        }
    }
    let environment = Environment {
        kernel: "6.18.0".to_owned(),
        processor: "a processor that does not exist".to_owned(),
        processors: 2,
        nodes: 1,
        memory_mib: 23_980,
        storage: vec!["disk: ext4 on a virtio disk".to_owned(), "memory: tmpfs".to_owned()],
        programs: vec!["vringd 0.1.0".to_owned(), "virtiofsd 1.14.0".to_owned(), "fio 3.39".to_owned()],
        accelerator: "tcg".to_owned(),
    };
    let quick = experiment.name == "equals";
    let begun = "2026-11-21T17:30:00Z".to_owned();
    let header = Header { schema: SCHEMA, vringd: "0.1.0".to_owned(), quick, begun, environment, experiment };
    Run { header, samples }
}

fn outcome(round: u32, configuration: &Configuration, workload: &str) -> Outcome {
    if let Some(reason) = &configuration.unsupported {
        return Outcome::Unsupported { reason: reason.clone() };
    }
    let name = configuration.name.as_str();
    let fails = chance(&[name, workload, "fails"]);
    if fails < 0.004 {
        return Outcome::Failed { reason: "the server ended with signal 6 during the measurement".to_owned() };
    }
    if fails < 0.01 && round == 2 {
        return Outcome::Failed { reason: "the guest said nothing for 60 s".to_owned() };
    }
    // More of whatever is counted brings more, up to a limit.
    let numbers = configuration.labels.values().filter_map(|value| value.parse::<f64>().ok());
    let counted = numbers.fold(1.0_f64, f64::max).min(2.0 + 20.0 * chance(&[name.split(' ').next().unwrap_or("")]));
    let noise = around(name, &format!("{workload} {round}"), 0.03);
    let iops = 9_000.0 * counted * around(workload, "", 0.7) * around(name, workload, 0.2) * noise;
    let median_us = 1e6 * 16.0 / iops;
    let tail = 1.5 + 3.0 * chance(&[name, workload, "tail"]);
    let latency = Latency {
        count: 1,
        mean_us: median_us * 1.1,
        p50_us: median_us,
        p90_us: median_us * tail,
        p99_us: median_us * tail.powi(2),
        p999_us: median_us * tail.powi(3) * noise,
        max_us: median_us * 200.0,
    };
    Outcome::Measured(Figures {
        seconds: 5.0,
        requests: (iops * 5.0) as u64,
        iops,
        kib_per_s: iops * 4.0,
        latency,
        server_cpu_s: (configuration.server.kind != ServerKind::None).then_some(2.0 + 2.0 * chance(&[name, "cpu"])),
        guest_cpu_s: Some(3.0 + chance(&[workload, "cpu"])),
    })
}

/// A factor around 1, as far from it as `sigma` says, always the same for the same names.
fn around(one: &str, other: &str, sigma: f64) -> f64 {
    (3.0 * sigma * (chance(&[one, other]) + chance(&[other, one, "again"]) - 1.0)).exp()
}

/// A number in 0 .. 1, always the same for the same names (FNV-1a, stirred).
fn chance(names: &[&str]) -> f64 {
    let bytes = names.iter().flat_map(|name| name.bytes().chain([0]));
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let stirred = (hash ^ (hash >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (stirred >> 11) as f64 / (1_u64 << 53) as f64
}
