//! Members and rings in simulated time: what limits promise, with workers that wake late.

use super::gate::{Ask, Deadline, Gate};
use super::line::CATCH_UP_MAX;
use super::{Group, Limits, Rate, Throttle};
use engine::Token;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
/// A clock that has been running for a while.
const START: u64 = 1000 * SECOND;
/// What a ring takes in one turn of its worker.
const BATCH: u32 = 64;

/// A ring whose guest always wants more.
struct Ring {
    gate: Gate,
    member: usize,
    request_bytes: u64,
    /// How much later than others its worker wakes, always.
    slow_ns: u64,
}

/// Requests that passed at one time.
#[derive(Clone, Copy)]
struct Passed {
    ns: u64,
    member: usize,
    ring: usize,
    requests: u64,
    bytes: u64,
}

struct World {
    rings: Vec<Ring>,
    /// When, in which order, which ring, and the deadline that it waits for.
    events: BinaryHeap<Reverse<(u64, u64, usize, Token)>>,
    sequence: u64,
    late_max_ns: u64,
    random: u64,
    passed: Vec<Passed>,
}

impl World {
    fn new(late_max_ns: u64, seed: u64) -> World {
        World {
            rings: Vec::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            late_max_ns,
            random: seed | 1,
            passed: Vec::new(),
        }
    }

    /// A member with one ring for each size of requests, whose guest begins at `from_ns`.
    fn member(&mut self, member: usize, throttle: &Arc<Throttle>, sizes: &[u64], from_ns: u64) {
        for &request_bytes in sizes {
            let mut gate = Gate::default();
            gate.set(Some(throttle.clone()), from_ns);
            self.rings.push(Ring { gate, member, request_bytes, slow_ns: 0 });
            self.push(from_ns, self.rings.len() - 1, Token::request(0));
        }
    }

    fn push(&mut self, at_ns: u64, ring: usize, token: Token) {
        self.sequence += 1;
        self.events.push(Reverse((at_ns, self.sequence, ring, token)));
    }

    /// A deadline is reached late, by as much as chance says.
    fn wait(&mut self, ring: usize, deadline: Deadline) {
        // Marsaglia's xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let late_ns = self.random % (self.late_max_ns + 1) + self.rings[ring].slow_ns;
        self.push(deadline.at_ns + late_ns, ring, deadline.token);
    }

    fn run(&mut self, until_ns: u64) {
        while let Some(Reverse((now_ns, _, index, token))) = self.events.pop() {
            if now_ns > until_ns {
                self.push(now_ns, index, token);
                return;
            }
            self.serve(index, token, now_ns);
        }
    }

    fn serve(&mut self, index: usize, token: Token, now_ns: u64) {
        let ring = &mut self.rings[index];
        assert_eq!(ring.gate.reached(token, true, now_ns), None);
        if ring.gate.closed() {
            return;
        }
        loop {
            match ring.gate.ask(BATCH, now_ns) {
                Ask::Go(grant) => {
                    let (mut requests, mut bytes) = (0, 0);
                    while requests < grant.requests && bytes < grant.bytes {
                        requests += 1;
                        bytes += ring.request_bytes;
                    }
                    ring.gate.settle(grant, requests, bytes);
                    let (member, requests) = (ring.member, u64::from(requests));
                    self.passed.push(Passed { ns: now_ns, member, ring: index, requests, bytes });
                }
                Ask::Wait(deadline) => {
                    assert!(ring.gate.closed() && deadline.at_ns > now_ns);
                    return self.wait(index, deadline);
                }
            }
        }
    }

    fn sum(&self, wanted: impl Fn(&Passed) -> bool, unit: fn(&Passed) -> u64) -> u64 {
        self.passed.iter().filter(|passed| wanted(passed)).map(unit).sum()
    }

    /// The largest amount by which what passed in any span of time was more than `rate` allows in it.
    fn excess(&self, rate: Rate, unit: fn(&Passed) -> u64) -> f64 {
        let (mut level, mut last_ns, mut worst) = (0.0f64, START, 0.0f64);
        for passed in &self.passed {
            level = (level - (passed.ns - last_ns) as f64 * rate.per_second() as f64 / 1e9).max(0.0);
            level += unit(passed) as f64;
            last_ns = passed.ns;
            worst = worst.max(level);
        }
        worst
    }
}

fn requests(passed: &Passed) -> u64 {
    passed.requests
}

fn bytes(passed: &Passed) -> u64 {
    passed.bytes
}

