//! `vringd ctl job`, and `vringd ctl disk snapshot|backup|mirror|stream|commit|pull`, which begin what it shows: arguments and tables.

use super::add::{DescriptionError, absolute};
use super::bitmaps;
use super::cells::{NOTHING, facts, or_nothing, size, table, uptime};
use crate::model::{
    ByteSize, CopyDisk, CopyFormat, FieldError, Job, JobDisk, JobKind, JobState, NewBackup, NewCommit, NewJob,
    NewMirror, NewSnapshot, NewStream, SnapshotDisk,
};
use clap::Subcommand;
use std::path::PathBuf;
use std::str::FromStr;

/// A disk and a path, as in `db=/srv/db.qcow2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPath {
    /// Name of the disk.
    pub disk: String,
    /// The path.
    pub path: PathBuf,
}

impl FromStr for DiskPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((disk, path)) if !disk.is_empty() && !path.is_empty() => {
                Ok(Self { disk: disk.to_owned(), path: PathBuf::from(path) })
            }
            _ => Err("must be the name of a disk, `=` and a path, as in db=/srv/db.qcow2".to_owned()),
        }
    }
}

/// What is set aside.
#[derive(Debug, Clone, clap::Args)]
pub struct SnapshotArgs {
    /// Disks, each with the path that its image file gets, as in db=/srv/db.monday.qcow2.
    #[arg(required = true, value_name = "DISK=PATH")]
    pub disks: Vec<DiskPath>,
}

impl SnapshotArgs {
    /// The snapshot that is described, checked, with absolute paths.
    ///
    /// # Errors
    /// [`DescriptionError`]; its message names the field.
    pub fn snapshot(&self) -> Result<NewSnapshot, DescriptionError> {
        let describe = || {
            let mut disks = Vec::with_capacity(self.disks.len());
            for DiskPath { disk, path } in &self.disks {
                let mut to = path.clone();
                absolute("to", &mut to)?;
                disks.push(SnapshotDisk { disk: disk.clone(), to });
            }
            let new = NewSnapshot { disks };
            new.check()?;
            Ok(new)
        };
        describe().map_err(DescriptionError::Options)
    }
}

/// How copies are made.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct CopyFlags {
    /// Format of the copy.
    #[arg(long, value_name = "FORMAT", default_value = "qcow2")]
    pub format: CopyFormat,

    /// Most bytes copied a second, as in 100M [default: no limit].
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<ByteSize>,

    /// Overwrite what is at the target.
    #[arg(long)]
    pub force: bool,

    /// Do not wait: print the job and leave it to the daemon.
    #[arg(long)]
    pub detach: bool,
}

/// What is backed up.
#[derive(Debug, Clone, clap::Args)]
pub struct BackupArgs {
    /// Disks, each with the path of its copy, as in db=/backup/db.qcow2.
    #[arg(required = true, value_name = "DISK=TARGET")]
    pub disks: Vec<DiskPath>,

    /// Copy only what was written since the last backup with this dirty bitmap; the first one with it is a full one.
    #[arg(long, value_name = "NAME")]
    pub bitmap: Option<String>,

    /// The backup before this one, which the copy names as its backing file, as in db=/backup/db.0.qcow2; once for each disk.
    #[arg(long, value_name = "DISK=PATH", requires = "bitmap")]
    pub backing: Vec<DiskPath>,

    /// How.
    #[command(flatten)]
    pub copy: CopyFlags,
}

