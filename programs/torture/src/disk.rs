//! Disks for servers under torture: raw images, and volumes and qcow2 images with intent logs and their memory files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use guest::process;
use tempfile::TempDir;

use super::server::Served;

/// Small enough for a volume to write back all the time.
const VOLUME_LOG: &str = "1M";
const VOLUME_DIRTY_MEMORY: &str = "4M";

/// What has an intent log, instead of a raw image that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logged {
    /// A volume.
    Volume,
    /// A qcow2 image, with its log in a file of its own.
    Image,
}

impl Logged {
    /// As two options say, of which one at most is given.
    pub(super) fn of(volume: bool, image: bool) -> Option<Self> {
        if volume { Some(Self::Volume) } else { image.then_some(Self::Image) }
    }
}

/// A disk of zeroes.
pub(super) struct Disk {
    served: Served,
    /// What the disk holds: of a volume a copy, made when it is asked for.
    image: PathBuf,
    /// Of the memory file that a volume has.
    _memory: Option<TempDir>,
}

impl Disk {
    /// A raw image in `directory`.
    pub(super) fn raw(directory: &Path, bytes: u64, direct: bool, execution: &str) -> Result<Self> {
        let image = directory.join("disk.img");
        File::create_new(&image)?.set_len(bytes)?;
        let served = Served::File { image: image.clone(), direct, execution: execution.to_owned() };
        Ok(Self { served, image, _memory: None })
    }

    /// A volume, or an image with its log, in `directory`.
    pub(super) fn logged(program: &Path, directory: &Path, bytes: u64, logged: Logged) -> Result<Self> {
        let volume = directory.join("disk.vol");
        let size = bytes.to_string();
        let create = |words: &[&str], path: &Path| process::run(Command::new(program).args(words).arg(path));
        let image = match logged {
            Logged::Volume => {
                create(&["volume", "create", "--log-size", VOLUME_LOG, "--size", &size], &volume)?;
                None
            }
            Logged::Image => {
                let image = directory.join("disk.qcow2");
                create(&["image", "create", "--size", &size], &image)?;
                create(&["image", "log", "create", "--size", VOLUME_LOG], &volume)?;
                Some(image)
            }
        };
        // What must outlive a server lies on tmpfs.
        let directory_of_memory = TempDir::with_prefix_in("vringd-torture-", "/dev/shm")?;
        let memory = directory_of_memory.path().join("memory");
        let served = Served::Volume { volume, image, memory, dirty_memory: VOLUME_DIRTY_MEMORY.into() };
        Ok(Self { served, image: directory.join("disk.img"), _memory: Some(directory_of_memory) })
    }

    /// What a server is told.
    pub(super) fn served(&self) -> Served {
        self.served.clone()
    }

    /// The image as it is, which a server may be using; a volume has none.
    pub(super) fn raw_image(&self) -> Option<&Path> {
        matches!(self.served, Served::File { .. }).then_some(self.image.as_path())
    }

    /// An image of what the disk holds, which no server uses any more.
    pub(super) fn final_image(&self, program: &Path) -> Result<&Path> {
        let run = |words: &[&str], paths: &[&Path]| process::run(Command::new(program).args(words).args(paths));
        match &self.served {
            Served::Volume { volume, image: None, .. } => {
                run(&["volume", "convert", "--to", "raw"], &[volume, &self.image])?;
            }
            Served::Volume { image: Some(image), .. } => {
                run(&["image", "check"], &[image])?;
                run(&["image", "convert", "--from", "qcow2", "--to", "raw"], &[image, &self.image])?;
            }
            _ => {}
        }
        Ok(&self.image)
    }
}
