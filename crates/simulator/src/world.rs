//! The simulation: events in the order of their times, threads on processors.
//!
//! A thread runs in *segments*: a client's submission, a worker's part of one ring's turn. What a segment does shows at its end, and what
//! it costs is known when it begins. Between segments a thread may be taken off its processor.

mod parties;
mod placed;

use crate::outcome::{Outcome, Times};
use crate::scenario::{Placing, Scenario};
use parties::{ClientState, WorkerState};
use policy::balance::{Balance, LOOK_NS, Verdict};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

const TENTH_NS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The segment on a processor is over.
    Ended(usize),
    /// A thread that was asleep is to run.
    Woken(usize),
    /// A thread has polled for long enough, if that is still what it does.
    PolledOut(usize, u64),
    /// A client's time has come.
    Due(usize),
    /// The policy has a look.
    Look,
    /// From here on it counts.
    Warm,
    /// A tenth of a second is over.
    Tenth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Sleeping,
    Waking,
    Queued,
    Running,
    /// On a processor, without anything to do: polling, or on its way to sleep.
    Polling,
}

/// A client's thread or a worker's.
#[derive(Clone, Debug)]
struct Thread {
    doing: Doing,
    /// Where it runs, or ran last.
    cpu: usize,
    /// When it was given the processor.
    since_ns: u64,
    /// When it began to poll.
    polls_since_ns: u64,
    polls: u64,
    /// What its next segment costs on top.
    owed_ns: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Processor {
    thread: Option<usize>,
    last: Option<usize>,
    /// A worker's segment is running: it counts for the node's memory.
    copies: bool,
}

/// Counters of everything since the warm-up.
#[derive(Clone, Debug, Default)]
struct Measured {
    requests: u64,
    busy_ns: f64,
    cpu_ns: f64,
    times: Times,
}

pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    /// The clients', then the workers'.
    threads: Vec<Thread>,
    clients: Vec<ClientState>,
    workers: Vec<WorkerState>,
    /// The workers', then the clients'.
    cpus: Vec<Processor>,
    /// Threads that wait for a processor: of the workers' processors, and of the clients'.
    queues: [VecDeque<usize>; 2],
    /// Workers that copy, by node.
    copying: Vec<u32>,
    balance: Option<Balance>,
    verdicts: Vec<Verdict>,
    measured: Measured,
    tenth: u64,
    tenths: Vec<u64>,
}

