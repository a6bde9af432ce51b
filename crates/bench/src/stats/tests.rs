//! The promise of this room, by simulation: equal sides are told apart in at most one of twenty comparisons, whatever the
//! noise, and unequal ones are told apart all the same.

use super::*;

/// Uniform numbers in (0, 1) from a fixed seed: the generator of Vigna's splitmix64, of which a test needs no more.
struct Dice(u64);

impl Dice {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + f64::EPSILON / 4.0
    }

    /// By Box and Muller.
    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// How the logarithm of a measurement strays.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// Lognormal measurements.
    Normal,
    /// Student's with three degrees of freedom: heavy tails on both sides.
    Heavy,
    /// Normal, but one measurement in twenty is much slower.
    Stalls,
    /// Never faster than the truth, often a little slower, seldom much.
    OneSided,
}

impl Noise {
    fn draw(self, sigma: f64, dice: &mut Dice) -> f64 {
        match self {
            Self::Normal => sigma * dice.normal(),
            Self::Heavy => {
                let chi: f64 = (0..3).map(|_| dice.normal().powi(2)).sum();
                sigma * dice.normal() / (chi / 3.0).sqrt()
            }
            Self::Stalls => {
                let stall = if dice.uniform() < 0.05 { 10.0 * sigma * dice.uniform().ln() } else { 0.0 };
                sigma * dice.normal() + stall
            }
            Self::OneSided => sigma * dice.uniform().ln(),
        }
    }
}

/// How large the noise of a workload is.
#[derive(Clone, Copy, Debug)]
enum Size {
    /// The same everywhere.
    Same(f64),
    /// One workload in five is ten times as noisy.
    FewNoisy,
    /// All sizes over more than a decade.
    AllSorts,
}

impl Size {
    fn draw(self, dice: &mut Dice) -> f64 {
        match self {
            Self::Same(sigma) => sigma,
            Self::FewNoisy => [0.01, 0.1][usize::from(dice.uniform() < 0.2)],
            Self::AllSorts => 0.03 * dice.normal().exp(),
        }
    }
}

/// A run of two configurations of which the first is `faster` times as fast under every workload.
struct Setting {
    noise: Noise,
    size: Size,
    rounds: usize,
    workloads: usize,
    /// How much both get slower or faster from one round to the next, as a standard deviation over workloads.
    drift: f64,
    faster: f64,
}

impl Setting {
    /// The part of the comparisons in which noise does not hide that the two differ.
    fn told_apart(&self, runs: usize, dice: &mut Dice) -> f64 {
        let told: usize = (0..runs).map(|_| self.run(dice).iter().filter(|ratio| !ratio.is_hidden()).count()).sum();
        told as f64 / (runs * self.workloads) as f64
    }

    fn run(&self, dice: &mut Dice) -> Vec<Ratio> {
        let pairs: Vec<Vec<(f64, f64)>> = (0..self.workloads).map(|_| self.measure(dice)).collect();
        let contrasts: Vec<Option<Contrast>> = pairs.iter().map(|rounds| Contrast::paired(rounds)).collect();
        let pool = Pool::of(contrasts.iter().flatten());
        let ratio = |(rounds, contrast): (&Vec<(f64, f64)>, &Option<Contrast>)| {
            let median = |side: fn(&(f64, f64)) -> f64| Spread::of(rounds.iter().map(side)).unwrap().median;
            Ratio::of(median(|round| round.0), median(|round| round.1), *contrast, pool).unwrap()
        };
        pairs.iter().zip(&contrasts).map(ratio).collect()
    }

    fn measure(&self, dice: &mut Dice) -> Vec<(f64, f64)> {
        let sigma = self.size.draw(dice);
        let step = self.drift * dice.normal();
        let mut side = |round: usize, truth: f64| truth * (step * round as f64 + self.noise.draw(sigma, dice)).exp();
        (0..self.rounds).map(|round| (side(round, 1000.0 * self.faster), side(round, 1000.0))).collect()
    }
}

#[test]
fn equal_sides_are_told_apart_in_at_most_one_of_twenty_comparisons() {
    let mut dice = Dice(4);
    for noise in [Noise::Normal, Noise::Heavy, Noise::Stalls, Noise::OneSided] {
        for size in [Size::Same(0.01), Size::Same(0.1), Size::FewNoisy, Size::AllSorts] {
            for (rounds, workloads) in [(2, 20), (3, 2), (3, 8), (3, 20), (3, 30), (5, 20)] {
                let setting = Setting { noise, size, rounds, workloads, drift: 0.03, faster: 1.0 };
                let comparisons = 12_000;
                let told = setting.told_apart(comparisons / workloads, &mut dice);
                // Three standard errors of a share of one in twenty in that many comparisons.
                let chance = 3.0 * (0.05 * 0.95 / comparisons as f64).sqrt();
                assert!(told <= 0.05 + chance, "{noise:?} {size:?} {rounds} rounds, {workloads} workloads: {told}");
            }
        }
    }
}

#[test]
fn sides_that_differ_clearly_are_told_apart() {
    let mut dice = Dice(5);
    let setting = |rounds, sigma, faster| Setting {
        noise: Noise::Normal,
        size: Size::Same(sigma),
        rounds,
        workloads: 20,
        drift: 0.03,
        faster,
    };
    let told = setting(3, 0.02, 1.15).told_apart(200, &mut dice);
    assert!(told > 0.9, "15 % in noise of 2 %, three rounds: {told}");
    let told = setting(5, 0.02, 1.08).told_apart(200, &mut dice);
    assert!(told > 0.9, "8 % in noise of 2 %, five rounds: {told}");
    let told = setting(3, 0.1, 1.02).told_apart(200, &mut dice);
    assert!(told < 0.08, "2 % in noise of 10 %: {told}");
}

