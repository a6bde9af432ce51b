//! Figures of jobs: how far each is with each of its disks, and its state.

use super::{Figure, Labels, Read};
use crate::model::{Job, JobDisk, JobState};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

const DISK: &[Figure<JobDisk>] = &[
    Figure("job_done", "Data that the job has done of the disk, in bytes", Read::NowBytes(|disk| disk.done_bytes)),
    Figure("job_total", "Data that the job has to do of the disk, in bytes", Read::NowBytes(|disk| disk.total_bytes)),
];

const MIRRORED: &[Figure<JobDisk>] = &[Figure(
    "job_dirty",
    "Data that the guest has changed and the mirror does not have yet, in bytes",
    Read::NowBytes(|disk| disk.dirty_bytes.unwrap_or(0)),
)];

/// All of them, of these jobs.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, jobs: &[Job]) -> fmt::Result {
    let disks: Vec<(Labels, &JobDisk)> = jobs.iter().flat_map(disks).collect();
    let mirrored: Vec<_> = disks.iter().filter(|(_, disk)| disk.dirty_bytes.is_some()).cloned().collect();
    DISK.iter().try_for_each(|figure| figure.encode(encoder, &disks))?;
    MIRRORED.iter().try_for_each(|figure| figure.encode(encoder, &mirrored))?;
    encode_state(encoder, jobs)
}

fn labels(job: &Job) -> Labels {
    vec![("id", job.id.to_string()), ("kind", job.kind.to_string())]
}

fn disks(job: &Job) -> impl Iterator<Item = (Labels, &JobDisk)> {
    job.disks.iter().map(|disk| {
        let mut labels = labels(job);
        labels.push(("disk", disk.disk.clone()));
        (labels, disk)
    })
}

/// A series for each state, of which one is 1: what can be summed and compared, as a state itself cannot.
fn encode_state(encoder: &mut DescriptorEncoder<'_>, jobs: &[Job]) -> fmt::Result {
    let help = "1 for the state in which the job is, 0 for the others";
    let mut family = encoder.encode_descriptor("job_state", help, None, MetricType::Gauge)?;
    for job in jobs {
        for state in JobState::ALL {
            let mut labels = labels(job);
            labels.push(("state", state.to_string()));
            ConstGauge::new(u64::from(job.state == state)).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
