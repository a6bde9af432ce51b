//! The configuration of a server of a SCSI device: the disk under torture, whose reservations a file keeps, and another unit.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Served, Setup};
use crate::frontend::{DISK, OTHER};

/// Writes it, and says where.
pub(super) fn write(setup: &Setup) -> Result<PathBuf> {
    let path = setup.directory.join("config.toml");
    fs::write(&path, text(setup)?)?;
    Ok(path)
}

fn text(setup: &Setup) -> Result<String> {
    let Setup { queues, workers, poll, write_cache, .. } = setup;
    let (socket, control) = (shown(&setup.socket())?, shown(&setup.control())?);
    let (reservations, storage) = (shown(&setup.directory.join("disk.reservations"))?, storage(&setup.served)?);
    let [disk, other] = [DISK, OTHER].map(|(target, number)| format!("{target}:{number}"));
    Ok(format!(
        "control = {control}\n\
         [[disk]]\nname = 'disk'\nreservations = {reservations}\nstorage = {storage}\n\
         [[disk]]\nname = 'other'\nstorage = {{ kind = 'memory', size = '1M' }}\n\
         [[export]]\nname = 'disk'\nkind = 'scsi'\nsocket = {socket}\nqueues = {queues}\nworkers = '{workers}'\npoll = '{poll}'\n\
         write_cache = '{write_cache}'\n\
         luns = [{{ lun = '{disk}', disk = 'disk' }}, {{ lun = '{other}', disk = 'other' }}]\n"
    ))
}

fn storage(served: &Served) -> Result<String> {
    Ok(match served {
        Served::File { image, direct, execution } => {
            format!("{{ kind = 'file', path = {}, direct = {direct}, execution = '{execution}' }}", shown(image)?)
        }
        Served::Volume { volume, image, memory, dirty_memory } => {
            let (volume, memory) = (shown(volume)?, shown(memory)?);
            let volume = format!("path = {volume}, memory_file = {memory}, dirty_memory = '{dirty_memory}'");
            match image {
                Some(image) => format!("{{ kind = 'qcow2', path = {}, log = {{ {volume} }} }}", shown(image)?),
                None => format!("{{ kind = 'volume', {volume} }}"),
            }
        }
        Served::Rbd { image, conf } => {
            format!("{{ kind = 'rbd', image = '{image}', conf = {} }}", shown(conf)?)
        }
        Served::Null(mebibytes) => format!("{{ kind = 'null', size = '{mebibytes}M' }}"),
        Served::Directory { .. } => bail!("a directory is no disk"),
    })
}

/// A path as a string of the configuration.
fn shown(path: &Path) -> Result<String> {
    let path = path.to_str().context("temporary directories are UTF-8")?;
    Ok(format!("'{path}'"))
}
