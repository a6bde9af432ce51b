//! What processes cost: processor time and context switches, from `/proc` (proc(5)).

use std::collections::BTreeMap;
use std::io;

use anyhow::{Context, Result, ensure};
use procfs::ProcError;
use procfs::process::{Process, Stat, all_processes};
use serde::{Deserialize, Serialize};

/// Why a process could not be measured.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub enum Error {
    /// no process {pid}: {cause}; is it still running, and is the pid right?
    NoProcess {
        /// The pid that was asked for.
        pid: u32,
        /// What the kernel said.
        cause: ProcError,
    },
}

fn process(pid: u32) -> Result<Process, Error> {
    let gone = || ProcError::Io(io::ErrorKind::NotFound.into(), None);
    let found = i32::try_from(pid).map_err(|_| gone()).and_then(Process::new);
    found.map_err(|cause| Error::NoProcess { pid, cause })
}

fn stat(pid: u32) -> Result<Stat, Error> {
    process(pid)?.stat().map_err(|cause| Error::NoProcess { pid, cause })
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / procfs::ticks_per_second() as f64
}

/// Of the process and of the children that it waited for.
fn cpu_s(stat: &Stat) -> f64 {
    let children = u64::try_from(stat.cutime.saturating_add(stat.cstime)).unwrap_or(0);
    seconds(stat.utime.saturating_add(stat.stime).saturating_add(children))
}

/// Processor time and context switches of a process between two moments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time spent in the program, all threads.
    pub user_s: f64,
    /// Processor time spent in the kernel on its behalf, all threads.
    pub system_s: f64,
    /// How often a thread went to sleep, which is how often one had to be woken.
    pub voluntary_switches: u64,
    /// How often a thread was interrupted in favour of another.
    pub involuntary_switches: u64,
}

impl Usage {
    /// Processor time altogether, in seconds.
    pub fn cpu_s(&self) -> f64 {
        self.user_s + self.system_s
    }

    /// Context switches altogether.
    pub fn switches(&self) -> u64 {
        self.voluntary_switches + self.involuntary_switches
    }
}

/// The counters of a process at one moment.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    user_ticks: u64,
    system_ticks: u64,
    switches: BTreeMap<i32, (u64, u64)>,
}

impl Sample {
    /// Reads the counters of process `pid`.
    ///
    /// # Errors
    /// The process does not exist.
    pub fn take(pid: u32) -> Result<Self, Error> {
        let missing = |cause| Error::NoProcess { pid, cause };
        let process = process(pid)?;
        let stat = process.stat().map_err(missing)?;
        let tasks = process.tasks().map_err(missing)?;
        // A thread may end while we look.
        let switches = tasks.flatten().filter_map(|task| {
            let status = task.status().ok()?;
            Some((task.tid, (status.voluntary_ctxt_switches?, status.nonvoluntary_ctxt_switches?)))
        });
        Ok(Self { user_ticks: stat.utime, system_ticks: stat.stime, switches: switches.collect() })
    }

    /// What was used between `earlier` and this sample.
    ///
    /// The switches of a thread that ended in between are lost with it: `/proc` keeps none.
    pub fn since(&self, earlier: &Self) -> Usage {
        let mut usage = Usage {
            user_s: seconds(self.user_ticks.saturating_sub(earlier.user_ticks)),
            system_s: seconds(self.system_ticks.saturating_sub(earlier.system_ticks)),
            ..Usage::default()
        };
        for (tid, (voluntary, involuntary)) in &self.switches {
            let (voluntary_then, involuntary_then) = earlier.switches.get(tid).copied().unwrap_or_default();
            usage.voluntary_switches += voluntary.saturating_sub(voluntary_then);
            usage.involuntary_switches += involuntary.saturating_sub(involuntary_then);
        }
        usage
    }
}

/// The counters of a process and its descendants at one moment: a server that sandboxes itself works in a child. Workers of
/// io_uring are threads of their process.
#[derive(Debug, Clone, Default)]
pub struct Tree(BTreeMap<u32, Sample>);

impl Tree {
    /// Reads the counters of `pid` and of what it has started.
    ///
    /// # Errors
    /// The process does not exist.
    pub fn take(pid: u32) -> Result<Self, Error> {
        let mut samples = BTreeMap::from([(pid, Sample::take(pid)?)]);
        // One that ended meanwhile is left out.
        samples.extend(descendants(pid).into_iter().filter_map(|child| Some((child, Sample::take(child).ok()?))));
        Ok(Self(samples))
    }

    /// What was used between `earlier` and this sample; a process counts from its first sample on.
    pub fn since(&self, earlier: &Self) -> Usage {
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
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }
}

/// The children of process `pid`, theirs, and so on; none when the kernel does not say.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let tasks = process(parent).ok().and_then(|process| process.tasks().ok());
        let children = tasks.into_iter().flatten().flatten().filter_map(|task| task.children().ok()).flatten();
        for child in children {
            if !found.contains(&child) {
                found.push(child);
            }
        }
    }
    found.split_off(1)
}

