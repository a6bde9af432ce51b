//! How long a worker looks before it sleeps: the poll window.
//!
//! Whoever looks pays for each nanosecond until there is work, or until the window is over and a sleep follows after all. Whoever
//! sleeps pays for the sleep, and its work waits for the wake-up. Without knowledge of what is to come, looking for as long as a sleep
//! costs is at most twice as dear as the best choice (Karlin, Manasse, McGeoch, Owicki: "Competitive randomized algorithms for
//! non-uniform problems", 1990). With the distribution of the waits that there have been, the window that would have cost least is
//! the better guess, and it is often none at all: a disk that answers after 60 microseconds is not worth looking for.
//!
//! Waits for a completion of our own and waits for the client have little to do with each other, and are learned apart.

use crate::trial::{Tactic, Trial};
use values::{Favour, Poll};

/// What a sleep costs on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepPrice {
    /// Processor time of the sleeper for going to sleep and waking up, in nanoseconds.
    pub cpu_ns: u64,
    /// From the event to when the sleeper runs, in nanoseconds.
    pub wake_ns: u64,
    /// What it costs a client to wake the sleeper, in nanoseconds of its processor time.
    pub kick_ns: u64,
}

impl Default for SleepPrice {
    /// Between bare metal, where all of it is 5 microseconds, and a processor that leaves its virtual machine for it, with 40.
    fn default() -> SleepPrice {
        SleepPrice { cpu_ns: 4_000, wake_ns: 10_000, kick_ns: 4_000 }
    }
}

impl SleepPrice {
    /// All of it, in nanoseconds of processor time. A client that has to wake us does nothing else meanwhile, and its latency is
    /// paid for: with a worth of one, a file in memory whose client had sixteen requests under way was served at 0.6 of the rate for
    /// 1.1 times the requests a second of processor time. What a completion's latency is worth is half: the worker that looks keeps a
    /// processor from whoever makes the completion, and a disk that answers after 30 microseconds took 45 to do it (0.8 of the rate,
    /// 0.4 of the requests a second of processor time).
    fn of(self, wait: Wait, favour: Favour) -> u64 {
        let worth = favour.latency_worth();
        match wait {
            Wait::Completion => self.cpu_ns + worth * self.wake_ns / 2,
            Wait::Request => self.cpu_ns + worth * (self.wake_ns + self.kick_ns),
        }
    }
}

/// What a worker waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Its own work is under way: the next event is most likely a completion.
    Completion,
    /// Nothing is: the next event is a client's.
    Request,
}

/// Buckets of waits, two a power of two, from the first's bound on; the last one has all that are longer.
const BUCKETS: usize = 24;
/// The bound of the first bucket, in nanoseconds, as a power of two.
const FIRST_LOG2: u32 = 9;
/// Waits between two looks at what they teach.
const REVIEW_EVERY: u32 = 32;
/// Waits that are remembered: beyond as many, all count for half.
const REMEMBERED: u32 = 256;
/// Reviews in a row in which a window may cover nothing.
const VAIN_MAX: u32 = 4;
/// Longest pause behind those, in reviews: some thousand waits.
const PAUSE_MAX: u32 = 128;

/// The longest wait of a bucket, in nanoseconds.
fn bound_ns(bucket: usize) -> u64 {
    let octave = 1 << (FIRST_LOG2 as usize + bucket / 2);
    if bucket.is_multiple_of(2) { octave } else { octave + octave / 2 }
}

/// The bucket of a wait.
fn bucket_of(wait_ns: u64) -> usize {
    (0..BUCKETS - 1).find(|&bucket| wait_ns <= bound_ns(bucket)).unwrap_or(BUCKETS - 1)
}

/// What the waits of one kind have taught.
#[derive(Clone, Debug)]
struct Learned {
    counts: [u32; BUCKETS],
    total: u32,
    unreviewed: u32,
    window_ns: u64,
    /// Waits since the last review that the window covered.
    hits: u32,
    /// Reviews in a row with a window that covered none.
    vain: u32,
    /// Reviews for which nothing is looked for, as what was believed was wrong.
    pause: u32,
    /// How long the next such pause is.
    pause_next: u32,
}