fn of_requests(per_second: u64, burst: Option<u64>) -> Limits {
    Limits { requests: Some(Rate::new(per_second, burst)), bytes: None }
}

fn of_bytes(per_second: u64) -> Limits {
    Limits { requests: None, bytes: Some(Rate::new(per_second, None)) }
}

fn own(limits: Limits) -> Arc<Throttle> {
    Arc::new(Throttle::new(limits, None).unwrap())
}

fn in_group(group: &Arc<Group>) -> Arc<Throttle> {
    Arc::new(Throttle::new(Limits::default(), Some(group.clone())).unwrap())
}

/// Members of one group, each with the sizes of its rings' requests, all of which want all they can get for `time_ns`.
fn contest(limits: Limits, members: &[Vec<u64>], late_max_ns: u64, time_ns: u64, seed: u64) -> World {
    let group = Arc::new(Group::new("g", limits));
    let mut world = World::new(late_max_ns, seed);
    let throttles: Vec<_> = members.iter().map(|_| in_group(&group)).collect();
    for (number, (throttle, sizes)) in throttles.iter().zip(members).enumerate() {
        world.member(number, throttle, sizes, START);
    }
    world.run(START + time_ns);
    world
}

fn spread(world: &World, members: usize, unit: fn(&Passed) -> u64) -> u64 {
    let shares = (0..members).map(|member| world.sum(|passed| passed.member == member, unit));
    let (least, most) = shares.fold((u64::MAX, 0), |(least, most), share| (share.min(least), share.max(most)));
    most - least
}

#[test]
fn two_members_of_ten_thousand_get_half_each_and_one_alone_gets_all() {
    for late_max_ns in [0, 60_000, 2 * MS] {
        let world = contest(of_requests(10_000, None), &[vec![4096], vec![4096; 4]], late_max_ns, 5 * SECOND, 7);
        let share = world.sum(|passed| passed.member == 0, requests) as f64;
        let all = world.sum(|_| true, requests) as f64;
        assert!((0.48..0.52).contains(&(share / all)), "late {late_max_ns}: {share} of {all}");
        assert!((49_900.0..=51_000.0).contains(&all), "late {late_max_ns}: {all}");

        let world = contest(of_requests(10_000, None), &[vec![4096], vec![]], late_max_ns, 5 * SECOND, 7);
        let all = world.sum(|_| true, requests);
        assert!((49_900..=51_000).contains(&all), "late {late_max_ns}: {all}");
    }
}

#[test]
fn bytes_are_shared_evenly_whatever_the_size_of_requests() {
    let members = [vec![4096; 2], vec![1 << 20], vec![65_536; 3]];
    let world = contest(of_bytes(100 << 20), &members, 200_000, 10 * SECOND, 3);
    let fair = (1000u64 << 20) / 3;
    assert!(spread(&world, 3, bytes) < fair / 20, "{}", spread(&world, 3, bytes));
    assert!(world.sum(|_| true, bytes) > 990 << 20);
}

#[test]
fn who_comes_back_has_not_saved_anything_up() {
    let group = Arc::new(Group::new("g", of_requests(10_000, None)));
    let (busy, idle) = (in_group(&group), in_group(&group));
    let mut world = World::new(50_000, 11);
    world.member(0, &busy, &[512], START);
    world.member(1, &idle, &[512], START + 5 * SECOND);
    world.run(START + 6 * SECOND);
    let late = |member| world.sum(move |passed| passed.member == member && passed.ns >= START + 5 * SECOND, requests);
    let (one, other) = (late(0), late(1));
    assert!(one.abs_diff(other) <= 200, "{one} and {other}");
}

#[test]
fn a_member_that_wants_little_keeps_nobody_from_the_rest() {
    let group = Arc::new(Group::new("g", of_requests(10_000, None)));
    let (busy, sparing) = (in_group(&group), in_group(&group));
    let mut world = World::new(50_000, 5);
    world.member(0, &busy, &[512], START);
    let mut gate = Gate::default();
    gate.set(Some(sparing), START);
    let (mut spared, mut waits_for) = (0, None);
    for step in 0..500 {
        let now_ns = START + step * 10 * MS;
        world.run(now_ns);
        if let Some(token) = waits_for.take() {
            assert_eq!(gate.reached(token, true, now_ns), None);
        }
        match gate.ask(1, now_ns) {
            Ask::Go(grant) => {
                gate.settle(grant, 1, 512);
                spared += 1;
            }
            Ask::Wait(deadline) => waits_for = Some(deadline.token),
        }
    }
    let all = world.sum(|_| true, requests);
    assert!(all + spared > 49_000, "{all} and {spared}");
}