/// Whether process `pid` exists and has not ended (a zombie has).
pub fn is_alive(pid: u32) -> bool {
    stat(pid).is_ok_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// Descriptors that process `pid` has open.
///
/// # Errors
/// The process does not exist.
pub fn descriptors(pid: u32) -> Result<usize, Error> {
    process(pid)?.fd_count().map_err(|cause| Error::NoProcess { pid, cause })
}

/// Memory of process `pid` of its own, in KiB (RssAnon): what it shares with guests is not.
///
/// # Errors
/// The process does not exist.
pub fn own_memory_kib(pid: u32) -> Result<u64> {
    process(pid)?.status()?.rssanon.context("the kernel tells no RssAnon")
}

/// Processor time that the threads of process `pid` have used, in nanoseconds. A thread is accounted for when it sleeps.
///
/// # Errors
/// The process does not exist, or the kernel tells of none of its threads.
pub fn cpu_ns_of_threads(pid: u32) -> Result<u64> {
    let (mut used_ns, mut threads) = (0, 0);
    for task in process(pid)?.tasks().map_err(|cause| Error::NoProcess { pid, cause })? {
        match task.and_then(|task| task.schedstat()) {
            Ok(schedstat) => (used_ns, threads) = (used_ns + schedstat.sum_exec_runtime, threads + 1),
            // A thread may end meanwhile.
            Err(ProcError::NotFound(_)) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read the schedstat of process {pid}")),
        }
    }
    ensure!(threads > 0, "the kernel tells no schedstat of process {pid}");
    Ok(used_ns)
}

/// As [`cpu_ns_of_threads`], of the first thread alone; `None` when the kernel does not say.
pub fn cpu_ns_of_first_thread(pid: u32) -> Option<u64> {
    Some(process(pid).ok()?.schedstat().ok()?.sum_exec_runtime)
}

/// Processor time in seconds of a process and of the children that it waited for. A process that has ended can be asked until
/// it is waited for.
///
/// # Errors
/// The process does not exist.
pub fn cpu_s_of_process(pid: u32) -> Result<f64, Error> {
    stat(pid).map(|stat| cpu_s(&stat))
}

/// Processor time in seconds of a process and of its descendants that live or were waited for. `None` when it is gone. A child
/// that ends while we look is counted with its parent the next time.
pub fn cpu_s_of_tree(pid: u32) -> Option<f64> {
    let own = cpu_s_of_process(pid).ok()?;
    Some(descendants(pid).into_iter().filter_map(|child| cpu_s_of_process(child).ok()).fold(own, |sum, s| sum + s))
}

/// Processor time in seconds of all processes of a group, and of those that they waited for.
///
/// # Errors
/// The group does not exist.
pub fn cpu_s_of_group(group: u32) -> Result<f64> {
    // A process may end between its name and its figures.
    let stats = all_processes()?.filter_map(|process| process.ok()?.stat().ok());
    let members: Vec<f64> =
        stats.filter(|stat| u32::try_from(stat.pgrp) == Ok(group)).map(|stat| cpu_s(&stat)).collect();
    ensure!(!members.is_empty(), "process group {group} has gone");
    Ok(members.into_iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::thread;
    use std::time::Duration;

    #[test]
    fn new_threads_count_from_zero_and_ended_ones_not_at_all() {
        let earlier = Sample { user_ticks: 100, system_ticks: 50, switches: [(1, (10, 1)), (2, (5, 5))].into() };
        let later = Sample { user_ticks: 300, system_ticks: 50, switches: [(1, (14, 2)), (3, (7, 0))].into() };
        let usage = later.since(&earlier);
        assert_eq!((usage.voluntary_switches, usage.involuntary_switches), (11, 1));
        assert!(usage.user_s > 0.0);
        assert_eq!(usage.cpu_s(), usage.user_s);
    }

    #[test]
    fn a_thread_that_sleeps_and_wakes_is_seen() {
        let pid = std::process::id();
        let before = Sample::take(pid).unwrap();
        let sleeper = thread::spawn(|| {
            for _ in 0..20 {
                thread::sleep(Duration::from_millis(1));
            }
            Sample::take(std::process::id()).unwrap()
        });
        let usage = sleeper.join().unwrap().since(&before);
        assert!(usage.voluntary_switches >= 20, "{usage:?}");
    }

    #[test]
    fn an_ended_process_is_not_alive_even_before_it_is_reaped() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        assert!(is_alive(child.id()));
        child.kill().unwrap();
        while is_alive(child.id()) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(cpu_s_of_process(child.id()).is_ok());
        child.wait().unwrap();
        assert!(!is_alive(child.id()));
        assert!(is_alive(std::process::id()));
    }

    #[test]
    fn figures_of_a_process_are_what_the_kernel_says_of_it() {
        let pid = std::process::id();
        let before = descriptors(pid).unwrap();
        let _more = [0; 64].map(|_: u8| std::fs::File::open("/dev/null").unwrap());
        assert!(descriptors(pid).unwrap() >= before + 32, "other tests open and close some, too");
        assert!(own_memory_kib(pid).unwrap() > 0);
        thread::sleep(Duration::from_millis(1));
        let [first, all] = [cpu_ns_of_first_thread(pid).unwrap(), cpu_ns_of_threads(pid).unwrap()];
        assert!(0 < first && first <= all);
    }

    #[test]
    fn what_is_missing_is_told() {
        let error = Sample::take(u32::MAX).unwrap_err().to_string();
        assert!(error.starts_with("no process 4294967295"), "{error}");
        assert_eq!(cpu_s_of_tree(u32::MAX), None);
        assert!(cpu_s_of_group(u32::MAX).is_err());
    }

    #[test]
    fn own_group_has_this_process() {
        let group = rustix::process::getpgrp().as_raw_nonzero().get();
        let before = cpu_s_of_group(u32::try_from(group).unwrap()).unwrap();
        assert!(before >= cpu_s_of_process(std::process::id()).unwrap() - 0.05);
    }

    #[test]
    fn children_are_found_and_ended_ones_left_out() {
        let mut shell =
            Command::new("sh").args(["-c", "cat; exit"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let own = loop {
            let own = Tree::take(shell.id()).unwrap();
            if own.0.len() == 2 {
                break own;
            }
            thread::yield_now();
        };
        assert!(own.0.contains_key(&shell.id()) && cpu_s_of_tree(shell.id()).is_some());
        assert_eq!(own.since(&own), Usage::default());
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert!(Tree::take(shell.id()).is_err());
    }
}
