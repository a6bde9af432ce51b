//! Reads what this process may have.

use super::{Facts, Group};
use crate::config::Config;
use crate::doctor::cgroup;
use crate::doctor::look::at_each;
use crate::doctor::subjects::named;
use engine::WorkerSpec;
use procfs::process::all_processes;
use rustix::process::{Resource, getrlimit};

/// For `config`. `capabilities`: those that the daemon would keep. `uid`: as whom it would serve.
pub(in crate::doctor) fn read(config: &Config, capabilities: &[String], uid: u32) -> Facts {
    let has = |name: &str| capabilities.iter().any(|capability| capability == name);
    let free = uid == 0 || has("cap_sys_resource") || has("cap_sys_admin");
    let threads = getrlimit(Resource::Nproc).current.filter(|_| !free);
    Facts {
        files_max: getrlimit(Resource::Nofile).maximum,
        locked_max: getrlimit(Resource::Memlock).current,
        locks_freely: has("cap_ipc_lock"),
        threads: threads.map(|most| (most, threads_of(uid))),
        group: group(),
        cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64).max(allowed()),
        quota_milli: quota_milli(),
        misplaced: misplaced(config),
    }
}

/// Workers that are bound to CPUs: each place is tried, by a thread.
fn misplaced(config: &Config) -> Vec<(String, String)> {
    let bound = config.exports.iter().filter(|export| export.cpus.is_some());
    let places: Vec<_> = bound.map(|export| (named(&export.name), export.cpus.clone())).collect();
    let tried = at_each("look-cpus", places, |(subject, cpus)| {
        let refused = WorkerSpec { cpus, ..WorkerSpec::default() }.apply().err()?;
        Some((subject, refused.to_string()))
    });
    tried.into_iter().flatten().flatten().collect()
}

/// CPUs in the affinity mask, which is the control group's cpuset as well. The other count has its quota in it.
fn allowed() -> u64 {
    rustix::thread::sched_getaffinity(None).map_or(1, |set| u64::from(set.count()))
}

/// Threads of a user, for which RLIMIT_NPROC counts.
fn threads_of(uid: u32) -> u64 {
    let Ok(processes) = all_processes() else { return 0 };
    let of_user = processes.flatten().filter(|process| process.uid().is_ok_and(|owner| owner == uid));
    of_user.map(|process| process.stat().map_or(0, |stat| stat.num_threads.max(0).cast_unsigned())).sum()
}

/// The group with the least room.
fn group() -> Option<Group> {
    let number = |text: &str| text.parse::<u64>().ok();
    let groups = cgroup::along("pids", "pids.max", "pids.max").into_iter().filter_map(|(path, most)| {
        let tasks = std::fs::read_to_string(path.join("pids.current")).ok()?;
        Some(Group { path, tasks_max: number(&most)?, tasks: number(tasks.trim())? })
    });
    groups.min_by_key(|group| group.tasks_max.saturating_sub(group.tasks))
}

/// The smallest quota: `cpu.max` has it and its period, in microseconds; version 1 has two files.
fn quota_milli() -> Option<u64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let found = cgroup::along("cpu", "cpu.max", "cpu.cfs_quota_us");
    let milli = found.into_iter().filter_map(|(path, text)| {
        let (quota_us, period_us) = match text.split_once(' ') {
            Some((quota, period)) => (number(quota)?, number(period)?),
            None => (number(&text)?, number(&std::fs::read_to_string(path.join("cpu.cfs_period_us")).ok()?)?),
        };
        (period_us > 0).then(|| quota_us * 1000 / period_us)
    });
    milli.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_among_those_of_its_user() {
        let uid = rustix::process::geteuid().as_raw();
        let before = threads_of(uid);
        assert!(before > 0);
        let facts = read(&Config::nothing(), &[], uid.max(1));
        assert!(facts.cpus >= 1 && !facts.locks_freely);
        assert_eq!(facts.threads.is_some(), getrlimit(Resource::Nproc).current.is_some());
    }
}
