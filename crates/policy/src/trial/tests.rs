//! The policy on machines that are played.

use super::rounds::NOISE;
use super::*;
use proptest::prelude::*;

/// A machine on which each tactic has its price, in nanoseconds a request.
pub(crate) struct Machine {
    pub(crate) prices: [(f64, f64); 3],
    /// A stretch may take so much more or less, as a share.
    noise: f64,
    random: u64,
    now: Sample,
}

impl Machine {
    pub(crate) fn new(prices: [(f64, f64); 3], noise: f64) -> Machine {
        Machine { prices, noise, random: 0x9e37_79b9_7f4a_7c15, now: Sample::default() }
    }

    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Serves for so long, and says what was decided.
    fn run(&mut self, trial: &mut Trial, seconds: f64) -> Vec<Verdict> {
        self.drive(trial, seconds, Trial::look)
    }

    /// The same, with somebody between who shows the samples.
    pub(crate) fn drive(
        &mut self,
        trial: &mut Trial,
        seconds: f64,
        mut look: impl FnMut(&mut Trial, Sample) -> Option<Verdict>,
    ) -> Vec<Verdict> {
        let end_ns = self.now.at_ns + (seconds * 1e9) as u64;
        let mut verdicts = Vec::new();
        while self.now.at_ns < end_ns {
            let (time_ns, cpu_ns) = self.prices[trial.tactic().index()];
            let factor = 1.0 + self.noise * (2.0 * self.random() - 1.0);
            // A turn's worth of requests between two looks at the clock.
            let requests = (200_000.0 / time_ns).max(1.0).floor();
            self.now.requests += requests as u64;
            self.now.waits += requests as u64;
            self.now.at_ns += (requests * time_ns * factor) as u64;
            self.now.cpu_ns += (requests * cpu_ns * factor) as u64;
            if trial.is_due(self.now.at_ns) {
                verdicts.extend(look(trial, self.now));
            }
        }
        verdicts
    }
}

fn chosen(favour: Favour, prices: [(f64, f64); 3]) -> Tactic {
    let mut trial = Trial::new(favour);
    Machine::new(prices, 0.1).run(&mut trial, 2.0);
    trial.chosen()
}

#[test]
fn the_fastest_is_found_within_two_seconds() {
    for favour in Favour::ALL {
        assert_eq!(chosen(favour, [(20e3, 9e3), (40e3, 12e3), (10e3, 10e3)]), Tactic::Spin, "{favour}");
        assert_eq!(chosen(favour, [(100e3, 60e3), (70e3, 20e3), (110e3, 100e3)]), Tactic::Sleep, "{favour}");
        assert_eq!(chosen(favour, [(10e3, 8e3), (30e3, 12e3), (14e3, 14e3)]), Tactic::Learned, "{favour}");
    }
}

#[test]
fn what_is_favoured_decides_between_the_fast_and_the_cheap() {
    let alike = [(100e3, 90e3), (101e3, 30e3), (100e3, 100e3)];
    assert_eq!(chosen(Favour::Latency, alike), Tactic::Learned);
    assert_eq!(chosen(Favour::Balance, alike), Tactic::Sleep);
    assert_eq!(chosen(Favour::Efficiency, alike), Tactic::Sleep);
    let dear = [(100e3, 90e3), (112e3, 30e3), (100e3, 100e3)];
    assert_eq!(chosen(Favour::Latency, dear), Tactic::Learned);
    assert_eq!(chosen(Favour::Balance, dear), Tactic::Learned);
    assert_eq!(chosen(Favour::Efficiency, dear), Tactic::Sleep);
}

/// Another load is met by another trial, at once and not when the rest is over.
#[test]
fn a_load_that_changes_is_tried_anew() {
    let mut trial = Trial::new(Favour::Balance);
    let mut machine = Machine::new([(20e3, 9e3), (40e3, 12e3), (10e3, 10e3)], 0.1);
    machine.run(&mut trial, 60.0);
    assert_eq!(trial.chosen(), Tactic::Spin);
    for round in 0..20 {
        machine.prices = [(100e3, 60e3), (70e3, 20e3), (110e3, 100e3)];
        machine.run(&mut trial, 2.0);
        assert_eq!(trial.chosen(), Tactic::Sleep, "round {round}");
        machine.prices = [(20e3, 9e3), (40e3, 12e3), (10e3, 10e3)];
        machine.run(&mut trial, 2.0);
        assert_eq!(trial.chosen(), Tactic::Spin, "round {round}");
    }
}

