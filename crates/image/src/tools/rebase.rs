//! Another backing file, or none.
//!
//! Where an image has nothing itself, and what is behind it differs from what is to be, it gets what it reads as first.
//! Until the header names the new backing file nothing of that can be seen, and from then on the same is read. The
//! header changes with one sector: a power cut leaves either backing file.

use super::compare::{Side, read};
use super::convert::{From, Open};
use super::create::{Backing, admit_name, behind};
use super::file::{BITMAPS_OFFLINE, Image, ToolError, refuse_bitmaps, zeroes};
use crate::rewrite::Steps;
use crate::{Qcow2Options, Qcow2Storage, features, reference};
use engine::Solo;
use serde::Serialize;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use storage::Storage;
use storage::copy::{CHUNK_BYTES, Copied, GRAIN_BYTES, Route, Zeroes, copy};
use storage::extent::DataRanges;

/// Bytes of a disk that are looked at together.
const WINDOW_BYTES: u64 = 1 << 30;

/// What a rebase has done. Its JSON is what `vringd image rebase --json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rebased {
    /// The backing file, as it is written down now.
    pub backing_file: Option<String>,
    /// What was copied into the image, so that it reads as before.
    #[serde(flatten)]
    pub copied: Copied,
}

/// Gives an image this backing file, or none. It reads as before; unless it is `unchecked`: then only its header
/// changes, and nothing behind it is read.
///
/// # Errors
/// Somebody has the image, or writes to what is behind it; the new backing file cannot be one, or cannot be read; the
/// image has snapshots, which would change, or dirty bitmaps, or cannot be written.
pub fn rebase(
    options: &Qcow2Options,
    backing: Option<&Backing>,
    unchecked: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Rebased, ToolError> {
    let path = &options.path;
    let disk = Arc::new(match unchecked {
        true => Qcow2Storage::open_in_front(options)?,
        false => Qcow2Storage::open_alone(options)?,
    });
    let mut image = Image::open(path, true)?;
    // What cannot be written in the end is refused before anything is copied.
    new_header(&mut image, backing)?;
    let copied = if unchecked {
        if let Some(backing) = backing {
            named(path, backing)?;
        }
        Copied::default()
    } else {
        if image.header()?.snapshots > 0 {
            let reason = "has snapshots, which would read otherwise over another backing file: \
                 delete them first with `vringd image snapshot delete`, or change the header alone with --unsafe";
            return Err(ToolError::refused(path, reason));
        }
        refuse_bitmaps(path, &image.header()?, BITMAPS_OFFLINE)?;
        let new = match backing {
            Some(backing) => open(options, backing)?,
            None => Open { path: path.clone(), storage: Arc::new(zeroes(disk.capacity_bytes())?) },
        };
        if backing.is_some() {
            disk.cover();
        }
        let copied = keep(path, &disk, new, progress)?;
        disk.settle().map_err(ToolError::storage(path))?;
        copied
    };
    // Whoever has the disk open holds the lock.
    let steps = new_header(&mut image, backing)?;
    image.take_steps(&steps)?;
    drop(disk);
    Ok(Rebased { backing_file: backing.map(|backing| backing.name.display().to_string()), copied })
}

/// Where the new backing file is.
fn named(image: &Path, backing: &Backing) -> Result<PathBuf, ToolError> {
    let found = reference::read(backing.name.as_os_str().as_bytes(), image);
    let refused = |error| ToolError::refused(image, format!("its backing file: {error}"));
    found.map(|found| found.path).map_err(refused)
}

/// Opens the new backing file, with all that is behind it.
fn open(options: &Qcow2Options, backing: &Backing) -> Result<Open, ToolError> {
    behind(&options.path, backing)?;
    let path = named(&options.path, backing)?;
    let from = match backing.is_qcow2 {
        false => From::Raw(path),
        true => From::Qcow2(Qcow2Options { read_only: true, ..options.behind(path) }),
    };
    from.open()
}

/// Copies what differs from the new backing file, where the image has nothing itself, into the image.
fn keep(
    path: &Path,
    disk: &Arc<Qcow2Storage>,
    new: Open,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Copied, ToolError> {
    let size_bytes = disk.capacity_bytes();
    let failed = ToolError::storage(path);
    let new_disk = new.storage.clone();
    let there = new_disk.capacity_bytes().min(size_bytes);
    let old = Open { path: path.to_owned(), storage: disk.clone() };
    let mut sides = [Side::new(old)?, Side::new(new)?];
    let mut solo = Solo::new().map_err(ToolError::io(path, "read"))?;
    let mut copied = Copied::default();
    let mut start = 0;
    while start < size_bytes {
        progress(start, size_bytes);
        let window = start..size_bytes.min(start + WINDOW_BYTES);
        let mut ranges = Vec::new();
        for range in DataRanges::of(&**disk, window.clone()) {
            ranges.push(range.map_err(&failed)?);
        }
        for range in DataRanges::of(&*new_disk, window.start.min(there)..window.end.min(there)) {
            ranges.push(range.map_err(&failed)?);
        }
        let view = disk.own();
        let own = DataRanges::exactly(&view, window.clone()).collect::<Result<Vec<_>, _>>().map_err(&failed)?;
        for range in without(joined(ranges), &own) {
            for chunk in pieces(range, CHUNK_BYTES) {
                progress(chunk.start, size_bytes);
                let len = chunk.end - chunk.start;
                read(&mut solo, &mut sides, chunk.start, len)?;
                let differs = differing(sides[0].bytes(len), sides[1].bytes(len));
                for Range { start, end } in differs {
                    let at = chunk.start + start;
                    let (from, zeroes) = (&**disk as &dyn Storage, Zeroes::Write);
                    let len = end - start;
                    let route = Route { from, from_offset: at, to: from, to_offset: at, len, zeroes };
                    let more = copy(&route, &mut |_, _| {}).map_err(&failed)?;
                    copied.data_bytes += more.data_bytes;
                    copied.zero_bytes += more.zero_bytes;
                }
            }
        }
        start = window.end;
    }
    progress(size_bytes, size_bytes);
    Ok(copied)
}

/// Ranges in their order, those that touch as one, in whole sectors.
pub(super) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut out: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let range = range.start / 512 * 512..range.end.next_multiple_of(512);
        match out.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

/// What is left of ranges outside of others, both in their order.
pub(super) fn without(ranges: Vec<Range<u64>>, others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut out = Vec::new();
    let mut first = 0;
    for mut range in ranges {
        while others.get(first).is_some_and(|other| other.end <= range.start) {
            first += 1;
        }
        for other in others[first..].iter().take_while(|other| other.start < range.end) {
            if range.start < other.start {
                out.push(range.start..other.start);
            }
            range.start = range.start.max(other.end);
        }
        if range.start < range.end {
            out.push(range);
        }
    }
    out
}

/// A range in pieces that end at multiples of `bytes`.
pub(super) fn pieces(range: Range<u64>, bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let mut start = range.start;
    std::iter::from_fn(move || {
        let piece = start..range.end.min((start / bytes + 1) * bytes);
        start = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Where two pieces of the same length differ.
fn differing(one: &[u8], other: &[u8]) -> Vec<Range<u64>> {
    let grains = one.chunks(GRAIN_BYTES).zip(other.chunks(GRAIN_BYTES)).enumerate();
    let ranges = grains.filter(|(_, (one, other))| one != other).map(|(number, (one, _))| {
        let start = (number * GRAIN_BYTES) as u64;
        start..start + one.len() as u64
    });
    joined(ranges.collect())
}

/// How the header comes to name the backing file.
fn new_header(image: &mut Image, backing: Option<&Backing>) -> Result<Steps, ToolError> {
    let path = image.path.clone();
    let old = image.header()?;
    let mut header = old.clone();
    header.backing_file = backing.map(|backing| backing.name.as_os_str().as_bytes().to_vec());
    header.extensions.backing_format = backing.map(|backing| if backing.is_qcow2 { "qcow2" } else { "raw" }.to_owned());
    // What is not known may depend on what is behind the image.
    header.autoclear &= features::BITMAPS | features::DATA_FILE_RAW;
    if header.data_file_is_raw() && backing.is_some() {
        return Err(ToolError::refused(&path, "has a raw external data file, with which there is no backing file"));
    }
    if let Some(name) = &header.backing_file {
        admit_name(&path, name)?;
    }
    let no_room = "has no room for this name of a backing file beside what is in its header: give a shorter one";
    image.steps(&old, &header, no_room)
}
