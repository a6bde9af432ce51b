//! Closed-loop writers on a modelled device, event by event: how many requests a commit answers, and what that is worth.

use super::{Decision, Here, Policy};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A writer asks for a commit.
    Arrives,
    /// The wait with this number is over.
    Deadline(u64),
    /// The device has done what it was given with this number.
    Written(u64),
}

struct Commit {
    number: u64,
    requests: usize,
    began_ns: u64,
    beside: bool,
    written: bool,
}

/// What came of a run.
#[derive(Debug)]
struct Outcome {
    requests: u64,
    commits: u64,
    waits: u64,
    took_ns: u64,
}

impl Outcome {
    fn requests_a_commit(&self) -> f64 {
        self.requests as f64 / self.commits as f64
    }

    fn requests_a_second(&self) -> f64 {
        self.requests as f64 * 1e9 / self.took_ns as f64
    }
}

/// The same protocol as the committer's: one leader at a time, completion in order.
struct World {
    policy: Policy,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    random: u64,
    now_ns: u64,
    /// When each channel of the device is free.
    channels: Vec<u64>,
    commit_ns: u64,
    think_ns: u64,
    gathered: usize,
    /// A wait under way: its number, when it began, and with how many.
    waiting: Option<(u64, u64, usize)>,
    commits: Vec<Commit>,
    outcome: Outcome,
}

impl World {
    fn new(writers: usize, channels: usize, commit_ns: u64, think_ns: u64) -> World {
        let mut world = World {
            policy: Policy::new(),
            events: BinaryHeap::new(),
            number: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            now_ns: 0,
            channels: vec![0; channels],
            commit_ns,
            think_ns,
            gathered: 0,
            waiting: None,
            commits: Vec::new(),
            outcome: Outcome { requests: 0, commits: 0, waits: 0, took_ns: 0 },
        };
        for _ in 0..writers {
            world.think();
        }
        world
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at_ns, self.number, event)));
    }

    /// A writer thinks between half and one and a half of the mean.
    fn think(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let think_ns = self.think_ns / 2 + self.random % self.think_ns.max(1);
        self.at(self.now_ns + think_ns, Event::Arrives);
    }

    fn decide(&mut self) {
        if self.gathered == 0 || self.waiting.is_some() {
            return;
        }
        let in_flight = self.commits.iter().map(|commit| commit.requests).sum();
        let here = Here { gathered: self.gathered, commits: self.commits.len(), in_flight };
        match self.policy.decide(self.now_ns, here) {
            Decision::Start => self.start(),
            Decision::Behind => {}
            Decision::Until { at_ns } => {
                self.outcome.waits += 1;
                self.number += 1;
                self.waiting = Some((self.number, self.now_ns, self.gathered));
                let number = self.number;
                self.at(at_ns, Event::Deadline(number));
            }
        }
    }

    fn start(&mut self) {
        if let Some((_, since_ns, before)) = self.waiting.take() {
            self.policy.waited(self.now_ns - since_ns, before, self.gathered);
        }
        let channel = self.channels.iter_mut().min().unwrap();
        let end_ns = self.now_ns.max(*channel) + self.commit_ns;
        *channel = end_ns;
        self.number += 1;
        let commit = Commit {
            number: self.number,
            requests: std::mem::take(&mut self.gathered),
            began_ns: self.now_ns,
            beside: !self.commits.is_empty(),
            written: false,
        };
        self.at(end_ns, Event::Written(commit.number));
        self.commits.push(commit);
    }

    fn written(&mut self, number: u64) {
        for commit in &mut self.commits {
            commit.written |= commit.number == number;
        }
        while self.commits.first().is_some_and(|commit| commit.written) {
            let commit = self.commits.remove(0);
            self.outcome.commits += 1;
            self.outcome.requests += commit.requests as u64;
            let took_ns = self.now_ns - commit.began_ns;
            self.policy.completed(took_ns, commit.requests, self.gathered, commit.beside);
            for _ in 0..commit.requests {
                self.think();
            }
        }
    }

    fn run(mut self, commits: u64) -> Outcome {
        while self.outcome.commits < commits {
            let Reverse((at_ns, _, event)) = self.events.pop().unwrap();
            self.now_ns = at_ns;
            match event {
                Event::Arrives => {
                    self.gathered += 1;
                    if self.waiting.is_some() && self.policy.is_enough(self.gathered) {
                        self.start();
                    }
                }
                Event::Deadline(number) if self.waiting.is_some_and(|(mine, ..)| mine == number) => self.start(),
                Event::Deadline(_) => {}
                Event::Written(number) => self.written(number),
            }
            self.decide();
        }
        self.outcome.took_ns = self.now_ns;
        self.outcome
    }
}

