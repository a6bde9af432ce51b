//! Figures of volumes: commits, the log, dirty memory, write-back.

use super::{Figure, Labels, Latency, Read, encode_latency};
use crate::model::{SyncMode, VolumeInfo};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

const VOLUME: &[Figure<VolumeInfo>] = &[
    Figure(
        "volume_failed",
        "1 when the volume answers every request with an error, 0 otherwise",
        Read::NowCount(|volume| u64::from(volume.failure.is_some())),
    ),
    Figure("volume_log", "Size of the log, in bytes", Read::NowBytes(|volume| volume.log_bytes)),
    Figure(
        "volume_log_used",
        "Part of the log that would be replayed after a power cut, in bytes",
        Read::NowBytes(|volume| volume.log_used_bytes),
    ),
    Figure(
        "volume_dirty",
        "Data in memory that is not written back yet, in bytes",
        Read::NowBytes(|volume| volume.dirty_bytes),
    ),
    Figure(
        "volume_dirty_max",
        "Most data in memory that is not written back, in bytes",
        Read::NowBytes(|volume| volume.dirty_bytes_max),
    ),
    Figure("volume_parked", "Writes that wait for room in memory", Read::NowCount(|volume| volume.parked)),
    Figure(
        "volume_parked_writes",
        "Writes that had to wait for room in memory",
        Read::Count(|volume| volume.parked_writes),
    ),
    Figure(
        "volume_parked_commits",
        "Times that a commit had to wait for room in the log",
        Read::Count(|volume| volume.parked_commits),
    ),
    Figure("volume_commits", "Sequential writes to the log, each with its flush", Read::Count(|volume| volume.commits)),
    Figure(
        "volume_committed_requests",
        "Requests that waited for a commit: flushes and durable writes",
        Read::Count(|volume| volume.committed_requests),
    ),
    Figure(
        "volume_committed_blocks",
        "Data in commits, in blocks of 4096 bytes",
        Read::Count(|volume| volume.committed_blocks),
    ),
    Figure("volume_committed", "Data written to the log, in bytes", Read::Bytes(|volume| volume.committed_bytes)),
    Figure("volume_log_errors", "Commits that failed", Read::Count(|volume| volume.log_errors)),
    Figure(
        "volume_flushes_for_nothing",
        "Flushes that had nothing to wait for",
        Read::Count(|volume| volume.flushes_for_nothing),
    ),
    Figure(
        "volume_written_back",
        "Data written back to the storage below the log, in bytes",
        Read::Bytes(|volume| volume.written_back_bytes),
    ),
    Figure("volume_sweeps", "Times that everything was written back", Read::Count(|volume| volume.sweeps)),
    Figure(
        "volume_write_back_errors",
        "Writes to the storage below the log that failed and are tried again",
        Read::Count(|volume| volume.write_back_errors),
    ),
];

const LATENCIES: &[Latency<VolumeInfo>] = &[
    (
        "volume_company_wait",
        "Time for which commits were held back for more requests to join them, of those that were, in seconds",
        |volume| &volume.company_wait,
    ),
    ("volume_commit_latency", "Time from the begin of a commit to its end, in seconds", |volume| {
        &volume.commit_latency
    }),
    (
        "volume_flush_latency",
        "Time from a request for durability to its answer, all waiting included, in seconds",
        |volume| &volume.flush_latency,
    ),
];

/// All of them, of these volumes.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, volumes: &[(Labels, &VolumeInfo)]) -> fmt::Result {
    VOLUME.iter().try_for_each(|figure| figure.encode(encoder, volumes))?;
    encode_sync(encoder, volumes)?;
    LATENCIES.iter().try_for_each(|latency| encode_latency(encoder, latency, volumes))
}

/// A series for each mode, of which one is 1: what can be summed and compared, as a mode itself cannot.
fn encode_sync(encoder: &mut DescriptorEncoder<'_>, volumes: &[(Labels, &VolumeInfo)]) -> fmt::Result {
    let help = "1 for the mode in which writes become durable, 0 for the others";
    let mut family = encoder.encode_descriptor("volume_sync", help, None, MetricType::Gauge)?;
    for (labels, volume) in volumes {
        for mode in [SyncMode::Standard, SyncMode::Always, SyncMode::Disabled] {
            let mut labels = labels.clone();
            labels.push(("mode", mode.to_string()));
            ConstGauge::new(u64::from(volume.sync == mode)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
