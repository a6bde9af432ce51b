//! What is slow in the daemon of these tests.

use super::Fake;
use control::ApiError;
use control::model::trace::{NewTrace, SlowRequest, StageTimes, Trace, TraceNews, WaitedFor, Way};

/// Two slow requests, and two more that were not kept.
fn news() -> TraceNews {
    let disk = SlowRequest {
        taken_unix_us: 1_700_000_001_123_456,
        export: "root".into(),
        ring: 1,
        worker: 1,
        answered_by: Some(3),
        kind: "write".into(),
        offset: Some(0x1000),
        bytes: Some(4096),
        node: None,
        fid: None,
        lun: None,
        failed: false,
        total_us: 7300.0,
        times: StageTimes {
            start_us: 10.0,
            behind_us: 7190.0,
            answer_us: 20.0,
            show_us: 80.0,
            ..StageTimes::default()
        },
        waited_for: None,
        ways: vec![Way::CommitJoined],
        parts: 1,
        seen_late_us_max: 4.0,
    };
    let call = SlowRequest {
        export: "data".into(),
        ring: 0,
        answered_by: None,
        kind: "lookup".into(),
        offset: None,
        bytes: None,
        node: Some(1),
        failed: true,
        total_us: 12_500.0,
        times: StageTimes { waited_us_max: 30_000.0, inline_us: 12_400.0, show_us: 100.0, ..StageTimes::default() },
        waited_for: Some(WaitedFor::Limit),
        ways: vec![],
        parts: 0,
        ..disk.clone()
    };
    let times = disk.times.plus(&call.times);
    TraceNews { requests: vec![disk, call], lost: 2, slow: 4, answered: 4810, times }
}

/// The traces of a fake: each has news once.
#[derive(Debug, Default)]
pub(super) struct Traces {
    all: Vec<(Trace, bool)>,
    last_id: u64,
    taken: u64,
}

impl Fake {
    /// As if nobody had taken news for long, or after an upgrade.
    pub(crate) fn forget_traces(&self) {
        self.traces.lock().unwrap().all.clear();
    }

    /// How often news were taken.
    pub(crate) fn taken_traces(&self) -> u64 {
        self.traces.lock().unwrap().taken
    }

    pub(super) fn list_traces(&self) -> Vec<Trace> {
        self.traces.lock().unwrap().all.iter().map(|(trace, _)| trace.clone()).collect()
    }

    pub(super) fn begin_trace(&self, NewTrace { slower_than, export }: NewTrace) -> Result<Trace, ApiError> {
        let mut traces = self.traces.lock().unwrap();
        if traces.all.len() >= 2 {
            return Err(ApiError::TooManyTraces { max: 2 });
        }
        traces.last_id += 1;
        let trace = Trace { id: traces.last_id, slower_than, export, seconds_left: 10.0 };
        traces.all.push((trace.clone(), false));
        Ok(trace)
    }

    pub(super) fn take_trace(&self, id: u64) -> Result<TraceNews, ApiError> {
        let mut traces = self.traces.lock().unwrap();
        traces.taken += 1;
        let trace = traces.all.iter_mut().find(|(trace, _)| trace.id == id).ok_or(ApiError::NoSuchTrace { id })?;
        let is_told = std::mem::replace(&mut trace.1, true);
        Ok(if is_told { TraceNews::default() } else { news() })
    }

    pub(super) fn end_trace(&self, id: u64) -> Result<(), ApiError> {
        let mut traces = self.traces.lock().unwrap();
        let place = traces.all.iter().position(|(trace, _)| trace.id == id).ok_or(ApiError::NoSuchTrace { id })?;
        traces.all.remove(place);
        Ok(())
    }
}
