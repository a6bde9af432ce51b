//! A server with the processes it has started, which do its work when it sandboxes itself.

use std::collections::BTreeMap;
use std::fs;

use crate::usage::{Error, Sample, Usage};

/// The counters of a process and its descendants at one moment. Workers of io_uring are threads of their process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tree(BTreeMap<u32, Sample>);

impl Tree {
    /// Reads the counters of `pid` and of what it has started.
    pub(crate) fn sample(pid: u32) -> Result<Self, Error> {
        let mut samples = BTreeMap::from([(pid, Sample::take(pid)?)]);
        let mut parents = vec![pid];
        while let Some(parent) = parents.pop() {
            for child in children(parent) {
                // One that ended meanwhile is left out.
                if let (false, Ok(sample)) = (samples.contains_key(&child), Sample::take(child)) {
                    samples.insert(child, sample);
                    parents.push(child);
                }
            }
        }
        Ok(Self(samples))
    }

    /// What was used between `earlier` and this sample; a process counts from its first sample on.
    pub(crate) fn since(&self, earlier: &Self) -> Usage {
        let mut sum = Usage::default();
        for (pid, sample) in &self.0 {
            let usage = sample.since(earlier.0.get(pid).unwrap_or(&Sample::default()));
            sum.user_s += usage.user_s;
            sum.system_s += usage.system_s;
            sum.voluntary_switches += usage.voluntary_switches;
            sum.involuntary_switches += usage.involuntary_switches;
        }
        sum
    }

    /// The processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }
}

/// Children of all threads of `pid`; none when the kernel does not say.
fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn children_are_found_and_ended_ones_left_out() {
        let mut shell =
            Command::new("sh").args(["-c", "cat; exit"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let own = loop {
            let own = Tree::sample(shell.id()).unwrap();
            if own.0.len() == 2 {
                break own;
            }
            std::thread::yield_now();
        };
        assert!(own.0.contains_key(&shell.id()));
        assert_eq!(own.since(&own), Usage::default());
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(Tree::sample(shell.id()).is_err());
    }
}
