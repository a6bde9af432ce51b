//! A job on a server: prepared, then run for a time or counted step by step.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::fuse;
use super::job::Job;
use super::lane::{Lane, Order};
use super::p9;
use super::protocol::{Address, Protocol};
use super::qemu::{KickCost, Ram};
use super::run::{Conditions, do_step, run};
use super::syscalls::{Calls, Counter, Tool, around};
use crate::driver::ConnectError;
use crate::frontend::Report;
use crate::fs::shape::Shape;

/// Operations of a counted step; a listing counts once.
const COUNTED: usize = 2048;
/// Operations before that, so that what is done once is not counted.
const WARMED: usize = 128;

/// The system calls of a server for one kind of request.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CountedStep {
    pub(crate) request: &'static str,
    pub(crate) requests: u64,
    /// What they were made for; a listing's operation is an entry.
    #[serde(skip)]
    pub(crate) operations: u64,
    /// Entries that they listed.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) entries: u64,
    pub(crate) calls: Calls,
    /// Calls for each request, and those among them that a file system was asked for.
    pub(crate) calls_per_request: f64,
    pub(crate) file_system_calls_per_request: f64,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// What was agreed on with a server, under the name of what was spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Agreed {
    #[serde(rename = "fuse")]
    Fuse(fuse::Granted),
    #[serde(rename = "9p")]
    P9(p9::Granted),
}

/// How a server is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Mounted {
    #[serde(flatten)]
    pub(crate) agreed: Agreed,
    /// Request queues or connections that are used, and requests in flight on each.
    pub(crate) queues: usize,
    pub(crate) depth: u16,
    /// What it costs to tell QEMU of requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) qtest: Option<KickCost>,
}

impl Mounted {
    /// The longest message over 9P, in bytes.
    pub(crate) fn msize(&self) -> Option<u32> {
        match self.agreed {
            Agreed::Fuse(_) => None,
            Agreed::P9(granted) => Some(granted.msize),
        }
    }
}

/// A server that is mounted, in the words of one protocol.
pub(crate) trait Mount {
    /// What does the work on one of its queues or connections.
    type Lane: Lane;

    /// How the server is used.
    fn mounted(&self) -> Mounted;

    /// Process id of the server, where it is known.
    fn server_pid(&self) -> Option<u32>;

    /// Prepares the job of `order`, with everything that is checked before a run; at least one lane.
    fn lanes(&mut self, order: &Order<'_>) -> Result<Vec<Self::Lane>>;

    /// Takes lanes back that have nothing in flight, all of them, in their order.
    fn take_back(&mut self, lanes: Vec<Self::Lane>) -> Result<()>;
}

/// A frontend that is connected.
pub(crate) enum Session {
    Fuse(Box<fuse::Mount>),
    P9(p9::Mount),
}

impl Session {
    /// Connects to the server at `address` and mounts what it serves: over 9P, the tree that is called `aname`.
    pub(crate) fn connect(
        (protocol, aname): (Protocol, &str),
        address: &Address,
        shape: Shape,
        server_pid: Option<u32>,
    ) -> Result<Self, ConnectError> {
        match protocol {
            Protocol::Virtiofs => {
                fuse::Mount::connect(address.place(), shape, server_pid).map(|mount| Self::Fuse(Box::new(mount)))
            }
            _ => p9::Mount::connect(address, protocol.is_stream(), aname, shape, server_pid).map(Self::P9),
        }
    }

    /// Memory for a QEMU that is to be mounted.
    pub(crate) fn ram(shape: Shape) -> Result<Ram> {
        p9::Mount::ram(shape)
    }

    /// Mounts what the QEMU serves that listens for qtest at the other end of `socket` and has `ram`, made for `shape`.
    pub(crate) fn on_qemu(socket: UnixStream, ram: Ram, shape: Shape, server_pid: Option<u32>) -> Result<Self> {
        p9::Mount::on_qemu(socket, ram, shape, server_pid).map(Self::P9)
    }

    /// How the server is used.
    pub(crate) fn mounted(&self) -> Mounted {
        match self {
            Self::Fuse(mount) => mount.mounted(),
            Self::P9(mount) => mount.mounted(),
        }
    }

    /// Prepares the job of `order`, and runs it.
    ///
    /// # Errors
    /// A request failed, a reply was wrong, or the server died.
    pub(crate) fn run(&mut self, order: &Order<'_>, conditions: Conditions, look: impl Fn(Duration)) -> Result<Report> {
        match self {
            Self::Fuse(mount) => run_on(&mut **mount, order, conditions, look),
            Self::P9(mount) => run_on(mount, order, conditions, look),
        }
    }