impl Learned {
    fn new(window_ns: u64) -> Learned {
        let counts = [0; BUCKETS];
        Learned { counts, total: 0, unreviewed: 0, window_ns, hits: 0, vain: 0, pause: 0, pause_next: 1 }
    }

    fn observe(&mut self, wait_ns: u64, max_ns: u64, price_ns: u64) {
        self.counts[bucket_of(wait_ns)] += 1;
        self.total += 1;
        self.unreviewed += 1;
        self.hits += u32::from(wait_ns <= self.window_ns);
        if self.unreviewed < REVIEW_EVERY {
            return;
        }
        self.unreviewed = 0;
        self.look_back();
        if self.pause == 0 {
            self.choose(max_ns, price_ns);
        }
        if self.total > REMEMBERED {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
    }

    /// Whether the window has covered anything lately. If it has not for long, what it rests on is wrong, as the price of a wake-up may
    /// be: it is given up, each time for twice as long.
    fn look_back(&mut self) {
        let hits = std::mem::take(&mut self.hits);
        self.pause = self.pause.saturating_sub(1);
        if hits > 0 {
            (self.vain, self.pause_next) = (0, 1);
        } else if self.window_ns > 0 {
            self.vain += 1;
        }
        if self.vain == VAIN_MAX {
            self.window_ns = 0;
            (self.counts, self.total) = ([0; BUCKETS], 0);
            (self.vain, self.pause) = (0, self.pause_next);
            self.pause_next = (self.pause_next * 2).min(PAUSE_MAX);
        }
    }

    fn choose(&mut self, max_ns: u64, price_ns: u64) {
        let (best_ns, best) = self.cheapest(max_ns, price_ns);
        // Within a twentieth the present window is as good, and one that jumps is worth nothing; but a shorter one that covers as much
        // costs less when nothing comes any more.
        let present = self.cost(self.window_ns, price_ns);
        if best + best / 20 < present || best <= present && best_ns < self.window_ns {
            self.window_ns = best_ns;
        }
    }

    /// What these waits would have cost with a window, in nanoseconds.
    fn cost(&self, window_ns: u64, price_ns: u64) -> u64 {
        let counts = self.counts.iter().zip(0..);
        counts
            .map(|(&count, bucket)| {
                let is_covered = bucket < BUCKETS - 1 && bound_ns(bucket) <= window_ns;
                let each_ns = if is_covered { bound_ns(bucket) } else { window_ns + price_ns };
                u64::from(count) * each_ns
            })
            .sum()
    }

    /// The window that costs least, the shortest of those, and its cost.
    fn cheapest(&self, max_ns: u64, price_ns: u64) -> (u64, u64) {
        let mut best = (0, self.cost(0, price_ns));
        for window_ns in (0..BUCKETS - 1).map(bound_ns).take_while(|&window_ns| window_ns <= max_ns) {
            let cost = self.cost(window_ns, price_ns);
            if cost < best.1 {
                best = (window_ns, cost);
            }
        }
        best
    }
}

/// How one worker waits.
#[derive(Clone, Debug)]
pub struct PollWindow {
    mode: Poll,
    favour: Favour,
    price: SleepPrice,
    completions: Learned,
    requests: Learned,
    trial: Trial,
    /// The windows stay what they are.
    is_pinned: bool,
    /// Nothing is learned or tried for now.
    is_frozen: bool,
}

impl PollWindow {
    /// Nothing is known yet.
    pub fn new(mode: Poll, favour: Favour, price: SleepPrice) -> Self {
        let learned = |wait| {
            Learned::new(match mode {
                Poll::Off => 0,
                Poll::Fixed(us) => u64::from(us) * 1000,
                Poll::Adaptive(us) => price.of(wait, favour).min(u64::from(us) * 1000),
            })
        };
        let (completions, requests) = (learned(Wait::Completion), learned(Wait::Request));
        PollWindow {
            mode,
            favour,
            price,
            completions,
            requests,
            trial: Trial::new(favour),
            is_pinned: false,
            is_frozen: false,
        }
    }

