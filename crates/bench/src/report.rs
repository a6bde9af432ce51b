//! One run for people: what the load does, and a line a figure.

use crate::frontend::{Protocol, Report, Spec};
use crate::stats::ratio;
use crate::words::{self, count, plural, time_us};

/// Requests a second of the server's CPU time.
pub(crate) fn ops_per_cpu_s(report: &Report) -> Option<f64> {
    ratio(report.ops as f64, report.server?.cpu_s())
}

/// What a load does, in a line.
pub(crate) fn describe(spec: &Spec) -> String {
    let mut words = format!(
        "{} {}, depth {}, {}",
        spec.rw.name(),
        words::size(u64::from(spec.block_bytes)),
        spec.depth,
        plural(spec.queues.into(), spec.protocol.queue_word())
    );
    if spec.protocol != Protocol::VhostUser {
        words = format!("{}, {words}", spec.protocol);
    }
    if matches!(spec.rw.read_percent(spec.mix), 1..=99) {
        words += &format!(", {} % reads", spec.mix);
    }
    if spec.batch > 1 {
        words += &format!(", batches of {}", spec.batch);
    }
    if spec.flush_every > 0 {
        words += &format!(", flush every {} writes", spec.flush_every);
    }
    for (is_set, word) in [(spec.sync, ", synchronous"), (spec.verify, ", verified"), (spec.poll, ", polling")] {
        words += if is_set { word } else { "" };
    }
    words
}

/// One run, a line a figure.
pub(crate) fn summary(report: &Report) -> String {
    let latency = &report.latency;
    let mut lines = vec![
        (
            "requests",
            format!("{} in {:.2} s ({} reads, {} writes)", report.ops, report.seconds, report.reads, report.writes),
        ),
        ("rate", format!("{} IOPS, {:.1} MiB/s", count(report.iops), report.mib_per_s)),
        ("latency", latency_line(latency)),
    ];
    if report.flushes > 0 {
        lines.push(("flushes", format!("{}: {}", report.flushes, latency_line(&report.flush_latency))));
    }
    lines.push(("longest gap", time_us(report.worst_gap_us())));
    if let Some(server) = &report.server {
        let switches = server.switches();
        lines.push(("server CPU", format!("{:.2} s user, {:.2} s system", server.user_s, server.system_s)));
        lines.push(("", format!("{} requests a CPU second", count(ops_per_cpu_s(report).unwrap_or(0.0)))));
        let per_s = ratio(switches as f64, report.seconds).unwrap_or(0.0);
        lines.push(("server switches", format!("{switches}, {} a second", count(per_s))));
    }
    lines.push(("frontend CPU", format!("{:.2} s", report.load_cpu_s)));
    lines.push(("errors", format!("{} errors, {} mismatches", report.errors, report.mismatches)));
    let mut text: Vec<String> = lines.iter().map(|(name, value)| format!("{name:16}{value}")).collect();
    text.extend(report.faults.iter().map(|fault| format!("{:16}{fault}", "")));
    text.join("\n")
}

fn latency_line(latency: &crate::stats::Latency) -> String {
    format!(
        "mean {}, p50 {}, p99 {}, p99.9 {}, max {}",
        time_us(latency.mean_us),
        time_us(latency.p50_us),
        time_us(latency.p99_us),
        time_us(latency.p999_us),
        time_us(latency.max_us)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontend::Rw;

    #[test]
    fn a_load_is_described_by_what_is_special() {
        assert_eq!(describe(&Spec::default()), "randread 4 KiB, depth 128, 1 queue");
        let nbd = Spec { protocol: Protocol::Nbd, ..Spec::default() };
        assert_eq!(describe(&nbd), "nbd, randread 4 KiB, depth 128, 1 connection");
        let spec = Spec { rw: Rw::RandRw, queues: 2, flush_every: 8, verify: true, ..Spec::default() };
        assert_eq!(describe(&spec), "randrw 4 KiB, depth 128, 2 queues, 70 % reads, flush every 8 writes, verified");
    }
}
