//! How long what is dirty may wait, though nobody asks for it.
//!
//! What nobody has flushed is lost with the power: it is written back after a few seconds. What is in the log is safe, and the
//! longer it waits the less often a block is written that a guest writes again and again. Which of the two a block is, is not
//! looked up. A commit takes everything that was written before it; so, where there was one since the last look, what is not in
//! the log is younger than that look.

use std::time::Duration;

/// Between two looks. What nobody flushes waits for two of them at most.
const LOOK: Duration = Duration::from_secs(5);
/// The longest that anything waits.
const LOGGED_MAX: Duration = Duration::from_secs(30);

/// How old what is dirty is. Times are those of any clock that does not go backwards.
#[derive(Clone, Debug, Default)]
pub struct Age {
    dirty: Option<Dirty>,
}

#[derive(Clone, Copy, Debug)]
struct Dirty {
    since: Duration,
    /// When to look next.
    look: Duration,
    /// Commits at the last look.
    commits: u64,
}

impl Age {
    /// Something is dirty from `now` on, after so many commits. Nothing new if something was before.
    pub fn begin(&mut self, now: Duration, commits: u64) {
        self.dirty.get_or_insert(Dirty { since: now, look: now.saturating_add(LOOK), commits });
    }

    /// Nothing is dirty.
    pub fn end(&mut self) {
        self.dirty = None;
    }

    /// When to ask [`is_over`](Self::is_over) next; `None` while nothing is dirty.
    pub fn look(&self) -> Option<Duration> {
        self.dirty.map(|dirty| dirty.look)
    }

    /// Whether something has been dirty for too long, `now` that there were so many commits.
    pub fn is_over(&mut self, now: Duration, commits: u64) -> bool {
        let Some(dirty) = &mut self.dirty else { return false };
        if now < dirty.look {
            return false;
        }
        if commits == dirty.commits || now >= dirty.since.saturating_add(LOGGED_MAX) {
            return true;
        }
        (dirty.look, dirty.commits) = (now.saturating_add(LOOK), commits);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_nobody_flushes_waits_for_one_look() {
        let mut age = Age::default();
        assert_eq!(age.look(), None);
        assert!(!age.is_over(s(100), 0));
        age.begin(s(100), 7);
        age.begin(s(103), 7);
        assert_eq!(age.look(), Some(s(105)));
        assert!(!age.is_over(s(104), 7));
        assert!(age.is_over(s(105), 7));
        age.end();
        assert!(!age.is_over(s(200), 7));
    }

    #[test]
    fn what_is_in_the_log_waits_longer_and_not_for_ever() {
        let mut age = Age::default();
        age.begin(s(0), 0);
        for look in 1..6 {
            assert!(!age.is_over(s(5 * look), look), "look {look}");
        }
        assert!(age.is_over(s(30), 6));
    }

    proptest! {
        /// Writes and commits as they come, in tenths of a second; the thread looks when it should.
        #[test]
        fn nothing_that_is_not_logged_waits_for_more_than_two_looks(
            events in proptest::collection::vec((0u64..40, any::<bool>()), 1..60),
        ) {
            let (mut age, mut now, mut commits) = (Age::default(), Duration::ZERO, 0);
            // The oldest write that is in no record.
            let mut oldest: Option<Duration> = None;
            for (tenths, commit) in events.into_iter().chain([(120, false)]) {
                let next = now + Duration::from_millis(100 * tenths);
                while let Some(look) = age.look().filter(|look| *look <= next) {
                    prop_assert!(oldest.is_none_or(|oldest| look - oldest <= 2 * LOOK), "{oldest:?} at {look:?}");
                    if age.is_over(look, commits) {
                        oldest = None;
                        age.end();
                    }
                }
                now = next;
                if commit {
                    (oldest, commits) = (None, commits + 1);
                } else {
                    oldest.get_or_insert(now);
                    age.begin(now, commits);
                }
            }
            prop_assert!(oldest.is_none_or(|oldest| now - oldest <= 2 * LOOK));
        }
    }
}