    /// What a sleep costs, as far as that is known by now. What was learned holds; the windows follow with what comes next.
    #[inline]
    pub fn set_price(&mut self, price: SleepPrice) {
        self.price = price;
    }

    /// Another mode from now on, which begins without knowledge. Whether it is another.
    pub fn set_mode(&mut self, mode: Poll) -> bool {
        let is_another = mode != self.mode || self.is_pinned;
        if is_another {
            let is_frozen = self.is_frozen;
            *self = PollWindow { is_frozen, ..PollWindow::new(mode, self.favour, self.price) };
        }
        is_another
    }

    /// Another favour from now on. What was learned of waits holds. Whether it is another.
    pub fn set_favour(&mut self, favour: Favour) -> bool {
        let is_another = favour != self.favour;
        if is_another {
            self.favour = favour;
            self.trial.set_favour(favour);
        }
        is_another
    }

    /// Has all stay as it is from now on, or no more. Whether that is another thing than before.
    pub fn freeze(&mut self, frozen: bool) -> bool {
        let is_another = frozen != self.is_frozen;
        if is_another {
            self.is_frozen = frozen;
            self.trial.stop();
        }
        is_another
    }

    /// Whether all stays as it is.
    pub fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// The tactic at this moment. One that was chosen and frozen holds without a load, too: nobody would choose it again.
    #[inline]
    fn tactic_now(&self) -> Tactic {
        if self.is_frozen { self.trial.incumbent() } else { self.trial.tactic() }
    }

    /// The longest window that may be, in nanoseconds; `None` when nothing is chosen here.
    #[inline]
    fn max_ns(&self) -> Option<u64> {
        match self.mode {
            Poll::Adaptive(max_us) if !self.is_pinned => Some(u64::from(max_us) * 1000),
            Poll::Adaptive(_) | Poll::Off | Poll::Fixed(_) => None,
        }
    }

    /// How long to look for this, in nanoseconds; 0 means not at all.
    #[inline]
    pub fn window_ns(&self, wait: Wait) -> u64 {
        let learned = match wait {
            Wait::Completion => &self.completions,
            Wait::Request => &self.requests,
        };
        match (self.max_ns(), self.tactic_now()) {
            (None, _) | (_, Tactic::Learned) => learned.window_ns,
            (_, Tactic::Sleep) => 0,
            (Some(max_ns), Tactic::Spin) => max_ns,
        }
    }

    /// The longest that is looked for anything, in nanoseconds.
    pub fn longest_ns(&self) -> u64 {
        self.window_ns(Wait::Completion).max(self.window_ns(Wait::Request))
    }

    /// Work came `wait_ns` after the worker ran out of it; with a sleep in between, a wake-up earlier than that.
    #[inline]
    pub fn observe(&mut self, wait: Wait, wait_ns: u64, slept: bool) {
        let Some(max_ns) = self.max_ns().filter(|_| !self.is_frozen) else { return };
        let window_ns = self.window_ns(wait);
        // Whoever never looks learns nothing about looking: what was learned before is tried again as it was.
        if self.trial.tactic() == Tactic::Sleep {
            return;
        }
        // Whatever a wake-up cost this time, who slept had looked for the whole window before, in vain.
        let came_ns = if slept { wait_ns.saturating_sub(self.price.wake_ns).max(window_ns + 1) } else { wait_ns };
        let price_ns = self.price.of(wait, self.favour);
        let learned = match wait {
            Wait::Completion => &mut self.completions,
            Wait::Request => &mut self.requests,
        };
        learned.observe(came_ns, max_ns, price_ns);
    }

    /// Whether the [trial](Self::trial) wants a sample at this time.
    #[inline]
    pub fn is_due(&self, now_ns: u64) -> bool {
        self.trial.is_due(now_ns) && self.max_ns().is_some()
    }

    /// The tactic and what is being done to find a better one, for whoever shows it samples.
    pub fn trial(&mut self) -> &mut Trial {
        &mut self.trial
    }

    /// The tactic that holds; `None` when nothing is chosen here.
    pub fn tactic(&self) -> Option<Tactic> {
        self.max_ns().map(|_| if self.is_frozen { self.trial.incumbent() } else { self.trial.chosen() })
    }

