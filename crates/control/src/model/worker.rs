//! Workers: threads that serve rings.

use policy::Tactic;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use values::{CpuList, Poll};

/// Whose worker it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// A shared worker: any export's rings may be attached to it.
    Daemon,
    /// A private worker of the named export: only that export's rings may be attached to it.
    Export(String),
}

/// One ring, named by its export and index.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct RingRef {
    /// Name of the export.
    pub export: String,
    /// Index of the ring (the virtqueue number), from 0.
    pub index: u16,
}

/// Whether a worker's thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// The thread runs and serves its rings.
    Running,
    /// The thread has ended; nothing can be attached any more.
    Dead,
}

/// One worker with its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// Identifier, unique in the daemon across shared and private workers.
    pub id: u32,
    /// Name of the thread, as `ps -L` and `top -H` show it.
    pub name: String,
    /// Whose worker it is.
    pub owner: Owner,
    /// CPUs the thread is bound to; absent when it may run where the daemon may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// NUMA node whose CPUs and memory the thread prefers; absent when none was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Directory of the thread's control group; absent when it is the daemon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Poll window as it was set.
    pub poll: Poll,
    /// Length of the poll window at this moment, in microseconds.
    pub poll_window_us_now: u32,
    /// The tactic by which it waits for work; absent when its poll window is pinned, it is dead or the policy has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tactic: Option<Tactic>,
    /// Kernel thread id.
    pub tid: i32,
    /// Whether the thread runs.
    pub state: WorkerState,
    /// The rings attached to it.
    pub rings: Vec<RingRef>,
    /// What it has done since it was made.
    pub figures: WorkerFigures,
}

/// What a worker has done since it was made. All but times are counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerFigures {
    /// Turns of the loop.
    pub turns: u64,
    /// `io_uring_enter` system calls.
    pub syscalls: u64,
    /// Times the worker went to sleep; each ended with a wake-up.
    pub sleeps: u64,
    /// Poll windows in which work arrived.
    pub polls_hit: u64,
    /// Poll windows that ended without work.
    pub polls_missed: u64,
    /// Trials of tactics that came to a decision.
    #[serde(default)]
    pub policy_trials: u64,
    /// Decisions that changed the tactic.
    #[serde(default)]
    pub policy_changes: u64,
    /// Submission queue entries handed to the kernel.
    pub sqes: u64,
    /// Completion queue entries taken from the kernel.
    pub cqes: u64,
    /// Messages taken from the mailbox.
    pub mailbox_messages: u64,
    /// CPU time of the thread, in seconds.
    pub cpu_seconds: f64,
    /// Time in turns that had work, in seconds: neither polling nor asleep.
    #[serde(default)]
    pub busy_seconds: f64,
}

/// How a new worker shall be. Everything left out is inherited from the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewWorker {
    /// CPUs to bind the thread to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuList>,
    /// NUMA node whose CPUs and memory the thread shall prefer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Directory of the control group to put the thread into: version 2 in threaded mode, or version 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// Poll window; `adaptive` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<Poll>,
}

/// Which worker a ring shall be served by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Attach {
    /// Identifier of the worker.
    pub worker: u32,
}

/// Which worker a ring is served by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Attached {
    /// Identifier of the worker; null when the ring has none.
    pub worker: Option<u32>,
}