#[test]
fn drift_that_both_sides_share_hides_nothing() {
    let mut dice = Dice(6);
    let with =
        |drift| Setting { noise: Noise::Normal, size: Size::Same(0.02), rounds: 3, workloads: 20, drift, faster: 1.15 };
    let (still, drifting) = (with(0.0).told_apart(300, &mut dice), with(0.3).told_apart(300, &mut dice));
    assert!(drifting > still - 0.05, "{drifting} of comparisons under drift, {still} without");
}

#[test]
fn sides_that_were_measured_apart_are_told_apart_as_seldom() {
    let mut dice = Dice(7);
    for noise in [Noise::Normal, Noise::Heavy, Noise::OneSided] {
        let (runs, workloads) = (600, 20);
        let mut told = 0;
        for _ in 0..runs {
            let sigma = |dice: &mut Dice| Size::AllSorts.draw(dice);
            let contrasts: Vec<Contrast> = (0..workloads)
                .map(|_| {
                    let sigma = sigma(&mut dice);
                    let mut side = || -> Vec<f64> { (0..3).map(|_| noise.draw(sigma, &mut dice).exp()).collect() };
                    Contrast::unpaired(&side(), &side()).unwrap()
                })
                .collect();
            let pool = Pool::of(&contrasts);
            let is_told = |contrast: &&Contrast| {
                let interval = contrast.interval(pool);
                interval.low > 1.0 || interval.high < 1.0
            };
            told += contrasts.iter().filter(is_told).count();
        }
        let share = told as f64 / f64::from(runs * workloads);
        assert!(share < 0.056, "{noise:?}: {share}");
    }
}

#[test]
fn a_median_with_its_spread() {
    let spread = Spread::of([3.0, 1.0, 2.0]).unwrap();
    assert_eq!((spread.median, spread.min, spread.max, spread.rounds), (2.0, 1.0, 3.0, 3));
    assert_eq!(spread.relative(), Some(1.0));
    assert_eq!(Spread::of([4.0, 1.0]).unwrap().median, 2.5);
    assert_eq!(Spread::of([]), None);
    assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
    let one = Spread::of([5.0]).unwrap();
    assert_eq!((one.relative(), one.uncertainty), (None, None));
    assert_eq!(Spread::of([0.0, 0.0, 1.0]).unwrap().uncertainty, None, "0 has no logarithm");
    assert_eq!(Spread::of([7.0, 7.0, 7.0]).unwrap().uncertainty, Some(0.0));
}

#[test]
fn the_interval_of_a_median_holds_the_truth() {
    let mut dice = Dice(8);
    for rounds in [2, 3, 5, 9] {
        let runs = 4000;
        let holds = (0..runs).filter(|_| {
            let spread = Spread::of((0..rounds).map(|_| (0.05 * dice.normal()).exp())).unwrap();
            let reach = 1.0 + spread.uncertainty.unwrap();
            spread.median / reach <= 1.0 && spread.median * reach >= 1.0
        });
        let share = holds.count() as f64 / f64::from(runs);
        assert!(share > 0.945, "{rounds} rounds: {share}");
    }
}

#[test]
fn an_interval_is_students_and_holds_its_ratio() {
    // Logarithms of the ratios: 0.1, 0.2, 0.3. Mean 0.2, deviation 0.1, and 4.849 (Student, 0.98, 2) times 0.1/√3 to each side.
    let rounds: Vec<(f64, f64)> = [0.1f64, 0.2, 0.3].iter().map(|log| (100.0 * log.exp(), 100.0)).collect();
    let interval = Contrast::paired(&rounds).unwrap().interval(Pool::default());
    let reach = 4.8487 * 0.1 / 3f64.sqrt();
    assert!((interval.low.ln() - (0.2 - reach)).abs() < 1e-4, "{interval:?}");
    assert!((interval.high.ln() - (0.2 + reach)).abs() < 1e-4, "{interval:?}");
    // A ratio of medians that lies outside is inside.
    let ratio = Ratio::of(300.0, 100.0, Contrast::paired(&rounds), Pool::default()).unwrap();
    assert_eq!((ratio.value, ratio.interval.unwrap().high), (3.0, 3.0));
    assert!(ratio.is_hidden());
}

#[test]
fn nothing_is_said_of_what_cannot_be_compared() {
    assert_eq!(Contrast::paired(&[(1.0, 2.0)]), None);
    assert_eq!(Contrast::paired(&[(1.0, 2.0), (0.0, 1.0)]), None);
    assert_eq!(Contrast::unpaired(&[1.0], &[1.0, 2.0]), None);
    assert_eq!(Ratio::of(1.0, 0.0, None, Pool::default()), None);
    assert!(Ratio::of(2.0, 1.0, None, Pool::default()).unwrap().is_hidden(), "one round knows no noise");
    let wild = Contrast::paired(&[(1e300, 1e-300), (1e-300, 1e300)]).unwrap().interval(Pool::default());
    assert!(wild.low.is_finite() && wild.high.is_finite(), "{wild:?}");
    assert!(Spread::of([1e-300, 1e300]).unwrap().uncertainty.unwrap().is_finite());
    assert_eq!(geometric_mean([0.0, f64::NAN]), None);
    assert!((geometric_mean([2.0, 8.0]).unwrap() - 4.0).abs() < 1e-12);
}

#[test]
fn a_ratio_to_nothing_is_none() {
    assert_eq!(ratio(3.0, 2.0), Some(1.5));
    assert_eq!(ratio(0.0, 2.0), Some(0.0));
    assert_eq!(ratio(3.0, 0.0), None);
    assert_eq!(ratio(3.0, f64::NAN), None);
}
