//! What `vringd volume` says to people, and the JSON that is not the storage's own.

use super::args::Form;
use crate::out::{facts, size};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use volume::check::Severity;
use volume::log::End;
use volume::tools::{Converted, Info, MemoryInfo, Replayed, Report};

/// What `check` found.
#[derive(Debug, Serialize)]
pub(super) struct Checked {
    path: PathBuf,
    /// Nothing keeps the volume from being opened, and nothing that was flushed is lost.
    pub(super) sound: bool,
    /// Serving or `replay` would write something back.
    needs_replay: bool,
    #[serde(flatten)]
    report: Report,
    /// What a killed server has left in memory.
    memory: Option<MemoryInfo>,
}

impl Checked {
    pub(super) fn new(path: PathBuf, report: Report, memory: Option<MemoryInfo>) -> Checked {
        let refused = memory.as_ref().is_some_and(|memory| memory.refused.is_some());
        let (sound, needs_replay) = (report.is_sound() && !refused, report.needs_replay() || memory.is_some());
        Checked { path, sound, needs_replay, report, memory }
    }

    fn was_closed(&self) -> bool {
        self.report.superblock.as_ref().is_some_and(|superblock| superblock.clean)
    }
}

/// `vringd volume info`, and what has made or changed one.
pub(crate) fn info(info: &Info) -> String {
    let log = match &info.log.external {
        Some(path) => format!("{} in {path}", size(info.log.len)),
        None if info.apart => format!("{}, for an image", size(info.log.len)),
        None => format!("{} in the volume", size(info.log.len)),
    };
    let (what, disk) = if info.apart { ("intent log", "size of its image") } else { ("volume", "size") };
    let closed = if info.clean { "in order" } else { "not in order: what the log holds is replayed when it is opened" };
    let mut lines = vec![
        (what, info.path.display().to_string()),
        ("identifier", info.volume.to_string()),
        (disk, format!("{} ({} bytes)", size(info.capacity_bytes), info.capacity_bytes)),
        ("log", log),
        ("space", format!("{} of {}", size(info.allocated_bytes), size(info.file_bytes))),
        ("closed", closed.to_owned()),
    ];
    lines.extend(info.memory.iter().map(|memory| ("memory", remembered(memory))));
    lines.push(("made by", info.created_by.clone()));
    facts(&lines)
}

fn remembered(memory: &MemoryInfo) -> String {
    let MemoryInfo { path, blocks, refused } = memory;
    let path = path.display();
    match refused {
        Some(why) => format!("{blocks} blocks of a killed server in {path}, which cannot be written back: {why}"),
        None => format!("{blocks} blocks of a killed server in {path}, written back when it is opened"),
    }
}

/// `vringd volume check`.
pub(super) fn checked(checked: &Checked) -> String {
    let path = checked.path.display();
    let mut text = String::new();
    // Writing to a string does not fail.
    for problem in &checked.report.problems {
        let severity = match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        let _ = writeln!(text, "{path}: {severity}: {}", problem.text);
    }
    if let Some(log) = checked.report.log.as_ref().filter(|log| log.records > 0) {
        let records = log.records;
        let _ = writeln!(text, "{path}: {records} records ({}) in the log would be replayed", size(log.log_bytes));
    }
    if let Some(memory) = &checked.memory {
        let _ = writeln!(text, "{path}: {}", remembered(memory));
    }
    let _ = match (checked.sound, checked.needs_replay) {
        (true, false) if checked.was_closed() => writeln!(text, "{path}: sound, and closed in order"),
        (true, false) => writeln!(text, "{path}: sound; not closed in order, but all that was flushed is in its data"),
        (true, true) => {
            writeln!(text, "{path}: sound, and to be replayed: by serving it, or by `vringd volume replay`")
        }
        (false, _) => writeln!(text, "{path}: not sound"),
    };
    text
}

/// `vringd volume replay`.
pub(crate) fn replayed(path: &Path, replayed: &Replayed) -> String {
    let path = path.display();
    let log = &replayed.log;
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{path}: {} records ({}) replayed, {} written, {} made zeroes",
        log.records,
        size(log.log_bytes),
        size(log.data_bytes),
        size(log.zeroed_bytes)
    );
    if replayed.memory_blocks > 0 {
        let _ = writeln!(text, "{path}: {} blocks of a killed server's memory written back", replayed.memory_blocks);
    }
    if replayed.discarded_blocks > 0 {
        let _ = writeln!(text, "{path}: {} blocks of a killed server's memory given up", replayed.discarded_blocks);
    }
    if let Some(missing) = &replayed.missing_memory {
        let missing = missing.display();
        let _ = writeln!(text, "{path}: what a killed server had in {missing} and guests had not flushed was given up");
    }
    if let End::Damaged { stranded } = log.end {
        let _ = writeln!(
            text,
            "{path}: the log is damaged: at least {stranded} records behind the damage could not be replayed, and flushed \
             writes are lost with them"
        );
    }
    if let End::GivenUp { position } = log.end {
        let _ = writeln!(
            text,
            "{path}: the log cannot be read from position {position} on, and was given up there: flushed writes may be lost with it"
        );
    }
    let _ = writeln!(text, "{path}: closed in order");
    text
}

/// `vringd volume convert`.
pub(super) fn converted(target: &Path, to: Form, converted: &Converted) -> String {
    let form = match to {
        Form::Volume => "a volume",
        Form::Raw => "a raw image",
    };
    crate::out::converted(target, form, converted.capacity_bytes, converted.copied)
}
