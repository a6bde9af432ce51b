//! Intent logs of images: `vringd image log`.

use super::args::Log;
use crate::bar::Bar;
use crate::failure::Failure;
use crate::out::Out;
use crate::volume::{created_by, ended, on, show_info, show_replayed};
use ::image::Qcow2Options;
use ::image::tools::forget_log;
use control::model::LogFile;
use std::process::ExitCode;
use storage::open;
use volume::tools::{Discard, create_log, replay_log};

/// Runs one of them.
pub(super) fn run(what: Log, out: Out) -> Result<ExitCode, Failure> {
    match what {
        Log::Create { path, size, force, lost, no_direct } => {
            let log = LogFile { direct: !no_direct, ..LogFile::new(path) };
            let bar = Bar::new("log");
            let made = create_log(&log, size.0, force, lost, &created_by(), &mut on(&bar)).map_err(Failure::of)?;
            drop(bar);
            out.print(&made, show_info)?;
        }
        Log::Replay {
            path,
            log,
            memory_file,
            no_direct,
            discard_memory,
            discard_unreadable,
            repaired,
            allow_backing,
        } => {
            let memory_file = memory_file.unwrap_or_default();
            let log = LogFile { memory_file, direct: !no_direct, ..LogFile::new(log) };
            let image = Qcow2Options { allow: allow_backing, log: Some(log.clone()), ..Qcow2Options::new(&path) };
            let disk = open(&image).map_err(Failure::of)?;
            let discard = Discard { memory: discard_memory, unreadable: discard_unreadable };
            let bar = Bar::new("replay");
            let replayed = replay_log(&log, disk, &discard, repaired, &mut on(&bar)).map_err(Failure::of)?;
            drop(bar);
            out.print(&replayed, |replayed| show_replayed(&path, replayed))?;
            return Ok(ended(&replayed));
        }
        Log::Forget { path } => {
            let said = forget_log(&path).map_err(Failure::of)?;
            let path = path.display();
            out.print(&said, |said| match said {
                true => format!("{path}: goes on without its log\n"),
                false => format!("{path}: was closed in order, and misses no log\n"),
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
