//! Figures as people read them: thousands apart, three digits that matter, a unit that fits.

/// Groups the digits of a whole number by threes.
pub(super) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A figure with at least three significant digits; whole and grouped from 100 on.
pub(super) fn figure(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "–".to_owned()
    } else if size >= 99.95 {
        let sign = if value < 0.0 { "−" } else { "" };
        // A figure that a u64 does not hold is none that a machine has measured; the cast saturates.
        format!("{sign}{}", grouped(size.round() as u64))
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size >= 0.9995 || size == 0.0 {
        trimmed(format!("{value:.2}"))
    } else if size >= 0.0995 {
        trimmed(format!("{value:.3}"))
    } else if size >= 0.000_995 {
        trimmed(format!("{value:.4}"))
    } else {
        format!("{value:.1e}")
    }
}

/// A figure in three digits and a factor: `12.3 k`, `1.2 M`.
pub(super) fn short(value: f64) -> String {
    let size = value.abs();
    let (factor, letter) = match size {
        _ if size >= 999.5e6 => (1e9, " G"),
        _ if size >= 999.5e3 => (1e6, " M"),
        _ if size >= 9_995.0 => (1e3, " k"),
        _ => (1.0, ""),
    };
    format!("{}{letter}", trimmed(figure(value / factor)))
}

/// A time in microseconds, in the unit that fits it.
pub(super) fn time_us(value: f64) -> String {
    match value {
        _ if value >= 999_500.0 => format!("{} s", figure(value / 1e6)),
        _ if value >= 999.5 => format!("{} ms", figure(value / 1e3)),
        _ => format!("{} µs", figure(value)),
    }
}

/// KiB a second, in the unit that fits it.
pub(super) fn bandwidth(kib_per_s: f64) -> String {
    match kib_per_s {
        _ if kib_per_s >= 1023.5 * 1024.0 => format!("{} GiB/s", figure(kib_per_s / (1024.0 * 1024.0))),
        _ if kib_per_s >= 1023.5 => format!("{} MiB/s", figure(kib_per_s / 1024.0)),
        _ => format!("{} KiB/s", figure(kib_per_s)),
    }
}

/// How many times the other: `1.42×`.
pub(super) fn ratio(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "–".to_owned()
    } else if size >= 9.995 {
        format!("{}×", figure(value))
    } else if size >= 0.0995 {
        format!("{value:.2}×")
    } else {
        format!("{}×", trimmed(format!("{value:.3}")))
    }
}

/// A share of one, in per cent.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        value if !value.is_finite() => "–".to_owned(),
        value if value >= 9.95 => format!("{value:.0} %"),
        value => format!("{value:.1} %"),
    }
}

/// Without zeros that say nothing.
fn trimmed(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_stand_in_threes() {
        for (value, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(value), text);
        }
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn a_figure_has_the_digits_that_matter() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (99.96, "100"),
            (123.4, "123"),
            (-4567.8, "−4,568"),
            (0.5, "0.5"),
            (0.01234, "0.0123"),
            (0.000_012, "1.2e-5"),
            (f64::NAN, "–"),
            (f64::INFINITY, "–"),
        ] {
            assert_eq!(figure(value), text, "{value}");
        }
    }

    #[test]
    fn factors_change_where_the_digits_would() {
        for (value, text) in [
            (9_994.0, "9,994"),
            (12_345.0, "12.3 k"),
            (999_499.0, "999 k"),
            (999_600.0, "1 M"),
            (2_434_000.0, "2.43 M"),
            (3.0e9, "3 G"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn units_fit() {
        assert_eq!(time_us(85.0), "85.0 µs");
        assert_eq!(time_us(1234.0), "1.23 ms");
        assert_eq!(time_us(2_500_000.0), "2.5 s");
        assert_eq!(bandwidth(512.0), "512 KiB/s");
        assert_eq!(bandwidth(640_000.0), "625 MiB/s");
        assert_eq!(bandwidth(3.5 * 1024.0 * 1024.0), "3.5 GiB/s");
        assert_eq!(ratio(1.417), "1.42×");
        assert_eq!(ratio(123.4), "123×");
        assert_eq!(ratio(0.0123), "0.012×");
        assert_eq!(percent(0.0312), "3.1 %");
        assert_eq!(percent(0.31), "31 %");
    }
}
