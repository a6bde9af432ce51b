//! A job on a server: prepared, then run for a time or counted step by step.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::client::Client;
use super::device::{ConnectError, Device, Shape};
use super::fixture::{Fixture, Order};
use super::job::{Job, Step};
use super::lane::Lane;
use super::port::Port;
use super::run::{Conditions, do_step, run};
use super::syscalls::{Calls, Counter, Tool, around};
use super::wire::Granted;
use crate::frontend::Report;

/// Operations of a counted step; a listing counts once.
const COUNTED: usize = 2048;
/// Operations before that, so that what is done once is not counted.
const WARMED: usize = 128;

/// The system calls of a server for one kind of request.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CountedStep {
    pub(crate) request: &'static str,
    pub(crate) requests: u64,
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

/// What was agreed on with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Mounted {
    pub(crate) fuse: Granted,
    /// Request queues that are used, and requests in flight on each.
    pub(crate) queues: usize,
    pub(crate) depth: u16,
}

/// A frontend that is connected.
pub(crate) struct Session {
    client: Client,
}

impl Session {
    /// Connects to `socket` and initializes FUSE.
    pub(crate) fn connect(socket: &Path, shape: Shape, server_pid: Option<u32>) -> Result<Self, ConnectError> {
        let device = Device::connect(socket, shape)?;
        let client = Client::new(device, server_pid).map_err(ConnectError::Device)?;
        Ok(Self { client })
    }

    /// What was agreed on with the server.
    pub(crate) fn mounted(&self) -> Mounted {
        let device = &self.client.device;
        let depth = device.ports.first().map_or(0, Port::depth);
        Mounted { fuse: self.client.granted, queues: device.ports.len(), depth }
    }

    /// Prepares the job of `order`, and runs it.
    ///
    /// # Errors
    /// A request failed, a reply was wrong, or the server died.
    pub(crate) fn run(&mut self, order: &Order<'_>, conditions: Conditions, look: impl Fn(Duration)) -> Result<Report> {
        let lanes = self.lanes(order)?;
        let (report, lanes) = run(lanes, conditions, self.client.server_pid, look)?;
        self.take_back(lanes)?;
        Ok(report)
    }

    /// Prepares the job of `order`, and counts the server's system calls for each of its steps.
    ///
    /// # Errors
    /// As [`Session::run`], or nobody can count.
    pub(crate) fn count(&mut self, order: &Order<'_>, server_pid: u32, tool: Tool) -> Result<Vec<CountedStep>> {
        let mut lanes = self.lanes(order)?;
        let lane = lanes.first_mut().context("a lane")?;
        lane.fill_data();
        count_steps(lane, order.job, WARMED, |lane, operations, step| do_step(lane, operations, step).map(|_| ()))?;
        let mut counted = Vec::new();
        count_steps(lane, order.job, COUNTED, |lane, operations, step| {
            let counter = Counter::start(server_pid, tool)?;
            let (requests, entries) = do_step(lane, operations, step)?;
            counted.push(CountedStep::new(step, (requests, entries), counter.stop()?));
            Ok(())
        })?;
        self.take_back(lanes)?;
        Ok(counted)
    }

    fn lanes(&mut self, order: &Order<'_>) -> Result<Vec<Lane>> {
        let fixture = Arc::new(Fixture::prepare(&mut self.client, order)?);
        let device = &mut self.client.device;
        let forgets = Arc::new(Mutex::new(device.forgets.take().context("the high-priority queue")?));
        let count = device.ports.len();
        let pid = self.client.server_pid;
        let lane =
            |(index, port)| Lane::new(port, (index, count), order.job, Arc::clone(&fixture), Arc::clone(&forgets), pid);
        Ok(device.ports.drain(..).enumerate().map(lane).collect())
    }

    fn take_back(&mut self, lanes: Vec<Lane>) -> Result<()> {
        let device = &mut self.client.device;
        let mut forgets = None;
        for lane in lanes {
            let (port, shared) = lane.into_parts();
            device.ports.push(port);
            forgets = Arc::into_inner(shared);
        }
        let forgets = forgets.context("the last lane gives the high-priority queue back")?;
        device.forgets = Some(forgets.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }
}

fn count_steps(
    lane: &mut Lane,
    job: Job,
    operations: usize,
    mut do_step: impl FnMut(&mut Lane, &mut [super::lane::Operation], Step) -> Result<()>,
) -> Result<()> {
    let count = if job.lists() { 1 } else { operations };
    let mut operations: Vec<_> = (0..count).map(|n| lane.operation(n)).collect();
    for operation in &mut operations {
        lane.prepare(operation)?;
    }
    for step in job.steps() {
        do_step(lane, &mut operations, *step)?;
    }
    for operation in &mut operations {
        lane.clean_up(operation)?;
    }
    lane.drain_forgets()
}

impl CountedStep {
    /// `requests` of `step`, which listed `entries`, cost `calls`.
    pub(crate) fn new(step: Step, (requests, entries): (u64, u64), calls: Calls) -> Self {
        let all: u64 = calls.values().sum();
        let rest = all - around(&calls);
        let per_request = |count: u64| count as f64 / requests.max(1) as f64;
        Self {
            request: step.name(),
            requests,
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
        let operations = if first.entries > 0 { first.entries } else { first.requests };
        let sum = |per_request: fn(&Self) -> f64| -> f64 {
            let calls: f64 = steps.iter().map(|step| per_request(step) * step.requests as f64).sum();
            calls / operations.max(1) as f64
        };
        Some((sum(|step| step.calls_per_request), sum(|step| step.file_system_calls_per_request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: Step, done: (u64, u64), calls: &[(&str, u64)]) -> CountedStep {
        CountedStep::new(step, done, calls.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect())
    }

    #[test]
    fn calls_of_all_steps_count_for_an_operation() {
        let create = step(Step::Create, (10, 0), &[("openat", 10), ("fchownat", 10), ("epoll_wait", 5)]);
        assert!((create.calls_per_request - 2.5).abs() < 1e-9);
        assert!((create.file_system_calls_per_request - 2.0).abs() < 1e-9);
        let unlink = step(Step::Unlink, (10, 0), &[("unlinkat", 10)]);
        assert_eq!(CountedStep::per_operation(&[create, unlink]), Some((3.5, 3.0)));
        assert_eq!(CountedStep::per_operation(&[]), None);
    }

    #[test]
    fn an_operation_of_a_listing_is_an_entry() {
        let listing = step(Step::Readdirplus, (4, 100), &[("getdents64", 8), ("statx", 92)]);
        assert_eq!(CountedStep::per_operation(&[listing]), Some((1.0, 1.0)));
    }
}
