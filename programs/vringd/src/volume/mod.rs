//! Volumes: the command `vringd volume`, and what the daemon has to say of them in the API's words.

mod api;
mod args;
mod header;
mod progress;
mod show;

pub(crate) use api::info_out;
pub(crate) use args::Args;
pub(crate) use header::warn_of_volume;

use crate::failure::Failure;
use args::{Access, Command, Convert, Create, Form, Log, Place};
use control::model::ByteSize;
use progress::Bar;
use show::Checked;
use std::error::Error;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use volume::log::End;
use volume::tools::{self, CreateOptions, Discard};
use volume::{VolumeError, VolumeOptions};

/// Runs `vringd volume`.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let mut out = Out { json: args.json };
    match args.command {
        Command::Create(create) => out.info(&self::create(create)?),
        Command::Info { path, access } => out.info(&tools::info(&access.volume(path, None)).map_err(failure)?),
        Command::Check { place } => return check(place, &mut out),
        Command::Replay { place, discard_memory, discard_unreadable } => {
            let discard = Discard { memory: discard_memory, unreadable: discard_unreadable };
            return replay(place, &discard, &mut out);
        }
        Command::Resize { place, size, shrink } => out.info(&resize(place, size, shrink)?),
        Command::Log(log) => out.info(&self::log(log)?),
        Command::Convert(convert) => self::convert(convert, &mut out),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn create(create: Create) -> Result<tools::Info, Failure> {
    let Create { path, size, log_size, log, force, access } = create;
    let bar = Bar::new("log");
    let log_bytes = log_size.map_or_else(|| log_bytes_default(size.0), |size| size.0);
    let log_bytes = on_device(log.as_deref(), log_size).unwrap_or(log_bytes);
    let at = access.volume(path, log);
    tools::create(&at, &options(size.0, log_bytes, force), &mut |progress| bar.show(progress)).map_err(failure)
}

fn check(place: Place, out: &mut Out) -> Result<ExitCode, Failure> {
    let at = place.volume();
    let bar = Bar::new("check");
    let report = tools::check(&at, &mut |progress| bar.show(progress)).map_err(failure)?;
    drop(bar);
    // Without a superblock nobody knows whose memory file it would be, and the report says why.
    let memory = if report.superblock.is_some() { tools::info(&at).map_err(failure)?.memory } else { None };
    let checked = Checked::new(at.path, report, memory);
    out.print(&checked, show::checked)?;
    Ok(if checked.sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn replay(place: Place, discard: &Discard, out: &mut Out) -> Result<ExitCode, Failure> {
    let at = place.volume();
    let bar = Bar::new("replay");
    let replayed = tools::replay(&at, discard, &mut |progress| bar.show(progress)).map_err(failure)?;
    drop(bar);
    out.print(&replayed, |replayed| show::replayed(&at.path, replayed))?;
    // It was replayed as far as it goes, and that is not all that was flushed.
    let damaged = matches!(replayed.log.end, End::Damaged { .. } | End::GivenUp { .. });
    Ok(if damaged { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn resize(place: Place, size: ByteSize, shrink: bool) -> Result<tools::Info, Failure> {
    let at = place.volume();
    let now = ByteSize(tools::info(&at).map_err(failure)?.capacity_bytes);
    if size < now && !shrink {
        let path = at.path.display();
        let line = format!("{path}: has {now}, and {size} would cut off its end: --shrink loses what is there");
        return Err(Failure::Usage(line));
    }
    tools::resize(&at, size.0).map_err(failure)
}

fn log(log: Log) -> Result<tools::Info, Failure> {
    let bar = Bar::new("log");
    match log {
        Log::Add { path, log, size, force, access } => {
            let log_bytes = match (on_device(Some(&log), size), size) {
                (Some(bytes), _) => bytes,
                (None, Some(size)) => size.0,
                (None, None) => {
                    let about = tools::info(&access.volume(path.clone(), None)).map_err(failure)?;
                    log_bytes_default(about.capacity_bytes)
                }
            };
            let at = access.volume(path, Some(log));
            tools::log_add(&at, log_bytes, force, &mut |progress| bar.show(progress)).map_err(failure)
        }
        Log::Remove { path, log, lost, access } => {
            let at = access.volume(path, log);
            tools::log_remove(&at, lost, &mut |progress| bar.show(progress)).map_err(failure)
        }
    }
}

fn convert(convert: Convert, out: &mut Out) -> Result<(), Failure> {
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
            tools::to_volume(&source, &at, &options, &mut |progress| bar.show(progress))
        }
        Form::Raw => {
            let misplaced = [("--size", size.is_some()), ("--log-size", log_size.is_some())];
            if let Some((option, _)) = misplaced.iter().find(|(_, given)| *given) {
                return Err(Failure::Usage(format!("{option}: has no meaning for a raw image")));
            }
            tools::to_raw(&access.volume(source, log), &target, force, &mut |progress| bar.show(progress))
        }
    };
    let converted = converted.map_err(failure)?;
    drop(bar);
    out.print(&converted, |converted| show::converted(&target, to, converted))
}

fn options(size_bytes: u64, log_bytes: u64, force: bool) -> CreateOptions {
    let created_by = format!("vringd {}", env!("CARGO_PKG_VERSION"));
    CreateOptions { size_bytes, log_bytes, force, created_by }
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

/// Refused, or failed on the way: the system's answer tells, unless it is about a name that was typed.
#[expect(clippy::needless_pass_by_value, reason = "it is what `map_err` gives")]
fn failure(error: VolumeError) -> Failure {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    let mut answer = None;
    while let Some(error) = cause {
        answer = error.downcast_ref::<io::Error>().or(answer);
        cause = error.source();
    }
    match answer.map(io::Error::kind) {
        None
        | Some(
            ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::AlreadyExists
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidInput,
        ) => Failure::Usage(error.to_string()),
        Some(_) => Failure::Runtime(error.to_string()),
    }
}

/// Where answers go.
struct Out {
    json: bool,
}

impl Out {
    fn info(&mut self, info: &tools::Info) -> Result<(), Failure> {
        self.print(info, show::info)
    }

    fn print<T: serde::Serialize>(&mut self, answer: &T, words: impl FnOnce(&T) -> String) -> Result<(), Failure> {
        let text = if self.json {
            let json = serde_json::to_string_pretty(answer);
            json.map_err(|error| Failure::Runtime(format!("cannot write JSON: {error}")))? + "\n"
        } else {
            words(answer)
        };
        match io::stdout().write_all(text.as_bytes()) {
            // `vringd volume … | head` has had enough: that is no failure.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(|error| Failure::Runtime(format!("cannot write the output: {error}"))),
        }
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

    #[test]
    fn what_a_person_can_mend_is_told_from_what_failed() {
        let io = |kind| VolumeError::Io { path: "/v".into(), what: "open", source: io::Error::from(kind) };
        assert!(matches!(failure(io(ErrorKind::NotFound)), Failure::Usage(_)));
        assert!(matches!(failure(io(ErrorKind::StorageFull)), Failure::Runtime(_)));
        let named = VolumeError::NoLogNamed { path: "/v".into() };
        assert!(matches!(failure(named), Failure::Usage(line) if line.contains("--log")));
    }
}
