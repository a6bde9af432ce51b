//! Jobs: copies of disks, made or read while guests use them.

use super::bitmap::check_bitmap_name;
use super::limits::Rates;
use super::name::check_name;
use super::pull::NewPull;
use super::snapshot::{check_disks, check_path};
use crate::error::ApiError;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;
use std::path::PathBuf;
use utoipa::ToSchema;
use values::{ByteSize, FieldError, fields};

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// Copies what disks held when it began.
    Backup,
    /// Copies a disk and then every change to it, until it is completed.
    Mirror,
    /// Copies what is behind an image into it, which stands alone then.
    Stream,
    /// Writes what an image has into its backing file, which takes the image's name then.
    Commit,
    /// Keeps what disks held when it began for NBD clients, until it is completed.
    Pull,
}

impl fmt::Display for JobKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Backup => "backup",
            Self::Mirror => "mirror",
            Self::Stream => "stream",
            Self::Commit => "commit",
            Self::Pull => "pull",
        })
    }
}

/// How far a job is. The last three are ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It copies.
    Running,
    /// A mirror that has copied everything and follows the disk, or a pull that clients can read: it can be completed. A commit that could
    /// not be.
    Ready,
    /// A mirror whose disk moves to the target, a commit whose backing file takes the image's name, or a pull that ends.
    Completing,
    /// It ended as it should: a backup is whole, a mirrored disk lives on in the target, an image stands alone or is committed, a pull was
    /// completed.
    Done,
    /// It ended with an error, and unfinished targets of a backup or a mirror are removed.
    Failed,
    /// It was cancelled, and unfinished targets of a backup or a mirror are removed.
    Cancelled,
}

impl JobState {
    /// All of them.
    pub const ALL: [JobState; 6] =
        [Self::Running, Self::Ready, Self::Completing, Self::Done, Self::Failed, Self::Cancelled];

    /// Whether nothing more happens.
    pub fn has_ended(self) -> bool {
        matches!(self, Self::Done | Self::Failed | Self::Cancelled)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Running => "running",
            Self::Ready => "ready",
            Self::Completing => "completing",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        })
    }
}

/// The format of a copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum CopyFormat {
    /// The disk's bytes and nothing else
    Raw,
    /// A qcow2 image, without a backing file unless one is given
    #[default]
    Qcow2,
}

impl fmt::Display for CopyFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        })
    }
}

/// Description of a job: the body of `POST /v1/jobs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NewJob {
    /// Copy what disks hold now, all at the same moment.
    Backup(NewBackup),
    /// Copy a disk and then every change to it, until the job is completed: then the disk lives on in the target.
    Mirror(NewMirror),
    /// Copy what is behind a qcow2 image into it, until it names no backing file any more.
    Stream(NewStream),
    /// Write what a qcow2 image has into its backing file, which takes the image's name.
    Commit(NewCommit),
    /// Let NBD clients read what disks hold now, all at the same moment, until the job is completed.
    Pull(NewPull),
}

/// By hand, because the derived form of a tagged enum forgets which field an error is about.
impl<'de> Deserialize<'de> for NewJob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = serde_json::Map::deserialize(deserializer)?;
        let kind = table.remove("kind").ok_or_else(|| D::Error::missing_field("kind"))?;
        match kind.as_str() {
            Some("backup") => fields(table).map(Self::Backup),
            Some("mirror") => fields(table).map(Self::Mirror),
            Some("stream") => fields(table).map(Self::Stream),
            Some("commit") => fields(table).map(Self::Commit),
            Some("pull") => fields(table).map(Self::Pull),
            _ => Err(D::Error::custom(format_args!(
                "invalid field `kind`: {kind} is none of backup, mirror, stream, commit, pull"
            ))),
        }
    }
}

/// A backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBackup {
    /// The disks, all at the same moment: at least one, each once.
    pub disks: Vec<CopyDisk>,
    /// Most bytes copied a second, at least 4096; 0 or left out for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ByteSize>,
}

