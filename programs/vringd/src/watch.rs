//! Says in the log which requests are not answered, and when they are after all.
//!
//! Each slot shows on its ring's page when its request was taken; reading that involves no worker. While all workers sleep with
//! nothing under way this thread sleeps too; the first worker that wakes up wakes it, and as no request can be late before its
//! time has passed, it looks only then.

use crate::daemon::Daemon;
use crate::failure::Failure;
use crate::lookout::{Look, Lookout};
use engine::monotonic_ns;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How often it looks while a request is late, to say soon that it has been answered.
const LATE_LOOK: Duration = Duration::from_secs(5);
/// It looks no more often than this, however short the time that is allowed.
const LOOK_MIN: Duration = Duration::from_millis(20);

/// Watches for requests that take longer than `stuck_after`; zero watches for none.
///
/// # Errors
/// When there can be no thread.
pub(crate) fn start(daemon: &Arc<Daemon>, stuck_after: Duration) -> Result<Option<Lookout>, Failure> {
    if stuck_after.is_zero() {
        return Ok(None);
    }
    Lookout::start("stuck", daemon, Late::new(stuck_after)).map(Some)
}

impl Look for Late {
    fn may_rest(&self) -> bool {
        self.none()
    }

    fn pause(&mut self) -> Duration {
        Duration::from_nanos(self.stuck_after_ns)
    }

    fn look(&mut self, daemon: &Arc<Daemon>) -> Duration {
        let (news, wait) = self.look_at(monotonic_ns(), oldest_requests(daemon));
        news.iter().for_each(News::log);
        wait
    }
}

/// A ring, and when the request was taken that waits there longest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OldestRequest {
    /// The export's name.
    pub(crate) export: String,
    /// The ring's index.
    pub(crate) ring: u16,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub(crate) taken_ns: u64,
    /// The ring's worker answers. If it does not, `taken_ns` is the begin of what keeps it busy.
    pub(crate) answers: bool,
}

/// The requests that wait longest, one a ring.
fn oldest_requests(daemon: &Daemon) -> Vec<OldestRequest> {
    let exports = daemon.all().into_iter().flat_map(|export| {
        let (name, oldest) = (export.name().to_owned(), export.oldest_requests().into_iter());
        oldest.map(move |(ring, taken_ns, answers)| OldestRequest { export: name.clone(), ring, taken_ns, answers })
    });
    exports.collect()
}

/// What is worth a line.
#[derive(Clone, Debug, PartialEq, Eq)]
enum News {
    Stuck { export: String, ring: u16, age_ms: u64 },
    Answered { export: String, ring: u16, age_ms: u64 },
}

impl News {
    fn log(&self) {
        match self {
            News::Stuck { export, ring, age_ms } => {
                tracing::warn!(
                    export,
                    ring,
                    age_ms,
                    "a request is stuck: what stands behind the export has not answered"
                );
            }
            News::Answered { export, ring, age_ms } => {
                tracing::info!(export, ring, age_ms, "the stuck request has been answered");
            }
        }
    }
}

/// Requests that were said to be late. Pure: time is an argument.
struct Late {
    stuck_after_ns: u64,
    /// When each was taken, by export and ring.
    known: BTreeMap<(String, u16), u64>,
}

impl Late {
    fn new(stuck_after: Duration) -> Late {
        let stuck_after_ns = u64::try_from(stuck_after.as_nanos()).unwrap_or(u64::MAX);
        Late { stuck_after_ns, known: BTreeMap::new() }
    }

    fn none(&self) -> bool {
        self.known.is_empty()
    }