impl BackupArgs {
    /// The job that is described, checked, with absolute paths.
    ///
    /// # Errors
    /// [`DescriptionError`]; its message names the field.
    pub fn job(&self) -> Result<NewJob, DescriptionError> {
        let CopyFlags { format, limit, force, detach: _ } = self.copy;
        let describe = || {
            let mut disks = Vec::with_capacity(self.disks.len());
            for DiskPath { disk, path } in &self.disks {
                let mut target = path.clone();
                absolute("target", &mut target)?;
                let bitmap = self.bitmap.clone();
                disks.push(CopyDisk { disk: disk.clone(), target, format, force, bitmap, backing: None });
            }
            for DiskPath { disk, path } in &self.backing {
                let Some(copy) = disks.iter_mut().find(|copy| copy.disk == *disk) else {
                    let message = format_args!("`{disk}` is not backed up by this command: name one of its disks");
                    return Err(FieldError::new("--backing", message));
                };
                let mut backing = path.clone();
                absolute("backing", &mut backing)?;
                if copy.backing.replace(backing).is_some() {
                    return Err(FieldError::new("--backing", format_args!("`{disk}` has one already")));
                }
            }
            let new = NewJob::Backup(NewBackup { disks, limit });
            new.check()?;
            Ok(new)
        };
        describe().map_err(DescriptionError::Options)
    }
}

/// What is mirrored.
#[derive(Debug, Clone, clap::Args)]
pub struct MirrorArgs {
    /// Name of the disk.
    pub disk: String,

    /// Path of the copy.
    pub target: PathBuf,

    /// Complete it once it is ready: the disk lives on in the target.
    #[arg(long, conflicts_with = "detach")]
    pub complete: bool,

    /// How.
    #[command(flatten)]
    pub copy: CopyFlags,
}

impl MirrorArgs {
    /// The job that is described, checked, with absolute paths.
    ///
    /// # Errors
    /// [`DescriptionError`]; its message names the field.
    pub fn job(&self) -> Result<NewJob, DescriptionError> {
        let CopyFlags { format, limit, force, detach: _ } = self.copy;
        let describe = || {
            let mut target = self.target.clone();
            absolute("target", &mut target)?;
            let new = NewJob::Mirror(NewMirror { disk: self.disk.clone(), target, format, force, limit });
            new.check()?;
            Ok(new)
        };
        describe().map_err(DescriptionError::Options)
    }
}

/// A disk whose chain of images gets shorter.
#[derive(Debug, Clone, clap::Args)]
pub struct ChainArgs {
    /// Name of the disk.
    pub disk: String,

    /// Most bytes copied a second, as in 100M [default: no limit].
    #[arg(long, value_name = "SIZE")]
    pub limit: Option<ByteSize>,

    /// Do not wait: print the job and leave it to the daemon.
    #[arg(long)]
    pub detach: bool,
}

impl ChainArgs {
    /// The job that copies what is behind the image, checked.
    ///
    /// # Errors
    /// [`DescriptionError`]; its message names the field.
    pub fn stream(&self) -> Result<NewJob, DescriptionError> {
        checked(NewJob::Stream(NewStream { disk: self.disk.clone(), limit: self.limit }))
    }

    /// The job that copies what the image has, checked.
    ///
    /// # Errors
    /// [`DescriptionError`]; its message names the field.
    pub fn commit(&self) -> Result<NewJob, DescriptionError> {
        checked(NewJob::Commit(NewCommit { disk: self.disk.clone(), limit: self.limit }))
    }
}

fn checked(new: NewJob) -> Result<NewJob, DescriptionError> {
    new.check().map_err(DescriptionError::Options)?;
    Ok(new)
}

/// Jobs.
#[derive(Debug, Clone, clap::Args)]
pub struct JobArgs {
    /// What to do [default: list].
    #[command(subcommand)]
    pub command: Option<JobCommand>,
}

/// What `vringd ctl job` can do.
#[derive(Debug, Clone, Subcommand)]
pub enum JobCommand {
    /// List the jobs: those that run, and those that have ended and were not forgotten.
    List,

    /// Show one job.
    Show {
        /// Identifier of the job.
        id: u64,
    },

    /// Wait until a job is done, or a mirror or a pull is ready to be completed; the status is 1 if it fails.
    Wait {
        /// Identifier of the job.
        id: u64,
    },

    /// Complete a mirror that is ready: the disk lives on in the target; end a pull whose backup is made; try a commit again.
    Complete {
        /// Identifier of the job.
        id: u64,

        /// Do not wait until it is done.
        #[arg(long)]
        detach: bool,
    },

