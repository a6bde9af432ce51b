//! Volumes: made of the image that other servers serve, so that all have the same data, every block of it written.
//!
//! A volume has one server at a time, and several stands are up at once: each configuration has its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use guest::process::Group;

use super::trouble::{one_line, reason};
use super::{Data, Site, Trouble};
use crate::experiment::Medium;

/// How long a copy of an image may take, for each MiB and besides.
const MIB_TIME_MAX: Duration = Duration::from_millis(200);
const TIME_MAX: Duration = Duration::from_secs(60);

/// Where the volume of a configuration lies, beside the image that it is made of.
pub(super) fn directory(image: &Path, configuration: &str) -> PathBuf {
    let mut name = image.file_name().unwrap_or_default().to_os_string();
    name.push(format!("-volume-{configuration}"));
    image.with_file_name(name)
}

/// Makes `volume` of `image`, unless it lies there.
///
/// # Errors
/// [`Trouble::Failed`]: there is no room, or it could not be made; nothing is left then.
pub(super) fn make(site: &Site, image: &Data, volume: &Data, medium: Medium) -> Result<(), Trouble> {
    if volume.is_marked() && volume.image().is_file() {
        return Ok(());
    }
    // What an interrupted run left takes room.
    volume.remove().map_err(|error| volume.trouble(medium, &error))?;
    volume.check_room(medium)?;
    let made =
        convert(site, image, volume).and_then(|()| volume.mark().map_err(|error| volume.trouble(medium, &error)));
    if made.is_err() {
        // The first error is the one to tell.
        let _removed = volume.remove();
    }
    made
}

fn convert(site: &Site, image: &Data, volume: &Data) -> Result<(), Trouble> {
    let directory = volume.directory();
    let failed =
        |error: std::io::Error| Trouble::Failed(format!("cannot make a volume in {}: {error}", directory.display()));
    fs::create_dir_all(&directory).map_err(failed)?;
    let log = directory.with_file_name("convert.log");
    let mut command = Command::new(&site.vringd);
    command.args(["volume", "convert"]).arg(image.image()).arg(volume.image());
    let mut process = Group::start(&command, &log).map_err(|error| Trouble::failed(&error))?;
    let limit = TIME_MAX + MIB_TIME_MAX * u32::try_from(image.size_mib()).unwrap_or(u32::MAX);
    let status = process.wait(limit).map_err(|error| Trouble::failed(&error))?;
    if !status.success() {
        let output = process.output();
        return Err(Trouble::Failed(format!("cannot make a volume: {}", one_line(reason(&output)))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_configuration_has_its_own() {
        let of = |name| directory(Path::new("/data/1x64MiB"), name);
        assert_eq!(of("disk-log"), Path::new("/data/1x64MiB-volume-disk-log"));
        assert_ne!(of("a"), of("b"));
    }
}