    /// Nothing is tried or learned any more: the windows stay what was learned, until a mode is set.
    pub fn pin(&mut self) {
        self.is_pinned = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRICE: SleepPrice = SleepPrice { cpu_ns: 5_000, wake_ns: 20_000, kick_ns: 10_000 };

    /// The window after many waits that are drawn from these in turn, seen by a worker that sleeps when its window is over.
    fn after(max_us: u32, waits_ns: &[u64]) -> u64 {
        let mut poll = PollWindow::new(Poll::Adaptive(max_us), Favour::Balance, PRICE);
        for &wait_ns in waits_ns.iter().cycle().take(2000) {
            let slept = wait_ns > poll.window_ns(Wait::Request);
            poll.observe(Wait::Request, wait_ns + if slept { PRICE.wake_ns } else { 0 }, slept);
        }
        poll.window_ns(Wait::Request)
    }

    #[test]
    fn what_comes_soon_is_looked_for_and_what_comes_late_is_not() {
        assert!((8_000..=12_288).contains(&after(50, &[8_000])));
        assert_eq!(after(50, &[60_000]), 0, "a disk that is slower than the longest window");
        assert_eq!(after(200, &[70_000]), 0, "a sleep is cheaper");
        assert_eq!(after(50, &[10_000_000]), 0);
        // One in ten is worth nobody's look; nine in ten are.
        assert_eq!(after(50, &[8_000, 90_000, 90_000, 90_000, 90_000, 90_000, 90_000, 90_000, 90_000, 90_000]), 0);
        assert!(after(50, &[8_000, 8_000, 8_000, 8_000, 8_000, 8_000, 8_000, 8_000, 8_000, 900_000]) >= 8_000);
    }

    #[test]
    fn what_is_frozen_learns_and_tries_nothing() {
        let mut poll = PollWindow::new(Poll::Adaptive(50), Favour::Balance, PRICE);
        let before = poll.window_ns(Wait::Request);
        assert!(poll.freeze(true) && !poll.freeze(true));
        (0..1000).for_each(|_| poll.observe(Wait::Request, 5_000_000, true));
        assert_eq!(poll.window_ns(Wait::Request), before);
        assert_eq!(poll.tactic(), Some(Tactic::Learned));
        // Another window is another one at once.
        assert!(poll.set_mode(Poll::Fixed(7)) && poll.is_frozen());
        assert_eq!(poll.window_ns(Wait::Request), 7_000);
        assert!(poll.set_mode(Poll::Adaptive(50)) && poll.freeze(false));
        (0..1000).for_each(|_| poll.observe(Wait::Request, 5_000_000, true));
        assert_eq!(poll.window_ns(Wait::Request), 0);
    }

    #[test]
    fn a_sleeper_learns_that_it_should_have_looked() {
        for wait in [Wait::Request, Wait::Completion] {
            let mut poll = PollWindow::new(Poll::Adaptive(50), Favour::Balance, PRICE);
            (0..1000).for_each(|_| poll.observe(wait, 5_000_000, true));
            assert_eq!(poll.window_ns(wait), 0);
            // What it sees now is the wait and the wake-up.
            for _ in 0..1000 {
                let slept = poll.window_ns(wait) < 10_000;
                poll.observe(wait, 10_000 + if slept { PRICE.wake_ns } else { 0 }, slept);
            }
            assert!(poll.window_ns(wait) >= 10_000, "{wait:?}");
        }
    }

    /// How many of 6000 waits are looked for in vain, after as many.
    fn in_vain(wait: Wait, max_us: u32, real_ns: u64, wake_ns: u64, price_ns: u64) -> u32 {
        let price = SleepPrice { cpu_ns: 2_000, wake_ns: price_ns, kick_ns: 4_000 };
        let mut poll = PollWindow::new(Poll::Adaptive(max_us), Favour::Balance, price);
        let mut vain = 0;
        for count in 0..12_000 {
            poll.set_price(price);
            let window_ns = poll.window_ns(wait);
            let slept = real_ns > window_ns;
            vain += u32::from(count >= 6000 && slept && window_ns > 0);
            poll.observe(wait, real_ns + if slept { wake_ns } else { 0 }, slept);
        }
        vain
    }

    /// The price of a wake-up is that of another time: no window may rest on it that never finds anything.
    #[test]
    fn a_window_that_finds_nothing_does_not_last() {
        for (wait, max_us, real_ns, wake_ns, price_ns) in [
            (Wait::Completion, 100, 30_000, 5_000, 20_000),
            (Wait::Completion, 100, 50_000, 8_000, 40_000),
            (Wait::Request, 100, 100_000, 2_000, 100_000),
            (Wait::Request, 100, 100_000, 2_000, 60_000),
            (Wait::Request, 100, 100_000, 2_000, 40_000),
            (Wait::Request, 50, 90_000, 2_000, 100_000),
            (Wait::Request, 50, 60_000, 5_000, 40_000),
        ] {
            let vain = in_vain(wait, max_us, real_ns, wake_ns, price_ns);
            assert!(vain < 600, "{wait:?} after {real_ns} ns is looked for in vain {vain} times of 6000");
        }
    }

    #[test]
    fn waits_for_completions_say_nothing_about_waits_for_requests() {
        let mut poll = PollWindow::new(Poll::Adaptive(50), Favour::Balance, PRICE);
        for _ in 0..1000 {
            poll.observe(Wait::Completion, 80_000, true);
            poll.observe(Wait::Request, 4_000, false);
        }
        assert_eq!(poll.window_ns(Wait::Completion), 0);
        assert!(poll.window_ns(Wait::Request) >= 4_000);
    }

    #[test]
    fn a_fixed_window_never_changes() {
        for (mode, window_ns) in [(Poll::Fixed(10), 10_000), (Poll::Off, 0)] {
            let mut poll = PollWindow::new(mode, Favour::Balance, PRICE);
            (0..100).for_each(|_| poll.observe(Wait::Request, 1, false));
            assert_eq!(poll.window_ns(Wait::Request), window_ns);
        }
    }

    fn waits() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop_oneof![0..5_000_u64, 0..100_000_u64, 0..2_000_000_u64], 1..12)
    }

