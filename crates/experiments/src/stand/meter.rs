//! Processor time of a guest while figures count.
//!
//! fio takes its time to start, most of all under an emulated processor, and does not tell when it counts. But it ends soon
//! after it has stopped counting: it looks ten times a second whether its jobs have ended, and the guest is idle until it does.
//! So what counts is the busiest stretch, as long as the measurement, of those that end then.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use guest::usage;

/// How often a guest is looked at; it costs some hundred microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long fio may take to end after its jobs have.
const TAIL: Duration = Duration::from_millis(300);
/// An hour and more. A run that is longer has no figure.
const SAMPLES_MAX: usize = 1 << 16;

/// Looks at the processor time of a process and its children until it is asked.
#[derive(Debug)]
pub(super) struct Meter {
    stop: Sender<()>,
    thread: JoinHandle<Vec<Sample>>,
}

/// Processor time so far, in s, at a moment.
type Sample = (Instant, f64);

impl Meter {
    /// Looks at the process `pid` from now on. `None` when there is no such process.
    pub(super) fn start(pid: Option<u32>) -> Option<Self> {
        let pid = pid?;
        let mut samples = vec![(Instant::now(), usage::cpu_s_of_tree(pid)?)];
        let (stop, stopped) = mpsc::channel();
        let look = move || {
            loop {
                let is_last = stopped.recv_timeout(LOOK_EVERY) != Err(RecvTimeoutError::Timeout);
                samples.extend(usage::cpu_s_of_tree(pid).map(|used| (Instant::now(), used)));
                if is_last || samples.len() >= SAMPLES_MAX {
                    return samples;
                }
            }
        };
        let thread = thread::Builder::new().name("meter".into()).spawn(look).ok()?;
        Some(Self { stop, thread })
    }

    /// What was used in a stretch of `time` at the end, in s; the stretch may begin in the warm-up before it. `None` if it
    /// was not looked at for so long, or has gone.
    pub(super) fn end(self, time: Duration, warm_up: Duration) -> Option<f64> {
        // Nobody receives it when there were too many samples.
        let _stopped = self.stop.send(());
        used(&self.thread.join().ok()?, time, TAIL.min(warm_up))
    }
}

/// The most that was used in `time`, ending at most `tail` before the last look.
fn used(samples: &[Sample], time: Duration, tail: Duration) -> Option<f64> {
    let (last, _) = *samples.last()?;
    let ends = samples.iter().rev().take_while(|(at, _)| last.duration_since(*at) <= tail);
    let stretches = ends.filter_map(|(end, used)| Some((used - used_by(samples, end.checked_sub(time)?)?).max(0.0)));
    stretches.reduce(f64::max)
}

/// What had been used at a moment between two looks; between them it is taken to be used evenly.
fn used_by(samples: &[Sample], moment: Instant) -> Option<f64> {
    let after = samples.iter().position(|(at, _)| *at >= moment)?;
    let (late, used_late) = *samples.get(after)?;
    let (early, used_early) = *samples.get(after.checked_sub(1)?)?;
    let span = late.duration_since(early).as_secs_f64();
    let share = if span > 0.0 { moment.duration_since(early).as_secs_f64() / span } else { 1.0 };
    Some(used_early + (used_late - used_early) * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_last_is_found_between_looks() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let samples = [(at(0), 5.0), (at(100), 6.0), (at(200), 6.5), (at(300), 6.75)];
        let last = |ms| used(&samples, Duration::from_millis(ms), Duration::ZERO).unwrap();
        assert!((last(100) - 0.25).abs() < 1e-9);
        assert!((last(150) - 0.5).abs() < 1e-9);
        assert!((last(250) - 1.25).abs() < 1e-9);
        let none = used(&samples, Duration::from_millis(301), Duration::ZERO);
        assert_eq!(none, None, "before the first look nobody looked");
        assert_eq!(used(&[], Duration::ZERO, Duration::ZERO), None);
    }

    #[test]
    fn an_idle_end_does_not_count() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        // Busy to start, half busy under load, idle in the end.
        let samples = [(at(0), 0.0), (at(100), 0.1), (at(200), 0.15), (at(300), 0.2), (at(400), 0.25), (at(500), 0.25)];
        let of = |tail| used(&samples, Duration::from_millis(200), Duration::from_millis(tail)).unwrap();
        assert!((of(0) - 0.05).abs() < 1e-9);
        assert!((of(100) - 0.1).abs() < 1e-9);
        assert!((of(200) - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_process_is_looked_at_until_the_end() {
        let meter = Meter::start(Some(std::process::id())).unwrap();
        thread::sleep(Duration::from_millis(30));
        let used = meter.end(Duration::from_millis(10), Duration::ZERO).unwrap();
        assert!((0.0..10.0).contains(&used), "{used}");
        assert!(Meter::start(Some(u32::MAX)).is_none());
        assert!(Meter::start(None).is_none());
    }
}
