//! Processor time of processes, from `/proc` (proc_pid_stat(5)).

use std::fs;

/// Generations that are followed: a server that forks does so once.
const DEPTH_MAX: u32 = 4;

/// Processor time of a process, of all its threads, and of its children that live or were waited for, in s. `None` when
/// it is gone.
pub(super) fn of_tree(pid: u32) -> Option<f64> {
    let ticks = ticks_of_tree(pid, DEPTH_MAX)?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn ticks_of_tree(pid: u32, depth: u32) -> Option<u64> {
    let mut ticks = parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    if depth > 0 {
        // A child that ends while we look is counted with its parent the next time.
        let children = children(pid).into_iter().filter_map(|child| ticks_of_tree(child, depth - 1));
        ticks = children.fold(ticks, u64::saturating_add);
    }
    Some(ticks)
}

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>()).collect()
}

/// `utime`, `stime`, `cutime` and `cstime`: fields 14 to 17, in clock ticks.
fn parse(stat: &str) -> Option<u64> {
    // The name may hold spaces and parentheses: fields count from the last one.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<u64> =
        rest.split_ascii_whitespace().skip(11).take(4).filter_map(|field| field.parse().ok()).collect();
    (fields.len() == 4).then(|| fields.iter().copied().fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_a_hostile_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194304 1 2 3 4 150 75 9 6 20 0 4 0 100 1 1 1";
        assert_eq!(parse(stat), Some(240));
        assert_eq!(parse("42 (short) S 1"), None);
    }

    #[test]
    fn a_process_that_is_gone_has_none() {
        assert_eq!(of_tree(u32::MAX), None);
        assert!(of_tree(std::process::id()).is_some());
    }
}
