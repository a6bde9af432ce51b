//! What is done to volumes that nobody serves: made, looked at, replayed, changed, and turned into images and back.
//!
//! All of it takes the image locks of the files that it touches, as a server does, and none of it needs one to run.
//!
//! | file | concern |
//! |---|---|
//! | `target` | a file or device that something is written to |
//! | `copy` | contents from one storage to another |
//! | `apart` | intent logs of disks that are storages of their own |
//! | `convert` | images to volumes, volumes to images |

mod apart;
mod convert;

pub use crate::check::Report;
pub use crate::recover::Recovered;
pub use apart::{create_log, replay_log};
pub use convert::{Converted, to_raw, to_volume};
pub use storage::copy::Copied;

use super::blocking::StorageBlocks;
use super::boot::awaited;
use super::error::VolumeError;
use super::memory::{Contents, Home, Memory, missing};
use super::open::{OpenedVolume, VolumeOptions, way};
use crate::format::{self, CAPACITY_BYTES_MAX, FormatError, LogPlace, Superblock, Tail, Uuid};
use crate::{BLOCK_BYTES, Blocks, Progress, SECTOR_BYTES};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use storage::target::Target;
use storage::{FileOptions, FileStorage, OpenError, Storage};

/// Size of a log when nobody says another, in bytes: seconds of commits on a fast disk.
pub const LOG_BYTES_DEFAULT: u64 = 256 << 20;

impl VolumeOptions {
    pub(in crate::served) fn open_file(&self, path: &Path, read_only: bool) -> Result<Arc<FileStorage>, VolumeError> {
        Ok(Arc::new(FileStorage::open(&self.file(path, read_only))?))
    }

    /// Whether a file that somebody has locked can be opened as it will be written. One without contents gets some.
    fn check_opens(&self, path: &Path) -> Result<(), VolumeError> {
        match FileStorage::open_without_threads(&FileOptions { lock: false, ..self.file(path, false) }) {
            Ok(_) | Err(OpenError::Empty { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The volume and its log, if one is named.
    fn ways(&self, read_only: bool) -> Result<(StorageBlocks, Option<StorageBlocks>), VolumeError> {
        let data = way(&self.path, self.open_file(&self.path, read_only)?)?;
        let log = self.log.as_deref().map(|path| way(path, self.open_file(path, read_only)?)).transpose()?;
        Ok((data, log))
    }

    fn format(&self) -> impl Fn(FormatError) -> VolumeError {
        VolumeError::format(&self.path)
    }
}

/// What a new volume is to be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// Size of the guest's disk, in bytes: a multiple of 512.
    pub size_bytes: u64,
    /// Size of the log, in bytes: 64 KiB to 1 TiB. On a device of its own the log takes all of that.
    pub log_bytes: u64,
    /// Overwrite what is there.
    pub force: bool,
    /// The program that makes it, as the volume will say.
    pub created_by: String,
}

/// What is known of a volume.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Info {
    /// The volume.
    pub path: PathBuf,
    /// Its name.
    pub volume: Uuid,
    /// Size of the guest's disk, in bytes.
    pub capacity_bytes: u64,
    /// Size of the file or device, in bytes.
    pub file_bytes: u64,
    /// What the file takes of its file system, in bytes; of a device all of it.
    pub allocated_bytes: u64,
    /// Where the disk begins in it, in bytes.
    pub data_offset: u64,
    /// It is the log of a disk that is a storage of its own, and has none itself.
    pub apart: bool,
    /// Its log.
    pub log: LogPlace,
    /// From where the log counts.
    pub tail: Tail,
    /// It was closed in order: there is nothing to replay.
    pub clean: bool,
    /// The last opening.
    pub epoch: u64,
    /// Superblocks written.
    pub generation: u64,
    /// The program that made it.
    pub created_by: String,
    /// What a killed server has left in memory.
    pub memory: Option<MemoryInfo>,
}

/// What a killed server has left in memory.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryInfo {
    /// The memory file.
    pub path: PathBuf,
    /// Blocks of 4096 bytes that only it holds.
    pub blocks: u64,
    /// Why they cannot be written back, if so.
    pub refused: Option<String>,
}

/// What a replay may give up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discard {
    /// What guests wrote, and did not flush, before a server was killed.
    pub memory: bool,
    /// What the log holds from the first place on that cannot be read, flushed or not.
    pub unreadable: bool,
}