/// A disk, and where its copy goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CopyDisk {
    /// Name of the disk.
    pub disk: String,
    /// Absolute path of the copy: a new file, or with `force` one to be overwritten.
    #[schema(value_type = String)]
    pub target: PathBuf,
    /// Format of the copy, qcow2 by default.
    #[serde(default)]
    pub format: CopyFormat,
    /// Overwrite what is at the target.
    #[serde(default)]
    pub force: bool,
    /// Name of a dirty bitmap, 1 to 1023 bytes: since the last backup with this bitmap, only what was written is copied.
    /// A bitmap that the disk does not have yet is begun by this backup, which is a full one then. For qcow2 disks only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bitmap: Option<String>,
    /// Absolute path of the backup before this one, which the copy names as its backing file; only with a bitmap, and
    /// only for qcow2 targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub backing: Option<PathBuf>,
}

/// A mirror.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMirror {
    /// Name of the disk.
    pub disk: String,
    /// Absolute path of the copy: a new file, or with `force` one to be overwritten.
    #[schema(value_type = String)]
    pub target: PathBuf,
    /// Format of the copy, qcow2 by default.
    #[serde(default)]
    pub format: CopyFormat,
    /// Overwrite what is at the target.
    #[serde(default)]
    pub force: bool,
    /// Most bytes copied a second, at least 4096; 0 or left out for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ByteSize>,
}

/// A stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewStream {
    /// Name of the disk, a qcow2 image that has a backing file.
    pub disk: String,
    /// Most bytes copied a second, at least 4096; 0 or left out for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ByteSize>,
}

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCommit {
    /// Name of the disk, a qcow2 image over another one on the same file system.
    pub disk: String,
    /// Most bytes copied a second, at least 4096; 0 or left out for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<ByteSize>,
}

impl NewJob {
    /// What it is to do.
    pub fn kind(&self) -> JobKind {
        match self {
            Self::Backup(_) => JobKind::Backup,
            Self::Mirror(_) => JobKind::Mirror,
            Self::Stream(_) => JobKind::Stream,
            Self::Commit(_) => JobKind::Commit,
            Self::Pull(_) => JobKind::Pull,
        }
    }

    /// The disk whose chain of images changes; none of any other job.
    pub fn of_chain(&self) -> Option<&str> {
        match self {
            Self::Stream(NewStream { disk, .. }) | Self::Commit(NewCommit { disk, .. }) => Some(disk),
            Self::Backup(_) | Self::Mirror(_) | Self::Pull(_) => None,
        }
    }

    /// The disks of which copies are made, each with its target.
    pub fn copies(&self) -> Vec<CopyDisk> {
        match self {
            Self::Backup(backup) => backup.disks.clone(),
            Self::Mirror(NewMirror { disk, target, format, force, limit: _ }) => {
                let (disk, target) = (disk.clone(), target.clone());
                vec![CopyDisk { disk, target, format: *format, force: *force, bitmap: None, backing: None }]
            }
            Self::Stream(_) | Self::Commit(_) => vec![],
            Self::Pull(pull) => pull.copies(),
        }
    }

    /// Path of the field for the target of a disk, for an error about it.
    pub fn target_field(&self, index: usize) -> String {
        self.copy_field(index, if self.kind() == JobKind::Pull { "listen" } else { "target" })
    }

    /// Path of a field of [`CopyDisk`] for a disk, as in `disks[0].backing`.
    pub fn copy_field(&self, index: usize, field: &str) -> String {
        match self {
            Self::Backup(_) | Self::Pull(_) => format!("disks[{index}].{field}"),
            Self::Mirror(_) | Self::Stream(_) | Self::Commit(_) => field.to_owned(),
        }
    }

