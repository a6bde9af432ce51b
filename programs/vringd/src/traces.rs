//! Traces: who wants to know of slow requests, of which exports, and until when.
//!
//! A trace lasts for as long as its news are taken: a reader that is killed leaves nothing behind. Exports are told of it each time, so
//! that one that was added meanwhile is traced as well. An upgrade ends all of them, and a reader begins anew.

use crate::convert;
use crate::daemon::Daemon;
use control::ApiError;
use control::model::Span;
use control::model::trace::{NewTrace, Trace, TraceNews};
use engine::monotonic_ns;
use export::{Export, READERS_MAX, Times};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// How long a trace lasts without a word from its reader, in nanoseconds.
const LEASE_NS: u64 = 10_000_000_000;
/// Traces at one time: each keeps a bounded number of requests of each export.
const TRACES_MAX: usize = READERS_MAX;

/// The traces of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Traces(Mutex<Live>);

#[derive(Debug, Default)]
struct Live {
    all: BTreeMap<u64, Known>,
    last_id: u64,
}

/// What is known of one.
#[derive(Clone, Debug)]
struct Known {
    slower_than: Span,
    export: Option<String>,
    until_ns: u64,
    /// Requests that each export had answered when it was looked at last.
    answered: BTreeMap<String, u64>,
}

impl Known {
    fn shown(&self, id: u64, now_ns: u64) -> Trace {
        let seconds_left = self.until_ns.saturating_sub(now_ns) as f64 / 1e9;
        Trace { id, slower_than: self.slower_than, export: self.export.clone(), seconds_left }
    }