/// What a replay has done.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Replayed {
    /// What was in the log.
    pub log: Recovered,
    /// Blocks that were written back from the memory file.
    pub memory_blocks: u64,
    /// Blocks of a memory file that were given up, as was asked for.
    pub discarded_blocks: u64,
    /// A memory file that was missed and given up: nobody knows what it held.
    pub missing_memory: Option<PathBuf>,
}

/// Makes a volume: in a file that is made, sparse, or on a device. The log goes inside, or to `at.log`.
///
/// # Errors
/// Something is there already, or there is no room, or an option is out of range.
pub fn create(
    at: &VolumeOptions,
    options: &CreateOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Info, VolumeError> {
    let plan = plan(at, options);
    let bytes = plan.storage_bytes().map_err(at.format())?;
    let mut data = target(at, &at.path, bytes, options.force)?;
    let mut log = log_target(at, options.log_bytes, options.force)?;
    data.clear()?;
    log.as_mut().map_or(Ok(()), Target::clear)?;
    {
        let mut data_way = way(&at.path, at.open_file(&at.path, false)?)?;
        lay_out(at, &plan, &mut data_way, progress)?;
    }
    data.keep()?;
    log.map_or(Ok(()), Target::keep)?;
    info(at)
}

fn plan(at: &VolumeOptions, options: &CreateOptions) -> format::CreateOptions {
    format::CreateOptions {
        capacity_bytes: options.size_bytes,
        log_bytes: options.log_bytes,
        volume: Uuid::new_v4(),
        log: Uuid::new_v4(),
        log_path: at.log.as_ref().map(|path| path.display().to_string()),
        apart: false,
        created_by: options.created_by.clone(),
    }
}

/// The file or device of a log, if it has one.
fn log_target(at: &VolumeOptions, log_bytes: u64, force: bool) -> Result<Option<Target>, VolumeError> {
    let bytes = log_bytes.saturating_add(format::EXTERNAL_LOG_OFFSET).next_multiple_of(BLOCK_BYTES as u64);
    at.log.as_deref().map(|path| target(at, path, bytes, force)).transpose()
}

/// A file or device that something else than a log of a disk is written to. Nothing is cleared that cannot be written then.
fn target(at: &VolumeOptions, path: &Path, bytes: u64, force: bool) -> Result<Target, VolumeError> {
    let target = Target::make(path, bytes, force)?;
    apart::admit_other(path, &target)?;
    at.check_opens(path)?;
    Ok(target)
}

fn lay_out(
    at: &VolumeOptions,
    plan: &format::CreateOptions,
    data: &mut StorageBlocks,
    progress: &mut dyn FnMut(Progress),
) -> Result<Superblock, VolumeError> {
    let mut log = at.log.as_deref().map(|path| way(path, at.open_file(path, false)?)).transpose()?;
    let log = log.as_mut().map(|log| log as &mut dyn Blocks);
    format::create(data, log, plan, progress).map_err(at.format())
}

/// Looks at a volume.
///
/// # Errors
/// It is none, or cannot be read.
pub fn info(at: &VolumeOptions) -> Result<Info, VolumeError> {
    let (mut data, _) = VolumeOptions { log: None, ..at.clone() }.ways(true)?;
    let superblock = format::read_superblock(&mut data).map_err(at.format())?;
    let about = std::fs::metadata(&at.path).map_err(VolumeError::io(&at.path, "inspect"))?;
    let file_bytes = data.len();
    let device = !about.is_file();
    Ok(Info {
        path: at.path.clone(),
        volume: superblock.volume,
        capacity_bytes: superblock.capacity_bytes,
        file_bytes,
        allocated_bytes: if device { file_bytes } else { about.blocks().saturating_mul(SECTOR_BYTES as u64) },
        data_offset: superblock.data_offset,
        apart: superblock.apart,
        memory: memory(at, &superblock)?,
        log: superblock.log,
        tail: superblock.tail,
        clean: superblock.clean,
        epoch: superblock.epoch,
        generation: superblock.generation,
        created_by: superblock.created_by,
    })
}

/// What is in the volume's memory file.
fn memory(at: &VolumeOptions, superblock: &Superblock) -> Result<Option<MemoryInfo>, VolumeError> {
    let file = match Memory::find(&at.memory_file, superblock, Home::of(&at.path)) {
        Ok(Some(file)) => file,
        Ok(None) => return Ok(missing(&at.memory_file, superblock).and_then(missed)),
        Err(VolumeError::HiddenMemory { path }) => {
            let refused = Some(VolumeError::HiddenMemory { path: path.clone() }.to_string());
            return Ok(Some(MemoryInfo { path, blocks: 0, refused }));
        }
        Err(error) => return Err(error),
    };
    let path = file.shown();
    Ok(match file.contents(superblock) {
        Ok(Contents::Blank) => None,
        Ok(Contents::Versions(blocks)) => Some(MemoryInfo { path, blocks, refused: None }),
        Err(VolumeError::StaleMemory { versions, .. }) => {
            let refused = Some("somebody opened the volume without it since".to_owned());
            Some(MemoryInfo { path, blocks: versions, refused })
        }
        Err(error @ VolumeError::MissingMemory { .. }) => missed(error),
        Err(error) => Some(MemoryInfo { path, blocks: 0, refused: Some(error.to_string()) }),
    })
}

/// Of a memory file that is not there.
fn missed(error: VolumeError) -> Option<MemoryInfo> {
    let refused = Some(error.to_string());
    match error {
        VolumeError::MissingMemory { path, .. } => Some(MemoryInfo { path, blocks: 0, refused }),
        _ => None,
    }
}

/// Examines a volume and its log. Nothing is changed; what is wrong is in the report.
///
/// # Errors
/// The files cannot be opened.
pub fn check(at: &VolumeOptions, progress: &mut dyn FnMut(Progress)) -> Result<Report, VolumeError> {
    let (mut data, mut log) = at.ways(true)?;
    Ok(crate::check::check(&mut data, log.as_mut().map(|log| log as &mut dyn Blocks), progress))
}

/// Writes back what the log and the memory file of a killed server hold, and closes the volume.
///
/// # Errors
/// It cannot be opened for writing, or written back; or its memory file belongs to another opening, or its log cannot be read to
/// its end, unless `discard` says that this does not matter.
pub fn replay(
    at: &VolumeOptions,
    discard: &Discard,
    progress: &mut dyn FnMut(Progress),
) -> Result<Replayed, VolumeError> {
    let (discarded_blocks, missing_memory) = if discard.memory { discard_memory(at)? } else { (0, None) };
    let (storage, log, memory_blocks) = OpenedVolume::new(&at.clone())?.replay(discard.unreadable, progress)?;
    storage.close()?;
    Ok(Replayed { log, memory_blocks, discarded_blocks, missing_memory })
}

/// Gives up what a killed server has left in memory: so many blocks, or those in a file that is missed.
fn discard_memory(at: &VolumeOptions) -> Result<(u64, Option<PathBuf>), VolumeError> {
    let (mut data, mut log) = at.ways(false)?;
    let mut superblock = format::read_superblock(&mut data).map_err(at.format())?;
    // Not before it is known that the volume is going to be opened without it.
    superblock.check_length(data.len()).map_err(at.format())?;
    superblock.check_log(log.as_mut().map(|log| log as &mut dyn Blocks)).map_err(at.format())?;
    let missed = |superblock: &Superblock| awaited(superblock).map(|memory| PathBuf::from(&memory.path));
    let file = Memory::find(&at.memory_file, &superblock, Home::of(&at.path))?;
    let (blocks, missing) = match file.as_ref().map(|file| file.contents(&superblock)) {
        None | Some(Err(VolumeError::MissingMemory { .. })) => (0, missed(&superblock)),
        Some(Ok(contents)) => (contents.versions(), None),
        Some(Err(VolumeError::StaleMemory { versions, .. })) => (versions, missed(&superblock)),
        Some(Err(VolumeError::NewerMemory { versions, .. })) => (versions, None),
        // Of another volume, or not ours to remove.
        Some(Err(error)) => return Err(error),
    };
    file.as_ref().map_or(Ok(()), Memory::lock)?;
    if superblock.memory.take().is_some() {
        // First: killed behind it, the file that belongs to the volume is found as one of before there were such words.
        format::write_superblock(&mut data, &mut superblock).map_err(at.format())?;
    }
    if let Some(file) = file {
        file.remove();
    }
    Ok((blocks, missing))
}

/// Changes the size of a volume's disk. Smaller ones lose what was at their end.
///
/// # Errors
/// It was not closed in order, or there is no room.
pub fn resize(at: &VolumeOptions, size_bytes: u64) -> Result<Info, VolumeError> {
    let sector = SECTOR_BYTES as u64;
    if !(sector..=CAPACITY_BYTES_MAX).contains(&size_bytes) || !size_bytes.is_multiple_of(sector) {
        let rule = "512 bytes to 2^60, a multiple of 512";
        return Err(at.format()(FormatError::Option { field: "size", value: size_bytes, rule }));
    }
    {
        let file = at.open_file(&at.path, false)?;
        let mut data = way(&at.path, file.clone())?;
        let before = format::read_superblock(&mut data).map_err(at.format())?;
        check_closed(at, &before)?;
        let (end, file_bytes) = (before.data_offset + before.capacity_bytes, file.capacity_bytes());
        let needed_bytes = Superblock { capacity_bytes: size_bytes, ..before }.storage_bytes();
        if size_bytes > before.capacity_bytes && file_bytes > end && file.describe().kind == "file" {
            // A shrinking that was cut off has left its end behind.
            data.zero_at(end, file_bytes - end)
                .and_then(|()| data.flush())
                .map_err(VolumeError::io(&at.path, "clear the end of"))?;
        }
        if needed_bytes > file_bytes {
            file.resize(needed_bytes).map_err(|source| VolumeError::Storage { path: at.path.clone(), source })?;
        }
        format::resize(&mut data, size_bytes).map_err(at.format())?;
        let about = std::fs::metadata(&at.path).map_err(VolumeError::io(&at.path, "inspect"))?;
        if about.is_file() && about.len() > needed_bytes {
            // Still locked: nobody else counts on what is cut off.
            let cut = std::fs::OpenOptions::new().write(true).open(&at.path);
            cut.and_then(|file| file.set_len(needed_bytes).and_then(|()| file.sync_all()))
                .map_err(VolumeError::io(&at.path, "cut off the end of"))?;
        }
    }
    info(at)
}

/// Gives a volume a log on `at.log`: a file that is made with `log_bytes`, or all of a device.
///
/// # Errors
/// The volume was not closed in order, or has such a log already, or something is there.
pub fn log_add(
    at: &VolumeOptions,
    log_bytes: u64,
    force: bool,
    progress: &mut dyn FnMut(Progress),
) -> Result<Info, VolumeError> {
    let Some(path) = &at.log else { return Err(VolumeError::NoLogNamed { path: at.path.clone() }) };
    {
        let mut data = way(&at.path, at.open_file(&at.path, false)?)?;
        let superblock = format::read_superblock(&mut data).map_err(at.format())?;
        // Before a file is made for it.
        superblock.check_log(None).map_err(|error| match error {
            FormatError::LogMissing { hint, .. } => at.format()(FormatError::LogPresent { hint }),
            other => at.format()(other),
        })?;
        check_closed(at, &superblock)?;
        let mut target = log_target(at, log_bytes, force)?;
        target.as_mut().map_or(Ok(()), Target::clear)?;
        let mut log = way(path, at.open_file(path, false)?)?;
        let shown = path.display().to_string();
        format::log_add(&mut data, &mut log, Uuid::new_v4(), Some(shown), progress).map_err(at.format())?;
        drop(log);
        target.map_or(Ok(()), Target::keep)?;
    }
    info(at)
}

/// Takes the log back into the volume. With `lost` the log that it had is gone, and so is what only that held.
///
/// # Errors
/// The volume was not closed in order, unless the log is lost; or its log is inside already.
pub fn log_remove(at: &VolumeOptions, lost: bool, progress: &mut dyn FnMut(Progress)) -> Result<Info, VolumeError> {
    {
        let (mut data, mut log) =
            if lost { VolumeOptions { log: None, ..at.clone() }.ways(false)? } else { at.ways(false)? };
        if log.is_none() && !lost {
            let superblock = format::read_superblock(&mut data).map_err(at.format())?;
            superblock.check_log(None).map_err(at.format())?;
        }
        let log = log.as_mut().map(|log| log as &mut dyn Blocks);
        format::log_remove(&mut data, log, Uuid::new_v4(), progress).map_err(at.format())?;
    }
    info(at)
}

/// Refuses a volume that was not closed in order. One whose log was lost says that it was, and yet a killed server may have left
/// something for it in memory.
fn check_closed(at: &VolumeOptions, superblock: &Superblock) -> Result<(), VolumeError> {
    superblock.check_whole().map_err(at.format())?;
    let remembers = |memory: MemoryInfo| memory.refused.is_none() && memory.blocks > 0;
    if !superblock.clean || awaited(superblock).is_some() || memory(at, superblock)?.is_some_and(remembers) {
        return Err(at.format()(FormatError::NotClean));
    }
    Ok(())
}

/// What is no error of a volume.
pub(super) fn storage_error(path: &Path) -> impl Fn(storage::StorageError) -> VolumeError {
    let path = path.to_owned();
    move |source| VolumeError::Storage { path: path.clone(), source }
}