fn run(writers: usize, channels: usize, commit_ns: u64, think_ns: u64) -> Outcome {
    World::new(writers, channels, commit_ns, think_ns).run(2000)
}

#[test]
fn a_lone_writer_pays_one_commit_a_request_and_no_wait() {
    for channels in [1, 32] {
        for commit_ns in [50 * US, MS, 5 * MS] {
            let outcome = run(1, channels, commit_ns, 30 * US);
            assert_eq!(outcome.requests, outcome.commits);
            assert_eq!(outcome.waits, 0);
        }
    }
}

#[test]
fn a_commit_carries_nearly_all_writers() {
    for (writers, least) in [(2, 1.9), (8, 7.5), (32, 30.0)] {
        for channels in [1, 32] {
            for think_ns in [10 * US, 100 * US, 300 * US] {
                let outcome = run(writers, channels, 5 * MS, think_ns);
                let carried = outcome.requests_a_commit();
                assert!(carried >= least, "{writers} writers, {channels} channels, {think_ns} ns: {outcome:?}");
            }
        }
    }
}

#[test]
fn two_parties_become_one_on_a_fast_device() {
    // Writers are back after a third of a commit. Half of them behind each commit of the others would be the worse for all.
    for writers in [8, 32] {
        let (commit_ns, think_ns) = (170 * US, 60 * US);
        let outcome = run(writers, 1, commit_ns, think_ns);
        let parties = (writers / 2) as f64 * 1e9 / commit_ns as f64;
        assert!(outcome.requests_a_second() > 1.2 * parties, "{writers} writers: {outcome:?}");
        assert!(outcome.requests_a_commit() > 0.75 * writers as f64, "{writers} writers: {outcome:?}");
    }
}

#[test]
fn sharing_beats_a_flush_each_on_a_serial_device() {
    for (writers, least) in [(1, 0.999), (8, 6.0), (32, 24.0)] {
        let think_ns = 50 * US;
        // Each request a flush of its own: one after the other for as many writers as there are.
        let alone = if writers == 1 { 1e9 / (5 * MS + think_ns) as f64 } else { 1e9 / (5 * MS) as f64 };
        let ratio = run(writers, 1, 5 * MS, think_ns).requests_a_second() / alone;
        assert!(ratio >= least, "{writers} writers: {ratio}");
    }
}

#[test]
fn sharing_costs_little_where_flushes_run_side_by_side() {
    for writers in [1, 8, 32] {
        let think_ns = 50 * US;
        let each = writers as f64 * 1e9 / (5 * MS + think_ns) as f64;
        let ratio = run(writers, 64, 5 * MS, think_ns).requests_a_second() / each;
        assert!(ratio >= 0.9, "{writers} writers: {ratio}");
    }
}

#[test]
fn writers_that_think_longer_than_a_wait_lose_little_by_it() {
    // Nobody is back within a tenth of a commit: waits have to be found out as useless, and left.
    for writers in [2, 8] {
        let outcome = run(writers, 1, 5 * MS, 20 * MS);
        assert!(outcome.waits * 4 < outcome.commits, "{writers} writers: {outcome:?}");
    }
}