#[test]
fn no_ring_of_a_slow_export_starves() {
    for per_second in [10, 100, 3000] {
        let mut world = World::new(50_000, 9);
        world.member(0, &own(of_requests(per_second, None)), &[4096; 4], START);
        world.run(START + 4000 * SECOND / per_second);
        let all = world.sum(|_| true, requests);
        for ring in 0..4 {
            let share = world.sum(|passed| passed.ring == ring, requests);
            assert!(share > all / 8, "ring {ring} at {per_second} a second: {share} of {all}");
        }
    }
}

#[test]
fn a_ring_whose_worker_is_always_later_gets_its_part() {
    for per_second in [10, 100, 3000] {
        let mut world = World::new(0, 9);
        world.member(0, &own(of_requests(per_second, None)), &[4096; 2], START);
        world.rings[1].slow_ns = 30_000;
        world.run(START + 4000 * SECOND / per_second);
        let (all, slow) = (world.sum(|_| true, requests), world.sum(|passed| passed.ring == 1, requests));
        assert!(slow > all / 4, "{slow} of {all} at {per_second} a second");
        assert!(all > 3900, "{all}");
    }
}

#[test]
fn other_limits_hold_at_once() {
    let mut gate = Gate::default();
    assert!(matches!(gate.ask(BATCH, START), Ask::Go(grant) if grant.requests == BATCH && grant.bytes == u64::MAX));
    let slow = own(of_requests(1, None));
    gate.set(Some(slow), START);
    let Ask::Go(grant) = gate.ask(BATCH, START) else { panic!("the burst is there") };
    gate.settle(grant, grant.requests, 0);
    let Ask::Wait(deadline) = gate.ask(BATCH, START) else { panic!("one a second") };
    assert!(gate.closed());
    gate.set(Some(own(of_requests(1_000_000, None))), START + MS);
    assert!(!gate.closed());
    assert!(matches!(gate.ask(BATCH, START + MS), Ask::Go(_)));
    // The old deadline still comes, and means nothing.
    gate.set(Some(own(of_requests(1, None))), START + MS);
    while let Ask::Go(grant) = gate.ask(1, START + MS) {
        gate.settle(grant, 1, 0);
    }
    assert_eq!(gate.reached(deadline.token, true, START + SECOND), None);
    assert!(gate.closed());
    gate.set(None, START + SECOND);
    assert!(!gate.closed() && gate.held().ns.get() > 0);
}

#[test]
fn what_was_taken_is_paid_for_though_nothing_more_is_wanted() {
    let group = Arc::new(Group::new("g", of_bytes(1 << 20)));
    let (throttle, _other) = (in_group(&group), in_group(&group));
    let mut gate = Gate::default();
    gate.set(Some(throttle), START);
    let Ask::Go(grant) = gate.ask(BATCH, START) else { panic!("the burst is there") };
    gate.settle(grant, 1, 4 << 20);
    let Ask::Wait(mut deadline) = gate.ask(BATCH, START) else { panic!("there is a debt") };
    let mut reached = 0;
    while let Some(next) = gate.reached(deadline.token, false, deadline.at_ns) {
        (deadline, reached) = (next, reached + 1);
        assert!(reached < 10_000, "the debt is never paid");
    }
    let seconds = (deadline.at_ns - START) as f64 / 1e9;
    assert!((3.5..4.5).contains(&seconds), "{seconds}");
    assert!(matches!(gate.ask(BATCH, deadline.at_ns), Ask::Go(_)));
}

#[test]
fn a_ring_that_goes_leaves_nobody_waiting() {
    let throttle = own(of_requests(10, None));
    let mut world = World::new(0, 1);
    world.member(0, &throttle, &[512; 3], START);
    world.run(START + 10 * SECOND);
    world.rings.truncate(1);
    world.events.clear();
    world.passed.clear();
    let mut gate = Gate::default();
    gate.set(Some(throttle), START + 10 * SECOND);
    world.rings.push(Ring { gate, member: 0, request_bytes: 512, slow_ns: 0 });
    world.push(START + 10 * SECOND, 1, Token::request(0));
    world.run(START + 20 * SECOND);
    assert!(world.sum(|_| true, requests) >= 99);
}