    /// Cancel a job and remove the unfinished targets of a backup or a mirror; forget one that has ended.
    Cancel {
        /// Identifier of the job.
        id: u64,
    },

    /// Limit the bytes that a job copies a second.
    Limit {
        /// Identifier of the job.
        id: u64,

        /// Bytes a second, as in 50M, or none.
        #[arg(value_name = "SIZE|none", value_parser = limit)]
        limit: ByteSize,
    },
}

/// A limit, where 0 lifts it.
fn limit(text: &str) -> Result<ByteSize, String> {
    if text == "none" {
        return Ok(ByteSize(0));
    }
    text.parse().map_err(|error: values::ParseError| format!("{error}, or none"))
}

/// Moment in UTC.
fn moment(seconds: u64) -> String {
    let moment = i64::try_from(seconds).ok().and_then(|seconds| chrono::DateTime::from_timestamp(seconds, 0));
    moment.map_or_else(|| seconds.to_string(), |moment| moment.format("%Y-%m-%d %H:%M:%S UTC").to_string())
}

fn time(seconds: u64) -> String {
    uptime(seconds as f64)
}

fn rate(bytes_per_second: u64) -> String {
    format!("{}/s", size(bytes_per_second))
}

/// How fast a job is and how long that takes, while it copies.
pub(super) fn pace(job: &Job) -> Option<String> {
    let left = job.seconds_left.map_or(String::new(), |seconds| format!(", {} left", time(seconds)));
    (!job.state.has_ended()).then(|| format!("{}{left}", rate(job.bytes_per_second)))
}

/// `vringd ctl job list`.
pub(super) fn jobs(jobs: &[Job]) -> String {
    if jobs.is_empty() {
        return "no jobs\n".to_owned();
    }
    let headers = [">JOB", "KIND", "STATE", "DISKS", ">DONE", ">OF", ">RATE", ">LEFT", ">LIMIT"];
    let row = |job: &Job| {
        let goes_on = !job.state.has_ended();
        vec![
            job.id.to_string(),
            job.kind.to_string(),
            job.state.to_string(),
            job.disk_names(),
            size(job.done_bytes),
            size(job.total_bytes),
            or_nothing(goes_on.then(|| rate(job.bytes_per_second))),
            or_nothing(job.seconds_left.map(time)),
            or_nothing(job.limit_bytes_per_second.map(rate)),
        ]
    };
    let failed = jobs.iter().filter_map(|job| Some((job.id, job.error.as_ref()?)));
    let reasons: String = failed.map(|(id, error)| format!("job {id}: {error}\n")).collect();
    table(&headers, jobs.iter().map(row)) + &reasons
}

pub(super) fn one(job: &Job) -> String {
    jobs(std::slice::from_ref(job))
}

/// `vringd ctl job show`.
pub(super) fn job(job: &Job) -> String {
    let mut lines = vec![
        ("job", job.id.to_string()),
        ("kind", job.kind.to_string()),
        ("state", job.state.to_string()),
        ("done", format!("{} of {}", size(job.done_bytes), size(job.total_bytes))),
        ("rate", pace(job).unwrap_or_else(|| NOTHING.to_owned())),
        ("limit", or_nothing(job.limit_bytes_per_second.map(rate))),
        ("started", moment(job.started)),
        ("ended", or_nothing(job.ended.map(moment))),
    ];
    lines.extend(job.error.iter().map(|error| ("error", error.clone())));
    let mut headers = vec!["DISK", "FORMAT", ">DONE", ">OF", ">DIRTY", "TARGET"];
    let with_bitmaps = job.disks.iter().any(|disk| disk.bitmap.is_some());
    if with_bitmaps {
        headers.splice(1..1, ["COPY", "BITMAP"]);
    }
    let row = |disk: &JobDisk| {
        let mut cells = vec![
            disk.disk.clone(),
            disk.format.to_string(),
            size(disk.done_bytes),
            size(disk.total_bytes),
            or_nothing(disk.dirty_bytes.map(size)),
            disk.target.display().to_string(),
        ];
        if with_bitmaps {
            let bitmap = or_nothing(disk.bitmap.as_deref().map(bitmaps::shown));
            cells.splice(1..1, [extent(disk).to_owned(), bitmap]);
        }
        cells
    };
    let disks = table(&headers, job.disks.iter().map(row));
    format!("{}\n{disks}", facts(&lines))
}

