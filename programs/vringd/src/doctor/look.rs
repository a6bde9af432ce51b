//! A look at something that need not answer: a file system whose server is gone, a device that hangs.
//!
//! Each look has a thread of its own, and as long as [`PATIENCE`]. One that hangs is left behind: the process goes on, says which place did
//! not answer, and ends with whatever the kernel makes of the thread.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a place may take to answer. A disk that has to start spinning takes less twice.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Looks under way at once, so that a configuration of thousands needs no thousands of threads.
const TOGETHER: usize = 32;

/// Why there is no answer.
#[derive(Debug, displaydoc::Display, thiserror::Error)]
pub(super) enum Missed {
    /// does not answer within 10 seconds
    Late,
    /// was not looked at, for lack of a thread: {0}
    Thread(io::Error),
    /// was not looked at: the look has failed
    Failed,
}

/// A look that has begun.
pub(super) struct Look<T> {
    answer: Result<Receiver<T>, io::Error>,
    until: Instant,
}

impl<T: Send + 'static> Look<T> {
    /// Looks, on a thread of this name.
    pub(super) fn begin(name: &str, look: impl FnOnce() -> T + Send + 'static) -> Look<T> {
        let (answers, answer) = channel();
        let looks = move || {
            // Whoever asked may have gone on.
            let _ = answers.send(look());
        };
        let started = std::thread::Builder::new().name(name.to_owned()).spawn(looks);
        Look { answer: started.map(|_| answer), until: Instant::now() + PATIENCE }
    }

    /// What it saw.
    pub(super) fn answer(self) -> Result<T, Missed> {
        let left = self.until.saturating_duration_since(Instant::now());
        self.answer.map_err(Missed::Thread)?.recv_timeout(left).map_err(|error| match error {
            RecvTimeoutError::Timeout => Missed::Late,
            RecvTimeoutError::Disconnected => Missed::Failed,
        })
    }
}

/// Looks at each of them, many at once. Answers are in the order of `what`.
pub(super) fn at_each<W: Send + 'static, T: Send + 'static>(
    name: &str,
    what: Vec<W>,
    look: impl Fn(W) -> T + Clone + Send + 'static,
) -> Vec<Result<T, Missed>> {
    let mut what = what.into_iter().peekable();
    let mut answers = Vec::new();
    while what.peek().is_some() {
        let begin = |one| {
            let look = look.clone();
            Look::begin(name, move || look(one))
        };
        let begun: Vec<_> = what.by_ref().take(TOGETHER).map(begin).collect();
        answers.extend(begun.into_iter().map(Look::answer));
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Barrier};

    #[test]
    fn answers_come_in_order_and_failures_are_told() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let answers = at_each("look", (0..100).collect(), |number: u32| {
            assert_ne!(number, 7);
            number * 2
        });
        std::panic::set_hook(hook);
        for (number, answer) in answers.into_iter().enumerate() {
            match (number, answer) {
                (7, answer) => assert!(matches!(answer, Err(Missed::Failed))),
                (_, answer) => assert_eq!(answer.unwrap() as usize, number * 2),
            }
        }
    }

    #[test]
    fn who_hangs_is_left_behind() {
        let hangs = Arc::new(Barrier::new(2));
        let inside = hangs.clone();
        let look = Look::begin("look", move || inside.wait());
        let late = Look { until: Instant::now(), ..look };
        assert!(matches!(late.answer(), Err(Missed::Late)));
        hangs.wait();
    }
}
