//! Jobs that copy nothing: each look at one finds it half a copy further.

use super::bitmaps::{Bitmaps, to_copy};
use control::ApiError;
use control::model::{CopyFormat, Disk, Job, JobDisk, JobKind, JobState, NewJob};

/// When everything began.
const STARTED: u64 = 1_795_000_000;

/// A job that has just begun, over these disks.
pub(super) fn begun(id: u64, new: &NewJob, of: &[Disk], bitmaps: &mut Bitmaps) -> Result<Job, ApiError> {
    let mut disks = Vec::new();
    for (index, (copy, disk)) in new.copies().into_iter().zip(of).enumerate() {
        if copy.target.ends_with("there.qcow2") && !copy.force {
            let message = format!("{} exists: give another path, or force", copy.target.display());
            return Err(ApiError::InvalidField { field: new.target_field(index), message });
        }
        let (total_bytes, incremental) = to_copy(bitmaps, new, index, &copy, disk)?;
        disks.push(JobDisk {
            disk: copy.disk,
            target: copy.target,
            format: if new.kind() == JobKind::Pull { CopyFormat::Raw } else { copy.format },
            done_bytes: 0,
            total_bytes,
            dirty_bytes: (new.kind() == JobKind::Mirror).then_some(3 << 20),
            bitmap: copy.bitmap,
            incremental,
        });
    }
    if let (Some(name), [disk]) = (new.of_chain(), of) {
        if disk.storage.kind != "qcow2" {
            let message = format!("its storage is {}, and only qcow2 images have a chain", disk.storage.kind);
            return Err(ApiError::DiskUnsupported { disk: name.to_owned(), message });
        }
        disks.push(JobDisk {
            disk: name.to_owned(),
            target: "/srv/base.qcow2".into(),
            format: CopyFormat::Qcow2,
            done_bytes: 0,
            total_bytes: disk.storage.capacity_bytes / 2,
            dirty_bytes: (new.kind() == JobKind::Commit).then_some(1 << 20),
            bitmap: None,
            incremental: false,
        });
    }
    Ok(Job {
        id,
        kind: new.kind(),
        state: JobState::Running,
        done_bytes: 0,
        total_bytes: disks.iter().map(|disk| disk.total_bytes).sum(),
        bytes_per_second: 100 << 20,
        seconds_left: Some(205),
        limit_bytes_per_second: new.limit_bytes_per_second(),
        error: None,
        started: STARTED,
        ended: None,
        disks,
    })
}

pub(super) fn end(job: &mut Job, state: JobState) {
    (job.state, job.ended) = (state, Some(STARTED + 75));
    (job.bytes_per_second, job.seconds_left) = (0, None);
}

/// What happens between two looks. A copy to `full.qcow2` fails in its middle.
pub(super) fn go_on(job: &mut Job) {
    match job.state {
        // It can be read at once, and keeps what guests write over.
        JobState::Running if job.kind == JobKind::Pull => {
            for disk in &mut job.disks {
                disk.done_bytes = 192 << 10;
            }
            job.done_bytes = job.disks.iter().map(|disk| disk.done_bytes).sum();
            (job.state, job.seconds_left) = (JobState::Ready, None);
        }
        JobState::Running if job.done_bytes == 0 => {
            for disk in &mut job.disks {
                disk.done_bytes = disk.total_bytes / 2;
            }
            (job.done_bytes, job.seconds_left) = (job.total_bytes / 2, Some(102));
            if let Some(full) = job.disks.iter().find(|disk| disk.target.ends_with("full.qcow2")) {
                job.error = Some(format!("cannot write {}: No space left on device", full.target.display()));
                end(job, JobState::Failed);
            }
        }
        JobState::Running => {
            for disk in &mut job.disks {
                (disk.done_bytes, disk.dirty_bytes) = (disk.total_bytes, disk.dirty_bytes.map(|_| 4096));
            }
            job.done_bytes = job.total_bytes;
            match job.kind {
                JobKind::Backup | JobKind::Stream => end(job, JobState::Done),
                JobKind::Commit => (job.state, job.seconds_left) = (JobState::Completing, None),
                JobKind::Mirror | JobKind::Pull => (job.state, job.seconds_left) = (JobState::Ready, None),
            }
        }
        JobState::Completing => end(job, JobState::Done),
        JobState::Ready | JobState::Done | JobState::Failed | JobState::Cancelled => {}
    }
}
