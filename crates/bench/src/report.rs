//! Figures for people: tables and numbers in a form that can be read at a glance.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use crate::frontend::{Report, Spec};
use crate::parse;
use crate::stats::ratio;

/// `1.23M`, `45.6k`, `789`.
pub fn count(value: f64) -> String {
    match value {
        v if v >= 999_950.0 => format!("{:.2}M", v / 1e6),
        v if v >= 9_999.5 => format!("{:.1}k", v / 1e3),
        v if v >= 99.95 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

/// `12.3 us`, `4.56 ms`, `1.20 s`.
pub fn time_us(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{:.2} s", us / 1e6),
        us if us >= 1e4 => format!("{:.1} ms", us / 1e3),
        us if us >= 1e3 => format!("{:.2} ms", us / 1e3),
        us => format!("{us:.1} us"),
    }
}

/// `1.23x`, or a dash.
pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}x"))
}

/// Requests a second of the server's CPU time.
pub fn ops_per_cpu_s(report: &Report) -> Option<f64> {
    ratio(report.ops as f64, report.server?.cpu_s())
}

/// What a load does, in a line.
pub fn describe(spec: &Spec) -> String {
    let mut words = format!(
        "{} {}, depth {}, {} queue{}",
        spec.rw.name(),
        parse::show_size(u64::from(spec.block_bytes)),
        spec.depth,
        spec.queues,
        if spec.queues == 1 { "" } else { "s" }
    );
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

/// An empty table in the house's style: aligned columns, no lines, numbers to the right.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().copied());
    for column in table.column_iter_mut() {
        let side = if column.index == 0 { CellAlignment::Left } else { CellAlignment::Right };
        column.set_cell_alignment(side);
        column.set_padding((0, 2));
    }
    table
}

/// One run, a line a figure.
pub fn summary(report: &Report) -> String {
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
    fn numbers_keep_three_digits() {
        assert_eq!(count(1_234_567.0), "1.23M");
        assert_eq!(count(45_678.0), "45.7k");
        assert_eq!(count(1234.0), "1234");
        assert_eq!(count(0.0), "0.0");
        assert_eq!(time_us(12.34), "12.3 us");
        assert_eq!(time_us(4560.0), "4.56 ms");
        assert_eq!(time_us(1.2e6), "1.20 s");
        assert_eq!(times(Some(1.5)), "1.50x");
        assert_eq!(times(None), "-");
    }

    #[test]
    fn a_load_is_described_by_what_is_special() {
        assert_eq!(describe(&Spec::default()), "randread 4 KiB, depth 128, 1 queue");
        let spec = Spec { rw: Rw::RandRw, queues: 2, flush_every: 8, verify: true, ..Spec::default() };
        assert_eq!(describe(&spec), "randrw 4 KiB, depth 128, 2 queues, 70 % reads, flush every 8 writes, verified");
    }
}
