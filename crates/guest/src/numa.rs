//! Binding to one NUMA node.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Nodes that have memory (kernel: `Documentation/ABI/stable/sysfs-devices-node`).
const NODES: &str = "/sys/devices/system/node/has_memory";

/// The NUMA nodes of this machine; one on a machine that tells nothing of nodes.
pub fn nodes() -> Vec<u32> {
    fs::read_to_string(NODES).ok().and_then(|text| parse_list(&text)).unwrap_or_else(|| vec![0])
}

/// The same command with its processors and its memory on the first node, by `numactl`. Fails on a
/// machine with one node, where a comparison with the unbound command would compare nothing.
pub fn bind(command: &Command) -> Result<Command> {
    let nodes = nodes();
    let [first, _, ..] = nodes.as_slice() else { bail!("this machine has one NUMA node") };
    Command::new("numactl").arg("--show").output().context("numactl was not found: install the package numactl")?;
    let mut bound = Command::new("numactl");
    bound
        .arg(format!("--membind={first}"))
        .arg(format!("--cpunodebind={first}"))
        .arg("--")
        .arg(command.get_program())
        .args(command.get_args());
    crate::process::inherit(&mut bound, command);
    Ok(bound)
}

/// More than any kernel knows of processors or nodes: a guest tells such a list too, and may lie.
const NUMBERS_MAX: usize = 1 << 16;

/// A list of numbers as the kernel writes them: `0-1,4`.
pub(crate) fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let range = first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?;
        numbers.extend(range.take(NUMBERS_MAX.saturating_sub(numbers.len())));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::parse_list;

    #[test]
    fn list_has_numbers_and_ranges() {
        assert_eq!(parse_list("0\n"), Some(vec![0]));
        assert_eq!(parse_list("0-2,4,7-8\n"), Some(vec![0, 1, 2, 4, 7, 8]));
        assert_eq!(parse_list("0-4294967295,0-4294967295").map(|list| list.len()), Some(super::NUMBERS_MAX));
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("x"), None);
    }
}
