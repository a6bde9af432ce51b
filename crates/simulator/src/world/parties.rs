//! Clients and workers: what their segments do.

use super::{Event, Thread, World};
use std::collections::VecDeque;

/// Requests of a worker's turn.
const TURN_REQUESTS: u32 = 64;
/// A client with a rate of its own waits until it may make so many.
const BURST: u32 = 8;

/// What a part of a request may be off by.
const ROUNDING: f64 = 1e-6;

/// A client, and its ring.
#[derive(Clone, Debug)]
pub(super) struct ClientState {
    /// Requests that are answered and not looked at.
    answered: u32,
    /// Requests that are not answered.
    in_flight: u32,
    /// The segment that is running: answers taken, requests made.
    taking: u32,
    making: u32,
    /// Requests made, and since when, for one with a rate of its own.
    made: f64,
    since_ns: f64,
    /// It will be told when its time has come.
    pub(super) is_due: bool,
    /// The ring: requests that nobody has taken, and when they were made.
    available: VecDeque<(u32, u64)>,
    /// It is in its worker's list.
    is_listed: bool,
    pub(super) worker: usize,
    /// The node of its memory.
    pub(super) node: usize,
    /// Requests answered in all.
    pub(super) requests: u64,
}

/// A worker.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkerState {
    /// Rings with requests.
    listed: VecDeque<usize>,
    /// The segment that is running: a ring and what was taken of it.
    ring: usize,
    taken: Vec<(u32, u64)>,
    /// What is left of the turn.
    left: u32,
    pub(super) busy_ns: f64,
    pub(super) cpu_ns: f64,
    pub(super) serves: bool,
    pub(super) served_lately: bool,
    /// The processor that it was started for.
    pub(super) seat: usize,
}

impl ClientState {
    pub(super) fn new(worker: usize, node: usize) -> ClientState {
        ClientState {
            answered: 0,
            in_flight: 0,
            taking: 0,
            making: 0,
            made: 0.0,
            since_ns: 0.0,
            is_due: false,
            available: VecDeque::new(),
            is_listed: false,
            worker,
            node,
            requests: 0,
        }
    }
}

