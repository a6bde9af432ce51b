//! Processor time of processes, from `/proc/PID/stat` (man page proc_pid_stat(5)).

use std::fs;

use anyhow::{Context, Result, ensure};

/// Fields behind the name of the program, from 0: group, and times in clock ticks of the process, of its
/// children that were waited for.
const GROUP: usize = 2;
const TIMES: std::ops::RangeInclusive<usize> = 11..=14;

/// Processor time in seconds of a process and of the children that it waited for. A process that has ended
/// can be asked until it is waited for.
pub(super) fn of_process(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} has gone"))?;
    let (_, time_s) = parse(&stat).with_context(|| format!("/proc/{pid}/stat has another form than expected"))?;
    Ok(time_s)
}

/// Processor time in seconds of all processes of a group, and of those that they waited for.
pub(super) fn of_group(group: u32) -> Result<f64> {
    let mut total_s = 0.0;
    let mut members = 0_usize;
    for entry in fs::read_dir("/proc").context("cannot read /proc")?.flatten() {
        if !entry.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
            continue;
        }
        // A process may end between its name and its figures.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some((of, time_s)) = parse(&stat)
            && of == group
        {
            members += 1;
            total_s += time_s;
        }
    }
    ensure!(members > 0, "process group {group} has gone");
    Ok(total_s)
}

/// Group and time in seconds.
fn parse(stat: &str) -> Option<(u32, f64)> {
    // The name of the program may hold anything, parentheses and spaces too.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let group = fields.get(GROUP)?.parse().ok()?;
    let ticks: u64 = fields.get(TIMES)?.iter().map(|field| field.parse::<u64>().unwrap_or(0)).sum();
    Some((group, ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_added_whatever_the_name() {
        let stat = "7 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 100 20 3 7 20 0 1 0 5";
        let (group, time_s) = parse(stat).unwrap();
        assert_eq!(group, 42);
        let ticks = time_s * rustix::param::clock_ticks_per_second() as f64;
        assert!((ticks - 130.0).abs() < 1e-6, "{ticks}");
        assert_eq!(parse("7 (sh) S 1"), None);
    }

    #[test]
    fn own_group_has_this_process() {
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        let before = of_group(u32::try_from(group).unwrap()).unwrap();
        assert!(before >= of_process(std::process::id()).unwrap() - 0.05);
        assert!(of_group(u32::MAX).is_err());
    }
}
