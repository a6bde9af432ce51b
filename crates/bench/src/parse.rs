//! Values of options: sizes with suffixes and durations.

use std::time::Duration;

/// Parses `4k`, `1.5M`, `512` (bytes; suffixes are powers of 1024).
///
/// # Errors
/// That is no size: says what would be one.
pub fn size(text: &str) -> Result<u64, String> {
    let help = || format!("`{text}` is no size; write bytes with an optional suffix K, M, G or T, such as 4K");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        _ => return Err(help()),
    };
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(|| format!("`{text}` is more than a disk can have"));
    }
    let number: f64 = digits.parse().map_err(|_| help())?;
    let bytes = number * factor as f64;
    if !(0.0..9e18).contains(&bytes) || bytes.fract() != 0.0 {
        return Err(help());
    }
    Ok(bytes as u64)
}

/// Parses a size that must not be zero.
pub(crate) fn positive_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("must be at least 1 byte".into()),
        bytes => Ok(bytes),
    }
}

/// Parses the capacity of a disk: whole MiB.
pub(crate) fn capacity(text: &str) -> Result<u64, String> {
    match positive_size(text)? {
        bytes if bytes.is_multiple_of(1 << 20) => Ok(bytes),
        _ => Err("must be a multiple of 1M".into()),
    }
}

/// Parses the size of a request to a disk.
pub(crate) fn block_size(text: &str) -> Result<u32, String> {
    match u32::try_from(positive_size(text)?) {
        Ok(bytes) if bytes.is_multiple_of(512) && bytes <= 64 << 20 => Ok(bytes),
        _ => Err("must be a multiple of 512 bytes, at most 64M".into()),
    }
}

/// Parses `5`, `5s`, `500ms`, `2m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let help = || format!("`{text}` is no time; write seconds such as 5 or 0.5, or use the suffix ms, s, m or h");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(help()),
    };
    let number: f64 = digits.parse().map_err(|_| help())?;
    Duration::try_from_secs_f64(number * factor).map_err(|_| help())
}

/// Parses a duration that must not be zero.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be more than 0".into()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("4KiB"), Ok(4096));
        assert_eq!(size("1.5M"), Ok(3 << 19));
        assert_eq!(size("2G"), Ok(2 << 30));
        for bad in ["", "k", "4x", "-4k", "1.0001k", "4 k", "nan", "inf", "99999999999G"] {
            assert!(size(bad).is_err(), "{bad:?} must not pass");
        }
        assert!(size("4x").unwrap_err().contains("such as 4K"));
        assert!(positive_size("0").is_err());
    }

    #[test]
    fn durations() {
        assert_eq!(duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "-1", "5d", "nan", "1e30"] {
            assert!(duration(bad).is_err(), "{bad:?} must not pass");
        }
        assert!(positive_duration("0").is_err());
    }
}