fn members() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let size = prop::sample::select(vec![0u64, 512, 4096, 65_536, 1 << 20]);
    prop::collection::vec(prop::collection::vec(size, 1..4), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// In any span of time no more passes than the rate allows, and the burst.
    #[test]
    fn no_more_passes_than_rate_and_burst(
        per_second in prop_oneof![1u64..1000, 1000u64..1_000_000, Just(100_000_000u64)],
        burst in prop::option::of(1u64..100_000),
        members in members(),
        late_max_ns in prop_oneof![Just(0u64), Just(100_000), Just(5 * MS)],
        seed: u64,
    ) {
        let limits = of_requests(per_second, burst);
        let rate = limits.requests.unwrap();
        let quantum = rate.quantum_requests();
        let world = contest(limits, &members, late_max_ns, 100 * rate.span_ns(quantum), seed);
        let count = members.len() as u64;
        let ahead = if count > 1 { count + CATCH_UP_MAX } else { 2 };
        // Of several that missed turns each may come for its own at once.
        let missed = if count > 1 && late_max_ns > 0 { count * CATCH_UP_MAX * quantum } else { 0 };
        let most = rate.burst().max(ahead * quantum) + missed;
        prop_assert!(world.excess(rate, requests) <= most as f64 + 1.0, "{} > {most}", world.excess(rate, requests));
    }

    /// Bytes are counted when a request has been taken: the last one may overdraw, and is paid for.
    #[test]
    fn no_more_bytes_pass_than_rate_burst_and_the_last_requests(
        per_second in 1u64 << 12..1 << 30,
        sizes in prop::collection::vec(prop::sample::select(vec![512u64, 4096, 65_536, 1 << 20]), 1..5),
        seed: u64,
    ) {
        let limits = of_bytes(per_second);
        let rate = limits.bytes.unwrap();
        let mut world = World::new(100_000, seed);
        world.member(0, &own(limits), &sizes, START);
        world.run(START + 200 * rate.span_ns(rate.quantum_bytes()));
        let most = rate.burst().max(2 * rate.quantum_bytes()) + sizes.iter().max().unwrap();
        prop_assert!(world.excess(rate, bytes) <= most as f64 + 1.0);
    }

    /// One that is alone gets the rate: late wake-ups cost nothing, since the burst makes up for them.
    #[test]
    fn one_alone_gets_the_whole_rate(
        per_second in prop_oneof![1u64..1000, 1000u64..1_000_000, Just(100_000_000u64)],
        rings in 1usize..4,
        idle in 0usize..4,
        seed: u64,
    ) {
        let limits = of_requests(per_second, None);
        let rate = limits.requests.unwrap();
        let time_ns = (200 * rate.span_ns(rate.quantum_requests())).max(SECOND / 4);
        let mut members = vec![vec![4096; rings]];
        members.resize(1 + idle, vec![]);
        let world = contest(limits, &members, 500_000, time_ns, seed);
        let all = world.sum(|_| true, requests);
        let due = rate.units_in(time_ns);
        prop_assert!(all + 2 * rate.quantum_requests() + due / 100 >= due, "{all} of {due}");
    }

    /// Members that want all they can get have the same, whatever the size of their requests, the number of their rings and
    /// the moods of their workers.
    #[test]
    fn saturating_members_share_evenly(
        per_second in prop_oneof![10u64..1000, 1000u64..1_000_000],
        members in members(),
        late_max_ns in prop_oneof![Just(0u64), Just(100_000), Just(2 * MS)],
        seed: u64,
    ) {
        let limits = of_requests(per_second, None);
        let quantum = limits.requests.unwrap().quantum_requests();
        let quantum_ns = limits.requests.unwrap().span_ns(quantum);
        let world = contest(limits, &members, late_max_ns, 2000 * quantum_ns, seed);
        // The burst goes to whoever comes first; then each is at most the turns apart that one may have missed.
        let burst = limits.requests.unwrap().burst();
        let most = burst + 2 * CATCH_UP_MAX * quantum;
        let apart = spread(&world, members.len(), requests);
        prop_assert!(apart <= most, "{apart} > {most}");
    }

    /// The same for bytes.
    #[test]
    fn saturating_members_share_bytes_evenly(
        per_second in 1u64 << 20..1 << 30,
        seed: u64,
        small in 1usize..4,
    ) {
        let limits = of_bytes(per_second);
        let rate = limits.bytes.unwrap();
        let members = [vec![4096; small], vec![1 << 20]];
        let world = contest(limits, &members, 100_000, 2000 * rate.span_ns(rate.quantum_bytes()), seed);
        let most = rate.burst() + 2 * CATCH_UP_MAX * rate.quantum_bytes() + (2 << 20);
        prop_assert!(spread(&world, 2, bytes) <= most, "{} > {most}", spread(&world, 2, bytes));
    }
}