    fn slower_than_ns(&self) -> u64 {
        u64::try_from(self.slower_than.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// How many requests were answered since the last look.
    fn look(&mut self, exports: &[Arc<Export>]) -> u64 {
        let now: BTreeMap<String, u64> =
            exports.iter().map(|export| (export.name().to_owned(), export.requests_answered())).collect();
        // An export that has not been there before, or was added anew, counts from now on.
        let newer = |(name, count): (&String, &u64)| count.saturating_sub(*self.answered.get(name).unwrap_or(count));
        let answered = now.iter().map(newer).sum();
        self.answered = now;
        answered
    }
}

impl Live {
    /// Forgets those whose readers have gone, and names a new one. Its number is the time: a program before or behind this one has no
    /// other trace of that number.
    fn begin(&mut self, known: Known, now_ns: u64) -> Result<u64, ApiError> {
        self.forget(now_ns);
        if self.all.len() >= TRACES_MAX {
            return Err(ApiError::TooManyTraces { max: TRACES_MAX });
        }
        // In microseconds, so that it is a number to JSON readers as well, who have 53 bits for one.
        let id = (now_ns / 1000).max(self.last_id + 1);
        self.last_id = id;
        self.all.insert(id, known);
        Ok(id)
    }

    fn forget(&mut self, now_ns: u64) {
        self.all.retain(|_, known| known.until_ns >= now_ns);
    }

    /// It lasts from now on.
    fn renew(&mut self, id: u64, now_ns: u64) -> Result<&mut Known, ApiError> {
        self.forget(now_ns);
        let known = self.all.get_mut(&id).ok_or(ApiError::NoSuchTrace { id })?;
        known.until_ns = now_ns + LEASE_NS;
        Ok(known)
    }
}

impl Traces {
    fn lock(&self) -> MutexGuard<'_, Live> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Daemon {
    pub(crate) fn trace_list(&self) -> Vec<Trace> {
        let now_ns = monotonic_ns();
        let mut live = self.traces.lock();
        live.forget(now_ns);
        live.all.iter().map(|(id, known)| known.shown(*id, now_ns)).collect()
    }

    pub(crate) fn begin_trace(&self, NewTrace { slower_than, export }: NewTrace) -> Result<Trace, ApiError> {
        let exports = self.traced(export.as_deref())?;
        let now_ns = monotonic_ns();
        let mut known = Known { slower_than, export, until_ns: now_ns + LEASE_NS, answered: BTreeMap::new() };
        known.look(&exports);
        let id = self.traces.lock().begin(known.clone(), now_ns)?;
        for export in exports {
            export.recorder().arm(id, known.slower_than_ns(), known.until_ns, now_ns);
        }
        Ok(known.shown(id, now_ns))
    }

    pub(crate) fn take_trace(&self, id: u64) -> Result<TraceNews, ApiError> {
        let now_ns = monotonic_ns();
        let known = self.traces.lock().renew(id, now_ns)?.clone();
        let exports = self.traced(known.export.as_deref())?;
        let mut news = TraceNews::default();
        let (mut told, mut times) = (Vec::new(), Times::default());
        for export in &exports {
            export.recorder().arm(id, known.slower_than_ns(), known.until_ns, now_ns);
            let taken = export.recorder().take(id);
            news.lost += taken.lost;
            news.slow += taken.slow;
            times += taken.times;
            told.extend(taken.requests.into_iter().map(|request| (export.name(), request)));
        }
        // Behind them, so that over a trace there are not more slow ones than all. Of one answer's some may be the next one's.
        news.answered = self.traces.lock().renew(id, now_ns)?.look(&exports);
        told.sort_by_key(|(_, request)| request.taken_ns + request.shown_ns);
        let clock = Clock::now();
        news.requests =
            told.iter().map(|(export, slow)| convert::slow_out(export, slow, clock.date(slow.taken_ns))).collect();
        news.times = convert::times_out(&times);
        Ok(news)
    }

    pub(crate) fn end_trace(&self, id: u64) -> Result<(), ApiError> {
        let now_ns = monotonic_ns();
        let mut live = self.traces.lock();
        live.forget(now_ns);
        live.all.remove(&id).ok_or(ApiError::NoSuchTrace { id })?;
        drop(live);
        for export in self.all() {
            export.recorder().disarm(id, now_ns);
        }
        Ok(())
    }

    /// The exports that a trace is of.
    fn traced(&self, only: Option<&str>) -> Result<Vec<Arc<Export>>, ApiError> {
        match only {
            Some(name) => Ok(vec![self.get(name)?]),
            None => Ok(self.all()),
        }
    }
}

/// Both clocks at one moment.
struct Clock {
    monotonic_ns: u64,
    date: Duration,
}

impl Clock {
    fn now() -> Clock {
        let date = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Clock { monotonic_ns: monotonic_ns(), date }
    }

    /// When it was this time of CLOCK_MONOTONIC, in microseconds since 1970. Not when the date was set since: it is what it is now.
    fn date(&self, at_ns: u64) -> u64 {
        let ago = Duration::from_nanos(self.monotonic_ns.saturating_sub(at_ns));
        u64::try_from(self.date.saturating_sub(ago).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(until_ns: u64) -> Known {
        Known { slower_than: Span(Duration::from_millis(5)), export: None, until_ns, answered: BTreeMap::new() }
    }

    #[test]
    fn a_trace_lasts_while_its_news_are_taken() {
        let mut live = Live::default();
        let id = live.begin(known(100), 0).unwrap();
        assert!(live.renew(id, 100).is_ok());
        assert!(live.renew(id, 100 + LEASE_NS).is_ok());
        assert_eq!(live.renew(id, 101 + 2 * LEASE_NS).err(), Some(ApiError::NoSuchTrace { id }));
        assert!(live.all.is_empty());
    }

    #[test]
    fn traces_have_numbers_of_their_own_and_a_bound() {
        let mut live = Live::default();
        let ids: Vec<u64> = (0..TRACES_MAX as u64).map(|_| live.begin(known(10_000), 5000).unwrap()).collect();
        assert!(ids.is_sorted_by(|a, b| a < b));
        assert_eq!(live.begin(known(9000), 5000), Err(ApiError::TooManyTraces { max: TRACES_MAX }));
        // There is room when they are over.
        assert!(live.begin(known(20_000), 10_001).unwrap() > ids[TRACES_MAX - 1]);
    }

    #[test]
    fn dates_go_with_the_clock() {
        let clock = Clock { monotonic_ns: 5_000_000, date: Duration::from_secs(1_700_000_000) };
        assert_eq!(clock.date(5_000_000), 1_700_000_000_000_000);
        assert_eq!(clock.date(2_000_000), 1_699_999_999_997_000);
        assert_eq!(clock.date(9_000_000), 1_700_000_000_000_000);
    }
}