    /// What is new, and when to look again.
    fn look_at(&mut self, now_ns: u64, oldest: Vec<OldestRequest>) -> (Vec<News>, Duration) {
        let mut news = Vec::new();
        let mut before = std::mem::take(&mut self.known);
        let mut wait_ns = self.stuck_after_ns;
        for OldestRequest { export, ring, mut taken_ns, answers } in oldest {
            if !answers && let Some(known_ns) = before.get(&(export.clone(), ring)) {
                // Nothing can have been answered there.
                taken_ns = taken_ns.min(*known_ns);
            }
            let age_ns = now_ns.saturating_sub(taken_ns);
            if age_ns < self.stuck_after_ns {
                wait_ns = wait_ns.min(self.stuck_after_ns - age_ns);
                continue;
            }
            let known = before.get(&(export.clone(), ring)) == Some(&taken_ns);
            if known {
                before.remove(&(export.clone(), ring));
            } else {
                news.push(News::Stuck { export: export.clone(), ring, age_ms: age_ns / 1_000_000 });
            }
            self.known.insert((export, ring), taken_ns);
        }
        // Those that are not the oldest of their ring any more. It is not known when they ended, but that it is not long ago.
        let ended = before.into_iter().map(|((export, ring), taken_ns)| News::Answered {
            export,
            ring,
            age_ms: now_ns.saturating_sub(taken_ns) / 1_000_000,
        });
        // The end of the old ones before the news of their successors.
        let news = ended.chain(news).collect();
        let wait = Duration::from_nanos(wait_ns).max(LOOK_MIN);
        (news, if self.none() { wait } else { wait.min(LATE_LOOK) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(ring: u16, taken_s: u64) -> OldestRequest {
        OldestRequest { export: "disk".into(), ring, taken_ns: taken_s * SECOND, answers: true }
    }

    fn stuck(ring: u16, age_s: u64) -> News {
        News::Stuck { export: "disk".into(), ring, age_ms: age_s * 1000 }
    }

    fn answered(ring: u16, age_s: u64) -> News {
        News::Answered { export: "disk".into(), ring, age_ms: age_s * 1000 }
    }

    #[test]
    fn a_late_request_is_named_once_and_once_more_at_its_end() {
        let mut late = Late::new(Duration::from_secs(30));
        assert_eq!(late.look_at(100 * SECOND, vec![at(0, 90)]), (vec![], Duration::from_secs(20)));
        assert_eq!(late.look_at(120 * SECOND, vec![at(0, 90), at(1, 119)]), (vec![stuck(0, 30)], LATE_LOOK));
        assert!(!late.none());
        assert_eq!(late.look_at(125 * SECOND, vec![at(0, 90), at(1, 124)]).0, []);
        assert_eq!(late.look_at(130 * SECOND, vec![at(1, 129)]), (vec![answered(0, 40)], Duration::from_secs(29)));
        assert!(late.none());
        assert_eq!(late.look_at(200 * SECOND, vec![]), (vec![], Duration::from_secs(30)));
    }

    #[test]
    fn one_late_request_may_follow_another() {
        let mut late = Late::new(Duration::from_secs(1));
        assert_eq!(late.look_at(10 * SECOND, vec![at(3, 5)]).0, [stuck(3, 5)]);
        assert_eq!(late.look_at(11 * SECOND, vec![at(3, 8)]).0, [answered(3, 6), stuck(3, 3)]);
        assert_eq!(late.look_at(12 * SECOND, vec![]).0, [answered(3, 4)]);
    }

    #[test]
    fn a_worker_that_stops_answering_answers_nothing() {
        let mut late = Late::new(Duration::from_secs(1));
        assert_eq!(late.look_at(10 * SECOND, vec![at(0, 5)]).0, [stuck(0, 5)]);
        let hung = OldestRequest { answers: false, ..at(0, 8) };
        assert_eq!(late.look_at(12 * SECOND, vec![hung.clone()]).0, []);
        assert_eq!(late.look_at(14 * SECOND, vec![hung]).0, []);
        assert_eq!(late.look_at(16 * SECOND, vec![at(0, 5)]).0, []);
        assert_eq!(late.look_at(18 * SECOND, vec![]).0, [answered(0, 13)]);
    }

    #[test]
    fn looks_are_neither_too_rare_nor_too_frequent() {
        let mut late = Late::new(Duration::from_nanos(1));
        assert_eq!(late.look_at(SECOND, vec![]).1, LOOK_MIN);
        let mut late = Late::new(Duration::MAX);
        assert!(late.look_at(SECOND, vec![at(0, 0)]).1 > Duration::from_secs(1 << 32));
    }
}
