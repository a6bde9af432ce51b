//! What is seen: counters of workers and rings, and the machine.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What workers and rings have done up to a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// When, in nanoseconds of a monotonic clock.
    pub at_ns: u64,
    /// All workers, in any order.
    pub workers: Vec<WorkerLoad>,
    /// All rings that run, in any order.
    pub rings: Vec<RingLoad>,
    /// Where workers may run.
    pub machine: Machine,
}

/// A worker. Its times are counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerLoad {
    /// Its number.
    pub worker: u32,
    /// Rings may be given to it and taken from it: it belongs to no export, and serves.
    pub shared: bool,
    /// The processor that it runs on, or one of its node; `None` when that is unknown.
    pub cpu: Option<u16>,
    /// Time in turns that had work, in nanoseconds: neither polling nor asleep.
    pub busy_ns: u64,
    /// Processor time of its thread, in nanoseconds.
    pub cpu_ns: u64,
}

/// A ring that runs. Its figures are counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RingLoad {
    /// Its number, which it keeps when it moves.
    pub ring: u64,
    /// The export that it belongs to.
    pub export: u64,
    /// The worker that serves it.
    pub worker: u32,
    /// A person chose its worker, or its export has workers of its own: it stays where it is.
    pub pinned: bool,
    /// The node of its guest's memory, where that is known.
    pub node: Option<u32>,
    /// Requests answered.
    pub requests: u64,
    /// Its worker's time that went into it, in nanoseconds. `None` where that is not measured: then the worker's time is divided
    /// among its rings by requests, which is wrong for rings whose requests cost more than others'.
    pub busy_ns: Option<u64>,
}

/// Where workers may run. Plain data: whoever fills it in reads /sys and the cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The processors of the daemon's cpuset; empty when unknown.
    pub cpus: Vec<Cpu>,
    /// The cgroup's quota, in thousandths of a processor.
    pub quota_milli: Option<u32>,
    /// The most shared workers that are allowed.
    pub workers_max: u32,
}

/// A processor as the kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// Its number.
    pub cpu: u16,
    /// Its core: SMT siblings share one.
    pub core: u32,
    /// Its NUMA node.
    pub node: u32,
    /// The kernel keeps it free of what does not ask for it (`isolcpus`), and so do we.
    pub isolated: bool,
}

/// How many shared workers there may be, and what says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Allowed {
    /// So many; at least one.
    pub workers: u32,
    /// By what.
    pub by: Bound,
}

/// What bounds the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// One a processor that is not isolated.
    Processors,
    /// The cgroup's quota: workers that are throttled in the middle of a turn hold their rings up.
    Quota,
    /// The operator's limit.
    Operator,
    /// No processors are known: no worker is started beyond those that are there.
    Unknown,
}

impl Machine {
    /// How many workers there may be, where `present` are there already.
    #[must_use]
    pub fn allowed(&self, present: u32) -> Allowed {
        let usable = self.usable().count().try_into().unwrap_or(u32::MAX);
        let mut allowed = match usable {
            0 => Allowed { workers: present.max(1), by: Bound::Unknown },
            workers => Allowed { workers, by: Bound::Processors },
        };
        let quota = self.quota_milli.map(|milli| (milli / 1000).max(1));
        for (bound, by) in [(quota, Bound::Quota), (Some(self.workers_max.max(1)), Bound::Operator)] {
            if let Some(workers) = bound
                && workers < allowed.workers
            {
                allowed = Allowed { workers, by };
            }
        }
        allowed
    }

    /// The node of a processor.
    #[must_use]
    pub fn node(&self, cpu: u16) -> Option<u32> {
        self.cpus.iter().find(|it| it.cpu == cpu).map(|it| it.node)
    }

    /// Processors for `count` more workers where some are `taken`: cores of their own before siblings, the preferred node before
    /// others. Fewer when there are not so many.
    #[must_use]
    pub fn seats(&self, taken: &[u16], node: Option<u32>, count: usize) -> Vec<u16> {
        let mut taken = taken.to_vec();
        let mut seats = Vec::new();
        while seats.len() < count {
            let is_shared =
                |it: &Cpu| self.cpus.iter().any(|other| other.core == it.core && taken.contains(&other.cpu));
            let free = self.usable().filter(|it| !taken.contains(&it.cpu));
            let Some(seat) = free.min_by_key(|it| (is_shared(it), node.is_some_and(|node| node != it.node), it.cpu))
            else {
                break;
            };
            taken.push(seat.cpu);
            seats.push(seat.cpu);
        }
        seats
    }

    fn usable(&self) -> impl Iterator<Item = &Cpu> {
        self.cpus.iter().filter(|it| !it.isolated)
    }
}