/// What was found for one load is not what holds for another that comes after a pause, however long the rest would last; and the
/// same load is not tried for coming back.
#[test]
fn another_load_behind_a_pause_is_tried_anew_and_the_same_is_not() {
    const SLEEP_WINS: [(f64, f64); 3] = [(100e3, 60e3), (70e3, 20e3), (110e3, 100e3)];
    const SPIN_WINS: [(f64, f64); 3] = [(20e3, 9e3), (40e3, 12e3), (10e3, 10e3)];
    let mut machine = Machine::new(SLEEP_WINS, 0.1);
    let mut trial = Trial::new(Favour::Balance);
    let pause = |machine: &mut Machine, trial: &mut Trial| {
        machine.prices = [(50e6, 20e3); 3];
        machine.run(trial, 1.0);
        assert_eq!(trial.state, State::Quiet);
    };
    machine.run(&mut trial, 70.0);
    assert_eq!(trial.chosen(), Tactic::Sleep);
    assert!(trial.rests_until_ns > machine.now.at_ns + 20_000_000_000, "the rest is long by now");
    pause(&mut machine, &mut trial);
    machine.prices = SLEEP_WINS;
    assert_eq!(machine.run(&mut trial, 5.0), []);
    assert_eq!(trial.chosen(), Tactic::Sleep);
    pause(&mut machine, &mut trial);
    machine.prices = SPIN_WINS;
    machine.run(&mut trial, 2.0);
    assert_eq!(trial.chosen(), Tactic::Spin);
}

#[test]
fn stalls_do_not_keep_a_trial_from_its_end() {
    let mut trial = Trial::new(Favour::Balance);
    let mut machine = Machine::new([(0.0, 0.0); 3], 0.1);
    let mut verdicts = 0;
    while machine.now.at_ns < 10_000_000_000 {
        let stalls = machine.now.at_ns % 180_000_000 < 1_000_000;
        machine.prices = if stalls { [(45e6, 50e3); 3] } else { [(120e3, 60e3), (80e3, 20e3), (130e3, 100e3)] };
        verdicts += machine.run(&mut trial, 0.0005).len();
    }
    assert!(verdicts >= 2, "{verdicts} verdicts");
    assert_eq!(trial.chosen(), Tactic::Sleep);
}

#[test]
fn another_favour_leaves_what_was_found_until_it_is_tried() {
    let mut trial = Trial::new(Favour::Balance);
    let mut machine = Machine::new([(100e3, 90e3), (112e3, 30e3), (90e3, 100e3)], 0.05);
    machine.run(&mut trial, 30.0);
    assert_eq!(trial.chosen(), Tactic::Spin);
    trial.set_favour(Favour::Efficiency);
    assert_eq!((trial.chosen(), trial.tactic()), (Tactic::Spin, Tactic::Spin));
    assert_eq!(trial.last.map(|last| last.at_ns > 0), Some(true));
    // At the next look it is tried, and not when some rest is over.
    machine.run(&mut trial, 0.5);
    assert_ne!(trial.chosen(), Tactic::Spin);
    // In the middle of a trial as well, and without a load it waits for one.
    trial.set_favour(Favour::Balance);
    while !matches!(trial.state, State::Trying(_)) {
        machine.run(&mut trial, 0.001);
    }
    let chosen = trial.chosen();
    trial.set_favour(Favour::Latency);
    assert_eq!((trial.chosen(), &trial.state), (chosen, &State::Resting));
    machine.prices = [(50e6, 20e3); 3];
    machine.run(&mut trial, 1.0);
    trial.set_favour(Favour::Efficiency);
    assert_eq!((trial.chosen(), &trial.state), (Tactic::Learned, &State::Quiet));
}

/// A device whose pace changes all the time, by which nothing else becomes the better choice, is not tried all the time.
#[test]
fn an_unsteady_device_is_left_alone_in_the_end() {
    let mut trial = Trial::new(Favour::Balance);
    let mut machine = Machine::new([(0.0, 0.0); 3], 0.1);
    let mut trials = 0;
    for second in 0..120 {
        let time_ns = if second % 2 == 0 { 20e3 } else { 60e3 };
        machine.prices = [(time_ns, time_ns / 2.0), (time_ns, time_ns / 2.0), (time_ns * 1.2, time_ns)];
        trials += machine.run(&mut trial, 1.0).len();
    }
    assert!((4..20).contains(&trials), "{trials} trials");
    assert_eq!(trial.chosen(), Tactic::Learned);
}

#[test]
fn without_a_load_nothing_is_tried_and_nothing_of_it_stays() {
    let mut trial = Trial::new(Favour::Balance);
    let mut machine = Machine::new([(100e3, 60e3), (70e3, 20e3), (110e3, 100e3)], 0.1);
    machine.run(&mut trial, 3.0);
    assert_eq!(trial.chosen(), Tactic::Sleep);
    machine.prices = [(50e6, 20e3); 3];
    assert_eq!(machine.run(&mut trial, 60.0), []);
    assert_eq!((trial.chosen(), trial.tactic()), (Tactic::Learned, Tactic::Learned));
    assert_eq!(trial.state, State::Quiet);
    // What was found holds as soon as there is a load again, and is tried before long.
    machine.prices = [(100e3, 60e3), (70e3, 20e3), (110e3, 100e3)];
    machine.run(&mut trial, 0.15);
    assert_eq!(trial.chosen(), Tactic::Sleep);
}

