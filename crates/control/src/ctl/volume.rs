//! Volumes in tables: what `vringd ctl export show` and `vringd ctl top` say of an intent log.

use super::cells::{self, NOTHING, table};
use super::percentile::percentile;
use crate::model::{Export, SyncMode, VolumeInfo};
use serde::Serialize;
use std::collections::HashMap;

/// What `vringd ctl export show` says of the volume behind a disk.
pub(super) fn facts(volume: &VolumeInfo) -> Vec<(&'static str, String)> {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let log = volume.log.as_deref().unwrap_or("in the volume");
    // Nobody here has it open: every log has a size.
    if volume.log_bytes == 0 {
        return vec![("sync", volume.sync.to_string()), ("log", log.to_owned())];
    }
    let (used, all) = (cells::size(volume.log_used_bytes), cells::size(volume.log_bytes));
    let (dirty, most) = (cells::size(volume.dirty_bytes), cells::size(volume.dirty_bytes_max));
    let mut lines = vec![
        ("sync", volume.sync.to_string()),
        ("log", format!("{log}, {used} of {all} in use ({})", percent(volume.log_fill()))),
        (
            "dirty memory",
            format!("{dirty} of {most} ({}), {} writes wait", percent(volume.dirty_fill()), volume.parked),
        ),
        ("commits", commits(volume)),
        ("commit time", cells::latency_line(&volume.commit_latency)),
        ("flush time", cells::latency_line(&volume.flush_latency)),
        ("company wait", cells::latency_line(&volume.company_wait)),
        ("easy flushes", format!("{} had nothing to wait for", volume.flushes_for_nothing)),
        ("parked", format!("{} writes, {} commits", volume.parked_writes, volume.parked_commits)),
        (
            "write-back",
            format!(
                "{} in {} sweeps, {} errors",
                cells::size(volume.written_back_bytes),
                volume.sweeps,
                volume.write_back_errors
            ),
        ),
    ];
    if let Some(why) = &volume.failure {
        lines.push(("volume failed", why.clone()));
    }
    lines
}

fn commits(volume: &VolumeInfo) -> String {
    if volume.commits == 0 {
        return format!("0, {} failed", volume.log_errors);
    }
    let blocks = volume.committed_blocks as f64 / volume.commits as f64;
    let (requests, failed) = (volume.requests_a_commit(), volume.log_errors);
    format!("{}, {requests:.1} requests and {blocks:.1} blocks each, {failed} failed", volume.commits)
}

/// `vringd ctl export sync`.
pub(super) fn synced(export: &Export) -> String {
    let left = export.storage.as_ref().and_then(|storage| storage.volume.as_ref());
    let left = left.map_or_else(|| NOTHING.to_owned(), |volume| cells::size(volume.dirty_bytes));
    format!("{}: written back; {left} has been written since\n", export.name)
}

/// A volume in an interval; fills, dirty memory and who waits are those of its end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct VolumeSample {
    pub(super) export: String,
    pub(super) sync: SyncMode,
    pub(super) commits_per_second: f64,
    /// Requests that shared a commit; absent when there was none.
    pub(super) requests_a_commit: Option<f64>,
    pub(super) commit_p50_us: Option<f64>,
    pub(super) commit_p99_us: Option<f64>,
    pub(super) flush_p99_us: Option<f64>,
    /// Share of the log that is in use.
    pub(super) log_fill: f64,
    pub(super) dirty_bytes: u64,
    pub(super) written_back_bytes_per_second: f64,
    pub(super) parked: u64,
}

/// Compares the volumes of two looks. What was not there at the first counts from zero.
pub(super) fn compare(before: &[Export], after: &[Export], interval_seconds: f64) -> Vec<VolumeSample> {
    let old: HashMap<&str, &VolumeInfo> = before.iter().filter_map(volume_of).collect();
    let nothing = VolumeInfo::default();
    let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / interval_seconds;
    let sample = |(export, new): (&str, &VolumeInfo)| {
        let old = old.get(export).copied().unwrap_or(&nothing);
        let commits = new.commits.saturating_sub(old.commits);
        let requests = new.committed_requests.saturating_sub(old.committed_requests);
        VolumeSample {
            export: export.to_owned(),
            sync: new.sync,
            commits_per_second: rate(new.commits, old.commits),
            requests_a_commit: (commits > 0).then(|| requests as f64 / commits as f64),
            commit_p50_us: percentile(&old.commit_latency, &new.commit_latency, 0.5),
            commit_p99_us: percentile(&old.commit_latency, &new.commit_latency, 0.99),
            flush_p99_us: percentile(&old.flush_latency, &new.flush_latency, 0.99),
            log_fill: new.log_fill(),
            dirty_bytes: new.dirty_bytes,
            written_back_bytes_per_second: rate(new.written_back_bytes, old.written_back_bytes),
            parked: new.parked,
        }
    };
    after.iter().filter_map(volume_of).map(sample).collect()
}

fn volume_of(export: &Export) -> Option<(&str, &VolumeInfo)> {
    Some((export.name.as_str(), export.storage.as_ref()?.volume.as_ref()?))
}

/// The volumes of `vringd ctl top`; nothing when there is none.
pub(super) fn samples(volumes: &[VolumeSample]) -> String {
    if volumes.is_empty() {
        return String::new();
    }
    let headers = [
        "VOLUME",
        "SYNC",
        ">COMMITS/s",
        ">REQUESTS EACH",
        ">COMMIT p50 µs",
        ">p99 µs",
        ">FLUSH p99 µs",
        ">LOG %",
        ">DIRTY MiB",
        ">WRITE-BACK MiB/s",
        ">WAITING",
    ];
    let latency = |us: Option<f64>| us.map_or_else(|| NOTHING.to_owned(), cells::microseconds);
    let row = |volume: &VolumeSample| {
        vec![
            volume.export.clone(),
            volume.sync.to_string(),
            format!("{:.0}", volume.commits_per_second),
            volume.requests_a_commit.map_or_else(|| NOTHING.to_owned(), |each| format!("{each:.1}")),
            latency(volume.commit_p50_us),
            latency(volume.commit_p99_us),
            latency(volume.flush_p99_us),
            format!("{:.0}", volume.log_fill * 100.0),
            cells::mib(volume.dirty_bytes as f64),
            cells::mib(volume.written_back_bytes_per_second),
            volume.parked.to_string(),
        ]
    };
    table(&headers, volumes.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_volume_that_nobody_has_its_options_are_shown() {
        let log = Some("/dev/log".to_owned());
        let volume = VolumeInfo { log, ..VolumeInfo::default() };
        assert_eq!(facts(&volume), [("sync", "standard".to_owned()), ("log", "/dev/log".to_owned())]);
        assert!(facts(&VolumeInfo { log_bytes: 1 << 20, ..volume }).len() > 2);
    }
}
