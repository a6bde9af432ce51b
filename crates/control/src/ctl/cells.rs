//! How tables are laid out, and how sizes and times are written in them.

use crate::model::{ByteSize, LatencySummary};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};

/// What stands where there is nothing to show.
pub(super) const NOTHING: &str = "-";

/// A table without lines. Columns whose header begins with `>` are aligned to the right.
pub(super) fn table(headers: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headers.iter().map(|header| Cell::new(header.trim_start_matches('>'))));
    for row in rows {
        table.add_row(row);
    }
    for (column, header) in table.column_iter_mut().zip(headers) {
        column.set_padding((0, 2));
        if header.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    // Padding of the last column is of no use to anyone.
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// Lines of `name  value`, the values aligned.
pub(super) fn facts(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    facts.iter().map(|(name, value)| format!("{name:<width$}  {value}\n")).collect()
}

pub(super) fn or_nothing(value: Option<impl ToString>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), |value| value.to_string())
}

/// A size to read.
pub(super) fn size(bytes: u64) -> String {
    ByteSize(bytes).rounded()
}

/// Seconds as `3d 4h`, `4h 5m`, `5m 6s` or `6s`.
pub(super) fn uptime(seconds: f64) -> String {
    let all = seconds as u64;
    match (all / 86_400, all / 3_600 % 24, all / 60 % 60, all % 60) {
        (0, 0, 0, s) => format!("{s}s"),
        (0, 0, m, s) => format!("{m}m {s}s"),
        (0, h, m, _) => format!("{h}h {m}m"),
        (d, h, _, _) => format!("{d}d {h}h"),
    }
}

/// The age of a request: a storage that answers does so within milliseconds, and one that does not takes minutes.
pub(super) fn age(ms: u64) -> String {
    if ms < 10_000 { format!("{ms} ms") } else { uptime(ms as f64 / 1e3) }
}

/// Three significant digits or so: latencies span seven decades.
pub(super) fn microseconds(us: f64) -> String {
    if us < 100.0 { format!("{us:.1}") } else { format!("{us:.0}") }
}

pub(super) fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / f64::from(1 << 20))
}

pub(super) fn latency_line(latency: &LatencySummary) -> String {
    if latency.count == 0 {
        return NOTHING.to_owned();
    }
    let us = microseconds;
    format!(
        "mean {} µs, p50 {} µs, p90 {} µs, p99 {} µs, p99.9 {} µs, max {} µs",
        us(latency.mean_us),
        us(latency.p50_us),
        us(latency.p90_us),
        us(latency.p99_us),
        us(latency.p999_us),
        us(latency.max_us)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_short() {
        assert_eq!(size(10 << 30), "10G");
        assert_eq!(size((10 << 30) + 512), "10.0G");
        assert_eq!(size(1_000_000), "976.6K");
        assert_eq!(size(0), "0");
        assert_eq!(uptime(59.9), "59s");
        assert_eq!(uptime(3_700.0), "1h 1m");
        assert_eq!(uptime(90_000.0), "1d 1h");
        assert_eq!((age(0), age(9_999), age(75_000)), ("0 ms".into(), "9999 ms".into(), "1m 15s".into()));
        assert_eq!(microseconds(9.96), "10.0");
        assert_eq!(microseconds(12_345.6), "12346");
    }
}