    /// Bytes a second, if limited.
    pub fn limit_bytes_per_second(&self) -> Option<u64> {
        match self {
            Self::Backup(NewBackup { limit, .. })
            | Self::Mirror(NewMirror { limit, .. })
            | Self::Stream(NewStream { limit, .. })
            | Self::Commit(NewCommit { limit, .. }) => in_force(*limit),
            Self::Pull(_) => None,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self) -> Result<(), FieldError> {
        match self {
            Self::Backup(backup) => {
                check_disks("target", backup.disks.iter().map(|copy| (copy.disk.as_str(), copy.target.as_path())))?;
                check_bitmaps(&backup.disks)?;
                check_limit(backup.limit)
            }
            Self::Mirror(mirror) => {
                check_name("disk", &mirror.disk)?;
                check_path("target", &mirror.target)?;
                check_limit(mirror.limit)
            }
            Self::Stream(NewStream { disk, limit }) | Self::Commit(NewCommit { disk, limit }) => {
                check_name("disk", disk)?;
                check_limit(*limit)
            }
            Self::Pull(pull) => pull.check(),
        }
    }
}

/// Checks bitmaps and backing files, once disks and targets are.
fn check_bitmaps(disks: &[CopyDisk]) -> Result<(), FieldError> {
    for (index, CopyDisk { format, bitmap, backing, .. }) in disks.iter().enumerate() {
        if let Some(bitmap) = bitmap {
            check_bitmap_name(&format!("disks[{index}].bitmap"), bitmap)?;
        }
        let Some(backing) = backing else { continue };
        let field = format!("disks[{index}].backing");
        check_path(&field, backing)?;
        if bitmap.is_none() {
            let message = "is for what was written since the last backup: give `bitmap` as well, or leave it out";
            return Err(FieldError::new(field, message));
        }
        if *format == CopyFormat::Raw {
            let message =
                "is for qcow2 copies, a raw one names no backing file: set `format` to qcow2, or leave it out";
            return Err(FieldError::new(field, message));
        }
        if let Some(other) = disks.iter().find(|other| other.target == *backing) {
            let message = format_args!(
                "{} is the target of `{}`: give the backup before this one",
                backing.display(),
                other.disk
            );
            return Err(FieldError::new(field, message));
        }
        if let Some(other) = disks.iter().take(index).find(|other| other.backing.as_ref() == Some(backing)) {
            let message =
                format_args!("{} is that of `{}` already: give the backup of this disk", backing.display(), other.disk);
            return Err(FieldError::new(field, message));
        }
    }
    Ok(())
}

/// Changes to a job that apply at once. What is left out stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSettings {
    /// Most bytes copied a second, at least 4096; 0, `"none"` or null lifts the limit.
    #[serde(default, deserialize_with = "or_lifted", skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = limit_schema)]
    pub limit: Option<ByteSize>,
}

impl JobSettings {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field whose value cannot be used.
    pub fn check(&self) -> Result<(), FieldError> {
        check_limit(self.limit)
    }

    /// The limit of a job after this change.
    pub fn changed(&self, limit_bytes_per_second: Option<u64>) -> Option<u64> {
        self.limit.map_or(limit_bytes_per_second, |limit| in_force(Some(limit)))
    }
}

/// 0 stands for no limit.
fn in_force(limit: Option<ByteSize>) -> Option<u64> {
    limit.map(|size| size.0).filter(|bytes| *bytes != 0)
}

fn check_limit(limit: Option<ByteSize>) -> Result<(), FieldError> {
    let (least, most) = (Rates::BYTES_PER_SECOND_MIN, Rates::BYTES_PER_SECOND_MAX);
    match in_force(limit) {
        Some(bytes) if !(least..=most).contains(&bytes) => {
            let message = format_args!("must be {least} to {most} bytes a second, or 0 for no limit, not {bytes}");
            Err(FieldError::new("limit", message))
        }
        _ => Ok(()),
    }
}

/// A limit that is there, where null and `none` lift it.
fn or_lifted<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ByteSize>, D::Error> {
    let limit = match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::Null => ByteSize(0),
        serde_json::Value::String(none) if none == "none" => ByteSize(0),
        other => serde_json::from_value(other).map_err(D::Error::custom)?,
    };
    Ok(Some(limit))
}

fn limit_schema() -> utoipa::openapi::Schema {
    use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
    OneOfBuilder::new()
        .description(Some("Most bytes copied a second, at least 4096; 0, `\"none\"` or null lifts the limit."))
        .item(ObjectBuilder::new().schema_type(Type::Null))
        .item(ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["none"])))
        .item(utoipa::openapi::Ref::from_schema_name("ByteSize"))
        .build()
        .into()
}

/// One job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Identifier, never used again while the daemon runs.
    pub id: u64,
    /// What it does.
    pub kind: JobKind,
    /// How far it is.
    pub state: JobState,
    /// Its disks.
    pub disks: Vec<JobDisk>,
    /// Bytes done, of all disks.
    pub done_bytes: u64,
    /// Bytes to do, of all disks.
    pub total_bytes: u64,
    /// Bytes done a second, over the last seconds; 0 once it has ended.
    pub bytes_per_second: u64,
    /// Time until everything is copied at this rate; absent where that cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
    /// Most bytes copied a second; absent when that is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes_per_second: Option<u64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it began, in seconds since 1970-01-01 00:00:00 UTC.
    pub started: u64,
    /// When it ended, in seconds since 1970-01-01 00:00:00 UTC; absent before it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<u64>,
}