/// How much of a disk is copied.
fn extent(disk: &JobDisk) -> &'static str {
    if disk.incremental { "incremental" } else { "full" }
}

/// How much of each disk a backup with bitmaps has copied: an operator who expects the one must notice the other.
fn extents(job: &Job) -> String {
    if job.disks.iter().all(|disk| disk.bitmap.is_none()) {
        return String::new();
    }
    let first = job.disks.first().map_or("", extent);
    if job.disks.iter().all(|disk| extent(disk) == first) {
        return format!(" ({first})");
    }
    let each: Vec<String> = job.disks.iter().map(|disk| format!("{} {}", disk.disk, extent(disk))).collect();
    format!(" ({})", each.join(", "))
}

/// A line about a job that was waited for.
pub(super) fn outcome(job: &Job) -> String {
    let Job { id, kind, .. } = job;
    let disks = job.disk_names();
    match (kind, job.state) {
        (JobKind::Commit, JobState::Ready) => format!(
            "job {id}: everything of {disks} is in its backing file; `vringd ctl job complete {id}` tries again to end with that\n"
        ),
        (JobKind::Mirror, JobState::Ready) => format!(
            "job {id}: the mirror of {disks} is ready and follows; `vringd ctl job complete {id}` moves the disk to it\n"
        ),
        (JobKind::Mirror, JobState::Done) => {
            let targets: Vec<String> = job.disks.iter().map(|disk| disk.target.display().to_string()).collect();
            let targets = targets.join(", ");
            format!("job {id}: {disks} lives on in {targets}: name that where the disk is described\n")
        }
        (JobKind::Pull, JobState::Ready) => {
            let at = |disk: &JobDisk| format!("{} is at {}", disk.disk, disk.target.display());
            let all: Vec<String> = job.disks.iter().map(at).collect();
            let (all, extents) = (all.join(", "), extents(job));
            format!("job {id}: {all} as it was{extents}; `vringd ctl job complete {id}` when the backup is made\n")
        }
        (kind, JobState::Done) => {
            let (done, seconds) = (size(job.done_bytes), job.ended.unwrap_or(job.started).saturating_sub(job.started));
            let of = format!("{done} in {}", time(seconds));
            match kind {
                JobKind::Stream => format!("job {id}: {disks} stands alone: {of}\n"),
                JobKind::Commit => format!("job {id}: committed {disks}: {of}\n"),
                JobKind::Pull => {
                    let extents = extents(job);
                    format!("job {id}: the pull of {disks} is over; guests wrote over {done} meanwhile{extents}\n")
                }
                JobKind::Backup | JobKind::Mirror => format!("job {id}: backed up {disks}: {of}{}\n", extents(job)),
            }
        }
        _ => one(job),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_read() {
        let path = |text: &str| text.parse::<DiskPath>();
        assert_eq!(path("db=/a=b"), Ok(DiskPath { disk: "db".into(), path: "/a=b".into() }));
        for wrong in ["db", "db=", "=/a", ""] {
            assert!(path(wrong).unwrap_err().starts_with("must be the name of a disk"), "{wrong}");
        }
        assert_eq!(
            (limit("none"), limit("0"), limit("50M")),
            (Ok(ByteSize(0)), Ok(ByteSize(0)), Ok(ByteSize(50 << 20)))
        );
        assert!(limit("fast").unwrap_err().ends_with(", or none"));
    }

    #[test]
    fn moments_are_in_utc() {
        assert_eq!(moment(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(moment(1_795_000_000), "2026-11-18 11:06:40 UTC");
        assert_eq!(moment(u64::MAX), u64::MAX.to_string());
    }
}
