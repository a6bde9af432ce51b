//! What an image has, written into its backing file.
//!
//! The image is opened apart from what is behind it: so it has what it has itself, and is empty when that is discarded.
//! All that was written into the backing file is on stable storage before anything is discarded, and until then the
//! image covers what changes behind it: whoever is killed has lost nothing, and begins again.

use super::convert::From;
use super::create::is_same;
use super::file::{BITMAPS_OFFLINE, Image, ToolError, as_text, refuse_bitmaps};
use super::resize::{NewSize, clear, resize_by};
use crate::{Behind, ImageError, Qcow2Options, Qcow2Storage, features};
use serde::Serialize;
use std::path::PathBuf;
use storage::copy::{Copied, Route, Zeroes, copy};
use storage::{FileOptions, FileStorage, Links, OpenError, Storage};

/// What was written. Its JSON is what `vringd image commit --json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Committed {
    /// The backing file.
    #[serde(serialize_with = "as_text")]
    pub backing: PathBuf,
    /// Size of its disk, in bytes.
    pub size_bytes: u64,
    /// What was moved into it.
    #[serde(flatten)]
    pub copied: Copied,
    /// The image has nothing of its own any more.
    pub emptied: bool,
}

/// Writes what an image has itself into its backing file, which grows to its size, and empties it unless it is to
/// `keep` that. Other images over the same backing file change with it.
///
/// # Errors
/// It has no backing file, or snapshots; one of both has dirty bitmaps, that would be lost; somebody has one of both, or one of both cannot be read or written: the image
/// reads as before then.
pub fn commit(options: &Qcow2Options, keep: bool, progress: &mut dyn FnMut(u64, u64)) -> Result<Committed, ToolError> {
    let path = &options.path;
    let (image, behind) = Qcow2Storage::open_apart(options)?;
    let size_bytes = image.capacity_bytes();
    let behind = match behind {
        Behind::Nothing => return Err(ToolError::refused(path, "has no backing file into which it could be written")),
        Behind::Raw(file) => From::Raw(file),
        Behind::Qcow2(file) => From::Qcow2(options.behind(file)),
    };
    if is_same(behind.path(), path) {
        return Err(OpenError::from(ImageError::Loop { path: path.clone() }).into());
    }
    let header = Image::open(path, false)?.header()?;
    if !keep {
        refuse_bitmaps(path, &header, BITMAPS_OFFLINE)?;
    }
    if header.has(features::DATA_FILE) && !keep {
        // Its data may be gone from the disk before the entries are that lead there: then it hides what was committed.
        let reason = "has an external data file, and is not emptied: --keep writes what it has into its backing file";
        return Err(ToolError::refused(path, reason));
    }
    if header.snapshots > 0 {
        let reason = "has snapshots, which would read otherwise over a backing file that has changed: \
             delete them first with `vringd image snapshot delete`";
        return Err(ToolError::refused(path, reason));
    }
    let mut backing = Backing::open(&behind)?;
    if backing.storage().capacity_bytes() < size_bytes {
        drop(backing);
        resize_by(&behind, Links::Refuse, (NewSize::To(size_bytes), false), &mut |_, _| {})?;
        backing = Backing::open(&behind)?;
    }
    let own = image.own();
    let to = backing.storage();
    let route = Route { from: &own, from_offset: 0, to, to_offset: 0, len: size_bytes, zeroes: Zeroes::Data };
    let copied = copy(&route, progress).map_err(ToolError::copy(path, behind.path()))?;
    backing.flush()?;
    if !keep {
        clear(path, &image, 0..size_bytes, &mut |_, _| {})?;
        image.settle().map_err(ToolError::storage(path))?;
    }
    let (backing, size_bytes) = (behind.path().to_owned(), backing.storage().capacity_bytes());
    Ok(Committed { backing, size_bytes, copied, emptied: !keep })
}

/// A backing file that is written. Somebody who may write to the image has chosen it: no symbolic link is followed that
/// was not there when its place was looked at.
pub(super) enum Backing {
    /// With a descriptor that was there before anything was written, and hears of what is lost.
    Raw(Box<FileStorage>, Image),
    Qcow2(PathBuf, Qcow2Storage),
}

impl Backing {
    pub(super) fn open(behind: &From) -> Result<Backing, ToolError> {
        let links = Links::Refuse;
        match behind {
            From::Raw(path) => {
                let options = FileOptions::new(path);
                let storage = FileStorage::open_to_the_last_byte(&options, links)?;
                storage.start_threads(options.execution)?;
                Ok(Backing::Raw(Box::new(storage), Image::open_by(path, false, links)?))
            }
            From::Qcow2(options) => {
                let storage = Qcow2Storage::open_alone_by(options, links)?;
                refuse_bitmaps(
                    &options.path,
                    &Image::open_by(&options.path, false, links)?.header()?,
                    BITMAPS_OFFLINE,
                )?;
                Ok(Backing::Qcow2(options.path.clone(), storage))
            }
            From::Foreign(foreign) => Err(foreign.refuse_writing()),
        }
    }

    fn storage(&self) -> &dyn Storage {
        match self {
            Backing::Raw(storage, _) => &**storage,
            Backing::Qcow2(_, storage) => storage,
        }
    }

    fn flush(&self) -> Result<(), ToolError> {
        match self {
            Backing::Raw(_, image) => image.file.sync_all().map_err(ToolError::io(&image.path, "flush")),
            Backing::Qcow2(path, storage) => storage.settle().map_err(ToolError::storage(path)),
        }
    }
}
