//! Why a volume cannot be made, read or changed.

use std::fmt;
use std::io;
use uuid::Uuid;

/// What is gone with a log that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Loss {
    /// The volume was closed in order: all is in its data.
    Nothing,
    /// The volume was not closed: what was made durable since its last checkpoint is only in the log.
    SinceCheckpoint {
        /// Sequence that the first record behind the checkpoint has at least.
        sequence: u64,
        /// The epoch that the volume was opened in then.
        epoch: u64,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Nothing => formatter.write_str("the volume was closed in order, so nothing is lost without it"),
            Loss::SinceCheckpoint { sequence, epoch } => write!(
                formatter,
                "the volume was not closed in order, so without it every flushed write since the last checkpoint (record \
                 {sequence} of epoch {epoch}) may be lost"
            ),
        }
    }
}

/// Why a volume cannot be made, read or changed.
#[derive(Debug, thiserror::Error, displaydoc::Display)]
pub enum FormatError {
    /// cannot {what} at byte {offset}: {source}
    Io {
        /// What was tried.
        what: &'static str,
        /// Where in the storage.
        offset: u64,
        /// The storage's answer.
        source: io::Error,
    },
    /// not a volume, it does not begin with a superblock: make one with `vringd volume create`, or of an image with `vringd volume convert`
    NotAVolume,
    /// both superblocks are damaged, so nobody can say where the volume's data and log are: restore it from a backup
    Damaged,
    /// the volume uses features that this version does not know (incompatible {unknown:#x}): use the version that made it, or a later one
    Newer {
        /// The bits that are not known.
        unknown: u64,
    },
    /// the superblock says {field} = {value}, which cannot be ({rule}): restore the volume from a backup
    Impossible {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: u64,
        /// What it must be.
        rule: &'static str,
    },
    /// the {what} has {present_bytes} bytes and needs {needed_bytes}: it was cut off, make it as long as it was (`truncate -s {needed_bytes}`) or restore it
    TooShort {
        /// Volume or log.
        what: &'static str,
        /// Bytes that there are.
        present_bytes: u64,
        /// Bytes that the superblock speaks of.
        needed_bytes: u64,
    },
    /// {field}: {value} is out of range: use {rule}
    Option {
        /// What was asked for.
        field: &'static str,
        /// The value.
        value: u64,
        /// What is possible.
        rule: &'static str,
    },
    /// the volume's log is on a device of its own{hint} which was not given: {loss}; give it with --log, or go on without it with `vringd volume log remove --lost`
    LogMissing {
        /// Where it was last, as " (PATH)", or nothing.
        hint: String,
        /// What is lost without it.
        loss: Loss,
    },
    /// what was given as log device is {found}, not this volume's log {log}{hint}: {loss}; give the right one with --log, or go on without it with `vringd volume log remove --lost`
    LogForeign {
        /// What it is instead.
        found: String,
        /// The log that belongs to the volume.
        log: Uuid,
        /// Where it was last, as " (PATH)", or nothing.
        hint: String,
        /// What is lost without it.
        loss: Loss,
    },
    /// a log device was given, but this volume keeps its log inside itself: leave --log out, or add it first with `vringd volume log add`
    LogUnexpected,
    /// the volume already has a log device{hint}: remove it first with `vringd volume log remove`
    LogPresent {
        /// Where it was last, as " (PATH)", or nothing.
        hint: String,
    },
    /// the volume has no log device, its log is inside itself: there is nothing to remove
    LogInternal,
    /// the volume was not closed in order, its log may hold writes: replay it first with `vringd volume replay`
    NotClean,
    /// is the intent log of a disk that is a storage of its own, a qcow2 image as a rule, and has no disk itself: give that disk with `--log`, or use `vringd image log`
    Apart,
    /// has a disk itself, and is no intent log for another one: make one with `vringd image log create`
    Whole,
}

impl FormatError {
    /// For `map_err` behind an operation of a storage.
    pub(crate) fn io(what: &'static str, offset: u64) -> impl Fn(io::Error) -> FormatError {
        move |source| FormatError::Io { what, offset, source }
    }
}

/// " (PATH)" when a path is known.
pub(crate) fn hint(path: Option<&str>) -> String {
    path.filter(|path| !path.is_empty()).map(|path| format!(" ({path})")).unwrap_or_default()
}