impl<'a> World<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> World<'a> {
        let host = scenario.host;
        let rings = scenario.clients.len();
        let guests = if host.guests_apart { rings } else { 0 };
        let mut world = World {
            scenario,
            now_ns: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            threads: Vec::new(),
            clients: Vec::new(),
            workers: Vec::new(),
            cpus: vec![Processor::default(); usize::from(host.processors.max(1)) + guests],
            queues: [VecDeque::new(), VecDeque::new()],
            copying: vec![0; usize::from(host.nodes.max(1))],
            balance: None,
            verdicts: Vec::new(),
            measured: Measured::default(),
            tenth: 0,
            tenths: Vec::new(),
        };
        let (workers, homes): (u32, Vec<u32>) = match &scenario.placing {
            Placing::Workers(workers) => {
                let workers = (*workers).max(1);
                (workers, (0..rings as u32).map(|ring| ring % workers).collect())
            }
            Placing::Fixed(homes) => (homes.iter().max().map_or(1, |last| last + 1), homes.clone()),
            Placing::Policy(favour) => {
                world.balance = Some(Balance::new(*favour));
                (1, vec![0; rings])
            }
        };
        for ring in 0..rings {
            let cpu = if host.guests_apart { usize::from(host.processors) + ring } else { 0 };
            world.threads.push(Thread::new(cpu));
            let home = homes.get(ring).copied().unwrap_or_default() as usize;
            world.clients.push(ClientState::new(home, ring % usize::from(host.nodes.max(1))));
        }
        for worker in 0..workers {
            world.start_worker(worker as usize % usize::from(host.processors.max(1)));
        }
        for ring in 0..rings {
            for (at_ns, _) in &scenario.clients[ring].active {
                world.at(*at_ns, Event::Due(ring));
            }
            // Clients do not begin all at once.
            world.at(ring as u64 * 977, Event::Due(ring));
        }
        world.at(scenario.warm_ns, Event::Warm);
        world.at(TENTH_NS, Event::Tenth);
        world.at(LOOK_NS, Event::Look);
        world
    }

    pub(crate) fn run(mut self) -> Outcome {
        let end_ns = self.scenario.warm_ns.saturating_add(self.scenario.run_ns);
        while let Some(Reverse((at_ns, _, event))) = self.events.pop() {
            if at_ns > end_ns {
                break;
            }
            self.now_ns = at_ns;
            match event {
                Event::Ended(cpu) => self.ended(cpu),
                Event::Woken(thread) => self.runnable(thread),
                Event::PolledOut(thread, polls) => {
                    if self.threads[thread].doing == Doing::Polling && self.threads[thread].polls == polls {
                        self.polled(thread);
                        self.sleep(thread);
                    }
                }
                Event::Due(client) => {
                    self.clients[client].is_due = false;
                    self.poke(client);
                }
                Event::Look => self.look(),
                Event::Warm => self.measured = Measured::default(),
                Event::Tenth => {
                    self.tenths.push(std::mem::take(&mut self.tenth));
                    for worker in &mut self.workers {
                        worker.served_lately = std::mem::take(&mut worker.serves);
                    }
                    self.at(at_ns + TENTH_NS, Event::Tenth);
                }
            }
        }
        let measured = &self.measured;
        let seconds = self.scenario.run_ns as f64 / 1e9;
        let outcome = Outcome::new(seconds, measured.requests, (measured.busy_ns, measured.cpu_ns), &measured.times);
        let serving = self.workers.iter().filter(|worker| worker.served_lately).count() as u32;
        Outcome { serving, tenths: self.tenths, verdicts: self.verdicts, ..outcome }
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at_ns, self.sequence, event)));
    }

    fn after(&mut self, ns: f64, event: Event) {
        self.at(self.now_ns.saturating_add(ns.max(1.0) as u64), event);
    }

    /// The first and the last but one of the processors that a thread may run on, and its queue.
    fn range(&self, thread: usize) -> (usize, usize, usize) {
        let processors = usize::from(self.scenario.host.processors.max(1));
        let is_guest = thread < self.clients.len() && self.scenario.host.guests_apart;
        if is_guest { (processors, self.cpus.len(), 1) } else { (0, processors, 0) }
    }

    /// There is something to do for a thread.
    fn poke(&mut self, thread: usize) {
        match self.threads[thread].doing {
            Doing::Sleeping => {
                self.threads[thread].doing = Doing::Waking;
                let (from, to, _) = self.range(thread);
                if self.cpus[from..to].iter().any(|cpu| cpu.thread.is_none()) {
                    self.after(self.scenario.costs.wake_ns, Event::Woken(thread));
                } else {
                    self.runnable(thread);
                }
            }
            Doing::Polling => {
                self.polled(thread);
                self.begin(self.threads[thread].cpu);
            }
            Doing::Waking | Doing::Queued | Doing::Running => {}
        }
    }

    /// A thread wants a processor: its last one if that is idle, else one whose core is, else any.
    fn runnable(&mut self, thread: usize) {
        let (from, to, queue) = self.range(thread);
        let last = self.threads[thread].cpu;
        let is_idle = |cpu: usize| self.cpus[cpu].thread.is_none();
        let is_free = |cpu: usize| is_idle(cpu) && self.sibling(cpu).is_none_or(is_idle);
        let idle = || (from..to).find(|cpu| is_free(*cpu)).or_else(|| (from..to).find(|cpu| is_idle(*cpu)));
        let cpu = if (from..to).contains(&last) && is_free(last) { Some(last) } else { idle() };
        match cpu {
            Some(cpu) => self.dispatch(cpu, thread),
            None => {
                self.threads[thread].doing = Doing::Queued;
                self.queues[queue].push_back(thread);
            }
        }
    }

    fn dispatch(&mut self, cpu: usize, thread: usize) {
        let is_other = self.cpus[cpu].last != Some(thread);
        self.cpus[cpu].thread = Some(thread);
        self.cpus[cpu].last = Some(thread);
        let now_ns = self.now_ns;
        let it = &mut self.threads[thread];
        (it.cpu, it.since_ns) = (cpu, now_ns);
        if is_other {
            it.owed_ns += self.scenario.costs.switch_ns;
        }
        self.begin(cpu);
    }

    /// Begins the next segment of the thread on a processor, or has it poll or sleep.
    fn begin(&mut self, cpu: usize) {
        let Some(thread) = self.cpus[cpu].thread else { return };
        let is_client = thread < self.clients.len();
        let cost =
            if is_client { self.begin_client(thread) } else { self.begin_worker(thread - self.clients.len(), cpu) };
        let Some(cost_ns) = cost else {
            let costs = &self.scenario.costs;
            let looks_ns = costs.sleep_ns + if is_client { 0.0 } else { costs.poll_ns };
            let now_ns = self.now_ns;
            let it = &mut self.threads[thread];
            (it.doing, it.polls_since_ns) = (Doing::Polling, now_ns);
            it.polls += 1;
            let polls = it.polls;
            self.after(looks_ns, Event::PolledOut(thread, polls));
            return;
        };
        let factor = match self.sibling(cpu) {
            Some(sibling) if self.cpus[sibling].thread.is_some() => self.scenario.costs.sibling,
            _ => 1.0,
        };
        let it = &mut self.threads[thread];
        it.doing = Doing::Running;
        let cost_ns = cost_ns * factor + std::mem::take(&mut it.owed_ns);
        if !is_client {
            let node = self.node(cpu);
            self.cpus[cpu].copies = true;
            self.copying[node] += 1;
            self.took(thread - self.clients.len(), cost_ns, true);
        }
        self.after(cost_ns, Event::Ended(cpu));
    }

    fn ended(&mut self, cpu: usize) {
        let Some(thread) = self.cpus[cpu].thread else { return };
        if thread < self.clients.len() {
            self.end_client(thread);
        } else {
            if std::mem::take(&mut self.cpus[cpu].copies) {
                let node = self.node(cpu);
                self.copying[node] -= 1;
            }
            self.end_worker(thread - self.clients.len());
        }
        let (_, _, queue) = self.range(thread);
        let had_ns = self.now_ns - self.threads[thread].since_ns;
        if had_ns as f64 >= self.scenario.costs.slice_ns
            && let Some(next) = self.queues[queue].pop_front()
        {
            self.threads[thread].doing = Doing::Queued;
            self.queues[queue].push_back(thread);
            self.dispatch(cpu, next);
        } else {
            self.begin(cpu);
        }
    }

    /// A thread gives its processor up.
    fn sleep(&mut self, thread: usize) {
        let it = &mut self.threads[thread];
        it.doing = Doing::Sleeping;
        let cpu = it.cpu;
        let (_, _, queue) = self.range(thread);
        self.cpus[cpu].thread = None;
        if let Some(next) = self.queues[queue].pop_front() {
            self.dispatch(cpu, next);
        }
    }

    /// A worker has polled until now.
    fn polled(&mut self, thread: usize) {
        if let Some(worker) = thread.checked_sub(self.clients.len()) {
            let ns = self.now_ns - self.threads[thread].polls_since_ns;
            self.took(worker, ns as f64, false);
        }
    }

    /// A worker takes so much of a processor.
    fn took(&mut self, worker: usize, ns: f64, is_busy: bool) {
        let it = &mut self.workers[worker];
        it.cpu_ns += ns;
        self.measured.cpu_ns += ns;
        if is_busy {
            it.busy_ns += ns;
            self.measured.busy_ns += ns;
        }
    }

    fn node(&self, cpu: usize) -> usize {
        let host = self.scenario.host;
        (cpu * self.copying.len() / usize::from(host.processors.max(1))).min(self.copying.len() - 1)
    }

    fn sibling(&self, cpu: usize) -> Option<usize> {
        let host = self.scenario.host;
        let other = cpu ^ 1;
        (host.threads == 2 && cpu.max(other) < usize::from(host.processors)).then_some(other)
    }
}

impl Thread {
    fn new(cpu: usize) -> Thread {
        Thread { doing: Doing::Sleeping, cpu, since_ns: 0, polls_since_ns: 0, polls: 0, owed_ns: 0.0 }
    }
}
