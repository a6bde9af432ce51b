//! What `vringd image` says to people.

use super::args::Format;
use crate::out::{facts, size};
use ::image::tools::{
    BitmapEntry, Checked, Committed, Compared, Converted, Info, Measured, Rebased, Resized, SnapshotInfo,
};
use std::fmt::Write;
use std::path::Path;

fn exact(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", size(bytes))
}

/// `vringd image info`, and what was made.
pub(super) fn info(info: &Info) -> String {
    let path = info.path.display().to_string();
    let space = ("space", format!("{} of {}", size(info.allocated_bytes), size(info.file_bytes)));
    if info.format == "raw" {
        return facts(&[("raw image", path), ("size", exact(info.size_bytes)), space]);
    }
    let subclusters = if info.subclusters { ", in 32 parts each" } else { "" };
    let mut lines = vec![
        ("image", path),
        ("format", format!("qcow2, version {}", info.version)),
        ("size", exact(info.size_bytes)),
        space,
        ("clusters", format!("{}{subclusters}; refcounts of {} bits", size(info.cluster_bytes), info.refcount_bits)),
    ];
    if let Some(name) = &info.backing_file {
        let format = info.backing_format.as_deref().unwrap_or("a format that is not written down");
        lines.push(("backing file", format!("{} ({})", name.escape_debug(), format.escape_debug())));
    }
    if let Some(name) = &info.data_file {
        let raw = if info.data_file_raw { " (a raw image of its own)" } else { "" };
        lines.push(("data file", format!("{}{raw}", name.escape_debug())));
    }
    if info.bitmaps > 0 {
        lines.push(("bitmaps", info.bitmaps.to_string()));
    }
    if let Some(log) = &info.intent_log {
        lines.push((
            "intent log",
            format!("{log}, which has what the image has not: it is served with that, or was not closed"),
        ));
    }
    let states = [
        (info.dirty, "not closed: its refcounts may be wrong (dirty bit)"),
        (info.corrupt, "marked as damaged (corrupt bit)"),
    ];
    lines.extend(states.iter().filter(|(is, _)| *is).map(|(_, words)| ("state", (*words).to_owned())));
    lines.extend(info.snapshots.iter().map(|snapshot| ("snapshot", self::snapshot(snapshot))));
    facts(&lines)
}

fn snapshot(snapshot: &SnapshotInfo) -> String {
    let SnapshotInfo { id, name, size_bytes, vm_state_bytes, .. } = snapshot;
    let state = match vm_state_bytes {
        0 => String::new(),
        bytes => format!(", with {} of a machine's state", size(*bytes)),
    };
    format!("{} {name:?}, {}{state}", id.escape_debug(), size(*size_bytes))
}

/// `vringd image snapshot`.
pub(super) fn snapshots(all: &[SnapshotInfo]) -> String {
    if all.is_empty() {
        return "no snapshots\n".to_owned();
    }
    all.iter().map(|it| snapshot(it) + "\n").collect()
}

/// `vringd image bitmap`.
pub(super) fn bitmaps(all: &[BitmapEntry]) -> String {
    if all.is_empty() {
        return "no bitmaps\n".to_owned();
    }
    let line = |it: &BitmapEntry| {
        let state = match (it.in_use, it.enabled) {
            (true, _) => "in use: by whoever serves the image, or inconsistent",
            (false, true) => "enabled",
            (false, false) => "disabled",
        };
        format!("{}  {}  {state}\n", it.name.escape_debug(), size(it.granularity_bytes))
    };
    all.iter().map(line).collect()
}

/// `vringd image check`.
pub(super) fn checked(checked: &Checked, repair: bool) -> String {
    let path = checked.path.display();
    let mut text = String::new();
    // Writing to a string does not fail.
    for problem in &checked.problems {
        let _ = writeln!(text, "{path}: {problem}");
    }
    let more = checked.problem_count - checked.problems.len() as u64;
    if more > 0 {
        let _ = writeln!(text, "{path}: and {more} more");
    }
    if checked.repaired_clusters > 0 {
        let _ = writeln!(text, "{path}: {} leaked clusters were given back", checked.repaired_clusters);
    }
    if checked.leaked_clusters > 0 {
        let fix = match (repair, checked.sound) {
            (false, true) => ": --repair gives them back",
            // Those that entries call shared.
            (true, true) => ": `qemu-img check -r leaks` gives them back",
            _ => "",
        };
        let (clusters, bytes) = (checked.leaked_clusters, size(checked.leaked_bytes));
        let _ = writeln!(text, "{path}: {clusters} clusters ({bytes}) are leaked{fix}");
    }
    let percent = 100.0 * checked.allocated_clusters as f64 / checked.total_clusters.max(1) as f64;
    let _ = match checked.sound {
        true => writeln!(text, "{path}: sound; {percent:.1} % of the disk is allocated"),
        false => writeln!(text, "{path}: damaged: see to a copy first, then `qemu-img check -r all`"),
    };
    text
}

/// `vringd image compare`.
pub(super) fn compared(compared: &Compared) -> String {
    let [one, other] = compared.size_bytes;
    let sizes =
        if one == other { String::new() } else { format!("; their sizes are {} and {}", exact(one), exact(other)) };
    match compared.differs_at {
        Some(at) => format!("different from byte {at} on{sizes}\n"),
        None => format!("the same{sizes}\n"),
    }
}

/// `vringd image convert`.
pub(super) fn converted(target: &Path, to: Format, converted: &Converted) -> String {
    let form = match to {
        Format::Raw => "a raw image",
        Format::Qcow2 => "a qcow2 image",
    };
    crate::out::converted(target, form, converted.size_bytes, converted.copied)
}

/// `vringd image measure`.
pub(super) fn measured(measured: &Measured) -> String {
    facts(&[("required", exact(measured.required)), ("fully allocated", exact(measured.fully_allocated))])
}

/// `vringd image resize`.
pub(super) fn resized(path: &Path, resized: &Resized) -> String {
    let Resized { size_bytes, size_bytes_before } = *resized;
    format!("{}: {}, and was {}\n", path.display(), exact(size_bytes), exact(size_bytes_before))
}

/// `vringd image commit`.
pub(super) fn committed(path: &Path, committed: &Committed) -> String {
    let Committed { backing, copied, emptied, .. } = committed;
    let (written, zeroes) = (size(copied.data_bytes), size(copied.zero_bytes));
    let state = if *emptied { "is empty now" } else { "keeps what it has" };
    format!("{}: {written} and {zeroes} of zeroes written; {} {state}\n", backing.display(), path.display())
}

/// `vringd image rebase`.
pub(super) fn rebased(path: &Path, rebased: &Rebased) -> String {
    let copied = size(rebased.copied.data_bytes);
    let behind = match &rebased.backing_file {
        Some(name) => format!("has {} behind it", name.escape_debug()),
        None => "has nothing behind it".to_owned(),
    };
    format!("{}: {behind}; {copied} copied into it\n", path.display())
}
