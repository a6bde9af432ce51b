//! Images of one format copied into another.

use super::CreateOptions;
use super::create::size_for;
use super::destination::{Destination, Place};
use super::file::ToolError;
use super::foreign::Foreign;
use crate::header::Compression;
use crate::{Qcow2Options, Qcow2Storage};
use serde::Serialize;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use storage::copy::{Copied, GRAIN_BYTES, Route, Zeroes, copy};
use storage::extent::{DataRanges, Extents};
use storage::kit::Through;
use storage::{Extent, FileOptions, FileStorage, Links, Storage, StorageError};

/// An image: what is copied, or changed.
#[derive(Clone, Debug)]
pub enum From {
    /// A raw image or a device.
    Raw(PathBuf),
    /// A qcow2 image, with all that is behind it.
    Qcow2(Qcow2Options),
    /// An image of another program, with all files that it names.
    Foreign(Foreign),
}

/// What a conversion has done. Its JSON is what `vringd image convert --json` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Converted {
    /// Size of the disk, in bytes.
    pub size_bytes: u64,
    /// What was moved.
    #[serde(flatten)]
    pub copied: Copied,
}

/// A source that is open.
pub(super) struct Open {
    pub(super) path: PathBuf,
    pub(super) storage: Arc<dyn Storage>,
}

impl From {
    /// Where it is.
    pub fn path(&self) -> &Path {
        match self {
            From::Raw(path) => path,
            From::Qcow2(options) => &options.path,
            From::Foreign(foreign) => &foreign.path,
        }
    }

    pub(super) fn open(&self) -> Result<Open, ToolError> {
        match self {
            From::Raw(path) => {
                let options = FileOptions { read_only: true, ..FileOptions::new(path) };
                let storage = FileStorage::open_to_the_last_byte(&options, Links::Follow)?;
                storage.start_threads(options.execution)?;
                if let Some(looks) = storage::kit::begins_like(path) {
                    let (path, fix) = (path.display(), looks.read);
                    tracing::warn!(%path, "begins like {looks} and is read as raw bytes: if it is one, {fix}");
                }
                Ok(Open { path: path.clone(), storage: Arc::new(storage) })
            }
            From::Qcow2(options) => {
                let storage = Qcow2Storage::open_alone(options)?;
                Ok(Open { path: options.path.clone(), storage: Arc::new(storage) })
            }
            From::Foreign(foreign) => {
                let storage = foreign.open()?;
                Ok(Open { path: foreign.path.clone(), storage: Arc::new(storage) })
            }
        }
    }
}

/// Makes a raw image, in a sparse file or on a device.
///
/// # Errors
/// The source is in use or cannot be read, something is there, or there is no room.
pub fn to_raw(
    from: &From,
    target: &Path,
    force: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, ToolError> {
    let from = from.open()?;
    let to = Place::raw(target, from.storage.capacity_bytes(), force)?.take()?;
    go(&from, to, target, progress)
}

/// Makes a qcow2 image without a backing file, compressed or not. It is one when all is in it: nothing is flushed before.
///
/// # Errors
/// As [`to_raw`], and what cannot be made.
pub fn to_qcow2(
    from: &From,
    target: &Path,
    options: &CreateOptions,
    compression: Option<Compression>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Converted, ToolError> {
    let from = from.open()?;
    let size_bytes = size_for(options, &from.path, from.storage.capacity_bytes())?;
    let options = CreateOptions { size_bytes: Some(size_bytes), ..options.clone() };
    let converted = match compression {
        Some(compression) => {
            let place = Place::compressed(target, &options, compression)?;
            let from = Open { path: from.path.clone(), storage: Arc::new(Grains(from.storage)) };
            go(&from, place.take()?, target, progress)?
        }
        None => go(&from, Place::qcow2(target, &options)?.take()?, target, progress)?,
    };
    Ok(Converted { size_bytes, ..converted })
}

fn go(from: &Open, to: Destination, target: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Converted, ToolError> {
    let len = from.storage.capacity_bytes();
    let zeroes = if to.is_blank() { Zeroes::Leave } else { Zeroes::Write };
    let route = Route { from: &*from.storage, from_offset: 0, to: &**to.storage(), to_offset: 0, len, zeroes };
    let copied = copy(&route, progress).map_err(ToolError::copy(&from.path, target))?;
    to.keep()?;
    Ok(Converted { size_bytes: len, copied })
}

/// A source of which whole grains have data, or none: what is compressed is written in whole clusters.
struct Grains(Arc<dyn Storage>);

impl Through for Grains {
    fn below(&self) -> &dyn Storage {
        &*self.0
    }

    fn extents_through(&self, range: Range<u64>, most: usize) -> Result<Vec<Extent>, StorageError> {
        let grain = GRAIN_BYTES as u64;
        let mut found = Extents::of(range.clone(), most);
        let mut at = range.start;
        for data in DataRanges::exactly(&*self.0, range.clone()) {
            let data = data?;
            let start = (data.start / grain * grain).max(at);
            let end = data.end.next_multiple_of(grain).min(range.end);
            if !found.add(start - at, false) || !found.add(end.saturating_sub(start), true) {
                return Ok(found.into_list());
            }
            at = end.max(at);
        }
        found.add(range.end - at, false);
        Ok(found.into_list())
    }
}