impl World<'_> {
    /// A worker for this processor.
    pub(super) fn start_worker(&mut self, cpu: usize) {
        self.threads.push(Thread::new(cpu));
        self.workers.push(WorkerState { seat: cpu, ..WorkerState::default() });
    }

    /// What the client does next, and what that costs.
    pub(super) fn begin_client(&mut self, number: usize) -> Option<f64> {
        let (costs, client) = (&self.scenario.costs, &self.scenario.clients[number]);
        let now_ns = self.now_ns as f64;
        let it = &mut self.clients[number];
        it.taking = it.answered.min(client.batch);
        let room = client.depth.saturating_sub(it.in_flight + it.answered - it.taking);
        let wanted = if client.is_active(self.now_ns) { room.min(client.batch) } else { 0 };
        it.making = wanted;
        if client.interval_ns > 0.0 && wanted > 0 {
            // What could not be made in time is not made up for beyond the depth.
            let behind = (now_ns - it.since_ns) / client.interval_ns - it.made - f64::from(client.depth);
            it.since_ns += behind.max(0.0) * client.interval_ns;
            let may = ((now_ns - it.since_ns) / client.interval_ns - it.made).max(0.0);
            // What rounding leaves of a whole one is a whole one: a client of depth 1 would ask again every nanosecond.
            it.making = wanted.min((may + ROUNDING) as u32);
            if it.making == 0 && !it.is_due {
                it.is_due = true;
                let burst = f64::from(BURST.min(wanted));
                let at_ns = it.since_ns + (it.made + burst) * client.interval_ns;
                self.at(at_ns.max(now_ns) as u64 + 1, Event::Due(number));
            }
        }
        let it = &self.clients[number];
        if it.taking + it.making == 0 {
            return None;
        }
        let worker = &self.threads[self.clients.len() + it.worker];
        let line_ns = if worker.cpu == self.threads[number].cpu { 0.0 } else { costs.line_ns };
        Some(costs.client_call_ns + f64::from(it.taking + it.making) / 2.0 * (costs.client_request_ns + line_ns))
    }

    pub(super) fn end_client(&mut self, number: usize) {
        let now_ns = self.now_ns;
        let it = &mut self.clients[number];
        let (taken, made) = (std::mem::take(&mut it.taking), std::mem::take(&mut it.making));
        it.answered -= taken;
        it.in_flight += made;
        it.made += f64::from(made);
        if made > 0 {
            it.available.push_back((made, now_ns));
            self.list(number);
            let worker = self.clients.len() + self.clients[number].worker;
            if self.threads[worker].doing == super::Doing::Sleeping {
                self.threads[number].owed_ns += self.scenario.costs.kick_ns;
            }
            self.poke(worker);
        }
    }

    /// Puts a ring with requests into its worker's list.
    fn list(&mut self, ring: usize) {
        let it = &mut self.clients[ring];
        if !std::mem::replace(&mut it.is_listed, true) {
            self.workers[it.worker].listed.push_back(ring);
        }
    }

    /// What the worker does next, and what that costs.
    pub(super) fn begin_worker(&mut self, number: usize, cpu: usize) -> Option<f64> {
        let costs = &self.scenario.costs;
        let node = self.node(cpu);
        let it = &mut self.workers[number];
        let Some(ring) = it.listed.pop_front() else {
            it.left = 0;
            return None;
        };
        let client = &mut self.clients[ring];
        client.is_listed = false;
        (it.ring, it.serves) = (ring, true);
        let mut cost_ns = if it.left == 0 { costs.turn_ns } else { 0.0 };
        let mut room = costs.publish.max(1);
        let mut count = 0;
        while room > 0
            && let Some((requests, _)) = client.available.front_mut()
        {
            let part = room.min(*requests);
            *requests -= part;
            let is_empty = *requests == 0;
            let made_ns = client.available.front().map_or(0, |(_, made_ns)| *made_ns);
            it.taken.push((part, made_ns));
            (room, count) = (room - part, count + part);
            if is_empty {
                client.available.pop_front();
            }
        }
        it.left = if it.left == 0 { TURN_REQUESTS } else { it.left }.saturating_sub(count);
        // A worker that begins counts too.
        let shared = f64::from(self.copying[node] + 1) / costs.streams.max(1.0);
        let far = if self.copying.len() > 1 && client.node != node { costs.remote } else { 1.0 };
        let crowd_ns = costs.crowd_ns * self.copying.iter().map(|copying| f64::from(*copying)).sum::<f64>();
        cost_ns += f64::from(count) * (costs.request_ns + crowd_ns + costs.data_ns * far * shared.max(1.0));
        if !client.available.is_empty() {
            self.list(ring);
        }
        if self.threads[ring].doing == super::Doing::Sleeping {
            cost_ns += costs.notify_ns;
        }
        Some(cost_ns)
    }

    pub(super) fn end_worker(&mut self, number: usize) {
        let (now_ns, ring) = (self.now_ns, self.workers[number].ring);
        let mut count = 0;
        for (requests, made_ns) in self.workers[number].taken.drain(..) {
            self.measured.times.record(now_ns - made_ns, requests);
            count += requests;
        }
        let it = &mut self.clients[ring];
        it.in_flight -= count;
        it.answered += count;
        it.requests += u64::from(count);
        self.measured.requests += u64::from(count);
        self.tenth += u64::from(count);
        self.poke(ring);
    }

    /// Gives a ring to another worker: what it has taken it ends.
    pub(super) fn move_ring(&mut self, ring: usize, to: usize) {
        let from = std::mem::replace(&mut self.clients[ring].worker, to);
        for worker in [from, to] {
            let thread = self.clients.len() + worker;
            self.threads[thread].owed_ns += self.scenario.costs.move_ns;
        }
        if std::mem::take(&mut self.clients[ring].is_listed) {
            self.workers[from].listed.retain(|listed| *listed != ring);
            self.list(ring);
            self.poke(self.clients.len() + to);
        }
    }
}