/// A disk in a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobDisk {
    /// Name of the disk.
    pub disk: String,
    /// Path of the copy; of a stream that of the image, of a commit that of its backing file, of a pull the address at which NBD clients
    /// read the disk.
    #[schema(value_type = String)]
    pub target: PathBuf,
    /// Format of what is written; `raw` of a pull.
    pub format: CopyFormat,
    /// Bytes done; of a pull, what is kept of what guests have written over.
    pub done_bytes: u64,
    /// Bytes to do: the size of the disk, what a bitmap says has changed, or what an image does not have, or has, itself. Of a pull the size
    /// of the disk.
    pub total_bytes: u64,
    /// Bytes that the guest has changed and the copy does not have yet; only of a mirror and a commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_bytes: Option<u64>,
    /// Name of the dirty bitmap that a backup or a pull uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bitmap: Option<String>,
    /// Whether only what was written since the last backup with the bitmap is copied, or dirty; false where everything is.
    #[serde(default)]
    pub incremental: bool,
}

impl Job {
    /// Its disks by name, as in `db, log`.
    pub fn disk_names(&self) -> String {
        self.disks.iter().map(|disk| disk.disk.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Whether it can be completed now.
    ///
    /// # Errors
    /// [`ApiError::JobUnsupported`] for what ends by itself, [`ApiError::JobInState`] for what is not ready.
    pub fn may_complete(&self) -> Result<(), ApiError> {
        let id = self.id;
        if matches!(self.kind, JobKind::Backup | JobKind::Stream) {
            let message = format!("a {} ends by itself, only a mirror, a commit or a pull is completed", self.kind);
            return Err(ApiError::JobUnsupported { id, message });
        }
        self.must_be(
            JobState::Ready,
            match self.state {
                JobState::Ready => return Ok(()),
                JobState::Running if self.kind == JobKind::Pull => "wait until it can be read",
                JobState::Running => "wait until everything is copied",
                JobState::Completing => "wait until it is done",
                JobState::Done | JobState::Failed | JobState::Cancelled => "it has ended",
            },
        )
    }

    /// Whether it can be cancelled now. One that has ended is forgotten instead.
    ///
    /// # Errors
    /// [`ApiError::JobInState`] while it completes.
    pub fn may_cancel(&self) -> Result<(), ApiError> {
        match (self.state, self.kind) {
            (JobState::Completing, JobKind::Pull) => self.must_be(JobState::Ready, "wait until it is done"),
            (JobState::Completing, _) => {
                self.must_be(JobState::Running, "its disk is about to change, wait until it is done")
            }
            _ => Ok(()),
        }
    }

    /// Whether it was cancelled, and did not come to its end before that.
    ///
    /// # Errors
    /// [`ApiError::JobInState`].
    pub fn is_cancelled(&self) -> Result<(), ApiError> {
        match self.state {
            JobState::Cancelled => Ok(()),
            _ if self.kind == JobKind::Pull => self.must_be(JobState::Cancelled, "it had ended already"),
            _ => self.must_be(JobState::Cancelled, "it had ended already, and what it has made stays"),
        }
    }

    /// Whether it can be changed now.
    ///
    /// # Errors
    /// [`ApiError::JobInState`] when it has ended, [`ApiError::JobUnsupported`] for a pull.
    pub fn may_change(&self) -> Result<(), ApiError> {
        if self.kind == JobKind::Pull {
            let message = "a pull keeps what guests write over, and no limit may hold that up".to_owned();
            return Err(ApiError::JobUnsupported { id: self.id, message });
        }
        if self.state.has_ended() {
            return self.must_be(JobState::Running, "it has ended");
        }
        Ok(())
    }

    fn must_be(&self, wanted: JobState, message: &str) -> Result<(), ApiError> {
        Err(ApiError::JobInState { id: self.id, state: self.state, wanted, message: message.to_owned() })
    }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
