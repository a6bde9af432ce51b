//! What the process may have, against what the configuration takes.

pub(super) mod demand;
pub(super) mod read;

pub(super) use demand::Demand;

use super::finding::{About, Area, Finding, Level};
use std::path::PathBuf;

/// What was seen. `None`: no limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// RLIMIT_NOFILE, the hard one: `vringd serve` takes all of it.
    pub(super) files_max: Option<u64>,
    /// RLIMIT_MEMLOCK, in bytes.
    pub(super) locked_max: Option<u64>,
    /// The daemon would have CAP_IPC_LOCK, for which RLIMIT_MEMLOCK does not count.
    pub(super) locks_freely: bool,
    /// RLIMIT_NPROC and the threads that the user has already. Not for root.
    pub(super) threads: Option<(u64, u64)>,
    /// `pids.max` of the control group in which there is the least left, and `pids.current`.
    pub(super) group: Option<Group>,
    /// CPUs that this process may run on.
    pub(super) cpus: u64,
    /// The control group's quota, in thousandths of a CPU.
    pub(super) quota_milli: Option<u64>,
    /// Exports whose workers cannot run where they are to: whose, and why.
    pub(super) misplaced: Vec<(String, String)>,
}

/// A control group with a limit of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) path: PathBuf,
    pub(super) tasks_max: u64,
    pub(super) tasks: u64,
}

/// What a limit is, of what, and how to raise it.
struct Limit {
    check: &'static str,
    name: String,
    of: &'static str,
    left: u64,
    fix: String,
}

/// What is wrong with it, for a configuration that takes `demand`.
pub(super) fn findings(facts: &Facts, demand: &Demand) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(facts.files_max.map(|most| {
        let fix = "ulimit -Hn 1048576    # LimitNOFILE=1048576 in a unit".to_owned();
        let name = format!("RLIMIT_NOFILE (hard) is {most}");
        let limit = Limit { check: "open-files", name, of: "descriptors", left: most, fix };
        against(&limit, demand.least.descriptors, demand.guests.descriptors)
    }));
    found.extend(facts.threads.map(|(most, present)| {
        let fix = "ulimit -u unlimited    # LimitNPROC=infinity in a unit".to_owned();
        let name = format!("RLIMIT_NPROC is {most}, and this user has {present} threads");
        let limit = Limit { check: "threads", name, of: "threads", left: most.saturating_sub(present), fix };
        against(&limit, demand.least.threads, demand.guests.threads)
    }));
    found.extend(facts.group.as_ref().map(|Group { path, tasks_max, tasks }| {
        let fix = format!("echo max > {}    # TasksMax=infinity in a unit", path.join("pids.max").display());
        let name = format!("pids.max of {} is {tasks_max}, with {tasks} tasks now", path.display());
        let left = tasks_max.saturating_sub(*tasks);
        against(&Limit { check: "tasks", name, of: "threads", left, fix }, demand.least.threads, demand.guests.threads)
    }));
    found.extend(locked(facts, demand));
    found.extend(directories(facts, demand));
    found.extend(processors(facts, demand));
    found.extend(facts.misplaced.iter().map(|(subject, why)| {
        let about = About::new(Area::Limits, subject);
        let cost = "no queue of its guests starts: its own workers are refused";
        about
            .costs(Level::Fails, "placement", why, cost)
            .fix("cpus = \"0\"    # of those in Cpus_allowed_list of /proc/self/status")
    }));
    found
}

fn against(limit: &Limit, least: u64, guests: u64) -> Finding {
    let Limit { check, name, of, left, fix } = limit;
    let machine = About::machine(Area::Limits);
    let cost = match (least > *left, guests > *left) {
        (true, _) => {
            let cost = format!("`vringd serve` does not start: it takes {least} {of} at least");
            return machine.costs(Level::Fails, check, name, cost).fix(fix);
        }
        (false, true) => {
            format!("guests that connect last are refused: with a guest on each export it takes some {guests} {of}")
        }
        (false, false) => {
            return machine.good(check, format_args!("{name}; with a guest on each export it takes some {guests}"));
        }
    };
    machine.costs(Level::Degraded, check, name, cost).fix(fix)
}

/// Kernels differ in whether queues of an io_uring count: those from 5.12 to 6.13 do not.
fn locked(facts: &Facts, demand: &Demand) -> Option<Finding> {
    let most = facts.locked_max.filter(|_| !facts.locks_freely)?;
    let machine = About::machine(Area::Limits);
    let takes = demand.guests.workers * engine::WORKER_LOCKED_BYTES;
    let (name, takes_kib) = (format!("RLIMIT_MEMLOCK is {} KiB", most >> 10), takes.div_ceil(1024));
    let workers = demand.guests.workers;
    Some(if takes > most {
        let cost = format!(
            "workers may be refused: {workers} of them take {takes_kib} KiB, where the kernel counts io_urings"
        );
        machine
            .costs(Level::Degraded, "locked-memory", name, cost)
            .fix("ulimit -l unlimited    # LimitMEMLOCK=infinity in a unit")
    } else {
        machine.good("locked-memory", format_args!("{name}; {workers} workers take {takes_kib} KiB"))
    })
}