/// The share of time that trials take of a load which comes and goes, or lets a turn fail now and then.
fn tried_share(mut prices: impl FnMut(u64) -> (f64, f64)) -> f64 {
    let mut trial = Trial::new(Favour::Balance);
    let mut machine = Machine::new([(0.0, 0.0); 3], 0.1);
    let (mut tried_ns, mut last_ns) = (0, 0);
    while machine.now.at_ns < 100_000_000_000 {
        let is_trying = matches!(trial.state, State::Trying(_));
        machine.prices = [prices(machine.now.at_ns); 3];
        machine.run(&mut trial, 0.0005);
        tried_ns += if is_trying { machine.now.at_ns - last_ns } else { 0 };
        last_ns = machine.now.at_ns;
    }
    tried_ns as f64 / last_ns as f64
}

#[test]
fn trials_that_come_to_nothing_are_not_begun_again_and_again() {
    // Bursts that are too short for a trial; a load about the least that counts; stalls in the middle.
    let bursts = |at_ns: u64| if at_ns % 1_000_000_000 < 200_000_000 { (200e3, 50e3) } else { (50e6, 50e3) };
    let sparse = |_| (900e3, 50e3);
    let stalls = |at_ns: u64| if at_ns % 200_000_000 < 100_000 { (60e6, 50e3) } else { (20e3, 10e3) };
    let shares = [tried_share(bursts), tried_share(sparse), tried_share(stalls)];
    assert!(shares.iter().all(|share| *share < 0.05), "{shares:?}");
}

/// A trial costs what it costs: the share of time in which another tactic than the chosen one is used.
#[test]
fn little_time_goes_into_trials() {
    let mut trial = Trial::new(Favour::Balance);
    let mut machine = Machine::new([(10e3, 9e3), (30e3, 12e3), (10e3, 10e3)], 0.1);
    let (mut tried_ns, mut last_ns) = (0, 0);
    while machine.now.at_ns < 100_000_000_000 {
        let is_trying = trial.tactic() != trial.chosen();
        machine.run(&mut trial, 0.0005);
        tried_ns += if is_trying { machine.now.at_ns - last_ns } else { 0 };
        last_ns = machine.now.at_ns;
    }
    assert!(tried_ns < 1_000_000_000, "{tried_ns} ns of 100 s");
}

fn prices() -> impl Strategy<Value = [(f64, f64); 3]> {
    let price = || (1e3..200e3_f64, 0.05..1.0_f64).prop_map(|(time, busy)| (time, time * busy));
    [price(), price(), price()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Of any stationary load: what is chosen is nearly as good as the best, and it is chosen once.
    #[test]
    fn a_stationary_load_has_one_choice_and_it_is_a_good_one(prices in prices(), noise in 0.0..0.15_f64) {
        for favour in Favour::ALL {
            let mut trial = Trial::new(favour);
            let mut machine = Machine::new(prices, noise);
            machine.run(&mut trial, 3.0);
            let late = machine.run(&mut trial, 60.0);
            let changes = late.iter().filter(|verdict| verdict.before != verdict.after).count();
            prop_assert!(changes <= 2, "{changes} changes in a minute: {late:?}");
            let best = prices.iter().map(|(time_ns, _)| *time_ns).fold(f64::INFINITY, f64::min);
            let (time_ns, cpu_ns) = prices[trial.chosen().index()];
            let tolerance = 1.0 + favour.tolerance().unwrap_or_default() + 3.0 * NOISE;
            prop_assert!(time_ns <= best * tolerance, "{favour}: {time_ns} for {best}");
            if favour.tolerance().is_some() {
                let cheapest = prices.iter().filter(|(time_ns, _)| *time_ns <= best * 1.01);
                let cheapest = cheapest.map(|(_, cpu_ns)| *cpu_ns).fold(f64::INFINITY, f64::min);
                prop_assert!(cpu_ns <= 1.2 * cheapest, "{favour}: {cpu_ns} ns of processor time for {cheapest}");
            }
        }
    }

    /// Whatever comes in, in whatever order: something sane comes out, and the next look is never far.
    #[test]
    fn nonsense_makes_no_nonsense(samples in prop::collection::vec(any::<[u64; 4]>(), 0..400), small: bool) {
        let mut trial = Trial::new(Favour::Balance);
        for [at_ns, requests, waits, cpu_ns] in samples {
            let within = |value: u64| if small { value % 100_000_000 } else { value };
            let sample =
                Sample { at_ns: within(at_ns), requests: within(requests), waits: within(waits), cpu_ns: within(cpu_ns) };
            trial.look(sample);
            prop_assert!(trial.next_ns <= sample.at_ns.saturating_add(LOOK_NS));
            prop_assert!(trial.without_past().is_sound());
            prop_assert!(Tactic::ALL.contains(&trial.chosen()));
        }
    }
}
