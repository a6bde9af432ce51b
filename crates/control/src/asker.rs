//! Whether anybody still waits for the answer to a call.

use crate::client::ANSWER_PATIENCE;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Whoever asked for something, as the call sees it that is under way for them. A call begins late where others are under way, and may
/// take its time; what its asker has given up on by then, and may ask for again, need not be done.
#[derive(Clone, Debug)]
pub struct Asker {
    connected: Weak<()>,
    waits_until: Instant,
}

/// The asker's end: dropped with the request, when the connection ends.
#[derive(Debug, Default)]
pub struct Waiting(Arc<()>);

impl Waiting {
    /// Who asks now, and waits for as long as `vringd ctl` does.
    pub fn asker(&self) -> Asker {
        Asker { connected: Arc::downgrade(&self.0), waits_until: Instant::now() + ANSWER_PATIENCE }
    }
}

impl Asker {
    /// Whether the connection is there, and an answer would come in time for `vringd ctl`.
    pub fn waits(&self) -> bool {
        self.waits_at(Instant::now())
    }

    fn waits_at(&self, now: Instant) -> bool {
        self.connected.strong_count() > 0 && now < self.waits_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn an_asker_waits_while_it_is_there_and_not_for_ever() {
        let waiting = Waiting::default();
        let asker = waiting.asker();
        assert!(asker.waits());
        assert!(!asker.waits_at(Instant::now() + ANSWER_PATIENCE + Duration::from_millis(1)));
        drop(waiting);
        assert!(!asker.waits());
    }
}
