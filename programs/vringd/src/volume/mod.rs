//! Volumes: the command `vringd volume`, and what the daemon has to say of them in the API's words.

mod api;
mod args;
mod header;
mod show;

pub(crate) use api::info_out;
pub(crate) use args::Args;
pub(crate) use header::{begins_like_a_volume, warn_of_volume};
pub(crate) use show::{info as show_info, replayed as show_replayed};

use crate::bar::Bar;
use crate::failure::Failure;
use crate::out::Out;
use args::{Access, Command, Convert, Create, Form, Log, Place};
use control::model::ByteSize;
use show::Checked;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use volume::log::End;
use volume::tools::{self, CreateOptions, Discard, Replayed};
use volume::{Progress, VolumeOptions};

/// Runs `vringd volume`.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let out = Out { json: args.json };
    match args.command {
        Command::Create(create) => out.print(&self::create(create)?, show::info),
        Command::Info { path, access } => {
            out.print(&tools::info(&access.volume(path, None)).map_err(Failure::of)?, show::info)
        }
        Command::Check { place } => return check(place, out),
        Command::Replay { place, discard_memory, discard_unreadable } => {
            let discard = Discard { memory: discard_memory, unreadable: discard_unreadable };
            return replay(place, &discard, out);
        }
        Command::Resize { place, size, shrink } => out.print(&resize(place, size, shrink)?, show::info),
        Command::Log(log) => out.print(&self::log(log)?, show::info),
        Command::Convert(convert) => self::convert(convert, out),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn create(create: Create) -> Result<tools::Info, Failure> {
    let Create { path, size, log_size, log, force, access } = create;
    let bar = Bar::new("log");
    let log_bytes = log_size.map_or_else(|| log_bytes_default(size.0), |size| size.0);
    let log_bytes = on_device(log.as_deref(), log_size).unwrap_or(log_bytes);
    let at = access.volume(path, log);
    tools::create(&at, &options(size.0, log_bytes, force), &mut on(&bar)).map_err(Failure::of)
}

fn check(place: Place, out: Out) -> Result<ExitCode, Failure> {
    let at = place.volume();
    let bar = Bar::new("check");
    let report = tools::check(&at, &mut on(&bar)).map_err(Failure::of)?;
    drop(bar);
    // Without a superblock nobody knows whose memory file it would be, and the report says why.
    let memory = if report.superblock.is_some() { tools::info(&at).map_err(Failure::of)?.memory } else { None };
    let checked = Checked::new(at.path, report, memory);
    out.print(&checked, show::checked)?;
    Ok(if checked.sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn replay(place: Place, discard: &Discard, out: Out) -> Result<ExitCode, Failure> {
    let at = place.volume();
    let bar = Bar::new("replay");
    let replayed = tools::replay(&at, discard, &mut on(&bar)).map_err(Failure::of)?;
    drop(bar);
    out.print(&replayed, |replayed| show::replayed(&at.path, replayed))?;
    Ok(ended(&replayed))
}

/// The status of a replay: a log that is damaged was replayed as far as it goes, and that is not all that was flushed.
pub(crate) fn ended(replayed: &Replayed) -> ExitCode {
    let damaged = matches!(replayed.log.end, End::Damaged { .. } | End::GivenUp { .. });
    if damaged { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn resize(place: Place, size: ByteSize, shrink: bool) -> Result<tools::Info, Failure> {
    let at = place.volume();
    let now = ByteSize(tools::info(&at).map_err(Failure::of)?.capacity_bytes);
    if size < now && !shrink {
        let path = at.path.display();
        let line = format!("{path}: has {now}, and {size} would cut off its end: --shrink loses what is there");
        return Err(Failure::Usage(line));
    }
    tools::resize(&at, size.0).map_err(Failure::of)
}

fn log(log: Log) -> Result<tools::Info, Failure> {
    let bar = Bar::new("log");
    match log {
        Log::Add { path, log, size, force, access } => {
            let log_bytes = match (on_device(Some(&log), size), size) {
                (Some(bytes), _) => bytes,
                (None, Some(size)) => size.0,
                (None, None) => {
                    let about = tools::info(&access.volume(path.clone(), None)).map_err(Failure::of)?;
                    log_bytes_default(about.capacity_bytes)
                }
            };
            let at = access.volume(path, Some(log));
            tools::log_add(&at, log_bytes, force, &mut on(&bar)).map_err(Failure::of)
        }
        Log::Remove { path, log, lost, access } => {
            let at = access.volume(path, log);
            tools::log_remove(&at, lost, &mut on(&bar)).map_err(Failure::of)
        }
    }
}

fn convert(convert: Convert, out: Out) -> Result<(), Failure> {
    let Convert { source, target, to, size, log_size, log, force, access } = convert;
    let bar = Bar::new("convert");
    let converted = match to {
        Form::Volume => {
            let size_bytes = size.map_or(0, |size| size.0);
            let disk_bytes = image_bytes(&source)?.max(size_bytes);
            let log_bytes = log_size.map_or_else(|| log_bytes_default(disk_bytes), |size| size.0);
            let log_bytes = on_device(log.as_deref(), log_size).unwrap_or(log_bytes);
            let at = access.volume(target.clone(), log);
            let options = options(size_bytes, log_bytes, force);
            tools::to_volume(&source, &at, &options, &mut on(&bar))
        }
        Form::Raw => {
            let misplaced = [("--size", size.is_some()), ("--log-size", log_size.is_some())];
            if let Some((option, _)) = misplaced.iter().find(|(_, given)| *given) {
                return Err(Failure::Usage(format!("{option}: has no meaning for a raw image")));
            }
            tools::to_raw(&access.volume(source, log), &target, force, &mut on(&bar))
        }
    };
    let converted = converted.map_err(Failure::of)?;
    drop(bar);
    out.print(&converted, |converted| show::converted(&target, to, converted))
}

/// Shows how far a tool is.
pub(crate) fn on(bar: &Bar) -> impl FnMut(Progress) {
    |it| bar.show(it.done_bytes, it.total_bytes)
}

fn options(size_bytes: u64, log_bytes: u64, force: bool) -> CreateOptions {
    CreateOptions { size_bytes, log_bytes, force, created_by: created_by() }
}

/// What is written down of who has made something.
pub(crate) fn created_by() -> String {
    format!("vringd {}", env!("CARGO_PKG_VERSION"))
}

/// The log of a disk of which nobody says more: some seconds of commits, and not most of a small disk's file.
fn log_bytes_default(disk_bytes: u64) -> u64 {
    const UNIT: u64 = 1 << 20;
    (disk_bytes / 8 / UNIT * UNIT).clamp(UNIT, tools::LOG_BYTES_DEFAULT)
}

/// What to ask for of a log on a device without a size of its own: as little as there may be, because all of it is used.
fn on_device(log: Option<&Path>, size: Option<ByteSize>) -> Option<u64> {
    let device = std::fs::metadata(log?).is_ok_and(|about| about.file_type().is_block_device());
    (device && size.is_none()).then_some(volume::format::LOG_BYTES_MIN)
}

/// The size of an image or device.
fn image_bytes(path: &Path) -> Result<u64, Failure> {
    let size = File::open(path).and_then(|mut image| image.seek(SeekFrom::End(0)));
    size.map_err(|error| Failure::Usage(format!("{}: cannot be opened: {error}", path.display())))
}

impl Access {
    fn volume(&self, path: PathBuf, log: Option<PathBuf>) -> VolumeOptions {
        VolumeOptions {
            log,
            memory_file: self.memory_file.clone().unwrap_or_default(),
            direct: !self.no_direct,
            lock: !self.no_lock,
            ..VolumeOptions::new(path)
        }
    }
}

impl Place {
    fn volume(self) -> VolumeOptions {
        self.access.volume(self.path, self.log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_grow_with_their_disks() {
        let mib = |mib: u64| mib << 20;
        for (disk, log) in [(512, mib(1)), (mib(16), mib(2)), (mib(1000), mib(125)), (mib(1 << 20), mib(256))] {
            assert_eq!(log_bytes_default(disk), log);
        }
    }
}