    proptest! {
        #[test]
        fn no_window_is_longer_than_it_may_be(max_us in 1..2_000_u32, seen in waits()) {
            prop_assert!(after(max_us, &seen) <= u64::from(max_us) * 1000);
        }

        /// Of any stationary input, the cost is within what buckets and hysteresis hide of the best window there is.
        #[test]
        fn what_is_chosen_costs_little_more_than_the_best(seen in waits()) {
            let exact = |window_ns: u64| -> u64 {
                let each = |&wait_ns: &u64| if wait_ns <= window_ns { wait_ns } else { window_ns + PRICE.of(Wait::Request, Favour::Balance) };
                seen.iter().map(each).sum()
            };
            let best = seen.iter().copied().filter(|&wait_ns| wait_ns <= 50_000).chain([0]).map(exact).min().unwrap();
            let chosen = exact(after(50, &seen));
            prop_assert!(chosen <= 2 * best + 1024, "{chosen} for {best}");
        }

        #[test]
        fn a_stationary_input_leaves_the_window_alone_in_the_end(seen in waits()) {
            let mut poll = PollWindow::new(Poll::Adaptive(50), Favour::Balance, PRICE);
            let (mut changes, mut last) = (0, 0);
            for (count, &wait_ns) in seen.iter().cycle().take(20_000).enumerate() {
                let slept = wait_ns > poll.window_ns(Wait::Completion);
                poll.observe(Wait::Completion, wait_ns + if slept { PRICE.wake_ns } else { 0 }, slept);
                let window_ns = poll.window_ns(Wait::Completion);
                changes += u32::from(count > 10_000 && window_ns != last);
                last = window_ns;
            }
            prop_assert_eq!(changes, 0);
        }

        #[test]
        fn a_bucket_holds_what_its_bound_covers(wait_ns: u64) {
            let bucket = bucket_of(wait_ns);
            prop_assert!(bucket == BUCKETS - 1 || wait_ns <= bound_ns(bucket));
            prop_assert!(bucket == 0 || wait_ns > bound_ns(bucket - 1));
        }
    }
}
