//! Numbers as people read them.

use crate::stats::{Ratio, Spread};

/// What is shown in the place of a figure that there is none of.
pub const NONE: &str = "-";

/// `1.23M`, `45.6k`, `789`.
pub fn count(value: f64) -> String {
    match value {
        v if v >= 999_950.0 => format!("{:.2}M", v / 1e6),
        v if v >= 99_950.0 => format!("{:.0}k", v / 1e3),
        v if v >= 9_999.5 => format!("{:.1}k", v / 1e3),
        v if v >= 99.95 => format!("{v:.0}"),
        0.0 => "0".to_owned(),
        v => format!("{v:.1}"),
    }
}

/// `640 KiB/s`, `98.6 MiB/s`, `1.95 GiB/s`; `kib` is KiB a second.
pub fn bandwidth(kib: f64) -> String {
    match kib {
        v if v >= 1000.0 * 1024.0 => format!("{:.2} GiB/s", v / 1024.0 / 1024.0),
        v if v >= 1000.0 => format!("{:.1} MiB/s", v / 1024.0),
        v => format!("{v:.0} KiB/s"),
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

/// `4 KiB`, `1.5 GiB`: a size.
pub fn size(bytes: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")];
    let (unit, name) = units.into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1, "B"));
    let value = bytes as f64 / unit as f64;
    if bytes.is_multiple_of(unit) { format!("{value:.0} {name}") } else { format!("{value:.1} {name}") }
}

/// What `show` makes of a figure, or a dash where there is none.
pub fn or_none<T>(figure: Option<T>, show: impl FnOnce(T) -> String) -> String {
    figure.map_or_else(|| NONE.to_owned(), show)
}

/// The median, and the spread of the rounds as a part of it: `45.6k (3%)`.
pub fn with_spread(spread: &Spread, show: impl Fn(f64) -> String) -> String {
    match spread.relative() {
        Some(relative) => format!("{} ({:.0}%)", show(spread.median), relative * 100.0),
        None => show(spread.median),
    }
}

/// The median and the two ends: `45.6k (44.1k..46.0k)`.
pub fn with_range(spread: &Spread, show: impl Fn(f64) -> String) -> String {
    format!("{} ({}..{})", show(spread.median), show(spread.min), show(spread.max))
}

/// `1.32x`; from 100 on without decimals.
pub fn times(ratio: f64) -> String {
    match ratio {
        r if r >= 99.95 => format!("{r:.0}x"),
        r if r >= 9.995 => format!("{r:.1}x"),
        r if r >= 0.0995 => format!("{r:.2}x"),
        r => format!("{r:.3}x"),
    }
}

/// A ratio that is told from noise, with as many decimals as it takes to tell it from 1.
pub fn told(ratio: f64) -> String {
    let short = times(ratio);
    if short == "1.00x" { format!("{ratio:.3}x") } else { short }
}

/// A ratio for a table: `~` before it says that noise hides which side is larger.
pub fn marked(ratio: &Ratio) -> String {
    if ratio.is_hidden() { format!("~{}", times(ratio.value)) } else { told(ratio.value) }
}

/// A ratio with its interval: `1.32x (1.21..1.44)`.
pub fn with_interval(ratio: &Ratio) -> String {
    match ratio.interval {
        Some(interval) => {
            let show = if ratio.is_hidden() { times } else { told };
            let [low, high] = [interval.low, interval.high].map(|end| show(end).trim_end_matches('x').to_owned());
            format!("{} ({low}..{high})", marked(ratio))
        }
        None => marked(ratio),
    }
}

/// `1 workload`, `2 workloads`.
pub fn plural(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// `a`, `a and b`, `a, b and c`.
pub fn list(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Interval;

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!(count(1_234_567.0), "1.23M");
        assert_eq!(count(45_678.0), "45.7k");
        assert_eq!(count(160_000.0), "160k");
        assert_eq!(count(0.0), "0");
        assert_eq!(bandwidth(640.0), "640 KiB/s");
        assert_eq!(bandwidth(100_966.0), "98.6 MiB/s");
        assert_eq!(bandwidth(2_097_152.0), "2.00 GiB/s");
        assert_eq!(time_us(4560.0), "4.56 ms");
        assert_eq!(times(0.012), "0.012x");
        assert_eq!(times(1.318), "1.32x");
        assert_eq!(times(31.25), "31.2x");
        assert_eq!(size(4096), "4 KiB");
        assert_eq!(size(3 << 19), "1.5 MiB");
        assert_eq!(size(100), "100 B");
    }

    #[test]
    fn a_ratio_that_noise_hides_is_marked() {
        let ratio = |low, high| Ratio { value: 1.1, interval: Some(Interval { low, high }) };
        assert_eq!(with_interval(&ratio(1.05, 1.15)), "1.10x (1.05..1.15)");
        assert_eq!(with_interval(&ratio(0.9, 1.3)), "~1.10x (0.90..1.30)");
        assert_eq!(with_interval(&Ratio { value: 1.1, interval: None }), "~1.10x");
        let small = Ratio { value: 1.003, interval: Some(Interval { low: 1.002, high: 1.004 }) };
        assert_eq!(with_interval(&small), "1.003x (1.002..1.004)", "told from 1, so that it must not look like it");
    }

    #[test]
    fn words_are_listed_and_counted() {
        assert_eq!(list(&["a"]), "a");
        assert_eq!(list(&["a", "b", "c"]), "a, b and c");
        assert_eq!(plural(1, "workload"), "1 workload");
        assert_eq!(plural(0, "workload"), "0 workloads");
    }
}