/// Trees hold at most 7 of 8 parts of the limit, and leave others theirs (`passthrough::share`).
fn directories(facts: &Facts, demand: &Demand) -> Option<Finding> {
    let most = facts.files_max? / 8 * 7;
    if demand.of_directories == 0 {
        return None;
    }
    let machine = About::machine(Area::Limits);
    let may = demand.of_directories;
    let seen = format!(
        "guests of directories may hold {may} descriptors (`descriptors_max`, `open_files_max`), and there are {most} for them"
    );
    Some(if may > most {
        let cost = "guests with many open files meet ENFILE earlier than the configuration says";
        let limit = may.saturating_mul(8) / 7 + demand.guests.descriptors;
        machine
            .costs(Level::Degraded, "directory-files", seen, cost)
            .fix(format_args!("ulimit -Hn {0}    # LimitNOFILE={0} in a unit", limit.next_power_of_two()))
    } else {
        machine.good("directory-files", seen)
    })
}

fn processors(facts: &Facts, demand: &Demand) -> Option<Finding> {
    let machine = About::machine(Area::Limits);
    let workers = demand.least.workers;
    if let Some(milli) = facts.quota_milli.filter(|milli| workers.saturating_mul(1000) > *milli && workers > 1) {
        let (whole, rest) = (milli / 1000, milli % 1000 / 100);
        let seen = format!("the control group may use {whole}.{rest} CPUs, for {workers} shared workers");
        let cost = "workers are stopped in the middle of a turn, and all of their guests wait until the next period";
        return Some(
            machine.costs(Level::Slow, "cpu-quota", seen, cost).fix(format_args!("workers = {}", whole.max(1))),
        );
    }
    let cpus = facts.cpus;
    Some(if workers > cpus {
        let seen = format!("{workers} shared workers, and CPUs to run on: {cpus}");
        let cost = "workers take turns, and each guest waits for those of others";
        machine.costs(Level::Slow, "cpus", seen, cost).fix(format_args!("workers = {}", cpus.max(1)))
    } else {
        machine.good("cpus", format_args!("{workers} shared workers, and CPUs to run on: {cpus}"))
    })
}

#[cfg(test)]
mod tests {
    use super::demand::Needs;
    use super::*;

    fn demand() -> Demand {
        let least = Needs { descriptors: 50, threads: 10, workers: 4, maps: 0 };
        let guests = Needs { descriptors: 500, threads: 100, workers: 8, maps: 1000 };
        Demand { least, guests, of_directories: 0 }
    }

    fn level(facts: &Facts, check: &str) -> Option<Level> {
        findings(facts, &demand()).into_iter().find(|finding| finding.check == check).map(|finding| finding.level)
    }

    #[test]
    fn a_limit_fails_only_where_it_is_certain() {
        for (most, expected) in [(49, Level::Fails), (50, Level::Degraded), (499, Level::Degraded), (500, Level::Good)]
        {
            let facts = Facts { files_max: Some(most), cpus: 4, ..Facts::default() };
            assert_eq!(level(&facts, "open-files"), Some(expected), "{most}");
        }
        for (threads, expected) in [((20, 11), Level::Fails), ((20, 10), Level::Degraded), ((200, 100), Level::Good)] {
            let facts = Facts { threads: Some(threads), ..Facts::default() };
            assert_eq!(level(&facts, "threads"), Some(expected), "{threads:?}");
            let group = Group { path: "/sys/fs/cgroup/a".into(), tasks_max: threads.0, tasks: threads.1 };
            assert_eq!(level(&Facts { group: Some(group), ..Facts::default() }, "tasks"), Some(expected));
        }
        assert_eq!(level(&Facts::default(), "open-files"), None, "there is no limit");
    }

    #[test]
    fn locked_memory_counts_for_who_may_not_lock_freely() {
        let most = 8 * engine::WORKER_LOCKED_BYTES;
        let of = |locked_max, locks_freely| {
            level(&Facts { locked_max: Some(locked_max), locks_freely, ..Facts::default() }, "locked-memory")
        };
        assert_eq!(
            (of(most, false), of(most - 1, false), of(0, true)),
            (Some(Level::Good), Some(Level::Degraded), None)
        );
    }

    #[test]
    fn workers_are_compared_with_processors_and_with_the_quota() {
        let of = |cpus, quota_milli| {
            let found = findings(&Facts { cpus, quota_milli, ..Facts::default() }, &demand());
            found.into_iter().find(|finding| ["cpus", "cpu-quota"].contains(&finding.check)).unwrap()
        };
        assert_eq!((of(4, None).level, of(3, None).level), (Level::Good, Level::Slow));
        assert_eq!(of(3, None).fix.as_deref(), Some("workers = 3"));
        let throttled = of(8, Some(2500));
        assert_eq!((throttled.check, throttled.fix.as_deref()), ("cpu-quota", Some("workers = 2")));
        assert_eq!(of(8, Some(4000)).check, "cpus");
    }

    #[test]
    fn workers_that_cannot_be_where_they_are_to_fail() {
        let misplaced = vec![("export a".to_owned(), "cannot run on CPUs 99".to_owned())];
        assert_eq!(level(&Facts { misplaced, ..Facts::default() }, "placement"), Some(Level::Fails));
    }

    #[test]
    fn directories_are_told_when_they_get_less_than_they_may_have() {
        let demand = Demand { of_directories: 70_000, ..demand() };
        let of = |most| findings(&Facts { files_max: Some(most), ..Facts::default() }, &demand);
        let found = |most| of(most).into_iter().find(|finding| finding.check == "directory-files").unwrap();
        assert_eq!((found(80_000).level, found(79_992).level), (Level::Good, Level::Degraded));
        assert_eq!(found(1024).fix.as_deref(), Some("ulimit -Hn 131072    # LimitNOFILE=131072 in a unit"));
    }
}
