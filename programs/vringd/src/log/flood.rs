//! A bound on the log: guests and frontends can make some lines come as often as they like, and must not fill the disk.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// How often one line of the program, whatever its fields, may be said...
const LINES_MAX: u32 = 200;
/// ...in this time.
const WINDOW: Duration = Duration::from_secs(10);

/// Leaves out what is said too often, and says how much that was. Debugging is not bounded: whoever asks for it wants it all.
#[derive(Debug, Default)]
pub(super) struct Flood {
    /// One for each line that was said; there are as many as the program has.
    lines: Mutex<HashMap<Identifier, Line>>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    since: Instant,
    said: u32,
    left_out: u64,
}

impl Line {
    fn new(now: Instant) -> Line {
        Line { since: now, said: 0, left_out: 0 }
    }

    /// Whether it may be said now, and how many were left out that nobody has been told of.
    fn pass(&mut self, now: Instant) -> (bool, u64) {
        let mut untold = 0;
        if now.duration_since(self.since) >= WINDOW {
            untold = self.left_out;
            *self = Line::new(now);
        }
        let may = self.said < LINES_MAX;
        if may {
            self.said += 1;
        } else {
            self.left_out += 1;
        }
        (may, untold)
    }
}

impl<S: Subscriber> Layer<S> for Flood {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let about = event.metadata();
        if *about.level() > Level::INFO {
            return true;
        }
        let now = Instant::now();
        let (may, lines) = {
            let mut known = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            known.entry(about.callsite()).or_insert_with(|| Line::new(now)).pass(now)
        };
        if lines > 0 {
            tracing::warn!(lines, like_those_of = about.target(), "lines were left out that came too often");
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn a_line_is_said_so_often_and_then_counted() {
        let start = Instant::now();
        let mut line = Line::new(start);
        for _ in 0..LINES_MAX {
            assert_eq!(line.pass(start), (true, 0));
        }
        for _ in 0..7 {
            assert_eq!(line.pass(start + WINDOW / 2), (false, 0));
        }
        assert_eq!(line.pass(start + WINDOW), (true, 7));
        assert_eq!(line.pass(start + WINDOW), (true, 0));
    }

    /// Counts what comes through.
    struct Count(Arc<AtomicU32>);

    impl<S: Subscriber> Layer<S> for Count {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_line_has_its_own_bound_and_debugging_none() {
        let count = Arc::new(AtomicU32::new(0));
        let subscriber = tracing_subscriber::registry().with(Count(count.clone())).with(Flood::default());
        tracing::subscriber::with_default(subscriber, || {
            for round in 0..LINES_MAX * 2 {
                tracing::warn!(round, "one");
                tracing::info!(round, "another");
                tracing::debug!(round, "and one for those who look closely");
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), LINES_MAX * 4);
    }
}
