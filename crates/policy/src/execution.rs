//! Where a call runs.

use crate::pace::{Direction, Pace};
use values::Execution;

/// What a request asks the system for, as far as it matters where that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Costs no time, or must not be overtaken by what it ends.
    Immediate,
    /// Waits for another client.
    Wait,
    /// Takes its time, wherever it runs.
    Long,
    /// Makes a file stable: it waits for a disk, whoever asks.
    Sync,
    /// Moves file data.
    Transfer(Direction),
    /// Anything else.
    Other,
}

/// Where it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// On the worker, at once.
    Here,
    /// By the worker's io_uring; what that does not take is left to a thread, as it waits as long.
    Uring,
    /// On the pool that an operator asked for.
    Pool,
    /// On a thread for long calls.
    Aside,
    /// On a thread that waits.
    Waiter,
}

/// A closer look at a call, which costs something and is taken only where the answer matters.
pub trait Look {
    /// Whether it may take a device's time, free much, or copy gigabytes.
    fn is_long(&self) -> bool;

    /// Whether a transfer goes past the page cache.
    fn is_past_the_cache(&self) -> bool {
        false
    }
}

/// Decides for the calls of one ring, and learns from them.
#[derive(Clone, Debug, Default)]
pub struct Chooser {
    execution: Execution,
    pace: Pace,
}

impl Chooser {
    /// By an operator's choice; nothing has been seen yet.
    pub fn new(execution: Execution) -> Chooser {
        Chooser { execution, pace: Pace::default() }
    }

    /// Where the next call runs.
    #[inline]
    pub fn choose(&mut self, call: Call, look: &impl Look) -> Route {
        match call {
            Call::Immediate => return Route::Here,
            Call::Wait => return Route::Waiter,
            Call::Long => return Route::Aside,
            Call::Sync | Call::Transfer(_) | Call::Other => {}
        }
        match (self.execution, call) {
            (Execution::Inline, _) => Route::Here,
            (Execution::Pool(_), _) => Route::Pool,
            (Execution::Uring | Execution::Auto, Call::Sync) => Route::Uring,
            (Execution::Uring | Execution::Auto, _) if look.is_long() => Route::Aside,
            (Execution::Uring, Call::Transfer(_)) => Route::Uring,
            // What memory can answer is answered soonest by a call on the spot. What waits for a disk must not keep the
            // others waiting.
            (Execution::Auto, Call::Transfer(direction)) if look.is_past_the_cache() || !self.pace.quick(direction) => {
                Route::Uring
            }
            (Execution::Uring | Execution::Auto, _) => Route::Here,
        }
    }

    /// A transfer on the worker took this long, in nanoseconds, for this many bytes.
    #[inline]
    pub fn took(&mut self, direction: Direction, ns: u64, bytes: u64) {
        if self.execution == Execution::Auto {
            self.pace.took(direction, ns, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    #[derive(Default)]
    struct Seen {
        long: bool,
        past: bool,
        looks: Cell<u32>,
    }

    impl Look for Seen {
        fn is_long(&self) -> bool {
            self.looks.set(self.looks.get() + 1);
            self.long
        }

        fn is_past_the_cache(&self) -> bool {
            self.past
        }
    }

    const READ: Call = Call::Transfer(Direction::Read);

    fn executions() -> impl Strategy<Value = Execution> {
        let words = [Execution::Inline, Execution::Uring, Execution::Auto].map(Just);
        prop_oneof![prop::sample::select(words.map(|word| word.0).to_vec()), (1usize..9).prop_map(Execution::Pool)]
    }

    fn calls() -> impl Strategy<Value = Call> {
        let write = Call::Transfer(Direction::Write);
        prop::sample::select(vec![Call::Immediate, Call::Wait, Call::Long, Call::Sync, READ, write, Call::Other])
    }

    proptest! {
        #[test]
        fn a_worker_never_does_what_takes_long_unless_it_was_told_to(
            execution in executions(), call in calls(), long: bool, past: bool, history in prop::collection::vec(0u64..1_000_000, 0..40),
        ) {
            let mut chooser = Chooser::new(execution);
            for ns in history {
                chooser.took(Direction::Read, ns, 4096);
            }
            let route = chooser.choose(call, &Seen { long, past, ..Seen::default() });
            let takes_long = matches!(call, Call::Wait | Call::Long | Call::Sync) || long && call != Call::Immediate;
            if takes_long && execution != Execution::Inline {
                prop_assert_ne!(route, Route::Here);
            }
            prop_assert!(route != Route::Pool || matches!(execution, Execution::Pool(_)));
            prop_assert!((call == Call::Immediate) <= (route == Route::Here));
        }
    }

    #[test]
    fn nobody_looks_closer_where_it_does_not_matter() {
        let seen = Seen::default();
        for execution in [Execution::Inline, Execution::Pool(2)] {
            Chooser::new(execution).choose(READ, &seen);
        }
        for call in [Call::Immediate, Call::Wait, Call::Long, Call::Sync] {
            Chooser::new(Execution::Auto).choose(call, &seen);
        }
        assert_eq!(seen.looks.get(), 0);
        Chooser::new(Execution::Auto).choose(READ, &seen);
        assert_eq!(seen.looks.get(), 1);
    }

    #[test]
    fn only_auto_learns() {
        let (slow_ns, seen) = (10_000_000, Seen::default());
        let learned = |execution| {
            let mut chooser = Chooser::new(execution);
            for _ in 0..4 {
                chooser.took(Direction::Read, slow_ns, 4096);
            }
            chooser.choose(READ, &seen)
        };
        assert_eq!(learned(Execution::Auto), Route::Uring);
        assert_eq!(learned(Execution::Inline), Route::Here);
        assert_eq!(Chooser::new(Execution::Auto).choose(READ, &Seen { past: true, ..Seen::default() }), Route::Uring);
    }
}