    /// Prepares the job of `order`, and counts the server's system calls for each of its steps.
    ///
    /// # Errors
    /// As [`Session::run`], or nobody can count.
    pub(crate) fn count(&mut self, order: &Order<'_>, server_pid: u32, tool: Tool) -> Result<Vec<CountedStep>> {
        match self {
            Self::Fuse(mount) => count_on(&mut **mount, order, server_pid, tool),
            Self::P9(mount) => count_on(mount, order, server_pid, tool),
        }
    }
}

fn run_on<M: Mount>(
    mount: &mut M,
    order: &Order<'_>,
    conditions: Conditions,
    look: impl Fn(Duration),
) -> Result<Report> {
    let lanes = mount.lanes(order)?;
    let (report, lanes) = run(lanes, conditions, mount.server_pid(), look)?;
    mount.take_back(lanes)?;
    Ok(report)
}

fn count_on<M: Mount>(mount: &mut M, order: &Order<'_>, server_pid: u32, tool: Tool) -> Result<Vec<CountedStep>> {
    let mut lanes = mount.lanes(order)?;
    let lane = lanes.first_mut().context("a lane")?;
    lane.fill_data();
    count_steps(lane, order.job, WARMED, |lane, operations, step| do_step(lane, operations, step).map(|_| ()))?;
    let mut counted = Vec::new();
    count_steps(lane, order.job, COUNTED, |lane, operations, step| {
        let counter = Counter::start(server_pid, tool)?;
        let done = do_step(lane, operations, step)?;
        counted.push(CountedStep::new(M::Lane::step_name(step), done, operations.len(), counter.stop()?));
        Ok(())
    })?;
    mount.take_back(lanes)?;
    Ok(counted)
}

fn count_steps<L: Lane>(
    lane: &mut L,
    job: Job,
    operations: usize,
    mut do_step: impl FnMut(&mut L, &mut [L::Operation], L::Step) -> Result<()>,
) -> Result<()> {
    let count = if job.lists() { 1 } else { operations };
    let mut operations: Vec<_> = (0..count).map(|n| lane.operation(n)).collect();
    for operation in &mut operations {
        lane.prepare(operation)?;
    }
    for step in lane.steps() {
        do_step(lane, &mut operations, *step)?;
    }
    for operation in &mut operations {
        lane.clean_up(operation)?;
    }
    lane.tidy(true)
}

impl CountedStep {
    /// `requests` of one kind, which listed `entries` and were made for `operations`, cost `calls`.
    pub(crate) fn new(request: &'static str, (requests, entries): (u64, u64), operations: usize, calls: Calls) -> Self {
        let all: u64 = calls.values().sum();
        let rest = all - around(&calls);
        let per_request = |count: u64| count as f64 / requests.max(1) as f64;
        Self {
            request,
            requests,
            operations: if entries > 0 { entries } else { operations as u64 },
            entries,
            calls_per_request: per_request(all),
            file_system_calls_per_request: per_request(rest),
            calls,
        }
    }

    /// Calls of all `steps` for each operation, and those among them that the file system was asked for. An operation of
    /// a listing is an entry.
    pub(crate) fn per_operation(steps: &[Self]) -> Option<(f64, f64)> {
        let first = steps.first()?;
        let sum = |per_request: fn(&Self) -> f64| -> f64 {
            let calls: f64 = steps.iter().map(|step| per_request(step) * step.requests as f64).sum();
            calls / first.operations.max(1) as f64
        };
        Some((sum(|step| step.calls_per_request), sum(|step| step.file_system_calls_per_request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_agreed_on_stands_under_its_protocol() {
        let agreed = Agreed::P9(p9::Granted { msize: 8192, has_at: false });
        let mounted = Mounted { agreed, queues: 2, depth: 4, qtest: None };
        let json = serde_json::to_value(mounted).unwrap();
        assert_eq!(json, serde_json::json!({ "9p": { "msize": 8192, "has_at": false }, "queues": 2, "depth": 4 }));
        let qtest = Some(KickCost { round_trip_ns: 9000, server_cpu_ns: None });
        let json = serde_json::to_value(Mounted { qtest, ..mounted }).unwrap();
        assert_eq!(json["qtest"], serde_json::json!({ "round_trip_ns": 9000 }));
    }

    fn step(request: &'static str, done: (u64, u64), calls: &[(&str, u64)]) -> CountedStep {
        let calls = calls.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        CountedStep::new(request, done, 10, calls)
    }

    #[test]
    fn calls_of_all_steps_count_for_an_operation() {
        let create = step("CREATE", (10, 0), &[("openat", 10), ("fchownat", 10), ("epoll_wait", 5)]);
        assert!((create.calls_per_request - 2.5).abs() < 1e-9);
        assert!((create.file_system_calls_per_request - 2.0).abs() < 1e-9);
        let unlink = step("UNLINK", (10, 0), &[("unlinkat", 10)]);
        assert_eq!(CountedStep::per_operation(&[create, unlink]), Some((3.5, 3.0)));
        assert_eq!(CountedStep::per_operation(&[]), None);
    }

    #[test]
    fn an_operation_may_take_several_requests() {
        let read = step("READ", (20, 0), &[("preadv", 20)]);
        assert!((read.calls_per_request - 1.0).abs() < 1e-9);
        assert_eq!(CountedStep::per_operation(&[read]), Some((2.0, 2.0)));
    }

    #[test]
    fn an_operation_of_a_listing_is_an_entry() {
        let listing = step("READDIRPLUS", (4, 100), &[("getdents64", 8), ("statx", 92)]);
        assert_eq!(CountedStep::per_operation(&[listing]), Some((1.0, 1.0)));
    }
}
